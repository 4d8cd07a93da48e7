"""The evidence: its rows, how trainings go on, and the store behind the pages."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import MODELS, DefaultScope, init_default_scope
from mmengine.runner import Runner

from benchmarks.evidence import __main__ as tool
from benchmarks.evidence import closing, far, scenes, store, training
from benchmarks.evidence.far import Far, noisy
from benchmarks.evidence.methods import METHODS
from benchmarks.evidence.networks import NETWORKS, all_without_attention, scored
from benchmarks.evidence.rows import ROWS
from benchmarks.evidence.scenes import SHAPES, Method
from benchmarks.evidence.training import done
from benchmarks.tests.chance import chance
from mmsoft import SOFT, SimADeiT
from mmsoft.attention import SOFTAttention
from mmsoft.attention.measure import measured_attention
from mmsoft.datasets.shapes import ensure_shapes
from mmsoft.utils import UsageError

ROOT = Path(__file__).parents[2]
SMALL = dict(train=8, val=4, portraits=64, size=64, portrait_size=32)


def test_list_and_a_row_that_does_not_exist(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tool.main(['--list'])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(ROWS)
    tool.main(['--list', 'far_deit_sima', 'method'])
    assert len(capsys.readouterr().out.splitlines()) == len(METHODS)  # all but RetinaNet, and one of the far task
    with pytest.raises(UsageError, match='There is no row mask_rcn; there are the tables ablation, '):
        tool.main(['mask_rcn'])
    assert not any(tmp_path.iterdir())


def test_every_method_and_every_architecture_has_a_row():
    methods = {re.split('_(?:soft|sima|xcit)_', path.stem)[0] for path in (ROOT / 'configs').glob('*_[1-3]x.py')}
    assert methods < set(METHODS)
    trained = {row.task.network for row in ROWS.values() if isinstance(row.task, Method)}
    assert trained == set(NETWORKS)


def test_a_row_that_changes_has_another_key(monkeypatch):
    row = ROWS['far_deit_sima']
    assert row._replace(title='another').key == row.key != row._replace(task=row.task._replace(iterations=1)).key
    detector, network = ROWS['architecture_soft'], NETWORKS['soft']
    before = detector.key
    monkeypatch.setitem(NETWORKS, 'soft', network._replace(channels=[1]))
    assert detector.key != before
    watched = ROWS['closing_soft_norm_none']
    faster = watched.task.method._replace(lr=1.0)
    assert watched._replace(task=watched.task._replace(method=faster)).key != watched.key


@pytest.mark.parametrize('name', ['soft_norm', 'sima_cvt', 'sima_deit', 'pvt', 'xcit_p8', 'deit'])
def test_without_attention_the_lower_border_does_not_see_the_upper(name):
    init_default_scope('mmsoft')
    network = MODELS.build(NETWORKS[name].cfg)
    network.eval()
    image = torch.randn(1, 3, 96, 96)
    brighter = image + 3 * (torch.arange(96) < 8).float()[:, None]

    @torch.no_grad()
    def changed():
        return [bool((a - b)[..., -1, :].any()) for a, b in zip(network(image), network(brighter))]

    with all_without_attention(network):
        assert not any(changed())
    assert all(changed())


@pytest.mark.slow
@pytest.mark.parametrize(
    'ours, theirs',
    [
        ('soft', 'pvt'),
        ('sima_cvt', 'pvt'),
        ('sima_xcit_p8', 'xcit_p8'),
        ('sima_xcit_p16', 'xcit_p16'),
        ('sima_deit', 'deit'),
    ],
)
def test_networks_of_a_comparison_are_of_one_size(ours, theirs):
    sizes = []
    for network in (ours, theirs):
        cfg = METHODS['retinanet']._replace(network=network).make_config(0, Path('data/shapes'), Path('work_dirs'))
        init_default_scope(cfg.default_scope)
        sizes.append(sum(parameter.numel() for parameter in MODELS.build(cfg.model).parameters()))
    assert 0.7 < sizes[1] / sizes[0] < 1.43


@pytest.mark.parametrize('name', ['retinanet', 'mask2former_panoptic', 'upernet', 'classifier'])
def test_what_is_held_out_is_scored_as_it_is(name):
    """Flips are for training alone; seed, rate and its factors are the row's."""
    method = METHODS[name]._replace(lr=0.123, slow={'.query.': 0.1})
    cfg = method.make_config(3, Path('shapes'), Path('work'))
    train, val = (str(cfg[f'{kind}_dataloader'].dataset) for kind in ('train', 'test'))
    assert 'RandomFlip' in train and 'RandomFlip' not in val
    assert 'train' in train and not re.search(r'\bval\b', train)
    assert 'val' in val and not re.search(r'\btrain\b', val + str(cfg.test_evaluator))
    assert cfg.randomness.seed == 3 and cfg.optim_wrapper.optimizer.lr == 0.123
    assert cfg.optim_wrapper.paramwise_cfg.custom_keys == {'.query.': dict(lr_mult=0.1)}


