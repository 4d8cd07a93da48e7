"""Killed at any moment, and started again by the same command."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from trainings import ROOT, project, same

from mmsoft.checkpoint import read_checkpoint
from mmsoft.datasets.shapes import ensure_shapes

SIGNALS = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
LARGER = dict(train=60, val=20, portraits=48, size=64, portrait_size=32)
GENERATE = f'''
from mmsoft.datasets.shapes import ensure_shapes
print('ready', flush=True)
ensure_shapes('shapes', **{LARGER})
'''
WRITE = '''
from mmengine.fileio import put
from mmsoft.engine.checkpoints import BACKEND
print('ready', flush=True)
for number in range(1, 256):
    put(bytes([number]) * 30_000_000, 'epoch_1.pth', backend_args=dict(backend=BACKEND))
'''


def start(command, cwd, **options):
    """Starts a command in a process group of its own; Ctrl-C, which a background job's children ignore, works."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT), PYTHONUNBUFFERED='1', OMP_NUM_THREADS='1')
    return subprocess.Popen(
        list(map(str, command)), cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler), **options)


def kill(process, trial, within, everyone=False):
    """Sends a signal after a time that the trial draws, and says what became of it."""
    delay, number = trial.random.uniform(0, within), trial.random.choice(SIGNALS)
    try:
        process.wait(delay)
    except subprocess.TimeoutExpired:
        pass
    if number == signal.SIGINT or everyone:  # Ctrl-C reaches all of them
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    out, err = process.communicate(timeout=120)
    return dict(signal=signal.Signals(number).name, delay=round(delay, 2), code=process.returncode), err.decode()


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
    trial.note(kill=kill(process, trial, seconds)[0])
    assert contents(ensure_shapes(tmp_path / 'shapes', **LARGER)) == whole


def test_data_generation_between_two_files(tmp_path):
    """Killed while the very first file was written."""
    (tmp_path / '.lock').touch()
    (tmp_path / '.shapes.json.17.partial').write_bytes(b'{"generator": "mms')
    ensure_shapes(tmp_path, train=1, val=1, portraits=24, size=64, portrait_size=32)
    assert not list(tmp_path.glob('*.partial'))


@pytest.mark.rounds(1, 30)
def test_writing_a_checkpoint(trial, tmp_path):
    """A checkpoint written over and over: it is always one whole version."""
    process = start([sys.executable, '-c', WRITE], tmp_path)
    assert process.stdout.readline() == b'ready\n'
    trial.note(kill=kill(process, trial, 1)[0], left=len(list(tmp_path.glob('.*'))))
    data = (tmp_path / 'epoch_1.pth').read_bytes() if (tmp_path / 'epoch_1.pth').exists() else b''
    assert data == data[:1] * 30_000_000


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return project(tmp_path_factory.mktemp('project'))


OPTIONS = ('--work-dir', 'run', '--resume', '--cfg-options', 'default_hooks.checkpoint.by_epoch=False',
           'default_hooks.checkpoint.interval=2', 'default_hooks.checkpoint.max_keep_ckpts=1',
           'default_hooks.logger.interval=1', 'log_processor.window_size=1')
TRAIN = {
    'detector': [sys.executable, ROOT / 'tools/train.py', 'detector.py', *OPTIONS],
    'segmenter': [sys.executable, ROOT / 'tools/train.py', 'segmenter.py', *OPTIONS,
                  'train_dataloader.num_workers=2', 'train_dataloader.persistent_workers=True'],
    'classifier': [sys.executable, ROOT / 'tools/train.py', 'classifier.py', *OPTIONS],
    'detector on two processes': [ROOT / 'tools/dist_train.sh', 'detector.py', '2', *OPTIONS]
}


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
    kept = {key: checkpoint[key] for key in ('state_dict', 'optimizer', 'param_schedulers', 'ema_state_dict')
            if key in checkpoint}
    return kept, logged


def run(task, cwd):
    environment = dict(PORT=str(20000 + os.getpid() % 20000), PYTHON=sys.executable)
    os.environ.update(environment)
    begin = time.time()
    process = start(TRAIN[task], cwd)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err.decode()[-3000:]
    return time.time() - begin


@pytest.fixture(scope='module')
def uninterrupted(folder, tmp_path_factory):
    """What becomes of a training to which nothing happens, and how long it takes."""
    found = {}

    def get(task):
        if task not in found:
            cwd = tmp_path_factory.mktemp('uninterrupted')
            shutil.copytree(folder, cwd, dirs_exist_ok=True)
            seconds = run(task, cwd)
            found[task] = outcome(cwd / 'run'), seconds
        return found[task]

    return get


KILLS = 3


@pytest.mark.rounds(0, 10)
@pytest.mark.parametrize('task', TRAIN)
def test_training(trial, task, folder, uninterrupted, tmp_path):
    """Training, killed three times in a round and resumed by the same command: equal to the bit to one left alone."""
    expected, seconds = uninterrupted(task)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for path in sorted((tmp_path / 'data').rglob('*.jpg'))[::1 + trial.round % 3]:
        path.unlink()  # so that data are generated, too
    kills = []
    for _ in range(KILLS):
        process = start(TRAIN[task], tmp_path)
        what, err = kill(process, trial, seconds, everyone='two' in task)
        at = max(map(int, re.findall(r'iter_(\d+)', ' '.join(map(str, (tmp_path / 'run').glob('*.pth'))))), default=0)
        kills.append(dict(what, checkpoint=at, partial=len(list((tmp_path / 'run').glob('.*.partial')))))
        trial.note(kills=kills)
        if what['signal'] == 'SIGINT' and what['delay'] > 1 and 'two' not in task:
            assert 'Traceback' not in err, err
        for path in (tmp_path / 'run').glob('*.pth'):
            read_checkpoint(path)
    run(task, tmp_path)
    kept, logged = outcome(tmp_path / 'run')
    assert same(kept, expected[0])
    assert all(values == expected[1][iteration] for iteration, values in logged.items())
    trial.note(checkpoints=sorted(path.name for path in (tmp_path / 'run').glob('*.pth')))
    assert not list((tmp_path / 'run').glob('.*.partial'))
