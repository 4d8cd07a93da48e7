"""Mixed precision where mmengine has none."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapper
from mmengine.utils import apply_to
from torch import Tensor, nn

from mmsoft.registry import OPTIM_WRAPPERS
from mmsoft.utils import UsageError


@contextmanager
def _in_bfloat16(module: nn.Module) -> Iterator[None]:
    """Inside, the module computes in bfloat16 and returns float32."""
    running = ExitStack()

    def enter(*_) -> None:
        device = next(module.parameters(), torch.empty(0)).device.type
        running.enter_context(torch.autocast(device, dtype=torch.bfloat16))

    def leave(_, __, outputs: Any) -> Any:
        running.close()
        return apply_to(outputs, lambda value: isinstance(value, Tensor), Tensor.float)

    hooks = module.register_forward_pre_hook(enter), module.register_forward_hook(leave)
    try:
        yield
    finally:
        running.close()
        for hook in hooks:
            hook.remove()


def _feature_extractors(model: nn.Module) -> list[nn.Module]:
    """The backbones and necks of a model, and of those inside it, as of a student and its teacher."""
    children = dict(model.named_children())
    found = [children[name] for name in ('backbone', 'neck') if name in children]
    return found or [part for child in children.values() for part in _feature_extractors(child)]


@OPTIM_WRAPPERS.register_module()
class BFloat16OptimWrapper(OptimWrapper):
    """Trains with features in bfloat16: for CPUs, on which ``AmpOptimWrapper`` cannot be built, and for detectors.

    Backbone and neck compute in bfloat16, heads and losses in float32, because mmcv's operators (NMS, RoIAlign, the
    focal loss) do not support bfloat16, on a GPU neither. Losses are not scaled: bfloat16 has the range of float32.
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Lets the model extract features in bfloat16 inside; UsageError if it has neither backbone nor neck."""
        parts = _feature_extractors(model.module if is_model_wrapper(model) else model)
        if not parts:
            raise UsageError(
                f'--amp computes backbones and necks in bfloat16, and {type(model).__name__} has none; '
                'train without it.'
            )
        with super().optim_context(model), ExitStack() as inside:
            for part in parts:
                inside.enter_context(_in_bfloat16(part))
            yield
