"""Trains and tests a config of any of the OpenMMLab libraries, as the command lines in tools/ do."""

from pathlib import Path
from typing import Any, Optional

import torch
from mmengine.config import Config, ConfigDict
from mmengine.logging import print_log
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from ..attention import measure
from ..checkpoint import check_model
from ..datasets.demo import on_shapes, retarget
from ..datasets.shapes import ensure_shapes
from ..engine import latest_checkpoint
from ..utils import UsageError
from ..utils.config import LOADERS, datasets, load_config, without_pretrained
from .preflight import check_classes, check_evaluators, check_objects, check_resumable, explained

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
        amp: Whether to compute in half precision, on a GPU.
        auto_scale_lr: Whether to scale the learning rate with the batch size.
        resume: A checkpoint to resume from, or ``'auto'`` for the latest of the work directory, if there is one.
        cfg_options: Settings by dotted keys that override all others.
        launcher: How the processes of distributed training were started: none, pytorch, slurm or mpi.
        demo_data: Whether to train on the synthetic shapes data set instead of the config's data.
        from_scratch: Whether to start from random weights instead of the config's pretrained ones.

    Raises:
        UsageError: If files are missing, or if the config does not fit its data or cannot be built.
    """
    with explained(config):
        cfg = _prepare(config, work_dir, cfg_options, launcher, demo_data)
        if from_scratch:
            cfg = without_pretrained(cfg)
        if auto_scale_lr:
            if not (cfg.get('auto_scale_lr') or {}).get('base_batch_size'):
                raise UsageError(f'--auto-scale-lr needs auto_scale_lr.base_batch_size, which {config} has not.')
            cfg.auto_scale_lr.enable = True
        if amp:
            enable_amp(cfg)
        if resume == 'auto':
            resume = latest_checkpoint(cfg.work_dir)
            if resume is None:
                print_log(f'{cfg.work_dir} has no checkpoint yet; training starts from the beginning.', 'current')
        if resume:
            cfg.load_from, cfg.resume = resume, True
        runner = build(cfg, 'train', 'val')
    runner.train()


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
    with explained(config):
        cfg = _prepare(config, work_dir, cfg_options, launcher, demo_data)
        cfg.load_from, cfg.resume = checkpoint, False
        if show or show_dir:
            draw_predictions(cfg, show, show_dir, wait_time)
        if tta:
            augment_test(cfg)
        if out:
            save_predictions(cfg, out)
        runner = build(cfg, 'test')
    if without_attention is None:
        return runner.test()
    with measure.without_attention(runner.model, without_attention or None) as count:
        if not count:
            raise UsageError('There is no attention of mmsoft to set to zero in this model or in these stages.')
        print_log(f'Testing with {count} attentions set to zero.', 'current')
        return runner.test()


def _prepare(config: str, work_dir: Optional[str], options: Options, launcher: str, demo_data: bool) -> Config:
    """The config with all that training and testing have in common."""
    cfg, options = load_config(config), options or {}
    if demo_data:
        cfg = retarget(cfg, options.get('train_cfg.max_epochs') or options.get('train_cfg.max_iters'))
    cfg.merge_from_dict(options)
    cfg.launcher = launcher
    cfg.work_dir = work_dir or cfg.get('work_dir') or f'./work_dirs/{Path(config).stem}'
    if cfg.default_scope == 'mmpretrain':
        for loader in filter(None, map(cfg.get, LOADERS)):
            loader.setdefault('pin_memory', True)
            loader.setdefault('collate_fn', dict(type='default_collate'))
    return cfg


def enable_amp(cfg: Config) -> None:
    """Changes a config so that it trains in half precision: float16 with scaled losses, or its own ``dtype``.

    Raises:
        UsageError: If there is no GPU, or the config has an optimizer wrapper of its own.
    """
    wrapper = cfg.optim_wrapper
    if wrapper.setdefault('type', 'OptimWrapper') not in ('OptimWrapper', 'AmpOptimWrapper'):
        raise UsageError(f'--amp replaces an OptimWrapper, and this config has a {wrapper.type}; leave --amp out.')
    if not torch.cuda.is_available():
        raise UsageError('--amp needs a GPU: mmengine trains in half precision on GPUs alone.')
    wrapper.type = 'AmpOptimWrapper'
    wrapper.setdefault('loss_scale', 'dynamic')


def build(cfg: Config, *loops: str) -> Runner:
    """Builds a model, and the data sets of these loops: train, val or test; an optimizer for training.

    Raises:
        UsageError: If data sets, model and checkpoint do not fit each other.
    """
    check_evaluators(cfg, *loops)
    if on_shapes(cfg):
        ensure_shapes()
    runner = RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)
    for loop in [getattr(runner, f'{name}_loop') for name in loops]:
        if loop:
            check_classes(loop.dataloader.dataset, runner.model, exact=cfg.default_scope == 'mmdet')
    if 'train' in loops:
        check_objects(runner.train_loop.dataloader.dataset)
        runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    if cfg.get('load_from'):  # mmengine only warns if it is not the model's, and uses random weights
        if cfg.get('resume'):
            check_resumable(cfg.load_from)
        check_model(runner.model, cfg.load_from, whole=cfg.get('resume') or loops == ('test',))
    return runner


def draw_predictions(cfg: Config, show: bool, show_dir: Optional[str], wait_time: float) -> None:
    """Changes a config so that the test draws every image, in a window for so many seconds or to a folder."""
    hook = cfg.default_hooks.visualization
    if show:
        hook.update(show=True, wait_time=wait_time)
    if cfg.default_scope == 'mmdet':
        hook.update(draw=True, test_out_dir=show_dir)
    elif cfg.default_scope == 'mmseg':
        hook.update(draw=True, interval=1)
        cfg.visualizer.save_dir = show_dir
    else:
        hook.update(enable=True, interval=1, out_dir=show_dir)


def augment_test(cfg: Config) -> None:
    """Changes a config so that the test merges predictions over several versions of an image.

    Raises:
        UsageError: If the config does not say how.
    """
    if not (cfg.get('tta_model') and cfg.get('tta_pipeline')):
        raise UsageError("--tta needs tta_model and tta_pipeline in the config; `mim test` has the library's own.")
    cfg.model = ConfigDict(dict(cfg.tta_model, module=cfg.model))
    for dataset in datasets(cfg, 'test_dataloader'):
        dataset['pipeline'] = cfg.tta_pipeline


def save_predictions(cfg: Config, out: str) -> None:
    """Changes a config so that the test saves predictions: to a .pkl file, or label maps to a folder."""
    evaluators = cfg.test_evaluator if isinstance(cfg.test_evaluator, (list, tuple)) else [cfg.test_evaluator]
    if out.endswith(('.pkl', '.pickle')):
        dump = 'DumpDetResults' if cfg.default_scope == 'mmdet' else 'DumpResults'
        cfg.test_evaluator = [*evaluators, dict(type=dump, out_file_path=out)]
    elif cfg.default_scope == 'mmseg':
        cfg.test_evaluator = [dict(one, output_dir=out, keep_results=True) for one in evaluators]
    else:
        raise UsageError(f'--out {out} is not a .pkl file; a folder is for semantic segmentation only.')
