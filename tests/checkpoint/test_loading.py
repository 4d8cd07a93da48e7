"""Checkpoints into backbones, and into mmpretrain's classifiers."""

import copy
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
import safetensors.torch
import torch
from mmengine.config import Config
from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.registry import init_default_scope
from mmengine.runner.checkpoint import CheckpointLoader, load_from_http, load_from_local, load_state_dict
from published import published_state_dict, to_published, write_timm_file

from mmsoft.backbones import SOFT, SimADeiT, SimAXCiT
from mmsoft.checkpoint import CheckpointError, convert_checkpoint, load_pretrained, read_checkpoint
from mmsoft.checkpoint.load import check_model
from mmsoft.checkpoint.names import SIMA_DEIT, to_mmsoft
from mmsoft.layers.maps import resize_pos_embed

SMALL = dict(embed_dims=[32, 64], num_heads=[1, 2], depths=[1, 2])
FOUR_STAGES = dict(embed_dims=[32, 32, 32, 64], num_heads=[1, 1, 1, 2], depths=[1, 1, 1, 1])
XCIT = dict(embed_dims=32, num_heads=2, depth=4, patch_size=8, gamma=1.0, norm_tokens=True)
NETWORKS = [
    dict(type='mmsoft.SOFT', arch=SMALL, out_indices=(0, 1)),
    dict(type='mmsoft.SOFT', arch=FOUR_STAGES),
    dict(type='mmsoft.SimAXCiT', arch=XCIT, out_indices=(0, 3), with_cls_token=True),
    dict(type='mmsoft.SimADeiT', arch=dict(embed_dims=32, num_heads=2, depth=2), out_indices=(0, 1)),
    dict(type='mmsoft.SimACvT', arch=dict(embed_dims=[16, 32, 48], num_heads=[1, 2, 3], depths=[1, 1, 2])),
]


@pytest.fixture
def log(monkeypatch):
    """What is logged, as one string a call."""
    lines = []
    monkeypatch.setattr('mmsoft.checkpoint.load.print_log', lambda line, **logger: lines.append((line, logger)))
    return lines


def weights_of(backbone):
    """A published state dict of any size, of random weights."""
    torch.manual_seed(0)
    ours = {
        f'backbone.{name}': torch.rand_like(t) if t.is_floating_point() else t
        for name, t in backbone.state_dict().items()
    }
    head = {'head.fc.weight': torch.rand(10, 64), 'head.fc.bias': torch.rand(10)}
    return to_published(backbone.published, {**ours, **head})


def saved(path, content):
    torch.save(content, path)
    return str(path)


def loaded(backbone, published):
    """Whether a backbone holds the tensors of a published state dict."""
    ours = to_mmsoft(published)[1]
    return all(torch.equal(tensor, ours[f'backbone.{name}']) for name, tensor in backbone.state_dict().items())


FORMS = {
    'published': lambda path, published: write_timm_file(path, published),
    'model': lambda path, published: write_timm_file(path, published, 'model', model_ema={'x': torch.zeros(1)}),
    'bare': lambda path, published: saved(path, published),
    'detector of the authors': lambda path, published: saved(
        path, dict(state_dict={**{f'backbone.{k}': t for k, t in published.items()}, 'neck.x': torch.ones(1)})
    ),
    'ours': lambda path, published: saved(path, dict(state_dict=to_mmsoft(published)[1], meta={})),
    'our backbone alone': lambda path, published: saved(
        path, {k[len('backbone.') :]: t for k, t in to_mmsoft(published)[1].items() if k.startswith('backbone.')}
    ),
}


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('cfg', NETWORKS, ids=lambda cfg: cfg['type'])
def test_every_form_of_file_loads(tmp_path, form, cfg):
    published = weights_of(MMENGINE_MODELS.build(cfg))
    path = FORMS[form](tmp_path / 'x.pth', published)
    backbone = MMENGINE_MODELS.build(dict(cfg, init_cfg=dict(type='Pretrained', checkpoint=path)))
    backbone.init_weights()
    assert loaded(backbone, published)


@pytest.mark.parametrize('prefix', ['student.', 'student'])
def test_prefix(tmp_path, prefix):
    published = weights_of(SOFT(SMALL, out_indices=(0, 1)))
    path = saved(
        tmp_path / 'x.pth',
        {**{f'student.{k}': t for k, t in published.items()}, **{f'teacher.{k}': t * 0 for k, t in published.items()}},
    )
    backbone = SOFT(SMALL, out_indices=(0, 1))
    load_pretrained(backbone, path, prefix)
    assert loaded(backbone, published)
    init_cfg = dict(type='Pretrained', checkpoint=path, prefix=prefix)
    by_config = SOFT(SMALL, out_indices=(0, 1), init_cfg=init_cfg)
    by_config.init_weights()
    assert loaded(by_config, published)
    with pytest.raises(CheckpointError, match='no names that start with pupil.; leave prefix out'):
        load_pretrained(backbone, path, 'pupil')


