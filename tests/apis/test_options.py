"""What options of training and testing change: several versions of images, drawings, predictions."""

import copy
import functools
import pickle
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import toy
from mmengine.config import Config
from mmengine.model import BaseTTAModel, MMDistributedDataParallel
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner
from trainings import forget_runs, project
from wrong_input import sentence

from mmsoft import SOFT
from mmsoft.apis import launch
from mmsoft.utils import UsageError

ROOT = Path(__file__).parents[2]


def test_heads_of_detectors_alone_have_as_many_classes_as_their_data(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(launch, 'check_classes', lambda dataset, model, exact: asked.append(exact))
    for scope in ('mmdet', 'mmseg', 'mmpretrain'):
        launch.build(Config(toy.config(tmp_path / scope, default_scope=scope, experiment_name=scope)), 'train')
    assert asked == [True, False, False]


class Views(BaseTTAModel):
    """What a config names as its tta_model."""

    def merge_preds(self, samples):
        return samples


@pytest.fixture
def hooks():
    """Hooks that runners of ``asked`` get besides those of their configs."""
    return []


@pytest.fixture
def asked(hooks, monkeypatch):
    """The configs of all runners that are asked for; they only look at a noise image."""
    torch.manual_seed(0)
    model = SOFT(dict(embed_dims=[16], num_heads=[1], depths=[1]), out_indices=0).eval()
    model.test_step = model.forward  # as models of hosts
    configs, image = [], torch.rand(1, 3, 64, 64)
    runner = SimpleNamespace(model=model, train=lambda: None, test=lambda: {'max': model(image)[0].max().item()})
    runner.register_hook = hooks.append

    def build(cfg, *loops):
        init_default_scope(cfg.default_scope)
        configs.append(cfg)
        return runner

    monkeypatch.setitem(MODELS.module_dict, 'Views', Views)
    monkeypatch.setattr(launch, 'build', build)
    return configs


def test_options_of_training_and_testing_change_the_config(asked, hooks):
    detector = str(ROOT / 'configs/retinanet_soft_nano_shapes.py')
    launch.train(detector, auto_scale_lr=True, cfg_options={'auto_scale_lr.base_batch_size': 16})
    launch.test(detector, 'x.pth', show=True, wait_time=0.5)
    launch.test(detector, 'x.pth', tta=True, cfg_options=dict(tta_model=dict(type='Views'), tta_pipeline=[1]))
    launch.test(detector, 'x.pth', cfg_options=dict(resume=True, load_from='y.pth', work_dir='mine'))
    scaled, shown, views, own = asked
    assert (own.load_from, own.resume, own.work_dir) == ('x.pth', False, 'mine')
    assert shown.work_dir == './work_dirs/retinanet_soft_nano_shapes'
    assert scaled.auto_scale_lr.enable is True
    shows = shown.default_hooks.visualization
    assert (shows.show, shows.wait_time, shows.draw) == (True, 0.5, True)
    assert [hook.tta_cfg.type for hook in hooks] == ['Views']
    assert views.model == shown.model and views.custom_hooks == shown.custom_hooks
    assert views.test_dataloader.dataset.pipeline == [1]


def test_a_training_continues_as_config_and_options_say(asked, monkeypatch):
    detector, own = str(ROOT / 'configs/retinanet_soft_nano_shapes.py'), dict(work_dir='mine')
    monkeypatch.setattr(launch, 'latest_checkpoint', lambda folder: f'{folder}/last.pth')
    launch.train(detector, resume='auto', from_scratch=True, cfg_options=own, launcher='pytorch')
    launch.train(detector, cfg_options=dict(load_from='y.pth', resume=True, launcher='mpi'))
    found = [(cfg.load_from, cfg.resume, cfg.launcher) for cfg in asked]
    assert found == [('mine/last.pth', True, 'pytorch'), ('y.pth', True, 'none')]


def test_several_versions_of_all_images(asked):
    detector, sets = str(ROOT / 'configs/retinanet_soft_nano_shapes.py'), [dict(type='CocoDataset') for _ in range(2)]
    both = dict(type='ConcatDataset', datasets=sets, _delete_=True)
    options = {'tta_model': dict(type='Views'), 'tta_pipeline': [1], 'test_dataloader.dataset': both}
    launch.test(detector, 'x.pth', tta=True, cfg_options=options)
    assert [one.pipeline for one in asked[0].test_dataloader.dataset.datasets] == [[1], [1]]
    for key in ('tta_model', 'tta_pipeline'):
        with pytest.raises(UsageError, match='--tta needs tta_model and tta_pipeline'):
            launch.test(detector, 'x.pth', tta=True, cfg_options={key: options[key]})


@pytest.fixture
def one_process(tmp_path):
    """A group of processes with this one alone."""
    torch.distributed.init_process_group('gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_versions_of_images_are_of_the_model_itself(asked, hooks, one_process, monkeypatch):
    """Of several processes, too: mmseg's SegTTAModel reads attributes that DistributedDataParallel hides."""
    detector, build = str(ROOT / 'configs/retinanet_soft_nano_shapes.py'), launch.build

    def distributed(cfg, *loops):
        runner = build(cfg, *loops)
        runner.model = MMDistributedDataParallel(module=runner.model)
        return runner

    monkeypatch.setattr(launch, 'build', distributed)
    launch.test(detector, 'x.pth')
    runner = build(asked[0])
    assert type(runner.model) is MMDistributedDataParallel
    runner.model = runner.model.module
    launch.test(detector, 'x.pth', tta=True, cfg_options=dict(tta_model=dict(type='Views'), tta_pipeline=[1]))
    hooks[0].before_test(runner)
    assert type(runner.model) is Views and type(runner.model.module) is SOFT


@pytest.mark.parametrize('wrong', [dict(type='NoViews'), dict(type='Views', views=2)])
def test_a_model_for_versions_may_be_wrong(wrong, asked):
    detector, options = str(ROOT / 'configs/retinanet_soft_nano_shapes.py'), dict(tta_model=wrong, tta_pipeline=[1])
    said = sentence(functools.partial(launch.test, detector, 'x.pth', tta=True, cfg_options=options))
    assert 'NoViews' in said or "argument 'views'" in said


def test_versions_of_images_are_prepared_as_the_model_says(asked, hooks):
    """mmengine's models for --tta prefer what the config has beside the model; all others do not."""
    beside = dict(type='SegDataPreProcessor', mean=[0.0] * 3, std=[1.0] * 3)
    options = dict(data_preprocessor=beside, tta_model=dict(type='SegTTAModel'), tta_pipeline=[1])
    launch.test(f'{ROOT}/configs/upernet_soft_nano_shapes.py', 'x.pth', tta=True, cfg_options=options)
    options.update(data_preprocessor=dict(mean=beside['mean']), tta_model=dict(type='AverageClsScoreTTA'))
    launch.test(f'{ROOT}/configs/soft_tiny_in1k.py', 'x.pth', tta=True, cfg_options=options)
    assert len(hooks) == 2
    for cfg, hook, own in zip(asked, hooks, (asked[0].model.data_preprocessor.mean, beside['mean'])):
        init_default_scope(cfg.default_scope)
        runner = SimpleNamespace(_data_preprocessor=None)
        cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)  # as mmengine's runner
        runner.model = Runner.build_model(runner, cfg.model)
        hook.before_test(runner)
        assert type(runner.model).__name__ == cfg.tta_model.type
        assert runner.model.module.data_preprocessor.mean.flatten().tolist() == pytest.approx(own)
    assert asked[0].model.data_preprocessor.mean != beside['mean']


def test_averaged_weights_are_tested_in_several_versions(small_shapes, tmp_path, monkeypatch):
    """mmpretrain's EMAHook loads them by the names of the model, and would test random weights in one around it."""
    monkeypatch.chdir(project(tmp_path, small_shapes))
    forget_runs()
    launch.train('classifier.py', 'work')
    views = dict(type='TestTimeAug', transforms=[[dict(type='PackInputs')]])
    options = dict(tta_model=dict(type='AverageClsScoreTTA'), tta_pipeline=[dict(type='LoadImageFromFile'), views])
    for tta in (False, True):
        forget_runs()
        launch.test('classifier.py', 'work/epoch_2.pth', 'work', out=f'{tta}.pkl', tta=tta, cfg_options=options)
    weights = torch.load('work/epoch_2.pth', weights_only=False)['state_dict']
    torch.save(dict(state_dict={f'module.{name}': one for name, one in weights.items()}), 'wrapped.pth')
    forget_runs()
    launch.test('classifier.py', 'wrapped.pth', 'work', out='wrapped.pkl')
    plain, *others = (pickle.loads(Path(f'{one}.pkl').read_bytes()) for one in (False, True, 'wrapped'))
    for versions in others:
        assert len(plain) == len(versions) == 8
        for one, other in zip(plain, versions):
            torch.testing.assert_close(one['pred_score'], other['pred_score'])


@pytest.mark.parametrize('shown', [dict(show=True), dict(show_dir='new')], ids=str)
def test_classifiers_are_not_drawn_in_several_versions(shown, asked):
    """mmpretrain would take the versions for the images of a batch."""
    options = dict(tta_model=dict(type='Views'), tta_pipeline=[1])
    for name in ('upernet_soft_nano_shapes', 'soft_tiny_in1k'):
        test = functools.partial(launch.test, f'{ROOT}/configs/{name}.py', 'x.pth', cfg_options=options, **shown)
        test()
        with (
            nullcontext() if name.startswith('upernet') else pytest.raises(UsageError, match='cannot draw with --tta;')
        ):
            test(tta=True)
    assert len(asked) == 3


def test_loaders_of_classifiers_are_mmpretrains_unless_the_config_says_how():
    name, own = f'{ROOT}/configs/soft_tiny_in1k.py', dict(collate_fn=dict(type='mine'), pin_memory='mine')
    loaders = ('val_dataloader', 'val_cfg', 'val_evaluator')
    options = {**dict.fromkeys(loaders), **{f'train_dataloader.{key}': value for key, value in own.items()}}
    cfg = launch._prepare(name, None, options, 'none', False)
    assert {key: cfg.train_dataloader[key] for key in own} == own and cfg.val_dataloader is None
    assert cfg.test_dataloader.collate_fn.type == 'default_collate'


@pytest.mark.parametrize(
    'name, option', [('upernet_soft_small_160k', 'train_cfg.max_iters'), ('soft_tiny_in1k', 'train_cfg.max_epochs')]
)
def test_schedules_of_demo_data_are_as_long_as_asked_for(name, option):
    whole, short = (
        launch._prepare(f'{ROOT}/configs/{name}.py', None, {option: count}, 'none', True) for count in (40, 20)
    )
    assert whole.param_scheduler[-1].end == 2 * short.param_scheduler[-1].end


def test_attention_is_set_to_zero_on_request(asked):
    detector = str(ROOT / 'configs/retinanet_soft_nano_shapes.py')
    whole, without, again = (launch.test(detector, 'x.pth', without_attention=stages) for stages in (None, [], None))
    assert whole == again and abs(whole['max'] - without['max']) > 1e-4
    assert launch.test(detector, 'x.pth', without_attention=[0]) == without
    with pytest.raises(UsageError, match='There is no attention of mmsoft to set to zero'):
        launch.test(detector, 'x.pth', without_attention=[3])


@pytest.mark.parametrize(
    'scope, folder', [('mmdet', '{}/images'), ('mmdet', '../../images'), ('mmseg', 'images'), ('mmpretrain', 'images')]
)
def test_drawings_replace_nothing(scope, folder, tmp_path, monkeypatch):
    """They have the names of images."""
    monkeypatch.chdir(tmp_path)
    Path('images').mkdir()
    folder, hooks = folder.format(tmp_path), dict(visualization={})
    cfg = Config(dict(default_scope=scope, default_hooks=hooks, visualizer={}, work_dir=str(tmp_path / 'work')))
    launch.draw_predictions(cfg, False, folder, 2)
    Path('images/0.jpg').touch()
    assert 'images is not empty' in sentence(launch.draw_predictions, cfg, False, folder, 2)
    if scope == 'mmdet':  # which puts a relative one below a new folder
        launch.draw_predictions(cfg, False, 'images', 2)


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg', 'mmpretrain'])
def test_windows_are_shown_for_some_seconds(scope):
    cfg = Config(dict(default_scope=scope, default_hooks=dict(visualization={}), visualizer={}))
    launch.draw_predictions(cfg, True, None, 0.5)
    assert (cfg.default_hooks.visualization.show, cfg.default_hooks.visualization.wait_time) == (True, 0.5)


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg', 'mmpretrain'])
@pytest.mark.parametrize('kind', [dict, list, tuple])
def test_predictions_are_saved_beside_all_scores(scope, kind, tmp_path):
    given = [dict(type=name) for name in ('Recall', 'Precision')[: 1 if kind is dict else 2]]
    cfg = Config(dict(default_scope=scope, test_evaluator=given[0] if kind is dict else kind(given)))
    out, dump = str(tmp_path / 'new/x.pickle'), 'DumpDetResults' if scope == 'mmdet' else 'DumpResults'  # masks by RLE
    if scope == 'mmseg':
        maps = copy.deepcopy(cfg)
        launch.save_predictions(maps, str(tmp_path / 'maps'))
        kept = dict(output_dir=str(tmp_path / 'maps'), keep_results=True)  # which CityscapesMetric would remove
        assert maps.test_evaluator == [dict(one, **kept) for one in given]
    launch.save_predictions(cfg, out)
    assert cfg.test_evaluator == [*given, dict(type=dump, out_file_path=out)] and Path(out).parent.is_dir()


@pytest.mark.parametrize('options', [{}, dict(type='Evaluator'), dict(type='mmengine.Evaluator')])
@pytest.mark.parametrize('kind', [dict, list])
def test_predictions_are_saved_beside_scores_of_an_evaluator(options, kind, tmp_path):
    given = dict(type='Accuracy')
    cfg = Config(
        dict(default_scope='mmpretrain', test_evaluator=dict(options, metrics=given if kind is dict else [given]))
    )
    launch.save_predictions(cfg, str(tmp_path / 'x.pkl'))
    built = Runner.build_evaluator(SimpleNamespace(), [dict(one, _scope_='mmpretrain') for one in cfg.test_evaluator])
    assert [type(one).__name__ for one in built.metrics] == ['Accuracy', 'DumpResults']
    several = dict(type='MultiDatasetsEvaluator', metrics=[given])  # which would ignore what stands beside its metrics
    cfg.test_evaluator = several
    launch.save_predictions(cfg, str(tmp_path / 'x.pkl'))
    assert cfg.test_evaluator[0] == several
