"""Trains and tests a config of any of the three hosts, as the command lines in tools/ do."""
import time
from pathlib import Path
from typing import Any, Dict, Optional

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.logging import print_log
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from ..checkpoint import check_model
from ..datasets.demo import on_shapes, retarget
from ..datasets.shapes import ensure_shapes
from ..engine import latest_checkpoint
from ..utils import UsageError
from ..utils.config import LOADERS, load_config, map_dicts, type_name, without_pretrained
from .annotations import check_annotations
from .evaluation import augment_test, draw_predictions, save_predictions
from .preflight import check_checkpoint, check_data, check_pretrained, explained
from .work_dir import alone_in

Options = Optional[Dict[str, Any]]
HEADLINES = {'coco/bbox_mAP_50': 'box AP50', 'coco/bbox_mAP': 'box AP', 'mIoU': 'mIoU', 'aAcc': 'pixel accuracy'}
"""What the showcase prints of a host's scores, and how its users call it."""


@explained
def train(config: str,
          work_dir: Optional[str] = None,
          amp: bool = False,
          auto_scale_lr: bool = False,
          resume: Optional[str] = None,
          cfg_options: Options = None,
          launcher: str = 'none',
          demo_data: bool = False,
          from_scratch: bool = False) -> None:
    """Trains a model, and evaluates it on the way.

    Args:
        config: Path of the config.
        work_dir: Where logs and checkpoints go; ``work_dirs/`` and the config's name if None.
        amp: Whether to compute in half precision: bfloat16 on CPUs and GPUs that have it, float16 on others.
        auto_scale_lr: Whether to scale the learning rate with the batch size.
        resume: A checkpoint to go on from, or ``'auto'`` for the latest of the work directory, if there is one.
        cfg_options: Settings by dotted keys that override all others.
        launcher: How the processes of distributed training were started: none, pytorch, slurm or mpi.
        demo_data: Whether to train on the generated shapes instead of the config's data.
        from_scratch: Whether to start from random weights instead of the config's pretrained ones.

    Raises:
        UsageError: If files are missing or options do not fit, before any model is built.
    """
    cfg = _prepare(config, work_dir, cfg_options, launcher, demo_data, 'train_dataloader', 'val_dataloader')
    if from_scratch:
        cfg = without_pretrained(cfg)
    if auto_scale_lr:
        if not (cfg.get('auto_scale_lr') or {}).get('base_batch_size'):
            raise UsageError(f'--auto-scale-lr needs auto_scale_lr.base_batch_size in {config}, the batch size that '
                             'its learning rate is meant for.')
        cfg.auto_scale_lr.enable = True
    if amp:
        _enable_amp(cfg)
    if resume:
        _resume(cfg, resume)
    check_pretrained(cfg)
    _read_data(cfg, 'train_dataloader', 'val_dataloader')
    with alone_in(cfg.work_dir, launcher):
        runner = _runner(cfg)
        if cfg.get('load_from') and Path(cfg.load_from).exists():
            check_model(runner.model, cfg.load_from, whole=cfg.get('resume', False))
        runner.train()


@explained
def test(config: str,
         checkpoint: str,
         work_dir: Optional[str] = None,
         out: Optional[str] = None,
         show: bool = False,
         show_dir: Optional[str] = None,
         wait_time: float = 2,
         tta: bool = False,
         cfg_options: Options = None,
         launcher: str = 'none',
         demo_data: bool = False) -> Dict[str, float]:
    """Evaluates a model.

    Args:
        config: Path of the config.
        checkpoint: Path of the model's weights.
        work_dir: Where logs go; ``work_dirs/`` and the config's name if None.
        out: Where to save the predictions: a .pkl file; or a folder for label maps of semantic segmentation.
        show: Whether to show the predictions in a window.
        show_dir: Where to save pictures of the predictions.
        wait_time: Seconds for which the window shows a picture.
        tta: Whether to merge predictions over several versions of each picture.
        cfg_options: Settings by dotted keys that override all others.
        launcher: How the processes of distributed testing were started: none, pytorch, slurm or mpi.
        demo_data: Whether to test on the generated shapes instead of the config's data.

    Returns:
        Scores by their names.

    Raises:
        UsageError: If files are missing or options do not fit, before any model is built.
    """
    check_checkpoint(checkpoint)
    cfg = _prepare(config, work_dir, cfg_options, launcher, demo_data, 'test_dataloader')
    cfg.load_from, cfg.resume = checkpoint, False
    if show or show_dir:
        draw_predictions(cfg, show, show_dir, wait_time)
    if tta:
        augment_test(cfg)
    if out:
        save_predictions(cfg, out)
    _read_data(cfg, 'test_dataloader')
    runner = _runner(cfg)
    check_model(runner.model, checkpoint)
    return runner.test()