def test_init_cfg_without_a_checkpoint():
    with pytest.raises(CheckpointError, match='None is not a file: training leaves'):
        SOFT(FOUR_STAGES, init_cfg=dict(type='Pretrained')).init_weights()


def test_log_says_what_became_of_each_tensor(tmp_path, log):
    path = write_timm_file(tmp_path / 'x.pth', published_state_dict('soft_tiny'))
    load_pretrained(SOFT('tiny', out_indices=(0, 1), img_size=256), path)
    load_pretrained(SOFT('tiny', attention=dict(type='SOFTAttention', sampling='avg_pool')), path)
    load_pretrained(SOFT('tiny', attention=[dict(type='SOFTAttention')] * 4), path)
    first, second, third = (line for line, logger in log if logger == dict(logger='current'))
    assert first == (
        f'{path} (state_dict_ema): loaded 84 of the 84 tensors of SOFT; resized: stages.0.pos_embed 56×56 '
        '→ 64×64, stages.1.pos_embed 28×28 → 32×32; left out: stages.2 (62), stages.3 (33), norm (2), '
        'head (2); missing: none'
    )
    assert 'left out: stages.0 (1), stages.1 (2), stages.2 (3), head (2)' in second
    assert 'missing: stages.3 (16)' in third


@pytest.mark.parametrize('network, size, mode', [(SOFT, dict(arch='tiny'), 'bilinear'), (SimADeiT, {}, 'bicubic')])
def test_position_embeddings_are_resized(tmp_path, network, size, mode):
    published = weights_of(network(**size, out_indices=(3,)))
    backbone = network(**size, out_indices=(3,), img_size=256)
    load_pretrained(backbone, saved(tmp_path / 'x.pth', published))
    ours = to_mmsoft(published)[1]
    grids = {name: t for name, t in backbone.state_dict().items() if name.endswith('pos_embed')}
    assert grids
    for name, tensor in grids.items():
        theirs = ours[f'backbone.{name}']
        before, after = (int(t.size(1) ** 0.5) for t in (theirs, tensor))
        assert before < after
        torch.testing.assert_close(tensor, resize_pos_embed(theirs, (before, before), (after, after), mode))


@pytest.mark.parametrize(
    'network, size, mode',
    [
        (SOFT, dict(arch=FOUR_STAGES), 'bilinear'),
        (SimADeiT, dict(arch=dict(embed_dims=32, num_heads=2, depth=2), out_indices=(1,)), 'bicubic'),
    ],
)
def test_position_embeddings_of_a_whole_model_are_resized(tmp_path, network, size, mode):
    """mmengine would warn and leave them random; whatever has another number of channels, too."""
    model, other = (torch.nn.ModuleDict(dict(backbone=network(**size, img_size=side))) for side in (224, 256))
    path = saved(tmp_path / 'x.pth', model.state_dict())
    check_model(other, path)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    wrapped = torch.nn.ModuleDict(dict(backbone=network(**size, img_size=256)))
    load_state_dict(wrapped, model.state_dict(), strict=True)  # mmengine's
    assert str(other.load_state_dict(model.state_dict())) == '<All keys matched successfully>'
    assert all(torch.equal(tensor, wrapped.state_dict()[name]) for name, tensor in other.state_dict().items())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    for name, theirs in before.items():
        if name.endswith('pos_embed'):
            ours = other.state_dict()[name]
            sides = [(int(t.size(1) ** 0.5),) * 2 for t in (theirs, ours)]
            assert sides[0] < sides[1]
            torch.testing.assert_close(ours, resize_pos_embed(theirs, *sides, mode))
            changed = saved(tmp_path / 'y.pth', {**before, name: theirs[..., 1:]})
            with pytest.raises(CheckpointError, match=f'1 of the .* tensors .* {name} first'):
                check_model(other, changed)


def test_small_as_the_authors_code_builds_it(tmp_path):
    arch = dict(embed_dims=[64, 128, 320, 512], num_heads=[2, 4, 10, 16], depths=[1, 3, 20, 4])
    published = weights_of(SOFT(arch))
    path = saved(tmp_path / 'small.pth', published)
    with pytest.raises(CheckpointError) as error:
        load_pretrained(SOFT('small'), path)
    assert '[1, 3, 20, 4] blocks where the backbone has [1, 3, 7, 4]' in str(error.value)
    backbone = SOFT(arch)
    load_pretrained(backbone, path)
    assert loaded(backbone, published)


