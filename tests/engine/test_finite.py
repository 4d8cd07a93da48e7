"""Training ends with the first loss that is not a number."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.hooks import CheckpointHook, EMAHook, LoggerHook, RuntimeInfoHook
from mmengine.runner import get_priority
from processes import in_two_processes

from mmsoft.engine.checkpoints import FiniteTrainingHook
from mmsoft.utils import UsageError

RUNNER = SimpleNamespace(iter=41)
SAMPLES = dict(data_samples=[SimpleNamespace(img_path='a.jpg'), SimpleNamespace()])


def losses(**values):
    return {name: torch.tensor(value) for name, value in values.items()}


@pytest.mark.parametrize('value', ['nan', 'inf', '-inf'])
def test_loss(value):
    wrong = ('loss', 'loss_bbox', 'decode.loss_ce')
    outputs = losses(loss_cls=1.0, acc=float(value), **dict.fromkeys(wrong, float(value)))
    told = ', '.join(f'{name} is {value}' for name in wrong)
    with pytest.raises(UsageError, match=f'{told} in iteration 42, on a.jpg, [?];'):
        FiniteTrainingHook().after_train_iter(RUNNER, 0, SAMPLES, outputs)


def test_loss_of_several_branches():
    """As in mmdet's semi-supervised detectors."""
    samples = dict(
        data_samples=dict(sup=[SimpleNamespace(img_path='a.jpg')], unsup=[SimpleNamespace(img_path='b.jpg')])
    )
    with pytest.raises(UsageError, match='in iteration 42, on a.jpg, b.jpg;'):
        FiniteTrainingHook().after_train_iter(RUNNER, 0, samples, losses(loss=float('nan')))


@pytest.mark.parametrize('outputs', [losses(loss=3e38), dict(loss=1.0), {}, None])
def test_finite(outputs):
    FiniteTrainingHook().after_train_iter(RUNNER, 0, SAMPLES, outputs)


def test_the_loss_is_looked_at_before_anything_is_made_of_it():
    first, own, *others = (
        get_priority(hook.priority)
        for hook in (RuntimeInfoHook, FiniteTrainingHook, EMAHook, LoggerHook, CheckpointHook)
    )
    assert first < own < min(others)


def test_weights():
    weights = dict(count=torch.tensor(3), good=torch.ones(2), bad=torch.tensor([1.0, float('nan')]))
    with pytest.raises(
        UsageError, match='^bad contains NaN or infinity after iteration 42, so no checkpoint is written'
    ):
        FiniteTrainingHook().before_save_checkpoint(RUNNER, dict(state_dict=weights))
    FiniteTrainingHook().before_save_checkpoint(RUNNER, dict(state_dict=dict(good=torch.ones(2))))


def test_parts_of_weights():
    """FSDP's ShardedTensor, a tensor for which torch.isfinite is not defined."""
    shard, empty = SimpleNamespace(tensor=torch.full((2,), float('inf'))), SimpleNamespace(local_shards=list)
    FiniteTrainingHook().before_save_checkpoint(RUNNER, dict(state_dict=dict(weight=empty)))
    weights = dict(empty=empty, weight=SimpleNamespace(local_shards=lambda: [shard]))
    with pytest.raises(UsageError, match='^weight contains NaN or infinity'):
        FiniteTrainingHook().before_save_checkpoint(RUNNER, dict(state_dict=weights))


def test_what_is_no_tensor():
    """A module's get_extra_state may return anything."""
    weights = {'good': torch.ones(2), 'part._extra_state': dict(count=1), 'other._extra_state': None}
    FiniteTrainingHook().before_save_checkpoint(RUNNER, dict(state_dict=weights))


def _one_of_two(rank):
    hook = FiniteTrainingHook()
    hook.after_train_iter(RUNNER, 0, SAMPLES, losses(loss=1.0))
    with pytest.raises(UsageError) as info:
        hook.after_train_iter(RUNNER, 0, SAMPLES, losses(loss=float('nan') if rank else 1.0))
    return str(info.value)


def test_all_processes_end(tmp_path):
    """One that raises alone leaves the others waiting for its gradients."""
    found = in_two_processes(tmp_path, _one_of_two)
    assert found[0].startswith('The loss is not finite in iteration 42, in another process;')
    assert found[1].startswith('loss is nan in iteration 42, on a.jpg')
