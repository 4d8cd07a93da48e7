"""The inverse at the sizes of detection: spectra, hard and easy images together, memory, and what a GPU does."""

import math

import numpy as np
import pytest
import torch
from dense import gaussian_kernel, newton_inverse, soft_alpha, soft_norm_alpha
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.checkpoint import checkpoint

from mmsoft.ops import inverse_product
from mmsoft.ops.inverse import _SHIFT, _TERMS, _reflect, _reflection, _series, invert_

# Roughness of the landmarks' field and its amplitude, from one blank image to one whose tokens have little in common.
FIELDS = [(0.0, 0.0), (1.0, 0.3), (1.0, 1.0), (2.0, 3.0), (4.0, 3.0), (8.0, 5.0), (math.inf, 1.0), (math.inf, 5.0)]


def landmarks(side: int, roughness: float, amplitude: float) -> torch.Tensor:
    """Tokens (side², 32) of waves over a map, of ``roughness`` periods at most, or noise."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(side, side, 32, generator=generator, dtype=torch.float64)
    if math.isfinite(roughness):
        axis = torch.linspace(0, 1, side, dtype=torch.float64)
        y, x = torch.meshgrid(axis, axis, indexing='ij')
        fy, fx, phase = torch.rand(3, 32, generator=generator, dtype=torch.float64)
        noise = torch.sin(6.28 * (roughness * (fy * y[..., None] + fx * x[..., None]) + phase)) + 1e-3 * noise
    return (amplitude * noise / 32**0.5).flatten(0, 1)


def problems(side: int, variant: str):
    """Matrices (images, 1, m, m), columns in their range (images, 1, m, 32), and starting scales."""
    kernels = torch.stack([gaussian_kernel(x, x) for x in (landmarks(side, *field) for field in FIELDS)]).unsqueeze(1)
    generator = torch.Generator().manual_seed(1)
    y = kernels @ torch.randn(len(FIELDS), 1, side**2, 32, generator=generator, dtype=torch.float64)
    if variant == 'soft':
        return kernels + 0.01 * torch.eye(side**2), y, soft_alpha(kernels)
    return kernels, y, torch.stack([soft_norm_alpha(image) for image in kernels]).view(-1, 1, 1, 1)


def filtered(matrix, y, alpha):
    """20 steps on each eigenvalue: 1 - αλ², squared twenty times."""
    eigenvalues, vectors = torch.linalg.eigh(matrix)
    left = 1 - alpha.squeeze(-1) * eigenvalues**2
    for _ in range(20):
        left = left**2
    return vectors @ (((1 - left) / eigenvalues).unsqueeze(-1) * (vectors.transpose(-2, -1) @ y))


@pytest.mark.parametrize(
    'side, variant',
    [
        *((side, variant) for side in (13, 22) for variant in ('soft', 'soft_norm')),
        pytest.param(33, 'soft_norm', marks=pytest.mark.slow),
    ],
)
def test_smooth_and_rough_images_in_one_batch(side, variant):
    """In float32, value and gradients, each image by its own scale; up to 8 times the iteration's own rounding."""
    matrix, y, alpha = (t.float() for t in problems(side, variant))
    grad = y.flip(-1)
    want = products(filtered(matrix.double(), torch.cat([y, grad], -1).double(), alpha.double()))
    noise = distances(products(newton_inverse(matrix, alpha) @ torch.cat([y, grad], -1)), want)
    matrix.requires_grad_(), y.requires_grad_()
    out = inverse_product(matrix, y, alpha)
    got = distances((out.detach(), *torch.autograd.grad(out, (y, matrix), grad)), want)
    assert (got < 8 * noise + 1e-5).all(), (got, noise)
    with torch.no_grad():
        alone = torch.cat([inverse_product(*(t[i : i + 1] for t in (matrix, y, alpha))) for i in range(len(FIELDS))])
    assert (distances([alone], [out.detach()]) < 6 * noise[0] + 1e-5).all()


def products(columns):
    """Value, and gradients of y and of the matrix, from the filter of y and of the value's gradient."""
    z, dy = columns.chunk(2, dim=-1)
    return z, dy, -dy @ z.transpose(-2, -1)