@pytest.mark.parametrize(
    'scope, unit, names',
    [
        ('mmdet', 1, {'coco/bbox_mAP_50': 'box AP50', 'coco/bbox_mAP': 'box AP'}),
        ('mmdet', 1, {'coco/segm_mAP_50': 'mask AP50', 'coco/segm_mAP': 'mask AP', 'panoptic/PQ': 'PQ'}),
        ('mmseg', 100, {'mIoU': 'mIoU'}),
        ('mmpretrain', 100, {'accuracy/top1': 'top-1'}),
    ],
)
def test_scores_are_parts_of_one_by_their_names_and_the_control_is_without_attention(scope, unit, names, monkeypatch):
    model = torch.nn.ModuleDict(dict(head=torch.nn.Linear(2, 3)))
    model['backbone'] = SimADeiT(dict(embed_dims=32, num_heads=2, depth=1), out_indices=0)
    attention = model.backbone.blocks[0].attn

    def test():
        with torch.no_grad():
            model.backbone(torch.randn(1, 3, 32, 32))
            attends = attention.attended(torch.ones(1)).item()
        return {'other': 1.0, **{key: unit * (0.1 * number + attends / 2) for number, key in enumerate(names)}}

    runner = SimpleNamespace(model=model, train=lambda: None, test=test)
    monkeypatch.setattr(scenes.Runner, 'from_cfg', lambda cfg: runner)
    found = scenes.run(Config(dict(default_scope=scope, train_cfg=dict(max_iters=9))))
    for kind, attends in (('scores', 0.5), ('without_attention', 0.0)):
        expected = {name: 0.1 * number + attends for number, name in enumerate(names.values())}
        assert {name: found[kind][name] for name in names.values()} == pytest.approx(expected)
    assert found['iterations'] == 9 and found['parameters'] == sum(one.numel() for one in model.parameters())


def test_shares_are_those_of_the_attentions():
    network, image = (
        SimADeiT(dict(embed_dims=32, num_heads=2, depth=2), out_indices=0).eval(),
        torch.randn(1, 3, 32, 32),
    )
    with measured_attention(network) as measured, torch.no_grad():
        network(image)
    with torch.no_grad():
        found = scored(network, lambda: {'x': network(image)[0].sum().item()})
    assert found['shares'] == pytest.approx({name: one.share for name, one in measured.items()})


