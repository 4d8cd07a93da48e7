"""Bottleneck tokens of SOFT: how the n queries become m."""
from functools import partial
from typing import Callable, Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmsoft.layers.resample import pooling_matrix, resample
from mmsoft.layers.token_map import to_tokens
from mmsoft.ops.numerics import Size, clamp_size, fresh_size_symbol, is_exporting
from mmsoft.utils import OptionError, check_choice


class BottleneckTokens(BaseModule):
    """Samples bottleneck tokens from the map of queries (2110.11945, Sec. 3.2), then LayerNorm and GELU as published.

    A map that the sampling ratio does not divide is padded at its right and bottom by repeating the border tokens, so
    no token is lost and m = ceil(H / ratio) · ceil(W / ratio).

    Args:
        embed_dims (int): Channels d of one head.
        ratio (int): Kernel size and stride of the sampling.
        sampling (str): ``'conv'`` (published), ``'avg_pool'``, ``'random'`` or ``'biased'`` (the first m tokens).
            Random positions are drawn anew in training and fixed in evaluation.
        size (int, optional): Pool to at most ``size`` × ``size`` tokens, so that m does not grow with the image; a
            smaller stride makes up for a map that is too small for them. Defaults to None: the ratio decides.

    Raises:
        ValueError: If ``sampling`` is unknown or ``size`` less than 1.
    """

    def __init__(self, embed_dims: int, ratio: int, sampling: str = 'conv', size: Optional[int] = None) -> None:
        super().__init__()
        check_choice('sampling', sampling, ('conv', *SAMPLINGS))
        if size is not None and size < 1:
            raise OptionError(f'bottleneck_size must be at least 1; got {size}')
        self.ratio = ratio
        self.size = size
        self.conv = nn.Conv2d(embed_dims, embed_dims, ratio, ratio, bias=False) if sampling == 'conv' else None
        self.sample = SAMPLINGS.get(sampling)
        self.exportable = sampling in ('conv', 'avg_pool', None if size else 'biased')
        self.norm = nn.LayerNorm(embed_dims)
        self.act = nn.GELU()

    def forward(self, q: Tensor) -> Tensor:
        """Maps queries of shape (G, d, H, W) to bottleneck tokens of shape (G, m, d)."""
        if torch.onnx.is_in_onnx_export() and not self.exportable:
            raise OptionError('a bottleneck of random tokens, or of some pooled, is not exported; take the '
                              "published sampling='conv', or 'avg_pool'")
        if is_exporting() and self.exportable:
            tokens = self._sample(self._prepare(q), (self.ratio, self.ratio))
        else:
            windows, stride = zip(*map(self._cover, q.shape[-2:]))
            bottom, right = ((n - 1) * step + self.ratio - extent
                             for n, step, extent in zip(windows, stride, q.shape[-2:]))
            if bottom > 0 or right > 0:
                q = F.pad(q, (0, right, 0, bottom), mode='replicate')
            tokens = self._sample(q, stride)
            if self.size is not None and max(tokens.shape[-2:]) > self.size:
                tokens = resample(tokens, *(pooling_matrix(n, min(n, self.size), tokens) for n in tokens.shape[-2:]))
        return self.act(self.norm(fresh_size_symbol(to_tokens(tokens), 1)))

    def grid(self, hw: Tuple[int, int]) -> Tuple[int, int]:
        """Rows and columns of the tokens that a map of ``hw`` rows and columns is sampled to."""
        rows, columns = (self._cover(extent)[0] for extent in hw)
        return (rows, columns) if self.size is None else (min(rows, self.size), min(columns, self.size))

    def _cover(self, extent: int) -> Tuple[int, int]:
        """Number and stride of windows that reach every token of one side."""
        windows, stride = (extent - 1) // self.ratio + 1, self.ratio
        if self.size is not None:
            beyond = (windows - 1) * self.ratio
            stride = max(1, min(stride, beyond // max(self.size - 1, 1)))
            windows = (beyond + stride - 1) // stride + 1
        return windows, stride

    def _sample(self, q: Tensor, stride: Tuple[int, int]) -> Tensor:
        if self.conv is not None:
            return F.conv2d(q, self.conv.weight, stride=stride)
        return self.sample(q, self.ratio, stride, self.training)

    def _prepare(self, q: Tensor) -> Tensor:
        """A map whose windows stand side by side, in operators that know no more of a size than that it is one.

        Sampling and pooling are both linear, so what is pooled may as well be the windows, before they are sampled.
        """
        if self.size is not None:
            return resample(q, *(self._pooled_windows(extent, q) for extent in q.shape[-2:]))
        for dim in (2, 3):
            extent = q.size(dim)
            token = torch.arange(((extent - 1) // self.ratio + 1) * self.ratio, device=q.device)
            q = q.index_select(dim, token.clamp(max=extent - 1))
        return q

    def _pooled_windows(self, extent: Size, like: Tensor) -> Tensor:
        """Weights of shape (n · ratio, extent) of the tokens of one side in n windows, each the mean of neighbours.

        The k-th token of such a window is a mean over windows ``start`` to ``end``, whose own are ``stride`` apart: it
        has as much of a token as there are such windows that end there, and of the border also what lies beyond.
        """
        n = clamp_size((extent - 1) // self.ratio * self.ratio + 1, self.size) if self.size > 1 else 1
        token, row, k = (torch.arange(count, device=like.device) for count in (extent, n, self.ratio))
        beyond = token[-1:] // self.ratio * self.ratio
        stride = (beyond // max(self.size - 1, 1)).clamp(1, self.ratio)
        windows = (beyond + stride - 1) // stride + 1
        start, end = (t[:, None, None] for t in (row * windows // n, ((row + 1) * windows + n - 1) // n))
        here = torch.minimum(((token - k[:, None] + stride) // stride - start).clamp(min=0), end - start)
        here = torch.where(token < token[-1:], here, end - start)  # how many are at this token or before it
        share = here - F.pad(here[..., :-1], (1, 0))
        dtype = torch.promote_types(like.dtype, torch.float32)
        return (share.to(dtype) / (end - start).to(dtype)).flatten(0, 1)


def _average(q: Tensor, ratio: int, stride, training: bool) -> Tensor:
    return F.avg_pool2d(q, ratio, stride)


def _pick(q: Tensor, ratio: int, stride, training: bool, random: bool) -> Tensor:
    height, width = ((extent - ratio) // step + 1 for extent, step in zip(q.shape[-2:], stride))
    tokens = q.flatten(2)
    if random:
        generator = None if training else torch.Generator().manual_seed(0)
        picked = torch.randperm(tokens.size(2), generator=generator)[:height * width].to(q.device)
    else:
        picked = slice(0, height * width)
    return tokens[:, :, picked].unflatten(2, (height, width))


SAMPLINGS: Dict[str, Callable] = dict(
    avg_pool=_average, random=partial(_pick, random=True), biased=partial(_pick, random=False))
