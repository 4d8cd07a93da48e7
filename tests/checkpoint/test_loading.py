"""Checkpoints into backbones, and into mmpretrain's classifiers."""

import copy

import pytest
import safetensors.torch
import torch
from mmengine.config import Config
from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.registry import init_default_scope
from mmengine.runner.checkpoint import load_state_dict
from published import published_state_dict, write_timm_file
from weights import FOUR_STAGES, NETWORKS, SMALL, XCIT, loaded, saved, weights_of

from mmsoft.backbones import SOFT, SimADeiT, SimAXCiT
from mmsoft.checkpoint import CheckpointError, convert_checkpoint, load_pretrained
from mmsoft.checkpoint.load import check_model
from mmsoft.checkpoint.names import to_mmsoft
from mmsoft.layers.maps import resize_pos_embed


@pytest.fixture
def log(monkeypatch):
    """What is logged, as one string a call."""
    lines = []
    monkeypatch.setattr('mmsoft.checkpoint.load.print_log', lambda line, **logger: lines.append((line, logger)))
    return lines


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
