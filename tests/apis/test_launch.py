"""What is said when something is missing, before a model is built."""

import errno
from pathlib import Path

import pytest
import torch
import toy
from mmengine.config import Config
from mmengine.model import PretrainedInit
from mmengine.registry import DATASETS
from mmengine.runner import CheckpointLoader
from trainings import forget_runs, project
from wrong_input import sentence

from mmsoft.apis import launch
from mmsoft.apis.checks import check_resumable
from mmsoft.checkpoint.safe_loading import load_from_weights_only, use_safe_loading
from mmsoft.utils import UsageError
from mmsoft.utils.cli import command_line
from mmsoft.utils.config import datasets, dicts, explained, load_config, without_pretrained

ROOT = Path(__file__).parents[2]


def test_flexible_runner(small_shapes, tmp_path, monkeypatch):
    """mmengine's runner for DeepSpeed and FSDP, which builds its model when training begins."""
    monkeypatch.chdir(project(tmp_path, small_shapes))
    forget_runs()
    options = {'runner_type': 'FlexibleRunner', 'train_cfg.max_iters': 2, 'train_cfg.val_interval': 2}
    kept = {f'default_hooks.checkpoint.{name}': 1 for name in ('interval', 'max_keep_ckpts')}
    launch.train('segmenter.py', 'work', cfg_options={**options, **kept})
    assert [path.name for path in Path('work').glob('iter_*.pth')] == ['iter_2.pth']


def test_a_missing_file_is_one_sentence():
    with pytest.raises(UsageError, match=r'^nowhere/x.json is missing: .*--demo-data\.$'), explained('x.py'):
        Path('nowhere/x.json').read_text()


def test_the_class_of_mmengine_s_initializer_is_seen_too():
    init_cfg = dict(type=PretrainedInit, checkpoint='weights/some.pth')
    cfg = Config(dict(model=dict(backbone=dict(type='ResNet', init_cfg=init_cfg))))
    assert without_pretrained(cfg).model.backbone.init_cfg is None
    cfg.model.backbone.init_cfg = [init_cfg, dict(type='Normal', layer='Linear')]
    assert without_pretrained(cfg).model.backbone.init_cfg == [dict(type='Normal', layer='Linear')]
    assert len(cfg.model.backbone.init_cfg) == 2  # which is left alone


def test_a_training_from_scratch_loads_and_freezes_nothing():
    backbone = dict(type='ResNet', frozen_stages=1, norm_eval=True)
    cfg = Config(dict(model=dict(pretrained='torchvision://resnet50', backbone=backbone), load_from='x.pth'))
    scratch = without_pretrained(cfg)
    assert scratch.load_from is scratch.model.pretrained is None
    assert scratch.model.backbone == dict(backbone, frozen_stages=-1, norm_eval=False)


def test_data_sets_in_others_are_found_in_their_order():
    one, two, three, four = (dict(type='CocoDataset', ann_file=name) for name in 'abcd')
    twice = dict(type='RepeatDataset', times=2, dataset=dict(type='ClassBalancedDataset', dataset=two))
    whole = dict(type='ConcatDataset', datasets=(one, twice, three))
    cfg = Config(dict(train_dataloader=dict(dataset=whole), val_dataloader=None, test_dataloader=dict(dataset=four)))
    assert [*datasets(cfg)] == [one, two, three, four]
    assert len([*dicts(cfg.train_dataloader)]) == 7


@pytest.mark.parametrize('error', [OSError(errno.ENOSPC, 'No space'), FileNotFoundError('no file')], ids=str)
def test_errors_that_name_no_file(error):
    with pytest.raises((UsageError, OSError)) as info, explained('x.py'):
        raise error
    told = 'x.py cannot be run (FileNotFoundError: no file)' if error.errno is None else error
    assert str(info.value).startswith(str(told))


def test_an_error_after_ctrl_c_is_no_error_of_a_config():
    with pytest.raises(SyntaxError), explained('x.py'):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise SyntaxError('Failed to format the config file')  # noqa: B904


@pytest.mark.parametrize(
    'name, content, says',
    [
        ('absent.py', None, 'absent.py cannot be read as a config (FileNotFoundError'),
        ('notes.txt', 'hello', 'cannot be read'),
        ('broken.py', 'model = dict(', 'cannot be read'),
        ('undefined.py', 'model = dict(type=Nowhere)', 'Nowhere'),
        ('baseless.py', "_base_ = 'mmdet::no/such_config.py'", 'no/such_config.py'),
        ('scopeless.py', 'model = dict()', 'scopeless.py has default_scope'),
        (
            'foreign.py',
            "default_scope = 'mmocr'",
            "foreign.py has default_scope='mmocr'; set one of mmdet, mmseg, mmpretrain, or use mim for others",
        ),
    ],
)
def test_configs_that_cannot_be_read(tmp_path, name, content, says):
    path = tmp_path / name
    if content:
        path.write_text(content)
    assert says in sentence(load_config, str(path))


