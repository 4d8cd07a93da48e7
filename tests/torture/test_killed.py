"""Killed at any moment, and started again by the same command."""
import signal
import subprocess
import sys
import time

import pytest

from mmsoft.datasets.shapes import ensure_shapes

SIGNALS = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
SHAPES = dict(train=60, val=20, portraits=48, size=64, portrait_size=32)
GENERATE = '''
from mmsoft.datasets.shapes import ensure_shapes
print('ready', flush=True)
ensure_shapes('shapes', {})
'''.format(', '.join(f'{name}={value}' for name, value in SHAPES.items()))


@pytest.fixture(scope='module')
def shapes(tmp_path_factory):
    """The files of a data set that nothing happened to, and how long it took to write them."""
    start = time.time()
    root = ensure_shapes(tmp_path_factory.mktemp('whole') / 'shapes', **SHAPES)
    return contents(root), time.time() - start


def contents(root):
    return {path.relative_to(root): path.read_bytes() for path in root.rglob('*') if path.is_file()}


@pytest.mark.rounds(2, 30)
def test_data_generation(trial, shapes, tmp_path):
    """Generation of the data set, killed and repeated."""
    whole, seconds = shapes
    process = subprocess.Popen([sys.executable, '-c', GENERATE], cwd=tmp_path, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b'ready\n'
    delay, number = trial.random.uniform(0, seconds), trial.random.choice(SIGNALS)
    time.sleep(delay)
    process.send_signal(number)
    process.communicate(timeout=60)
    trial.note(signal=signal.Signals(number).name, delay=round(delay, 3), code=process.returncode)
    assert contents(ensure_shapes(tmp_path / 'shapes', **SHAPES)) == whole


def test_data_generation_between_two_files(tmp_path):
    """Killed while the very first file was written."""
    (tmp_path / '.lock').touch()
    (tmp_path / '.shapes.json.17.partial').write_bytes(b'{"generator": "mms')
    ensure_shapes(tmp_path, train=1, val=1, portraits=24, size=64, portrait_size=32)
    assert not list(tmp_path.glob('*.partial'))
