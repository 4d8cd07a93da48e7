"""Trains and tests a config of any of the OpenMMLab libraries, as the command lines in tools/ do."""

from pathlib import Path
from typing import Any, Optional

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import is_distributed
from mmengine.logging import print_log
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from ..datasets.demo import on_shapes
from ..datasets.shapes import ensure_shapes
from ..engine import latest_checkpoint
from ..utils import UsageError
from ..utils.config import LOADERS, map_dicts, type_name, without_pretrained
from .evaluation import augment_test, draw_predictions, save_predictions
from .preflight import CheckHook, check_checkpoint, check_pretrained, config_on_data, explained

Options = Optional[dict[str, Any]]


def train(
    config: str,
    work_dir: Optional[str] = None,
    amp: bool = False,
    auto_scale_lr: bool = False,
    resume: Optional[str] = None,
    cfg_options: Options = None,
    launcher: str = 'none',
    demo_data: bool = False,
    from_scratch: bool = False,
) -> None:
    """Trains a model, and evaluates it on the way.

    Args:
        config: Path of the config.
        work_dir: Where logs and checkpoints go; ``work_dirs/`` and the config's name if None.
        amp: Whether to compute in half precision: bfloat16 on CPUs and GPUs that have it, float16 on others.
        auto_scale_lr: Whether to scale the learning rate with the batch size.
        resume: A checkpoint to resume from, or ``'auto'`` for the latest of the work directory, if there is one.
        cfg_options: Settings by dotted keys that override all others.
        launcher: How the processes of distributed training were started: none, pytorch, slurm or mpi.
        demo_data: Whether to train on the synthetic shapes data set instead of the config's data.
        from_scratch: Whether to start from random weights instead of the config's pretrained ones.

    Raises:
        UsageError: If files are missing, or if the config does not fit its data or cannot be built.
    """
    with explained(config, *LOADERS[:2]) as hook:
        cfg = _prepare(config, work_dir, cfg_options, launcher, demo_data, hook)
        if from_scratch:
            cfg = without_pretrained(cfg)
        if auto_scale_lr:
            cfg.merge_from_dict({'auto_scale_lr.enable': True})
        if amp:
            _enable_amp(cfg)
        check_pretrained(cfg)
        if resume == 'auto':
            resume = latest_checkpoint(cfg.work_dir)
            if resume is None:
                print_log(f'{cfg.work_dir} has no checkpoint yet; training starts from the beginning.', 'current')
        elif resume:
            check_checkpoint(resume)
        if resume:
            cfg.load_from, cfg.resume = resume, True
        _run(cfg, 'train', hook)


def test(
    config: str,
    checkpoint: str,
    work_dir: Optional[str] = None,
    out: Optional[str] = None,
    show: bool = False,
    show_dir: Optional[str] = None,
    wait_time: float = 2,
    tta: bool = False,
    cfg_options: Options = None,
    launcher: str = 'none',
    demo_data: bool = False,
    without_attention: Optional[list[int]] = None,
) -> dict[str, float]:
    """Evaluates a model.

    Args:
        config, work_dir, cfg_options, launcher, demo_data: As for :func:`train`.
        checkpoint: Path of the model's weights.
        out: Where to save the predictions: a .pkl file; or a folder for label maps of semantic segmentation.
        show: Whether to show the predictions in a window.
        show_dir: Where to save images of the predictions.
        wait_time: Seconds for which the window shows an image.
        tta: Whether to merge predictions over several versions of each image.
        without_attention: Stages of the backbone whose attention is set to zero, counted from 0, or ``[]`` for all: the
            control that shows what attention is worth (:func:`mmsoft.attention.measure.without_attention`).

    Returns:
        Scores by their names.

    Raises:
        UsageError: If files are missing, or if the config does not fit its data or checkpoint or cannot be built.
    """
    with explained(config, 'test_dataloader') as hook:
        check_checkpoint(checkpoint)
        cfg = _prepare(config, work_dir, cfg_options, launcher, demo_data, hook)
        cfg.load_from, cfg.resume = checkpoint, False
        if show or show_dir:
            draw_predictions(cfg, show, show_dir, wait_time)
        if tta:
            augment_test(cfg)
        if out:
            save_predictions(cfg, out)
        if without_attention is not None:
            cfg.custom_hooks = [
                *cfg.get('custom_hooks', ()),
                dict(type='mmsoft.WithoutAttentionHook', stages=without_attention or None),
            ]
        return _run(cfg, 'test', hook)


def _prepare(
    config: str, work_dir: Optional[str], options: Options, launcher: str, demo_data: bool, hook: CheckHook
) -> Config:
    """The config with all that training and testing have in common, and its data found."""
    cfg = config_on_data(config, options, demo_data, *hook.loaders)
    cfg.launcher = launcher
    if launcher == 'pytorch' and get_device() == 'cpu':
        _distribute_on_cpus(cfg)
    cfg.work_dir = work_dir or cfg.get('work_dir') or f'./work_dirs/{Path(config).stem}'
    if cfg.default_scope == 'mmpretrain':
        for loader in filter(None, map(cfg.get, LOADERS)):
            loader.setdefault('pin_memory', True)
            loader.setdefault('collate_fn', dict(type='default_collate'))
    return cfg


def _enable_amp(cfg: Config) -> None:
    """Half precision: bfloat16 where the device computes in it, or else float16 with scaled losses."""
    wrapper = cfg.optim_wrapper
    if wrapper.setdefault('type', 'OptimWrapper') not in ('OptimWrapper', 'AmpOptimWrapper'):
        raise UsageError(f'--amp replaces an OptimWrapper, and this config has a {wrapper.type}; leave --amp out.')
    on_cpu = not torch.cuda.is_available()
    has_bfloat16 = on_cpu or torch.cuda.get_device_capability() >= (8, 0)  # others emulate it
    if on_cpu or (has_bfloat16 and cfg.default_scope == 'mmdet' and 'dtype' not in wrapper):
        for key in ('loss_scale', 'dtype', 'use_fsdp'):
            wrapper.pop(key, None)
        wrapper.type = 'mmsoft.BFloat16OptimWrapper'
    else:
        wrapper.type = 'AmpOptimWrapper'
        wrapper.setdefault('loss_scale', 'dynamic')
        if has_bfloat16:
            wrapper.setdefault('dtype', 'bfloat16')


def _run(cfg: Config, work: str, hook: CheckHook) -> Any:
    """Builds a runner and calls its method ``work``."""
    if on_shapes(cfg):
        ensure_shapes()
    runner = RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)
    runner.register_hook(hook)
    return getattr(runner, work)()


def _distribute_on_cpus(cfg: Config) -> None:
    """Lets the processes of a launcher find each other on CPUs, for which mmengine has no way."""
    if not is_distributed():
        torch.distributed.init_process_group('gloo')
    cfg.model_wrapper_cfg = dict(
        type='MMDistributedDataParallel',
        device_ids=None,
        broadcast_buffers=False,
        find_unused_parameters=cfg.get('find_unused_parameters', False),
    )
    cfg.model = map_dicts(cfg.model, lambda part: dict(part, type='BN') if type_name(part) == 'SyncBN' else part)
