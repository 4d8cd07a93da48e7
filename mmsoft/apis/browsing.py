"""Draws annotated images, as training sees them."""

from pathlib import Path
from typing import Any, Optional

from mmengine.registry import DATASETS, VISUALIZERS, init_default_scope
from mmengine.structures import InstanceData

from ..datasets.demo import on_shapes
from ..datasets.shapes import ensure_shapes
from .images import check_new
from .preflight import config_on_data


def browse(
    config: str, out_dir: str, count: int = 20, demo_data: bool = False, cfg_options: Optional[dict[str, Any]] = None
) -> int:
    """Draws training images, augmented, with their boxes, masks, label maps or classes.

    Args:
        config: Path of the config.
        out_dir: Folder for the images, new or empty.
        count: Maximum number of images.
        demo_data: Whether to draw the synthetic shapes data set instead of the config's data.
        cfg_options: Settings by dotted keys that override all others.

    Returns:
        int: Number of images.

    Raises:
        UsageError: If files of the data set are missing, or the folder is not empty.
    """
    cfg = config_on_data(config, cfg_options, demo_data, 'train_dataloader')
    check_new(out_dir)
    if on_shapes(cfg):
        ensure_shapes()
    init_default_scope(cfg.default_scope)
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    visualizer = VISUALIZERS.build(dict(cfg.visualizer, name='browse', vis_backends=None))
    visualizer.dataset_meta = dataset.metainfo
    Path(out_dir).mkdir(parents=True, exist_ok=True)
    for index in range(min(count, len(dataset))):
        item = dataset[index]
        sample, image = item['data_samples'], item['inputs'].permute(1, 2, 0).numpy()[..., ::-1]
        image = image.clip(0, 255).astype('uint8')
        options = dict(draw_pred=False, show=False, out_file=str(Path(out_dir, f'{index:06d}.png')))
        if cfg.default_scope == 'mmpretrain':
            visualizer.visualize_cls(image, sample, classes=dataset.metainfo.get('classes'), **options)
            continue
        if cfg.default_scope == 'mmseg':
            options['with_labels'] = False  # mmseg's fail with newer versions of OpenCV
        elif 'gt_instances' in sample:
            found = sample.gt_instances
            boxes = found.bboxes.tensor if hasattr(found.bboxes, 'tensor') else found.bboxes
            masks = dict(masks=found.masks.to_ndarray().astype(bool)) if 'masks' in found else {}
            sample.gt_instances = InstanceData(bboxes=boxes, labels=found.labels, **masks)
        visualizer.add_datasample('image', image, sample, **options)
    return min(count, len(dataset))