def test_the_far_task_is_scored_on_what_was_not_trained_on(monkeypatch):
    """In larger images before and after tuning; each of them begins with the weights of the training."""
    trained, scored = [], []

    def draw(side, count):
        return far.Scenes(torch.full((count,), side), torch.arange(count), torch.zeros(count, 2))

    def fit(self, model, some, iterations, lr, batch=16):
        trained.append((some.images[0].item(), {*some.night.tolist()}, iterations, lr, batch))
        model.head.bias.data += 1
        return [0.5] * 9 + [0.3] * 11, 2.0

    def accuracy(self, some):
        scored.append((some.images[0].item(), {*some.night.tolist()}))
        return round(self.head.bias.mean().item())

    monkeypatch.setattr(far, 'scenes', draw)
    monkeypatch.setattr(Far, 'fit', fit)
    monkeypatch.setattr(far.Sky, 'accuracy', accuracy)
    found = ROWS['larger_deit_sima'].task.train(1)
    assert found['scores'] == {
        'accuracy': 1,
        **{f'{kind} at {n}×': 1 + (kind == 'tuned') for n in (2, 4) for kind in ('accuracy', 'tuned')},
    }
    assert trained == [
        (64, {*range(480)}, 90, 3e-3, 16),
        *((64 * n, {*range(120)}, 30, pytest.approx(3e-4), 4) for n in (2, 4)),
    ]
    assert scored == [(64, {*range(480, 720)})] * 2 + [(64 * n, {*range(120, 240)}) for n in (2, 2, 4, 4)]
    assert (found['learned'], found['last_loss'], found['steepest']) == (17, pytest.approx(0.3), 2.0)


def test_trainings_of_one_second_have_scopes_of_their_own(tmp_path, monkeypatch):
    """A process that trained a classifier goes on with detectors, whatever the clock says."""
    monkeypatch.setattr('time.strftime', lambda *_: '20260101_000000')
    for name, scope in (('classifier', 'mmpretrain'), ('retinanet', 'mmdet')):
        Runner.from_cfg(METHODS[name].make_config(0, tmp_path, tmp_path / name))
        assert DefaultScope.get_current_instance().scope_name == scope


class Interruption(Hook):
    """Ends a training after a checkpoint, but not at it."""

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter == 4:
            raise KeyboardInterrupt


def test_a_training_goes_on_after_an_interruption(tmp_path):
    method, folder = METHODS['classifier']._replace(network='sima_deit', iterations=6), tmp_path / 'run'
    root = ensure_shapes(tmp_path / 'shapes', **SMALL)
    runner = Runner.from_cfg(method.make_config(0, root, folder))
    runner.register_hook(Interruption())
    with pytest.raises(KeyboardInterrupt):
        runner.train()
    assert (folder / 'last_checkpoint').read_text().endswith('iter_3.pth')
    found = method.train(0, root, folder)
    # Processes of the same second share a log.
    logs = sorted(folder.glob('*/vis_data/scalars.json'))
    steps = [json.loads(line)['step'] for log in logs for line in log.read_text().splitlines()]
    assert len(steps) == 2 and steps[1] == 6  # from the start, it would be as the first
    assert found['scores'].keys() == found['without_attention'].keys() == {'top-1'}
    assert found['iterations'] == 6 and len(found['shares']) == 4


@pytest.mark.slow
@pytest.mark.parametrize('network', ['', '_sima'])
@pytest.mark.parametrize('name', ['dino', 'mask2former', 'mask2former_panoptic', 'rtmdet', 'vitdet'])
def test_methods_of_today_train(name, network, tmp_path):
    method = METHODS[name + network]._replace(iterations=2)
    found = method.train(0, ensure_shapes(tmp_path / 'shapes', **SMALL), tmp_path / 'run')
    masks = set() if name in ('dino', 'rtmdet') else {'mask AP50', 'mask AP'}
    panoptic = {'PQ'} if 'panoptic' in name else set()
    assert found['scores'].keys() == found['without_attention'].keys() == {'box AP50', 'box AP'} | masks | panoptic
    assert found['parameters'] < 4.5e6
    kinds = {one.split('.')[0] for one in found['shares']}
    assert kinds == ({'blocks'} if network else {'stages'})


def test_learning_rates_decay_from_layer_to_layer_where_the_config_s_do(tmp_path):
    method = METHODS['vitdet']._replace(iterations=2)
    runner = Runner.from_cfg(method.make_config(0, ensure_shapes(tmp_path, **SMALL), tmp_path))
    rates = {group['lr'] / method.lr for group in runner.build_optim_wrapper(runner.optim_wrapper).param_groups}
    assert sorted(rates) == pytest.approx([0.8**layer for layer in range(len(rates))][::-1]) and len(rates) > 4


