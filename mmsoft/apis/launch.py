"""Trains and tests a config of any of the OpenMMLab libraries, as the command lines in tools/ do."""

from pathlib import Path
from types import SimpleNamespace
from typing import Optional

import torch
from mmengine.config import Config, ConfigDict
from mmengine.hooks import PrepareTTAHook
from mmengine.logging import print_log
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from mmsoft.attention import measure
from mmsoft.checkpoint.load import check_model, read_checkpoint, use_safe_loading
from mmsoft.datasets.demo import on_shapes, retarget
from mmsoft.datasets.shapes import ensure_shapes
from mmsoft.engine.checkpoints import latest_checkpoint
from mmsoft.utils import UsageError
from mmsoft.utils.config import LOADERS, Options, datasets, dicts, explained, load_config, type_name, without_pretrained
from mmsoft.utils.files import check_new

from .checks import check_classes, check_evaluators, check_mixing, check_objects, check_order, check_resumable


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
    """Trains a model, and evaluates it; arguments are the options of ``tools/train.py`` (docs/cli.md).

    ``resume`` is a checkpoint, or ``'auto'`` for the latest of the work directory, if there is one; ``cfg_options`` are
    settings by dotted keys. Raises UsageError if files are missing or the config does not fit its data.
    """
    with explained(config):
        cfg = _prepare(config, work_dir, cfg_options, launcher, demo_data)
        cfg = without_pretrained(cfg) if from_scratch else cfg
        if auto_scale_lr:
            if not (cfg.get('auto_scale_lr') or {}).get('base_batch_size'):
                raise UsageError(f'--auto-scale-lr needs auto_scale_lr.base_batch_size, which {config} has not.')
            cfg.auto_scale_lr.enable = True
        if amp:
            if (kind := type_name(cfg.optim_wrapper)) not in ('', 'OptimWrapper', 'AmpOptimWrapper'):
                raise UsageError(f'--amp replaces an OptimWrapper, and this config has a {kind}.')
            cfg.optim_wrapper.update(type='AmpOptimWrapper', loss_scale=cfg.optim_wrapper.get('loss_scale', 'dynamic'))
        if resume == 'auto' and (resume := latest_checkpoint(cfg.work_dir)) is None:
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
    """Evaluates a model; returns scores by their names. Arguments are the options of ``tools/test.py`` (docs/cli.md).

    ``without_attention`` are stages of the backbone whose attention is set to zero, counted from 0, or ``[]`` for all:
    a control for what attention contributes (:func:`mmsoft.attention.measure.without_attention`). Raises UsageError as
    :func:`train`, and if the checkpoint does not fit.
    """
    with explained(config):
        cfg = _prepare(config, work_dir, cfg_options, launcher, demo_data)
        cfg.load_from, cfg.resume = checkpoint, False
        object.__setattr__(cfg, '_filename', f'test_{Path(config).stem}.py')  # beside the one that training saved
        if show or show_dir:
            draw_predictions(cfg, show, show_dir, wait_time)
        if tta:
            if not (cfg.get('tta_model') and cfg.get('tta_pipeline')):
                raise UsageError("--tta needs tta_model and tta_pipeline in the config; `mim test` has the library's.")
            if cfg.default_scope == 'mmpretrain' and (show or show_dir):
                raise UsageError('mmpretrain cannot draw with --tta; leave out --tta, or --show and --show-dir.')
            for dataset in datasets(cfg, 'test_dataloader'):
                dataset['pipeline'] = cfg.tta_pipeline
        if out:
            save_predictions(cfg, out)
        runner = build(cfg, 'test')
        if tta:
            if isinstance(runner.model, torch.nn.parallel.DistributedDataParallel):
                runner.model = runner.model.module  # mmseg's SegTTAModel reads its attributes
            wrap = PrepareTTAHook(cfg.tta_model)  # after hooks that load weights by name
            wrap.before_test(SimpleNamespace(model=runner.model))  # raises now if tta_model is wrong
            runner.register_hook(wrap)
    if without_attention is None:
        return runner.test()
    with measure.without_attention(runner.model, without_attention or None) as count:
        if not count:
            raise UsageError('There is no attention of mmsoft to set to zero in this model or in these stages.')
        print_log(f'Testing with {count} attentions set to zero.', 'current')
        return runner.test()


