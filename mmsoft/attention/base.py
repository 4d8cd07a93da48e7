"""Base classes of attentions, and the site that one is built for; ``docs/design.md`` says how to add an attention."""

import warnings
from typing import Any, Callable, NamedTuple, Optional

import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmsoft.layers.maps import HW
from mmsoft.registry import MODELS
from mmsoft.utils import OptionError


class Site(NamedTuple):
    """Position of an attention in an architecture, and the sizes that it is built for."""

    dims: int  #: Channels C of the tokens.
    heads: int  #: Heads h, which divide C.
    grid: HW  #: Rows and columns of the map at the architecture's image size; maps may have other sizes.
    ratio: int = 1  #: Stride at which bottleneck tokens are sampled from the map.
    kernel_size: int = 3  #: Kernel size of the convolution of the values, if the attention has one.
    #: Builds, from C and h, a module from tokens and map shape to q (B, h, n, C/h), k, v (B, h, m, C/h). None: linear.
    project: Optional[Callable[[int, int], nn.Module]] = None


class Attention(BaseModule):
    """Base class of attentions for a ``site``. They keep the shape of tokens. A subclass defines :meth:`attend`."""

    takes_mask = False  #: Whether it supports a mask. If not, padded images attend one by one.
    for_class_token = False  #: Whether it returns only the first token, and so fits only class-attention blocks.
    proj: nn.Module

    def __init__(self, site: Site) -> None:
        super().__init__()
        if site.heads < 1 or site.dims % site.heads:
            raise OptionError(f'{site.heads} heads do not divide {site.dims} channels')
        self.num_heads = site.heads
        self.attended = nn.Identity()  # attention's output passes here, for hooks (mmsoft.attention.measure)
        self.kind = type(self).__name__

    @property
    def _version(self) -> str:
        """Version that torch saves in a state dict's ``_metadata``: names and shapes do not tell attentions apart."""
        return self.kind

    def _load_from_state_dict(self, state_dict: dict, prefix: str, local_metadata: dict, *args) -> None:
        if isinstance(noted := local_metadata.get('version'), str) and noted != self.kind:
            warnings.warn(f'Weights trained with {noted} are loaded into {self.kind}: use them only to start training.')
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    def forward(self, x: Tensor, hw: HW, mask: Optional[Tensor] = None) -> Tensor:
        return self.attend(x, hw, mask)

    def attend(self, x: Tensor, hw: HW, mask: Optional[Tensor] = None) -> Tensor:
        """Attends over tokens. The output of all heads passes through :attr:`attended`, as in :meth:`merge_heads`.

        Args:
            x (Tensor): Shape (B, extra + H' · W', C): class tokens, if any, in front of the tokens of a map.
            hw (tuple[int, int]): Rows H' and columns W' of the map.
            mask (Tensor, optional): True inside the image of each map, bool of shape (B, 1, H', W'), if the class
                :attr:`takes_mask`; see :func:`mmsoft.layers.xcit.extent_mask`. Other tokens neither attend nor are
                attended to, and their output is undefined. Defaults to None: all attend.

        Returns:
            Tensor: Shape of ``x``.
        """
        raise NotImplementedError

    def merge_heads(self, out: Tensor) -> Tensor:
        """Maps the output (B, h, n, C / h) of all heads to tokens (B, n, C), with the layer ``proj`` of a subclass."""
        return self.proj(self.attended(out.transpose(1, 2).flatten(2)))

    def class_attention(self) -> Optional[dict]:
        """Config of the same attention for XCiT's class token; None if there is none."""
        return None


class MultiheadAttention(Attention):
    """Attention by a product of queries, keys and values, and a linear map. A subclass defines :meth:`product`."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.qkv = site.project(site.dims, site.heads) if site.project else nn.Linear(site.dims, 3 * site.dims)
        self.is_linear = site.project is None
        self.proj = nn.Linear(site.dims, site.dims)

    def attend(self, x: Tensor, hw: HW, mask: Optional[Tensor] = None) -> Tensor:
        q, k, v = self.split_heads(x, hw)
        if mask is not None:  # class tokens in front of the map take part
            mask = F.pad(mask.flatten(1), (x.size(1) - hw[0] * hw[1], 0), value=True)
        return self.merge_heads(self.product(q, k, v, mask))

    def split_heads(self, x: Tensor, hw: HW) -> tuple[Tensor, ...]:
        """Maps tokens (B, n, C), with class tokens, to queries (B, h, n, C / h), keys and values (B, h, m, C / h)."""
        if not self.is_linear:
            return self.qkv(x, hw)
        return self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()

    def product(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        """Maps q (B, h, n, d), k (B, h, m, d) and v (B, h, m, c) to (B, h, n, c); ``mask`` is (B, m), if supported."""
        raise NotImplementedError


def attention_class(cfg: Any) -> Any:
    """The class that the ``type`` of an attention's config names; the ``type`` itself if it is not a name."""
    kind = cfg.get('type') if isinstance(cfg, dict) else None
    return MODELS.get(kind) if kind and isinstance(kind, str) else kind


def build_attention(cfg: dict, site: Site, class_token: bool = False) -> Attention:
    """Builds a registered attention for a site.

    ``cfg`` has its type, with or without the prefix ``mmsoft.``, and its options; ``class_token`` means that only the
    class token attends. Raises OptionError if the attention or an option does not exist or fit.
    """
    if not isinstance(cfg, dict):
        raise OptionError(f"an attention is a dict, as in dict(type='SoftmaxAttention'); got {cfg!r}")
    kind, attention = cfg.get('type'), attention_class(cfg)
    if not (isinstance(attention, type) and issubclass(attention, Attention)):
        classes = {name: one for name, one in MODELS.module_dict.items() if isinstance(one, type)}
        known = sorted(name for name, one in classes.items() if issubclass(one, Attention))
        choice = f'choose one of {", ".join(known)}, or register yours in mmsoft.registry.MODELS'
        raise OptionError(f'there is no attention {kind!r}; {choice}')
    if attention.for_class_token and not class_token:
        raise OptionError(f'{attention.__name__} returns only the class token; choose another attention for the map')
    try:
        return MODELS.build(dict(cfg, _scope_='mmsoft'), default_args=dict(site=site))
    except TypeError as error:
        raise OptionError(f'{kind}: {error}') from error
