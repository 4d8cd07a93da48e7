"""A grid of images in one PNG: image, ground truth, prediction."""
from pathlib import Path
from typing import Optional, Sequence, Union

import mmcv
import numpy as np
import torch
from matplotlib.figure import Figure
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, MODELS, VISUALIZERS, init_default_scope
from mmengine.runner import load_checkpoint
from mmengine.structures import BaseDataElement, PixelData

from mmsoft.utils.files import atomic_write


def contact_sheet(rows: Sequence[Sequence[np.ndarray]], titles: Union[Sequence[str], Sequence[Sequence[str]]],
                  path: Union[str, Path], width: float = 4.) -> Path:
    """Writes a grid of images as one PNG.

    Args:
        rows (Sequence[Sequence[np.ndarray]]): RGB images of shape (H, W, 3), as many in each row as titles.
        titles (Sequence[str] or Sequence[Sequence[str]]): Captions of the columns, or of each image.
        path (str or Path): The file; an earlier one is replaced once the new one is complete.
        width (float): Width of a column in inches, of 100 pixels each.

    Returns:
        Path: The file.

    Raises:
        ValueError: If there are no rows, or one does not have as many images as titles.
    """
    titles = [titles] if isinstance(titles[0], str) else titles
    columns = len(titles[0])
    if not rows or any(len(row) != columns for row in rows):
        raise ValueError(f'a contact sheet needs at least one row, and {columns} images in each')
    heights = [max(image.shape[0] / image.shape[1] for image in row) for row in rows]
    figure = Figure(figsize=(width * columns, width * sum(heights) + .1 + .3 * len(titles)), dpi=100, layout='compressed')
    axes = figure.subplots(len(rows), columns, squeeze=False, gridspec_kw=dict(height_ratios=heights))
    for title, axis in zip((title for row in titles for title in row), axes.flat):
        axis.set_title(title, fontsize=3 * width)
    for axis, image in zip(axes.flat, (image for row in rows for image in row)):
        axis.imshow(image, interpolation='antialiased')
        axis.axis('off')
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        figure.savefig(file, format='png')
    return path


@torch.no_grad()
def draw_contact_sheet(config: Union[str, Path, Config], checkpoint: Union[str, Path], path: Union[str, Path],
                       indices: Optional[Sequence[int]] = None, device: str = 'cpu', **draw) -> Path:
    """Draws images of a trained model's test set, with the ground truth and with its predictions.

    Args:
        config (str, Path or Config): A detection or segmentation config.
        checkpoint (str or Path): The trained weights.
        path (str or Path): The PNG to write.
        indices (Sequence[int], optional): Samples of the test set. Defaults to six, evenly spread.
        device (str): Where to run the model.
        **draw: For the visualizer's ``add_datasample``, as ``with_labels=False``. The ``pred_score_thr`` of a detector
            defaults to 0.5.

    Returns:
        Path: The PNG.
    """
    cfg = config if isinstance(config, Config) else Config.fromfile(config)
    if cfg.default_scope == 'mmdet':
        draw.setdefault('pred_score_thr', 0.5)
    init_default_scope(cfg.default_scope)
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    model = MODELS.build(cfg.model)
    load_checkpoint(model, str(checkpoint), map_location='cpu', logger='silent')
    model.to(device).eval()
    visualizer = VISUALIZERS.build(dict(cfg.visualizer, vis_backends=None, name='contact_sheet'))
    visualizer.dataset_meta = dataset.metainfo
    if indices is None:
        indices = np.linspace(0, len(dataset) - 1, min(6, len(dataset))).astype(int).tolist()
    rows = []
    for index in indices:
        sample = model.test_step(pseudo_collate([dataset[index]]))[0].cpu()
        image = _enlarge(mmcv.imread(sample.img_path, channel_order='rgb'), sample)
        rows.append([image])
        for gt in (True, False):
            visualizer.add_datasample('contact_sheet', image.copy(), sample, draw_gt=gt, draw_pred=not gt, **draw)
            rows[-1].append(visualizer.get_image())
    return contact_sheet(rows, ('image', 'ground truth', 'prediction'), path)


def _enlarge(image: np.ndarray, sample: BaseDataElement) -> np.ndarray:
    """A small image at several times its size, with its boxes, masks and labels, so that the names of classes fit."""
    times = max(1, 480 // max(image.shape[:2]))

    def repeat(pixels: torch.Tensor) -> torch.Tensor:
        return pixels.repeat_interleave(times, dim=-2).repeat_interleave(times, dim=-1)

    for name, data in sample.items():
        if 'bboxes' in data:
            data.bboxes = data.bboxes * times
            if 'masks' in data:  # mmdet's own type in the ground truth, a tensor in predictions
                data.masks = repeat(data.masks) if torch.is_tensor(data.masks) else data.masks.rescale(times)
        elif name in ('gt_sem_seg', 'pred_sem_seg'):
            sample.set_field(PixelData(data=repeat(data.data)), name)
    return mmcv.imrescale(image, times)
