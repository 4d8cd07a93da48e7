import dense
import pytest
import torch
from oracles import error, shape_id, tokens, value_and_grads

from mmsoft.ops import gaussian_kernel, inverse_product, newton_inverse
from mmsoft.ops.soft import soft_alpha

# batch, heads, m, c
SHAPES = [(1, 1, 1, 1), (1, 1, 2, 3), (3, 2, 9, 4), (1, 11, 16, 32), (2, 1, 65, 8)]
# spread of the tokens: identical, nearly identical, as in a network, far apart
SPREADS = [0.0, 0.1, 1.0, 3.0]


def problem(shape, spread=1.0, ridge=0.01, dtype=torch.float64):
    """Kernel matrix with SOFT's ridge, thin matrix and SOFT's scale; identical tokens give a matrix of ones."""
    batch, heads, m, c = shape
    b = tokens(batch, heads, m, 32, spread=spread)
    kernel = gaussian_kernel(b, b)
    y = tokens(batch, heads, m, c, seed=1)
    return tuple(
        t.to(dtype) for t in (kernel + ridge * torch.eye(m).double(), y, soft_alpha(kernel.sum(-1, keepdim=True)))
    )


def by_newton(alpha, iterations=20):
    return lambda matrix, y: dense.newton_inverse(matrix, alpha.to(matrix), iterations) @ y


def by(alpha, iterations=20):
    return lambda matrix, y: inverse_product(matrix, y, alpha.to(matrix), iterations)


@pytest.mark.parametrize('iterations', [1, 5, 20])
@pytest.mark.parametrize('spread', SPREADS)
def test_iteration_equals_its_closed_form(spread, iterations):
    matrix, _, alpha = problem((2, 3, 12, 1), spread)
    eigenvalues, vectors = torch.linalg.eigh(matrix)
    gain = (1 - (1 - alpha.squeeze(-1) * eigenvalues**2) ** (2**iterations)) / eigenvalues
    want = newton_inverse(matrix, alpha, iterations)
    torch.testing.assert_close(vectors * gain.unsqueeze(-2) @ vectors.mT, want, rtol=1e-7, atol=1e-9)


def test_iteration_reaches_the_pseudoinverse():
    matrix, _, alpha = problem((2, 3, 12, 1), spread=1.0)
    torch.testing.assert_close(newton_inverse(matrix, alpha), torch.linalg.pinv(matrix))


def test_iteration_reaches_the_pseudoinverse_of_a_singular_matrix():
    ones = torch.ones(1, 8, 8).double()
    torch.testing.assert_close(newton_inverse(ones, torch.tensor(1 / 64.0)), torch.linalg.pinv(ones))


@pytest.mark.parametrize('spread', SPREADS)
@pytest.mark.parametrize('shape', SHAPES, ids=shape_id)
def test_product_equals_iteration_in_value_and_gradients(shape, spread, method):
    matrix, y, alpha = problem(shape, spread)
    want = value_and_grads(by_newton(alpha), matrix, y)
    assert max(error(value_and_grads(by(alpha), matrix, y), want)) < 1e-6


@pytest.mark.parametrize('spread', [0.3, 1.0, 3.0])
@pytest.mark.parametrize('m', [96, 97, 256, 384])
def test_automatic_choice_at_every_size(m, spread):
    """It depends on the number of tokens, and on whether a backward pass will follow."""
    matrix, y, alpha = problem((1, 2, m, 8), spread)
    value, *grads = value_and_grads(by_newton(alpha), matrix, y)
    assert max(error(value_and_grads(by(alpha), matrix, y), (value, *grads))) < 1e-5
    with torch.no_grad():
        assert max(error([by(alpha)(matrix, y)], [value])) < 1e-5


@pytest.mark.parametrize('iterations', [1, 2, 5, 10])
@pytest.mark.parametrize('shape', [(1, 1, 1, 1), (3, 2, 9, 4)], ids=shape_id)
def test_any_number_of_iterations(shape, iterations, method):
    for spread in SPREADS:
        matrix, y, alpha = problem(shape, spread)
        want = value_and_grads(by_newton(alpha, iterations), matrix, y)
        assert max(error(value_and_grads(by(alpha, iterations), matrix, y), want)) < 1e-6