def _prepare(config: str, work_dir: Optional[str], options: Options, launcher: str, demo_data: bool) -> Config:
    """Loads the config, and applies the options that training and testing have in common."""
    cfg, options = load_config(config), options or {}
    if demo_data:
        cfg = retarget(cfg, options.get('train_cfg.max_epochs') or options.get('train_cfg.max_iters'))
    backbone = (cfg.get('model') or {}).get('backbone') or {}
    loads = isinstance(backbone.get('init_cfg'), dict) and type_name(backbone.init_cfg).startswith('Pretrained')
    if 'model.backbone.init_cfg.checkpoint' in options and not loads:  # by name, or by the class PretrainedInit
        backbone['init_cfg'] = dict(type='Pretrained')  # in place of other weights, or none
    cfg.merge_from_dict(options)
    cfg.launcher = launcher
    cfg.work_dir = work_dir or cfg.get('work_dir') or f'./work_dirs/{Path(config).stem}'
    if cfg.default_scope == 'mmpretrain':
        for loader in filter(None, map(cfg.get, LOADERS)):
            loader.setdefault('pin_memory', torch.cuda.is_available())
            loader.setdefault('collate_fn', dict(type='default_collate'))
    return cfg


def build(cfg: Config, *loops: str) -> Runner:
    """Builds a runner with the model, the data sets of ``loops`` (train, val or test), and for training an optimizer.

    From then on, mmengine reads checkpoints safely. Raises UsageError if data sets, model and checkpoint do not fit.
    """
    use_safe_loading()
    check_evaluators(cfg, *loops)
    if on_shapes(cfg):
        ensure_shapes()
    runner = RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)
    if not isinstance(runner, Runner):  # mmengine's FlexibleRunner, which builds its model later
        return runner
    model = getattr(runner.model, 'module', runner.model)
    same_classes = (cfg.get('resume') or loops == ('test',)) and not hasattr(model, 'language_model')  # takes any
    meta = read_checkpoint(cfg.load_from, peek=True).get('meta') if same_classes and cfg.get('load_from') else None
    trained = meta.get('dataset_meta') if isinstance(meta, dict) else None
    for loop in [getattr(runner, f'{name}_loop') for name in loops]:  # builds it, and its data set
        if loop:
            trained = check_order(loop.dataloader.dataset, trained)
            check_classes(loop.dataloader.dataset, model, exact=cfg.default_scope == 'mmdet')
        elif loops == ('test',):
            raise UsageError('There is nothing to test: set test_dataloader, test_cfg and test_evaluator.')
    if 'train' in loops:
        check_objects(runner.train_loop.dataloader.dataset)
        check_mixing(model)
        if runner.val_loop:
            runner.val_loop.dataloader.dataset[0]  # reports missing images now, not after an epoch
        runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    if cfg.get('load_from'):  # mmengine only warns if it is not the model's, and uses random weights
        if cfg.get('resume'):
            check_resumable(cfg.load_from)
        check_model(model, cfg.load_from, whole=cfg.get('resume') or loops == ('test',))
    starts = dicts(getattr(model, 'init_cfg', None) if 'train' in loops and not cfg.get('load_from') else None)
    for path in filter(Path.is_file, [Path(str(one.get('checkpoint'))) for one in starts if not one.get('prefix')]):
        check_model(model, str(path), whole=False)  # where mmengine only warns, too
    return runner


def draw_predictions(cfg: Config, show: bool, show_dir: Optional[str], wait_time: float) -> None:
    """Changes a config so that the test draws every image, in a window for ``wait_time`` seconds or to a folder."""
    hook = cfg.default_hooks.visualization
    if show_dir:
        place = Path(cfg.work_dir, 'TIMESTAMP') if cfg.default_scope == 'mmdet' else ''  # a new folder
        check_new(str(Path(place, show_dir).resolve()), '--show-dir')
    if cfg.default_scope == 'mmseg':
        cfg.visualizer.save_dir = show_dir
    options = dict(mmdet=dict(draw=True, test_out_dir=show_dir), mmseg=dict(draw=True, interval=1))
    in_mmpretrain = dict(enable=True, interval=1, out_dir=show_dir)
    hook.update(options.get(cfg.default_scope, in_mmpretrain), **(dict(show=True, wait_time=wait_time) if show else {}))


def save_predictions(cfg: Config, out: str) -> None:
    """Changes a config so that the test saves predictions: to a .pkl file, or label maps to a folder."""
    given = cfg.test_evaluator
    given = given.get('metrics', given) if isinstance(given, dict) and type_name(given) in ('', 'Evaluator') else given
    evaluators = given if isinstance(given, (list, tuple)) else [given]
    if out.endswith(('.pkl', '.pickle')):
        Path(out).parent.mkdir(parents=True, exist_ok=True)  # now, and not after the evaluation
        dump = 'DumpDetResults' if cfg.default_scope == 'mmdet' else 'DumpResults'
        cfg.test_evaluator = [*evaluators, dict(type=dump, out_file_path=out)]
    elif cfg.default_scope == 'mmseg':
        check_new(out, '--out')  # it may hold annotations
        cfg.test_evaluator = [ConfigDict(one, output_dir=out, keep_results=True) for one in evaluators]
    else:
        raise UsageError(f'--out {out} is not a .pkl file; a folder is for semantic segmentation only.')
