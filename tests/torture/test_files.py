"""Untrusted checkpoints, by every entry point: no code runs, nothing is overwritten, memory stays bounded."""

import os
import random
import re
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from damaged_checkpoints import Generator
from mmengine.registry import MODELS
from mmengine.runner import load_checkpoint
from published import to_published

from mmsoft.checkpoint import convert_checkpoint, load_pretrained, read_checkpoint, select_state_dict
from mmsoft.checkpoint.safe_loading import use_safe_loading
from mmsoft.datasets.shapes import ensure_shapes
from mmsoft.utils import UsageError

ROOT = Path(__file__).parents[2]
SIZES = dict(embed_dims=[16] * 4, num_heads=[1] * 4, depths=[1] * 4)
MEMORY = 512 * 2**20


def backbone():
    return MODELS.build(dict(type='mmsoft.SOFT', arch=SIZES))


def model():
    return torch.nn.ModuleDict(dict(backbone=backbone()))


def read(path, out):
    select_state_dict(read_checkpoint(path), path)


def init_cfg(path, out):
    load_pretrained(backbone(), str(path))


def by_the_host(path, out):
    load_checkpoint(model(), str(path), map_location='cpu')


def convert(path, out):
    convert_checkpoint(path, out)


ENTRIES = [read, init_cfg, by_the_host, convert]


@contextmanager
def bounded_memory():
    """Fails what takes more than 6 GiB of addresses on top, instead of ending the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 6 * 2**30, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def memory(key):
    """Bytes of a line of the process's status: VmRSS is what it has, VmHWM the most since the mark was taken back."""
    return 1024 * int(re.search(rf'{key}:\s+(\d+)', Path('/proc/self/status').read_text())[1])


@pytest.fixture(scope='module', autouse=True)
def safe_loading():
    use_safe_loading()
    yield
    use_safe_loading(False)


@pytest.fixture(scope='module')
def weights():
    torch.manual_seed(0)
    return {name: t.clone() for name, t in model().state_dict().items()}


@pytest.mark.filterwarnings('ignore')
@pytest.mark.rounds(2 * len(Generator.kinds()), 300)
def test_untrusted_files(trial, weights, tmp_path):
    """A checkpoint is cut, has bits flipped, holds other tensors, runs code, is a bomb or no file, at four entry points"""
    kinds = Generator.kinds()
    rng = random.Random(int(trial.random.integers(2**32)))
    names = to_published('soft', weights) if rng.random() < 0.4 else weights
    generator = Generator(names, tmp_path)
    path = generator.make(kinds[trial.round % len(kinds)], rng, trial.round)
    trial.note(file=path.name)
    for entry in ENTRIES:
        Path('/proc/self/clear_refs').write_text('5')
        before, out = memory('VmRSS'), tmp_path / f'{entry.__name__}.out.pth'
        files = set(tmp_path.rglob('*'))
        case = f'{path.name} through {entry.__name__}'
        with bounded_memory():
            try:
                entry(path, out)
            except (UsageError, FileNotFoundError) as error:
                assert str(error).isprintable() or isinstance(error, FileNotFoundError), f'{case}: {str(error)!r}'
                assert not out.exists(), case
            except Exception as error:
                raise AssertionError(f'{case}: {type(error).__name__}: {error}') from error
        assert not generator.canary.exists(), f'{case} ran code'
        bound = 2 * MEMORY + 2**30 if 'bytes_by_number' in path.name else MEMORY  # torch makes bytearrays of any length
        taken = memory('VmHWM') - before
        assert taken < bound, f'{case} took {taken / 2**20:.0f} MiB'
        assert set(tmp_path.rglob('*')) - files <= {out}, case


CONFIG = ROOT / 'configs/retinanet_soft_nano_shapes.py'
SEGMENTER = ROOT / 'configs/upernet_soft_nano_shapes.py'
CLASSIFIER = ROOT / 'configs/soft_tiny_in1k.py'
COMMANDS = {
    'DetInferencer': ['-c', f"from mmdet.apis import DetInferencer; DetInferencer('{CONFIG}', 'FILE', 'cpu')"],
    'tools/predict.py': [ROOT / 'tools/predict.py', CONFIG, 'FILE', ROOT / 'docs/images', '--out-dir', 'out'],
    'tools/train.py --resume': [ROOT / 'tools/train.py', CONFIG, '--resume', 'FILE'],
    'tools/test.py': [ROOT / 'tools/test.py', SEGMENTER, 'FILE'],
    'tools/convert_checkpoint.py': [ROOT / 'tools/convert_checkpoint.py', 'FILE', 'out.pth'],
    'init_model': ['-c', f"from mmseg.apis import init_model; init_model('{SEGMENTER}', 'FILE', 'cpu')"],
    'MMSegInferencer': [
        '-c',
        f"from mmseg.apis import MMSegInferencer; MMSegInferencer('{SEGMENTER}', 'FILE', device='cpu')",
    ],
    'get_model': ['-c', f"from mmpretrain import get_model; get_model('{CLASSIFIER}', 'FILE')"],
    'tools/train.py': [ROOT / 'tools/train.py', CONFIG, '--cfg-options', 'load_from=FILE'],
    'mim test': ['-m', 'mim', 'test', 'mmdet', CONFIG, '--checkpoint', 'FILE'],
}


@pytest.mark.rounds(1, 2 * len(COMMANDS))
def test_entry_points_of_processes(trial, weights, tmp_path, shapes):
    """A file that would run code, given to a tool, to an OpenMMLab inferencer in a fresh process, to mim"""
    name, command = list(COMMANDS.items())[trial.round % len(COMMANDS)]
    rng = random.Random(int(trial.random.integers(2**32)))
    generator = Generator(weights, tmp_path)
    kind = rng.choice(['calls', 'calls_by_hand', 'programs', 'packed'])
    path = generator.make(kind, rng, 0)
    trial.note(entry=name, file=path.name)
    before = set(shapes.iterdir())
    run = subprocess.run(
        [sys.executable, '-W', 'ignore', *(str(part).replace('FILE', str(path)) for part in command)],
        cwd=shapes,
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert not generator.canary.exists(), run.stderr
    said = run.stderr.strip().splitlines()
    assert run.returncode != 0 and path.name in run.stderr, run.stderr
    if name.startswith('tools/'):
        assert run.returncode == 2 and path.name in said[-1] and 'Traceback' not in run.stderr, run.stderr
        assert set(shapes.iterdir()) == before


@pytest.fixture(scope='module')
def shapes(tmp_path_factory):
    folder = tmp_path_factory.mktemp('project')
    ensure_shapes(folder / 'data/shapes', train=4, val=2, portraits=24, size=64, portrait_size=32)
    return folder
