"""Killed at any moment, and started again by the same command."""

import json
import logging
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import mmdet.apis  # noqa: F401
import mmpretrain.apis  # noqa: F401
import mmseg.apis  # noqa: F401
import pytest
import torch
from mmengine.config import Config
from PIL import Image
from trainings import ROOT, same

from mmsoft.apis import launch  # noqa: F401
from mmsoft.checkpoint import read_checkpoint
from mmsoft.datasets.shapes import ensure_shapes

SIGNALS = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
LARGER = dict(train=60, val=20, portraits=48, size=64, portrait_size=32)
GENERATE = f"""
from mmsoft.datasets.shapes import ensure_shapes
print('ready', flush=True)
ensure_shapes('shapes', **{LARGER})
"""
WRITE = """
from mmengine.fileio import put
from mmsoft.engine.checkpoints import BACKEND
print('ready', flush=True)
for number in range(1, 256):
    put(bytes([number]) * 8_000_000, 'epoch_1.pth', backend_args=dict(backend=BACKEND, outdated=[]))
"""


def start(command, cwd, **options):
    """Starts a command in a process group of its own; Ctrl-C, which a background job's children ignore, works."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT), PYTHONUNBUFFERED='1', OMP_NUM_THREADS='1')
    environment.update(PORT=str(20000 + os.getpid() % 20000), PYTHON=sys.executable)  # of dist_train.sh
    options = {**dict(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL), **options}
    return subprocess.Popen(
        list(map(str, command)),
        cwd=cwd,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        **options,
    )


def kill(process, trial, within):
    """Sends a signal after a time that the trial draws, and says what became of it."""
    delay, number = trial.random.uniform(0, within), trial.random.choice(SIGNALS)
    time.sleep(delay)
    process.send_signal(number)
    process.communicate(timeout=400)
    return dict(signal=signal.Signals(number).name, delay=round(delay, 2), code=process.returncode)


@pytest.fixture(scope='module')
def shapes(tmp_path_factory):
    """The files of a data set that nothing happened to, and how long it took to write them."""
    begin = time.time()
    root = ensure_shapes(tmp_path_factory.mktemp('whole') / 'shapes', **LARGER)
    return contents(root), time.time() - begin


def contents(root):
    return {path.relative_to(root): path.read_bytes() for path in root.rglob('*') if path.is_file()}


@pytest.mark.rounds(2, 30)
def test_data_generation(trial, shapes, tmp_path):
    """Generation of the data set, killed and repeated."""
    whole, seconds = shapes
    process = start([sys.executable, '-c', GENERATE], tmp_path)
    assert process.stdout.readline() == b'ready\n'
    trial.note(kill=kill(process, trial, seconds))
    assert contents(ensure_shapes(tmp_path / 'shapes', **LARGER)) == whole


@pytest.mark.rounds(1, 30)
def test_writing_a_checkpoint(trial, tmp_path):
    """A checkpoint written over and over: it is always one complete version."""
    process = start([sys.executable, '-c', WRITE], tmp_path)
    assert process.stdout.readline() == b'ready\n'
    trial.note(kill=kill(process, trial, 1), left=len(list(tmp_path.glob('.*'))))
    data = (tmp_path / 'epoch_1.pth').read_bytes() if (tmp_path / 'epoch_1.pth').exists() else b''
    assert data == data[:1] * 8_000_000


OPTIONS = (
    '--work-dir=run',
    '--resume',
    '--cfg-options',
    'default_hooks.checkpoint.by_epoch=False',
    'default_hooks.checkpoint.interval=2',
    'default_hooks.checkpoint.max_keep_ckpts=1',
    'default_hooks.logger.interval=1',
    'log_processor.window_size=1',
)
WORKERS = ('train_dataloader.num_workers=2', 'train_dataloader.persistent_workers=True')
TASKS = dict(detector=(), segmenter=WORKERS, classifier=())


class Tool:
    """A tool in a process of its own, which is a fork of this one, so that it need not import anything."""

    def __init__(self, arguments, cwd):
        self.process = get_context('fork').Process(target=self.run, args=(arguments, cwd))
        self.process.start()

    @staticmethod
    def run(arguments, cwd):
        os.setsid()
        os.chdir(cwd)
        sys.stdout, sys.stderr = out, err = open('out.txt', 'w'), open('err.txt', 'w')
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        for handler in filter(None, (reference() for reference in logging._handlerList)):
            if getattr(getattr(handler, 'stream', None), 'closed', False):  # as of an earlier test in this process
                handler.stream = err  # setStream would flush the closed one
        signal.signal(signal.SIGINT, signal.default_int_handler)
        torch.set_num_threads(1)
        Config.pretty_text = ''  # takes most of the time of a small checkpoint
        sys.argv = arguments
        runpy.run_path(str(ROOT / f'tools/{arguments[0]}.py'), run_name='__main__')

    def finish(self, after):
        """Waits so many seconds for the end; returns the exit code, None if it has not come."""
        self.process.join(after)
        return self.process.exitcode

    def send(self, number, random):
        """Sends a signal, Ctrl-C to the loaders' workers as well; returns whom it reached."""
        (os.killpg if number == signal.SIGINT else os.kill)(self.process.pid, number)
        return 'tool'


