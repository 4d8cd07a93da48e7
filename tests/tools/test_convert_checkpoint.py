"""tools/convert_checkpoint.py, as one runs it."""

import os
import runpy
import sys
from pathlib import Path

import pytest
import torch
from published import published_state_dict, to_published, write_timm_file

from mmsoft.checkpoint import read_checkpoint, select_state_dict

TOOL = Path(__file__).parents[2] / 'tools/convert_checkpoint.py'


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the tool; gives its exit code, output and complaint."""

    def run(*args):
        monkeypatch.setattr(sys, 'argv', ['convert_checkpoint.py', *map(str, args)])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(TOOL), run_name='__main__')
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return run


@pytest.fixture(scope='module')
def published():
    return published_state_dict('soft_tiny')


@pytest.fixture(scope='module')
def source(tmp_path_factory, published):
    return write_timm_file(tmp_path_factory.mktemp('source') / 'soft_tiny.pth', published)


@pytest.mark.parametrize('ours', ['ours.pth', 'ours.safetensors'])
@pytest.mark.parametrize('again', ['again.pth', 'again.safetensors'])
def test_every_bit_is_kept(run, tmp_path, source, published, ours, again):
    code, out, _ = run(source, tmp_path / ours)
    assert code == 0 and out.count('\n') == 1 and '183 tensors of soft from state_dict_ema' in out
    state_dict, entry = select_state_dict(read_checkpoint(tmp_path / ours))
    assert {'backbone.stages.3.blocks.1.attn.qkv.bias', 'head.fc.weight'} < set(state_dict)
    assert entry == ('state_dict' if ours.endswith('.pth') else '')

    assert run(tmp_path / ours, tmp_path / again)[0] == 0
    back = to_published('soft', select_state_dict(read_checkpoint(tmp_path / again))[0])
    assert set(back) == set(published)
    for name, tensor in published.items():
        assert back[name].dtype == tensor.dtype and torch.equal(back[name], tensor)


@pytest.mark.parametrize('name', ['x.pth', 'x.safetensors'])
def test_a_write_that_fails_leaves_the_old_file(run, tmp_path, source, name, monkeypatch):
    (tmp_path / name).write_bytes(b'precious')

    def fail(*args):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(os, 'replace', fail)
    code, _, err = run(source, tmp_path / name, '--force')
    assert code == 2 and 'cannot be written or read (No space left on device)' in err
    assert (tmp_path / name).read_bytes() == b'precious' and os.listdir(tmp_path) == [name]


def test_safetensors_carry_their_format(run, tmp_path, source):
    safetensors = pytest.importorskip('safetensors')
    run(source, tmp_path / 'x.safetensors')
    with safetensors.safe_open(str(tmp_path / 'x.safetensors'), framework='pt') as file:
        assert file.metadata() == {'format': 'pt'}


def test_nothing_is_replaced_without_force(run, tmp_path, source):
    target = tmp_path / 'x.pth'
    target.write_bytes(b'precious')
    code, out, err = run(source, target)
    assert code == 2 and not out
    assert err == f'{target} exists already; choose another name, or replace it with --force.\n'
    assert target.read_bytes() == b'precious'
    assert run(source, target, '--force')[0] == 0
    assert 'state_dict' in read_checkpoint(target)


COMPLAINTS = {
    'a folder': (lambda folder, source: (source, folder, '--force'), 'cannot be written'),
    'no source': (lambda folder, source: (folder / 'x.pth', folder / 'y.pth'), 'x.pth is not a file'),
    'resnet': (lambda folder, source: (resnet(folder / 'x.pth'), folder / 'y.pth'), 'another network'),
}


def resnet(path):
    torch.save({'conv1.weight': torch.zeros(3)}, path)
    return path


@pytest.mark.parametrize('kind', COMPLAINTS)
def test_complaints_are_one_sentence(run, tmp_path, source, kind):
    make, message = COMPLAINTS[kind]
    args = make(tmp_path, source)
    before = Path(source).read_bytes(), sorted(tmp_path.iterdir())
    code, out, err = run(*args)
    assert code == 2 and not out and message in err and err.count('\n') == 1
    assert (Path(source).read_bytes(), sorted(tmp_path.iterdir())) == before
