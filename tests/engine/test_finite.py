"""Training ends with the first loss that is not a number."""

from multiprocessing import get_context
from types import SimpleNamespace

import pytest
import torch

from mmsoft.engine.checkpoints import FiniteTrainingHook
from mmsoft.utils import UsageError

RUNNER = SimpleNamespace(iter=41)
SAMPLES = dict(data_samples=[SimpleNamespace(img_path='a.jpg'), SimpleNamespace()])


def losses(**values):
    return {name: torch.tensor(value) for name, value in values.items()}


@pytest.mark.parametrize('value', ['nan', 'inf', '-inf'])
def test_loss(value):
    outputs = losses(loss=float(value), loss_cls=1.0, loss_bbox=float(value), acc=0.5)
    with pytest.raises(UsageError, match=f'loss is {value}, loss_bbox is {value} in iteration 42, on a.jpg, [?];'):
        FiniteTrainingHook().after_train_iter(RUNNER, 0, SAMPLES, outputs)


def test_loss_of_several_branches():
    """As in mmdet's semi-supervised detectors."""
    samples = dict(
        data_samples=dict(sup=[SimpleNamespace(img_path='a.jpg')], unsup=[SimpleNamespace(img_path='b.jpg')])
    )
    with pytest.raises(UsageError, match='in iteration 42, on a.jpg, b.jpg;'):
        FiniteTrainingHook().after_train_iter(RUNNER, 0, samples, losses(loss=float('nan')))


@pytest.mark.parametrize('outputs', [losses(loss=3e38), {}, None])
def test_finite(outputs):
    FiniteTrainingHook().after_train_iter(RUNNER, 0, SAMPLES, outputs)


def test_weights():
    weights = dict(count=torch.tensor(3), good=torch.ones(2), bad=torch.tensor([1.0, float('nan')]))
    with pytest.raises(UsageError, match='^bad contains NaN or infinity after iteration 42, and no checkpoint'):
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


def _one_of_two(rank, folder, said):
    torch.distributed.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2)
    hook = FiniteTrainingHook()
    hook.after_train_iter(RUNNER, 0, SAMPLES, losses(loss=1.0))
    try:
        hook.after_train_iter(RUNNER, 0, SAMPLES, losses(loss=float('nan') if rank else 1.0))
    except UsageError as error:
        said.put((rank, str(error)))


def test_all_processes_end(tmp_path):
    """One that raises alone leaves the others waiting for its gradients."""
    context = get_context('fork')
    said = context.Queue()
    processes = [context.Process(target=_one_of_two, args=(rank, tmp_path, said)) for rank in range(2)]
    for process in processes:
        process.start()
    found = dict(said.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    assert found[0].startswith('The loss is not finite in iteration 42, in another process;')
    assert found[1].startswith('loss is nan in iteration 42, on a.jpg')
