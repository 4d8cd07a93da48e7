"""Mixed precision where mmengine has none."""
from contextlib import ExitStack, contextmanager
from typing import Any, Iterator

import torch
from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapper
from torch import Tensor, nn

from mmsoft.registry import OPTIM_WRAPPERS


def _to_float32(node: Any) -> Any:
    if isinstance(node, Tensor):
        return node.float()
    if isinstance(node, (list, tuple)):
        return type(node)(_to_float32(one) for one in node)
    return node


@contextmanager
def _in_bfloat16(module: nn.Module) -> Iterator[None]:
    """Inside, the module computes in bfloat16 and returns float32."""
    running = ExitStack()

    def enter(*_) -> None:
        device = next(module.parameters(), torch.empty(0)).device.type
        running.enter_context(torch.autocast(device, dtype=torch.bfloat16))

    def leave(_, __, outputs: Any) -> Any:
        running.close()
        return _to_float32(outputs)

    hooks = module.register_forward_pre_hook(enter), module.register_forward_hook(leave)
    try:
        yield
    finally:
        running.close()
        for hook in hooks:
            hook.remove()


@OPTIM_WRAPPERS.register_module()
class BFloat16OptimWrapper(OptimWrapper):
    """Trains with features in bfloat16: on the CPU, where ``AmpOptimWrapper`` refuses to be made, and of detectors.

    Backbone and neck compute in bfloat16, heads and losses in float32, because mmcv's operators (NMS, RoIAlign, the
    focal loss) know no bfloat16, on a GPU neither. Losses are not scaled, because bfloat16 reaches as far as float32.
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Lets the model extract its features in bfloat16 inside."""
        inner = model.module if is_model_wrapper(model) else model
        with super().optim_context(model), ExitStack() as inside:
            for part in (getattr(inner, 'backbone', None), getattr(inner, 'neck', None)):
                if part is not None:
                    inside.enter_context(_in_bfloat16(part))
            yield
