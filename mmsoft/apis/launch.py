"""Trains and tests a config of any of the OpenMMLab libraries, as the command lines in tools/ do."""

import json
from pathlib import Path
from typing import Optional

import numpy as np
import torch
from mmengine.config import Config, ConfigDict
from mmengine.logging import print_log
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import Dataset

from ..attention import measure
from ..checkpoint import read_checkpoint
from ..checkpoint.load import check_model
from ..datasets.demo import on_shapes, retarget
from ..datasets.shapes import ensure_shapes
from ..engine.checkpoints import latest_checkpoint
from ..utils import UsageError
from ..utils.config import LOADERS, Options, datasets, dicts, explained, load_config, type_name, without_pretrained
from ..utils.files import check_new

HEADS = ('bbox_head', 'mask_head', 'decode_head', 'auxiliary_head', 'head')  # whose num_classes is the data set's
NO_CLASSES = ('STDCHead', 'GroundingDINOHead', 'ATSSVLFusionHead')  # but not of these: borders, words


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
        if from_scratch:
            cfg = without_pretrained(cfg)
        if auto_scale_lr:
            if not (cfg.get('auto_scale_lr') or {}).get('base_batch_size'):
                raise UsageError(f'--auto-scale-lr needs auto_scale_lr.base_batch_size, which {config} has not.')
            cfg.auto_scale_lr.enable = True
        if amp:
            if type_name(cfg.optim_wrapper) not in ('', 'OptimWrapper', 'AmpOptimWrapper'):
                raise UsageError(f'--amp replaces an OptimWrapper, and this config has a {cfg.optim_wrapper.type}.')
            cfg.optim_wrapper.update(type='AmpOptimWrapper', loss_scale=cfg.optim_wrapper.get('loss_scale', 'dynamic'))
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
    """Evaluates a model; returns scores by their names. Arguments are the options of ``tools/test.py`` (docs/cli.md).

    ``without_attention`` are stages of the backbone whose attention is set to zero, counted from 0, or ``[]`` for all:
    the control that shows what attention is worth (:func:`mmsoft.attention.measure.without_attention`). Raises
    UsageError as :func:`train`, and if the checkpoint does not fit.
    """
    with explained(config):
        cfg = _prepare(config, work_dir, cfg_options, launcher, demo_data)
        cfg.load_from, cfg.resume = checkpoint, False
        object.__setattr__(cfg, '_filename', f'test_{Path(config).stem}.py')  # beside that which training has left
        if show or show_dir:
            draw_predictions(cfg, show, show_dir, wait_time)
        if tta:
            if not (cfg.get('tta_model') and cfg.get('tta_pipeline')):
                raise UsageError("--tta needs tta_model and tta_pipeline in the config; `mim test` has the library's.")
            cfg.model = ConfigDict(dict(cfg.tta_model, module=cfg.model))
            for dataset in datasets(cfg, 'test_dataloader'):
                dataset['pipeline'] = cfg.tta_pipeline
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
            loader.setdefault('pin_memory', torch.cuda.is_available())
            loader.setdefault('collate_fn', dict(type='default_collate'))
    return cfg


def build(cfg: Config, *loops: str) -> Runner:
    """Builds a model, and the data sets of these loops: train, val or test; an optimizer for training.

    Raises UsageError if data sets, model and checkpoint do not fit each other.
    """
    check_evaluators(cfg, *loops)
    if on_shapes(cfg):
        ensure_shapes()
    runner = RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)
    for loop in [getattr(runner, f'{name}_loop') for name in loops]:  # which builds it, and its data set
        if loop:
            check_classes(loop.dataloader.dataset, runner.model, exact=cfg.default_scope == 'mmdet')
        elif loops == ('test',):
            raise UsageError('There is nothing to test: set test_dataloader, test_cfg and test_evaluator.')
    if 'train' in loops:
        check_objects(runner.train_loop.dataloader.dataset)
        check_mixing(runner.model)
        if runner.val_loop and hasattr(runner.val_loop.dataloader.dataset, '__len__'):
            runner.val_loop.dataloader.dataset[0]  # tells of missing images now, and not after an epoch
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


def save_predictions(cfg: Config, out: str) -> None:
    """Changes a config so that the test saves predictions: to a .pkl file, or label maps to a folder."""
    evaluators = cfg.test_evaluator if isinstance(cfg.test_evaluator, (list, tuple)) else [cfg.test_evaluator]
    if out.endswith(('.pkl', '.pickle')):
        Path(out).parent.mkdir(parents=True, exist_ok=True)  # now, and not after the evaluation
        dump = 'DumpDetResults' if cfg.default_scope == 'mmdet' else 'DumpResults'
        cfg.test_evaluator = [*evaluators, dict(type=dump, out_file_path=out)]
    elif cfg.default_scope == 'mmseg':
        check_new(out, '--out')  # it may hold annotations
        cfg.test_evaluator = [dict(one, output_dir=out, keep_results=True) for one in evaluators]
    else:
        raise UsageError(f'--out {out} is not a .pkl file; a folder is for semantic segmentation only.')


