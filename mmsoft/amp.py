"""Mixed precision where mmengine has none."""
from contextlib import contextmanager
from typing import Iterator

import torch
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from torch import nn


@OPTIM_WRAPPERS.register_module()
class CPUAmpOptimWrapper(OptimWrapper):
    """Trains in bfloat16 on the CPU, where ``AmpOptimWrapper`` refuses to.

    Losses are not scaled, because bfloat16 reaches as far as float32.
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Lets the model compute in bfloat16 inside."""
        with super().optim_context(model), torch.autocast('cpu', dtype=torch.bfloat16):
            yield
