"""Files as the authors' trainers write them, filled with the reference weights."""

import argparse
from pathlib import Path

import torch
from reference_weights import reference_state_dict

DATA = Path(__file__).parent
# Fixture, backbone and the key that the authors keep the weights under.
NETWORKS = dict(
    soft_tiny=(dict(type='mmsoft.SOFT', arch='tiny', attention_norm=False), 'state_dict'),
    soft_norm_tiny=(dict(type='mmsoft.SOFT', arch='tiny', attention_norm=True), 'state_dict'),
    sima_tiny_12_p16=(dict(type='mmsoft.SimAXCiT', arch='tiny-12-p16'), 'model'),
    deit_small_patch16_224=(dict(type='mmsoft.SimADeiT', arch='small'), 'model'),
    cvt_13=(dict(type='mmsoft.SimACvT', arch='13'), 'model'),
)


def published_state_dict(name):
    return reference_state_dict(DATA / f'{name}.keys.json')


def write_timm_file(path, state_dict, entry='state_dict', **others):
    """The averaged weights are the right ones, the others zeros; names start with ``module.``."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))])
    args = argparse.Namespace(lr=1e-3, model='x')
    checkpoint = dict(epoch=299, arch='soft', optimizer=optimizer.state_dict(), args=args)
    checkpoint[entry] = {f'module.{name}': tensor for name, tensor in state_dict.items()}
    if entry == 'state_dict':
        checkpoint['state_dict_ema'] = checkpoint[entry]
        checkpoint[entry] = {name: torch.zeros_like(tensor) for name, tensor in checkpoint[entry].items()}
    torch.save({**checkpoint, **others}, path)
    return str(path)