WRONG = {
    'resnet': (
        dict(),
        {'conv1.weight': (64, 3, 7, 7), 'layer1.0.conv1.weight': (64, 64, 1, 1)},
        'another network, nothing in it matches SOFT; use a checkpoint of SOFT',
    ),
    'swin': (
        dict(),
        {
            'patch_embed.proj.weight': (96, 3, 4, 4),
            'layers.0.blocks.0.norm1.weight': (96,),
            'norm.weight': (512,),
            'head.weight': (9, 512),
        },
        'another network, nothing in it matches SOFT',
    ),
    'pvt': (
        dict(),
        {
            'patch_embed1.proj.weight': (64, 3, 4, 4),
            'pos_embed1': (1, 3136, 64),
            'norm.weight': (512,),
            'block4.0.attn.q.weight': (512, 512),
            'block4.0.attn.kv.weight': (1024, 512),
        },
        'another network',
    ),
    'sima': (dict(), 'sima_tiny_12_p16', 'a network of the family sima_xcit, nothing in it matches SOFT'),
    'other size': (dict(arch='small'), 'soft_tiny', r'has \[1, 2, 3, 2\] blocks where the backbone has \[1, 3, 7, 4\]'),
    'other size, first stages': (dict(arch='small', out_indices=(0, 1)), 'soft_tiny', r'where the backbone has \[1, 3'),
    'other channels': (dict(in_channels=1), 'soft_tiny', r'of shape \(32, 3, 3, 3\) in .*\(32, 1, 3, 3\)'),
    'other ratio': (
        dict(arch=dict(SOFT.arch_settings['tiny'], sampling_ratios=[4, 4, 2, 1])),
        'soft_tiny',
        r'bottleneck.conv.weight of shape \(32, 32, 8, 8\)',
    ),
}


@pytest.mark.parametrize('kind', WRONG)
def test_a_wrong_network_ends_with_one_sentence(tmp_path, kind):
    options, shapes, message = WRONG[kind]
    if isinstance(shapes, str):
        weights = published_state_dict(shapes)
    else:
        weights = {name: torch.zeros(shape) for name, shape in shapes.items()}
    path = saved(tmp_path / 'x.pth', weights)
    backbone = SOFT(**{'arch': 'tiny', **options})
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    with pytest.raises(CheckpointError, match=message) as error:
        load_pretrained(backbone, path)
    assert str(error.value).startswith((f'{path} holds', f'{path} has')) and '\n' not in str(error.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.state_dict().items())


@pytest.mark.parametrize(
    'arch, message',
    [
        ('tiny-24-p16', r'has \[12\] blocks where the backbone has \[24\]'),
        ('tiny-12-p8', 'patch_embed.convs.0.conv.weight of shape'),
    ],
)
def test_other_sizes_of_sima(tmp_path, arch, message):
    path = saved(tmp_path / 'x.pth', published_state_dict('sima_tiny_12_p16'))
    with pytest.raises(CheckpointError, match=message):
        load_pretrained(SimAXCiT(arch, out_indices=(-1,)), path)


def test_blocks_that_are_not_built_may_be_missing(tmp_path):
    """A detector's file has fewer blocks than the arch of its backbone says."""
    published = weights_of(SimAXCiT(XCIT, out_indices=(0, 1)))
    backbone = SimAXCiT(XCIT, out_indices=(0, 1))
    load_pretrained(backbone, saved(tmp_path / 'x.pth', published))
    assert loaded(backbone, published)


def classifier(path=None):
    """An ImageClassifier with a small backbone and ten classes, through ``mmpretrain.get_model``."""
    get_model = pytest.importorskip('mmpretrain').get_model
    backbone = dict(type='mmsoft.SOFT', arch=FOUR_STAGES, out_type='cls_token')
    head = dict(type='LinearClsHead', num_classes=10, in_channels=64)
    return get_model(Config(dict(model=dict(type='ImageClassifier', backbone=backbone, head=head))), pretrained=path)


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.usefixtures('safe_loading')
def test_classifiers_load_every_form_head_included(tmp_path, form):
    published = weights_of(SOFT(FOUR_STAGES))
    model = classifier(FORMS[form](tmp_path / 'x.pth', published))
    assert loaded(model.backbone, published)
    if form != 'our backbone alone':
        assert torch.equal(model.head.fc.weight, published['head.weight'])
        assert torch.equal(model.head.fc.bias, published['head.bias'])


