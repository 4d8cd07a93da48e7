"""Maps drawn over images."""
from typing import Optional, Sequence, Union

import cv2
import matplotlib
import mmcv
import numpy as np
import torch


def overlay(image: np.ndarray, heat: Union[np.ndarray, torch.Tensor], peak: Optional[float] = None,
            opacity: float = 0.5) -> np.ndarray:
    """Colours an image by a heat map: high values glow, low ones leave the image in grey.

    Args:
        image (np.ndarray): RGB, shape (H, W, 3) of uint8.
        heat (np.ndarray or Tensor): Shape (h, w); it is resized bilinearly. Its minimum has the lowest colour.
        peak (float, optional): The value of the highest colour, for maps to be compared. Defaults to the maximum.
        opacity (float): Of the colours.

    Returns:
        np.ndarray: RGB, shape (H, W, 3) of uint8.
    """
    heat = torch.as_tensor(heat).detach().float().cpu().numpy()
    low, high = heat.min(), heat.max() if peak is None else peak
    scaled = np.clip((heat - low) / max(high - low, 1e-12), 0, 1)
    colours = 255 * matplotlib.colormaps['inferno'](mmcv.imresize(scaled, image.shape[1::-1]))[..., :3]
    grey = image.mean(-1, keepdims=True).repeat(3, -1)
    return ((1 - opacity) * grey + opacity * colours).astype(np.uint8)


def draw_label_map(image: np.ndarray, labels: np.ndarray, classes: Sequence[str], palette: Sequence[Sequence[int]],
                   opacity: float) -> np.ndarray:
    """Draws classes and their names as mmseg's visualizer does, which would hold a mask of each class at once.

    Args:
        image (np.ndarray): RGB, shape (H, W, 3) of uint8.
        labels (np.ndarray): Indices of classes, shape (H, W); those without a class are not drawn.
        classes (Sequence[str]): Names.
        palette (Sequence[Sequence[int]]): Red, green and blue of each class, 0 to 255.
        opacity (float): Of the colours.

    Returns:
        np.ndarray: RGB, shape (H, W, 3) of uint8.
    """
    short = min(image.shape[:2])
    font, scale, thickness = cv2.FONT_HERSHEY_SIMPLEX, short / 500, 1 + (short >= 300)
    drawn, names = np.zeros_like(image), []
    for label in np.flatnonzero(np.bincount(labels.ravel())[:len(classes)])[::-1]:
        pixels = labels == label
        drawn[pixels] = palette[label]
        y = int(pixels.sum(1).argmax())  # a name is in the middle of the longest row
        columns = np.flatnonzero(pixels[y])
        names.append((classes[label], (int(columns[len(columns) // 2]), y), [int(value) for value in palette[label]]))
    for name, (x, y), colour in names:
        (width, height), base = cv2.getTextSize(name, font, scale, thickness)
        cv2.rectangle(drawn, (x, y), (x + width + base, y + height + base), colour, -1)
        cv2.rectangle(drawn, (x, y), (x + width + base, y + height + base), (0, 0, 0), thickness)
        cv2.putText(drawn, name, (x, y + height), font, scale, (255, 255, 255), thickness, 2)
    return cv2.addWeighted(image, 1 - opacity, drawn, opacity, 0)
