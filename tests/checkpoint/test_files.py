"""Reading files of every kind, good and bad, and writing them."""

import argparse
import os
import pickle
import tarfile
import zipfile
from unittest.mock import Mock

import numpy as np
import pytest
import safetensors.torch
import torch
from mmengine.logging import HistoryBuffer
from mmengine.utils import digit_version

from mmsoft.checkpoint import CheckpointError, read_checkpoint, select_state_dict

installed = digit_version(torch.__version__)
BUILTINS = r'builtins\.' if installed < digit_version('2.6') else r'(builtins\.)?'  # without it in torch 2.13
WEIGHTS = {'a.weight': torch.arange(6.0).view(2, 3), 'a.num_batches_tracked': torch.tensor(3)}


class Smuggled:
    def __init__(self, function, argument):
        self.call = function, (argument,)

    def __reduce__(self):
        return self.call


@pytest.fixture(params=['weights_only', 'before torch 2.5'])
def torch_version(request, monkeypatch):
    """Reads with the unpickler of old torch versions, too."""
    if request.param != 'weights_only':
        monkeypatch.delattr(torch.serialization, 'safe_globals', raising=False)


def saved(path, content, **kwargs):
    torch.save(content, path, **kwargs)
    return path


def written(path, content):
    path.write_bytes(content)
    return path


def cut(path, share):
    saved(path, {'state_dict': {'a': torch.zeros(50000)}})
    return written(path, path.read_bytes()[: int(path.stat().st_size * share)])


def repacked(path, compression=zipfile.ZIP_STORED, replace=(b'', b''), part=''):
    """The same archive, it or a part compressed, or with other bytes in its pickle."""
    with zipfile.ZipFile(path) as archive:
        entries = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
    with zipfile.ZipFile(path, 'w') as archive:
        for name, data in entries:
            data = data.replace(*replace) if name.endswith('data.pkl') else data
            archive.writestr(name, data, compression if part in name else zipfile.ZIP_STORED)
    return path


def tarred(path):
    with tarfile.open(path, 'w') as archive:
        archive.add(__file__, 'pickle')
    return path


BAD = {
    'missing': (lambda path: path, 'is not a file'),
    'folder': (lambda path: path.parent, 'is not a file'),
    'empty': (lambda path: written(path, b''), 'is empty'),
    'text': (lambda path: written(path, b'<html>Not Found</html>'), 'not a checkpoint of torch or safetensors'),
    'picture': (lambda path: written(path, b'\x89PNG\r\n\x1a\n' + bytes(300)), 'not a checkpoint of torch'),
    'zip': (lambda path: written(path, b'PK\x05\x06' + bytes(18)), 'damaged or cut off'),
    'cut at the start': (lambda path: cut(path, 0.001), 'damaged or cut off'),
    'cut in the middle': (lambda path: cut(path, 0.5), 'damaged or cut off'),
    'cut at the end': (lambda path: cut(path, 0.999), 'damaged or cut off'),
    'cut safetensors': (lambda path: written(path.with_suffix('.safetensors'), bytes(40)), 'damaged or cut off'),
    'old format': (
        lambda path: written(saved(path, WEIGHTS, _use_new_zipfile_serialization=False), path.read_bytes()[:-30]),
        'damaged or cut off',
    ),
    'system call': (
        lambda path: saved(path, {'a': torch.zeros(2), 'b': Smuggled(os.mkdir, str(path.parent / 'run'))}),
        r'holds a Python object \(\w+\.mkdir\) that could run code',
    ),
    'eval': (
        lambda path: saved(path, {'args': Smuggled(eval, f'open({str(path.parent / "run")!r}, "w")')}),
        rf'holds a Python object \({BUILTINS}eval\)',
    ),
    'eval in a namespace': (
        lambda path: saved(
            path, {'args': argparse.Namespace(x=Smuggled(eval, f'open({str(path.parent / "run")!r}, "w")'))}
        ),
        rf'holds a Python object \({BUILTINS}eval\)',
    ),
    'whole model': (lambda path: saved(path, torch.nn.Linear(2, 2)), r'holds a Python object \(torch\.nn.*Linear\)'),
    'numpy of objects': (lambda path: saved(path, {'a': np.array([print])}), 'holds a Python object'),
    'packed': (
        lambda path: repacked(saved(path, {'a': torch.zeros(10**6)}), zipfile.ZIP_DEFLATED),
        'is compressed or a tar archive, which could',
    ),
    'packed in part': (
        lambda path: repacked(saved(path, {'a': torch.zeros(10**6)}), zipfile.ZIP_DEFLATED, part='data/0'),
        'is compressed or a tar archive, which could',
    ),
    'stretched': (lambda path: saved(path, {'a': torch.zeros(1).expand(10**12)}), 'its tensors claim more bytes'),
    'stretched a little': (lambda path: saved(path, {'a': torch.zeros(1).expand(999)}), 'its tensors claim more bytes'),
    'longer than its record': (
        lambda path: repacked(saved(path, {'a': torch.zeros(54321)}), replace=(b'M\x31\xd4', b'J\xff\xff\xff\x7f')),
        'is empty, damaged or cut off' if installed >= digit_version('2.8') else 'its tensors claim more bytes',
    ),
    'bytes by number': (
        lambda path: saved(path, {'a': Smuggled(bytearray, 10**15)}),
        'needs more memory than there is',
    ),
    'tar': (lambda path: tarred(path), 'is compressed or a tar archive, which could'),
    'no weights: on no device': (
        lambda path: saved(path, {'a': torch.zeros(9, device='meta')}),
        'sparse, quantized, nested or meta tensor',
    ),
    'no weights: sparse': (lambda path: saved(path, {'a': torch.eye(3).to_sparse()}), 'holds a sparse, quantized'),
    'no weights: quantized': (
        lambda path: saved(path, {'a': torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)}),
        r'holds a (sparse, quantized|Python object \(torch._utils._rebuild_qtensor)',  # torch 2.1 does not know it
    ),
    'opcodes': (lambda path: written(path, pickle.dumps({}, 4)), 'not a checkpoint of torch'),
    'list': (lambda path: saved(path, [torch.zeros(2)]), 'holds a list and no dict'),
    'no weights': (lambda path: saved(path, {'epoch': 3, 'state_dict': {}}), 'holds no weights'),
    'nan': (lambda path: saved(path, {'a': torch.tensor([1, float('nan')])}), 'holds NaN or infinity in a;'),
    'inf in half': (lambda path: saved(path, {'a': torch.tensor([1, float('inf')]).half()}), 'holds NaN or infinity'),
}


