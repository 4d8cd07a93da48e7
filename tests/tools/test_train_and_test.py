"""tools/train.py and tools/test.py, as one runs them, on scenes of 64 pixels."""

import errno
import io
import json
import os
import pickle
import runpy
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from mmengine.logging import MMLogger
from mmengine.optim import OptimWrapper
from mmengine.visualization import Visualizer

from mmsoft.apis import launch
from mmsoft.utils import UsageError, cli

ROOT = Path(__file__).parents[2]
DETECTOR = """
_base_ = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'
arch = dict(embed_dims=[16, 32, 48, 64], num_heads=[1, 2, 3, 4], depths=[1, 1, 1, 1])
model = dict(
    backbone=dict(_delete_=True, type='mmsoft.SOFT', arch=arch, attention_norm=True),
    neck=dict(in_channels=arch['embed_dims'], out_channels=32),
    bbox_head=dict(in_channels=32, feat_channels=32, stacked_convs=1),
    test_cfg=dict(score_thr=0.0))
optim_wrapper = dict(_delete_=True, optimizer=dict(type='AdamW', lr=6e-3))
tta_pipeline = _base_.tta_pipeline
tta_pipeline[1]['transforms'][0] = [dict(type='Resize', scale=(96, 64), keep_ratio=True)]
"""
SEGMENTER = """
_base_ = 'mmseg::segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py'
model = dict(backbone=dict(_delete_=True, type='mmsoft.SOFT', arch=dict(
    embed_dims=[32, 64, 160, 256], num_heads=[1, 2, 5, 8], depths=[1, 1, 1, 1])))
"""
CLASSIFIER = """
_base_ = 'mmpretrain::resnet/resnet18_8xb32_in1k.py'
"""
CONFIGS = dict(detector=DETECTOR, segmenter=SEGMENTER, classifier=CLASSIFIER)


@pytest.fixture(scope='module')
def folder(tmp_path_factory, small_shapes):
    """A folder to run in, with a small data set and a config for each host."""
    folder = tmp_path_factory.mktemp('project')
    shutil.copytree(small_shapes, folder / 'data/shapes')
    for name, text in CONFIGS.items():
        (folder / f'{name}.py').write_text(text)
    return folder


@pytest.fixture(autouse=True)
def inside(folder, monkeypatch):
    monkeypatch.chdir(folder)


def start(tool, *args, cwd=None):
    """Starts a tool; one thread, because sums that several share come in any order; Ctrl-C, which a background job's
    children ignore, means what it means at a prompt."""
    environment = dict(os.environ, PYTHONUNBUFFERED='1', OMP_NUM_THREADS='1')
    command = [sys.executable, str(ROOT / f'tools/{tool}.py'), *args]
    return subprocess.Popen(
        command,
        env=environment,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def finish(process):
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def forget_visualizers():
    """Each library keeps its first one, and the folder it writes to, as long as the process lives."""
    for visualizer in (Visualizer, *Visualizer.__subclasses__()):
        visualizer._instance_dict.clear()


def losses(work_dir):
    """Loss of every iteration, as logged last, by its epoch and its number."""
    found = {}
    for log in sorted(Path(work_dir).glob('*/vis_data/scalars.json')):
        for line in map(json.loads, log.read_text().splitlines()):
            if 'loss' in line:
                found[line['iter']] = line['loss']
    return found


def weights(checkpoint):
    return torch.load(checkpoint, map_location='cpu', weights_only=False)['state_dict']


# Four iterations an epoch, three epochs, pictures as they are, so that nothing but resuming could make a difference.
TRAINING = (
    'detector.py',
    '--demo-data',
    '--resume',
    '--cfg-options',
    'randomness.seed=1',
    'train_cfg.max_epochs=3',
    'train_dataloader.batch_size=3',
    'train_dataloader.dataset.pipeline.3.prob=0.0',
    'default_hooks.logger.interval=1',
    'log_processor.window_size=1',
    'auto_scale_lr.enable=False',
)


@pytest.fixture(scope='module')
def uninterrupted(folder):
    """A finished training by the tool: its folder, and what it said."""
    said = []
    forget_visualizers()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, 'argv', ['train.py', *TRAINING, '--work-dir=uninterrupted'])
        patch.setattr(launch, 'print_log', lambda message, *_, **__: said.append(message))
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(ROOT / 'tools/train.py'), run_name='__main__')
    assert end.value.code == 0
    return folder / 'uninterrupted', '\n'.join(said)


