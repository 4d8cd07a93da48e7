"""A hook that monitors during training whether attention contributes to its network."""

from contextlib import ExitStack
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmsoft.attention.measure import Contribution, measured_attention, stage_of
from mmsoft.registry import HOOKS


@HOOKS.register_module()
class AttentionShareHook(Hook):
    """Logs how much attention contributes to each block, and warns once if it contributes nothing in a stage.

    The values reach the log file and all visualizer backends as scalars: ``attention_share/BLOCK``,
    ``attention_exponent/BLOCK`` (SOFT), ``attention_gain/BLOCK``; see :class:`mmsoft.attention.measure.Contribution`.
    It measures one of ``interval`` iterations (of 200: less than 1% of the time). From iteration ``begin`` on, it
    reports a stage if all its blocks have a share below 0.01. SimA starts with small shares, so ``begin`` is not 0.
    """

    def __init__(self, interval: int = 200, begin: int = 1000) -> None:
        self.interval, self.begin, self._warned = interval, begin, False
        self._measuring = ExitStack()
        self._contributions: dict[str, Contribution] = {}

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Begins to measure, if it is time to."""
        if self.every_n_train_iters(runner, self.interval):
            model = getattr(runner.model, 'module', runner.model)
            self._contributions = self._measuring.enter_context(measured_attention(model))

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        """Ends the measurement and logs it."""
        self._measuring.close()
        contributions, self._contributions = self._contributions, {}
        if not (shares := {name: one.share for name, one in contributions.items() if one.share is not None}):
            return  # nothing was measured now, or hooks do not see the attentions: not mmsoft's, or compiled
        kinds = [(name, one, kind) for name, one in contributions.items() for kind in ('share', 'exponent', 'gain')]
        scalars = {f'attention_{kind}/{name}': getattr(one, kind) for name, one, kind in kinds}
        runner.visualizer.add_scalars({k: v for k, v in scalars.items() if v is not None}, step=runner.iter + 1)
        runner.logger.info('Attention share: ' + ', '.join(f'{name} {share:.2g}' for name, share in shares.items()))
        open_stages = {stage_of(name) for name, share in shares.items() if share >= 0.01}
        closed = sorted({stage_of(name) for name in shares} - open_stages)
        if closed and runner.iter + 1 >= self.begin and not self._warned:
            self._warned = True
            where = f'in stage {", ".join(map(str, closed))} (from 0): the network does without it'
            soft = "From scratch, SOFT-Norm learns to attend with SOFTAttention's initial_gamma=0.3"
            sima = "on larger images than in pretraining, SimA keeps its scale with SimAAttention's reference_tokens"
            runner.logger.warning(f'Attention contributes less than 1% {where}. {soft}; {sima}.')
