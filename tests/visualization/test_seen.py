"""What a network sees: features, Grad-CAM and kernels, for every architecture."""
import numpy as np
import pytest
import torch

from mmsoft import SOFT, SimACvT, SimADeiT, SimAXCiT
from mmsoft.visualization.seen import bottleneck_kernels, class_activation, feature_image, output_blocks, watch

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


def seen_by(body):
    indices = range(len(output_blocks(body)))
    with watch(body, indices) as seen:
        cls = body(torch.rand(1, 3, *IMAGE))[-1]
    assert not any(module._forward_hooks for module in body.modules())
    return cls, list(seen.values())


def test_features_have_the_shape_of_the_map(body):
    _, seen = seen_by(body)
    for record in seen:
        image = feature_image(record)
        assert image.shape == (*record.hw, 3) and image.dtype == np.uint8
        assert record.hw[0] * IMAGE[1] == record.hw[1] * IMAGE[0]


def test_activation_is_where_the_score_comes_from(body):
    """A score that is one feature at one place: its channel's weight is the mean gradient, 1 / (H' · W')."""
    _, seen = seen_by(body)
    record = seen[-1]
    rows, columns = record.hw
    place = record.after.size(1) - rows * columns + 1 * columns + 1
    heat, = class_activation(record.after[0, place, 3], [record])
    channel = record.after[0, -rows * columns:, 3].view(rows, columns) / (rows * columns)
    torch.testing.assert_close(heat, channel.relu())


def test_the_input_counts_where_only_the_class_token_goes_on(body):
    cls, seen = seen_by(body)
    record, score = seen[-1], (cls * torch.randn_like(cls)).sum()  # squares sum to a constant behind LayerNorm
    at = record.after if isinstance(body, SimAXCiT) else record.before  # XCiT's class token attends to what is behind
    rows, columns = record.hw
    tokens, gradient = (x[0, -rows * columns:] for x in (at, *torch.autograd.grad(score, at, retain_graph=True)))
    expected = (tokens @ gradient.mean(0)).view(rows, columns)
    sign = expected.sum().sign()
    *_, heat = class_activation(sign * score, seen)
    assert heat.any() and heat.shape == record.hw
    torch.testing.assert_close(heat, (sign * expected).relu())


@pytest.mark.parametrize('size', [None, 3])
def test_kernels_are_those_of_the_bottleneck_tokens(size):
    body = SOFT(STAGES, bottleneck_size=size).double().eval()
    with watch(body, (1, 3)) as seen:
        body(torch.rand(1, 3, *IMAGE, dtype=torch.float64))
    assert seen[3].bottleneck is None  # softmax has none
    record, attention = seen[1], body.stages[1].blocks[-1].attn
    queries = (attention.query(record.before[0]) * attention.scale).unflatten(1, (2, -1)).transpose(0, 1)
    tokens = attention.bottleneck(queries.transpose(1, 2).unflatten(2, record.hw))
    assert tokens.size(1) == record.grid[0] * record.grid[1] and (size is None or record.grid == (3, 3))
    dense = torch.exp(-(tokens[:, :, None] - queries[:, None]).square().sum(-1) / 2).mean(0)
    (first, (y, x)), (last, _) = bottleneck_kernels(record, [(0., 0.), (1., 1.)])
    torch.testing.assert_close(first.flatten(), dense[0])
    torch.testing.assert_close(last.flatten(), dense[-1])
    assert (y, x) == (0.5 / record.grid[0], 0.5 / record.grid[1])
