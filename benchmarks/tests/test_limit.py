import pytest
import torch

from benchmarks.limit import compare
from mmsoft import SOFT, SimADeiT
from mmsoft.utils import UsageError


def test_networks_with_and_without_a_limit():
    model = SOFT(dict(embed_dims=[16], num_heads=[1], depths=[1]), out_indices=0).eval()
    (none, *_), (four, changes, seconds, memory) = compare(model, torch.randn(1, 3, 160, 160), [4])
    assert (none, four) == (None, 4)
    assert 0 < changes[0] < 0.1 and seconds > 0 and not memory < 0


def test_networks_without_bottleneck_tokens():
    model = SimADeiT(dict(embed_dims=32, num_heads=2, depth=1), out_indices=0)
    with pytest.raises(UsageError, match='SimADeiT has no SOFTAttention'):
        list(compare(model, torch.randn(1, 3, 32, 32), [4]))