def showcase(config: str, work_dir: Optional[str] = None) -> Dict[str, float]:
    """Trains a config (from where an earlier run stopped), evaluates it and writes ``contact_sheet.png``.

    Args:
        config: Path of a config for detection or segmentation.
        work_dir: Where everything goes; ``work_dirs/`` and the config's name if None.

    Returns:
        Scores by their names.
    """
    from ..visualization import draw_contact_sheet  # matplotlib is not needed otherwise
    start = time.time()
    work_dir = work_dir or f'./work_dirs/{Path(config).stem}'
    train(config, work_dir, resume='auto')
    checkpoint = latest_checkpoint(work_dir)
    scores = test(config, checkpoint, work_dir)
    picture = draw_contact_sheet(config, checkpoint, Path(work_dir, 'contact_sheet.png'))
    said = ', '.join(f'{name} {scores[key]:.3g}' for key, name in HEADLINES.items() if key in scores)
    print_log(f'Held-out scenes: {said}, {(time.time() - start) / 60:.1f} minutes after the start; '
              f'the picture is {picture}', logger='current')
    return scores


def _prepare(config: str, work_dir: Optional[str], options: Options, launcher: str, demo_data: bool,
             *loaders: str) -> Config:
    """The config with all that training and testing have in common, and its data found."""
    cfg = load_config(config)
    options = options or {}
    if demo_data:
        cfg = retarget(cfg, options.get('train_cfg.max_epochs'), options.get('train_cfg.max_iters'))
    try:
        cfg.merge_from_dict(options)
    except (KeyError, TypeError) as error:
        raise UsageError(f'--cfg-options do not fit {config}: {error.args[0]}') from error
    if not on_shapes(cfg):
        check_data(cfg, *loaders)
    cfg.launcher = launcher
    cfg.work_dir = work_dir or cfg.get('work_dir') or f'./work_dirs/{Path(config).stem}'
    if cfg.default_scope == 'mmpretrain':
        for loader in filter(None, map(cfg.get, LOADERS)):
            loader.setdefault('pin_memory', True)
            loader.setdefault('collate_fn', dict(type='default_collate'))
    return cfg


def _read_data(cfg: Config, *loaders: str) -> None:
    """Makes sure of the data, after all that is quicker to check."""
    if on_shapes(cfg):
        ensure_shapes()
    else:
        check_annotations(cfg, *loaders)


def _enable_amp(cfg: Config) -> None:
    """Half precision: bfloat16 where the device computes in it, or else float16 with scaled losses."""
    wrapper = cfg.optim_wrapper.setdefault('type', 'OptimWrapper')
    if wrapper not in ('OptimWrapper', 'AmpOptimWrapper'):
        raise UsageError(f'--amp replaces an OptimWrapper, and this config has a {wrapper}; leave --amp out.')
    has_bfloat16 = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)  # others emulate it
    if has_bfloat16 and cfg.default_scope == 'mmdet' and 'dtype' not in cfg.optim_wrapper:
        _to_bfloat16(cfg.optim_wrapper)
        return
    cfg.optim_wrapper.type = 'AmpOptimWrapper'
    cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')
    if has_bfloat16:
        cfg.optim_wrapper.setdefault('dtype', 'bfloat16')


def _to_bfloat16(wrapper: Config) -> None:
    for key in ('loss_scale', 'dtype', 'use_fsdp'):
        wrapper.pop(key, None)
    wrapper.type = 'mmsoft.BFloat16OptimWrapper'


def _resume(cfg: Config, resume: str) -> None:
    if resume == 'auto':
        resume = latest_checkpoint(cfg.work_dir)
        if resume is None:
            print_log(f'{cfg.work_dir} has no checkpoint yet; training starts from the beginning.', logger='current')
            return
    else:
        check_checkpoint(resume, of_training=True)
    cfg.load_from, cfg.resume = resume, True


def _runner(cfg: Config) -> Runner:
    if get_device() == 'cpu':
        _fit_to_cpu(cfg)
    return RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)


def _fit_to_cpu(cfg: Config) -> None:
    """Replaces what a CPU cannot do, and what mmengine takes for granted on several processes."""
    wrapper = cfg.get('optim_wrapper')
    if wrapper and type_name(wrapper) == 'AmpOptimWrapper':
        _to_bfloat16(wrapper)
    if cfg.launcher == 'none':
        return
    if cfg.launcher != 'pytorch':
        raise UsageError(f'--launcher {cfg.launcher} needs GPUs, and none is visible; several processes on CPUs are '
                         'started by tools/dist_train.sh.')
    # mmengine's own start of PyTorch's launcher selects a GPU first.
    torch.distributed.init_process_group('gloo')
    cfg.model_wrapper_cfg = dict(
        type='MMDistributedDataParallel',
        device_ids=None,
        broadcast_buffers=False,
        find_unused_parameters=cfg.get('find_unused_parameters', False))
    cfg.model = map_dicts(cfg.model, lambda part: dict(part, type='BN') if type_name(part) == 'SyncBN' else part)