@pytest.mark.parametrize('kind', BAD)
def test_bad_files_end_with_one_sentence(tmp_path, kind, torch_version):
    make, message = BAD[kind]
    path = make(tmp_path / 'x.pth')
    with pytest.raises(CheckpointError, match=message) as error:
        select_state_dict(read_checkpoint(path), path)
    assert str(error.value).startswith(str(path)) and '\n' not in str(error.value)
    assert not (tmp_path / 'run').exists(), 'the file ran code'


@pytest.mark.filterwarnings('ignore:.*TorchScript archive')
def test_programs_are_refused_before_torch_sees_them(tmp_path, torch_version, monkeypatch):
    """torch.load before 2.6 passes them on to torch.jit.load, ``weights_only=True`` or not (CVE-2025-32434)."""
    path = tmp_path / 'x.pth'
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(path))
    seen = []
    monkeypatch.setattr(torch.jit, 'load', lambda *args, **kwargs: seen.append(args))
    with pytest.raises(CheckpointError, match='x.pth holds a TorchScript program, .* which could run code'):
        read_checkpoint(path)
    assert not seen
    if tuple(map(int, torch.__version__.split('.')[:2])) < (2, 6):
        torch.load(path, weights_only=True)
        assert seen, 'the test proves nothing: torch.load does not pass programs on'


def test_messages_cannot_move_the_cursor(tmp_path):
    path = saved(tmp_path / 'a\nb.pth', {'\x1b[31m': torch.tensor([float('nan')])})
    with pytest.raises(CheckpointError) as error:
        select_state_dict(read_checkpoint(path), path)
    assert str(error.value).isprintable() and 'a\\nb.pth holds NaN or infinity in \\x1b[31m' in str(error.value)


def test_smuggling_files_are_dangerous_elsewhere(tmp_path):
    """The table above proves nothing unless an ordinary unpickler falls for it."""
    pickle.loads(pickle.dumps(Smuggled(os.mkdir, str(tmp_path / 'run'))))
    assert (tmp_path / 'run').exists()


CHOICES = {
    'average first': (dict(state_dict={'a': 0}, state_dict_ema={'a': 1}, model={'a': 2}), 'state_dict_ema', 1),
    'no average kept': (dict(state_dict={'a': 1}, state_dict_ema=None), 'state_dict', 1),
    'average is empty': (dict(state_dict={'a': 1}, state_dict_ema={}), 'state_dict', 1),
    'model before its average': (dict(model={'a': 1}, model_ema={'a': 2}), 'model', 1),
    'bare': ({'a': 1}, '', 1),
    'distributed': (dict(model={'module.a': 1}), 'model', 1),
    'compiled': (dict(model={'_orig_mod.module.a': 1}), 'model', 1),
    'sharded': (dict(model={'_fsdp_wrapped_module._checkpoint_wrapped_module.a': 1}), 'model', 1),
    'mmengine': (dict(state_dict={'a': 1}, ema_state_dict={'module.a': 2}, meta={}), 'state_dict', 1),
}


@pytest.mark.parametrize('choice', CHOICES)
def test_the_evaluated_weights_are_chosen(choice):
    checkpoint, entry, value = CHOICES[choice]
    checkpoint = {
        key: {name: torch.tensor(v) for name, v in item.items()}
        if isinstance(item, dict)
        else torch.tensor(item)
        if isinstance(item, int)
        else item
        for key, item in checkpoint.items()
    }
    state_dict, chosen = select_state_dict(checkpoint)
    assert chosen == entry and {name: tensor.item() for name, tensor in state_dict.items()} == {'a': value}


