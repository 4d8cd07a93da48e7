"""Convolutions are those of mmdet's PVTv2, and without them the network is SOFT."""

import pytest
import torch
from mmdet.models.backbones import pvt

from mmsoft.backbones import SOFT
from mmsoft.utils import OptionError
from projects.trees.blocks import MixFFN, MixSOFT

ARCH = dict(embed_dims=[16, 32, 48], num_heads=[2, 4, 6], depths=[1, 2, 1])


def test_the_feed_forward_network_is_that_of_pvt():
    torch.manual_seed(0)
    ours, theirs = MixFFN(8), pvt.MixFFN(8, 32, use_conv=True)
    shapes = [weight.shape for weight in theirs.parameters()]
    theirs.load_state_dict(
        {
            name: weight.view(shape)
            for name, weight, shape in zip(theirs.state_dict(), ours.state_dict().values(), shapes)
        }
    )
    x = torch.randn(2, 5 * 7, 8)
    torch.testing.assert_close(ours(x, (5, 7)), theirs(x, (5, 7), identity=torch.zeros_like(x)))


def test_with_convolutions_that_change_nothing_it_is_soft():
    """But for the activation, the tanh form of the GELU in SOFT, which differs by 5e-4 at most."""
    torch.manual_seed(0)
    plain, mixed = SOFT(ARCH, out_indices=(0, 1, 2)).eval(), MixSOFT(ARCH, out_indices=(0, 1, 2)).eval()
    for name, weight in plain.named_parameters():
        if 'ffn' in name:
            weight.data *= 3  # so that they matter beside attention
    names = {'ffn.layers.0.0': 'ffn.first', 'ffn.layers.1': 'ffn.last'}
    weights = {}
    for name, weight in plain.state_dict().items():
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        weights[name] = weight
    missing, unexpected = mixed.load_state_dict(weights, strict=False)
    assert not unexpected and all('ffn.conv' in name for name in missing)
    for name, weight in mixed.named_parameters():
        if name.endswith('ffn.conv.weight'):
            weight.data.zero_()[:, :, 1, 1] = 1
        elif name.endswith('ffn.conv.bias'):
            weight.data.zero_()
    with torch.no_grad():
        x = torch.randn(1, 3, 72, 96)
        for one, other in zip(mixed(x), plain(x)):
            assert (one - other).norm() < 1e-3 * other.norm()
        for name, weight in mixed.named_parameters():
            if name.endswith('ffn.conv.weight'):
                weight.data[:, :, 1, 0] = 1
        assert all((one - other).norm() > 0.05 * other.norm() for one, other in zip(mixed(x), plain(x)))


def test_the_patch_embeddings_are_those_of_pvt():
    torch.manual_seed(0)
    ours = MixSOFT(ARCH, out_indices=(0, 1, 2), embedding='pvt_v2')
    theirs = pvt.PyramidVisionTransformerV2(embed_dims=16, num_layers=[1] * 4, num_heads=[1, 2, 3, 1])
    x = torch.randn(2, 3, 70, 90)
    for stage, (embed, *_) in zip(ours.stages, theirs.layers):
        torch.nn.init.normal_(embed.norm.weight)
        embed.norm.eps = stage.embed[1].eps  # 1e-6 in mmdet's, PyTorch's 1e-5 in ours
        stage.embed.load_state_dict(dict(zip(stage.embed.state_dict(), embed.state_dict().values())))
        tokens, (rows, columns) = embed(x)
        x = stage.embed(x)
        assert x.shape[2:] == (rows, columns)
        torch.testing.assert_close(x.flatten(2).mT, tokens)


def trained_once(with_cp):
    """Gradients of a network, and how many numbers its forward pass keeps for them."""
    torch.manual_seed(0)
    network, kept = MixSOFT(ARCH, out_indices=(2,), with_cp=with_cp), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        (out,) = network(torch.randn(1, 3, 64, 96))
    out.square().sum().backward()
    return [weight.grad for weight in network.parameters()], sum(kept)


def test_recomputed_it_gives_the_same_gradients_and_keeps_less():
    (gradients, kept), (recomputed, fewer) = trained_once(False), trained_once('ffn')
    torch.testing.assert_close(recomputed, gradients)
    assert fewer < 0.8 * kept


def test_weights_begin_as_in_pvt_and_dropout_is_softs():
    plain, mixed = (made(ARCH, out_indices=(0, 1, 2), drop_path_rate=0.3) for made in (SOFT, MixSOFT))
    mixed.init_weights()
    for stage, other in zip(mixed.stages, plain.stages):
        assert [block.drop.p for block in stage.blocks] == [block.drop.p for block in other.blocks]
        for block in stage.blocks:
            assert block.ffn.conv.weight.std().item() == pytest.approx((2 / 9) ** 0.5, rel=0.1)
            assert block.ffn.conv.bias.eq(0).all()


def test_a_fourth_stage_is_refused():
    with pytest.raises(OptionError, match='three stages at most'):
        MixSOFT('tiny')


def test_an_unknown_embedding_is_refused_with_all_there_are():
    with pytest.raises(OptionError, match='overlapped, patches, pvt_v2'):
        MixSOFT(ARCH, out_indices=(2,), embedding='pvt')
