"""Two threads at most, as more only get in each other's way on small tensors, and a seed before each test."""

import functools
import gc
import os
import random
import shutil
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from filelock import FileLock


def pytest_configure(config):
    """Prepares, unless this process only starts others, with `-n`."""
    if not config.getoption('numprocesses', None):
        prepare()


def prepare():
    import torch

    torch.set_num_threads(1 if 'PYTEST_XDIST_WORKER' in os.environ else min(2, torch.get_num_threads()))
    os.environ.setdefault('OMP_NUM_THREADS', str(torch.get_num_threads()))  # of the commands that tests start
    with warnings.catch_warnings(record=True):  # torch has one here that passes pytest's filters
        import mmengine.optim  # noqa: F401
        from mmengine.config import config, utils
        from mmengine.dataset import base_dataset

    # Of each training and each parsed config: the layout of a text that nobody reads takes half a second, and so does
    # it to collect the names of a library's configs, which do not change, from a hundred files.
    config.FormatCode = lambda text, **_: (text, True)
    utils.load = functools.cache(utils.load)
    config.is_installed = functools.cache(config.is_installed)
    base_dataset.gc = SimpleNamespace(collect=int)  # half a second for each data set, among so many modules


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items):
    import torch

    for item in items:
        if 'trial' in item.fixturenames:  # a round of the campaign, tests/torture
            item.add_marker(pytest.mark.slow)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker('cuda'):
                item.add_marker(pytest.mark.skip(reason='no GPU'))


def pytest_collection_finish():
    """What was imported is never freed; without this, Python would look through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def safe_loading():
    """Which chooses the averaged weights of a file; mmengine by itself reads the others."""
    from mmsoft.checkpoint.safe_loading import use_safe_loading

    use_safe_loading()
    yield
    use_safe_loading(False)


@pytest.fixture(autouse=True)
def seed():
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope='session')
def once(tmp_path_factory):
    """``once(name, make)``: a folder that ``make(folder)`` fills once, for all workers of a run."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if 'PYTEST_XDIST_WORKER' in os.environ else base

    def once(name, make):
        folder, made = base / name, base / f'{name}.made'
        with FileLock(base / f'{name}.lock'):
            if not made.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                made.touch()
        return folder

    return once


@pytest.fixture(scope='session')
def small_shapes(once):
    """A small synthetic shapes data set, for all tests: copy it."""
    from trainings import SHAPES

    from mmsoft.datasets.shapes import ensure_shapes

    return once('shapes', lambda folder: ensure_shapes(folder / 'shapes', **SHAPES)) / 'shapes'


@pytest.fixture(scope='module')
def tiny_model(tmp_path_factory):
    """``tiny_model(name, **options)``: files of a config's tiny version and of random weights for it, written once."""
    from tiny_models import write_tiny

    return functools.cache(lambda name, **options: write_tiny(name, tmp_path_factory.mktemp(name), **options))


@pytest.fixture(scope='module')
def folder(tmp_path_factory, small_shapes):
    """A folder to train in: a small data set, and the configs of tests/torture/trainings.py."""
    from trainings import project

    return project(tmp_path_factory.mktemp('project'), small_shapes)


@pytest.fixture
def inside(folder, monkeypatch):
    """Runs a test in ``folder``, on one thread: sums that several share come in any order."""
    import torch
    from mmengine.config import Config
    from trainings import forget_runs

    monkeypatch.chdir(folder)
    forget_runs()
    monkeypatch.setattr(Config, 'pretty_text', '')  # takes a second of every checkpoint
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
