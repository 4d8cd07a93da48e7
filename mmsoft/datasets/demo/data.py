"""Loaders and evaluators of the shapes, one form for each host."""
from typing import Any, Callable, Dict, NamedTuple, Tuple

from mmengine.config import Config

from mmsoft.utils.config import LOADERS, dicts, map_dicts, type_name
from mmsoft.utils.errors import UsageError
from ..shapes import METAINFO, SEMANTIC_METAINFO
from ..shapes_formats import coco_path, image_folder, label_folder, portrait_folder

# Of a data set's own settings, those that have nothing to do with where and how its files are stored.
KEPT = ('pipeline', 'test_mode', 'filter_cfg', 'lazy_init')
LOADING = ('LoadImageFromFile', 'LoadImageFromNDArray', 'LoadAnnotations')


class Form(NamedTuple):
    """One of the forms in which the shapes are stored.

    Attributes:
        dataset: Settings of a split's data set, from its root and the split's name.
        metainfo: Classes and their colours.
        evaluators: Types of the evaluators that work on it.
        evaluator: The one to take instead of others.
        batch_size: The largest batch that a CPU is asked to do.
    """

    dataset: Callable[[str, str], Dict[str, Any]]
    metainfo: Dict[str, Any]
    evaluators: Tuple[str, ...]
    evaluator: Dict[str, Any]
    batch_size: int


def _coco(root: str, split: str) -> Dict[str, Any]:
    return dict(
        type='CocoDataset',
        data_root=root,
        ann_file=coco_path(split),
        data_prefix=dict(img=image_folder(split)),
        metainfo=METAINFO)


def _ade20k(root: str, split: str) -> Dict[str, Any]:
    return dict(
        type='BaseSegDataset',
        data_root=root,
        data_prefix=dict(img_path=image_folder(split), seg_map_path=label_folder(split)),
        reduce_zero_label=True,
        metainfo=SEMANTIC_METAINFO)


def _folders(root: str, split: str) -> Dict[str, Any]:
    return dict(type='CustomDataset', data_root=root, data_prefix=portrait_folder(split), metainfo=METAINFO)


FORMS = dict(
    mmdet=Form(_coco, METAINFO, ('CocoMetric', ), dict(type='CocoMetric', metric='bbox'), 4),
    mmseg=Form(_ade20k, SEMANTIC_METAINFO, ('IoUMetric', ), dict(type='IoUMetric', iou_metrics=['mIoU']), 4),
    mmpretrain=Form(_folders, METAINFO, ('Accuracy', 'SingleLabelMetric'), dict(type='Accuracy'), 8))


def check_supported(cfg: Config) -> None:
    """Raises UsageError if a pipeline loads annotations that the shapes do not have."""
    for part in dicts([cfg.get(name) for name in LOADERS]):
        name = type_name(part)
        if name.startswith('Load') and name not in LOADING or part.get('with_seg'):
            raise UsageError('--demo-data cannot serve this config: its pipeline loads more than boxes, masks, '
                             f'semantic labels or classes ({name}), and the generated shapes have nothing else.')


def retarget_loader(loader: Dict[str, Any], form: Form, root: str, split: str, scenes: int) -> Dict[str, Any]:
    """The same loader for a split of the shapes, in this process and in small batches."""

    def visit(part: Dict[str, Any]) -> Dict[str, Any]:
        if 'times' in part:
            part['times'] = 1
        if type_name(part) == 'LoadAnnotations':
            part.pop('reduce_zero_label', None)  # the data set says it
        if 'data_root' in part or 'ann_file' in part or 'data_prefix' in part:
            kept = {key: part[key] for key in KEPT if key in part}
            if 'pipeline' in kept and not any(type_name(one).startswith('LoadImage') for one in kept['pipeline']):
                kept['pipeline'] = [dict(type='LoadImageFromFile'), *kept['pipeline']]  # the original held its pictures
            return dict(kept, indices=scenes, **form.dataset(root, split))
        return part

    loader = map_dicts(loader, visit)
    loader.pop('prefetch_factor', None)
    return dict(loader, batch_size=min(loader['batch_size'], form.batch_size), num_workers=0, persistent_workers=False)


def retarget_evaluator(evaluator: Any, form: Form, root: str) -> Any:
    """The same evaluators as far as they work on the shapes, or the form's own."""
    evaluators = evaluator if isinstance(evaluator, (list, tuple)) else [evaluator]
    kept = [dict(one) for one in evaluators if type_name(one) in form.evaluators] or [dict(form.evaluator)]
    for one in kept:
        if type_name(one) == 'CocoMetric':
            one.update(ann_file=f'{root}/{coco_path("val")}', format_only=False, outfile_prefix=None)
    return kept if len(kept) > 1 else kept[0]
