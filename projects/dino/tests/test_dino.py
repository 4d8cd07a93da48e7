"""DINO's parts are compared with formulas written out, with torch and with loops; small trainings resume to the bit."""

import gzip
from collections import Counter
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.registry import MODELS, OPTIM_WRAPPER_CONSTRUCTORS, PARAM_SCHEDULERS, TRANSFORMS

from mmsoft import apis
from mmsoft.utils import UsageError
from mmsoft.utils.config import dicts
from projects.dino import ClipEachOptimWrapper, Digits, DINOHook, DINOLoss, Probe, Projection
from projects.dino import __main__ as tool
from projects.dino.__main__ import table
from projects.dino.digits import make_data
from projects.dino.training import cosine

CONFIGS = Path(__file__).parents[1] / 'configs'
NETWORKS = ('sima_xcit_small_12_p16', 'xcit_small_12_p16', 'deit_small')
TINY = dict(embed_dims=32, num_heads=2, depth=2, patch_size=8)
BACKBONES = dict(
    sima=dict(type='mmsoft.SimAXCiT', arch=TINY, out_indices=(1,), out_type='cls_token', drop_path_rate=0.5),
    xcit=dict(type='mmpretrain.XCiT', img_size=16, tokens_norm=True, drop_path_rate=0.5, **TINY),
)


def dino(name='sima', **options):
    neck = dict(type='Projection', in_dims=32, out_dims=40, hidden=24, bottleneck=16, **options)
    model = MODELS.build(
        dict(type='DINO', backbone=BACKBONES[name], neck=neck, head=dict(type='DINOLoss', out_dims=40))
    )
    model.init_weights()
    return model


def test_the_loss_is_the_published_formula():
    """Of main_dino.py: pairs of different views, teacher centred and sharpened, then the centre moves."""
    head = DINOLoss(7).double()
    student, teacher, centre = (torch.randn(*shape, dtype=torch.float64) for shape in ((5, 3, 7), (2, 3, 7), (7,)))
    head.centre.copy_(centre)
    head.teacher_temperature = 0.06
    pairs = []
    for q in range(2):
        for v in range(5):
            if v != q:
                for sample in range(3):
                    p = np.exp((teacher[q, sample] - centre).numpy() / 0.06)
                    log = student[v, sample].numpy() / 0.1
                    log = log - np.log(np.exp(log).sum())
                    pairs.append(-(p / p.sum() * log).sum())
    assert head.loss(student, teacher)['loss'].item() == pytest.approx(np.mean(pairs), rel=1e-12)
    expected = 0.9 * centre + 0.1 * teacher.reshape(6, 7).mean(0)
    torch.testing.assert_close(head.centre, expected, rtol=1e-12, atol=0)


def test_the_projection_is_torchs_weight_norm_with_norms_of_one():
    neck = Projection(6, 9, 8, 5)
    neck.init_weights()
    last = torch.nn.utils.parametrizations.weight_norm(deepcopy(neck.last))
    last.parametrizations.weight.original0.data.fill_(1)
    x = torch.randn(4, 6)
    torch.testing.assert_close(neck(x), last(F.normalize(neck.layers(x))))
    assert neck.layers[0].weight.std() < 0.03 and not neck.layers[0].bias.any()


