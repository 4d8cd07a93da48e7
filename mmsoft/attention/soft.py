"""The modules of SOFT's attention: projections and bottleneck tokens. The product itself is in mmsoft/ops/soft.py."""

from collections.abc import Sequence
from typing import Any, Optional

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmsoft.layers.embed import HeadConv, PatchConv
from mmsoft.layers.maps import HW, resample, to_map, to_tokens, whole_windows
from mmsoft.ops.gain import matched_attention, spread_places
from mmsoft.ops.numerics import clamp_size, fresh_size_symbol, is_compiling, is_exporting
from mmsoft.ops.soft import soft_attention, soft_norm_attention
from mmsoft.registry import MODELS
from mmsoft.utils import OptionError, check_choice

from .base import Attention, Site


@MODELS.register_module()
class SOFTAttention(Attention):
    """Softmax-free attention (2110.11945, Sec. 3), with the normalisation of 2207.03341, Eq. 25.

    Keys equal queries. As in the published code, a depthwise convolution of the values, one filter per head, is added;
    the papers do not mention it. A class token attends and is attended to, but takes no part in the convolutions.

    Args:
        norm (bool): SOFT-Norm instead of SOFT. Defaults to True.
        sampling (str): Sampling of bottleneck tokens (2207.03341, Table 8): ``'conv'`` (published), ``'avg_pool'``,
            ``'random'`` or ``'biased'`` (the first m). Random positions change with each call only in training.
        bottleneck_size (int, optional): Maximum rows and columns of bottleneck tokens (6, 7, 8, 9 in 2207.03341, Table
            7), which makes cost linear in the tokens. Defaults to None: their number grows with the image.
        initial_gamma (float): Weight γ of the bottleneck's LayerNorm after ``init_weights``: 1 as published; with less,
            the kernel starts wider. From scratch, SOFT-Norm learns to attend at once with 0.3, and may never do so with
            1. Detectors with plain SOFT do not learn with 0.3.
        newton_iterations (int): Newton–Raphson steps of the inverse, see :func:`mmsoft.ops.inverse_product`.
        bottleneck_limit (int, optional): Maximum number of bottleneck tokens, at least 4, for large images. Of more
            tokens, this many are kept, spread evenly over the map; fewer are unchanged. Defaults to None.
        bottleneck_gain (bool): Beyond the limit, scale each head as with all tokens, in training, too; see
            :func:`mmsoft.ops.matched_attention`. Weights trained without a limit need it.
    """

    def __init__(
        self,
        site: Site,
        norm: bool = True,
        sampling: str = 'conv',
        bottleneck_size: Optional[int] = None,
        initial_gamma: float = 1.0,
        newton_iterations: int = 20,
        bottleneck_limit: Optional[int] = None,
        bottleneck_gain: bool = True,
    ) -> None:
        super().__init__(site)
        counts = ('newton_iterations', newton_iterations, 1), ('bottleneck_size', bottleneck_size, 1)
        for name, count, minimum in (*counts, ('bottleneck_limit', bottleneck_limit, 4)):  # Newton annuls 1 or 2 tokens
            if count is not None and (not isinstance(count, int) or count < minimum):
                raise OptionError(f'{name} must be an integer, at least {minimum}; got {count!r}')
        dims, heads, kernel_size = site.dims, site.heads, site.kernel_size
        if kernel_size % 2 == 0:
            raise OptionError(f'kernel sizes must be odd; got {kernel_size}')
        self.kind = f'{self.kind}(norm={norm})'
        self.scale = (dims // heads) ** -0.25  # for 1/√d of 2110.11945, Eq. 4; the LayerNorm undoes it
        self.norm, self.limit, self.gain, self.iterations = norm, bottleneck_limit, bottleneck_gain, newton_iterations
        self.product = soft_norm_attention if norm else soft_attention
        self.query = nn.Linear(dims, dims)
        self.value = nn.Linear(dims, dims)
        self.bottleneck = BottleneckTokens(dims // heads, site.ratio, sampling, bottleneck_size, initial_gamma)
        self.conv = HeadConv(dims, heads, kernel_size)
        self.proj = nn.Linear(dims, dims)

    def attend(self, x: Tensor, hw: HW, mask: Optional[Tensor] = None) -> Tensor:
        extra = x.size(1) - hw[0] * hw[1]
        q, v = self.query(x) * self.scale, self.value(x)
        sizes = *x.shape[:2], self.num_heads, q.size(2) // self.num_heads  # unflatten hides the last from ONNX
        q_heads, v_heads = (t.reshape(sizes).transpose(1, 2) for t in (q, v))
        q_heads = q_heads.contiguous()  # so that the map of each head is contiguous
        bottleneck = self.bottleneck(to_map(q_heads[:, :, extra:].flatten(0, 1), hw))
        bottleneck = bottleneck.reshape(x.size(0), self.num_heads, *bottleneck.shape[1:])  # ONNX: any batch size
        few = self._few(bottleneck, hw)
        if few is bottleneck or not self.gain:
            out = self.product(q_heads, few, v_heads, self.iterations)
        else:
            out = matched_attention(q_heads, few, v_heads, bottleneck, self.norm, self.iterations)
        out = self.attended(out.transpose(1, 2).flatten(2))
        local = to_tokens(self.conv(to_map(v[:, extra:], hw)))
        return self.proj(out + (F.pad(local, (0, 0, extra, 0)) if extra else local))

    def _few(self, bottleneck: Tensor, hw: HW) -> Tensor:
        """At most ``limit`` of the tokens (B, h, m, d) of a map of shape ``hw``; unchanged if none is left out."""
        limit = self.limit
        if limit is None:
            return bottleneck
        in_onnx = torch.onnx.is_in_onnx_export()  # for images of any size
        if is_exporting() and not in_onnx:
            if not all(type(side) is int for side in hw):
                raise OptionError('torch.export with bottleneck_limit needs images of one size')
            hw = len(range(hw[0])), len(range(hw[1]))  # in dynamo a dynamic side has the type int, too, but no range
        rows, columns = self.bottleneck.grid(hw)
        if not in_onnx and rows * columns <= limit:
            return bottleneck
        if self.bottleneck.picks:
            return bottleneck[:, :, :limit]
        # Tokens are picked, not averaged: for a narrow kernel, the mean of neighbours is far from all of them.
        places = spread_places(rows * columns, limit, bottleneck.device)
        if not (is_compiling() and torch.is_grad_enabled()):
            return bottleneck[:, :, places]
        # Inductor may read the gradient of indexed tokens too early, so a product picks them; float64 is never rounded.
        picked = (places[:, None] == torch.arange(rows * columns, device=places.device)).double()
        return (picked @ bottleneck.double()).to(bottleneck.dtype)


class BottleneckTokens(BaseModule):
    """Samples bottleneck tokens from the map of queries (2110.11945, Sec. 3.2), then LayerNorm and GELU as published.

    A map that the sampling ratio does not divide is padded at its right and bottom by repeating the border tokens, so
    no token is lost and m = ceil(H / ratio) · ceil(W / ratio).

    Args:
        embed_dims (int): Channels d of one head.
        ratio (int): Kernel size and stride of the sampling.
        sampling, size, initial_gamma: See :class:`SOFTAttention`. Maps are sampled to at most ``size`` × ``size``
            tokens, with a smaller stride if a map is too small for them. None: the ratio decides.
    """

    def __init__(
        self, embed_dims: int, ratio: int, sampling: str = 'conv', size: Optional[int] = None, initial_gamma: float = 1
    ) -> None:
        super().__init__(init_cfg=dict(type='Constant', layer='LayerNorm', val=initial_gamma))
        check_choice('sampling', sampling, ('conv', 'avg_pool', 'random', 'biased'))
        self.ratio, self.sampling, self.size, self.picks = ratio, sampling, size, sampling in ('random', 'biased')
        self.conv = PatchConv(embed_dims, embed_dims, ratio, bias=False) if sampling == 'conv' else None
        self.norm = nn.LayerNorm(embed_dims)
        self.act = nn.GELU()

    def forward(self, q: Tensor) -> Tensor:
        """Maps queries of shape (G, d, H, W) to bottleneck tokens of shape (G, m, d)."""
        grid = self.grid(q.shape[2:])
        if self.picks:
            tokens = self._pick(to_tokens(q), grid[0] * grid[1])
        else:
            windows = self._windows(q, grid)
            tokens = to_tokens(F.avg_pool2d(windows, self.ratio) if self.conv is None else self.conv(windows))
        return self.act(self.norm(fresh_size_symbol(tokens, 1)))

    def grid(self, hw: Sequence[int]) -> tuple[Any, Any]:
        """Rows and columns of the bottleneck tokens of a map with ``hw`` rows and columns."""
        grid: Any = [(side - 1) // self.ratio + 1 for side in hw]
        if self.size is not None:
            grid = [clamp_size((n - 1) * self.ratio + 1, self.size) if self.size > 1 else 1 for n in grid]
        return tuple(grid)

    def _windows(self, q: Tensor, grid: tuple[Any, Any]) -> Tensor:
        """The windows that are sampled, side by side: (G, d, rows · ratio, columns · ratio)."""
        if self.size is None or (not is_exporting() and grid == tuple(-(-n // self.ratio) for n in q.shape[2:])):
            return whole_windows(q, self.ratio)
        return resample(q, *(self._pooling(side, n, q) for side, n in zip(q.shape[2:], grid)))

    def _pooling(self, side: int, n: Any, like: Tensor) -> Tensor:
        """Weights (n · ratio, side) that turn one side of a map into n windows, each the mean of neighbouring windows.

        Sampling is linear, so a token is the mean of their tokens. The stride of the windows is the ratio, or less if a
        side is too short for n. In exported graphs, stride and number of windows depend on the input: they are tensors.
        """
        assert self.size is not None
        token, row, k = (torch.arange(count, device=like.device) for count in (side, n, self.ratio))
        last = token[-1:] // self.ratio * self.ratio  # where the last window begins, with the published stride
        stride = (last // max(self.size - 1, 1)).clamp(1, self.ratio)
        windows = (last + stride - 1) // stride + 1
        start, end = (t[:, None, None] for t in (row * windows // n, ((row + 1) * windows + n - 1) // n))
        # how many of the windows from start to end have their k-th token at this token or before it
        reached = torch.minimum(((token - k[:, None] + stride) // stride - start).clamp(min=0), end - start)
        reached = torch.where(token < token[-1:], reached, end - start)  # the last one stands for all beyond the map
        share = reached - F.pad(reached[..., :-1], (1, 0))
        dtype = torch.promote_types(like.dtype, torch.float32)
        return (share.to(dtype) / (end - start).to(dtype)).flatten(0, 1)

    def _pick(self, tokens: Tensor, count: Any) -> Tensor:
        """The first ``count`` tokens of (G, n, d), or random ones."""
        if self.sampling == 'biased':
            return tokens[:, :count]
        if torch.onnx.is_in_onnx_export() or torch.jit.is_tracing():
            raise OptionError("random bottleneck tokens are not exported; take the published sampling='conv'")
        generator = None if self.training else torch.Generator().manual_seed(0)
        return tokens[:, torch.randperm(tokens.size(1), generator=generator, device='cpu')[:count].to(tokens.device)]
