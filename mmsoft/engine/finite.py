"""Training that ends when its loss does, before a checkpoint holds what became of it."""
from typing import Any, Optional

import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmsoft.registry import HOOKS
from mmsoft.utils import UsageError

REMEDY = ('go on from the last checkpoint with a lower learning rate, clip_grad in optim_wrapper or without --amp, and '
          'look at the pictures and their annotations')


@HOOKS.register_module()
class FiniteTrainingHook(Hook):
    """Ends training with the first loss that is NaN or infinite, and writes no checkpoint of weights that are."""

    priority = 'HIGH'

    def after_train_iter(self,
                         runner: Runner,
                         batch_idx: int,
                         data_batch: Any = None,
                         outputs: Optional[dict] = None) -> None:
        """Looks at the loss, which mmengine's ``RuntimeInfoHook`` has fetched from the device already.

        Raises:
            UsageError: If it is not finite; says which part of it, in which iteration and for which pictures.
        """
        losses = {name: torch.as_tensor(value) for name, value in (outputs or {}).items() if 'loss' in name}
        if losses.get('loss', torch.zeros(())).isfinite().all():
            return
        wrong = [f'{name} is {value.item()}' for name, value in losses.items() if not value.isfinite().all()]
        samples = data_batch.get('data_samples') if isinstance(data_batch, dict) else None
        pictures = [str(getattr(sample, 'img_path', '?')) for sample in samples or ()]
        raise UsageError(f'{", ".join(wrong)} in iteration {runner.iter + 1}, on {", ".join(pictures)}; {REMEDY}.')

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Looks at the weights.

        Raises:
            UsageError: If some are not finite.
        """
        for name, tensor in checkpoint['state_dict'].items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise UsageError(f'{name} holds NaN or infinity after iteration {runner.iter + 1}, and no checkpoint '
                                 f'is written of it; {REMEDY}.')