def test_classifiers_load_their_own_state_as_ever(log):
    model, other = classifier(), classifier()
    state_dict = model.state_dict()
    assert str(other.load_state_dict(state_dict)) == '<All keys matched successfully>'
    unexpected = other.load_state_dict({**state_dict, 'backbone.x': torch.ones(1)}, strict=False).unexpected_keys
    assert unexpected == ['backbone.x']
    missing = other.load_state_dict({'head.fc.bias': torch.ones(10)}, strict=False).missing_keys
    assert 'backbone.norm.weight' in missing and 'head.fc.bias' not in missing
    assert len(other.load_state_dict({}, strict=False).missing_keys) == len(list(other.parameters())) + len(
        [name for name in state_dict if 'running' in name]
    )
    nested = torch.nn.ModuleDict(dict(student=model))
    assert str(nested.load_state_dict(nested.state_dict())) == '<All keys matched successfully>'
    assert not log


@pytest.mark.parametrize(
    'weights, message',
    [
        (
            {'backbone.conv1.weight': torch.ones(2), 'head.fc.weight': torch.ones(2)},
            '^the checkpoint holds another network',
        ),
        (weights_of(SOFT(SMALL, out_indices=(0, 1))), 'where the backbone has'),
    ],
    ids=['resnet', 'size'],
)
def test_classifiers_refuse_wrong_networks(tmp_path, weights, message):
    with pytest.raises(CheckpointError, match=message):
        classifier(saved(tmp_path / 'x.pth', dict(state_dict=weights)))


@pytest.mark.usefixtures('safe_loading')
def test_other_files_are_read_as_they_are(tmp_path, monkeypatch):
    content = dict(state_dict={'x.weight': torch.ones(1)}, state_dict_ema={'x.weight': torch.zeros(1)}, epoch=3)
    other = CheckpointLoader.load_checkpoint(saved(tmp_path / 'x.pth', content))
    assert set(other) == set(content)
    content = dict(model={'module.x.weight': torch.ones(1)}, epoch=3)  # where mmengine would find no weights
    other = CheckpointLoader.load_checkpoint(saved(tmp_path / 'x.pth', content))
    assert other == {**content, 'state_dict': {'x.weight': torch.ones(1)}}
    published = write_timm_file(tmp_path / 'y.pth', weights_of(SOFT(FOUR_STAGES)))
    assert set(CheckpointLoader.load_checkpoint(published)) == {'state_dict'}
    safe = tmp_path / 'x.SAFETENSORS'
    safetensors.torch.save_file({'x.weight': torch.ones(1)}, safe)
    assert set(CheckpointLoader.load_checkpoint(str(safe))) == {'state_dict'}
    monkeypatch.setattr('mmsoft.checkpoint.io._download', lambda url: safe)
    address = 'https://host.invalid/x.safetensors?download=true'
    assert set(CheckpointLoader.load_checkpoint(address)) == {'state_dict'}
    with pytest.raises(CheckpointError, match='z.pth is not a file'):
        CheckpointLoader.load_checkpoint(str(tmp_path / 'z.pth'))
    cut = tmp_path / 'cut.pth'
    cut.write_bytes(Path(published).read_bytes()[:-100000])
    with pytest.raises(CheckpointError, match='damaged or cut off'):
        CheckpointLoader.load_checkpoint(str(cut))


@pytest.mark.usefixtures('safe_loading')
def test_trainings_of_other_networks_with_published_names_resume(tmp_path):
    """Those of DeiT are the names of any ViT, of which mmdet has one."""
    weights = {f'backbone.{name}': torch.ones(1) for name in SIMA_DEIT.signature}
    training = dict(state_dict=weights, meta=dict(epoch=3), message_hub={}, optimizer=dict(state={}))
    assert CheckpointLoader.load_checkpoint(saved(tmp_path / 'x.pth', training)) == training


@pytest.mark.parametrize('prefix', ['', 'module.'])
@pytest.mark.usefixtures('safe_loading')
def test_evaluated_weights_are_found_by_the_names_of_the_model(tmp_path, prefix):
    """EMAHooks read ``state_dict`` as it is: with other names, or another entry, they would test random weights."""
    size = dict(embed_dims=32, num_heads=2, depth=2)
    ours = to_mmsoft(weights_of(SimADeiT(size, out_indices=(1,))))[1]
    named, others = {prefix + name: t for name, t in ours.items()}, {name: 0 * t for name, t in ours.items()}
    training = dict(state_dict=named, meta=dict(epoch=3), ema_state_dict={})
    for content in (training, named, dict(model=named, epoch=3), dict(state_dict=others, state_dict_ema=named)):
        found = CheckpointLoader.load_checkpoint(saved(tmp_path / 'x.pth', content))
        assert found['state_dict'].keys() == ours.keys()
        assert all(torch.equal(tensor, ours[name]) for name, tensor in found['state_dict'].items())
        assert content is not training or found.keys() == training.keys()
    path = saved(tmp_path / 'y.pth', dict(state_dict={f'{prefix}neck.x': torch.ones(1)}))
    assert [*CheckpointLoader.load_checkpoint(path)['state_dict']] == ['neck.x']


