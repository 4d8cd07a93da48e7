"""Whether attention contributes to its network, watched during training."""

import logging
from collections import defaultdict
from contextlib import ExitStack
from typing import Any, Optional

from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner

from mmsoft.attention.measure import Contribution, measured_attention, stage_of
from mmsoft.registry import HOOKS


@HOOKS.register_module()
class AttentionShareHook(Hook):
    """Logs how much attention contributes to each block, and warns once of a stage where it contributes nothing.

    Measured on one iteration of many, the values reach the log file and all visualizer backends as scalars
    ``attention_share/BLOCK``, ``attention_exponent/BLOCK`` (SOFT) and ``attention_gain/BLOCK``; see
    :class:`mmsoft.attention.measure.Contribution`.

    Args:
        interval (int): Iterations from one measurement to the next. Defaults to 200, less than 1% of the time.
        minimum (float): A stage none of whose blocks has this share is warned of. Defaults to 0.01.
        begin (int): Iteration from which on it is warned of, because SimA begins with a small share. Defaults to 1000.

    Example:
        >>> custom_hooks = [*_base_.custom_hooks, dict(type='mmsoft.AttentionShareHook')]
    """

    def __init__(self, interval: int = 200, minimum: float = 0.01, begin: int = 1000) -> None:
        self.interval, self.minimum, self.begin = interval, minimum, begin
        self._warned = False
        self._measuring: Optional[ExitStack] = None
        self._contributions: dict[str, Contribution] = {}

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Begins to measure, if it is time to."""
        if self.every_n_train_iters(runner, self.interval):
            model = runner.model.module if is_model_wrapper(runner.model) else runner.model
            self._measuring = ExitStack()
            self._contributions = self._measuring.enter_context(measured_attention(model))

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Optional[dict] = None
    ) -> None:
        """Ends the measurement and logs it."""
        if self._measuring is None:
            return
        self._measuring.close()
        self._measuring = None
        scalars = {
            f'attention_{kind}/{name}': getattr(one, kind)
            for name, one in self._contributions.items()
            for kind in ('share', 'exponent', 'gain')
            if getattr(one, kind) is not None
        }
        shares = {name: one.share for name, one in self._contributions.items() if one.share is not None}
        if not shares:  # other attentions than mmsoft's, or a compiled model, which hooks do not see
            return
        runner.visualizer.add_scalars(scalars, step=runner.iter + 1)
        runner.logger.info('Attention share: ' + ', '.join(f'{name} {share:.2g}' for name, share in shares.items()))
        if runner.iter + 1 >= self.begin and not self._warned:
            self._warn(shares)

    def _warn(self, contributions: dict[str, float]) -> None:
        by_stage: dict[int, list[float]] = defaultdict(list)
        for name, share in contributions.items():
            by_stage[stage_of(name)].append(share)
        closed = [stage for stage, shares in sorted(by_stage.items()) if max(shares) < self.minimum]
        if closed:
            self._warned = True
            print_log(
                f'Attention contributes less than {self.minimum:.0%} in stage {", ".join(map(str, closed))} (from 0): '
                'the network does without it. From scratch, SOFT-Norm learns to attend with initial_gamma=0.3, an '
                'option of SOFTAttention; on larger images than in pretraining, SimA keeps its scale with '
                'reference_tokens, an option of SimAAttention.',
                'current',
                logging.WARNING,
            )
