"""Shared fixtures."""

import pytest
import torch
from mmengine.registry import init_default_scope


@pytest.fixture(autouse=True)
def scope():
    init_default_scope('mmpretrain')
    torch.manual_seed(0)
