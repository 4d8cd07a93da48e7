"""What counts as a FLOP."""

import pytest
import torch
from torch import nn

from benchmarks.flops import count_flops
from mmsoft.attention import Site, SOFTAttention, SoftmaxAttention
from mmsoft.ops import inverse


class OnMap(nn.Module):
    """Attention over the 8×12 tokens of a map."""

    def __init__(self, attn):
        super().__init__()
        self.attn = attn

    def forward(self, x):
        return self.attn(x, (8, 12))


@pytest.mark.parametrize('few_tokens', [0, 96])
@pytest.mark.parametrize('iterations', [20, 5])
def test_soft_attention(few_tokens, iterations, monkeypatch):
    monkeypatch.setattr(inverse, '_FEW_TOKENS', few_tokens)  # by the resolvent, and by the iteration
    attn = OnMap(SOFTAttention(Site(64, 2, (8, 12), ratio=4), norm=False, newton_iterations=iterations))
    flops = count_flops(attn, torch.rand(1, 96, 64))
    heads, n, m, d = 2, 96, 6, 32
    assert flops['newton_inverse'] == heads * iterations * 2 * m**3
    assert flops['inverse_product'] == heads * m * m * d
    assert flops['PythonOp._GaussianProduct'] == 2 * heads * n * m * 2 * d
    assert flops['linear'] == 3 * n * 64 * 64


def test_softmax_attention():
    flops = count_flops(OnMap(SoftmaxAttention(Site(64, 2, (8, 12)))), torch.rand(3, 96, 64))
    assert flops['scaled_dot_product_attention'] == 3 * 2 * 96 * 96 * 64


def test_what_is_unknown_is_not_passed_over():

    class Unknown(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

    class Model(nn.Module):
        def forward(self, x):
            return Unknown.apply(x)

    with pytest.raises(RuntimeError, match='Unknown cannot be counted'):
        count_flops(Model(), torch.rand(2))


def test_counting_leaves_the_mode_alone():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).train()
    count_flops(model, torch.rand(1, 2))
    assert model.training and model[1].training
