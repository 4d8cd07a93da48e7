"""What a network sees: features of every architecture, and kernels of bottleneck tokens."""

import numpy as np
import pytest
import torch

from mmsoft import SOFT, SimACvT, SimADeiT, SimAXCiT
from mmsoft.visualization import bottleneck_kernel, feature_image, output_blocks, watch

STAGES = dict(embed_dims=[8] * 4, num_heads=[1, 2, 2, 2], depths=[1, 2, 1, 2])
BLOCKS = dict(embed_dims=16, num_heads=2, depth=3)
BODIES = {
    'soft': lambda: SOFT(STAGES, out_type='cls_token'),
    'cvt': lambda: SimACvT({name: value[:3] for name, value in STAGES.items()}, out_type='cls_token'),
    'xcit': lambda: SimAXCiT(dict(BLOCKS, patch_size=16), out_type='cls_token'),
    'deit': lambda: SimADeiT(BLOCKS, out_type='cls_token'),
}
IMAGE = (96, 64)


@pytest.fixture(params=BODIES)
def body(request):
    return BODIES[request.param]().eval()


def test_features_are_the_outputs(body):
    body.out_indices, body.out_type = tuple(range(len(output_blocks(body)))), 'featmap'
    with watch(body, body.out_indices) as seen:
        outs = body(torch.rand(1, 3, *IMAGE))
    assert not any(module._forward_hooks for module in body.modules())
    for record, out in zip(list(seen.values())[:-1], outs):  # the last output is after the final norm
        torch.testing.assert_close(record.features, out[0])
        image = feature_image(record.features)
        assert image.shape == (*out.shape[2:], 3) and image.dtype == np.uint8
        assert image.shape[0] * IMAGE[1] == image.shape[1] * IMAGE[0]


def test_principal_components_are_colours():
    """Red is the direction of the greatest variance: here that of one channel, along the rows."""
    features = torch.randn(5, 12, 9) * 0.01
    features[3] += torch.arange(12.0)[:, None]
    red = feature_image(features)[..., 0].astype(int)
    assert red[-1].min() > 240 and red[0].max() < 15


@pytest.mark.parametrize('size', [None, 3])
def test_kernels_are_those_of_the_bottleneck_tokens(size):
    body = SOFT(STAGES, attention=dict(type='SOFTAttention', bottleneck_size=size)).double().eval()
    attention, inputs = body.stages[1].blocks[-1].attn, []
    hook = attention.register_forward_hook(lambda module, args, out: inputs.append(args))
    with watch(body, (1, 3)) as seen:
        body(torch.rand(1, 3, *IMAGE, dtype=torch.float64))
    assert seen[3].bottleneck is None  # softmax has none
    hook.remove()
    (tokens_in, hw, *_), record = inputs[0], seen[1]
    queries = (attention.query(tokens_in[0]) * attention.scale).unflatten(1, (2, -1)).transpose(0, 1)
    tokens = attention.bottleneck(queries.transpose(1, 2).unflatten(2, tuple(hw)))
    assert tokens.size(1) == record.grid[0] * record.grid[1] and (size is None or record.grid == (3, 3))
    dense = torch.exp(-(tokens[:, :, None] - queries[:, None]).square().sum(-1) / 2).mean(0)
    (first, (y, x)), (last, _) = bottleneck_kernel(record, 0.0, 0.0), bottleneck_kernel(record, 1.0, 1.0)
    torch.testing.assert_close(first.flatten(), dense[0])
    torch.testing.assert_close(last.flatten(), dense[-1])
    assert (y, x) == (0.5 / record.grid[0], 0.5 / record.grid[1])
