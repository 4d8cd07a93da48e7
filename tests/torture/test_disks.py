"""Disks that are full, read-only, or lose what they hold: one sentence, and what was whole stays whole."""

import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from mmengine.config import Config
from PIL import Image
from trainings import SHAPES, forget_runs

from mmsoft.apis import launch, predict
from mmsoft.checkpoint import read_checkpoint
from mmsoft.datasets.shapes import ensure_shapes
from mmsoft.utils import UsageError

pytestmark = pytest.mark.usefixtures('inside')


class Disk:
    """A small file system in memory."""

    def __init__(self, path):
        self.path = path
        path.mkdir()
        self.mount('-t', 'tmpfs', '-o', 'size=64m', 'tmpfs')

    def mount(self, *arguments):
        done = subprocess.run(['mount', *arguments, str(self.path)], stderr=subprocess.PIPE)
        if done.returncode:
            pytest.skip(f'only root can mount: {done.stderr.decode().strip()}')

    def fill(self, left):
        """Leaves so many bytes."""
        stat = os.statvfs(self.path)
        (self.path / 'ballast').write_bytes(bytes(max(0, stat.f_bavail * stat.f_frsize - left)))

    def clear(self):
        (self.path / 'ballast').unlink()

    def close(self):
        subprocess.run(['umount', '--lazy', str(self.path)], check=True)


@pytest.fixture
def disk(tmp_path):
    disk = Disk(tmp_path / 'disk')
    yield disk
    disk.close()


def train(work_dir, task='segmenter', **options):
    forget_runs()
    launch.train(
        f'{task}.py',
        str(work_dir),
        resume='auto',
        cfg_options={'default_hooks.checkpoint.interval': 1, 'default_hooks.checkpoint.max_keep_ckpts': 1, **options},
    )


def check_whole(work_dir, trained):
    """The checkpoints that have their names are whole, and once there was one, there is one."""
    found = list(Path(work_dir).glob('*.pth'))
    for path in found:
        read_checkpoint(path)
    assert found or not trained


@pytest.mark.rounds(1, 20)
def test_full_while_training(trial, disk):
    """Disk full while a training writes checkpoints and logs; with room, it goes on to its end."""
    left = int(trial.random.uniform(0, 16e6))
    disk.fill(left)
    try:
        train(disk.path / 'run')
        said = ''
    except (UsageError, OSError) as error:  # tools/ print both in one line
        said = str(error)
    trial.note(left=left, said=said)
    assert '\n' not in said and ('No space left' in said or not said)
    check_whole(disk.path / 'run', trained=False)
    assert not list((disk.path / 'run').glob('.*.partial'))
    disk.clear()
    train(disk.path / 'run')
    assert (disk.path / 'run/iter_8.pth').exists()


@pytest.mark.rounds(1, 20)
def test_full_while_data_are_written(trial, disk):
    """Disk full while the data set is written; with room, it is written whole."""
    left = int(trial.random.uniform(0, 150e3))
    disk.fill(left)
    trial.note(left=left)
    with pytest.raises(OSError, match='No space left'):
        ensure_shapes(disk.path / 'shapes', **SHAPES)
    disk.clear()
    root = ensure_shapes(disk.path / 'shapes', **SHAPES)
    assert all(
        (Path('data/shapes') / path.relative_to(root)).read_bytes() == path.read_bytes()
        for path in root.rglob('*.*')
        if path.is_file()
    )


@pytest.fixture(scope='module')
def trained(folder, tmp_path_factory):
    """A checkpoint of each task."""
    work_dir = tmp_path_factory.mktemp('trained')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(Config, 'pretty_text', '')
        for task in ('detector', 'segmenter'):
            forget_runs()
            launch.train(f'{task}.py', str(work_dir / task))
    return {task: (work_dir / task / 'last_checkpoint').read_text() for task in ('detector', 'segmenter')}


@pytest.mark.rounds(2, 10)  # the second one's disk is full within a label map
@pytest.mark.parametrize('task', ['detector', 'segmenter'])
def test_full_while_predicting(trial, task, disk, trained):
    """Disk full while predictions are written."""
    left = int(trial.random.uniform(0, 30e3))
    disk.fill(left)
    said = ''
    try:
        predict(f'{task}.py', trained[task], 'data/shapes/images/training', str(disk.path / 'out'), save_pred=True)
    except (UsageError, OSError) as error:  # tools/ print both in one line
        said = str(error)
    trial.note(left=left, said=said)
    assert '\n' not in said and ('No space left' in said or not said)
    for path in (disk.path / 'out').rglob('*.*g'):
        with Image.open(path) as picture:
            picture.load()
    for path in (disk.path / 'out').rglob('*.json'):
        json.loads(path.read_text())


def test_read_only(trial, disk):
    """A work directory that cannot be written to."""
    disk.mount('-o', 'remount,ro')
    with pytest.raises(OSError, match='Read-only file system'):  # of which the command line tells
        train(disk.path / 'run')


@pytest.mark.rounds(1, 20)
@pytest.mark.parametrize('workers', [0, 2])
def test_data_vanish(trial, workers, folder, tmp_path, monkeypatch):
    """Images that vanish or are cut while training; once they are back, it goes on to its end."""
    shutil.copytree('data', tmp_path / 'data')
    for task in ('detector', 'segmenter'):
        shutil.copy(f'{task}.py', tmp_path)
    monkeypatch.chdir(tmp_path)
    task, deed = trial.random.choice(['detector', 'segmenter']), trial.random.choice(['remove', 'empty', 'cut'])
    at = trial.random.uniform(0, 3)
    done = threading.Event()

    def disturb():
        done.wait(at)
        for path in Path('data/shapes/images/training').glob('*.jpg'):
            data = path.read_bytes()
            path.unlink() if deed == 'remove' else path.write_bytes(b'' if deed == 'empty' else data[: len(data) // 9])

    thread = threading.Thread(target=disturb)
    options = {
        'train_dataloader.num_workers': workers,
        'train_dataloader.persistent_workers': workers > 0,
        **({'train_cfg.max_iters': 40} if task == 'segmenter' else {'train_cfg.max_epochs': 10}),
    }
    said = ''
    thread.start()
    try:
        train('run', task, **options)
    except UsageError as error:
        said = str(error)
    done.set()
    thread.join()
    trial.note(task=str(task), deed=str(deed), at=round(at, 2), said=said)
    assert '\n' not in said and ('.jpg cannot be loaded' in said or 'has no samples' in said or not said)
    check_whole('run', trained=False)
    shutil.copytree(folder / 'data', tmp_path / 'data', dirs_exist_ok=True)
    train('run', task, **options)
    assert Path('run/iter_40.pth' if task == 'segmenter' else 'run/epoch_10.pth').exists()


def test_data_vanish_before_they_are_listed(tmp_path, monkeypatch):
    shutil.copytree('data', tmp_path / 'data')
    shutil.copy('segmenter.py', tmp_path)
    monkeypatch.chdir(tmp_path)
    images = list(Path('data/shapes/images/training').glob('*.jpg'))
    monkeypatch.setattr(launch, 'ensure_shapes', lambda: [path.unlink() for path in images])
    with pytest.raises(UsageError, match='segmenter.py cannot be run .a data set has no samples'):
        train('run', 'segmenter')
