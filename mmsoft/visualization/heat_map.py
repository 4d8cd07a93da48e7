"""A heat map over a picture."""
from typing import Optional, Union

import matplotlib
import mmcv
import numpy as np
import torch


def overlay(image: np.ndarray, heat: Union[np.ndarray, torch.Tensor], peak: Optional[float] = None,
            opacity: float = 0.5) -> np.ndarray:
    """Colours a picture by a map: what is high glows, what is low stays the picture, in grey.

    Args:
        image (np.ndarray): RGB, shape (H, W, 3) of uint8.
        heat (np.ndarray or Tensor): Shape (h, w), of any size; it is resized bilinearly. Its least value is 0 on the
            scale of colours.
        peak (float, optional): The value at the scale's top, for maps that are to be compared. Defaults to this map's
            greatest one.
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
