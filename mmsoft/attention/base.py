"""The protocol of attentions, and the place in an architecture for which one is made.

How to add an attention is told in ``docs/design.md``, *A new attention*.
"""

import warnings
from typing import Callable, NamedTuple, Optional

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmsoft.registry import MODELS
from mmsoft.utils import OptionError

HW = tuple[int, int]


class LinearQKV(nn.Linear):
    """One linear map from tokens of C = ``embed_dims`` channels to queries, keys and values of ``num_heads`` heads."""

    def __init__(self, embed_dims: int, num_heads: int) -> None:
        super().__init__(embed_dims, 3 * embed_dims)
        self.num_heads = num_heads

    def forward(self, x: Tensor, hw: HW) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Tokens of shape (B, n, C) to three of shape (B, h, n, C / h)."""
        return super().forward(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()


class Site(NamedTuple):
    """What an architecture knows of the place where tokens attend.

    Attributes:
        dims: Channels C of the tokens.
        heads: Heads h, which divide C.
        grid: Rows and columns of the map that the architecture is made for; maps of other sizes come, too.
        ratio: Rows, and columns, of the map for each row, or column, of bottleneck tokens.
        kernel_size: Size of a convolution of the values, where an attention has one.
        project: Makes what turns tokens into queries, keys and values, from channels and heads; called with tokens
            (B, n, C) and the shape of their map, it returns q of shape (B, h, n, C / h), k and v of (B, h, m, C / h).
    """

    dims: int
    heads: int
    grid: tuple[int, int]
    ratio: int = 1
    kernel_size: int = 3
    project: Callable[[int, int], nn.Module] = LinearQKV


class Attention(BaseModule):
    """Base class of attentions: tokens to tokens of the same shape. A subclass defines :meth:`attend`.

    Args:
        site (Site): The place it is made for.

    Raises:
        ValueError: If the heads do not divide the channels.
    """

    takes_mask = False  #: Whether :meth:`attend` leaves out masked tokens. If not, padded images attend one by one.
    for_class_token = False  #: Whether it returns the first token alone, and so fits only where a class token attends.

    def __init__(self, site: Site) -> None:
        super().__init__()
        if site.dims % site.heads:
            raise OptionError(f'{site.heads} heads do not divide {site.dims} channels')
        self.num_heads = site.heads
        self.attended = nn.Identity()  # attention's output passes here, for hooks (mmsoft.attention.measure)
        self.kind = type(self).__name__

    @property
    def _version(self) -> str:
        """What torch notes in a state dict's ``_metadata``, since names and shapes do not tell attentions apart."""
        return self.kind

    def _load_from_state_dict(self, state_dict: dict, prefix: str, local_metadata: dict, *args) -> None:
        noted = local_metadata.get('version')
        if isinstance(noted, str) and noted != self.kind:
            warnings.warn(
                f'Weights trained with {noted} are loaded into {self.kind}: a start for training, no result yet.'
            )
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    def forward(self, x: Tensor, hw: HW, mask: Optional[Tensor] = None, sizes: Optional[list[HW]] = None) -> Tensor:
        """Attends over tokens.

        Args:
            x (Tensor): Shape (B, extra + H' · W', C): class tokens, if any, in front of the tokens of a map.
            hw (tuple[int, int]): Rows H' and columns W' of the map.
            mask (Tensor, optional): The part of each map that is its image, shape (B, 1, H', W') of bool, some rows
                from the top and some columns from the left (:func:`mmsoft.layers.extent_mask`). Other tokens neither
                attend nor are attended to, and what comes out at their places means nothing. Defaults to None: all do.
            sizes (list[tuple[int, int]], optional): These rows and columns of each image, for attentions without
                masks. If None, they are read from the mask, which stalls a GPU.

        Returns:
            Tensor: Shape of ``x``.
        """
        if mask is None or self.takes_mask:
            return self.attend(x, hw, mask)
        if sizes is None:
            sizes = torch.stack([mask.any(3).sum((1, 2)), mask.any(2).sum((1, 2))], dim=1).tolist()
        extra, outs = x.size(1) - hw[0] * hw[1], []
        for image, (rows, columns) in zip(x.split(1), sizes):
            tokens = image[:, extra:].unflatten(1, hw)[:, :rows, :columns].flatten(1, 2)
            out = self.attend(torch.cat([image[:, :extra], tokens], dim=1), (rows, columns))
            padded = F.pad(out[:, extra:].unflatten(1, (rows, columns)), (0, 0, 0, hw[1] - columns, 0, hw[0] - rows))
            outs.append(torch.cat([out[:, :extra], padded.flatten(1, 2)], dim=1))
        return torch.cat(outs) if outs else x

    def attend(self, x: Tensor, hw: HW, mask: Optional[Tensor] = None) -> Tensor:
        """What :meth:`forward` promises; ``mask`` is None unless :attr:`takes_mask`.

        What attention gives to the tokens passes through :attr:`attended` before anything else is added or projected.
        """
        raise NotImplementedError

    def class_attention(self) -> Optional[dict]:
        """Config of the same attention for a class token, as XCiT has it; None if there is none."""
        return None


class MultiheadAttention(Attention):
    """Attention by a product of queries, keys and values, and a linear map. A subclass defines :meth:`product`."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.qkv = site.project(site.dims, site.heads)
        self.proj = nn.Linear(site.dims, site.dims)

    def attend(self, x: Tensor, hw: HW, mask: Optional[Tensor] = None) -> Tensor:
        """See :class:`Attention`."""
        q, k, v = self.qkv(x, hw)
        if mask is not None:  # class tokens in front of the map take part
            mask = F.pad(mask.flatten(1), (x.size(1) - hw[0] * hw[1], 0), value=True)
        return self.proj(self.attended(self.product(q, k, v, mask).transpose(1, 2).flatten(2)))

    def product(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        """Maps q (B, h, n, d), k (B, h, m, d) and v (B, h, m, c) to (B, h, n, c); mask, if it takes one, is (B, m)."""
        raise NotImplementedError


def build_attention(cfg: dict, site: Site, class_token: bool = False) -> Attention:
    """Builds a registered attention for a place.

    Args:
        cfg (dict): Its type, with or without ``mmsoft.`` in front, and its own options.
        site (Site): The place.
        class_token (bool): Whether the class token alone attends there.

    Raises:
        OptionError: If there is no such attention, it does not fit the place, or it does not know an option.
    """
    if not isinstance(cfg, dict):
        raise OptionError(f"an attention is a dict, as in dict(type='SoftmaxAttention'); got {cfg!r}")
    made = cfg.get('type')
    attention = MODELS.get(made) if isinstance(made, str) else made
    if not (isinstance(attention, type) and issubclass(attention, Attention)):
        known = sorted(name for name, one in MODELS.module_dict.items() if issubclass(one, Attention))
        raise OptionError(
            f'there is no attention {made!r}; choose one of {", ".join(known)}, '
            'or register yours in mmsoft.registry.MODELS'
        )
    if attention.for_class_token and not class_token:
        raise OptionError(f'{attention.__name__} answers the class token alone; choose another attention for the map')
    try:
        return MODELS.build(dict(cfg, _scope_='mmsoft'), default_args=dict(site=site))
    except TypeError as error:
        raise OptionError(f'{made}: {error}') from error
