"""From a config for a data set of the world to the same one for the shapes."""
from pathlib import Path
from typing import Optional

from mmengine.config import Config

from mmsoft.utils.config import EVALUATORS, LOADERS, datasets, without_pretrained
from ..shapes import DEFAULT_ROOT
from .data import FORMS, check_supported, retarget_evaluator, retarget_loader
from .model import with_counts
from .schedule import shorten
from .sizes import longest_short_edge, shrink

SCENES = 128
SHORT_EDGE = dict(mmdet=192, mmseg=192)  # classifiers keep theirs, because many are made for one size


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
    scope = cfg.default_scope
    check_supported(cfg)
    form = FORMS[scope]
    cfg = without_pretrained(cfg)
    tested = cfg.get('test_dataloader') or cfg.get('train_dataloader')
    edge = longest_short_edge(tested['dataset'])
    factor = min(1, SHORT_EDGE.get(scope, edge) / edge)
    for name in LOADERS:
        if cfg.get(name):
            split = 'train' if name.startswith('train') else 'val'
            cfg[name] = shrink(retarget_loader(cfg[name], form, root, split, SCENES), factor)
    for name in EVALUATORS:
        if cfg.get(name):
            cfg[name] = retarget_evaluator(cfg[name], form, root)
    cfg.model = with_counts(cfg.model, len(form.metainfo['classes']))
    for part in ('data_preprocessor', 'test_cfg'):
        if cfg.model.get(part):
            cfg.model[part] = shrink(cfg.model[part], factor)
    if cfg.get('data_preprocessor'):
        cfg.data_preprocessor = shrink(with_counts(cfg.data_preprocessor, len(form.metainfo['classes'])), factor)
    for name in ('tta_pipeline', 'custom_hooks'):
        if cfg.get(name):
            cfg[name] = shrink(cfg[name], factor)
    if cfg.get('train_dataloader'):
        shorten(cfg, SCENES, max_epochs, max_iters)
    return cfg
