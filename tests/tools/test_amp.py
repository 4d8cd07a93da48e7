"""--amp: mmengine's wrapper for half precision."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from mmsoft.apis import launch

CONFIG = str(Path(__file__).parents[2] / 'configs/retinanet_soft_nano_shapes.py')
SCALED = dict(type='AmpOptimWrapper', loss_scale='dynamic')


@pytest.mark.parametrize(
    'given, expected',
    [
        ({}, SCALED),
        (dict(dtype='bfloat16'), dict(SCALED, dtype='bfloat16')),
        (dict(type='AmpOptimWrapper', loss_scale=512.0), dict(SCALED, loss_scale=512.0)),
    ],
    ids=['float16', 'bfloat16', 'own scale'],
)
def test_losses_are_scaled_unless_the_config_says_how(monkeypatch, given, expected):
    built = []
    monkeypatch.setattr(launch, 'build', lambda cfg, *_: built.append(cfg) or SimpleNamespace(train=lambda: None))
    options = {f'optim_wrapper.{key}': value for key, value in given.items()}
    launch.train(CONFIG, amp=True, cfg_options=options)
    assert {key: built[0].optim_wrapper.get(key) for key in expected} == expected
