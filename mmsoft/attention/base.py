"""The protocol of attentions, and the place in a body for which one is made.

A new attention is one file: a subclass of :class:`Attention`, or of :class:`MultiheadAttention` if it is a product of
queries, keys and values, registered in :data:`mmsoft.registry.MODELS`. Every body takes it as
``attention=dict(type=…)``.
"""
import re
from typing import Callable, NamedTuple, Optional, Tuple

from mmengine.model import BaseModule
from torch import Tensor, nn

from mmsoft.layers.padding import one_by_one
from mmsoft.layers.projection import LinearQKV
from mmsoft.registry import MODELS
from mmsoft.utils import OptionError


class Site(NamedTuple):
    """What a body knows of the place where tokens attend.

    Attributes:
        dims: Channels C of the tokens.
        heads: Heads h, which divide C.
        grid: Rows and columns of the map that the body is made for; other maps come, too.
        ratio: Rows, and columns, of the map for one row, or column, of landmarks where an attention samples them.
        kernel_size: Size of a convolution of the values, where an attention has one.
        project: Makes what turns tokens into queries, keys and values, from channels and heads; called with tokens
            (B, n, C) and the shape of their map, it returns q of shape (B, h, n, C / h), k and v of (B, h, m, C / h).
    """
    dims: int
    heads: int
    grid: Tuple[int, int]
    ratio: int = 1
    kernel_size: int = 3
    project: Callable[[int, int], nn.Module] = LinearQKV


class Attention(BaseModule):
    """Base class of attentions: tokens to tokens of the same shape.

    A subclass defines :meth:`attend`.

    Args:
        site (Site): The place it is made for.

    Raises:
        ValueError: If the heads do not divide the channels.
    """

    #: Whether :meth:`attend` leaves out masked tokens by itself. Where it does not, padded images attend one by one.
    takes_mask = False
    #: Whether it answers the first token alone, and so fits nowhere but where a class token attends.
    for_class_token = False

    def __init__(self, site: Site) -> None:
        super().__init__()
        if site.dims % site.heads:
            raise OptionError(f'{site.heads} heads do not divide {site.dims} channels')
        self.num_heads = site.heads
        self.kind = type(self).__name__  # noted in checkpoints, since names and shapes do not tell

    def forward(self, x: Tensor, hw: Tuple[int, int], mask: Optional[Tensor] = None) -> Tensor:
        """Attends over tokens.

        Args:
            x (Tensor): Shape (B, extra + H' · W', C): class tokens, if any, in front of the tokens of a map.
            hw (tuple[int, int]): Rows H' and columns W' of the map.
            mask (Tensor, optional): The part of each map that is its image, shape (B, 1, H', W') of bool, some rows
                from the top and some columns from the left (:func:`mmsoft.layers.extent_mask`). Other tokens neither
                attend nor are attended to, and what comes out at their places means nothing. Defaults to None: all
                do.

        Returns:
            Tensor: Shape of ``x``.
        """
        if mask is None or self.takes_mask:
            return self.attend(x, hw, mask)
        return one_by_one(self.attend, x, hw, mask)

    def attend(self, x: Tensor, hw: Tuple[int, int], mask: Optional[Tensor] = None) -> Tensor:
        """What :meth:`forward` promises; ``mask`` is None unless :attr:`takes_mask`."""
        raise NotImplementedError


class MultiheadAttention(Attention):
    """Attention that is a product of queries, keys and values, head by head, and a linear map behind it.

    A subclass defines :meth:`product`.
    """

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.qkv = site.project(site.dims, site.heads)
        self.proj = nn.Linear(site.dims, site.dims)

    def attend(self, x: Tensor, hw: Tuple[int, int], mask: Optional[Tensor] = None) -> Tensor:
        """See :class:`Attention`."""
        q, k, v = self.qkv(x, hw)
        if mask is not None:
            mask = mask_of_tokens(mask, x.size(1))
        return self.proj(self.product(q, k, v, mask).transpose(1, 2).flatten(2))

    def product(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        """Maps q of shape (B, h, n, d), k of (B, h, m, d) and v of (B, h, m, c) to (B, h, n, c).

        ``mask``, of shape (B, n) for n = m, is None unless :attr:`takes_mask`.
        """
        raise NotImplementedError


def mask_of_tokens(mask: Tensor, tokens: int) -> Tensor:
    """Mask of a map, (B, 1, H', W'), as one of all tokens, (B, tokens): class tokens in front take part."""
    mask = mask.flatten(1)
    return nn.functional.pad(mask, (tokens - mask.size(1), 0), value=True)


def build_attention(cfg: dict, site: Site, class_token: bool = False) -> Attention:
    """Builds a registered attention for a place.

    Args:
        cfg (dict): Its type, ``mmsoft.`` in front or not, and its own options.
        site (Site): The place.
        class_token (bool): Whether the class token alone attends there.

    Raises:
        ValueError: If there is no such attention, it does not fit the place, or it does not know an option.
    """
    if not isinstance(cfg, dict):
        raise OptionError(f"an attention is a dict, as in dict(type='SoftmaxAttention'); got {cfg!r}")
    made = cfg.get('type')
    attention = MODELS.get(re.sub(r'^mmsoft\.', '', made)) if isinstance(made, str) else made
    if not (isinstance(attention, type) and issubclass(attention, Attention)):
        known = sorted(name for name, one in MODELS.module_dict.items() if issubclass(one, Attention))
        raise OptionError(f'there is no attention {made!r}; choose one of {", ".join(known)}, or register yours in '
                         'mmsoft.registry.MODELS')
    if attention.for_class_token and not class_token:
        raise OptionError(f'{attention.__name__} answers the class token alone; choose another attention for the body')
    try:
        return MODELS.build(dict(cfg, _scope_='mmsoft'), default_args=dict(site=site))
    except TypeError as error:
        raise OptionError(f'{made}: {error}') from error