def test_a_watched_training_has_a_course(tmp_path):
    root = ensure_shapes(tmp_path / 'shapes', **SMALL)
    courses = {}
    for name in ('none', 'frozen', 'noise', 'queries_double', 'images_128'):
        task = ROWS[f'closing_soft_norm_{name}'].task
        task = task._replace(method=task.method._replace(iterations=2))
        found = task.train(0, root, tmp_path / name)
        courses[name] = found['course']['stages.1.blocks.0.attn']
        assert len(found['course']) == 5
        assert found['scores'].keys() == found['without_attention'].keys() == {'box AP50'}
    course = courses['none']
    assert course['iteration'] == [0, 1] and min(course['gradient']) > 0
    assert course['tokens'][0] == pytest.approx(0.2126 * 32, rel=0.1)  # of normal z with γ = 1, see the page
    assert course['exponent'][0] == pytest.approx(course['tokens'][0] + course['queries'][0], rel=0.02)
    assert len({*courses['frozen']['weight']}) == 1 < len({*course['weight']})
    assert courses['queries_double']['weight'][0] == pytest.approx(2 * course['weight'][0])
    assert courses['noise']['weight'][1] != course['weight'][1]


def test_the_far_task_has_the_seed_the_noise_and_the_rates_of_its_row(monkeypatch):
    some = far.Scenes(torch.randn(16, 3, 64, 64), torch.arange(16) % 2, torch.full((16, 2), 40))
    monkeypatch.setattr(far, 'scenes', lambda side, count: some)
    monkeypatch.setattr(far, 'TRAINED', 8)
    task = ROWS['noise_deit_soft'].task._replace(clip=0.5, groups={'blocks.0.': dict(lr=0.0, weight_decay=0.0)})
    limits, norms = [], iter(torch.tensor([3.0, 1.0]))
    monkeypatch.setattr(torch.nn.utils, 'clip_grad_norm_', lambda _, limit: limits.append(limit) or next(norms))
    model = far.Sky(MODELS.build(dict(task.backbone, _scope_='mmsoft')), 8)
    before = {name: one.clone() for name, one in model.named_parameters()}
    _, steepest = task.fit(model, some, 2, 1e-3)
    assert steepest == 3.0 and limits == [0.5] * 2
    assert {name for name, one in model.named_parameters() if one.equal(before[name])} == {
        name for name in before if 'blocks.0.' in name
    }
    monkeypatch.setattr(Far, 'fit', lambda *args: ([1.0], 1.0))
    monkeypatch.setattr(far.Sky, 'accuracy', lambda self, some: self(some).sum().item())
    first, again, other = (task.train(seed)['scores'] for seed in (0, 0, 1))
    assert first == again != other and len({*first.values()}) == 4


def test_gradients_of_a_course_are_of_the_queries_by_the_values():
    torch.manual_seed(0)
    backbone, image = SOFT(dict(embed_dims=[32], num_heads=[2], depths=[1]), out_indices=0), torch.randn(2, 3, 64, 64)
    watch = closing.Watch(closing.Watched(None, queries=3.0))
    runner, before = SimpleNamespace(model=SimpleNamespace(backbone=backbone), iter=0, max_iters=9), []
    ((name, attention),) = ((name, one) for name, one in backbone.named_modules() if isinstance(one, SOFTAttention))
    attention.bottleneck.register_forward_hook(lambda module, args, tokens: before.append((args[0], tokens)))
    watch.before_train(runner)
    watch.before_train_iter(runner, 0)
    backbone(image)[0].square().sum().backward()
    watch.after_train_iter(runner, 0)
    course = {key: values[0] for key, values in watch.course[name].items()}
    query, value = (one.weight.grad.norm().item() for one in (attention.query, attention.value))
    assert course['gradient'] == pytest.approx(query / value)
    lengths = [tokens.square().sum(dim).mean().item() / 2 for tokens, dim in zip(before[0], (1, 2))]
    assert [course['queries'], course['tokens']] == pytest.approx(lengths)