@pytest.mark.parametrize('spread', SPREADS)
@pytest.mark.parametrize('shape', SHAPES, ids=shape_id)
def test_float32_product_is_within_the_iterations_noise(shape, spread, method):
    matrix, y, alpha = problem(shape, spread)
    want = value_and_grads(by_newton(alpha), matrix, y)
    noise = error(value_and_grads(by_newton(alpha), matrix, y, dtype=torch.float32), want)
    got = error(value_and_grads(by(alpha), matrix, y, dtype=torch.float32), want)
    assert all(e < 4 * n + 1e-4 for e, n in zip(got, noise))


@pytest.mark.parametrize('ridge', [0.0, 1e-7, 1e-4])
def test_ill_conditioned_matrix_stays_bounded(ridge, method):
    matrix, y, alpha = problem((1, 2, 48, 8), spread=0.3, ridge=ridge)
    want = by_newton(alpha)(matrix, y)
    noise = error([by_newton(alpha)(matrix.float(), y.float()).double()], [want])[0]
    got = by(alpha)(matrix.float(), y.float())
    assert error([got.double()], [want])[0] < 4 * noise + 1e-3


def test_matrix_of_ones(method):
    matrix, y = torch.ones(1, 2, 16, 16), torch.randn(1, 2, 16, 4)
    alpha = torch.full((1, 2, 1, 1), 1 / 256.0)
    torch.testing.assert_close(inverse_product(matrix, y, alpha), torch.linalg.pinv(matrix) @ y, rtol=1e-3, atol=1e-4)


def test_scale_at_the_border_of_convergence(method):
    """SOFT-Norm on a single bottleneck token starts at αλ² = 2, where the iteration falls to zero and stays there."""
    one = torch.ones(2, 1, 1)
    assert (inverse_product(one, one, torch.full((2, 1, 1), 2.0)) == 0).all()


def test_converged_and_unconverged_matrices_in_one_batch(method):
    spreads = (0.0, 1.0, 0.2, 3.0, 0.1)
    problems = [problem((1, 2, 16, 4), spread) for spread in spreads]
    matrix, y, alpha = (torch.cat(parts) for parts in zip(*problems))
    together = value_and_grads(by(alpha), matrix, y)
    assert max(error(together, value_and_grads(by_newton(alpha), matrix, y))) < 1e-6
    for i, (one_matrix, one_y, one_alpha) in enumerate(problems):
        torch.testing.assert_close(by(one_alpha)(one_matrix, one_y), together[0][i : i + 1], rtol=1e-7, atol=1e-9)


def test_non_contiguous_inputs(method):
    matrix, y, alpha = problem((3, 2, 9, 4))
    matrix, y = matrix.transpose(0, 1).contiguous().transpose(0, 1), y.mT.contiguous().mT
    want = value_and_grads(by_newton(alpha), matrix, y)
    assert max(error(value_and_grads(by(alpha), matrix, y), want)) < 1e-9


def test_one_scale_for_all_matrices(method):
    matrix, y, alpha = problem((3, 2, 9, 4))
    scale = alpha.amin().view(1, 1, 1, 1)
    torch.testing.assert_close(by(scale)(matrix, y), by_newton(scale)(matrix, y), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize('shape', [(1, 1, 1, 1), (1, 2, 4, 3), (2, 1, 6, 2)], ids=shape_id)
def test_gradcheck_where_converged(shape, method):
    matrix, y, alpha = problem(shape, spread=2.0)
    half = (0.5 * matrix).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda h, y: inverse_product(h + h.mT, y, alpha), (half, y.requires_grad_()), fast_mode=True
    )


@pytest.mark.parametrize('steps', [20, 21, 22, 30, 60])
def test_many_steps_at_the_border_of_convergence_do_not_overflow(steps):
    """The row sum of a pair that is far from all others is an eigenvalue, and αλ² is 2 up to rounding."""
    matrix, y = torch.eye(4).repeat(300, 1, 1), torch.ones(300, 4, 1)
    matrix[:, 0, 1] = matrix[:, 1, 0] = torch.logspace(-6, -2, 300)
    out = inverse_product(matrix, y, 2 / matrix.sum(-1).amax(-1)[:, None, None].square(), steps)
    assert out.abs().max() < 1.1
