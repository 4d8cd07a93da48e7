"""BatchNorm folded into the convolution before it, against the two of them in turn."""
import pytest
import torch
from torch import nn

from mmsoft.layers import ConvNormAct


def module(norm_cfg, bias=True, act=nn.GELU):
    torch.manual_seed(0)
    module = ConvNormAct(3, 8, 2, norm_cfg, bias, act).double()
    for tensor in module.norm.state_dict().values():
        if tensor.is_floating_point():
            nn.init.uniform_(tensor, 0.5, 2)
    return module.eval()


def in_turn(module, x):
    return module.act(module.norm(module.conv(x)))


@pytest.mark.parametrize('bias', [True, False])
@pytest.mark.parametrize('norm_cfg', [
    dict(type='BN'),
    dict(type='BN', affine=False),
    dict(type='BN', eps=0.1),
    dict(type='GN', num_groups=2),
], ids=str)  # yapf: disable
def test_folding_changes_nothing(norm_cfg, bias):
    conv, x = module(norm_cfg, bias), torch.randn(2, 3, 13, 10, dtype=torch.float64)
    expected = in_turn(conv, x)
    with torch.no_grad():
        torch.testing.assert_close(conv(x), expected)
    torch.testing.assert_close(conv(x), expected)


@pytest.mark.parametrize('norm_cfg', [dict(type='BN'), dict(type='BN', track_running_stats=False)], ids=str)
@torch.no_grad()
def test_statistics_of_the_batch_are_not_folded(norm_cfg):
    conv, x = module(norm_cfg).train(norm_cfg.get('track_running_stats', True)), torch.randn(2, 3, 13, 10).double()
    torch.testing.assert_close(conv(x), in_turn(conv, x))


@torch.no_grad()
def test_a_folded_norm_is_not_run():
    conv = module(dict(type='BN'))
    conv.norm.forward = None
    conv(torch.randn(2, 3, 8, 8).double())


@torch.no_grad()
def test_hooks_are_heard():
    conv, heard = module(dict(type='BN')), []
    conv.norm.register_forward_hook(lambda *_: heard.append('norm'))
    conv.conv.register_forward_pre_hook(lambda *_: heard.append('conv'))
    conv(torch.randn(2, 3, 8, 8).double())
    assert heard == ['conv', 'norm']
