"""Every backbone and neck out of Python: ONNX, torch.export and torch.compile, at sizes other than the recorded one."""

import json

import numpy as np
import onnx
import pytest
import torch
import torch._dynamo
from mmengine.utils import digit_version
from torch import nn

from mmsoft import SOFT, SimACvT, SimADeiT, SimAXCiT
from mmsoft.apis import deployment
from mmsoft.necks import RescalePyramid
from mmsoft.utils import UsageError

RECORDS = hasattr(torch, 'export')
# torch 2.13 raises another kind of error
TOO_SMALL = RuntimeError if digit_version(torch.__version__) < digit_version('2.6') else (RuntimeError, AssertionError)
records = pytest.mark.skipif(not hasattr(torch.export, 'Dim'), reason='torch 2.1 has no names for free sizes')

SOFT_NANO = dict(embed_dims=[16, 16, 32, 32], num_heads=[1, 1, 2, 2], depths=[1, 1, 1, 1])
STAGE = dict(embed_dims=[16], num_heads=[2], depths=[1], sampling_ratios=[4])
PLAIN = dict(embed_dims=32, num_heads=2, depth=2)
XCIT = dict(PLAIN, patch_size=16)
CVT = dict(embed_dims=[16, 32, 32], num_heads=[1, 2, 2], depths=[1, 1, 1])
BACKBONES = {
    'soft': lambda: SOFT(SOFT_NANO, attention_norm=False),
    'soft-norm': lambda: SOFT(SOFT_NANO, with_cls_token=True),
    'soft-norm-fixed': lambda: SOFT(STAGE, attention=dict(bottleneck_size=3), out_indices=0),
    'soft-norm-pooled': lambda: SOFT(STAGE, attention=dict(sampling='avg_pool'), out_indices=0),
    'soft-limit': lambda: SOFT(STAGE, attention_norm=False, attention=dict(bottleneck_limit=20), out_indices=0),
    'soft-norm-limit': lambda: SOFT(STAGE, attention=dict(bottleneck_limit=6), out_indices=0),
    'soft-norm-no-gain': lambda: SOFT(STAGE, attention=dict(bottleneck_limit=6, bottleneck_gain=False), out_indices=0),
    'xcit': lambda: SimAXCiT(XCIT, out_indices=(0, 1), with_cls_token=True),
    'xcit-masked': lambda: SimAXCiT(XCIT, out_indices=(0, 1), mask_padding=True),
    'deit': lambda: SimADeiT(PLAIN, out_indices=(0, 1), img_size=64, out_type='cls_token'),
    'deit-softmax': lambda: SimADeiT(PLAIN, out_indices=1, img_size=64, attention=dict(type='SoftmaxAttention')),
    'cvt': lambda: SimACvT(CVT, with_cls_token=True),
    'neck': lambda: nn.Sequential(SimADeiT(PLAIN, out_indices=1), RescalePyramid(32)),
}
every_backbone = pytest.mark.parametrize('name', BACKBONES)


class Flat(nn.Module):
    """A backbone whose outputs are a tuple of tensors with names."""

    inputs = ('images',)

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.outputs = [f'out{i}' for i in range(len(self(torch.rand(1, 3, 64, 64))))]

    def forward(self, images):
        outs = []
        for out in self.backbone(images):
            outs += out if isinstance(out, tuple) else [out]
        return tuple(outs)


def backbone(name):
    flat = Flat(BACKBONES[name]())
    for parameter in flat.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)  # nothing may vanish beside the rest
    for norm in flat.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.normal_(norm.running_mean, std=0.1)
            nn.init.uniform_(norm.running_var, 0.5, 1.5)
    return flat.eval()


