"""What the fused kernels are given on a GPU, by kernels that are written out and say so; tests on GPUs: test_gaussian.py."""

from types import SimpleNamespace

import dense
import pytest
import torch
import torch.nn.functional as F
from oracles import error, tokens

from mmsoft.ops import fused


class Device(str):
    """A name that torch takes for the CPU, and mmsoft for a GPU."""

    type = 'cuda'


class OnGpu(torch.Tensor):
    device = property(lambda self: Device('cpu'))


def attend(q, k, v, mask, with_log_sum, scale):
    """As CUDA's kernel: widths are multiples of 4, rows of the mask begin at multiples of 16 entries."""
    assert with_log_sum and all(t.size(-1) % 4 == 0 for t in (q, k, v))
    assert mask.size(-2) == q.size(-2) and 0 in (mask.stride(-2), q.size(-2) - 1) and mask.stride(-3) % 16 == 0
    scores = scale * q @ k.mT + mask
    log_sum = F.pad(scores.logsumexp(-1), (0, -q.size(-2) % 32), value=float('inf'))
    return scores.softmax(-1) @ v, log_sum, None, None


def differentiate(grad, q, k, v, mask, out, log_sum, seed, offset, dropout, wanted, causal, scale):
    assert log_sum.size(-1) % 32 == 0 and log_sum[..., q.size(-2) :].isinf().all()
    assert out.transpose(1, 2).is_contiguous() and not dropout and wanted[:3] == [True] * 3 and not causal
    shares = (scale * q @ k.mT + mask - log_sum[..., : q.size(-2), None]).exp()
    scores = shares * (grad @ v.mT - (grad * out).sum(-1, keepdim=True))
    return scale * scores @ k, scale * scores.mT @ q, shares.mT @ grad, None


@pytest.fixture
def gpu(monkeypatch):
    kernels = SimpleNamespace(
        _scaled_dot_product_efficient_attention=attend, _scaled_dot_product_efficient_attention_backward=differentiate
    )
    monkeypatch.setattr(fused, 'aten', kernels)
    return lambda *given: [t.as_subclass(OnGpu) for t in given]


@pytest.mark.parametrize('part', [1024, 10])
@pytest.mark.parametrize('n, m, d, c', [(70, 37, 8, 5), (33, 64, 3, 8), (1, 41, 6, 6)])
def test_what_a_gpu_computes(gpu, monkeypatch, n, m, d, c, part):
    monkeypatch.setattr(fused, '_PART', part)
    x, y, b = (tokens(2, 3, *size, seed=seed) for seed, size in enumerate(((n, d), (m, d), (m, c))))
    grad = tokens(2, 3, n, c, seed=3)
    kernel = dense.gaussian_kernel(x, y)
    weight = kernel * (grad @ b.mT)
    assert error([fused.forward(*gpu(x, y, b))], [kernel @ b])[0] < 1e-12
    assert max(error(fused.backward(*gpu(grad, x, y, b)), [weight @ y, weight.mT @ x, kernel.mT @ grad])) < 1e-12


@pytest.mark.parametrize(
    'heads, short, long, parts',
    [
        (1, 64, 2**20, 256),  # one block of the short side in each of 256 parts
        (1, 65, 2**20, 128),
        (6, 64, 2**20, 43),  # 258 blocks
        (256, 64, 2**20, 1),
        (1, 64, 1023, 1),  # a part has 1024 tokens at least
        (1, 64, 2047, 1),
        (1, 64, 2048, 2),
    ],
)
def test_parts_keep_a_gpu_busy(heads, short, long, parts):
    x = torch.empty(2 if heads % 2 == 0 else 1, heads // 2 or 1, 1, 1)
    assert fused._parts(x.as_subclass(OnGpu), short, long) == parts
    assert fused._parts(x, short, long) == 1, 'a CPU needs none'