@pytest.mark.parametrize(
    'content', [lambda ran: {'a': Call(ran)}, lambda ran: dict(state_dict={}, meta=dict(x=Call(ran)))]
)
@pytest.mark.usefixtures('safe_loading')
def test_the_loader_of_mmengine_runs_nothing(tmp_path, content):
    path = saved(tmp_path / 'x.pth', content(str(tmp_path / 'ran')))
    with pytest.raises(CheckpointError, match='could run code'):
        CheckpointLoader.load_checkpoint(path)
    assert not (tmp_path / 'ran').exists()


@pytest.mark.usefixtures('safe_loading')
def test_a_config_that_mmengine_would_run_is_left_out(tmp_path):
    path = saved(tmp_path / 'x.pth', dict(state_dict={'a': torch.ones(1)}, meta=dict(config='1 / 0', cfg='x = 1')))
    assert CheckpointLoader.load_checkpoint(path)['meta'] == dict(cfg='x = 1')


class Call:
    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize(
    'change, message',
    [
        (lambda name, t: t.flatten() if name.endswith('attn.kv.weight') else t, 'or do not fit each other'),
        (lambda name, t: t.long() if name.endswith('proj.0.weight') else t, 'in torch.int64 where the backbone has it'),
        (
            lambda name, t: t.flatten() if name == 'pos_embed1' else t,
            r'of shape \(\d+,\) in torch.float32 where the backbone has',
        ),
    ],
)
def test_damaged_tensors_end_with_one_sentence(tmp_path, change, message):
    published = {name: change(name, t) for name, t in weights_of(SOFT(FOUR_STAGES)).items()}
    with pytest.raises(CheckpointError, match=message):
        load_pretrained(SOFT(FOUR_STAGES), saved(tmp_path / 'x.pth', published))


class Teacher(torch.nn.Module):
    """As mmdet's semi-supervised detectors, which start from the weights of others."""

    def __init__(self):
        super().__init__()
        self.teacher, self.student = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)

    def _load_from_state_dict(self, state_dict, *args):
        for name in [name for name in state_dict if '.' not in name]:
            tensor = state_dict.pop(name)
            state_dict.update({f'teacher.{name}': tensor, f'student.{name}': tensor})
        super()._load_from_state_dict(state_dict, *args)


def test_a_model_that_renames_what_it_loads(tmp_path):
    path = saved(tmp_path / 'x.pth', torch.nn.Linear(2, 3).state_dict())
    check_model(Teacher(), path)
    check_model(Teacher(), saved(tmp_path / 'y.pth', Teacher().state_dict()))
    with pytest.raises(CheckpointError, match='4 of the 4 tensors'):
        check_model(Teacher(), saved(tmp_path / 'z.pth', torch.nn.Linear(3, 3, bias=False).state_dict()))


def test_names_that_nobody_translates_as_they_load(tmp_path):
    """mmengine's load_from would leave a detector at random weights without a word."""
    detector = torch.nn.ModuleDict(dict(backbone=SOFT(SMALL, out_indices=(0, 1)), neck=torch.nn.Conv2d(32, 8, 1)))
    published = weights_of(detector['backbone'])
    own = dict(published, **{f'backbone.{name}': tensor for name, tensor in published.items()})
    for weights in (published, own, detector['backbone'].state_dict()):
        for whole, says in ((False, 'names of a backbone: give it as model.backbone.init_cfg'), (True, 'does not fit')):
            with pytest.raises(CheckpointError, match=says):
                check_model(detector, saved(tmp_path / 'x.pth', weights), whole)
    check_model(detector, saved(tmp_path / 'x.pth', detector.state_dict()))


def test_classifiers_translate_names_and_others_with_a_head_do_not(tmp_path):
    model = classifier()
    path = saved(tmp_path / 'x.pth', weights_of(model.backbone))
    check_model(model, path)
    check_model(torch.nn.ModuleDict(dict(module=model)), path)  # in several processes
    learner = torch.nn.ModuleDict(dict(backbone=model.backbone, head=torch.nn.Linear(2, 2)))  # of features
    with pytest.raises(CheckpointError, match='names of a backbone'):
        check_model(learner, path, whole=False)


