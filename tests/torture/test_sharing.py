"""Many at once on one machine, in one folder."""

import os
import subprocess
import sys

import pytest
import torch
from trainings import ROOT, project, same


@pytest.mark.rounds(0, 3)
def test_all_at_once(trial, tmp_path, small_shapes):
    """Two trainings, four predictions and a benchmark at once: all end, with the results that each has alone."""
    folder = project(tmp_path, small_shapes)
    python = [sys.executable]
    train = {
        name: [*python, ROOT / 'tools/train.py', f'{task}.py', '--work-dir', name]
        for name, task in dict(first='detector', second='segmenter').items()
    }
    environment = dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1')

    def start(command):
        return subprocess.Popen(
            list(map(str, command)), cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def finish(processes):
        for name, process in processes.items():
            out, _ = process.communicate(timeout=900)
            assert process.returncode == 0, f'{name}: {out.decode()[-3000:]}'

    for name, command in train.items():
        finish({name: start(command)})
    checkpoints = dict(detector='first/epoch_2.pth', segmenter='second/iter_8.pth')
    predictions = {
        f'prediction{number}': [
            *python,
            ROOT / 'tools/predict.py',
            f'{task}.py',
            checkpoints[task],
            'data/shapes/images/training',
            '--out-dir',
            f'out{number}',
            '--save-pred',
        ]
        for number, task in enumerate(['detector', 'segmenter', 'detector', 'segmenter'])
    }
    again = {f'{name}_again': [*command[:-1], f'{name}_again'] for name, command in train.items()}
    benchmark = dict(
        benchmark=[
            *python,
            '-m',
            'benchmarks.speed',
            '--models',
            'soft_norm_nano',
            '--sizes',
            '64',
            '--rounds',
            '1',
            '--out-dir',
            'benchmark',
        ]
    )
    commands = {**again, **predictions, **benchmark}
    order = trial.random.permutation(list(commands))
    finish({name: start(commands[name]) for name in order})
    for name, path in dict(first='epoch_2.pth', second='iter_8.pth').items():
        one, other = (
            torch.load(folder / run / path, weights_only=False)['state_dict'] for run in (name, f'{name}_again')
        )
        assert same(dict(one), dict(other))
    for one, other in (('out0', 'out2'), ('out1', 'out3')):
        files = sorted(path.relative_to(folder / one) for path in (folder / one).rglob('*') if path.is_file())
        assert files and all(
            (folder / one / path).read_bytes() == (folder / other / path).read_bytes() for path in files
        )