def test_a_runner_is_built_of_what_fits(tmp_path):
    """Data set and heads, and a checkpoint of another model, of which mmengine would only warn."""
    path, training = str(tmp_path / 'x.pth'), dict(meta=dict(iter=3), message_hub={}, optimizer={})

    def build(weights, **changes):
        torch.save(dict(state_dict=weights, **training), path)
        return launch.build(
            Config(toy.config(tmp_path / 'run', load_from=path, default_scope='mmengine', **changes)), 'train'
        )

    one, other = {'linear.weight': torch.ones(1, 1), 'linear.bias': torch.ones(1)}, dict(weight=torch.ones(3))
    use_safe_loading(False)
    build(one).train()
    assert CheckpointLoader._schemes[''] is load_from_weights_only
    assert 'x.pth does not fit' in sentence(build, other)
    part = {'linear.weight': torch.ones(1, 1)}
    build(part)
    assert 'x.pth does not fit' in sentence(lambda: build(part, resume=True))
    del training['optimizer']
    assert 'x.pth has no optimizer, so training cannot resume' in sentence(lambda: build(one, resume=True))
    loader = toy.config(tmp_path)['train_dataloader']
    test = dict(train_dataloader=None, train_cfg=None, optim_wrapper=None, test_dataloader=loader)
    cfg = toy.config(tmp_path / 'run', load_from=path, default_scope='mmengine', **test, test_cfg={}, test_evaluator=[])
    torch.save(dict(state_dict=part), path)
    assert 'x.pth does not fit' in sentence(launch.build, Config(cfg), 'test')


def test_a_model_begins_with_weights_of_its_own(tmp_path, monkeypatch):
    """Also by ``init_cfg`` of the whole model, which mmengine reads later and only warns about."""
    path, start = str(tmp_path / 'x.pth'), dict(type='Pretrained', checkpoint=str(tmp_path / 'x.pth'))
    torch.save(dict(weight=torch.ones(3)), path)

    def build(init_cfg, *loops, **changes):
        monkeypatch.setattr(toy.ToyModel, 'init_cfg', property(lambda _: init_cfg, lambda *_: None), raising=False)
        return launch.build(Config(toy.config(tmp_path / 'run', default_scope='mmengine', **changes)), *loops)

    assert 'x.pth does not fit' in sentence(lambda: build(start, 'train'))
    assert 'x.pth does not fit' in sentence(lambda: build([dict(type='Kaiming', layer='Conv2d'), start], 'train'))
    for other in (
        None,
        dict(type='Kaiming'),
        dict(start, prefix='a.'),
        dict(start, checkpoint='torchvision://resnet50'),
    ):
        build(other, 'train')
    loader = toy.config(tmp_path)['train_dataloader']
    test = dict(train_dataloader=None, train_cfg=None, optim_wrapper=None, test_dataloader=loader)
    build(start, 'test', **test, test_cfg={}, test_evaluator=[])  # which never reads it
    fits = dict(state_dict={'linear.weight': torch.ones(1, 1)})
    torch.save(fits, path)
    build(start, 'train')
    torch.save(dict(weight=torch.ones(3)), path)
    torch.save(fits, tmp_path / 'last.pth')
    build(start, 'train', load_from=str(tmp_path / 'last.pth'))  # which is loaded last


@DATASETS.register_module()
class OtherToyData(toy.ToyData):
    metainfo = dict(classes=('letter', 'number'))


def test_a_runner_is_built_of_data_with_the_same_labels(tmp_path, monkeypatch):
    """As training and validation data, and as the data of the checkpoint, unless training begins with its weights."""
    path, loader = str(tmp_path / 'x.pth'), toy.config(tmp_path)['train_dataloader']
    other = dict(loader, dataset=dict(type='OtherToyData'))
    says = 'number is class 1, and was class 0 in training'

    def build(*loops, classes=('number',), **changes):
        weights = {'linear.weight': torch.ones(1, 1), 'linear.bias': torch.ones(1)}
        meta = dict(iter=3, dataset_meta=dict(classes=classes))
        torch.save(dict(state_dict=weights, meta=meta, message_hub={}, optimizer={}), path)
        return launch.build(Config(toy.config(tmp_path / 'run', default_scope='mmengine', **changes)), *loops)

    val = dict(val_dataloader=other, val_cfg={}, val_evaluator=[])
    assert says in sentence(lambda: build('train', 'val', **val))
    build('train', load_from=path, classes=['x', 'number'])
    moved = 'number is class 0, and was class 1 in training'
    assert moved in sentence(lambda: build('train', load_from=path, resume=True, classes=['x', 'number']))
    tests = dict(train_dataloader=None, train_cfg=None, optim_wrapper=None, test_cfg={}, test_evaluator=[])
    build('test', load_from=path, test_dataloader=loader, **tests)
    assert says in sentence(lambda: build('test', load_from=path, test_dataloader=other, **tests))
    monkeypatch.setattr(toy.ToyModel, 'language_model', None, raising=False)  # which reads the names of any classes
    build('test', load_from=path, test_dataloader=other, **tests)


