"""Trains one row's network, or goes on where it was stopped, scores it, and writes ``result.json``.

    python -m benchmarks.evidence.training METHOD BACKBONE SHAPES WORK_DIR ITERATIONS
"""
import json
import os
import resource
import sys
from importlib import import_module
from pathlib import Path
from typing import List, Tuple

import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn

from mmsoft.utils.files import atomic_write
from .recipe import SCORES, SEED, make_config
from .rows import METHODS, Run

RESULT = 'result.json'
HOSTS = ('torch', 'mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain', 'mmsoft')


class CPUTimeHook(Hook):
    """Keeps account in the checkpoints of the seconds that all processors were busy with a training."""

    KEY = 'cpu_seconds'

    def before_train(self, runner: Runner) -> None:
        self.before = runner.message_hub.get_info(self.KEY, 0.)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        runner.message_hub.update_info(self.KEY, self.seconds())
        checkpoint['message_hub'] = runner.message_hub.state_dict()

    def seconds(self) -> float:
        """Of this process and of those before it, as far as they got to save their work."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return self.before + usage.ru_utime + usage.ru_stime


def train(run: Run, root: str, work_dir: str, iterations: int) -> None:
    """Trains and scores.

    Args:
        run: What is trained.
        root: Folder of the shapes.
        work_dir: Where logs, checkpoints and the result go: scores, parameters, CPU time, losses, and what is needed to
            have it again.
        iterations: Length of the training.
    """
    torch.set_num_threads(int(os.environ.get('OMP_NUM_THREADS', torch.get_num_threads())))
    cfg = make_config(run, root, work_dir, iterations)
    runner, clock = Runner.from_cfg(cfg), CPUTimeHook()
    runner.register_hook(clock)
    runner.train()
    seconds = clock.seconds()
    scores, names = runner.test(), SCORES[cfg.default_scope]
    result = dict(
        run._asdict(),
        # Of the hosts, mmseg and mmpretrain say percents.
        scores={names[key]: value if value <= 1 else value / 100 for key, value in scores.items() if key in names},
        parameters=_count(runner.model),
        backbone_parameters=_count(runner.model.backbone),
        iterations=iterations,
        batch_size=METHODS[run.method].batch_size,
        cpu_minutes=seconds / 60,
        losses=losses(work_dir),
        seed=SEED,
        versions={name: import_module(name).__version__ for name in HOSTS})
    with atomic_write(Path(work_dir, RESULT)) as file:
        file.write(json.dumps(result, indent=1).encode())


def losses(work_dir: str) -> List[Tuple[int, float]]:
    """The loss after every tenth iteration, of all processes that had a part in the training."""
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
    method, backbone, shapes, folder, length = sys.argv[1:]
    train(Run(method, backbone), shapes, folder, int(length))
