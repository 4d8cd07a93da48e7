"""Workers: their allocators, what they time, and what they say when they end."""

import io
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks import worker
from benchmarks.worker import ALLOCATORS, Case, measure_all


@pytest.mark.parametrize('compiled', [False, True])
def test_a_first_run_is_not_timed(monkeypatch, compiled):
    """It pays for memory's pages and, compiled, for compilation, whose memory is not the network's."""
    clock, seen = [0.0], set()

    class Network(nn.Module):
        def forward(self, image):
            clock[0] += 1.0 if image.shape in seen else 100.0
            seen.add(image.shape)
            return [image]

    monkeypatch.setattr(worker, 'build_contender', lambda name: Network())
    monkeypatch.setattr(worker, 'fold_norms', lambda network: network)
    monkeypatch.setattr(worker, 'timer', lambda: clock[0])
    monkeypatch.setattr(torch, 'compile', lambda network, dynamic: network)
    monkeypatch.setattr(worker, 'with_peak', lambda run, device: (run(), len(seen)))
    assert worker.measure(Case('any', 96, 96, False, compile=compiled)) == dict(seconds=1.0, memory=2 - compiled)
    assert ((1, 3, 64, 64) in seen) != compiled  # a graph of another size would have dynamic ones
    assert clock[0] == (1.0 + 1.0 + 100.0 if compiled else 100.0 + 100.0 + 1.0)


@pytest.mark.parametrize(
    'dtype, backward', [('float32', False), ('float32', True), ('bfloat16', False), ('bfloat16', True), ('tf32', False)]
)
def test_a_case_is_measured_as_it_says(monkeypatch, dtype, backward):
    clock, seen, folded, threads = [0.0], [], [], []

    class Network(nn.Linear):
        def forward(self, image):
            clock[0] += 0.02
            out = super().forward(image[:, :1, 0, 0])
            states = self.training, torch.is_grad_enabled(), self.weight.grad, torch.backends.cuda.matmul.allow_tf32
            seen.append((tuple(image.shape), out.dtype, *states))
            return [out]

    network = Network(1, 1)
    monkeypatch.setattr(worker, 'build_contender', lambda name: network)
    monkeypatch.setattr(worker, 'fold_norms', lambda one: folded.append(one) or one)
    monkeypatch.setattr(worker, 'timer', lambda: clock[0])
    monkeypatch.setattr(torch, 'set_num_threads', threads.append)
    learned = []
    network.weight.register_hook(learned.append)
    found = worker.measure(Case('any', 96, 128, backward, dtype=dtype, threads=3, batch=2))
    assert found['seconds'] == pytest.approx(0.02) and threads == [3] and len(folded) == (not backward)
    half = torch.bfloat16 if dtype == 'bfloat16' else torch.float32
    assert {*seen[1:]} == {((2, 3, 96, 128), half, backward, backward, None, dtype == 'tf32')}
    assert len(learned) == len(seen) * backward
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def test_a_worker_that_ends_or_cannot_says_so(monkeypatch):
    lines = ['{"seconds": 1.0, "memory": 5}', '-9', 'null', '1', 'null']
    process = SimpleNamespace(stdin=io.StringIO(), stdout=iter(lines))
    monkeypatch.setattr(worker, 'start_worker', lambda allocator: process)
    first, second = measure_all([Case('resnet50', 32, 32, False)] * 2, 'glibc')
    assert first == dict(seconds=1.0, memory=5, note='') and 'out of memory' in second['note']
    with pytest.raises(RuntimeError, match='worker of resnet50 failed'):
        measure_all([Case('resnet50', 32, 32, False)], 'glibc')
    assert len(process.stdin.getvalue().splitlines()) == 2


@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='glibc is of Linux')
def test_the_second_allocator_keeps_pages(monkeypatch):
    program = (
        'import resource, torch\n'
        'for step in range(25):\n'
        '    if step == 16: before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n'  # the heap has grown
        '    torch.ones(2**24)\n'
        'print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)'
    )
    faults = [
        int(subprocess.check_output([sys.executable, '-c', program], env=dict(env))) for env in ALLOCATORS.values()
    ]
    assert 3 * faults[1] < faults[0]  # with huge pages, too


@pytest.mark.parametrize('allocator', ALLOCATORS)
def test_a_worker_has_the_settings_of_its_allocator_alone(monkeypatch, allocator):
    monkeypatch.setenv('MALLOC_ARENA_MAX', '1')
    monkeypatch.setattr(worker.subprocess, 'Popen', lambda command, env, **options: env)
    env = worker.start_worker.__wrapped__(allocator)
    assert {name: value for name, value in env.items() if name.startswith('MALLOC_')} == ALLOCATORS[allocator]


def test_memory_is_what_a_call_takes_at_most():
    kept = torch.ones(2**26)[: 2**25].clone()  # no part of it, and what was free before is not, either
    _, peak = worker.with_peak(lambda: torch.ones(2**24).sum())
    assert np.isnan(peak) or (0.98 < peak / (4 * 2**24) < 1.5 and len(kept))
