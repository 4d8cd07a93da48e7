"""Label maps over pictures of any size."""
from typing import Optional, Sequence

import cv2
import numpy as np
from mmengine.structures import PixelData
from mmseg.visualization import SegLocalVisualizer


class LabelMapVisualizer(SegLocalVisualizer):
    """mmseg's drawing, of which the masks of all classes and the lists of their pixels are never held."""

    def _draw_sem_seg(self,
                      image: np.ndarray,
                      sem_seg: PixelData,
                      classes: Sequence[str],
                      palette: Sequence[Sequence[int]],
                      with_labels: Optional[bool] = True) -> np.ndarray:
        labels = sem_seg.data[0].cpu().numpy()
        present = np.flatnonzero(np.bincount(labels.ravel())[:len(classes)])[::-1]
        drawn, names = np.zeros_like(image), []
        for label in present:
            pixels = labels == label
            drawn[pixels] = palette[label]
            row = pixels.sum(1).argmax()  # a name stands in the middle of the longest row
            columns = np.flatnonzero(pixels[row])
            names.append((label, (int(columns[len(columns) // 2]), int(row))))
        if with_labels:
            for label, place in names:
                _write(drawn, classes[label], place, palette[label])
        drawn = cv2.addWeighted(image, 1 - self.alpha, drawn, self.alpha, 0)
        self.set_image(drawn)
        return drawn


def _write(image: np.ndarray, name: str, place: tuple, colour: Sequence[int]) -> None:
    """A name in a box, as large in proportion to the picture as mmseg writes it."""
    font, scale, thickness = cv2.FONT_HERSHEY_SIMPLEX, min(image.shape[:2]) / 500, 1 + (min(image.shape[:2]) >= 300)
    (width, height), base = cv2.getTextSize(name, font, scale, thickness)
    corner = (place[0] + width + base, place[1] + height + base)
    cv2.rectangle(image, place, corner, [int(value) for value in colour], -1)
    cv2.rectangle(image, place, corner, (0, 0, 0), thickness)
    cv2.putText(image, name, (place[0], place[1] + height), font, scale, (255, 255, 255), thickness, 2)