class TestTraining:
    def test_the_loss_goes_down_where_there_is_nothing_to_resume(self, uninterrupted):
        work_dir, out = uninterrupted
        assert 'has no checkpoint yet; training starts from the beginning' in out
        found = losses(work_dir)
        assert sorted(found) == list(range(1, 13))
        assert sum(found[i] for i in range(9, 13)) < 0.9 * sum(found[i] for i in range(1, 5))

    @pytest.mark.slow  # in one process: engine/test_loops.py
    def test_interrupted_and_resumed(self, folder):
        process = start('train', *TRAINING, '--work-dir=interrupted')
        for line in process.stdout:
            if 'Epoch(train) [2][' in line:
                process.send_signal(signal.SIGINT)
                break
        code, _, err = finish(process)
        assert code == 130 and 'Traceback' not in err
        assert err.strip().endswith('Interrupted; the same command with --resume continues.')

        code, out, err = finish(start('train', *TRAINING, '--work-dir=interrupted'))
        assert code == 0, err
        assert 'epoch_1.pth' in out and 'Epoch(train) [1][' not in out
        assert finish(start('train', *TRAINING, '--work-dir=whole'))[0] == 0  # a process with as many threads
        assert losses(folder / 'interrupted') == losses(folder / 'whole')
        resumed, expected = (weights(folder / run / 'epoch_3.pth') for run in ('interrupted', 'whole'))
        assert all(torch.equal(resumed[name], expected[name]) for name in expected)


CHECKPOINTS = dict(detector='epoch_1.pth', segmenter='iter_2.pth', classifier='epoch_1.pth')


@pytest.fixture(scope='module', params=CONFIGS)
def trained(request, folder):
    """A config, and a checkpoint from a little training."""
    name = request.param
    length = {'train_cfg.max_iters': 2} if name == 'segmenter' else {'train_cfg.max_epochs': 1}
    options = {**length, 'train_dataloader.dataset.indices': 4}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        launch.train(f'{name}.py', f'trained_{name}', demo_data=True, cfg_options=options)
    return name, f'trained_{name}/{CHECKPOINTS[name]}'


class TestHosts:
    @pytest.mark.parametrize('tta', [False, True], ids=['plain', 'tta'])
    def test_scores_and_predictions(self, trained, tmp_path, tta):
        name, checkpoint = trained
        if tta and name == 'classifier':  # the bases of the others say how
            with pytest.raises(UsageError, match='--tta needs tta_model and tta_pipeline'):
                launch.test(f'{name}.py', checkpoint, tta=True, demo_data=True)
            return
        left = Path(f'trained_{name}/{name}.py').read_text()
        out = str(tmp_path / 'new/out.pkl')
        metrics = launch.test(f'{name}.py', checkpoint, f'trained_{name}', out, tta=tta, demo_data=True)
        assert Path(f'trained_{name}/{name}.py').read_text() == left, 'the config of the training is replaced'
        assert Path(f'trained_{name}/test_{name}.py').is_file()
        key = dict(detector='coco/bbox_mAP', segmenter='mIoU', classifier='accuracy/top1')[name]
        assert 0 <= metrics[key] <= 100
        assert len(pickle.loads(Path(out).read_bytes())) == (8 if name == 'classifier' else 4)

    def test_pictures(self, trained, tmp_path):
        name, checkpoint = trained
        forget_visualizers()
        launch.test(f'{name}.py', checkpoint, str(tmp_path), show_dir=str(tmp_path / 'pictures'), demo_data=True)
        pictures = [path for path in (tmp_path / 'pictures').rglob('*') if path.suffix in ('.jpg', '.png')]
        assert len(pictures) == (8 if name == 'classifier' else 4)

    def test_label_maps(self, trained, tmp_path):
        name, checkpoint = trained
        if name == 'segmenter':
            launch.test(f'{name}.py', checkpoint, out=str(tmp_path / 'maps'), demo_data=True)
            assert len(list((tmp_path / 'maps').glob('*.png'))) == 4
            with pytest.raises(
                UsageError, match='maps is not empty, and nothing there is overwritten; choose another --out'
            ):
                launch.test(f'{name}.py', checkpoint, out=str(tmp_path / 'maps'), demo_data=True)
        else:
            with pytest.raises(UsageError, match='.pkl'):
                launch.test(f'{name}.py', checkpoint, out=str(tmp_path / 'maps'), demo_data=True)


