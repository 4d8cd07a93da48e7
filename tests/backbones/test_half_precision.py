"""Convolutions whose kernel is their stride: products in half precision, right on every processor.

oneDNN, as torch 2.5 has it, computes them wrongly in half precision on processors with AMX. Because few machines have
these, the tests also look for such convolutions, whatever they return here.
"""

import pytest
import torch
from devices import cpu_autocast
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from mmsoft import SOFT, RescalePyramid, SimACvT, SimADeiT, SimAXCiT
from mmsoft.attention import Attention, Site, build_attention
from mmsoft.layers.embed import PatchConv
from mmsoft.necks.rescale_pyramid import Enlarge
from mmsoft.registry import MODELS

HALF = pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16], ids=str)
NAMES = sorted(
    name
    for name, made in MODELS.module_dict.items()
    if issubclass(made, Attention) and not made.for_class_token and made.__module__.startswith('mmsoft.attention')
)
NANO = dict(embed_dims=[16, 16, 32, 32], num_heads=[1, 1, 2, 2], depths=[1] * 4)
TWO = dict(embed_dims=[16, 16], num_heads=[1, 1], depths=[1, 1])
PLAIN = dict(embed_dims=32, num_heads=2, depth=2)
NETWORKS = {
    'soft': lambda: SOFT(NANO, with_cls_token=True),
    'soft_patches': lambda: SOFT(NANO, embedding='patches'),
    'soft_fixed': lambda: SOFT(NANO, attention=[dict(type='SOFTAttention', bottleneck_size=3)] * 4),
    'xcit': lambda: SimAXCiT(dict(PLAIN, patch_size=8), (0, 1), with_cls_token=True),
    'deit': lambda: SimADeiT(PLAIN, (0, 1), with_cls_token=True),
    'cvt': lambda: SimACvT(dict(embed_dims=[16, 32, 32], num_heads=[1, 2, 2], depths=[1] * 3), with_cls_token=True),
    'pyramid': lambda: nn.Sequential(SimADeiT(PLAIN, (1,)), RescalePyramid(32)),
    **{
        f'soft_{name}': lambda name=name: SOFT(TWO, out_indices=(0, 1), attention=[dict(type=name)] * 2)
        for name in NAMES
    },
}


class Convolutions(TorchDispatchMode):
    """Keeps the types and kernels of convolutions whose kernel is their stride."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default):
            backward = func is torch.ops.aten.convolution_backward.default
            weight, stride = (args[2], args[4]) if backward else (args[1], args[3])
            kernel = tuple(weight.shape[2:])
            if any(k == s > 1 for k, s in zip(kernel, stride)):
                self.found.append((weight.dtype, kernel))
        return func(*args, **(kwargs or {}))


def tensors(outs):
    return [t for out in outs for t in (out if isinstance(out, tuple) else (out,))]


@pytest.mark.parametrize('name', NETWORKS)
@pytest.mark.parametrize('hw', [(64, 96), (50, 61)], ids='{0[0]}x{0[1]}'.format)
@pytest.mark.parametrize('autocast', [True, False], ids=['autocast', 'bfloat16'])
def test_no_convolution_of_patches(name, hw, autocast):
    model, images = NETWORKS[name]().train(), torch.randn(2, 3, *hw)
    with Convolutions() as seen:
        if autocast:
            with torch.autocast('cpu', torch.bfloat16):
                outs = model(images)
        else:
            outs = model.bfloat16()(images.bfloat16())
        sum(out.float().square().mean() for out in tensors(outs)).backward()
    assert seen.found == []


def test_what_is_looked_for_would_be_found():
    with Convolutions() as seen, torch.autocast('cpu', torch.bfloat16):
        nn.Conv2d(4, 4, 4, 4)(torch.randn(1, 4, 8, 8)).sum().backward()
    assert seen.found == [(torch.bfloat16, (4, 4))] * 2


def relative_error(got, want):
    return (got.double() - want).norm() / want.norm()


@HALF
@pytest.mark.parametrize('kernel', [2, 3, 4, 8, 16])
@pytest.mark.parametrize('channels', [1, 4, 8, 16, 24, 32, 64])
def test_patches_against_float64(channels, kernel, dtype):
    """Values and gradients, from maps in both memory formats."""
    module = PatchConv(channels, channels, kernel)
    nn.init.normal_(module.weight, std=(channels * kernel**2) ** -0.5)
    x = torch.randn(2, channels, 3 * kernel, 2 * kernel)
    twin = nn.Conv2d(channels, channels, kernel, kernel).double()
    twin.load_state_dict(module.state_dict())
    exact = x.double().requires_grad_()
    want = twin(exact)
    (want * want.detach()).sum().backward()
    for memory_format in (torch.contiguous_format, torch.channels_last):
        module.zero_grad()
        rounded = x.to(dtype).to(memory_format=memory_format).requires_grad_()
        with cpu_autocast(dtype):
            got = module(rounded)
        assert got.dtype == dtype and relative_error(got, want) < 0.02
        (got.float() * want.float().detach()).sum().backward()
        for ours, theirs in (
            (rounded.grad, exact.grad),
            (module.weight.grad, twin.weight.grad),
            (module.bias.grad, twin.bias.grad),
        ):
            assert relative_error(ours, theirs) < 0.03


@HALF
@pytest.mark.parametrize('channels', [1, 4, 16, 24, 64])
def test_enlarging_against_float64(channels, dtype):
    module = Enlarge(channels)
    x = torch.randn(2, channels, 5, 6)
    twin = nn.ConvTranspose2d(channels, channels, 2, 2).double()
    twin.load_state_dict(module.state_dict())
    exact, rounded = x.double().requires_grad_(), x.to(dtype).requires_grad_()
    want = twin(exact)
    (want * want.detach()).sum().backward()
    with cpu_autocast(dtype):
        got = module(rounded)
    (got.float() * want.float().detach()).sum().backward()
    assert got.dtype == dtype and relative_error(got, want) < 0.02
    assert relative_error(rounded.grad, exact.grad) < 0.03
    assert relative_error(module.weight.grad, twin.weight.grad) < 0.03


@HALF
@pytest.mark.parametrize('dims', [8, 16, 32, 48])
@pytest.mark.parametrize('ratio', [4, 8, 16])
@pytest.mark.parametrize('name', ['SOFTAttention', 'LinformerAttention'])
@torch.no_grad()
def test_attentions_that_sample(name, ratio, dims, dtype):
    attn = build_attention(dict(type=name), Site(dims, 2, (32, 32), ratio)).eval()
    for linear in attn.modules():
        if isinstance(linear, nn.Linear):
            nn.init.normal_(linear.weight, std=dims**-0.5)
    x = torch.randn(1, 32 * 32, dims)
    want = attn.double()(x.double(), (32, 32))
    with cpu_autocast(dtype):
        got = attn.float()(x, (32, 32))
    assert relative_error(got, want) < 0.05


@pytest.mark.parametrize('channels, kernel, bias', [(3, 16, True), (32, 8, False), (5, 3, True), (4, 1, True)])
@torch.no_grad()
def test_float32_is_the_convolution(channels, kernel, bias):
    module = PatchConv(channels, 24, kernel, bias)
    x = torch.randn(2, channels, 3 * kernel, 2 * kernel)
    torch.testing.assert_close(module(x), nn.Conv2d.forward(module, x), rtol=1e-5, atol=1e-5)
    assert module(x[:0]).shape == (0, 24, 3, 2)
