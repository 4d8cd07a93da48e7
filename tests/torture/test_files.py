"""Checkpoints of strangers, through every door: no code runs, nothing is overwritten, memory stays bounded."""
import random
import resource
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from damaged_checkpoints import Generator
from mmengine.registry import MODELS
from mmengine.runner import load_checkpoint

from mmsoft.checkpoint import convert_checkpoint, load_pretrained, read_checkpoint, select_state_dict, to_published
from mmsoft.utils import UsageError

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


DOORS = [read, init_cfg, by_the_host, convert]


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


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.fixture(scope='module')
def weights():
    torch.manual_seed(0)
    return {name: t.clone() for name, t in model().state_dict().items()}


@pytest.mark.filterwarnings('ignore')
@pytest.mark.rounds(2 * len(Generator.kinds()), 300)
def test_files_of_strangers(trial, weights, tmp_path):
    """A checkpoint is cut, has bits flipped, holds other tensors, runs code, is a bomb or no file, at four doors"""
    kinds = Generator.kinds()
    rng = random.Random(int(trial.random.integers(2**32)))
    names = to_published(weights)[1] if rng.random() < 0.4 else weights
    generator = Generator(names, tmp_path)
    path = generator.make(kinds[trial.round % len(kinds)], rng, trial.round)
    trial.note(file=path.name)
    for door in DOORS:
        before, out = peak(), tmp_path / f'{door.__name__}.out.pth'
        files = set(tmp_path.rglob('*'))
        case = f'{path.name} through {door.__name__}'
        with bounded_memory():
            try:
                door(path, out)
            except (UsageError, FileNotFoundError) as error:
                assert str(error).isprintable() or isinstance(error, FileNotFoundError), f'{case}: {str(error)!r}'
                assert not out.exists(), case
            except Exception as error:
                raise AssertionError(f'{case}: {type(error).__name__}: {error}') from error
        assert not generator.canary.exists(), f'{case} ran code'
        assert peak() - before < MEMORY, f'{case} took {(peak() - before) / 2**20:.0f} MiB'
        assert set(tmp_path.rglob('*')) - files <= {out}, case
