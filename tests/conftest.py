"""Two threads at most, as more only get in each other's way on small tensors, and a seed before each test."""

import os
import random
import warnings

import numpy as np
import pytest
import torch

torch.set_num_threads(1 if 'PYTEST_XDIST_WORKER' in os.environ else min(2, torch.get_num_threads()))
os.environ.setdefault('OMP_NUM_THREADS', str(torch.get_num_threads()))  # of the commands that tests start

with warnings.catch_warnings(record=True):  # torch has one here that passes pytest's filters
    import mmengine.optim  # noqa: F401


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items):
    for item in items:
        if 'trial' in item.fixturenames:  # a round of the campaign, tests/torture
            item.add_marker(pytest.mark.slow)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker('cuda'):
                item.add_marker(pytest.mark.skip(reason='no GPU'))


@pytest.fixture(autouse=True)
def seed():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
