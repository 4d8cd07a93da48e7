"""What the papers' propositions say, held against our operators."""

import re
from collections import Counter

import pytest
import torch
from oracles import tokens
from torch.utils._python_dispatch import TorchDispatchMode

from mmsoft.attention import SimAAttention, Site
from mmsoft.backbones import SimADeiT
from mmsoft.layers.blocks import PreNormBlock
from mmsoft.ops import gaussian_kernel, gaussian_product, l1_attention, newton_inverse
from mmsoft.ops.soft import RIDGE, soft_alpha, soft_norm_alpha

# From identical tokens to tokens far apart.
SPREADS = [0.0, 0.1, 0.5, 1.0, 3.0]


def kernels(spread, n=12):
    """Gaussian kernels of two heads of one image."""
    return gaussian_kernel(tokens(1, 2, n, 32, spread=spread))


def spectral_norm(matrix):
    return torch.linalg.matrix_norm(matrix, 2)


@pytest.mark.parametrize('share', [0.01, 0.5, 0.9, 0.999])
def test_newton_converges_monotonically(share):
    """SOFT, Prop. 1: for 0 < α < 2 / λ₁², A Aₖ A goes to A and Aₖ to the pseudoinverse, nearer with every step."""
    matrix = kernels(spread=1.0)[0, 0]
    alpha = share * 2 / spectral_norm(matrix) ** 2
    pseudoinverse = torch.linalg.pinv(matrix)
    steps = [newton_inverse(matrix, alpha, k) for k in range(30)]
    for errors in (
        [spectral_norm(matrix @ each @ matrix - matrix) for each in steps],
        [spectral_norm(each - pseudoinverse) for each in steps],
    ):
        assert errors[0] > 0.1 and errors[-1] < 1e-9
        assert all(after < before for before, after in zip(errors, errors[1:]) if before > 1e-9)


def test_newton_diverges_beyond_the_bound():
    matrix = kernels(spread=1.0)[0, 0]
    inverse = newton_inverse(matrix, 2.2 / spectral_norm(matrix) ** 2, 8)
    assert spectral_norm(matrix @ inverse @ matrix - matrix) > 1e6


@pytest.mark.parametrize('spread', SPREADS)
def test_networks_start_within_the_bound(spread):
    kernel = kernels(spread)
    ridged = kernel + RIDGE * torch.eye(kernel.size(-1)).double()
    for matrix, alpha in (
        (ridged, soft_alpha(kernel.sum(-1, True))),
        (kernel, soft_norm_alpha(kernel, kernel.sum(-1, True))),
    ):
        assert (alpha.squeeze(-1).squeeze(-1) * spectral_norm(matrix) ** 2 < 2 - 1e-9).all()


@pytest.mark.parametrize('spread', SPREADS)
def test_normalised_kernels_have_eigenvalues_between_0_and_1(spread):
    """SOFT-Norm, Prop. 3: of D⁻¹A for positive semidefinite A with positive entries, D its row sums."""
    kernel = kernels(spread)
    assert (kernel > 0).all()
    eigenvalues = torch.linalg.eigvals(kernel / kernel.sum(-1, keepdim=True))
    assert eigenvalues.imag.abs().max() < 1e-6
    assert eigenvalues.real.min() > -1e-10
    assert torch.allclose(eigenvalues.real.amax(-1), torch.ones(1, 2).double())


@pytest.mark.parametrize('spread', SPREADS)
def test_spectral_norm_of_a_kernel_is_its_size_at_most(spread):
    """SOFT-Norm, Prop. 4: the trace of S is n, so λ₁ ≤ n; identical tokens attain it."""
    kernel = kernels(spread)
    n = kernel.size(-1)
    assert torch.equal(kernel.diagonal(dim1=-2, dim2=-1).sum(-1), torch.full((1, 2), float(n)).double())
    assert torch.linalg.eigvalsh(kernel).min() > -1e-10
    assert (spectral_norm(kernel) <= n + 1e-9).all()
    if spread == 0:
        assert torch.allclose(spectral_norm(kernel), torch.full((1, 2), float(n)).double())


def test_spectral_norm_of_attention_grows_with_its_tokens():
    """SOFT-Norm, Prop. 4: as O(n) for tokens of one distribution, found by power iteration."""
    found = []
    for n in (128, 256, 512):
        q, v = tokens(1, 1, n, 8), torch.ones(1, 1, n, 1).double()
        for _ in range(30):
            v = gaussian_product(q, q, v / v.norm())
        found.append(v.norm().item())
        assert found[-1] == pytest.approx(spectral_norm(gaussian_kernel(q)).item(), rel=1e-4)
    assert all(1.8 < double / single < 2.2 for single, double in zip(found, found[1:]))


@pytest.mark.parametrize('order', ['tokens', 'channels'])
def test_simas_attention_is_bounded_by_the_channels_of_a_head(order):
    """SimA, Sec. 2.2: |q̂ k̂ᵀ| ≤ d, attained where a single token has all of q and k."""
    q, k = torch.randn(2, 1, 3, 10, 8, dtype=torch.float64)
    values = torch.eye(10).double().expand(1, 3, 10, 10)
    attention = l1_attention(q, k, values, order=order)
    assert attention.abs().max() < 8 and attention.min() < 0
    q[:, :, 1:], k[:, :, :4], k[:, :, 5:] = 0, 0, 0
    attention = l1_attention(q, k.copysign(q[:, :, :1]), values, order=order)
    assert torch.allclose(attention[:, :, 0, 4], torch.full((1, 3), 8.0).double())
    assert attention.count_nonzero() == 3


def test_sima_is_equivariant_to_permutations():
    """SimA, Sec. 1: who permutes the tokens permutes what comes out."""
    block = PreNormBlock(SimAAttention(Site(32, 4, (3, 4))), 32).double().eval()
    x, order = torch.randn(2, 12, 32).double(), torch.randperm(12)
    with torch.no_grad():
        out = block(x, (3, 4))
        assert torch.allclose(block(x[:, order], (3, 4)), out[:, order], atol=1e-12)
        assert not torch.allclose(out[:, order], out, atol=1e-2)


class Exponentials(TorchDispatchMode):
    """Counts the calls of operators that exponentiate; a fused attention kernel counts as the softmax it replaces."""

    NAMES = re.compile('exp[12]?m?1?|.*softmax|logsumexp|softplus|mish|gelu|silu|.*sigmoid|tanh|erf|elu|pow')

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._overloadpacket.__name__.strip('_')
        if self.NAMES.fullmatch(name) or name.startswith('scaled_dot_product'):
            self.found['softmax' if name.startswith('scaled') else name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    'options, found',
    [
        (dict(act_cfg=dict(type='ReLU')), {}),
        ({}, dict(gelu=2)),
        (dict(act_cfg=dict(type='ReLU'), attention=dict(type='SoftmaxAttention')), dict(softmax=2)),
    ],
    ids=['SimA with ReLU', 'SimA', 'softmax with ReLU'],
)
def test_sima_with_relu_takes_no_exponential(options, found):
    """SimA, Sec. 4.5; the other two show that exponentials would be seen."""
    model = SimADeiT(dict(embed_dims=32, num_heads=2, depth=2), (1,), with_cls_token=True, **options).eval()
    with torch.no_grad(), Exponentials() as counted:
        model(torch.rand(1, 3, 64, 64))
    assert counted.found == found