def test_before_training_begins(tmp_path, monkeypatch):
    """Shapes are drawn, objects are looked for, and the optimizer is built."""
    done = []
    monkeypatch.setattr(launch, 'on_shapes', lambda cfg: True)
    monkeypatch.setattr(launch, 'ensure_shapes', lambda: done.append('shapes'))
    monkeypatch.setattr(launch, 'check_objects', lambda dataset: done.append(dataset.metainfo['classes']))
    wrong = dict(optimizer=dict(type='SGD', speed=1))
    with pytest.raises(TypeError, match='speed'):
        launch.build(Config(toy.config(tmp_path, default_scope='mmengine', optim_wrapper=wrong)), 'train')
    assert done == ['shapes', ('number',)]


def test_there_is_something_to_test(tmp_path):
    cfg = Config(toy.config(tmp_path, default_scope='mmengine'))
    assert 'nothing to test: set test_dataloader' in sentence(launch.build, cfg, 'test')


def test_training_resumes_from_checkpoints_of_trainings(tmp_path):
    path, training = str(tmp_path / 'x.pth'), dict(state_dict=dict(a=torch.ones(1)), meta=dict(iter=3), optimizer={})
    torch.save(training, path)
    assert 'x.pth has no message_hub' in sentence(check_resumable, path)
    torch.save(dict(training, message_hub={}), path)
    check_resumable(path)
    for part in ('meta', 'optimizer'):
        torch.save({key: value for key, value in dict(training, message_hub={}).items() if key != part}, path)
        assert f'x.pth has no {part}' in sentence(check_resumable, path)


def test_a_closed_pipe_is_no_error_of_a_config():
    """As in ``tools/predict.py … | head``."""

    def run():
        with explained('x.py'):
            raise BrokenPipeError(errno.EPIPE, 'Broken pipe')

    with pytest.raises(BrokenPipeError):
        command_line(run)


@pytest.mark.parametrize(
    'given, says',
    [
        ('', 'absent.pth is not a file'),
        ('init_cfg=None', 'absent.pth is not a file'),
        ("init_cfg=dict(type='TruncNormal', layer='Linear')", 'absent.pth is not a file'),
        ("init_cfg=[dict(type='Normal', layer='Linear')]", 'absent.pth is not a file'),
        ("init_cfg=[dict(type='Normal', layer='Linear'), dict(type='Pretrained')]", 'absent.pth is not a file'),
    ],
)
def test_an_initial_checkpoint_needs_no_init_cfg(given, says, small_shapes, tmp_path, monkeypatch):
    monkeypatch.chdir(project(tmp_path, small_shapes))
    config = tmp_path / 'config.py'
    config.write_text(f"_base_ = '{ROOT}/configs/retinanet_soft_nano_shapes.py'\nmodel = dict(backbone=dict({given}))")
    options = {'model.backbone.init_cfg.checkpoint': str(tmp_path / 'absent.pth'), 'work_dir': str(tmp_path)}
    options['model.backbone.init_cfg.prefix'] = 'backbone.'
    with pytest.raises(UsageError, match=says):
        launch.train(str(config), demo_data=True, cfg_options=options)


@pytest.mark.parametrize('kind', ['Pretrained', 'PretrainedInit', 'mmengine.model.PretrainedInit'])
def test_an_initial_checkpoint_keeps_the_prefix(kind, small_shapes, tmp_path, monkeypatch):
    monkeypatch.chdir(project(tmp_path, small_shapes))
    config, option = tmp_path / 'config.py', 'model.backbone.init_cfg.checkpoint'
    given = dict(type=kind, checkpoint='old.pth', prefix='student.')
    base = f'{ROOT}/configs/retinanet_soft_nano_shapes.py'
    config.write_text(f'_base_ = {base!r}\nmodel = dict(backbone=dict(init_cfg={given}))')
    torch.save({'teacher.weight': torch.zeros(1)}, tmp_path / 'new.pth')
    with pytest.raises(UsageError, match='new.pth has no names that start with student'):
        launch.train(str(config), str(tmp_path), cfg_options={option: str(tmp_path / 'new.pth')}, demo_data=True)


def test_initialisation_may_be_a_list(small_shapes, tmp_path, monkeypatch):
    monkeypatch.chdir(project(tmp_path, small_shapes))
    config, base = tmp_path / 'config.py', f'{ROOT}/configs/retinanet_soft_nano_shapes.py'
    config.write_text(f'_base_ = {base!r}\nmodel = dict(backbone=dict(init_cfg=[dict(type="Normal", layer="Linear")]))')
    assert launch._prepare(str(config), None, None, 'none', False).model.backbone.init_cfg[0].type == 'Normal'


def test_errors_of_a_config_are_sentences(tmp_path):
    with pytest.raises(UsageError) as info, explained('x.py'):
        launch.build(toy.config(tmp_path, model=dict(type='Nonsense')), 'train')
    assert str(info.value).startswith('x.py cannot be run (KeyError: ') and '--traceback' in str(info.value)
    assert isinstance(info.value.__cause__, KeyError)
    with pytest.raises(UsageError) as info, explained('x.py'):
        raise SyntaxError('check the syntax of ' + 9999 * 'x')  # mmengine's, with the whole config behind it
    assert 'SyntaxError: check the syntax of xxx' in str(info.value) and len(str(info.value)) < 1100