class Training(Tool):
    """tools/train.py."""

    def __init__(self, task, cwd):
        super().__init__(['train', f'{task}.py', *OPTIONS, *TASKS[task]], cwd)


COMMAND = [ROOT / 'tools/dist_train.sh', 'detector.py', '2', *OPTIONS, 'train_cfg.max_epochs=4']


class TwoProcesses:
    """tools/dist_train.sh."""

    def __init__(self, task, cwd):
        self.out = cwd / 'out.txt'
        with self.out.open('w') as out, open(cwd / 'err.txt', 'w') as err:
            self.process = start(COMMAND, cwd, stdout=out, stderr=err)

    def finish(self, after):
        try:
            return self.process.wait(after)
        except subprocess.TimeoutExpired:
            return None

    def wait_for(self, step):
        """Waits until training has begun and there is a checkpoint of a step, if it is not 0, or for the end."""
        while ('Checkpoints will be saved' not in self.out.read_text() or newest(self.out.parent / 'run') < step) and (
            self.finish(0.05) is None
        ):
            pass

    def send(self, number, random):
        """Sends a signal to the launcher, of which SIGKILL reaches one of the processes or, as a machine's end, all."""
        family = descendants(self.process.pid)
        reached = 'launcher' if number != signal.SIGKILL else str(random.choice(['one', 'all'])) if family else 'all'
        pids = dict(
            launcher=[self.process.pid], one=family and [random.choice(family)], all=[self.process.pid, *family]
        )[reached]
        for pid in map(int, pids):
            os.kill(pid, number)
        return reached


def newest(work_dir):
    return max((int(path.stem[5:]) for path in work_dir.glob('iter_*.pth')), default=0)


def descendants(pid):
    """The processes that a process has started, and those that these have."""
    children = Path(f'/proc/{pid}/task/{pid}/children')
    found = list(map(int, children.read_text().split())) if children.exists() else []
    return [one for child in found for one in (child, *descendants(child))]


def outcome(work_dir):
    """The last checkpoint, and all that was ever logged of each iteration."""
    logged = {}
    for log in sorted(work_dir.glob('*/vis_data/scalars.json')):
        for line in log.read_text().splitlines():
            if not line.endswith('}') or '"loss"' not in line:
                continue  # cut off, or an evaluation
            line = json.loads(line)
            losses = tuple(sorted((key, line[key]) for key in line if 'loss' in key or key in ('lr', 'grad_norm')))
            logged.setdefault(line['step'], set()).add(losses)
    last = work_dir / 'iter_8.pth'
    checkpoint = torch.load(last, weights_only=False)
    kept = {
        key: checkpoint[key]
        for key in ('state_dict', 'optimizer', 'param_schedulers', 'ema_state_dict')
        if key in checkpoint
    }
    return kept, logged


def train(kind, task, cwd):
    """Trains to the end; returns how many seconds it took."""
    begin = time.time()
    assert kind(task, cwd).finish(900) == 0, (cwd / 'err.txt').read_text()[-3000:]
    return time.time() - begin


