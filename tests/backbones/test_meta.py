"""Construction without memory, on ``meta``, of every architecture and attention."""

import pytest
import torch

from mmsoft import SOFT, RescalePyramid, SimACvT, SimADeiT, SimAXCiT
from mmsoft.attention import Attention, Site, build_attention
from mmsoft.registry import MODELS

NAMES = sorted(
    name
    for name, made in MODELS.module_dict.items()
    if issubclass(made, Attention) and made.__module__.startswith('mmsoft.attention')
)
ARCHITECTURES = [
    (backbone, arch) for backbone in (SOFT, SimAXCiT, SimADeiT, SimACvT) for arch in backbone.arch_settings
]


def shapes(module):
    return {name: tensor.shape for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize('backbone, arch', ARCHITECTURES, ids=lambda value: getattr(value, '__name__', value))
def test_architectures(backbone, arch):
    with torch.device('meta'):
        model = backbone(arch, out_type='cls_token', drop_path_rate=0.1)
    assert all(tensor.is_meta for tensor in model.state_dict().values())


@pytest.mark.parametrize('name', NAMES)
def test_attentions(name):
    cfg, site = dict(type=name), Site(32, 2, (8, 8), ratio=4)
    with torch.device('meta'):
        attn = build_attention(cfg, site, class_token=True)
    assert all(tensor.is_meta for tensor in attn.state_dict().values())
    assert shapes(attn) == shapes(build_attention(cfg, site, class_token=True))


def test_options():
    """Which reach the parts that the defaults leave out."""
    with torch.device('meta'):
        models = [SOFT('tiny', embedding='patches'), SimAXCiT(mask_padding=True), RescalePyramid(8)]
        models += [
            SOFT('tiny', attention=dict(type='SOFTAttention', sampling=name, bottleneck_size=7))
            for name in ('conv', 'avg_pool', 'random')
        ]
    assert all(tensor.is_meta for model in models for tensor in model.state_dict().values())


@torch.no_grad()
def test_weights_can_follow():
    arch, images = dict(embed_dims=32, num_heads=2, depth=2), torch.randn(1, 3, 64, 64)
    source = SimADeiT(arch, (0, 1)).eval()
    with torch.device('meta'):
        model = SimADeiT(arch, (0, 1), drop_path_rate=0.1).eval()
    model.load_state_dict(source.state_dict(), assign=True)
    assert [round(block.drop[1].drop_prob, 6) for block in model.blocks] == [0, 0.1]
    torch.testing.assert_close(model(images), source(images))


@pytest.mark.parametrize(
    'backbone, arch, millions',  # as DeiT's and CvT's authors print them, with the head
    [(SimADeiT, 'tiny', 5.7), (SimADeiT, 'base', 86.6), (SimACvT, '21', 31.6), (SimACvT, 'w24', 277)],
)
def test_parameters_of_sizes_without_a_config(backbone, arch, millions):
    with torch.device('meta'):
        model = backbone(arch, out_type='cls_token')
    head = 1001 * model.out_channels[-1]
    assert (sum(p.numel() for p in model.parameters()) + head) / 1e6 == pytest.approx(millions, rel=0.01)
