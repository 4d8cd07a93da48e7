"""What a network sees: features of every architecture, and kernels of bottleneck tokens."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from matplotlib.figure import Figure

from mmsoft import SOFT, SimACvT, SimADeiT, SimAXCiT
from mmsoft.apis import visualization, visualize
from mmsoft.apis.visualization import draw, feature_image, watch_bottlenecks
from mmsoft.attention.measure import measured_attention

STAGES = dict(embed_dims=[8] * 4, num_heads=[1, 2, 2, 2], depths=[1, 2, 1, 2])
BLOCKS = dict(embed_dims=16, num_heads=2, depth=3)
BACKBONES = {
    'soft': lambda: SOFT(STAGES, out_type='cls_token'),
    'cvt': lambda: SimACvT({name: value[:3] for name, value in STAGES.items()}, out_type='cls_token'),
    'xcit': lambda: SimAXCiT(dict(BLOCKS, patch_size=16), out_type='cls_token'),
    'deit': lambda: SimADeiT(BLOCKS, out_type='cls_token'),
}
KINDS = dict(soft='stage', cvt='stage', xcit='block', deit='block')
IMAGE = (96, 64)


@pytest.mark.parametrize('sampling', ['random', 'biased'])
def test_tokens_without_a_grid_have_no_place(sampling):
    backbone = SOFT(STAGES, attention=dict(type='SOFTAttention', sampling=sampling)).eval()
    with watch_bottlenecks(backbone) as seen:
        backbone(torch.rand(1, 3, *IMAGE))
    assert not seen


def test_places_without_an_image_are_empty():
    """Six blocks have features, and four bottleneck tokens kernels."""
    arch = dict(embed_dims=16, num_heads=2, depth=6)
    backbone = SimADeiT(arch, range(6), attention=dict(type='SOFTAttention')).eval()
    image = torch.rand(1, 3, *IMAGE)
    model = SimpleNamespace(backbone=backbone, data_preprocessor=lambda data, training: dict(inputs=image))
    figure = draw(model, dict(inputs=(255 * image).byte()))
    assert len(figure.axes) == 7 * 7 and not any(axis.axison for axis in figure.axes)
    assert len({tuple(line.get_xydata()[0]) for line in figure.axes[7].lines}) == 4


@pytest.mark.parametrize('name', BACKBONES)
def test_a_sheet_has_features_of_every_architecture(name):
    backbone = BACKBONES[name]().eval()
    backbone.out_indices, backbone.out_type = (0, 2), 'featmap'
    image = torch.rand(1, 3, *IMAGE)
    model = SimpleNamespace(backbone=backbone, data_preprocessor=lambda data, training: dict(inputs=image))
    figure = draw(model, dict(inputs=(255 * image).byte()))
    assert not any(module._forward_hooks for module in backbone.modules())
    rows = [figure.axes[start : start + 3] for start in range(0, len(figure.axes), 3)]
    titles = [axis.get_title().split(',')[0] for axis in rows[0]]
    assert titles == ['image', *(f'features of {KINDS[name]} {i}' for i in (0, 2))]
    with torch.no_grad():
        for axis, x in zip(rows[0][1:], backbone(image)):
            assert (axis.images[0].get_array() == feature_image(x[0])).all()
    stages = [f'bottleneck kernels, stage {i}' for i in (0, 2)] if name == 'soft' else []
    assert [row[0].get_title() for row in rows[1:]] == stages
    for marked, *drawn in rows[1:]:
        crosses = [[line.get_xydata().tolist() for line in axis.lines] for axis in (marked, *drawn)]
        assert crosses[0] == [cross for (cross,) in crosses[1:]] and len(drawn) == len(crosses[0]) == 2
        assert (marked.images[0].get_array() == rows[0][0].images[0].get_array()).all()
        assert crosses[0] == [[[16, 16]], [[48, 16]]]  # x and y of the centres of two of 3 × 2 tokens
        for axis in drawn:
            picture, kernel = axis.images
            assert picture.get_array().shape == (*IMAGE, 3) and kernel.get_extent() == [-0.5, 63.5, 95.5, -0.5]
            low, high = map(float, axis.get_title().split(' to '))
            assert kernel.get_array().min() == pytest.approx(low, rel=0.1)
            assert kernel.get_array().max() == pytest.approx(high, rel=0.1)


def test_a_sheet_shows_the_image_as_the_network_gets_it():
    """Its colours in the order of matplotlib, padded at the right and bottom as in a prediction."""
    pixels, trains = torch.randint(256, (1, 3, 90, 60), dtype=torch.uint8), []

    def prepare(data, training):
        trains.append(training)
        return dict(inputs=torch.zeros(1, 3, *IMAGE))

    model = SimpleNamespace(backbone=BACKBONES['deit']().eval(), data_preprocessor=prepare)
    model.backbone.out_type = 'featmap'
    shown = torch.from_numpy(draw(model, dict(inputs=pixels)).axes[0].images[0].get_array().data)
    assert shown.shape == (*IMAGE, 3) and trains == [False] and not shown[90:].any() and not shown[:, 60:].any()
    assert torch.equal(shown[:90, :60].permute(2, 0, 1).flip(0), pixels[0])


@pytest.mark.parametrize('asked, chosen', [(None, (2, 5, 8, 11)), ([7, 2, 7], (2, 7))])
def test_blocks_are_in_their_order_and_by_default_spread(asked, chosen, tmp_path, monkeypatch):
    backbone, x = SimADeiT(dict(BLOCKS, depth=12), with_cls_token=True).eval(), torch.rand(1, 3, *IMAGE)
    model = SimpleNamespace(backbone=backbone)
    task = SimpleNamespace(inferencer=SimpleNamespace(model=model), collate=lambda data: data)
    for name, made in dict(load_config={}, find_inputs={Path('a.jpg'): Path('a.jpg')}, build_task=task).items():
        monkeypatch.setattr(visualization, name, lambda *_, made=made: made)
    monkeypatch.setattr(visualization, 'prepare', lambda *_: [(Path('a.jpg'), None, {})])
    monkeypatch.setattr(visualization, 'draw', lambda *_: backbone(x) and Figure())
    assert visualize('config.py', 'x.pth', 'images', str(tmp_path), asked) == []
    assert backbone.out_indices == chosen and all(map(torch.is_tensor, backbone(x)))
    with measured_attention(backbone) as contributions:
        backbone(x)
    shares = json.loads((tmp_path / 'attention_share.json').read_text())
    assert shares == {name: pytest.approx(one.share, abs=1e-4) for name, one in contributions.items()}


def test_principal_components_are_colours():
    """Red is the direction of the greatest variance: here that of one channel, along the rows."""
    features = torch.randn(5, 12, 9) * 0.01
    features[3] += torch.arange(12.0)[:, None]
    red = feature_image(features)[..., 0].astype(int)
    assert red[-1].min() > 240 and red[0].max() < 15
    features[1] += torch.arange(9.0)  # green, along the columns
    green = feature_image(features)[..., 1].astype(int)
    assert abs(green[:, -1] - green[:, 0]).min() > 225
    features[1] -= torch.arange(9.0)
    features[0] += 1e4  # in all places, which is no variance
    assert abs(feature_image(features)[..., 0].astype(int) - red).max() <= 2


def test_what_stands_out_is_red_whatever_its_sign():
    features = torch.randn(5, 12, 9) * 0.001
    features[3, 2:5, 2:5] = 1
    features[3, 3, 3] = 100  # one pixel of 108 does not make the others dark
    for sign in (1, -1):
        red = feature_image(sign * features)[..., 0]
        assert red[2:5, 2:5].min() > 240 and red[6:].max() < 15


@pytest.mark.parametrize('size', [None, 3])
def test_kernels_are_those_of_the_bottleneck_tokens(size):
    backbone = SOFT(STAGES, attention=dict(type='SOFTAttention', bottleneck_size=size)).double().eval()
    attention, inputs = backbone.stages[1].blocks[-1].attn, []
    hook = attention.register_forward_hook(lambda module, args, out: inputs.append(args))
    with watch_bottlenecks(backbone) as seen:
        backbone(torch.rand(1, 3, *IMAGE, dtype=torch.float64))
    assert len(seen) == 4  # the last stage's softmax has none
    hook.remove()
    (tokens_in, hw, *_), record = inputs[0], seen['stages.1.blocks.1.attn.bottleneck']
    queries = (attention.query(tokens_in[0]) * attention.scale).unflatten(1, (2, -1)).transpose(0, 1)
    tokens = attention.bottleneck(queries.transpose(1, 2).unflatten(2, tuple(hw)))
    assert tokens.size(1) == record.grid[0] * record.grid[1] and (size is None or record.grid == (3, 3))
    dense = torch.exp(-(tokens[:, :, None] - queries[:, None]).square().sum(-1) / 2).mean(0)
    (first, (y, x)), (last, _) = record.kernel(0.0, 0.0), record.kernel(1.0, 1.0)
    torch.testing.assert_close(first.flatten(), dense[0])
    torch.testing.assert_close(last.flatten(), dense[-1])
    assert (y, x) == (0.5 / record.grid[0], 0.5 / record.grid[1])
