"""The norms by powers against those of the whole matrices."""
import pytest
import torch

from benchmarks.attention_norms import attention_norms
from mmsoft.attention import SOFTAttention
from mmsoft.backbones import SOFT


@pytest.mark.parametrize('attention_norm', [False, True])
@torch.no_grad()
def test_norms_of_whole_matrices(attention_norm):
    torch.manual_seed(0)
    arch = dict(embed_dims=[32, 32, 64, 64], num_heads=[1, 2, 2, 2], depths=[1, 2, 1, 1])
    network, images = SOFT(arch, attention_norm).double().eval(), 3 * torch.randn(2, 3, 32, 64, dtype=torch.float64)
    want = []
    for stage in network.stages:
        norms = []
        for attn in stage.modules():
            if isinstance(attn, SOFTAttention):

                def product(q, bottleneck, v, product=attn.product, norms=norms, **options):
                    identity = torch.eye(q.size(2), dtype=q.dtype).expand(*q.shape[:2], -1, -1)
                    norms.append(torch.linalg.matrix_norm(product(q, bottleneck, identity, **options), 2).mean())
                    return product(q, bottleneck, v, **options)

                attn.product = product
        want.append(norms)
    network(images)
    want = [sum(norms).item() / len(norms) for norms in want if norms]
    assert attention_norms(network, images) == pytest.approx(want, rel=1e-3) and len(want) == 3
    assert network.stages[0].blocks[0].attn.product.__name__ == 'product'  # what was there is there again