@pytest.fixture(scope='module')
def uninterrupted(folder, tmp_path_factory):
    """What becomes of a training to which nothing happens, and how long it takes."""
    found = {}

    def get(kind, task):
        if (kind, task) not in found:
            cwd = tmp_path_factory.mktemp('uninterrupted')
            shutil.copytree(folder, cwd, dirs_exist_ok=True)
            seconds = train(kind, task, cwd)
            found[kind, task] = outcome(cwd / 'run'), seconds
        return found[kind, task]

    return get


KILLS = 3


def torment(trial, kind, task, folder, uninterrupted, cwd):
    """Starts a training, kills it, and so on, and looks at what it left and how it ends."""
    expected, seconds = uninterrupted(kind, task)
    shutil.copytree(folder, cwd, dirs_exist_ok=True)
    kills = []
    for index in range(KILLS):
        delay, number = trial.random.uniform(0, seconds), trial.random.choice(SIGNALS)
        training = kind(task, cwd)
        if kind is TwoProcesses and trial.random.random() < 0.8:  # to import takes most of its time
            training.wait_for(2 * index)
            delay = trial.random.uniform(0, 0.5)
        code = training.finish(delay)
        reached = None
        if code is None:
            reached = training.send(number, trial.random)
            code = training.finish(400)
        kills.append(
            dict(
                signal=signal.Signals(number).name,
                delay=round(delay, 2),
                reached=reached,
                code=code,
                checkpoint=newest(cwd / 'run'),
                partial=len(list((cwd / 'run').glob('.*.partial'))),
            )
        )
        trial.note(kills=kills)
        if kind is Training:
            assert 'Traceback' not in (cwd / 'err.txt').read_text() and code in (0, 130, -9, -15)
        for path in (cwd / 'run').glob('*.pth'):
            read_checkpoint(path)
    train(kind, task, cwd)
    kept, logged = outcome(cwd / 'run')
    assert same(kept, expected[0])
    assert all(values == expected[1][iteration] for iteration, values in logged.items())
    assert not list((cwd / 'run').glob('.*.partial'))


@pytest.mark.rounds(0, 10)
@pytest.mark.parametrize('task', TASKS)
def test_training(trial, task, folder, uninterrupted, tmp_path):
    """Training, killed three times in a round and resumed by the same command: equal to the bit to one left alone."""
    torment(trial, Training, task, folder, uninterrupted, tmp_path)


@pytest.mark.rounds(0, 3)
def test_two_processes(trial, folder, uninterrupted, tmp_path):
    """The same of a detector on two processes."""
    torment(trial, TwoProcesses, 'detector', folder, uninterrupted, tmp_path)


@pytest.mark.rounds(1, 10)
def test_predicting(trial, folder, tmp_path):
    """Prediction that is told to end, by Ctrl-C or SIGTERM: what was done is saved and complete."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    train(Training, 'detector', tmp_path)
    prediction = Tool(
        ['predict', 'detector.py', 'run/iter_8.pth', 'data/shapes/images/training', '--out-dir', 'out', '--save-pred'],
        tmp_path,
    )
    while not list((tmp_path / 'out').rglob('*.jpg')) and prediction.finish(0.01) is None:
        pass
    delay, number = trial.random.uniform(0, 1), trial.random.choice([signal.SIGINT, signal.SIGTERM])
    code = prediction.finish(delay)
    if code is None:
        os.kill(prediction.process.pid, number)
        code = prediction.finish(400)
    drawn = {path.stem for path in (tmp_path / 'out/vis').iterdir()}
    saved = {path.stem for path in (tmp_path / 'out/preds').glob('*.json')}
    trial.note(signal=signal.Signals(number).name, delay=round(delay, 2), code=code, drawn=len(drawn))
    assert code in (0, 130) and 'Traceback' not in (tmp_path / 'err.txt').read_text()
    assert drawn and saved <= drawn and len(drawn - saved) <= 1
    for path in (tmp_path / 'out/vis').iterdir():
        Image.open(path).load()
    for path in (tmp_path / 'out/preds').glob('*.json'):
        json.loads(path.read_text())
