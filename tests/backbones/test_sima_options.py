"""Options of the SimA backbones: what they change, how weights begin, and what is said of wrong ones."""

import numpy as np
import pytest
import torch
from mmengine.registry import MODELS as MMENGINE_MODELS
from small_sima import EACH, SMALL, SMALL_SOFT, XCIT, reference_weights, small, tensors
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmsoft.backbones import SOFT, SimACvT, SimADeiT, SimAXCiT
from mmsoft.utils import OptionError


def test_patches_of_another_size():
    model = small(SimADeiT, patch_size=8, img_size=64)
    assert model(torch.rand(1, 3, 40, 17))[0].shape == (1, 32, 5, 3)


@EACH
@pytest.mark.parametrize('stages', [-1, 0, 1, 3])
def test_frozen_stages(backbone, stages):
    model = small(backbone, frozen_stages=stages, with_cls_token=True)  # frozen before anybody calls train()
    trained = {
        name.split('.blocks')[0] if backbone is SimACvT else '.'.join(name.split('.')[:2])
        for name, p in model.named_parameters()
        if p.requires_grad
    }
    if backbone is SimACvT:
        first, blocks = {'stages.0.embed.weight', 'stages.0.norm.weight'}, [f'stages.{i}' for i in range(3)]
    else:
        first, blocks = {'patch_embed.convs', 'patch_embed.weight'}, [f'blocks.{i}' for i in range(3)]
    assert bool(trained & first) == (stages < 0)
    assert [block in trained for block in blocks] == [i >= stages for i in range(3)]
    assert bool(trained) == (stages < 3)


@EACH
def test_dropout_and_stochastic_depth(backbone):
    """As published: linear over all blocks of DeiT and of CvT's last stage, the same in all of XCiT's."""
    options = dict(out_indices=(1,))
    if backbone is SimACvT:
        options = dict(arch=dict(embed_dims=[16, 32, 48], num_heads=[1, 2, 3], depths=[1, 2, 2]))
    model = small(backbone, drop_rate=0.1, drop_path_rate=0.2, **options)
    drops = [module.drop for module in model.modules() if hasattr(module, 'drop')]
    rates = {SimAXCiT: [0.2, 0.2], SimADeiT: [0, 0.1], SimACvT: [0, 0, 0, 0, 0.2]}[backbone]
    assert [(drop[0].p, drop[1].drop_prob) for drop in drops] == [(0.1, pytest.approx(rate)) for rate in rates]


@pytest.mark.parametrize('backbone, eps', [(SimAXCiT, 1e-6), (SimADeiT, 1e-6), (SimACvT, 1e-5)])
def test_layer_norms_have_the_published_eps(backbone, eps):
    model = small(backbone, with_cls_token=True)
    assert {module.eps for module in model.modules() if isinstance(module, nn.LayerNorm)} == {eps}


@EACH
def test_norm_eval(backbone):
    model = small(backbone, norm_eval=True).train()
    assert model.training and not any(m.training for m in model.modules() if isinstance(m, _BatchNorm))


@EACH
@pytest.mark.parametrize(
    'kwargs',
    [dict(num_heads=1), dict(act_cfg=dict(type='ReLU')), dict(attention=dict(type='SimAAttention', p=2))],
    ids=str,
)
def test_ablations_change_the_result(backbone, kwargs):
    plain, ablated = small(backbone).eval(), small(backbone, **kwargs).eval()
    for model in (plain, ablated):
        reference_weights(model)
    images = torch.rand(1, 3, 64, 64)
    assert not torch.allclose(tensors(plain(images))[-1], tensors(ablated(images))[-1], atol=1e-4)


def test_without_local_patch_interaction():
    model = small(SimAXCiT, lpi=False)
    assert not any('lpi' in name or name.endswith(('gamma3', 'norm3.bias')) for name in model.state_dict())
    assert model(torch.rand(1, 3, 32, 32))[0].shape == (1, 32, 4, 4)


