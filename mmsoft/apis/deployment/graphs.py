"""What an exported file computes: tensors to tensors, where the hosts hand round data structures."""
from typing import Tuple

from torch import Tensor, nn

from mmsoft.layers.resample import pooling_matrix, resample
from .formats import LEAST_SIDE


class Scores(nn.Module):
    """A classifier or segmenter as far as its scores before softmax, at the head's own resolution.

    Args:
        model (nn.Module): A model of mmpretrain or mmseg; its adaptive pooling is replaced.
    """

    inputs: Tuple[str, ...] = ('images', )
    outputs: Tuple[str, ...] = ('logits', )
    least_side: int = LEAST_SIDE

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        for module in list(model.modules()):
            for name, child in module.named_children():
                if type(child) is nn.AdaptiveAvgPool2d and child.output_size not in (1, (1, 1)):
                    setattr(module, name, Pool(child.output_size))

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images (B, 3, H, W) to scores (B, classes), or (B, classes, H', W') of a segmenter."""
        return self.model(images, mode='tensor')


class Pool(nn.Module):
    """Adaptive average pooling for maps of any size, which ONNX has no operator for."""

    def __init__(self, output_size) -> None:
        super().__init__()
        self.output_size = output_size if isinstance(output_size, tuple) else (output_size, output_size)

    def forward(self, x: Tensor) -> Tensor:
        """Maps of shape (B, C, H, W) to (B, C, \\*output_size)."""
        return resample(x, *(pooling_matrix(n, new, x) for n, new in zip(x.shape[2:], self.output_size)))
