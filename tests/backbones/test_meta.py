"""Construction without memory, on ``meta``, of every architecture and attention."""

import numpy as np
import pytest
import torch

from mmsoft import SOFT, RescalePyramid, SimACvT, SimADeiT, SimAXCiT
from mmsoft.attention import Attention, SimAAttention, Site, build_attention
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


@pytest.mark.parametrize(
    'backbone, arch, out_indices',
    [
        (SOFT, 'small', (0, 1, 2, 3)),
        (SimAXCiT, 'small-12-p16', (3, 5, 7, 11)),
        (SimADeiT, 'small', (3, 5, 7, 11)),
        (SimACvT, '13', (0, 1, 2)),
    ],
)
def test_what_a_config_may_leave_out(backbone, arch, out_indices):
    with torch.device('meta'):
        model = backbone()
    assert (model.arch, model.out_indices) == (backbone.read_arch(arch), out_indices)


@pytest.mark.parametrize('name', NAMES)
def test_attentions(name):
    cfg, site = dict(type=name), Site(32, 2, (8, 8), ratio=4)
    with torch.device('meta'):
        attn = build_attention(cfg, site, class_token=True)
    assert all(tensor.is_meta for tensor in attn.state_dict().values())
    assert shapes(attn) == shapes(build_attention(cfg, site, class_token=True))


def grids(*sides):
    return [(side, side) for side in sides]


@pytest.mark.parametrize(
    'backbone, options, grid, ratio',
    [
        (SOFT, {}, grids(56, 28, 14, 7), [8, 4, 2, 1]),
        (SOFT, dict(img_size=512), grids(128, 64, 32, 16), [8, 4, 2, 1]),
        (SOFT, dict(img_size=100), grids(25, 13, 7, 4), [8, 4, 2, 1]),
        (SimAXCiT, dict(arch='tiny-12-p16', out_indices=0), grids(14), [2]),
        (SimAXCiT, dict(arch='tiny-12-p8', out_indices=0), grids(28), [4]),
        (SimADeiT, dict(out_indices=0), grids(14), [2]),
        (SimADeiT, dict(out_indices=0, img_size=512), grids(32), [2]),
        (SimADeiT, dict(out_indices=0, img_size=100), grids(7), [2]),
        (SimACvT, {}, grids(56, 28, 14), [8, 4, 2]),
    ],
    ids=lambda value: getattr(value, '__name__', None),
)
def test_an_attention_is_told_where_it_attends(backbone, options, grid, ratio):
    """Map and ratio, from which attentions with learned sizes build their parts."""
    sites = []

    class Probe(SimAAttention):
        def __init__(self, site):
            sites.append(site)
            super().__init__(site)

    attention = dict(type=Probe)
    with torch.device('meta'):
        backbone(attention=[attention] * 4 if backbone is SOFT else attention, **options)
    firsts = [site for i, site in enumerate(sites) if site not in sites[:i]]
    assert ([site.grid for site in firsts], [site.ratio for site in firsts]) == (grid, ratio)


def test_options():
    """Which reach the parts that the defaults leave out."""
    with torch.device('meta'):
        models = [SOFT('tiny', embedding='patches'), SimAXCiT(mask_padding=True), RescalePyramid(8)]
        models += [
            SOFT('tiny', attention=dict(type='SOFTAttention', sampling=name, bottleneck_size=7))
            for name in ('conv', 'avg_pool', 'random')
        ]
    assert all(tensor.is_meta for model in models for tensor in model.state_dict().values())


def test_each_stage_of_cvt_may_have_its_attention():
    attention = [dict(type='SoftmaxAttention'), dict(type='SimAAttention'), dict(type='EfficientAttention')]
    with torch.device('meta'):
        stages = SimACvT(attention=attention).stages
    assert [{block.attn.kind for block in stage.blocks} for stage in stages] == [{one['type']} for one in attention]
    with pytest.raises(ValueError, match='a number for each of three stages in .*; attention, too'):
        SimACvT(attention=attention[:2])
    with pytest.raises(ValueError, match="an attention is a dict, as in .* got 'SimAAttention'"):
        SimACvT(attention='SimAAttention')


@pytest.mark.parametrize('backbone', [SOFT, SimADeiT])
def test_image_sizes_may_be_pairs(backbone):
    with torch.device('meta'):
        sizes = [
            {name: t.shape for name, t in backbone(img_size=size).state_dict().items()}
            for size in (96, (96, 96), np.int64(96))
        ]
    assert sizes[0] == sizes[1] == sizes[2]
    with pytest.raises(ValueError, match=r'img_size must be one number or two equal ones; got \(96, 64\)'):
        backbone(img_size=(96, 64))


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
    assert (np.divide(model.arch['embed_dims'], model.arch['num_heads']) == 64).all()  # channels of each head


@pytest.mark.parametrize('arch', [arch for arch in SimAXCiT.arch_settings if not arch.startswith('tiny-20')])
def test_sizes_are_those_of_xcit(arch):
    """Which timm builds; its attention has one temperature a head that SimA's has not."""
    timm = pytest.importorskip('timm')
    with torch.device('meta'):
        ours = SimAXCiT(arch, out_type='cls_token')
        theirs = timm.create_model(f'xcit_{arch.replace("-", "_")}_224', num_classes=0)
    theirs = {name: tensor.numel() for name, tensor in theirs.named_parameters()}
    temperatures = sum(number for name, number in theirs.items() if name.endswith('temperature'))
    assert temperatures == ours.arch['num_heads'] * ours.arch['depth']
    assert sum(p.numel() for p in ours.parameters()) == sum(theirs.values()) - temperatures


@pytest.mark.parametrize(
    'arch, depths, third',  # blocks and heads of the third stage, 2207.03341, Table 2
    [
        ('tiny', [1, 2, 3, 2], 10),
        ('small', [1, 3, 7, 4], 10),
        ('medium', [1, 3, 29, 5], 9),
        ('large', [1, 3, 40, 5], 10),
        ('huge', [1, 5, 49, 5], 11),
    ],
)
def test_sizes_are_those_of_the_paper(arch, depths, third):
    sizes = dict(depths=depths, num_heads=[2, 4, third, 16], embed_dims=[64, 128, 32 * third, 512])
    assert SOFT.arch_settings[arch] == sizes