DATA = dict(detector='data/coco/annotations/instances_', segmenter='data/ade/', classifier='data/imagenet/').items()


class TestComplaints:
    @pytest.mark.parametrize(
        'arguments, says',
        [
            (['detector.py'], 'instances_train2017.json'),
            (['absent.py'], 'absent.py'),
            (['detector.py', '--demo-data', '--resume', 'absent.pth'], 'absent.pth'),
        ],
        ids=['data', 'config', 'checkpoint'],
    )
    def test_one_sentence(self, arguments, says, monkeypatch, capfd):
        MMLogger._instance_dict.clear()  # their streams are closed
        monkeypatch.setattr(sys, 'argv', ['train.py', *arguments])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(ROOT / 'tools/train.py'), run_name='__main__')
        err = capfd.readouterr().err
        assert end.value.code == 2 and 'Traceback' not in err
        assert says in err.strip().splitlines()[-1]

    @pytest.mark.parametrize(
        'change, says',
        [
            *(
                (dict(config=f'{name}.py', from_scratch=True), f'{path}.* is missing: .*--demo-data')
                for name, path in DATA
            ),
            (dict(config='detector.py', demo_data=True, resume='absent.pth'), 'absent.pth is not a file'),
            (  # which mmengine would tell after the first epoch
                dict(
                    config='detector.py', demo_data=True, cfg_options={'val_dataloader.dataset.data_prefix.img': 'x/'}
                ),
                'data/shapes/x/000000.jpg is missing: ',
            ),
            (dict(config='segmenter.py', demo_data=True, auto_scale_lr=True), 'base_batch_size'),
            (
                dict(
                    config='detector.py',
                    demo_data=True,
                    amp=True,
                    cfg_options={'optim_wrapper.type': 'ApexOptimWrapper'},
                ),
                'ApexOptimWrapper',
            ),
            pytest.param(  # as new-style configs write it
                dict(config='detector.py', demo_data=True, amp=True, cfg_options={'optim_wrapper.type': OptimWrapper}),
                'AmpOptimizerWrapper.* is only available',
                marks=pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU'),
            ),
            pytest.param(
                dict(config='detector.py', demo_data=True, amp=True),
                'AmpOptimizerWrapper.* is only available',
                marks=pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU'),
            ),
            (
                dict(config='detector.py', demo_data=True, cfg_options={'train_dataloader.dataset.pipeline.9.prob': 0}),
                'Index 9 exceeds',
            ),
            (
                dict(
                    config='detector.py',
                    demo_data=True,
                    cfg_options={'model.backbone.attention.type': 'LinearAttention'},
                ),
                "there is no attention 'LinearAttention'; choose one of CosFormerAttention, ",
            ),
            (
                dict(config='detector.py', demo_data=True, cfg_options={'model.backbone.arch.num_heads': [3, 2, 3, 4]}),
                '3 heads do not divide 16 channels',
            ),
        ],
    )
    def test_training(self, change, says):
        with pytest.raises(UsageError, match=says):
            launch.train(**change)

    @pytest.mark.parametrize('content', [None, b'', b'junk'], ids=['absent', 'empty', 'junk'])
    def test_checkpoint(self, tmp_path, content):
        path = tmp_path / 'some.pth'
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(UsageError, match='some.pth'):
            launch.test('detector.py', str(path), demo_data=True)

    def test_exit_codes(self, capsys):

        def fail(error):
            raise error

        assert cli.command_line(lambda: None, 'stopped') == cli.command_line(lambda: 'x', 'stopped') == 0
        assert cli.command_line(lambda: True, 'stopped') == 1
        assert cli.command_line(lambda: fail(UsageError('Wrong.')), 'stopped') == 2
        assert cli.command_line(lambda: fail(KeyboardInterrupt()), 'stopped') == 130
        assert capsys.readouterr().err == 'Wrong.\n\nstopped\n'
        assert cli.command_line(lambda: __import__('absent_package'), 'stopped') == 2
        assert capsys.readouterr().err.startswith("No module named 'absent_package' (see docs/installation.md")
        with pytest.raises(ModuleNotFoundError):
            cli.command_line(lambda: __import__('mmsoft.absent'), 'stopped')

        def fail_to_format():
            try:
                fail(KeyboardInterrupt())
            except BaseException:
                raise SyntaxError('Failed to format the config file')  # noqa: B904

        assert cli.command_line(fail_to_format, 'stopped') == 130
        with pytest.raises(SyntaxError):
            cli.command_line(lambda: fail(SyntaxError('of the program')), 'stopped')
        with pytest.raises(ZeroDivisionError):
            cli.command_line(lambda: 1 / 0, 'stopped')

    def test_characters_that_the_locale_lacks_are_printed(self, monkeypatch):
        printed = io.TextIOWrapper(io.BytesIO(), encoding='ascii')
        monkeypatch.setattr(sys, 'stdout', printed)
        assert cli.command_line(lambda: print('7×7', flush=True), 'stopped') == 0
        assert printed.buffer.getvalue() == rb'7\xd77' + os.linesep.encode()
        monkeypatch.setattr(sys, 'stdout', object())  # as in a notebook, it may have an encoding of its own
        assert cli.command_line(lambda: None, 'stopped') == 0

    def test_files_that_cannot_be_written_are_one_sentence(self, tmp_path, capsys):
        (tmp_path / 'run').touch()
        assert cli.command_line((tmp_path / 'run').mkdir) == cli.command_line((tmp_path / 'run/log').mkdir) == 2
        found = [line.partition(' cannot be written or read (')[2] for line in capsys.readouterr().err.splitlines()]
        assert found == ['File exists).', 'Not a directory).']
        with pytest.raises(FileNotFoundError):
            cli.command_line((tmp_path / 'absent').read_bytes)

    @pytest.mark.parametrize('words', [['foo'], ['a.b=3', 'epoch_1.pth'], ['a=[1,2']], ids=str)
    def test_options_of_the_config(self, words, capsys):
        parser = cli.config_parser('')
        assert parser.parse_args(['x.py', 'y.pth', '--cfg-options', 'a=[1,2]']).cfg_options == dict(a=[1, 2])
        with pytest.raises(SystemExit) as end:
            parser.parse_args(['x.py', 'y.pth', '--cfg-options', *words])
        assert end.value.code == 2
        assert '--cfg-options takes KEY=VALUE pairs, and stands after all' in capsys.readouterr().err

    def test_the_trace_can_be_asked_for(self, monkeypatch):

        def fail():
            assert sys.argv == ['tool', 'config.py']
            raise UsageError('Wrong.')

        monkeypatch.setattr(sys, 'argv', ['tool', '--traceback', 'config.py'])
        with pytest.raises(UsageError, match='Wrong'):
            cli.command_line(fail)

    def test_errors_of_a_disk_without_a_file_and_with_their_trace(self, monkeypatch, capsys):
        def fail():
            raise OSError(errno.ENOSPC, 'No space left on device')

        assert cli.command_line(fail) == 2
        assert capsys.readouterr().err == 'A file cannot be written or read (No space left on device).\n'
        monkeypatch.setattr(sys, 'argv', ['tool', '--traceback'])
        with pytest.raises(OSError, match='No space'):
            cli.command_line(fail)

    def test_warnings_of_visualizers_are_not_told(self):
        where = dict(category=UserWarning, filename='visualizer.py', lineno=1)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter('always')
            for module in ('mmengine.visualization.visualizer', 'mmengine.runner'):
                cli.command_line(lambda module=module: warnings.warn_explicit(module, module=module, **where))
        assert [str(one.message) for one in told] == ['mmengine.runner']

    def test_an_error_after_ctrl_c_is_told(self):

        def run():
            try:
                raise KeyboardInterrupt
            finally:
                raise OSError('no room for what was done')

        with pytest.raises(OSError, match='no room'):
            cli.command_line(run, 'stopped')