@EACH
def test_layer_depth_covers_every_parameter(backbone):
    model = small(backbone, out_type='cls_token')
    layers = [model.get_layer_depth(f'backbone.{name}') for name, _ in model.named_parameters()]
    (num_layers,) = {number for _, number in layers}
    assert num_layers == {SimAXCiT: 7, SimADeiT: 5, SimACvT: 6}[backbone]  # of stem, blocks, XCiT's class blocks, head
    assert sorted({layer for layer, _ in layers}) == list(range(num_layers))
    assert model.get_layer_depth('head.fc.weight') == (num_layers - 1, num_layers)
    assert small(backbone).get_layer_depth('head.fc.weight')[1] == (5 if backbone is SimAXCiT else num_layers)


@EACH
def test_initialisation(backbone):
    model = MMENGINE_MODELS.build(dict(type=f'mmsoft.{backbone.__name__}', **SMALL[backbone], with_cls_token=True))
    model.init_weights()
    linear = torch.cat([m.weight.flatten() for m in model.modules() if isinstance(m, torch.nn.Linear)])
    assert abs(linear.std() - 0.02) < 1e-3
    norms = [m for m in model.modules() if isinstance(m, (torch.nn.LayerNorm, _BatchNorm))]
    assert norms and all((m.weight == 1).all() and not m.bias.any() for m in norms)
    tokens = torch.cat(
        [p.flatten() for name, p in model.named_parameters() if name.endswith(('cls_token', 'pos_embed'))]
    )
    assert 0.01 < tokens.std() < 0.03
    assert all(out.isfinite().all() for out in tensors(model(torch.rand(2, 3, 64, 64))))


@pytest.mark.parametrize('backbone', [*SMALL, SOFT])
def test_initialisation_of_ones_own(backbone):
    init_cfg = dict(type='Constant', layer='Linear', val=3)
    model = backbone(**{**SMALL.get(backbone, SMALL_SOFT), 'init_cfg': init_cfg})
    model.init_weights()
    assert all((m.weight == 3).all() for m in model.modules() if isinstance(m, nn.Linear))
    assert model.init_cfg == [init_cfg]


@pytest.mark.parametrize('arch, gamma', [('tiny-12-p16', 1), ('tiny-20-p8', 1e-5), ('small-24-p16', 1e-5)])
def test_first_gamma(arch, gamma):
    block = SimAXCiT(arch, out_indices=0).blocks[0]
    assert all((g == gamma).all() for g in (block.gamma1, block.gamma2, block.gamma3))
    for block in SimAXCiT(dict(XCIT, gamma=gamma), out_type='cls_token').cls_blocks:
        assert (block.gamma1 == gamma).all() and (block.gamma2 == gamma).all()


@EACH
@pytest.mark.parametrize(
    'kwargs, message',
    [
        (dict(arch='giant'), 'arch must be one of'),
        (dict(arch=dict(depth=3)), 'arch as a dict needs'),
        (dict(out_indices=(99,)), 'out_indices'),
        (dict(out_type='avg'), 'out_type'),
        (dict(num_heads=7), '7 heads do not divide'),
        (dict(num_heads=-2), '-2 heads do not divide'),
    ],
    ids=str,
)
def test_errors(backbone, kwargs, message):
    with pytest.raises(ValueError, match=message):
        small(backbone, **kwargs)


@pytest.mark.parametrize('backbone', [SimADeiT, SimACvT, SimAXCiT])
def test_class_tokens_that_do_not_exist(backbone):
    with pytest.raises(ValueError, match='needs the last output, 2'):
        small(backbone, out_indices=(0, 1), with_cls_token=True)