def test_checkpoints_of_low_rank_adapters_are_loaded(tmp_path):
    """mmpretrain's LoRAModel around the backbone saves adapters and head, and answers for the backbone."""
    models = pytest.importorskip('mmpretrain.models.peft.lora').MODELS
    init_default_scope('mmpretrain')  # whatever tests before have left
    deit, head = dict(NETWORKS[3], out_type='cls_token'), dict(type='LinearClsHead', num_classes=2, in_channels=32)
    backbone = dict(type='LoRAModel', module=deit, rank=1, targets=[dict(type='.*qkv')])
    model = dict(type='ImageClassifier', backbone=backbone, head=head)
    trained, again = (models.build(copy.deepcopy(model)) for _ in range(2))
    path = saved(tmp_path / 'x.pth', dict(state_dict=trained.state_dict()))
    check_model(again, path)
    again.load_state_dict(torch.load(path)['state_dict'])
    assert len(trained.state_dict()) == 6
    plain = models.build(dict(model, backbone=deit))
    with pytest.raises(CheckpointError, match='holds another network'):
        plain.load_state_dict(trained.state_dict(), strict=False)
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in trained.state_dict().items())


@pytest.mark.parametrize('norm_eval', [True, False])
def test_low_rank_adapters_need_kept_statistics(norm_eval):
    """LoRAModel saves no statistics of BatchNorm, so with ``norm_eval=False`` a loaded network differs (docs/faq.md)."""
    models = pytest.importorskip('mmpretrain.models.peft.lora').MODELS
    init_default_scope('mmpretrain')
    torch.manual_seed(0)
    soft = dict(NETWORKS[1], norm_eval=norm_eval)
    one = models.build(dict(type='LoRAModel', module=soft, rank=1, targets=[dict(type='.*(query|value|qkv)')]))
    again, images = copy.deepcopy(one), torch.rand(2, 3, 64, 64)
    for _ in range(3):
        one.train()(images)
    again.load_state_dict(one.state_dict())
    assert len(one.state_dict()) == 2 * (2 * 3 + 1)  # of query and value in three stages, and qkv in the last
    same = [torch.equal(*pair) for pair in zip(one.eval()(images), again.eval()(images))]
    assert same == [norm_eval] * 4


def test_a_checkpoint_is_of_the_model(tmp_path):
    model, path = SOFT(SMALL, out_indices=(0, 1)), str(tmp_path / 'x.pth')
    weights = model.state_dict()
    check_model(model, saved(path, dict(state_dict={f'module.{name}': t for name, t in weights.items()})))
    name = 'stages.0.embed.0.conv.weight'
    saved(path, {name: weights[name]})
    check_model(model, path, whole=False)
    with pytest.raises(CheckpointError, match='does not fit the config: 83 of the 84 tensors .* are missing'):
        check_model(model, path)
    with pytest.raises(CheckpointError, match='84 of the 84 tensors'):
        check_model(model, saved(path, {name: weights[name][None]}), whole=False)


def test_addresses_are_downloaded_once(tmp_path, monkeypatch):
    backbone = SOFT(SMALL, out_indices=(0, 1))
    files = [weights_of(backbone) for _ in range(2)]
    files[1] = {name: tensor + 1 for name, tensor in files[1].items()}
    addresses = {f'https://host.invalid/{i}/soft.pth?download=1': file for i, file in enumerate(files)}
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'hub'))
    calls = []
    monkeypatch.setattr(
        torch.hub, 'download_url_to_file', lambda url, path: calls.append(url) or saved(path, addresses[url])
    )
    for address, file in [*addresses.items()] * 2:
        load_pretrained(backbone, address)
        assert loaded(backbone, file), 'files of one name are mixed up'
    assert calls == [*addresses] and len(list((tmp_path / 'hub/checkpoints').glob('*.pth'))) == 2


def test_a_download_that_was_cut_off_is_tried_again(tmp_path, monkeypatch):
    """A server that closes the connection early is no error to torch's download."""
    content, calls = weights_of(SOFT(SMALL, out_indices=(0, 1))), []

    def download(url, path):
        saved(path, content)
        if not calls:
            Path(path).write_bytes(Path(path).read_bytes()[:-1000])
        calls.append(url)

    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'hub'))
    monkeypatch.setattr(torch.hub, 'download_url_to_file', download)
    with pytest.raises(CheckpointError, match='soft.pth is empty, damaged or cut off'):
        read_checkpoint('https://host.invalid/soft.pth')
    for _ in range(2):
        assert set(read_checkpoint('https://host.invalid/soft.pth')) == set(content)
    assert len(calls) == 2


def test_processes_download_an_address_once(tmp_path, monkeypatch):
    """Tools read before there is a process group, and threads wait for a lock of files as processes do."""
    content, calls = weights_of(SOFT(SMALL, out_indices=(0, 1))), []

    def download(url, path):
        calls.append(url)
        time.sleep(0.2)
        saved(path, content)

    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'hub'))
    monkeypatch.setattr(torch.hub, 'download_url_to_file', download)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(read_checkpoint, ['https://host.invalid/soft.pth'] * 4))
    assert len(calls) == 1 and all(set(checkpoint) == set(content) for checkpoint in found)


