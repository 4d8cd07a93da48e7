"""Mixed precision where mmengine has none."""
from contextlib import contextmanager
from typing import Any, Iterator

import torch
from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from torch import Tensor, nn


def _to_float32(node: Any) -> Any:
    if isinstance(node, Tensor):
        return node.float()
    if isinstance(node, (list, tuple)):
        return type(node)(_to_float32(one) for one in node)
    return node


@OPTIM_WRAPPERS.register_module()
class CPUAmpOptimWrapper(OptimWrapper):
    """Trains on the CPU with features in bfloat16, where ``AmpOptimWrapper`` refuses to be made.

    Backbone and neck compute in bfloat16, heads and losses in float32, because mmcv's operators for CPUs (NMS,
    RoIAlign) know no bfloat16. Losses are not scaled, because bfloat16 reaches as far as float32.
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Lets the model extract its features in bfloat16 inside."""
        inner = model.module if is_model_wrapper(model) else model
        extract_feat = inner.extract_feat

        def extract(*args, **kwargs):
            with torch.autocast('cpu', dtype=torch.bfloat16):
                return _to_float32(extract_feat(*args, **kwargs))

        inner.extract_feat = extract
        try:
            with super().optim_context(model):
                yield
        finally:
            del inner.extract_feat
