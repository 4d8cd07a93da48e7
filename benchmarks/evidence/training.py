"""Trains one network, or goes on where it was stopped, and writes its scores with and without attention.

python -m benchmarks.evidence.training METHOD NETWORK SEED SHAPES WORK_DIR ITERATIONS
"""

import json
import os
import sys
from importlib import import_module
from pathlib import Path

import torch
from mmengine.runner import Runner

from mmsoft.attention.measure import without_attention
from mmsoft.utils.files import atomic_write

from ..common import commit
from .recipe import SCORES, make_config
from .rows import METHODS, SHAPES, Run

RESULT = 'result.json'
LIBRARIES = ('torch', 'mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain', 'mmsoft')


def train(run: Run, root: str, work_dir: str, iterations: int) -> None:
    """Trains and scores, and writes ``result.json``.

    Args:
        run: What is trained.
        root: Folder of the synthetic shapes.
        work_dir: Folder for logs, checkpoints and the result.
        iterations: Length of the training.
    """
    torch.set_num_threads(int(os.environ.get('OMP_NUM_THREADS', torch.get_num_threads())))
    cfg, method = make_config(run, root, work_dir, iterations), METHODS[run.method]
    runner = Runner.from_cfg(cfg)
    runner.train()

    def scores() -> dict[str, float]:
        names, found = SCORES[cfg.default_scope], runner.test()  # mmseg and mmpretrain count in percent
        return {names[key]: value if value <= 1 else value / 100 for key, value in found.items() if key in names}

    whole = scores()
    with without_attention(runner.model.backbone) as switched_off:
        control = scores() if switched_off else None
    result = dict(
        run._asdict(),
        commit=commit(),
        scores=whole,
        without_attention=control,
        iterations=iterations,
        parameters=sum(parameter.numel() for parameter in runner.model.parameters()),
        settings=dict(
            config=method.config,
            batch_size=method.batch_size,
            lr=method.lr,
            pretrained=method.pretrained,
            shapes=SHAPES,
        ),
        versions={name: import_module(name).__version__ for name in LIBRARIES},
    )
    with atomic_write(Path(work_dir, RESULT)) as file:
        file.write(json.dumps(result, indent=1).encode())


if __name__ == '__main__':
    method, network, seed, shapes, folder, length = sys.argv[1:]
    train(Run(method, network, int(seed)), shapes, folder, int(length))