def test_a_download_is_read_where_nothing_can_be_written(tmp_path, monkeypatch):
    def lock(path):
        raise PermissionError(13, 'Permission denied', path)

    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'hub'))
    monkeypatch.setattr(torch.hub, 'download_url_to_file', lambda url, path: saved(path, {'a': torch.ones(1)}))
    read_checkpoint('https://host.invalid/soft.pth')
    monkeypatch.setattr('mmsoft.checkpoint.io.FileLock', lock)
    assert set(read_checkpoint('https://host.invalid/soft.pth')) == {'a'}


class TestHub:
    """``hf://owner/name/file``, with a stand-in for huggingface_hub's download."""

    ADDRESS = 'hf://someone/soft/weights/soft.safetensors'

    def test_a_file_is_loaded(self, tmp_path, monkeypatch):
        huggingface_hub = pytest.importorskip('huggingface_hub')
        published = weights_of(SOFT(SMALL, out_indices=(0, 1)))
        safetensors.torch.save_file(published, tmp_path / 'soft.safetensors')
        asked = []
        monkeypatch.setattr(
            huggingface_hub, 'hf_hub_download', lambda *args: asked.append(args) or str(tmp_path / 'soft.safetensors')
        )
        init_cfg = dict(type='Pretrained', checkpoint=self.ADDRESS)
        backbone = SOFT(SMALL, out_indices=(0, 1), init_cfg=init_cfg)
        backbone.init_weights()
        assert loaded(backbone, published) and asked == [('someone/soft', 'weights/soft.safetensors')]

    def test_a_damaged_file_alone_is_removed(self, tmp_path, monkeypatch):
        """The Hub's folder of a version has links to files, which it makes again where the file still is."""
        huggingface_hub = pytest.importorskip('huggingface_hub')
        blob, link = tmp_path / 'blob', tmp_path / 'soft.pth'
        link.symlink_to(blob)
        monkeypatch.setattr(huggingface_hub, 'hf_hub_download', lambda *args: str(link))
        torch.save(dict(state_dict={}, hook=torch.nn.ReLU()), blob)
        with pytest.raises(CheckpointError, match='could run code'):
            read_checkpoint('hf://someone/soft/soft.pth')
        with monkeypatch.context() as patch:
            patch.setattr(torch, 'load', Mock(side_effect=RuntimeError("DefaultCPUAllocator: can't allocate memory")))
            with pytest.raises(CheckpointError, match='needs more memory than there is'):
                read_checkpoint('hf://someone/soft/soft.pth')
        assert blob.exists()
        blob.write_bytes(blob.read_bytes()[:99])
        with pytest.raises(CheckpointError, match='get it again'):
            read_checkpoint('hf://someone/soft/soft.pth')
        assert not blob.exists()

    def test_what_goes_wrong_is_one_sentence(self, monkeypatch):
        huggingface_hub = pytest.importorskip('huggingface_hub')

        for error in (OSError('no network'), ValueError('no network')):  # the Hub's own are of either kind
            monkeypatch.setattr(huggingface_hub, 'hf_hub_download', Mock(side_effect=error))
            with pytest.raises(CheckpointError, match='soft.safetensors cannot be downloaded .no network.'):
                read_checkpoint(self.ADDRESS)
        for address in ('hf://soft.pth', 'hf://someone/soft.pth', 'hf://someone/soft/'):
            with pytest.raises(CheckpointError, match=f'{address} is not an address of the form hf://owner/name/file'):
                read_checkpoint(address)

    @pytest.mark.parametrize(
        'address', ['https://localhost/my file.pth', 'http://localhost/my file.pth', 'https://localhost:abc/x.pth']
    )
    def test_what_is_no_address(self, address):
        with pytest.raises(CheckpointError, match='cannot be downloaded'):
            read_checkpoint(address)

    def test_without_the_library(self, monkeypatch):
        monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
        with pytest.raises(CheckpointError, match='soft.safetensors needs huggingface_hub, which is not installed'):
            read_checkpoint(self.ADDRESS)


def test_checks_map_a_file(tmp_path, monkeypatch):
    seen, load = [], torch.load
    monkeypatch.setattr(torch, 'load', lambda path, **options: seen.append(options) or load(path, **options))
    path = saved(tmp_path / 'x.pth', dict(state_dict={'a': torch.ones(2)}))
    for peek in (True, False):
        assert read_checkpoint(path, peek=peek)['state_dict']['a'].tolist() == [1, 1]
    check_model(torch.nn.ParameterDict(dict(a=torch.zeros(2))), path)
    assert [options.get('mmap', False) for options in seen] == [True, False, True]


