"""Makes a config of the three hosts run on the generated shapes, on a CPU, within minutes.

It is meant for the configs of mmsoft, and takes whatever else is written in the hosts' usual way.
"""
import math
from pathlib import Path
from typing import Any, Dict, List, Optional

from mmengine.config import Config

from ..utils import UsageError
from ..utils.config import EVALUATORS, LOADERS, datasets, dicts, map_dicts, type_name, without_pretrained
from .shapes import CLASSES, DEFAULT_ROOT, STUFF, shapes_dataset
from .shapes_formats import INSTANCES

SCENES, EPOCHS = 128, 2
SHORT_EDGE = dict(mmdet=192, mmseg=192)  # classifiers keep theirs, because many are made for one size
BATCH_SIZE = dict(mmdet=4, mmseg=4, mmpretrain=8)
QUERIES = 100  # more than a scene has objects; some models pick that many positions of a small feature map
METRICS = dict(
    mmdet=dict(type='CocoMetric', metric='bbox'),
    mmseg=dict(type='IoUMetric', iou_metrics=['mIoU']),
    mmpretrain=dict(type='Accuracy'))
KEPT_METRICS = ('CocoMetric', 'IoUMetric', 'Accuracy', 'SingleLabelMetric')
LOADING = ('LoadImageFromFile', 'LoadImageFromNDArray', 'LoadAnnotations')
# Of a data set's own settings, those that have nothing to do with where and how its files are stored.
KEPT = ('pipeline', 'test_mode', 'filter_cfg', 'lazy_init')
SIZES = ('scale', 'scales', 'img_scale', 'crop_size', 'size', 'max_size', 'border', 'random_size_range', 'stride')
GRID = 32
COUNTS = ('begin', 'end', 'T_max', 'total_steps', 'step_size', 'milestones')


def on_shapes(cfg: Config) -> bool:
    """Whether the config was written for the shapes: all its data is under ``data/shapes``."""
    roots = [Path(dataset.get('data_root') or '') for _, dataset in datasets(cfg)]
    shapes = Path(DEFAULT_ROOT)
    return bool(roots) and all(root == shapes or shapes in root.parents for root in roots)


def retarget(cfg: Config,
             max_epochs: Optional[int] = None,
             max_iters: Optional[int] = None,
             root: str = DEFAULT_ROOT) -> Config:
    """Makes a config run on the shapes.

    It keeps its model, its losses, its augmentation and its optimizer. It gets the shapes as data and their classes,
    pictures so small that a CPU can do, random weights, and a schedule that goes through all its phases within two
    passes over the first 128 scenes. Learning rates follow the batch size if the config says what it is meant for.

    Args:
        cfg: Config for detection, instance or semantic segmentation, or classification. It is left as it is.
        max_epochs: Length of the schedule if it counts epochs; 2 if None.
        max_iters: Length of the schedule if it counts iterations; as many as two epochs have if None.
        root: Where the shapes are.

    Returns:
        The new config; the same one if it was written for the shapes.

    Raises:
        UsageError: If the config needs annotations that the shapes do not have, or does not count what is given as
            its length.
    """
    if on_shapes(cfg):
        return cfg
    for part in dicts([cfg.get(name) for name in LOADERS]):
        name = type_name(part)
        if name.startswith('Load') and name not in LOADING or part.get('with_seg'):
            raise UsageError('--demo-data cannot serve this config: its pipeline loads more than boxes, masks, '
                             f'semantic labels or classes ({name}), and the generated shapes have nothing else.')
    cfg, scope = without_pretrained(cfg), cfg.default_scope
    tested = cfg.get('test_dataloader') or cfg.get('train_dataloader')
    edge = max((side for part in dicts(tested['dataset']) for key in SIZES for side in _short_edges(part.get(key))),
               default=1)
    factor = min(1, SHORT_EDGE.get(scope, edge) / edge)
    for name in filter(cfg.get, LOADERS):
        cfg[name] = shrink(_loader(cfg[name], scope, root, 'train' if name.startswith('train') else 'val'), factor)
    for name in filter(cfg.get, EVALUATORS):
        cfg[name] = _evaluator(cfg[name], scope, root)
    count = len(CLASSES + STUFF if scope == 'mmseg' else CLASSES)
    cfg.model = with_counts(cfg.model, count)
    for part in filter(cfg.model.get, ('data_preprocessor', 'test_cfg')):
        cfg.model[part] = shrink(cfg.model[part], factor)
    if cfg.get('data_preprocessor'):
        cfg.data_preprocessor = with_counts(cfg.data_preprocessor, count)
    for name in filter(cfg.get, ('data_preprocessor', 'tta_pipeline', 'custom_hooks')):
        cfg[name] = shrink(cfg[name], factor)
    if cfg.get('train_dataloader'):
        _shorten(cfg, max_epochs, max_iters)
    return cfg


def _loader(loader: Dict[str, Any], scope: str, root: str, split: str) -> Dict[str, Any]:
    """The same loader for a split of the shapes, in this process and in small batches."""

    def visit(part: Dict[str, Any]) -> Dict[str, Any]:
        if 'times' in part:
            part['times'] = 1
        if type_name(part) == 'LoadAnnotations':
            part.pop('reduce_zero_label', None)  # the data set says it
        if not {'data_root', 'ann_file', 'data_prefix'} & set(part):
            return part
        kept = {key: part[key] for key in KEPT if key in part}
        if 'pipeline' in kept and not any(type_name(one).startswith('LoadImage') for one in kept['pipeline']):
            kept['pipeline'] = [dict(type='LoadImageFromFile'), *kept['pipeline']]  # the original held its pictures
        return dict(kept, **shapes_dataset(scope, root, split), indices=SCENES)

    loader = map_dicts(loader, visit)
    loader.pop('prefetch_factor', None)
    return dict(loader, batch_size=min(loader['batch_size'], BATCH_SIZE[scope]), num_workers=0,
                persistent_workers=False)


