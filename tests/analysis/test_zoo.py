"""The published classifiers against the figures of the metafiles, and the command."""
import sys
from pathlib import Path

import pytest

from mmsoft.analysis.zoo import measure, published_models, score_tables
from mmsoft.analysis.zoo_command import main
from mmsoft.utils.config import load_config

ROOT = Path(__file__).parents[2]
PUBLISHED = published_models(ROOT / 'model-index.yml')
# The norm changes neither parameters nor, by more than a row sum, FLOPs.
COUNTED = [name for name, model in PUBLISHED.items()
           if 'FLOPs' in model and name.endswith('_in1k') and (name.startswith('sima') or '_plain' in name)]


@pytest.mark.parametrize('name', COUNTED)
def test_published_figures(name):
    published, size = PUBLISHED[name], measure(load_config(str(ROOT / f'configs/{name}.py')))
    assert size.flops == pytest.approx(published['FLOPs'], rel=0.08)
    network = published.get('Published Network')
    if network:
        assert size.parameters == pytest.approx(network['Parameters'], abs=1e4)
        # Products taken from the right cost less than in the published order, by 3 % at most.
        assert size.flops == pytest.approx(network['FLOPs'], rel=0.03)
        assert size.flops + size.inverse == pytest.approx(network['FLOPs With Inverse'], rel=0.03)


def test_scores_of_the_documentation_are_those_of_the_metafiles():
    assert score_tables(PUBLISHED) in (ROOT / 'docs/zoo.md').read_text()


@pytest.mark.parametrize('args, code, lines, err', [
    (['tiny_plain', '--shape', '64', '64'], 0, 3, 'soft_tiny_plain_in1k'),
    (['cvt', 'deit', '--backbones', '--no-flops'], 0, 6, 'sima_cvt_13_in1k'),
    (['mmpretrain::resnet/resnet18_8xb32_in1k.py', '--no-flops'], 0, 3, 'mmpretrain::resnet/resnet18'),
    (['mmpretrain::resnet/absent.py'], 2, 0, 'mmpretrain::resnet/absent.py is no config of an installed host'),
    (['resnet'], 2, 0, 'No config is called resnet'),
    (['tiny', '--shape', '8', '64'], 2, 0, '--shape needs 32'),
    (['soft_tiny_1x', '--scores'], 0, 4, ''),
])
def test_command(monkeypatch, capsys, args, code, lines, err):
    monkeypatch.setattr(sys, 'argv', ['zoo.py', *args])
    assert main(ROOT) == code
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == lines and captured.err.startswith(err)