@pytest.mark.usefixtures('safe_loading')
def test_the_loader_of_mmengine_keeps_its_device(tmp_path):
    path = saved(tmp_path / 'x.pth', {'a': torch.ones(1)})
    seen = []
    CheckpointLoader.load_checkpoint(path, map_location=lambda storage, place: seen.append(place) or storage)
    assert seen == ['cpu']


@pytest.mark.usefixtures('safe_loading')
def test_the_loader_of_mmengine_needs_no_device_of_the_file(tmp_path, monkeypatch):
    seen, load = [], torch.load
    monkeypatch.setattr(
        torch, 'load', lambda *args, **options: seen.append(options['map_location']) or load(*args, **options)
    )
    CheckpointLoader.load_checkpoint(saved(tmp_path / 'x.pth', {'a': torch.ones(1)}))
    assert seen == ['cpu']


@pytest.mark.usefixtures('safe_loading')
def test_the_loader_of_mmengine_takes_what_is_no_checkpoint_of_its_own(tmp_path):
    for weights in (torch.ones(2), {3: torch.ones(2)}):
        with pytest.raises(CheckpointError, match='x.pth holds no weights by their names'):
            CheckpointLoader.load_checkpoint(saved(tmp_path / 'x.pth', dict(state_dict=weights)))
    noted = dict(state_dict={'a': torch.ones(1)}, meta='by hand')
    assert CheckpointLoader.load_checkpoint(saved(tmp_path / 'x.pth', noted)) == noted


@pytest.mark.usefixtures('safe_loading')
def test_an_empty_average_is_none(tmp_path):
    path = saved(tmp_path / 'x.pth', dict(state_dict_ema={}, state_dict=published_state_dict('soft_tiny'), epoch=3))
    assert set(CheckpointLoader.load_checkpoint(path)) == {'state_dict'}


def test_safe_loading_can_be_turned_off():
    from mmsoft.checkpoint.safe_loading import load_from_weights_only, use_safe_loading

    own = [load_from_local, load_from_http, load_from_http]
    for on, loaders in ((True, [load_from_weights_only] * 3), (False, own)):
        use_safe_loading(on)
        found = [CheckpointLoader._get_checkpoint_loader(path) for path in ('a.pth', 'http://a', 'https://a')]
        assert found == loaders


@pytest.mark.slow
def test_importing_changes_no_loader():
    """A config that names the module turns safe loading on; it can be turned off."""
    code = """if True:
        import mmsoft
        from mmengine.runner.checkpoint import CheckpointLoader, load_from_http, load_from_local
        mmsoft.SOFT, mmsoft.SimAXCiT
        schemes = lambda: [CheckpointLoader._get_checkpoint_loader(path) for path in ('a.pth', 'http://a', 'https://a')]
        before = schemes()
        assert before == [load_from_local, load_from_http, load_from_http], before
        from mmengine.utils import import_modules_from_strings
        safe = import_modules_from_strings(['mmsoft.checkpoint.safe_loading'])[0]
        assert schemes() == [safe.load_from_weights_only] * 3
        safe.use_safe_loading(False)
        assert schemes() == before"""
    subprocess.run([sys.executable, '-W', 'ignore', '-c', code], check=True)


def test_tensors_that_share_their_memory_are_converted(tmp_path):
    """To a file of safetensors, whatever the case of its name."""
    published = weights_of(SOFT(SMALL, out_indices=(0, 1)))
    published['block1.0.att.norm2.weight'] = published['block1.0.att.norm1.weight']
    said = convert_checkpoint(saved(tmp_path / 'x.pth', published), tmp_path / 'y.SAFETENSORS')
    assert said.endswith(f'tensors of soft from the state dict of {tmp_path / "x.pth"}')
    found, expected = safetensors.torch.load_file(tmp_path / 'y.SAFETENSORS'), to_mmsoft(published)[1]
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


def test_what_cannot_be_converted_is_named(tmp_path):
    path = saved(tmp_path / 'x.pth', {'conv1.weight': torch.ones(1)})
    with pytest.raises(CheckpointError, match='x.pth holds another network, nothing in it matches SOFT or SimA'):
        convert_checkpoint(path, tmp_path / 'y.pth')


def test_sync_batch_norm_files_fit(tmp_path):
    published = weights_of(SOFT(SMALL, out_indices=(0, 1), norm_cfg=dict(type='SyncBN')))
    backbone = SOFT(SMALL, out_indices=(0, 1))
    load_pretrained(backbone, saved(tmp_path / 'x.pth', published))
    assert loaded(backbone, published)