def test_batch_norms_of_the_projection_average_over_all_views():
    """As MultiCropWrapper and DINOHead of the authors' code."""
    model = dino(norm=True)
    model.backbone.eval()
    kinds = [type(layer) for layer in model.neck.layers]
    hidden = [torch.nn.Linear, torch.nn.BatchNorm1d, torch.nn.GELU]
    assert kinds == [*hidden, *hidden, torch.nn.Linear]
    seen = []
    model.head.loss = lambda student, teacher: seen.append(student)
    views = [torch.randn(3, 3, size, size) for size in (16, 16, 8)]
    with torch.no_grad():
        model.loss(views)
        x = torch.cat([model.backbone(view)[-1] for view in views])
        for first, norm in ((0, 1), (3, 4)):
            x = F.linear(x, model.neck.layers[first].weight)
            x = F.gelu((x - x.mean(0)) / (x.var(0, unbiased=False) + model.neck.layers[norm].eps).sqrt())
        x = F.normalize(F.linear(x, model.neck.layers[-1].weight)) @ F.normalize(model.neck.last.weight).T
    torch.testing.assert_close(seen[0].flatten(0, 1), x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('name', BACKBONES)
def test_the_teacher_moves_by_hand_and_keeps_its_own_statistics(name):
    model = dino(name).train()
    student = dict(model.backbone.named_parameters()), dict(model.neck.named_parameters())
    teacher = [dict(part.named_parameters()) for part in model.teacher.values()]
    assert all(torch.equal(slow[key], fast[key]) for slow, fast in zip(teacher, student) for key in fast)
    assert not any(slow[key].requires_grad for slow in teacher for key in slow)
    model.loss([torch.randn(4, 3, 16, 16), torch.randn(4, 3, 16, 16), torch.randn(4, 3, 8, 8)])
    own = {key: value.clone() for key, value in model.teacher['backbone'].named_buffers() if 'running_mean' in key}
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(1)
    before = [{key: value.clone() for key, value in part.items()} for part in teacher]
    model.update_teacher(0.75)
    for old, slow, fast in zip(before, teacher, student):
        for key in fast:
            torch.testing.assert_close(slow[key], 0.75 * old[key] + 0.25 * fast[key])
    running = dict(model.teacher['backbone'].named_buffers())
    of_student = dict(model.backbone.named_buffers())
    assert own and all(torch.equal(running[key], value) for key, value in own.items())
    assert all(not torch.equal(of_student[key], value) for key, value in own.items())


def test_the_teacher_drops_nothing():
    model = dino().train()
    views = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(model.extract_feat(views), model.extract_feat(views))
        assert not torch.equal(model.backbone(views)[-1], model.backbone(views)[-1])


def test_views_of_one_size_go_through_together_in_their_order():
    model = dino().eval()
    views = [torch.randn(3, 3, size, size) for size in (16, 16, 8, 8, 8)]
    seen = []
    model.head.loss = lambda student, teacher: seen.append((student, teacher))
    with torch.no_grad():
        model.loss(views)
        apart = torch.stack([model.neck(model.backbone(view)[-1]) for view in views])
    torch.testing.assert_close(seen[0][0], apart)
    torch.testing.assert_close(seen[0][1], apart[:2])


def runner(model, steps=8):
    optimizer = torch.optim.AdamW(model.parameters())
    wrapper = ClipEachOptimWrapper(optimizer, clip_grad=dict(max_norm=3.0))
    return SimpleNamespace(model=model, optim_wrapper=wrapper, iter=0, epoch=0, max_iters=steps)


def test_schedules_have_the_published_values(monkeypatch):
    """numpy's arrays as in DINO's cosine_scheduler and linspace."""
    model = dino()
    run = runner(model)
    run.optim_wrapper.param_groups[0]['weight_decay'] = 0.04
    run.optim_wrapper.optimizer.add_param_group(dict(params=[torch.nn.Parameter(torch.ones(1))], weight_decay=0.0))
    hook = DINOHook(teacher_temperature=(0.04, 0.07), warmup_epochs=3)
    expected = 0.4 + 0.5 * (0.04 - 0.4) * (1 + np.cos(np.pi * np.arange(8) / 8))
    for step in range(8):
        run.iter, run.epoch = step, step // 2
        hook.before_train_iter(run, step)
        moved, still = (group['weight_decay'] for group in run.optim_wrapper.param_groups)
        assert moved == pytest.approx(expected[step]) and still == 0
        assert model.head.teacher_temperature == pytest.approx([0.04, 0.055, 0.07, 0.07][step // 2])
        assert [one is model.neck.last.weight for one in run.optim_wrapper.frozen] == [True] * (step < 2)
    assert cosine(0.996, 1, 0, 8) == 0.996 and cosine(0.996, 1, 8, 8) == 1
    momenta = []
    monkeypatch.setattr(model, 'update_teacher', momenta.append)
    for run.iter in range(8):
        hook.after_train_iter(run, run.iter)
    assert momenta == pytest.approx(1 + 0.5 * (0.996 - 1) * (1 + np.cos(np.pi * np.arange(8) / 8)), rel=1e-9)


def test_gradients_are_clipped_tensor_by_tensor():
    tensors = [torch.nn.Parameter(torch.ones(5)) for _ in range(4)]
    wrapper = ClipEachOptimWrapper(torch.optim.SGD(tensors, 1.0), clip_grad=dict(max_norm=3.0))
    wrapper.frozen = tensors[3:]
    gradients = [torch.full((5,), value) for value in (0.1, 10.0, -200.0, 7.0)]
    for tensor, gradient in zip(tensors, gradients):
        tensor.grad = gradient.clone()
    wrapper.step()
    for tensor, gradient in zip(tensors[:3], gradients):
        expected = gradient * min(1, 3 / gradient.norm())
        torch.testing.assert_close(1 - tensor.detach(), expected, rtol=1e-4, atol=1e-5)
    assert (tensors[3] == 1).all() and tensors[3].grad is None


@pytest.mark.parametrize('name', NETWORKS)
def test_full_configs_are_the_papers(name):
    config = Config.fromfile(CONFIGS / f'dino_{name}_100e_in1k.py')
    for key in ('hidden', 'bottleneck', 'out_dims'):
        config.model.neck[key] = config.model.head.out_dims = 16
    model = MODELS.build(config.model)
    wrapper = OPTIM_WRAPPER_CONSTRUCTORS.build(
        dict(
            type='DefaultOptimWrapperConstructor',
            optim_wrapper_cfg=config.optim_wrapper,
            paramwise_cfg=config.optim_wrapper.pop('paramwise_cfg'),
        )
    )(model)
    groups = {id(group['params'][0]): group for group in wrapper.param_groups}
    for key, parameter in model.named_parameters():
        if parameter.requires_grad:
            plain = key.endswith('.bias') or parameter.ndim == 1
            assert groups[id(parameter)]['weight_decay'] == (0 if plain else 0.04), key
        else:
            assert id(parameter) not in groups
    rates, warm, length = [], 10, 3
    schedulers = [
        PARAM_SCHEDULERS.build(dict(cfg), default_args=dict(optimizer=wrapper, epoch_length=length))
        if not cfg.pop('convert_to_iter_based')
        else PARAM_SCHEDULERS.get(cfg.pop('type')).build_iter_from_epoch(wrapper, **cfg, epoch_length=length)
        for cfg in config.param_scheduler
    ]
    for _ in range(100 * length):
        rates.append(wrapper.param_groups[0]['lr'])
        for scheduler in schedulers:
            scheduler.step()
    rest = np.arange((100 - warm) * length)
    falling = 1e-6 + 0.5 * (2.5e-4 - 1e-6) * (1 + np.cos(np.pi * rest / len(rest)))
    assert rates == pytest.approx([*np.linspace(0, 2.5e-4, warm * length), *falling], abs=1e-9)


@pytest.mark.parametrize(
    'name', ['sima_xcit_small_12_p16_100e_in1k', 'xcit_small_12_p16_100e_in1k', 'sima_digits', 'xcit_digits']
)
def test_networks_begin_with_the_authors_small_weights(name):
    """mmpretrain's XCiT begins, if not told otherwise, with weights of deviation 1."""
    config = Config.fromfile(CONFIGS / f'dino_{name}.py').model.backbone
    config.update(dict(depth=1) if config.type == 'mmpretrain.XCiT' else dict(out_indices=(0,)))
    backbone = MODELS.build(config)
    backbone.init_weights()
    linears = [module.weight for module in backbone.modules() if isinstance(module, torch.nn.Linear)]
    assert linears and all(0.01 < weight.std() < 0.03 for weight in linears)


def test_views_are_the_papers():
    config = Config.fromfile(CONFIGS / 'dino_sima_xcit_small_12_p16_100e_in1k.py')
    image = np.random.default_rng(0).integers(0, 256, (300, 200, 3), dtype=np.uint8)
    data = dict(img=image, gt_label=3)
    for step in config.train_dataloader.dataset.pipeline[1:]:
        data = TRANSFORMS.build(step)(data)
    assert [tuple(view.shape) for view in data['inputs']] == [(3, 224, 224)] * 2 + [(3, 96, 96)] * 8
    crops = [one for one in dicts(config.train_dataloader.dataset.pipeline) if one.get('type') == 'RandomResizedCrop']
    assert {(crop['scale'], crop['crop_ratio_range']) for crop in crops} == {(224, (0.4, 1.0)), (96, (0.05, 0.4))}


@pytest.mark.parametrize('name', BACKBONES)
def test_the_probe_has_four_vectors_and_learns_nothing(name):
    blocks, last = ('blocks', 'cls_blocks') if name == 'sima' else ('xca_layers', 'ca_layers')
    probe = Probe(BACKBONES[name], [f'{last}.0', f'{last}.1'], [f'{blocks}.0', f'{blocks}.1']).train()
    images = torch.randn(3, 3, 16, 16)
    vectors = probe(images)[0].unflatten(1, (4, 32))
    assert not vectors.requires_grad and torch.equal(vectors, probe(images)[0].unflatten(1, (4, 32)))
    assert any((vectors[:, i] - probe.backbone(images)[-1]).abs().max() < 1e-6 for i in range(4))
    seen = []
    probe.backbone.get_submodule(f'{blocks}.1').register_forward_hook(lambda *args: seen.append(args[2]))
    probe(images)
    torch.testing.assert_close(vectors[:, 1], probe.backbone.norm(seen[0].mean(1)))  # blocks come first
    assert all((vectors[:, i] - vectors[:, j]).abs().max() > 1e-3 for i in range(4) for j in range(i))


@pytest.mark.slow
@pytest.mark.parametrize('name', NETWORKS)
def test_linear_configs_load_a_teacher(name, tmp_path):
    config = Config.fromfile(CONFIGS / f'linear_{name}_in1k.py')
    backbone = config.model.backbone.backbone
    trained = MODELS.build(Config.fromfile(CONFIGS / f'dino_{name}_100e_in1k.py').model.backbone)
    trained.init_weights()
    state = {f'teacher.backbone.{key}': value for key, value in trained.state_dict().items()}
    torch.save(dict(state_dict=state), tmp_path / 'dino.pth')
    backbone.init_cfg.checkpoint = str(tmp_path / 'dino.pth')
    model = MODELS.build({key: value for key, value in config.model.items() if key != 'data_preprocessor'}).eval()
    model.init_weights()
    trained.eval()
    image = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        (features,) = model.backbone(image)
        torch.testing.assert_close(model.backbone.backbone(image)[-1], trained(image)[-1])
    assert features.shape == (1, 4 * 384) and model.head.fc.in_features == 4 * 384
    assert {key for key, value in model.named_parameters() if value.requires_grad} == {'head.fc.weight', 'head.fc.bias'}


@pytest.fixture
def digits(tmp_path, monkeypatch):
    """Fifty digits, in the package's format."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.integers(0, 256, (50, 784)), np.repeat(np.arange(10), 5)])
    with gzip.open('mnist_5k.csv.gz', 'wt') as file:
        np.savetxt(file, rows, '%d', ',')
    make_data('mnist_5k.csv.gz')
    return rows


def test_held_out_digits_are_not_trained_on(digits):
    kept, out = (Digits(held_out=held_out, pipeline=[]) for held_out in (False, True))
    assert len(kept) == 40 and Counter(one['gt_label'] for one in out) == Counter(range(10))
    found = sorted((*one['img'][..., 1].ravel().tolist(), one['gt_label']) for data in (kept, out) for one in data)
    assert found == sorted(map(tuple, digits.tolist()))
    with pytest.raises(UsageError, match='must be the file'):
        make_data('nothing.csv.gz')


def test_each_method_has_its_own_folder_and_the_last_checkpoint_is_scored(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rates, starts = {}, {}

    def train(config, folder, resume, cfg_options):
        rates[folder] = Path(config).stem, cfg_options.get('optim_wrapper.optimizer.lr'), cfg_options['randomness.seed']
        starts[folder] = cfg_options.get('model.backbone.backbone.init_cfg.checkpoint')

    monkeypatch.setattr(tool, 'train', train)
    monkeypatch.setattr(tool, 'latest_checkpoint', lambda folder: f'{folder}/last.pth')
    scores = {'knn/top1_20': 20.004, 'accuracy/top1': 1.0}
    monkeypatch.setattr(
        tool, 'test', lambda config, checkpoint, folder, cfg_options: dict(scores, checkpoint=checkpoint)
    )
    found = tool.run('xcit', 3)
    methods = [f'{method}, {probe}' for method in ('random', 'DINO') for probe in ('k-NN', 'linear')]
    assert found == dict(zip([*methods, 'supervised'], [20.0, 1.0, 20.0, 1.0, 1.0]))
    learning = ('dino', 0.0), ('linear', None), ('dino', None), ('linear', None), ('supervised', None)
    assert [*rates.values()] == [(f'{config}_xcit_digits', rate, 3) for config, rate in learning]
    first = [f'work_dirs/dino/{method}_xcit_3/last.pth' for method in ('random', 'dino')]
    assert [*starts.values()] == [None, first[0], None, first[1], None] and len(rates) == 5


@pytest.mark.parametrize('method', ['dino', 'linear', 'supervised'])
@pytest.mark.parametrize('name', ['sima', 'xcit'])
def test_digits_that_are_tested_are_learned_by_none_and_the_teacher_is_probed(method, name):
    cfg = Config.fromfile(CONFIGS / f'{method}_{name}_digits.py')
    parts = cfg.train_dataloader, cfg.test_dataloader, *([cfg.test_cfg.bank] if method == 'dino' else [])
    assert [part.dataset.held_out for part in parts] == [False, True, False][: len(parts)]
    probed = cfg.model.backbone.get('backbone', cfg.model.backbone)
    assert probed.type == dict(sima='mmsoft.SimAXCiT', xcit='mmpretrain.XCiT')[name]
    if method == 'linear':
        assert probed.init_cfg.prefix == 'teacher.backbone.'


def test_a_resumed_training_equals_another_to_the_bit(digits):
    """Interrupted in the middle of an epoch, student, teacher, centre and statistics go on."""
    config = str(CONFIGS / 'dino_sima_digits.py')
    tiny = {
        'model.backbone.arch': dict(TINY, _delete_=True), 'model.backbone.out_indices': (1,),
        'model.neck': dict(in_dims=32, out_dims=16, hidden=16, bottleneck=8), 'model.head.out_dims': 16,
        'train_dataloader.batch_size': 10, 'train_cfg.max_epochs': 2, 'randomness.seed': 1,
        'default_hooks.checkpoint.by_epoch': False, 'default_hooks.checkpoint.interval': 3,
        'default_hooks.checkpoint.max_keep_ckpts': -1,
    }  # fmt: skip
    apis.train(config, 'whole', cfg_options=tiny)
    apis.train(config, 'rest', resume='whole/iter_3.pth', cfg_options=tiny)
    whole, rest = (torch.load(f'{folder}/iter_6.pth', weights_only=False) for folder in ('whole', 'rest'))
    begin = torch.load('whole/iter_3.pth', weights_only=False)['state_dict']
    assert all(torch.equal(value, rest['state_dict'][key]) for key, value in whole['state_dict'].items())
    for key in ('head.centre', 'teacher.neck.last.weight', 'teacher.backbone.patch_embed.convs.0.norm.running_mean'):
        assert not torch.equal(whole['state_dict'][key], begin[key]), key
    scores = apis.test(config, 'rest/iter_6.pth', 'tested', cfg_options=tiny)
    assert set(scores) == {f'knn/top{top}_{k}' for top in (1, 5) for k in (10, 20, 100, 200)}


def test_the_table_has_means_and_spreads():
    row = table(dict(sima=[{'a': 1.0, 'b': 2.0}, {'a': 3.0, 'b': 2.0}])).splitlines()[2]
    assert [cell.strip() for cell in row.split('|')[1:-1]] == ['sima', '2', '2.0 ± 1.4', '2.0 ± 0.0']
