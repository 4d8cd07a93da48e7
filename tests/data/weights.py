"""Weights of small networks, in files and loaded from them."""

import torch
from published import to_published

from mmsoft.checkpoint.names import to_mmsoft

SMALL = dict(embed_dims=[32, 64], num_heads=[1, 2], depths=[1, 2])
FOUR_STAGES = dict(embed_dims=[32, 32, 32, 64], num_heads=[1, 1, 1, 2], depths=[1, 1, 1, 1])
XCIT = dict(embed_dims=32, num_heads=2, depth=4, patch_size=8, gamma=1.0, norm_tokens=True)
NETWORKS = [
    dict(type='mmsoft.SOFT', arch=SMALL, out_indices=(0, 1)),
    dict(type='mmsoft.SOFT', arch=FOUR_STAGES),
    dict(type='mmsoft.SimAXCiT', arch=XCIT, out_indices=(0, 3), with_cls_token=True),
    dict(type='mmsoft.SimADeiT', arch=dict(embed_dims=32, num_heads=2, depth=2), out_indices=(0, 1)),
    dict(type='mmsoft.SimACvT', arch=dict(embed_dims=[16, 32, 48], num_heads=[1, 2, 3], depths=[1, 1, 2])),
]


def weights_of(backbone):
    """A published state dict of any size, of random weights."""
    torch.manual_seed(0)
    ours = {
        f'backbone.{name}': torch.rand_like(t) if t.is_floating_point() else t
        for name, t in backbone.state_dict().items()
    }
    head = {'head.fc.weight': torch.rand(10, 64), 'head.fc.bias': torch.rand(10)}
    return to_published(backbone.published, {**ours, **head})


def saved(path, content):
    torch.save(content, path)
    return str(path)


def loaded(backbone, published):
    """Whether a backbone holds the tensors of a published state dict."""
    ours = to_mmsoft(published)[1]
    return all(torch.equal(tensor, ours[f'backbone.{name}']) for name, tensor in backbone.state_dict().items())