def _evaluator(evaluator: Any, scope: str, root: str) -> List[Dict[str, Any]]:
    """The same evaluators as far as they work on the shapes, or the host's usual one."""
    evaluators = evaluator if isinstance(evaluator, (list, tuple)) else [evaluator]
    kept = [dict(one) for one in evaluators if type_name(one) in KEPT_METRICS] or [dict(METRICS[scope])]
    for one in kept:
        if type_name(one) == 'CocoMetric':
            one.update(ann_file=f'{root}/{INSTANCES["val"]}', format_only=False, outfile_prefix=None)
    return kept


def with_counts(model: Dict[str, Any], count: int) -> Dict[str, Any]:
    """The same model for another number of classes, and with queries for small pictures.

    Args:
        model: Config of a detector, segmenter or classifier, or a part of it; it is left as it is.
        count: Number of classes.
    """

    def visit(part: Dict[str, Any]) -> Dict[str, Any]:
        counts = dict(num_classes=count, num_things_classes=count, num_stuff_classes=0)
        part.update({key: value for key, value in counts.items() if isinstance(part.get(key), int)})
        if isinstance(part.get('num_queries'), int):
            part['num_queries'] = min(part['num_queries'], QUERIES)
        weight = part.get('class_weight')
        if isinstance(weight, (list, tuple)):  # equal ones stay, with that of 'no object' behind; others are dropped
            last = [weight[-1]] * (weight[-1] != weight[0])
            part['class_weight'] = [weight[0]] * count + last if len(set(weight[:-1])) == 1 else None
        return part

    # A region proposal network tells objects from background, whatever the classes.
    return dict(map_dicts(model, visit), **{key: model[key] for key in ('rpn_head', ) if key in model})


def _short_edges(size: Any) -> List[int]:
    """The short edges of a size: a number, a pair, or several of these."""
    if isinstance(size, int):
        return [size]
    if not isinstance(size, (list, tuple)):
        return []
    edges = [edge for one in size for edge in _short_edges(one)]
    return [min(edges)] if edges and all(isinstance(one, int) for one in size) else edges


def shrink(node: Any, factor: float) -> Any:
    """Scales all picture sizes, to multiples of 32 pixels, which loaders and models pad to.

    Ratios, which are no whole numbers, and what is smaller already stay as they are.
    """

    def scaled(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(map(scaled, value))
        if not isinstance(value, int) or abs(value) <= GRID:
            return value
        return int(math.copysign(GRID * max(1, round(abs(value) * factor / GRID)), value))

    def visit(part: Dict[str, Any]) -> Dict[str, Any]:
        return {key: scaled(value) if key in SIZES else value for key, value in part.items()}

    return map_dicts(node, visit) if factor < 1 else node


def _shorten(cfg: Config, max_epochs: Optional[int], max_iters: Optional[int]) -> None:
    """Shortens the training: learning rates, averages of weights, intervals of validation, saving and logging."""
    per_epoch = math.ceil(SCENES / cfg.train_dataloader.batch_size)
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
    scales = {by_epoch: (factor, length)}
    if by_epoch:  # warm-up counted in iterations, of which a whole data set has many more: a quarter of them at most
        warm_up = max((one.get('end') or 0 for one in schedulers if not one.get('by_epoch', True)), default=0)
        scales[False] = (min(1, iters / 4 / max(1, warm_up)), iters)
    units = [one.get('by_epoch', True) for one in schedulers]
    scaled = (_scaled(one, *scales[unit]) if unit in scales else one for one, unit in zip(schedulers, units))
    cfg.param_scheduler = [one for one in scaled if one]

    for hook in cfg.get('custom_hooks') or []:  # an average over many thousand iterations would be the random start
        if type_name(hook) == 'EMAHook' and 'momentum' in hook:
            hook['momentum'] = max(hook['momentum'], min(0.5, 10 / iters))
    hooks = cfg.setdefault('default_hooks', {})
    hooks.setdefault('checkpoint', dict(type='CheckpointHook')).update(interval=interval)
    hooks.setdefault('logger', dict(type='LoggerHook')).update(interval=max(1, min(10, per_epoch // 4)))
    if (cfg.get('auto_scale_lr') or {}).get('base_batch_size'):
        cfg.auto_scale_lr.enable = True


def _scaled(scheduler: Dict[str, Any], factor: float, end: int) -> Optional[Dict[str, Any]]:
    """Scales what a scheduler counts in epochs or iterations; None if it would begin behind the end."""

    def scaled(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [scaled(one) for one in value]
        if not isinstance(value, int) or value == 0:  # None and infinity stay
            return value
        return min(end, max(1, round(value * factor)))

    scheduler = {key: scaled(value) if key in COUNTS else value for key, value in scheduler.items()}
    begin = scheduler.get('begin', 0)
    if begin >= end:
        return None
    if 'end' in scheduler:
        scheduler['end'] = max(scheduler['end'], begin + 1)
    return scheduler
