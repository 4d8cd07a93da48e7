"""Small SimA backbones, and one of SOFT."""

import pytest
import torch
from reference_weights import reference_tensor

from mmsoft.backbones import SimACvT, SimADeiT, SimAXCiT

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


def reference_weights(model):
    model.load_state_dict({name: reference_tensor(name, tuple(t.shape)) for name, t in model.state_dict().items()})
