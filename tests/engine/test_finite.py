"""Training ends with the first loss that is not a number."""
from types import SimpleNamespace

import pytest
import torch

from mmsoft.engine import FiniteTrainingHook
from mmsoft.utils import UsageError

RUNNER = SimpleNamespace(iter=41)
SAMPLES = dict(data_samples=[SimpleNamespace(img_path='a.jpg'), SimpleNamespace()])


def losses(**values):
    return {name: torch.tensor(value) for name, value in values.items()}


@pytest.mark.parametrize('value', ['nan', 'inf', '-inf'])
def test_loss(value):
    outputs = losses(loss=float(value), loss_cls=1., loss_bbox=float(value), acc=0.5)
    with pytest.raises(UsageError, match=f'loss is {value}, loss_bbox is {value} in iteration 42, on a.jpg, [?];'):
        FiniteTrainingHook().after_train_iter(RUNNER, 0, SAMPLES, outputs)


@pytest.mark.parametrize('outputs', [losses(loss=3e38), {}, None])
def test_finite(outputs):
    FiniteTrainingHook().after_train_iter(RUNNER, 0, SAMPLES, outputs)


def test_weights():
    weights = dict(count=torch.tensor(3), good=torch.ones(2), bad=torch.tensor([1., float('nan')]))
    with pytest.raises(UsageError, match='^bad holds NaN or infinity after iteration 42, and no checkpoint'):
        FiniteTrainingHook().before_save_checkpoint(RUNNER, dict(state_dict=weights))
    FiniteTrainingHook().before_save_checkpoint(RUNNER, dict(state_dict=dict(good=torch.ones(2))))