@pytest.mark.parametrize(
    'backbone, sizes, words',
    [
        (
            SimACvT,
            dict(embed_dims=16, num_heads=1, depths=1),
            r'embed_dims of arch must be like \[64, 192, 384\]; got 16',
        ),
        (
            SimACvT,
            dict(embed_dims=[16] * 3, num_heads=[1] * 3, depths=[1, 0, 1]),
            r'depths of arch .*; got \[1, 0, 1\]',
        ),
        (SimADeiT, dict(embed_dims=[16], num_heads=1, depth=1), r'embed_dims of arch must be like 192; got \[16\]'),
        (SimADeiT, dict(embed_dims=16, num_heads=1, depth=0), 'depth of arch must be like 12; got 0'),
        (SimADeiT, dict(embed_dims=16, num_heads=1, depth='3'), 'depth of arch must be like 12; got 3'),
        (SimADeiT, dict(embed_dims=16, num_heads=1, depth=2.0), 'depth of arch must be like 12; got 2.0'),
        (SimADeiT, dict(embed_dims=16, num_heads=0, depth=1), 'num_heads of arch must be like 3; got 0'),
        (SimADeiT, dict(depth=1), 'arch as a dict needs embed_dims, num_heads, depth; got depth'),
        (SimAXCiT, dict(depth=1), 'arch as .* depth, patch_size, .* .gamma, norm_tokens may be missing.; got depth'),
        (
            SimAXCiT,
            dict(embed_dims=16, num_heads=1, depth=1, patch_size=0),
            'patch_size of arch must be like 16; got 0',
        ),
        *(
            (SimAXCiT, dict(embed_dims=16, num_heads=1, depth=1, patch_size=size), f'patch_size must be .*; got {size}')
            for size in (1, 12)
        ),
        (
            SimACvT,
            dict(embed_dims=[16] * 3, num_heads=[1] * 3, depths=[1, -1, 1]),
            r'depths of arch .*; got \[1, -1, 1\]',
        ),
    ],
    ids=str,
)
def test_one_number_or_one_for_each_stage(backbone, sizes, words):
    with pytest.raises(OptionError, match=words):
        backbone(sizes, out_indices=(0,))


def test_cvt_needs_three_stages():
    with pytest.raises(ValueError, match='each of three stages in .*depths'):
        SimACvT(dict(embed_dims=[16, 32, 48], num_heads=[1, 2, 3], depths=[1, 1, 2, 1]))
    with pytest.raises(ValueError, match='each of three stages in .*depths'):
        SimACvT(dict(embed_dims=[16, 32], num_heads=[1, 2], depths=[1, 1]))


def test_sizes_as_arrays():
    sizes = dict(embed_dims=np.array([16] * 3), num_heads=(1, 1, 1), depths=np.ones(3, int))
    assert SimACvT(sizes).out_channels == [16] * 3 and SimADeiT(dict(embed_dims=np.int64(16), num_heads=1, depth=12))


@pytest.mark.parametrize('norm', ['GN', 'IN'])
def test_masks_and_norms_over_the_image(norm):
    norm_cfg = dict(type=norm, num_groups=2) if norm == 'GN' else dict(type=norm)
    assert SimAXCiT(XCIT, (2,), norm_cfg=norm_cfg)
    with pytest.raises(OptionError, match='mask_padding needs a norm that does not see the padding'):
        SimAXCiT(XCIT, (2,), norm_cfg=norm_cfg, mask_padding=True)


def test_initialised_twice_stays(tmp_path):
    torch.save(SimADeiT(**SMALL[SimADeiT]).state_dict(), tmp_path / 'x.pth')
    model = SimADeiT(**SMALL[SimADeiT], init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'x.pth')))
    model.init_weights()
    model.pos_embed.data.fill_(5)
    model.init_weights()
    assert (model.pos_embed == 5).all()


def test_only_position_embeddings_of_ours_are_resized():
    def network(window):
        model = SimADeiT(**SMALL[SimADeiT])
        model.blocks[0].attn.rel_pos_embed = torch.nn.Parameter(torch.zeros(1, window**2, 2))
        return model

    with pytest.raises(RuntimeError, match='size mismatch for blocks.0.attn.rel_pos_embed'):
        network(7).load_state_dict(network(13).state_dict())


def test_numbers_for_names():
    assert len(SimACvT(21).stages[2].blocks) == 16


@EACH
def test_frozen_stages_that_do_not_exist(backbone):
    with pytest.raises(ValueError, match='between -1 and 3; got 99'):
        small(backbone, frozen_stages=99)


@EACH
def test_out_channels_are_a_list(backbone):
    model = small(backbone)
    assert model.out_channels == [out.size(1) for out in model(torch.rand(1, 3, 64, 64))]
