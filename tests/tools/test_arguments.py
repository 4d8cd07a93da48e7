"""What the tools make of their arguments, and what they say when they are interrupted."""

import json
import os
import runpy
import signal
import sys
from inspect import signature
from pathlib import Path

import pytest

from mmsoft import apis, checkpoint

ROOT = Path(__file__).parents[2]


@pytest.fixture
def asked(monkeypatch):
    """``asked(tool, arguments, error)``: what a tool asks its function for, its exit code, and the function."""

    def ask(tool, arguments, error=None):
        place, name = (checkpoint, tool) if tool == 'convert_checkpoint' else (apis, tool)
        function, calls = getattr(place, name), []

        def called(**options):
            calls.append(options)
            if error:
                raise error
            return ['broken.jpg']

        monkeypatch.setattr(place, name, called)
        monkeypatch.setattr(sys, 'argv', [tool, *arguments.split()])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(ROOT / f'tools/{tool}.py'), run_name='__main__')
        return calls[0], end.value.code, function

    monkeypatch.setenv('LOCAL_RANK', '0')
    return ask


MODEL = dict(config='x.py', checkpoint='y.pth')
IMAGES = dict(MODEL, source='in', out_dir='out')
SWITCHES = dict(resume='auto', from_scratch=True, auto_scale_lr=True, amp=True, demo_data=True)


@pytest.mark.parametrize(
    'tool, arguments, given',
    [
        ('train', 'x.py', dict(config='x.py')),
        ('train', 'x.py --resume z.pth --work-dir w', dict(config='x.py', resume='z.pth', work_dir='w')),
        *(
            ('train', f'x.py --launcher {one}', dict(config='x.py', launcher=one))
            for one in ('pytorch', 'slurm', 'mpi')
        ),
        ('train', 'x.py --resume --from-scratch --auto-scale-lr --amp --demo-data', dict(SWITCHES, config='x.py')),
        ('test', 'x.py y.pth', MODEL),
        ('test', 'x.py y.pth --wait-time 0.5 --without-attention', dict(MODEL, wait_time=0.5, without_attention=[])),
        ('test', 'x.py y.pth --without-attention 0 2 --show', dict(MODEL, without_attention=[0, 2], show=True)),
        ('test', 'x.py y.pth --tta --out a.pkl --show-dir b', dict(MODEL, tta=True, out='a.pkl', show_dir='b')),
        ('predict', 'x.py y.pth in --out-dir out', IMAGES),
        (
            'predict',
            'x.py y.pth in --out-dir out --save-pred --score-thr 0',
            dict(IMAGES, save_pred=True, score_thr=0.0),
        ),
        ('visualize', 'x.py y.pth in --out-dir out', IMAGES),
        ('visualize', 'x.py y.pth in --out-dir out --stages 1 0', dict(IMAGES, stages=[1, 0])),
        ('export', 'x.py y.pth --out z.onnx', dict(MODEL, out='z.onnx')),
        ('export', 'x.py y.pth --out z --size 64 96 --force', dict(MODEL, out='z', size=[64, 96], force=True)),
        ('convert_checkpoint', 'x y', dict(source='x', target='y')),
        ('convert_checkpoint', 'x y --force', dict(source='x', target='y', force=True)),
    ],
    ids=str,
)
def test_tools_ask_for_what_they_are_told(tool, arguments, given, asked):
    """And for what their functions do by default; a broken image is an exit code."""
    options, code, function = asked(tool, arguments)
    defaults = {name: one.default for name, one in signature(function).parameters.items()}
    assert json.dumps(options, sort_keys=True) == json.dumps({**defaults, **given}, sort_keys=True)  # 64 is not 64.0
    assert code == (tool in ('predict', 'visualize'))


@pytest.mark.parametrize(
    'tool, arguments, says',
    [
        ('train', 'x.py', 'Interrupted; the same command with --resume continues.'),
        ('predict', 'x.py y.pth in --out-dir out', 'Interrupted; what was done is saved.'),
        ('export', 'x.py y.pth --out z.onnx', 'Interrupted.'),
    ],
)
def test_interrupted_tools_say_what_is_left(tool, arguments, says, asked, monkeypatch, capsys):
    handlers = []
    monkeypatch.setattr(signal, 'signal', lambda *args: handlers.append(args))
    assert asked(tool, arguments, KeyboardInterrupt())[1] == 130
    assert capsys.readouterr().err.strip() == says
    stops = [(signal.SIGTERM, signal.default_int_handler)]  # so that no half image is left
    assert handlers == (stops if tool == 'predict' else [])


@pytest.mark.parametrize('option', ['--local-rank=1', '--local_rank=1'])
def test_the_rank_of_a_launcher(option, asked, monkeypatch):
    """In the environment if nothing is there, which torchrun sets."""
    monkeypatch.setenv('LOCAL_RANK', '3')
    asked('train', f'x.py {option}')
    assert os.environ['LOCAL_RANK'] == '3'
    monkeypatch.delenv('LOCAL_RANK')
    asked('train', f'x.py {option}')
    assert os.environ['LOCAL_RANK'] == '1'
