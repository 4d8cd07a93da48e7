"""The main job: train, evaluate on held-out scenes, draw."""
import time
from pathlib import Path
from typing import Dict, Optional

from mmengine.logging import print_log
from mmengine.runner import find_latest_checkpoint

from ..visualization import draw_contact_sheet
from .launch import test, train

# What to print of a host's scores, and how its users call it.
HEADLINES = {'coco/bbox_mAP_50': 'box AP50', 'coco/bbox_mAP': 'box AP', 'mIoU': 'mIoU', 'aAcc': 'pixel accuracy'}


def showcase(config: str, work_dir: Optional[str] = None) -> Dict[str, float]:
    """Trains a config (from where an earlier run stopped), evaluates it and writes ``contact_sheet.png``.

    Args:
        config: Path of a config for detection or segmentation.
        work_dir: Where everything goes; ``work_dirs/`` and the config's name if None.

    Returns:
        Scores by their names.
    """
    start = time.time()
    work_dir = work_dir or f'./work_dirs/{Path(config).stem}'
    train(config, work_dir, resume='auto')
    checkpoint = find_latest_checkpoint(work_dir)
    scores = test(config, checkpoint, work_dir)
    picture = draw_contact_sheet(config, checkpoint, Path(work_dir, 'contact_sheet.png'))
    said = ', '.join(f'{name} {scores[key]:.3g}' for key, name in HEADLINES.items() if key in scores)
    print_log(f'Held-out scenes: {said}, {(time.time() - start) / 60:.1f} minutes after the start; '
              f'the picture is {picture}', logger='current')
    return scores
