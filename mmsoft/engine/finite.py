"""Training that ends when its loss is not finite, before a checkpoint holds the result."""

from typing import Any, Optional

import torch
from mmengine.dist import all_reduce
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor

from mmsoft.registry import HOOKS
from mmsoft.utils import UsageError

REMEDY = (
    'continue from the last checkpoint with a lower learning rate, with clip_grad in optim_wrapper or without '
    '--amp, and look at the images and their annotations'
)


@HOOKS.register_module()
class FiniteTrainingHook(Hook):
    """Ends training with the first loss that is NaN or infinite, and writes no checkpoint of weights that are."""

    priority = 'HIGH'

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Optional[dict] = None
    ) -> None:
        """Looks at the loss, which mmengine's ``RuntimeInfoHook`` has fetched from the device already.

        Raises:
            UsageError: In all processes, if it is not finite in one; says which part of it, when and for which images.
        """
        losses = {name: torch.as_tensor(value) for name, value in (outputs or {}).items() if 'loss' in name}
        finite = bool(losses.get('loss', torch.zeros(())).isfinite().all())
        wrong_anywhere = torch.tensor(not finite, dtype=torch.int32)
        all_reduce(wrong_anywhere, 'max')
        if not wrong_anywhere:
            return
        where = f'in iteration {runner.iter + 1}'
        if finite:
            raise UsageError(f'The loss of another process is not finite {where}; {REMEDY}.')
        wrong = [f'{name} is {value.item()}' for name, value in losses.items() if not value.isfinite().all()]
        samples = data_batch.get('data_samples') if isinstance(data_batch, dict) else None
        images = [str(getattr(sample, 'img_path', '?')) for sample in samples or ()]
        raise UsageError(f'{", ".join(wrong)} {where}, on {", ".join(images)}; {REMEDY}.')

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Looks at the weights; UsageError if some are not finite."""
        for name, value in checkpoint['state_dict'].items():  # not all are tensors: see Module.get_extra_state
            if isinstance(value, Tensor) and value.is_floating_point() and not value.isfinite().all():
                raise UsageError(
                    f'{name} contains NaN or infinity after iteration {runner.iter + 1}, and no '
                    f'checkpoint is written of it; {REMEDY}.'
                )