def test_files_of_trainers_are_read(tmp_path, torch_version):
    hub = dict(log_scalars=dict(loss=HistoryBuffer([0.5, 0.25], [1, 1])), runtime_info=dict(best=np.float64(1.5)))
    hub['array'] = np.arange(3)
    before_methods = dict(HistoryBuffer._statistics_methods)
    path = saved(tmp_path / 'x.pth', dict(state_dict=WEIGHTS, message_hub=hub, args=argparse.Namespace(lr=0.1)))
    before = set(getattr(torch.serialization, 'get_safe_globals', list)())
    checkpoint = read_checkpoint(path)
    assert torch.equal(checkpoint['state_dict']['a.weight'], WEIGHTS['a.weight'])
    assert checkpoint['args'].lr == 0.1
    assert checkpoint['message_hub']['runtime_info']['best'] == 1.5
    assert checkpoint['message_hub']['array'].tolist() == [0, 1, 2]
    assert not isinstance(checkpoint['message_hub']['log_scalars']['loss'], HistoryBuffer)
    assert HistoryBuffer._statistics_methods == before_methods, 'a file changed the class'
    assert set(getattr(torch.serialization, 'get_safe_globals', list)()) == before


@pytest.mark.parametrize('core', ['numpy.core', 'numpy._core'])
def test_numbers_of_every_kind_are_read(tmp_path, core, torch_version):
    """NumPy 2 has another name for its module."""
    numbers = [np.dtype(kind).type(1) for kind in '?bBhHiIlLqQefd']
    path = saved(tmp_path / 'x.pth', dict(WEIGHTS, scores=numbers))
    own = next(name for name in (b'numpy._core', b'numpy.core') if name in path.read_bytes())
    read = read_checkpoint(repacked(path, replace=(own, core.encode())))['scores']
    assert read == numbers and [one.dtype for one in read] == [one.dtype for one in numbers]


def test_files_of_the_old_format_are_read(tmp_path):
    """Of torch before 1.6, which none can map into memory."""
    path = saved(tmp_path / 'x.pth', WEIGHTS, _use_new_zipfile_serialization=False)
    for peek in (False, True):
        assert all(torch.equal(one, WEIGHTS[name]) for name, one in read_checkpoint(path, peek=peek).items())


def test_names_that_are_no_strings_are_left_out():
    assert set(select_state_dict({0: torch.ones(1), 'a': torch.ones(1)})[0]) == {'a'}


@pytest.mark.parametrize(
    'error', [PermissionError(13, 'Permission denied'), OSError(5, 'Input/output error'), OSError('No such device')]
)
def test_a_file_that_cannot_be_read_is_not_damaged(error, tmp_path, monkeypatch):
    path = saved(tmp_path / 'x.pth', WEIGHTS)
    monkeypatch.setattr(torch, 'load', Mock(side_effect=error))
    with pytest.raises(CheckpointError, match=rf'x.pth cannot be read \({error.strerror or error}\)'):
        read_checkpoint(path)


def test_safetensors_are_read_to_a_device(tmp_path, monkeypatch):
    seen, load = [], safetensors.torch.load_file
    monkeypatch.setattr(safetensors.torch, 'load_file', lambda path, device=None: seen.append(device) or load(path))
    safetensors.torch.save_file(WEIGHTS, tmp_path / 'x.safetensors')
    for device in ('cpu', torch.device('cpu'), lambda storage, place: storage):
        assert set(read_checkpoint(tmp_path / 'x.safetensors', device)) == set(WEIGHTS)
    assert seen == ['cpu', torch.device('cpu'), 'cpu']


@pytest.mark.parametrize('device', ['cuda:99', 'nowhere', torch.device('cuda', 99)])
def test_a_wrong_device_is_no_damage(tmp_path, device):
    path = saved(tmp_path / 'x.pth', WEIGHTS)
    with pytest.raises((RuntimeError, AssertionError), match='(?i)cuda|nvidia|device'):
        read_checkpoint(path, device)


def test_too_little_memory_of_a_gpu_is_no_damage(tmp_path, monkeypatch):
    def load(*args, **options):
        raise torch.cuda.OutOfMemoryError('CUDA out of memory')

    path = saved(tmp_path / 'x.pth', WEIGHTS)
    monkeypatch.setattr(torch, 'load', load)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        read_checkpoint(path)


def test_tensors_may_share_their_memory(tmp_path):
    weight = torch.rand(9999)
    torch.save(dict(state_dict=dict(a=weight, tied=weight, part=weight[9:])), tmp_path / 'x.pth')
    read = read_checkpoint(tmp_path / 'x.pth')['state_dict']
    assert all(torch.equal(read[name], one) for name, one in dict(a=weight, tied=weight, part=weight[9:]).items())


def test_a_home_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    torch.save(WEIGHTS, tmp_path / 'x.pth')
    assert set(read_checkpoint('~/x.pth')) == set(WEIGHTS)
