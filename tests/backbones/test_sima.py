"""What every backbone of SimA promises: sizes, gradients, masks, wrapped blocks, traces."""

import numpy as np
import pytest
import torch
from small_sima import EACH, SMALL, SMALL_SOFT, reference_weights, small, tensors
from torch import nn
from torch.testing import assert_close

from mmsoft.attention import MultiheadAttention, SimAClassAttention, SoftmaxClassAttention
from mmsoft.backbones import SOFT, SimACvT, SimADeiT, SimAXCiT
from mmsoft.backbones.sima_cvt import QuickGELU


@EACH
@pytest.mark.parametrize('height, width', [(64, 96), (65, 33), (47, 50), (130, 49)])
def test_any_input_size(backbone, height, width):
    strides = dict.fromkeys(range(3), 8) if backbone is SimAXCiT else {0: 16, 1: 16}
    if backbone is SimACvT:
        strides = {0: 4, 1: 8, 2: 16}
    model = small(backbone, with_cls_token=True).eval()
    *maps, (last, cls) = model(torch.rand(2, 3, height, width))
    for i, out in enumerate((*maps, last)):
        assert out.shape[-2:] == (-(-height // strides[i]), -(-width // strides[i]))
    assert cls.shape == (2, last.size(1))


@EACH
@pytest.mark.parametrize(
    'kwargs',
    [{}, dict(out_type='cls_token'), dict(with_cls_token=True), dict(out_indices=(0,)), dict(out_indices=-2)],
    ids=str,
)
def test_no_unused_parameters(backbone, kwargs):
    model = small(backbone, **kwargs).train()
    outs = tensors(model(torch.rand(2, 3, 64, 64)))
    sum((out * torch.randn_like(out)).sum() for out in outs).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    if kwargs.get('out_type') == 'cls_token':
        assert [out.dim() for out in outs] == [2]


@EACH
def test_with_cp_gives_the_same_gradients(backbone):
    gradients, calls = [], []
    for with_cp in (False, True, 'ffn'):
        model = small(backbone, with_cp=with_cp, with_cls_token=True, drop_rate=0.1, drop_path_rate=0.1).train()
        for block in (blocks := [module for module in model.modules() if hasattr(module, 'ffn')]):
            block.norm1.register_forward_hook(lambda *args, with_cp=with_cp: calls.append(with_cp))
        torch.manual_seed(1)
        sum(out.square().sum() for out in tensors(model(torch.rand(2, 3, 64, 64)))).backward()
        gradients.append([p.grad for p in model.parameters()])
    assert calls == [False] * len(blocks) + [True] * 2 * len(blocks) + ['ffn'] * len(blocks)
    for plain, *recomputed in zip(*gradients):
        for one in recomputed:
            assert_close(plain, one)


@EACH
def test_an_image_does_not_depend_on_its_batch(backbone):
    model = small(backbone, with_cls_token=True).double().eval()
    images = torch.rand(2, 3, 64, 96, dtype=torch.float64)
    for batch, alone in zip(tensors(model(images)), tensors(model(images[:1]))):
        assert_close(batch[:1], alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize('hw', [(64, 96), (8, 70)], ids='{0[0]}x{0[1]}'.format)
@pytest.mark.parametrize(
    'options',
    [
        {},
        dict(with_cls_token=True),
        dict(out_type='cls_token', in_channels=1),
        dict(out_type='cls_token', in_channels=4),
    ],
    ids=str,
)
@EACH
def test_gradients_of_an_image_are_half_of_those_of_two_copies(backbone, options, hw):
    """torch's batch norm misreads, on a CPU, gradients of a single image that are a part of a larger tensor."""
    model = small(backbone, **options).double()
    image = torch.randn(1, model.in_channels, *hw, dtype=torch.float64)
    for mode in (True, False):
        gradients = []
        for copies in (1, 2):
            model.train(mode).zero_grad()
            outs = tensors(model(image.repeat(copies, 1, 1, 1)))
            generator = torch.Generator().manual_seed(0)
            weights = [torch.randn(out.shape[1:], generator=generator, dtype=torch.float64) for out in outs]
            sum((out * weight).sum() for out, weight in zip(outs, weights)).backward()
            gradients.append([parameter.grad for parameter in model.parameters()])
        assert_close([2 * gradient for gradient in gradients[0]], gradients[1], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize('backbone', [*SMALL, SOFT])
def test_every_layer_is_called(backbone):
    """So adapters, which replace layers by others, and hooks have an effect."""
    model, called = backbone(**SMALL.get(backbone, SMALL_SOFT), with_cls_token=backbone in SMALL), set()
    layers = {name: one for name, one in model.named_modules() if list(one.parameters(recurse=False))}
    leaves = {name for name, one in layers.items() if not list(one.children())}
    for name in leaves:
        layers[name].register_forward_hook(lambda *_, name=name: called.add(name))
    model(torch.rand(1, 3, 64, 64))
    assert called == leaves and len(leaves) >= 20


@pytest.mark.parametrize('backbone', [*SMALL, SOFT])
def test_weights_may_be_tensors_and_no_parameters(backbone):
    """As in the copies of torch's DataParallel, and in its FSDP by default."""
    model, images = backbone(**SMALL.get(backbone, SMALL_SOFT)).eval(), torch.rand(1, 3, 64, 96)
    want = model(images)
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            del module._parameters[name]
            setattr(module, name, parameter if parameter is None else parameter.detach())
    assert not list(model.parameters())
    assert_close(model(images), want, rtol=0, atol=0)


class Wrapped(torch.nn.Sequential):
    """A user's wrapper of a block."""

    def forward(self, *args):
        return self[0](*args)


@EACH
def test_blocks_can_be_wrapped(backbone):
    model, images = small(backbone).eval(), torch.rand(1, 3, 64, 64)
    expected = model(images)
    blocks = model.stages[1].blocks if backbone is SimACvT else model.blocks
    blocks[0] = Wrapped(blocks[0])
    assert_close(model(images), expected, rtol=0, atol=0)


@pytest.mark.parametrize('height, width', [(64, 96), (50, 61), (33, 96)])
def test_mask_makes_padding_vanish(height, width):
    """A padded image gives what it gives alone, whatever the size of the others in its batch; without the mask it does not."""
    images = torch.zeros(2, 3, 96, 128, dtype=torch.float64)
    images[0, :, :height, :width] = torch.randn(3, height, width)
    images[1] = torch.randn(3, 96, 128)
    model = small(SimAXCiT, mask_padding=True, with_cls_token=True).double().eval()
    reference_weights(model)
    *padded, cls = tensors(model(images))
    *alone, cls_alone = tensors(model(images[:1, :, :height, :width]))
    for a, b in zip(padded, alone):
        h, w = b.shape[-2:]
        assert_close(a[:1, :, :h, :w], b, rtol=1e-9, atol=1e-12)
        assert not a[0, :, h:].any() and not a[0, :, :, w:].any()
    assert_close(cls[:1], cls_alone, rtol=1e-9, atol=1e-12)
    model.mask_padding = False
    assert (model(images)[0][:1, :, :h, :w] - alone[0]).abs().max() > 1e-3


class FirstToken(MultiheadAttention):
    """A user's attention for the class token, which returns that alone and takes no mask."""

    for_class_token = True

    def product(self, q, k, v, mask=None):
        return (q[:, :, :1] @ k.mT).softmax(-1) @ v


def test_mask_around_an_attention_of_the_class_token_without_one():
    images = torch.zeros(2, 3, 96, 128, dtype=torch.float64)
    images[0, :, :50, :61], images[1] = torch.randn(3, 50, 61), torch.randn(3, 96, 128)
    options = dict(class_attention=dict(type=FirstToken), out_type='cls_token')
    model = small(SimAXCiT, mask_padding=True, **options).double().eval()
    (cls,), (alone,) = model(images), model(images[:1, :, :50, :61])
    assert_close(cls[:1], alone, rtol=1e-9, atol=1e-12)


class MeanOfTokens(nn.Module):
    """A user's attention, of no class of mmsoft."""

    takes_mask = False

    def forward(self, x, hw, mask=None):
        return x.mean(1, keepdim=True).expand_as(x)


def test_mask_around_a_module_without_one():
    images = torch.zeros(2, 3, 96, 128, dtype=torch.float64)
    images[0, :, :48, :64], images[1] = torch.randn(3, 48, 64), torch.randn(3, 96, 128)
    model = small(SimAXCiT, mask_padding=True).double().eval()
    for block in model.blocks:
        block.attn = MeanOfTokens()
    padded, alone = model(images), model(images[:1, :, :48, :64])
    for whole, one in zip(padded, alone):
        assert_close(whole[:1, :, : one.size(2), : one.size(3)], one, rtol=1e-9, atol=1e-12)


def test_position_encoding_in_float64():
    encoding = small(SimAXCiT).double().pos_encoding
    x, sides = torch.zeros(1, 1, 3, 4, dtype=torch.float64), []
    for n in x.shape[2:]:
        angle = np.arange(1, n + 1)[:, None] / (n + 1e-6) * 2 * np.pi / 10000 ** (np.arange(0, 32, 2) / 32)
        sides.append(np.stack([np.sin(angle), np.cos(angle)], 2).reshape(n, 32))
    waves = [np.concatenate([row, column]) for row in sides[0] for column in sides[1]]
    weight, bias = encoding.proj.weight.detach().flatten(1).numpy(), encoding.proj.bias.detach().numpy()
    want = torch.from_numpy(np.stack(waves) @ weight.T + bias)[None]
    whole, masked = encoding(x), encoding(x, torch.tensor([[3, 4]]))
    assert_close(masked, whole, rtol=0, atol=1e-15)
    assert_close(whole, want, rtol=0, atol=1e-12)


@EACH
def test_activations_of_every_block(backbone):
    """And of the class token's; the convolutions that make XCiT's patches keep theirs."""
    model = small(backbone, act_cfg=dict(type='ReLU'), with_cls_token=True)
    kinds = [(name, type(m)) for name, m in model.named_modules() if isinstance(m, (QuickGELU, nn.GELU, nn.ReLU))]
    stem = [kind for name, kind in kinds if name.startswith('patch_embed')]
    assert {kind for name, kind in kinds if not name.startswith('patch_embed')} == {nn.ReLU}
    assert stem == [nn.GELU] * 2 * (backbone is SimAXCiT)


@pytest.mark.parametrize('backbone', [SimADeiT, SimACvT, SimAXCiT, SOFT])
@pytest.mark.filterwarnings('ignore::torch.jit.TracerWarning')
def test_traces_take_images_of_any_size(backbone):
    """Padding is recorded also where the example needs none."""
    model = backbone(**SMALL.get(backbone, SMALL_SOFT)).eval().requires_grad_(False)
    traced = torch.jit.trace(model, torch.rand(1, 3, 64, 96), check_trace=False)
    for size in ((65, 97), (100, 150), (96, 128)):
        x = torch.rand(1, 3, *size)
        for got, want in zip(traced(x), model(x)):
            assert_close(got, want)


@pytest.mark.parametrize(
    'attention, class_attention',
    [
        (dict(), SimAClassAttention),
        (dict(attention=dict(type='SoftmaxAttention')), SoftmaxClassAttention),
        (dict(attention=dict(type='mmsoft.SoftmaxAttention')), SoftmaxClassAttention),
        (dict(attention=dict(type='SOFTAttention')), SimAClassAttention),
        (
            dict(attention=dict(type='SoftmaxAttention'), class_attention=dict(type='SimAClassAttention')),
            SimAClassAttention,
        ),
    ],
    ids=str,
)
def test_the_class_token_attends_as_the_patches_do(attention, class_attention):
    model = small(SimAXCiT, with_cls_token=True, **attention)
    assert {type(block.attn) for block in model.cls_blocks} == {class_attention}


@pytest.mark.parametrize('p', [1, 2, None])
def test_the_class_token_has_the_norm_of_the_patches(p):
    model = small(SimAXCiT, with_cls_token=True, attention=dict(type='SimAAttention', p=p))
    assert [block.attn.p for block in model.cls_blocks] == [p, p]