def test_a_watched_training_has_what_its_row_changes(monkeypatch, tmp_path):
    whole, control = {'box AP50': 0.5, 'box AP': 0.3}, {'box AP50': 0.1, 'box AP': 0.0}
    asked, scores = [], dict(scores=whole, without_attention=control, iterations=1)
    monkeypatch.setattr(closing, 'run', lambda cfg, watch: asked.append(cfg) or scores)
    for name in ('images_192', 'eps'):
        found = ROWS[f'closing_soft_norm_{name}'].task.train(4, Path('shapes'), tmp_path)
        assert (found['scores'], found['without_attention']) == ({'box AP50': 0.5}, {'box AP50': 0.1})
    larger, eps = asked
    kinds = [[step['type'] for step in cfg.train_dataloader.dataset.pipeline] for cfg in (larger, eps)]
    assert kinds[0] == [*kinds[1][:2], 'Resize', *kinds[1][2:]] and not any(cfg.resume for cfg in asked)
    steps = [larger.train_dataloader.dataset.pipeline[2], *(cfg.test_dataloader.dataset.pipeline[2] for cfg in asked)]
    assert [step['scale_factor'] for step in steps] == [2.0, 2.0, 1.0]
    assert eps.optim_wrapper.optimizer.eps == 1e-4 and eps.randomness.seed == 4 and eps.train_cfg.max_iters == 150


def test_a_row_that_changed_begins_in_an_empty_folder(tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(Far, 'train', lambda self, seed, root, own: found.append([*own.glob('*.pth')]) or {})
    folder = tmp_path / 'far_deit_sima_seed1'
    for key in (ROWS['far_deit_sima'].key, 'another'):
        folder.mkdir(exist_ok=True)
        (folder / 'key.txt').write_text(key)
        (folder / 'iter_3.pth').touch()
        training.train_row(tmp_path, 'far_deit_sima', 1)
    assert [len(files) for files in found] == [1, 0] and done(tmp_path, 'far_deit_sima', 1)['seed'] == 1


def test_what_is_done_stays_done_until_its_row_changes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ['far_deit_sima', '--seeds', '1', '--work-dir', 'work']
    command = [sys.executable, '-m', 'benchmarks.evidence', *arguments]  # as its users do: its processes import it anew
    printed = subprocess.run(
        command, env={**os.environ, 'PYTHONPATH': str(ROOT)}, capture_output=True, text=True
    ).stdout
    assert '1 of 1 trainings to do' in printed and 'far_deit_sima, seed 0: done' in printed and '| *chance*' in printed
    file = tmp_path / 'work/far_deit_sima_seed0/result.json'
    result = json.loads(file.read_text())
    assert (
        result['scores']['accuracy'] > 0.9
        and result['commit']
        and [path.name for path in tmp_path.iterdir()] == ['work']
    )
    tool.main(arguments)
    assert '0 of 1 trainings to do' in capsys.readouterr().out
    file.write_text(json.dumps(dict(result, key='another')))
    assert done(tmp_path / 'work', 'far_deit_sima', 0) is None


def test_noise_enters_attention_and_goes():
    model, image = SimADeiT(dict(embed_dims=32, num_heads=2, depth=1), out_indices=0).eval(), torch.randn(1, 3, 32, 32)
    outs = {}
    with torch.no_grad():
        for noise in (0.0, 0.5, 2.0):
            with noisy(model, noise):
                outs[noise] = model(image)[0]
        whole = model(image)[0]
    assert torch.equal(outs[0.0], whole)
    assert 1e-3 < (outs[0.5] - whole).norm() < (outs[2.0] - whole).norm()


def test_chance(tmp_path):
    held_out = dict(SHAPES, train=1, portraits=SMALL['portraits'])
    assert chance(str(ensure_shapes(tmp_path / 'shapes', **held_out))) == pytest.approx(store.CHANCE, abs=0.01)
