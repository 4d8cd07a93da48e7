import pytest
import torch

from mmsoft.analysis.gpu_count import Count, count, count_network
from mmsoft.ops import inverse_product

META = dict(device='meta')


def total(by_file):
    return sum(by_file.values(), Count())


def test_products_are_counted_as_arithmetic_has_it():
    a, b = torch.zeros(2, 3, 5, **META), torch.zeros(2, 5, 7, **META)
    found = total(count(lambda: (a @ b).transpose(1, 2)))
    assert found == Count(launches=1, flops=2 * 2 * 3 * 5 * 7, bytes=4 * (2 * 3 * 5 + 2 * 5 * 7 + 2 * 3 * 7), waits=0)


def test_factorizations_are_counted():
    matrix = torch.zeros(2, 6, 6, **META)
    assert total(count(torch.linalg.cholesky_ex, matrix)).flops == 2 * 6**3 / 3
    solve = total(count(lambda: torch.linalg.solve_triangular(matrix, matrix[..., :4], upper=False)))
    assert solve.flops == 2 * 6 * 6 * 4


@pytest.mark.parametrize('read, waits', [
    (lambda x: torch.zeros(3, 4).to(x.device), 1),
    (lambda x: x[:, torch.arange(2, device='meta')], 0),
    (lambda x: x.double(), 0),
])
def test_waiting_for_the_device_is_counted(read, waits):
    assert total(count(read, torch.zeros(3, 4, **META))).waits == waits


@pytest.mark.parametrize(
    'read', [lambda x: x.sum().item(), lambda x: x.cpu(), lambda x: x[x > 0], lambda x: bool((x > 0).all())])
def test_waiting_for_a_number_is_seen_before_it_fails(read):
    from mmsoft.analysis.gpu_count import CountingMode
    with CountingMode() as mode, pytest.raises((RuntimeError, NotImplementedError)):
        read(torch.zeros(3, 4, **META))
    assert mode.total.waits == 1


def test_the_inverse_costs_a_tenth_of_newtons_steps_at_most():
    """At 800×1344 Small has matrices of 1050² in 2, 3 · 4 and 7 · 10 heads: 7.8 TFLOP by the iteration."""
    m, flops, newton = 1050, 0, 84 * 40 * 2 * 1050**3
    for blocks, heads in ((1, 2), (3, 4), (7, 10)):
        matrix, y, alpha = (torch.zeros(1, heads, *shape, **META) for shape in ((m, m), (m, 32), (1, 1)))
        with torch.no_grad():
            found = total(count(inverse_product, matrix, y, alpha))
        assert found.waits == 0
        flops += blocks * found.flops
    assert 0.01 * newton < flops <= 0.1 * newton


@pytest.mark.parametrize('backward', [False, True], ids=['forward', 'backward'])
@pytest.mark.parametrize('model', ['soft_small', 'soft_norm_small'])
def test_nothing_waits(model, backward):
    by_file = count_network(model, (512, 512), 2, backward)
    assert total(by_file).waits == 0
    assert by_file['ops/fused.py'].flops > 0
