"""SimA's backbones: parity with the published networks, and what every backbone promises."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.model import PretrainedInit
from mmengine.registry import MODELS as MMENGINE_MODELS
from published import to_published
from reference_sima import cvt, deit, xcit
from reference_weights import reference_images, reference_state_dict, reference_tensor
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.testing import assert_close

from mmsoft.attention import MultiheadAttention, SimAClassAttention, SoftmaxClassAttention
from mmsoft.backbones import SOFT, SimACvT, SimADeiT, SimAXCiT
from mmsoft.backbones.sima_cvt import QuickGELU
from mmsoft.checkpoint.names import SIMA_CVT, SIMA_DEIT, SIMA_XCIT, to_mmsoft
from mmsoft.utils import OptionError

DATA = Path(__file__).parents[1] / 'data'
FAMILIES = {SimAXCiT: SIMA_XCIT, SimADeiT: SIMA_DEIT, SimACvT: SIMA_CVT}
XCIT = dict(embed_dims=32, num_heads=2, depth=3, patch_size=8, gamma=1.0, norm_tokens=True)
SMALL = {
    SimAXCiT: dict(arch=XCIT, out_indices=(0, 2)),
    SimADeiT: dict(arch=dict(embed_dims=32, num_heads=2, depth=3), out_indices=(0, 2)),
    SimACvT: dict(arch=dict(embed_dims=[16, 32, 48], num_heads=[1, 2, 3], depths=[1, 1, 2])),
}
SMALL_SOFT = dict(arch=dict(embed_dims=[16, 32], num_heads=[1, 2], depths=[1, 1]), out_indices=(0, 1))
EACH = pytest.mark.parametrize('backbone', SMALL, ids=lambda backbone: backbone.__name__)


def small(backbone, **kwargs):
    torch.manual_seed(0)
    return backbone(**{**SMALL[backbone], **kwargs})


def tensors(outs):
    """Maps and class tokens, one after the other."""
    return [t for out in outs for t in (out if isinstance(out, tuple) else (out,))]


def load_published(model, state_dict):
    """Loads a published state dict, float64, eval; returns the model and the head."""
    ours = to_mmsoft(state_dict)[1]
    head = [ours.pop(f'head.fc.{name}').double() for name in ('weight', 'bias')]
    model.load_state_dict({name.split('.', 1)[1]: tensor for name, tensor in ours.items()})
    return model.double().eval(), head


def published_weights(model):
    """Reference weights under published names for any size."""
    ours = {f'backbone.{name}': tensor for name, tensor in model.state_dict().items()}
    dims = model.norm.weight.numel()
    shapes = {name: tensor.shape for name, tensor in to_published(model.published, ours).items()}
    shapes.update({'head.weight': (1000, dims), 'head.bias': (1000,)})
    return {name: reference_tensor(name, tuple(shape)) for name, shape in shapes.items()}


@torch.no_grad()
def outputs(model, head, images):
    *maps, (last, cls) = model(images.to(head[0]))
    return [*maps, last], cls, torch.nn.functional.linear(cls, *head)


@pytest.mark.parametrize('device', ['cpu', pytest.param('cuda', marks=pytest.mark.cuda)])
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize('batch, height, width, seed', [(2, 224, 224, 1), (1, 160, 224, 2)])
def test_fixture(batch, height, width, seed, dtype, device, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, 'allow_tf32', False)
    fixture = np.load(DATA / 'sima_tiny_12_p16.npz')
    model = SimAXCiT('tiny-12-p16', with_cls_token=True)
    model, head = load_published(model, reference_state_dict(DATA / 'sima_tiny_12_p16.keys.json'))
    model, head = model.to(device, dtype), [t.to(device, dtype) for t in head]
    maps, cls, logits = outputs(model, head, reference_images(batch, height, width, seed))
    found = {f'block{i}': out[:, ::16] for i, out in zip((3, 5, 7, 11), maps)}
    found.update(cls=cls, logits=logits[:, ::10])
    for name, tensor in found.items():
        expected = torch.from_numpy(fixture[f'{batch}x{height}x{width}s{seed}/{name}']).double()
        assert_close(tensor.cpu().double(), expected, rtol=0, atol=1e-5 if dtype == torch.float64 else 1e-3, msg=name)


@pytest.mark.parametrize('height, width', [pytest.param(224, 224, marks=pytest.mark.slow), (192, 320)])
@pytest.mark.parametrize(
    'model, reference, kwargs',
    [
        (lambda: SimADeiT(out_indices=range(12), with_cls_token=True), deit, dict(heads=6)),
        (lambda: SimACvT(with_cls_token=True), cvt, {}),
        (
            lambda: SimAXCiT('nano-12-p16', range(12), with_cls_token=True),
            xcit,
            dict(heads=4, depth=12, patch_size=16, norm_tokens=False),
        ),
        (
            lambda: SimAXCiT('tiny-24-p16', range(24), with_cls_token=True),
            xcit,
            dict(heads=4, depth=24, patch_size=16, norm_tokens=True),
        ),
        (
            lambda: SimAXCiT('tiny-12-p8', range(12), with_cls_token=True),
            xcit,
            dict(heads=4, depth=12, patch_size=8, norm_tokens=True),
        ),
    ],
    ids=['deit', 'cvt', 'nano', 'tiny-24', 'p8'],
)
def test_dense_reference(model, reference, kwargs, height, width):
    model = model()
    weights = published_weights(model)
    model, head = load_published(model, weights)
    images = reference_images(1, height, width)
    maps, cls, logits = outputs(model, head, images)
    with torch.no_grad():
        expected = reference({name: t.double() for name, t in weights.items()}, images.double(), **kwargs)
    for ours, theirs in zip((*maps, cls, logits), (*expected[0], *expected[1:])):
        assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    'backbone, arch, name',
    [
        (SimAXCiT, 'tiny-12-p16', 'sima_tiny_12_p16'),
        (SimADeiT, 'small', 'deit_small_patch16_224'),
        (SimACvT, '13', 'cvt_13'),
    ],
)
def test_published_names_and_shapes(backbone, arch, name):
    shapes = {key: tuple(shape) for key, shape in json.loads((DATA / f'{name}.keys.json').read_text()).items()}
    published = {key: torch.empty(shape) for key, shape in shapes.items()}
    family = FAMILIES[backbone]
    assert set(family.signature) <= set(published) and family.name == backbone.published
    ours = to_mmsoft(published)[1]
    backbone_shapes = {key.split('.', 1)[1]: t.shape for key, t in ours.items() if not key.startswith('head.fc.')}
    assert backbone_shapes == {key: t.shape for key, t in backbone(arch, out_type='cls_token').state_dict().items()}
    assert {key: tuple(t.shape) for key, t in to_published(family.name, ours).items()} == shapes


@EACH
def test_published_file_is_init_cfg(backbone, tmp_path):
    source = small(backbone, out_type='cls_token')
    file = tmp_path / 'published.pth'
    torch.save(dict(model=published_weights(source), epoch=1), file)
    model = small(backbone, out_type='cls_token', init_cfg=dict(type='Pretrained', checkpoint=str(file)))
    model.init_weights()
    assert model.init_cfg == [dict(type='Pretrained', checkpoint=str(file))]
    expected, _ = load_published(source, published_weights(source))
    images = torch.rand(1, 3, 64, 64, dtype=torch.float64)
    assert_close(model.double().eval()(images), expected(images))


@pytest.mark.parametrize(
    'build, millions',
    [
        (lambda: SimAXCiT('nano-12-p16', out_type='cls_token'), 3.053176),
        (lambda: SimAXCiT('tiny-12-p8', out_type='cls_token'), 6.706456),
        (lambda: SimAXCiT('tiny-20-p16', out_type='cls_token'), 10.316608),
        (lambda: SimAXCiT('tiny-24-p16', out_type='cls_token'), 12.1168),
        (lambda: SimAXCiT('small-12-p16', out_type='cls_token'), 26.253208),
        (lambda: SimADeiT(out_type='cls_token'), 22.050664),
        (lambda: SimACvT(out_type='cls_token'), 19.99748),
    ],
)
def test_parameters_with_head(build, millions):
    model = build()
    head = 1000 * (model.norm.weight.numel() + 1)
    assert sum(p.numel() for p in model.parameters()) + head == round(millions * 1e6)


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


def test_patches_of_another_size():
    model = small(SimADeiT, patch_size=8, img_size=64)
    assert model(torch.rand(1, 3, 40, 17))[0].shape == (1, 32, 5, 3)


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


def reference_weights(model):
    model.load_state_dict({name: reference_tensor(name, tuple(t.shape)) for name, t in model.state_dict().items()})


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


@EACH
def test_activations_of_every_block(backbone):
    """And of the class token's; the convolutions that make XCiT's patches keep theirs."""
    model = small(backbone, act_cfg=dict(type='ReLU'), with_cls_token=True)
    kinds = [(name, type(m)) for name, m in model.named_modules() if isinstance(m, (QuickGELU, nn.GELU, nn.ReLU))]
    stem = [kind for name, kind in kinds if name.startswith('patch_embed')]
    assert {kind for name, kind in kinds if not name.startswith('patch_embed')} == {nn.ReLU}
    assert stem == [nn.GELU] * 2 * (backbone is SimAXCiT)


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


@pytest.mark.parametrize('backbone', [SimAXCiT, SimACvT])
def test_syncbn_files_load_into_bn(backbone):
    sync = small(backbone, norm_cfg=dict(type='SyncBN'))
    norms = [module for module in sync.modules() if isinstance(module, _BatchNorm)]
    assert norms and all(isinstance(module, nn.SyncBatchNorm) for module in norms)
    small(backbone).load_state_dict(sync.state_dict())


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


@torch.no_grad()
def test_deit_with_softmax_is_deit():
    """Against mmpretrain's, whose weights have other names."""
    torch.manual_seed(0)
    theirs = MMENGINE_MODELS.build(
        dict(
            type='mmpretrain.VisionTransformer',
            arch='deit-small',
            out_type='cls_token',
            norm_cfg=dict(type='LN', eps=1e-6),
        )
    )
    theirs.eval()
    for parameter in theirs.parameters():
        parameter.normal_(std=0.05)
    ours = SimADeiT(attention=dict(type='SoftmaxAttention'), out_type='cls_token').eval()

    def rename(name):
        if name.startswith('ln1'):
            return name.replace('ln1', 'norm')
        name = name.replace('patch_embed.projection', 'patch_embed')
        if name.startswith('layers.'):
            name = name.replace('layers.', 'blocks.', 1).replace('ln1', 'norm1').replace('ln2', 'norm2')
        return name

    ours.load_state_dict({rename(name): tensor for name, tensor in theirs.state_dict().items()})
    x = torch.randn(2, 3, 224, 224)
    assert_close(ours(x)[0], theirs(x)[0], rtol=1e-4, atol=1e-4)


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


@EACH
@pytest.mark.parametrize('name', ['Pretrained', 'PretrainedInit', PretrainedInit], ids=str)
def test_every_way_to_ask_for_weights(backbone, name, tmp_path):
    """The class, too: mmengine's own loader would pass over names that it does not know."""
    source, file = small(backbone, out_type='cls_token'), str(tmp_path / 'published.pth')
    torch.save(dict(model=published_weights(source)), file)
    model = small(backbone, out_type='cls_token', init_cfg=dict(type=name, checkpoint=file))
    model.init_weights()
    load_published(source, published_weights(source))
    for key, tensor in source.float().state_dict().items():
        assert torch.equal(model.state_dict()[key], tensor)
