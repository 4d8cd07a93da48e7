"""Between tokens and the map that they form."""
from typing import Tuple

from torch import Tensor


def to_map(tokens: Tensor, hw: Tuple[int, int]) -> Tensor:
    """Views tokens of shape (B, n, C) as a map of shape (B, C, H, W) with n = H · W, in channels-last format.

    Of a single image, ``transpose(1, 2).unflatten(2, hw)`` has a batch stride that PyTorch takes for another format:
    each convolution would then copy the map.
    """
    return tokens.reshape(tokens.size(0), *hw, tokens.size(2)).permute(0, 3, 1, 2)


def to_tokens(x: Tensor) -> Tensor:
    """Views a map of shape (B, C, H, W) as tokens of shape (B, H · W, C)."""
    return x.flatten(2).transpose(1, 2)
