"""The loggers of docs/logging.md get what a training logs, where they are installed, and consoles no more."""

import re
from collections import OrderedDict
from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.registry import VISUALIZERS, init_default_scope

from mmsoft import SOFT

ROOT = Path(__file__).parent.parent


def test_tensorboard_gets_the_losses(tmp_path):
    events = pytest.importorskip('tensorboard.backend.event_processing.event_accumulator')
    blocks = re.findall(r'```python\n(.*?)```', (ROOT / 'docs/logging.md').read_text(), re.S)
    (code,) = [block for block in blocks if 'TensorboardVisBackend' in block]
    (tmp_path / 'configs').symlink_to(ROOT / 'configs')
    (tmp_path / 'example.py').write_text(code)
    cfg = Config.fromfile(tmp_path / 'example.py')
    init_default_scope(cfg.default_scope)
    visualizer = VISUALIZERS.build(dict(cfg.visualizer, name='logging', save_dir=str(tmp_path)))
    visualizer.add_scalars(dict(loss=1.5), step=3)
    visualizer.close()
    (file,) = tmp_path.rglob('events.out.tfevents.*')
    read = events.EventAccumulator(str(file)).Reload()
    assert [(one.step, one.value) for one in read.Scalars('loss')] == [(3, 1.5)]
    assert '"loss": 1.5' in next(tmp_path.rglob('scalars.json')).read_text()


def test_weights_are_initialised_silently_but_for_log_files(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(MMLogger, '_instance_dict', OrderedDict())  # a process keeps its loggers
    sizes = dict(embed_dims=[16], num_heads=[1], depths=[1])
    MMLogger.get_instance('console')  # the current one from now on
    SOFT(sizes, out_indices=0).init_weights()
    assert capfd.readouterr() == ('', '')
    MMLogger.get_instance('with a file', log_file=str(tmp_path / 'training.log'))
    SOFT(sizes, out_indices=0).init_weights()
    assert capfd.readouterr() == ('', '')
    assert 'stages.0.blocks.0.attn.query.weight' in (tmp_path / 'training.log').read_text()
