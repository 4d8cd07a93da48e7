"""Compresses a training schedule."""
import math
from typing import Any, Dict, List, Optional

from mmengine.config import Config

from mmsoft.utils.config import type_name
from mmsoft.utils.errors import UsageError

EPOCHS = 2
COUNTS = ('begin', 'end', 'T_max', 'total_steps', 'step_size', 'milestones')


def _scaled(value: Any, factor: float, end: int) -> Any:
    if isinstance(value, (list, tuple)):
        return [_scaled(one, factor, end) for one in value]
    if not isinstance(value, int) or value == 0:  # None and infinity stay
        return value
    return min(end, max(1, round(value * factor)))


def _compress(schedulers: List[Dict[str, Any]], factor: float, end: int, by_epoch: bool) -> List[Dict[str, Any]]:
    compressed = []
    for scheduler in schedulers:
        if scheduler.get('by_epoch', True) != by_epoch:
            compressed.append(scheduler)
            continue
        scheduler = {key: _scaled(value, factor, end) if key in COUNTS else value for key, value in scheduler.items()}
        begin = scheduler.get('begin', 0)
        if begin >= end:
            continue
        if 'end' in scheduler:
            scheduler['end'] = max(scheduler['end'], begin + 1)
        compressed.append(scheduler)
    return compressed


def shorten(cfg: Config, scenes: int, max_epochs: Optional[int], max_iters: Optional[int]) -> None:
    """Shortens the training: learning rates, averages of weights, intervals of validation, saving and logging.

    Args:
        cfg: Config with a train loader; it is changed.
        scenes: Number of pictures in an epoch.
        max_epochs: New length of an epoch-based loop; 2 if None.
        max_iters: New length of an iteration-based loop; as many as 2 epochs have if None.

    Raises:
        UsageError: If a length is given that the loop does not count.
    """
    per_epoch = math.ceil(scenes / cfg.train_dataloader.batch_size)
    by_epoch = 'max_iters' not in cfg.train_cfg
    key, other = ('max_epochs', 'max_iters') if by_epoch else ('max_iters', 'max_epochs')
    if max_iters if by_epoch else max_epochs:
        raise UsageError(f'This config counts its training in {key}; give train_cfg.{key} instead of '
                         f'train_cfg.{other}.')
    length = (max_epochs or EPOCHS) if by_epoch else (max_iters or EPOCHS * per_epoch)
    interval = 1 if by_epoch else max(1, length // 2)
    factor = length / cfg.train_cfg[key]
    iters = length * per_epoch if by_epoch else length
    cfg.train_cfg.update({key: length, 'val_interval': interval})
    cfg.train_cfg.pop('dynamic_intervals', None)

    schedulers = cfg.get('param_scheduler') or []
    schedulers = schedulers if isinstance(schedulers, (list, tuple)) else [schedulers]
    schedulers = _compress(schedulers, factor, length, by_epoch)
    if by_epoch:  # warm-up counted in iterations, of which a whole data set has many more: a quarter of them at most
        warm_up = max((one.get('end') or 0 for one in schedulers if not one.get('by_epoch', True)), default=0)
        schedulers = _compress(schedulers, min(1, iters / 4 / max(1, warm_up)), iters, by_epoch=False)
    cfg.param_scheduler = schedulers

    for hook in cfg.get('custom_hooks') or []:  # an average over many thousand iterations would be the random start
        if type_name(hook) == 'EMAHook' and 'momentum' in hook:
            hook['momentum'] = max(hook['momentum'], min(0.5, 10 / iters))

    hooks = cfg.setdefault('default_hooks', {})
    hooks.setdefault('checkpoint', dict(type='CheckpointHook')).update(interval=interval)
    hooks.setdefault('logger', dict(type='LoggerHook')).update(interval=max(1, min(10, per_epoch // 4)))
    if (cfg.get('auto_scale_lr') or {}).get('base_batch_size'):
        cfg.auto_scale_lr.enable = True
