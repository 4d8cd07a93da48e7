"""What the bodies of SimA have in common."""
from typing import Dict, List, Optional, Tuple, Union

import torch
from torch import nn

from .base import BaseBackbone


class SimABackbone(BaseBackbone):
    """Base class of the SimA backbones: their sizes, their published initialisation and their order of layers."""

    #: Sizes by name.
    arch_settings: Dict[str, dict] = {}

    def default_init_cfg(self) -> List[dict]:
        """Initialisation of the published networks, which leave convolutions as torch makes them."""
        return [dict(type='TruncNormal', layer='Linear', std=0.02, bias=0)]

    @classmethod
    def read_arch(cls, arch: Union[str, dict], num_heads: Optional[int] = None) -> dict:
        """Size by name or as a dict, with other heads if ``num_heads`` is given.

        Raises:
            ValueError: If the name is unknown or an entry is missing.
        """
        known = next(iter(cls.arch_settings.values()))
        if isinstance(arch, str):
            if arch.lower() not in cls.arch_settings:
                raise ValueError(f'arch must be one of {", ".join(cls.arch_settings)}, or a dict; got {arch!r}')
            arch = cls.arch_settings[arch.lower()]
        if set(arch) != set(known):
            raise ValueError(f'arch as a dict needs {", ".join(known)}; got {", ".join(arch)}')
        return {**arch, 'num_heads': arch['num_heads'] if num_heads is None else num_heads}

    @staticmethod
    def _layer_depth(param_name: str, prefix: str, first_layers: Dict[str, int], num_layers: int) -> Tuple[int, int]:
        """Layer of a parameter from the layer that each part starts at; parts named ``…blocks`` count on."""
        part, index, *_ = (param_name[len(prefix):] + '.').split('.') if param_name.startswith(prefix) else ('', '')
        layer = first_layers.get(part, num_layers - 1)
        return (layer + int(index) if part.endswith('blocks') else layer), num_layers


def token_parameter(num_tokens: int, embed_dims: int) -> nn.Parameter:
    """Class token or position embedding of shape (1, num_tokens, embed_dims), truncated normal."""
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(1, num_tokens, embed_dims), std=0.02))