def check_evaluators(cfg: Config, *loops: str) -> None:
    """Raises UsageError if an evaluator has another file than its data set, one without fields, or too few classes."""
    model = cfg.get('model') or {}
    count = model['head'].get('num_classes') if isinstance(model.get('head'), dict) else None
    for name in loops:
        sets = [one for one in datasets(cfg, f'{name}_dataloader') if one.get('ann_file')]
        own = [Path(one.get('data_root') or '', one['ann_file']) for one in sets]
        parts = [part for part in dicts(cfg.get(f'{name}_evaluator')) if part.get('ann_file')]
        panoptic = 'CocoPanopticMetric' in map(type_name, parts)  # beside which CocoMetric has things in another file
        for part in dicts(cfg.get(f'{name}_evaluator')):
            if count and type_name(part) == 'Accuracy' and np.max(part.get('topk') or 1) > count:
                raise UsageError(f'{name}_evaluator.topk is {part["topk"]}, and there are {count} classes; set (1,).')
        for part in parts:
            file, is_coco = Path(part['ann_file']), type_name(part) == 'CocoMetric'
            if own and not (is_coco and panoptic) and file.resolve() not in map(Path.resolve, own):
                reads = f'{name}_dataloader reads {", ".join(map(str, own))}'
                raise UsageError(f'{name}_evaluator.ann_file is {file}, and {reads}: set both to one file.')
            is_scored = is_coco and file.is_file()
            for number, one in enumerate(json.loads(file.read_text()).get('annotations', ()) if is_scored else ()):
                if not {'area', 'iscrowd'} <= set(one):
                    raise UsageError(f'annotations[{number}] of {file} lacks area or iscrowd (0 for one object).')


def check_resumable(checkpoint: str) -> None:
    """Raises UsageError if a checkpoint lacks what training resumes from."""
    content = read_checkpoint(checkpoint, peek=True)
    for part in ('meta', 'message_hub', 'optimizer'):
        if not isinstance(content.get(part), dict):
            start = f'start from its weights with --cfg-options load_from={checkpoint}'
            raise UsageError(f'{checkpoint} has no {part}, so training cannot resume from it; {start}.')


def check_objects(dataset: Dataset) -> None:
    """Raises UsageError if no image of a COCO data set has an object; mmdet leaves out boxes below one pixel."""
    infos = map(dataset.get_data_info, range(len(dataset))) if hasattr(dataset, 'cat_ids') else [{}]
    if not any(info.get('instances', True) for info in infos):  # a video has images
        form = 'boxes are [x, y, width, height] in pixels, image_id and category_id ids of an image and a category'
        raise UsageError(f'{dataset.ann_file} has no objects for its images: {form}.')


def check_mixing(model: nn.Module) -> None:
    """Raises UsageError if mmpretrain would mix labels for another number of classes than the head's."""
    mixes, count = getattr(model, 'data_preprocessor', None), getattr(getattr(model, 'head', None), 'num_classes', None)
    if count and getattr(mixes, 'batch_augments', None) and mixes.num_classes not in (None, count):
        raise UsageError(f'num_classes is {count} in model.head, {mixes.num_classes} in data_preprocessor: set both.')


def check_classes(dataset: Dataset, model: nn.Module, exact: bool) -> None:
    """Raises UsageError if classes of a data set are not in its COCO file, or palette or heads have not one for each.

    Data sets that it combines or repeats are checked, too. Heads are the modules called as in :data:`HEADS`; if the
    number need not be ``exact``, they may have more classes.
    """
    for part in getattr(dataset, 'datasets', [getattr(dataset, 'dataset', None)]):
        if part is not None:
            check_classes(part, model, exact)
    metainfo = getattr(dataset, 'metainfo', {})
    classes, palette = metainfo.get('classes') or (), metainfo.get('palette')
    if isinstance(classes, str):
        raise UsageError(f'metainfo.classes is a text: one class needs a comma behind it, as in ({classes!r},).')
    if isinstance(palette, (list, tuple)) and len(palette) < len(classes):
        raise UsageError(f"metainfo.palette has {len(palette)} colours for {len(classes)} classes; 'random' is enough.")
    named = f'{", ".join(classes[:9])}{", …" * (len(classes) > 9)}'
    if len(getattr(dataset, 'cat_ids', classes)) != len(classes):
        names = [one['name'] for one in json.loads(Path(dataset.ann_file).read_text())['categories']]
        ours = f'the classes of the data set in the config are {named}: set metainfo.classes to names in the file'
        raise UsageError(f'{dataset.ann_file} has the categories {", ".join(names)}, and {ours}.')
    wanted = len(metainfo.get('thing_classes') or classes)  # of panoptic data, heads detect things
    for name, module in model.named_modules() if classes else ():
        is_head = name.rstrip('.0123456789').split('.')[-1] in HEADS and type(module).__name__ not in NO_CLASSES
        count = getattr(module, 'num_classes', None)
        if is_head and isinstance(count, int) and (count < wanted or (exact and count > wanted)):
            raise UsageError(f'model.{name} has num_classes={count}; set {wanted}, as the data set ({named}).')
