"""What DINO's training adds: schedules, the moving teacher, and gradients that are clipped tensor by tensor."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.registry import HOOKS, OPTIM_WRAPPERS
from mmengine.runner import Runner
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from .dino import DINO


def cosine(start: float, end: float, step: int, steps: int) -> float:
    """Half a cosine wave from ``start`` at step 0 to ``end`` at ``steps``."""
    return end + (start - end) * (1 + math.cos(math.pi * step / steps)) / 2


@HOOKS.register_module()
class DINOHook(Hook):
    """Moves the teacher after each iteration, and keeps DINO's schedules.

    Args:
        momentum (float): The teacher's, which rises to 1.
        weight_decay (tuple[float, float]): At the beginning and the end; parameters without weight decay stay so.
        teacher_temperature (tuple[float, float]): At the beginning, and after ``warmup_epochs``.
        warmup_epochs (int): Epochs in which the temperature changes linearly.
        frozen_epochs (int): Epochs in which the last layer does not learn.
    """

    def __init__(
        self,
        momentum: float = 0.996,
        weight_decay: tuple[float, float] = (0.04, 0.4),
        teacher_temperature: tuple[float, float] = (0.04, 0.04),
        warmup_epochs: int = 0,
        frozen_epochs: int = 1,
    ) -> None:
        self.momentum, self.weight_decay, self.frozen_epochs = momentum, weight_decay, frozen_epochs
        self.temperatures = [*np.linspace(*teacher_temperature, warmup_epochs).tolist(), teacher_temperature[1]]

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Sets weight decay and temperature, and what is frozen."""
        model, wrapper = unwrapped(runner), runner.optim_wrapper
        for group in wrapper.param_groups:
            if group['weight_decay']:
                group['weight_decay'] = cosine(*self.weight_decay, runner.iter, runner.max_iters)
        model.head.teacher_temperature = self.temperatures[min(runner.epoch, len(self.temperatures) - 1)]
        wrapper.frozen = [model.neck.last.weight] if runner.epoch < self.frozen_epochs else []

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        """Moves the teacher."""
        unwrapped(runner).update_teacher(cosine(self.momentum, 1.0, runner.iter, runner.max_iters))


def unwrapped(runner: Runner) -> DINO:
    """The model without the wrapper that it has in several processes."""
    return runner.model.module if is_model_wrapper(runner.model) else runner.model


class _ClipEach:
    """Clips the gradient of each tensor by itself, and gives those in ``frozen`` none."""

    frozen: Sequence[Tensor] = ()
    clip_grad_kwargs: dict
    param_groups: list[dict]

    def _clip_grad(self) -> None:
        for tensor in self.frozen:
            tensor.grad = None
        for group in self.param_groups:
            for tensor in group['params']:
                clip_grad_norm_(tensor, **self.clip_grad_kwargs)


@OPTIM_WRAPPERS.register_module()
class ClipEachOptimWrapper(_ClipEach, OptimWrapper):
    """mmengine's OptimWrapper with ``clip_grad=dict(max_norm=…)`` for each tensor by itself."""


@OPTIM_WRAPPERS.register_module()
class ClipEachAmpOptimWrapper(_ClipEach, AmpOptimWrapper):
    """The same for mmengine's AmpOptimWrapper: half precision on a GPU."""
