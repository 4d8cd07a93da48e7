"""What the bodies of SimA have in common."""
from typing import List, Optional

import torch
from torch import nn

from mmsoft.utils import OptionError
from .base import BaseBackbone


class SimABackbone(BaseBackbone):
    """Base class of the SimA backbones: their published initialisation, and SimA as their attention."""

    def default_init_cfg(self) -> List[dict]:
        """Initialisation of the published networks, which leave convolutions as torch makes them."""
        return [dict(type='TruncNormal', layer='Linear', std=0.02, bias=0)]


def sima(attention: Optional[dict], norm_order: Optional[int]) -> dict:
    """The attention of a body: SimA's unless another is given. ``norm_order`` is release 0.1's word for its ``p``."""
    if attention is not None and norm_order is not None:
        raise OptionError("norm_order is an option of SimA's attention: give attention=dict(type='SimAAttention', p=…)")
    return attention or dict(type='SimAAttention', **({} if norm_order is None else dict(p=norm_order)))


def token_parameter(num_tokens: int, embed_dims: int) -> nn.Parameter:
    """Class token or position embedding of shape (1, num_tokens, embed_dims), truncated normal."""
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(1, num_tokens, embed_dims), std=0.02))
