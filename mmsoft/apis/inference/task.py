"""What the tasks have in common."""
import json
from pathlib import Path
from typing import Any, List, Optional

import numpy as np
from mmengine.config import Config
from mmengine.dataset import pseudo_collate


class Task:
    """A model that predicts, by its host's inferencer, and what its predictions look like.

    Args:
        cfg (Config): Config of the model.
        checkpoint (str): Its weights.
        device (str, optional): Where to run it. Defaults to None: what mmengine finds best.
        palette (str, optional): Name of a palette of the host's. Defaults to None: that of the config.
        opacity (float, optional): Of what is drawn. Defaults to None: that of the host.
        score_thr (float): Detections that are less sure are not drawn.

    Raises:
        UsageError: If there is no such palette.
    """

    collate = staticmethod(pseudo_collate)

    def __init__(self, cfg: Config, checkpoint: str, device: Optional[str], palette: Optional[str],
                 opacity: Optional[float], score_thr: float) -> None:
        raise NotImplementedError

    def prepare(self, image: np.ndarray) -> dict:
        """A BGR picture, as the model takes it; its ``inputs`` is a tensor of shape (3, H, W)."""
        shape = image.shape[:2]
        return self.inferencer.pipeline(dict(img=image, img_shape=shape, ori_shape=shape))

    def forward(self, prepared: List[dict]) -> list:
        """Prepared pictures of one shape to the host's data samples."""
        return self.inferencer.forward(self.collate(prepared))

    def draw(self, image: np.ndarray, sample: Any, path: Path) -> None:
        """Draws a prediction on an RGB picture, and saves it."""
        raise NotImplementedError

    def record(self, name: Path, label_name: Path, sample: Any, folder: Path) -> None:
        """Keeps a prediction for :meth:`save`, or saves it below the folder."""
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Writes what was recorded."""
        raise NotImplementedError


def dump(content: Any, path: Path) -> None:
    """Writes a JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False), encoding='utf-8')