def distances(got, want):
    """Distance of tensors (rows) and images (columns), relative to what is wanted."""
    return torch.stack([(a - b).flatten(1).norm(dim=1) / b.flatten(1).norm(dim=1) for a, b in zip(got, want)])


@pytest.mark.parametrize('m', [1, 160, 161, 500])
def test_inverse_of_positive_matrices(m):
    root = torch.randn(2, m, m, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = root @ root.transpose(1, 2) + torch.eye(m)
    torch.testing.assert_close(invert_(matrix.clone()) @ matrix, torch.eye(m).double().expand(2, m, m))


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_any_number_of_steps(dtype):
    """Beyond some, no digit changes; 2 to the power of their number is no number of the dtype any more."""
    tokens = torch.randn(1, 130, 64, dtype=dtype, generator=torch.Generator().manual_seed(0))
    matrix = (-0.05 * (tokens.unsqueeze(2) - tokens.unsqueeze(1)).square().sum(-1)).exp()
    alpha = soft_alpha(matrix[:, None])[:, 0]
    for steps in (60, 10**6):
        torch.testing.assert_close(
            inverse_product(matrix, matrix, alpha, steps), torch.eye(130, dtype=dtype)[None], rtol=0, atol=1e-3
        )


@pytest.mark.parametrize('m', [1, 40, 300])
def test_nan_stays_in_its_image(m, method):
    matrix, y, alpha = torch.eye(m).repeat(2, 1, 1, 1), torch.ones(2, 1, m, 4), torch.ones(2, 1, 1, 1)
    matrix[0, 0, m // 2, m // 2] = math.nan
    out = inverse_product(matrix, y, alpha)
    assert out[0].isnan().all() and out[1].isfinite().all()


@pytest.mark.parametrize('images, m, c', [(0, 5, 4), (0, 300, 4), (2, 1, 7), (2, 5, 9)])
def test_empty_batches_and_wide_columns(images, m, c, method):
    matrix, y = torch.eye(m).repeat(images, 3, 1, 1).requires_grad_(), torch.ones(images, 3, m, c)
    out = inverse_product(matrix, y, torch.ones(images, 3, 1, 1))
    out.sum().backward()
    assert out.shape == y.shape and matrix.grad.shape == matrix.shape
    torch.testing.assert_close(out, y, rtol=1e-5, atol=1e-5)


def test_constant_rows_at_the_border_of_convergence_fall_to_zero():
    """Where all row sums are equal, αλ² = 2 on the constant vector alone, and only it goes to zero."""
    m = 128
    matrix = torch.eye(m) + 0.002 * torch.diag(torch.ones(m - 1), 1) + 0.002 * torch.diag(torch.ones(m - 1), -1)
    matrix[0, -1] = matrix[-1, 0] = 0.002
    y = torch.randn(1, m, 3, generator=torch.Generator().manual_seed(0)) + 1
    alpha = 2 / matrix.double().sum(-1).max().square().view(1, 1, 1)
    want = torch.linalg.solve(matrix.double(), (y - y.mean(1, keepdim=True)).double())
    got = inverse_product(matrix.double()[None], y.double(), alpha)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('sign', [1, -1])
def test_reflection_turns_a_vector_to_the_first_axis(sign):
    vector = torch.tensor([0.3, -2.0, 1.0, 5.0]).double().mul(sign).view(1, 4, 1)
    axis = _reflection(vector)
    matrix = _reflect(torch.eye(4).double()[None], axis)
    torch.testing.assert_close(matrix @ matrix.mT, torch.eye(4).double()[None])
    want = torch.tensor([-sign * vector.norm().item(), 0, 0, 0]).double().view(1, 4, 1)
    torch.testing.assert_close(matrix @ vector, want)


@pytest.mark.parametrize('iterations', [16, 20, 30])
@pytest.mark.parametrize('dtype, tolerance', [(torch.float32, 4e-6), (torch.float64, 3e-12)])
def test_series_is_the_filter_on_the_whole_spectrum(dtype, tolerance, iterations):
    """Up to αλ² = 1.99; what is left of 2 is taken away apart from it."""
    steps = 2.0**iterations
    x = np.geomspace(1e-6, np.sqrt(1.99 * steps), 4000)
    stretch, center, coefficients = _series(iterations, _TERMS[dtype])
    mu = 1 / (x + _SHIFT)
    found = mu * np.polynomial.chebyshev.chebval(stretch * mu - center, coefficients)
    left = np.where(x * x < 0.5 * steps, np.log1p(-np.minimum(x * x / steps, 0.5)), np.log(np.abs(1 - x * x / steps)))
    want = -np.expm1(steps * left) / x
    assert np.abs(found - want).max() < tolerance


class Storages(TorchDispatchMode):
    """Remembers the storages that operations make besides the given ones, without holding them."""

    def __init__(self, *given):
        super().__init__()
        self.given = {t.untyped_storage()._cdata for t in given}
        self.made = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for t in tree_flatten(out)[0]:
            if isinstance(t, torch.Tensor):
                storage = t.untyped_storage()
                if storage._cdata in self.given:
                    continue
                self.made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return out

    def alive(self) -> int:
        return sum(size for reference, size in self.made.values() if not reference.expired())


def test_checkpointing_frees_the_factorization(method):
    m, c = 200, 4
    matrix = torch.eye(m).repeat(1, 2, 1, 1).requires_grad_()
    y, alpha = torch.ones(1, 2, m, c, requires_grad=True), torch.ones(1, 2, 1, 1)
    alive, grads = {}, {}
    for name, run in (
        ('plain', lambda f, *args: f(*args)),
        ('checkpoint', lambda f, *args: checkpoint(f, *args, use_reentrant=False)),
    ):
        with Storages(matrix, y, alpha) as storages:
            out = run(lambda matrix, y: inverse_product(matrix, y, alpha), matrix, y)
        alive[name] = storages.alive()
        grads[name] = torch.autograd.grad(out.square().sum(), (matrix, y))
    size = out.numel() * out.element_size()
    assert alive['checkpoint'] <= size
    assert 4 * matrix.numel() <= alive['plain'] < 1.1 * 4 * matrix.numel() + 8 * size
    torch.testing.assert_close(grads['checkpoint'], grads['plain'])


def test_gradient_of_the_columns_alone_takes_no_gradient_of_the_matrix():
    matrix, y = torch.eye(200).repeat(1, 1, 1, 1), torch.ones(1, 1, 200, 4, requires_grad=True)
    out = inverse_product(matrix, y, torch.ones(1, 1, 1, 1))
    with Cost() as cost:
        torch.autograd.grad(out.sum(), y)
    assert cost.flops == 28 * 2 * 200 * 200 * 4


class Cost(TorchDispatchMode):
    """Counts operations that are more than a view, FLOPs of products, and results in float64."""

    def __init__(self):
        super().__init__()
        self.launches, self.flops, self.wide = 0, 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.launches += not function.is_view
        self.wide += any(isinstance(t, torch.Tensor) and t.dtype == torch.float64 for t in tree_flatten(out)[0])
        if function.overloadpacket.__name__ in ('bmm', 'baddbmm', 'baddbmm_'):
            a, b = args[-2:]
            self.flops += 2 * a.numel() * b.size(-1)
        return out


def costs(m: int):
    """Of one head, forward and backward, on a device that cannot be asked for a value."""
    matrix = torch.empty(1, m, m, device='meta', requires_grad=True)
    y, alpha = (torch.empty(1, *shape, device='meta') for shape in ((m, 32), (1, 1)))
    with Cost() as forward:
        out = inverse_product(matrix, y, alpha)
    grad = torch.empty_like(out)
    with Cost() as backward:
        out.backward(grad)
    return forward, backward


@pytest.mark.skipif(not hasattr(torch, 'export'), reason='torch 2.0 lacks operators for tensors without memory')
def test_a_device_is_never_waited_for_and_does_a_25th_of_the_iterations_work():
    """Meta tensors hold no values: whatever reads one, to branch or to index, raises."""
    forward, backward = costs(1050)
    iteration = 20 * 2 * 2 * 1050**3
    assert forward.flops < iteration / 25 and backward.flops < iteration / 40
    assert forward.launches < 400 and backward.launches < 200
    assert not forward.wide and not backward.wide
