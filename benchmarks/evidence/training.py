"""Trains one network, or goes on where it was stopped, and writes its scores with and without attention.

    python -m benchmarks.evidence.training METHOD BACKBONE SEED SHAPES WORK_DIR ITERATIONS
"""
import copy
import json
import os
import resource
import sys
from importlib import import_module
from pathlib import Path
from typing import Dict, List, Optional, Tuple

import mmcv
import numpy as np
import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn

from mmsoft.attention import SOFTAttention
from mmsoft.datasets.shapes import IMAGES
from mmsoft.utils.files import atomic_write
from ..common import commit
from ..inside import attention_norms, without_attention
from .recipe import SCORES, make_config
from .rows import METHODS, SHAPES, Run

RESULT = 'result.json'
LIBRARIES = ('torch', 'mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain', 'mmsoft')
POINTS = 30  # of the losses that are kept
SIDES = (64, 128, 256)  # of the images for spectral norms


class CPUTimeHook(Hook):
    """Keeps in the checkpoints how many seconds of all processors a training has taken."""

    KEY = 'cpu_seconds'

    def before_train(self, runner: Runner) -> None:
        self.before = runner.message_hub.get_info(self.KEY, 0.)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        runner.message_hub.update_info(self.KEY, self.seconds())
        checkpoint['message_hub'] = runner.message_hub.state_dict()

    def seconds(self) -> float:
        """Of this process and of those before it, until their last checkpoint."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return self.before + usage.ru_utime + usage.ru_stime


def train(run: Run, root: str, work_dir: str, iterations: int) -> None:
    """Trains and scores.

    Args:
        run: What is trained.
        root: Folder of the synthetic shapes.
        work_dir: Folder for logs, checkpoints and the result.
        iterations: Length of the training.
    """
    torch.set_num_threads(int(os.environ.get('OMP_NUM_THREADS', torch.get_num_threads())))
    cfg = make_config(run, root, work_dir, iterations)
    runner, clock = Runner.from_cfg(cfg), CPUTimeHook()
    runner.register_hook(clock)
    runner.train()
    seconds = clock.seconds()

    def scores() -> Dict[str, float]:
        names, found = SCORES[cfg.default_scope], runner.test()  # mmseg and mmpretrain count in percent
        return {names[key]: value if value <= 1 else value / 100 for key, value in found.items() if key in names}

    whole, control = scores(), None
    with without_attention(runner.model.backbone) as switched_off:
        if switched_off:
            control = scores()
    method, curve = METHODS[run.method], losses(work_dir)
    result = dict(
        run._asdict(),
        commit=commit(),
        scores=whole,
        without_attention=control,
        norms=norms(runner.model.backbone, root) if method.kind == 'classifiers' else None,
        parameters=_count(runner.model),
        backbone_parameters=_count(runner.model.backbone),
        iterations=iterations,
        settings=dict(config=method.config, batch_size=method.batch_size, lr=method.lr, pretrained=method.pretrained,
                      shapes=SHAPES),
        cpu_minutes=round(seconds / 60, 2),
        losses=curve[::-(-len(curve) // POINTS) or 1],
        versions={name: import_module(name).__version__ for name in LIBRARIES})
    with atomic_write(Path(work_dir, RESULT)) as file:
        file.write(json.dumps(result, indent=1).encode())


def norms(backbone: nn.Module, root: str) -> Optional[Dict[int, List[float]]]:
    """Spectral norms of SOFT's attention in each stage at growing image sizes, over four scenes; None without SOFT."""
    if not any(isinstance(module, SOFTAttention) for module in backbone.modules()):
        return None
    found, paths = {}, sorted(Path(root, IMAGES['val']).iterdir())[:4]
    backbone = copy.deepcopy(backbone).double().eval()
    for side in SIDES:
        scenes = [mmcv.imresize(mmcv.imread(str(path), channel_order='rgb'), (side, side)) for path in paths]
        images = torch.from_numpy(np.stack(scenes)).permute(0, 3, 1, 2).double() / 57.5 - 2
        found[side] = attention_norms(backbone, images)
    return found


def losses(work_dir: str) -> List[Tuple[int, float]]:
    """The loss after every tenth iteration, by all processes that took part in the training."""
    found = {}
    for log in sorted(Path(work_dir).glob('*/vis_data/scalars.json')):
        for line in log.read_text().splitlines():
            try:
                scalars = json.loads(line)
            except ValueError:  # what an interruption left of a line
                continue
            if 'loss' in scalars:
                found[scalars['step']] = scalars['loss']
    return sorted(found.items())


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


if __name__ == '__main__':
    method, backbone, seed, shapes, folder, length = sys.argv[1:]
    train(Run(method, backbone, int(seed)), shapes, folder, int(length))
