"""Work on several cores: the same results, nobody else's settings, forked processes."""
import gc
import multiprocessing
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from mmsoft.ops.cores import _pool, side_by_side
from mmsoft.ops.gaussian import gaussian_kernel
from mmsoft.ops.inverse import inverse_product
from mmsoft.ops.soft import soft_alpha


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def problem(groups=5, m=520):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(groups, m, 8, generator=generator)
    return gaussian_kernel(tokens, ridge=0.01), torch.randn(groups, m, 5, generator=generator)


def product(matrix, y):
    return inverse_product(matrix, y, soft_alpha(matrix.detach(), 0.01))


def test_several_cores_find_the_dense_result_and_gradients(two_threads):
    matrix, y = (t.requires_grad_() for t in problem())
    out = product(matrix, y)
    dense, columns = (t.detach().double().requires_grad_() for t in (matrix, y))
    expected = torch.cholesky_solve(columns, torch.linalg.cholesky(dense))
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=2e-4 * expected.abs().max().item())
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    out.backward(grad)
    expected.backward(grad.double())
    for ours, theirs in ((y, columns), (matrix, dense)):
        found, right = (t.grad.double() if t is y or t is columns else t.grad.double() + t.grad.double().mT
                        for t in (ours, theirs))
        torch.testing.assert_close(found, right, rtol=0, atol=1e-3 * right.abs().max().item())


@pytest.mark.parametrize('mode', [torch.inference_mode, torch.no_grad])
def test_without_gradients(two_threads, mode):
    with mode():
        matrix, y = problem()
        alone = torch.cat([product(matrix[i:i + 1], y[i:i + 1]) for i in range(len(y))])
        torch.testing.assert_close(product(matrix, y), alone, rtol=0, atol=1e-5 * alone.abs().max().item())


def test_others_keep_their_number_of_threads(two_threads):
    inside = side_by_side(lambda _: torch.get_num_threads(), range(2))
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert (inside, torch.get_num_threads(), seen) == ([1, 1], 2, [2])


def test_an_error_arrives(two_threads):
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda i: 1 / i, range(2))

def test_interrupted_while_its_threads_begin(two_threads, monkeypatch):
    submit = ThreadPoolExecutor.submit
    _pool.cache_clear()

    def once(pool, *arguments):
        if pool._threads:
            raise KeyboardInterrupt
        return submit(pool, *arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ThreadPoolExecutor, 'submit', once)
        side_by_side(str, range(2))
    for _ in range(100):
        gc.collect()
        waiting = [thread for thread in threading.enumerate() if thread.name.startswith('mmsoft')]
        if not waiting:
            break
        time.sleep(0.1)
    assert not waiting
    assert side_by_side(str, range(2)) == ['0', '1']


def test_counters_and_tracers_see_the_work(two_threads):
    counting = pytest.importorskip('torch.utils.flop_counter', reason='torch 2.0 has none')
    matrix, y = problem()
    counts = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        with counting.FlopCounterMode(display=False) as counter:
            product(matrix, y)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 2 * y.numel() * len(matrix[0])
    traced = torch.jit.trace(product, (matrix, y), check_trace=False)
    torch.testing.assert_close(traced(matrix, 2 * y), 2 * product(matrix, y), rtol=1e-4, atol=1e-4)


def _in_child(queue):
    queue.put(side_by_side(str, range(2)))


@pytest.mark.skipif('fork' not in multiprocessing.get_all_start_methods(), reason='no fork on this system')
def test_a_forked_process_has_workers_of_its_own(two_threads):
    side_by_side(str, range(2))
    context = multiprocessing.get_context('fork')
    queue = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(queue, ))
    child.start()
    child.join(30)
    alive = child.is_alive()
    child.kill()
    assert not alive and not queue.empty()
    assert queue.get() == ['0', '1']


def test_when_the_interpreter_ends():
    program = ('import atexit, torch; torch.set_num_threads(2); from mmsoft.ops.cores import side_by_side; '
               'side_by_side(str, range(2)); atexit.register(lambda: print(side_by_side(str, range(2))))')
    run = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, timeout=60)
    assert run.stdout == "['0', '1']\n"
