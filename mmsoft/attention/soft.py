"""SOFT's attention: a Gaussian kernel and its Nyström decomposition."""
from typing import Optional, Tuple

import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.layers.token_map import to_map, to_tokens
from mmsoft.ops import INVERSE_METHODS, soft_attention, soft_norm_attention
from mmsoft.registry import MODELS
from mmsoft.utils import OptionError, check_choice
from .base import Attention, Site
from .bottleneck import BottleneckTokens


@MODELS.register_module()
class SOFTAttention(Attention):
    """Softmax-free attention (2110.11945, Sec. 3), with the normalisation of 2207.03341, Eq. 25.

    Keys equal queries. As published, a depthwise convolution of the values, one filter per head, is added to the
    attention, which the papers do not mention. A class token in front of the map's tokens attends and is attended to,
    but takes no part in the convolutions.

    Args:
        site (Site): The place it is made for.
        norm (bool): SOFT-Norm instead of SOFT. Defaults to True.
        sampling (str): Bottleneck tokens by ``'conv'``, ``'avg_pool'``, ``'random'`` or ``'biased'`` (2207.03341,
            Table 8), see :class:`BottleneckTokens`.
        bottleneck_size (int, optional): At most as many rows and columns of bottleneck tokens (6, 7, 8, 9 in
            2207.03341, Table 7), so that cost is linear in the tokens. Defaults to None: they grow with the image.
        newton_iterations (int): Newton–Raphson steps.
        inverse (str): One of :data:`mmsoft.ops.INVERSE_METHODS`, see :func:`mmsoft.ops.inverse_product`.

    Raises:
        ValueError: If an argument names something that does not exist, or the heads do not divide the channels.
    """

    def __init__(self,
                 site: Site,
                 norm: bool = True,
                 sampling: str = 'conv',
                 bottleneck_size: Optional[int] = None,
                 newton_iterations: int = 20,
                 inverse: str = 'auto') -> None:
        super().__init__(site)
        check_choice('inverse', inverse, INVERSE_METHODS)
        if newton_iterations < 1:
            raise OptionError(f'newton_iterations must be at least 1; got {newton_iterations}')
        dims, heads, kernel_size = site.dims, site.heads, site.kernel_size
        self.kind = f'SOFTAttention(norm={norm})'
        self.scale = (dims // heads)**-0.25
        self.product = soft_norm_attention if norm else soft_attention
        self.options = dict(iterations=newton_iterations, inverse=inverse)
        self.query = nn.Linear(dims, dims)
        self.value = nn.Linear(dims, dims)
        self.bottleneck = BottleneckTokens(dims // heads, site.ratio, sampling, bottleneck_size)
        self.conv = nn.Conv2d(heads, heads, kernel_size, padding=kernel_size // 2, groups=heads, bias=False)
        self.proj = nn.Linear(dims, dims)

    def attend(self, x: Tensor, hw: Tuple[int, int], mask: Optional[Tensor] = None) -> Tensor:
        """See :class:`Attention`."""
        extra = x.size(1) - hw[0] * hw[1]
        q, v = self.query(x) * self.scale, self.value(x)
        q_heads, v_heads = (t.unflatten(2, (self.num_heads, -1)).transpose(1, 2) for t in (q, v))
        q_heads = q_heads.contiguous()  # a head's map in one piece, for its convolution
        q_map = to_map(q_heads[:, :, extra:].flatten(0, 1), hw)
        bottleneck = self.bottleneck(q_map)
        bottleneck = bottleneck.reshape(x.size(0), self.num_heads, *bottleneck.shape[1:])
        out = self.product(q_heads, bottleneck, v_heads, **self.options).transpose(1, 2).flatten(2)
        local = self._convolve(v[:, extra:], hw)
        return self.proj(out + (F.pad(local, (0, 0, extra, 0)) if extra else local))

    def _convolve(self, v: Tensor, hw: Tuple[int, int]) -> Tensor:
        """Depthwise convolution of (B, n, C), each head's filter shared by its channels."""
        channels = self.proj.in_features
        filters = self.conv.weight.unsqueeze(1).expand(-1, channels // self.num_heads, -1, -1, -1).flatten(0, 1)
        return to_tokens(F.conv2d(to_map(v, hw), filters, padding=self.conv.padding, groups=channels))