def check(model, run, sizes):
    for size in sizes:
        images = torch.randn(size[0], 3, *size[1:])
        with torch.no_grad():
            want = model(images)
        got = run(images)
        assert len(got) == len(want)
        for one, other in zip(got, want):
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.xfail(not RECORDS, raises=UsageError, strict=True, reason='ONNX of torch 2.0 has no unflatten')
@every_backbone
def test_onnx_at_any_size(name):
    model, example = backbone(name), (torch.rand(2, 3, 64, 96),)
    with torch.no_grad():
        contents = deployment.to_onnx(model, example, (0, 2, 3), dict(any='thing'))
    assert json.loads(onnx.load_model_from_string(contents).metadata_props[0].value) == dict(any='thing')
    check(
        model,
        deployment.reader(contents),
        [(2, 64, 96), (1, 128, 64), (3, 97, 130), (1, 224, 224), (1, 33, 47), (2, 32, 32), (1, 320, 416)],
    )


def short(name):
    """The backbone, of SOFT one stage, as symbols cost a second a product."""
    model = backbone(name)
    if name.startswith('soft'):
        arch = dict(embed_dims=[16], num_heads=[1], depths=[1], sampling_ratios=[4])
        size = 12 if name == 'soft-norm-fixed' else None  # more than the smallest of the images below has windows for
        attention = dict(type='SOFTAttention', bottleneck_size=size)
        model.backbone = SOFT(arch, out_indices=0, attention=attention).eval()
    return model


@records
@pytest.mark.slow
@pytest.mark.parametrize(
    'name, divisor',
    [('soft', 1), ('soft-norm-fixed', 1), ('xcit-masked', 1), ('xcit-masked', 32), ('cvt', 1), ('neck', 1)],
)
def test_torch_export_at_any_size(name, divisor, tmp_path):
    """As docs/deployment.md does it."""
    model, path = short(name), tmp_path / 'backbone.pt2'
    sides = [torch.export.Dim(side, min=-(-33 // divisor), max=8192 // divisor) for side in ('height', 'width')]
    height, width = sides if divisor == 1 else (divisor * side for side in sides)
    shapes = ({0: torch.export.Dim('batch', min=1, max=256), 2: height, 3: width},)
    with torch.no_grad():
        program = torch.export.export(model, (torch.rand(2, 3, 64, 96),), dynamic_shapes=shapes, strict=False)
    torch.export.save(program, path)
    run = torch.no_grad()(torch.export.load(path).module())
    sizes = [(2, 64, 96), (1, 128, 64), (3, 224, 320)]
    check(model, run, sizes if divisor > 1 else [*sizes, (1, 33, 47), (3, 97, 130)])
    with pytest.raises(TOO_SMALL):
        run(torch.rand(1, 3, 16, 16))


def test_what_is_exported_wrongly_is_refused():
    calls = []

    class Changing(Flat):
        def forward(self, images):
            calls.append(images)
            return (images * len(calls),)

    model, example = Changing(nn.Identity()), (torch.rand(2, 3, 64, 96),)
    contents = deployment.to_onnx(model, example, (0, 2, 3), {})
    with pytest.raises(UsageError, match='the file gives other results, and is not kept'):
        deployment.check(contents, model, example, varied=True)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['soft-norm-fixed', 'xcit', 'deit', 'cvt'])
def test_compiles_to_one_graph(name):
    model = short(name)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend='aot_eager', fullgraph=RECORDS)  # torch 2.0 compiles in pieces
    images, grads = torch.randn(2, 3, 64, 96), []
    for run in (model, compiled):
        model.zero_grad()
        sum(out.square().mean() for out in run(images)).backward()
        grads.append(torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None]))
    assert (grads[0] - grads[1]).norm() < 1e-4 * grads[0].norm()
    check(model, torch.no_grad()(compiled), [(2, 64, 96)])


@pytest.mark.skipif(not RECORDS, reason='torch 2.0 compiles in pieces')
@pytest.mark.slow
def test_compiles_once_for_one_size_and_once_for_others():
    """Sizes that the greatest stride divides; others pad their maps, and have graphs of their own."""
    model, graphs = backbone('soft-norm'), []

    def keep(graph, _):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=keep, fullgraph=True)
    check(model, torch.no_grad()(compiled), [(2, 64, 96), (2, 128, 64), (2, 160, 192), (2, 416, 672)])
    assert len(graphs) == 2
