"""SimA against outputs of the published networks, a dense float64 reference and published files."""

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
from small_sima import EACH, small
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.testing import assert_close

from mmsoft.backbones import SimACvT, SimADeiT, SimAXCiT
from mmsoft.checkpoint.names import SIMA_CVT, SIMA_DEIT, SIMA_XCIT, to_mmsoft

DATA = Path(__file__).parents[1] / 'data'
FAMILIES = {SimAXCiT: SIMA_XCIT, SimADeiT: SIMA_DEIT, SimACvT: SIMA_CVT}


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


@pytest.mark.parametrize('backbone', [SimAXCiT, SimACvT])
def test_syncbn_files_load_into_bn(backbone):
    sync = small(backbone, norm_cfg=dict(type='SyncBN'))
    norms = [module for module in sync.modules() if isinstance(module, _BatchNorm)]
    assert norms and all(isinstance(module, nn.SyncBatchNorm) for module in norms)
    small(backbone).load_state_dict(sync.state_dict())


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
