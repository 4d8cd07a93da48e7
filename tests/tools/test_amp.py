"""--amp: mmengine's wrapper for half precision."""

import pytest
import torch
from mmengine.config import Config

from mmsoft.apis.launch import enable_amp
from mmsoft.utils import UsageError

SCALED = dict(type='AmpOptimWrapper', loss_scale='dynamic')


@pytest.mark.parametrize(
    'given, expected',
    [
        ({}, SCALED),
        (dict(type='OptimWrapper', dtype='bfloat16'), dict(SCALED, dtype='bfloat16')),
        (dict(type='AmpOptimWrapper', loss_scale=512.0), dict(SCALED, loss_scale=512.0)),
    ],
    ids=['float16', 'bfloat16', 'own scale'],
)
def test_losses_are_scaled_unless_the_config_says_how(monkeypatch, given, expected):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    cfg = Config(dict(optim_wrapper=given))
    enable_amp(cfg)
    assert cfg.optim_wrapper == expected


def test_without_a_gpu_it_is_one_sentence(monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    with pytest.raises(UsageError, match='--amp needs a GPU'):
        enable_amp(Config(dict(optim_wrapper={})))
