"""Feed-forward networks of tokens."""
import torch
from mmcv.cnn import build_activation_layer
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmsoft.ops.numerics import is_compiling, is_exporting

# Elements of the wide intermediate at a time, in evaluation on a CPU: a run of tokens that stays in cache. A compiler
# would write out a number of runs, and start anew for each other.
RUN_ELEMENTS = 2**19


class FFN(BaseModule):
    """Two linear maps with an activation between them, without a residual connection.

    Args:
        embed_dims (int): Channels C.
        ratio (float): Width of the intermediate over C. Defaults to 4.
        act_cfg (dict): Activation. Defaults to the exact GELU.
    """

    def __init__(self, embed_dims: int, ratio: float = 4, act_cfg: dict = dict(type='GELU')) -> None:
        super().__init__()
        width = int(ratio * embed_dims)
        act = build_activation_layer(act_cfg)
        self.layers = nn.Sequential(
            nn.Sequential(nn.Linear(embed_dims, width), act), nn.Linear(width, embed_dims))

    def forward(self, x: Tensor) -> Tensor:
        """Tokens of shape (B, n, C) to the same."""
        if torch.is_grad_enabled() or x.device.type != 'cpu' or is_exporting() or is_compiling():
            return self.layers(x)
        tokens = max(1, RUN_ELEMENTS // max(1, x.size(0) * self.layers[1].in_features))
        if x.size(1) <= tokens:
            return self.layers(x)
        return torch.cat([self.layers(run) for run in x.split(tokens, dim=1)], dim=1)


class QuickGELU(nn.Module):
    """``x · sigmoid(1.702 x)``, CvT's approximation of the GELU."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape to the same."""
        return x * torch.sigmoid(1.702 * x)
