"""What mmengine's loader reads after ``use_safe_loading``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from mmengine.runner.checkpoint import CheckpointLoader, load_from_http, load_from_local
from published import published_state_dict, write_timm_file
from weights import FOUR_STAGES, SMALL, saved, weights_of

from mmsoft.backbones import SOFT, SimADeiT
from mmsoft.checkpoint import CheckpointError, read_checkpoint
from mmsoft.checkpoint.load import check_model
from mmsoft.checkpoint.names import SIMA_DEIT, to_mmsoft


@pytest.mark.usefixtures('safe_loading')
def test_other_files_are_read_as_they_are(tmp_path, monkeypatch):
    content = dict(state_dict={'x.weight': torch.ones(1)}, state_dict_ema={'x.weight': torch.zeros(1)}, epoch=3)
    other = CheckpointLoader.load_checkpoint(saved(tmp_path / 'x.pth', content))
    assert set(other) == set(content)
    content = dict(model={'module.x.weight': torch.ones(1)}, epoch=3)  # where mmengine would find no weights
    other = CheckpointLoader.load_checkpoint(saved(tmp_path / 'x.pth', content))
    assert other == {**content, 'state_dict': {'x.weight': torch.ones(1)}}
    published = write_timm_file(tmp_path / 'y.pth', weights_of(SOFT(FOUR_STAGES)))
    assert set(CheckpointLoader.load_checkpoint(published)) == {'state_dict'}
    safe = tmp_path / 'x.SAFETENSORS'
    safetensors.torch.save_file({'x.weight': torch.ones(1)}, safe)
    assert set(CheckpointLoader.load_checkpoint(str(safe))) == {'state_dict'}
    monkeypatch.setattr('mmsoft.checkpoint.io._download', lambda url: safe)
    address = 'https://host.invalid/x.safetensors?download=true'
    assert set(CheckpointLoader.load_checkpoint(address)) == {'state_dict'}
    with pytest.raises(CheckpointError, match='z.pth is not a file'):
        CheckpointLoader.load_checkpoint(str(tmp_path / 'z.pth'))
    cut = tmp_path / 'cut.pth'
    cut.write_bytes(Path(published).read_bytes()[:-100000])
    with pytest.raises(CheckpointError, match='damaged or cut off'):
        CheckpointLoader.load_checkpoint(str(cut))


@pytest.mark.usefixtures('safe_loading')
def test_trainings_of_other_networks_with_published_names_resume(tmp_path):
    """Those of DeiT are the names of any ViT, of which mmdet has one."""
    weights = {f'backbone.{name}': torch.ones(1) for name in SIMA_DEIT.signature}
    training = dict(state_dict=weights, meta=dict(epoch=3), message_hub={}, optimizer=dict(state={}))
    assert CheckpointLoader.load_checkpoint(saved(tmp_path / 'x.pth', training)) == training


@pytest.mark.parametrize('prefix', ['', 'module.'])
@pytest.mark.usefixtures('safe_loading')
def test_evaluated_weights_are_found_by_the_names_of_the_model(tmp_path, prefix):
    """EMAHooks read ``state_dict`` as it is: with other names, or another entry, they would test random weights."""
    size = dict(embed_dims=32, num_heads=2, depth=2)
    ours = to_mmsoft(weights_of(SimADeiT(size, out_indices=(1,))))[1]
    named, others = {prefix + name: t for name, t in ours.items()}, {name: 0 * t for name, t in ours.items()}
    training = dict(state_dict=named, meta=dict(epoch=3), ema_state_dict={})
    for content in (training, named, dict(model=named, epoch=3), dict(state_dict=others, state_dict_ema=named)):
        found = CheckpointLoader.load_checkpoint(saved(tmp_path / 'x.pth', content))
        assert found['state_dict'].keys() == ours.keys()
        assert all(torch.equal(tensor, ours[name]) for name, tensor in found['state_dict'].items())
        assert content is not training or found.keys() == training.keys()
    path = saved(tmp_path / 'y.pth', dict(state_dict={f'{prefix}neck.x': torch.ones(1)}))
    assert [*CheckpointLoader.load_checkpoint(path)['state_dict']] == ['neck.x']


@pytest.mark.parametrize(
    'content', [lambda ran: {'a': Call(ran)}, lambda ran: dict(state_dict={}, meta=dict(x=Call(ran)))]
)
@pytest.mark.usefixtures('safe_loading')
def test_the_loader_of_mmengine_runs_nothing(tmp_path, content):
    path = saved(tmp_path / 'x.pth', content(str(tmp_path / 'ran')))
    with pytest.raises(CheckpointError, match='could run code'):
        CheckpointLoader.load_checkpoint(path)
    assert not (tmp_path / 'ran').exists()


@pytest.mark.usefixtures('safe_loading')
def test_a_config_that_mmengine_would_run_is_left_out(tmp_path):
    path = saved(tmp_path / 'x.pth', dict(state_dict={'a': torch.ones(1)}, meta=dict(config='1 / 0', cfg='x = 1')))
    assert CheckpointLoader.load_checkpoint(path)['meta'] == dict(cfg='x = 1')


class Call:
    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (self.folder,)


class Teacher(torch.nn.Module):
    """As mmdet's semi-supervised detectors, which start from the weights of others."""

    def __init__(self):
        super().__init__()
        self.teacher, self.student = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)

    def _load_from_state_dict(self, state_dict, *args):
        for name in [name for name in state_dict if '.' not in name]:
            tensor = state_dict.pop(name)
            state_dict.update({f'teacher.{name}': tensor, f'student.{name}': tensor})
        super()._load_from_state_dict(state_dict, *args)


def test_a_model_that_renames_what_it_loads(tmp_path):
    path = saved(tmp_path / 'x.pth', torch.nn.Linear(2, 3).state_dict())
    check_model(Teacher(), path)
    check_model(Teacher(), saved(tmp_path / 'y.pth', Teacher().state_dict()))
    with pytest.raises(CheckpointError, match='4 of the 4 tensors'):
        check_model(Teacher(), saved(tmp_path / 'z.pth', torch.nn.Linear(3, 3, bias=False).state_dict()))


def test_a_checkpoint_is_of_the_model(tmp_path):
    model, path = SOFT(SMALL, out_indices=(0, 1)), str(tmp_path / 'x.pth')
    weights = model.state_dict()
    check_model(model, saved(path, dict(state_dict={f'module.{name}': t for name, t in weights.items()})))
    name = 'stages.0.embed.0.conv.weight'
    saved(path, {name: weights[name]})
    check_model(model, path, whole=False)
    with pytest.raises(CheckpointError, match='does not fit the config: 83 of the 84 tensors .* are missing'):
        check_model(model, path)
    with pytest.raises(CheckpointError, match='84 of the 84 tensors'):
        check_model(model, saved(path, {name: weights[name][None]}), whole=False)


def test_checks_map_a_file(tmp_path, monkeypatch):
    seen, load = [], torch.load
    monkeypatch.setattr(torch, 'load', lambda path, **options: seen.append(options) or load(path, **options))
    path = saved(tmp_path / 'x.pth', dict(state_dict={'a': torch.ones(2)}))
    for peek in (True, False):
        assert read_checkpoint(path, peek=peek)['state_dict']['a'].tolist() == [1, 1]
    check_model(torch.nn.ParameterDict(dict(a=torch.zeros(2))), path)
    assert [options.get('mmap', False) for options in seen] == [True, False, True]


@pytest.mark.usefixtures('safe_loading')
def test_the_loader_of_mmengine_keeps_its_device(tmp_path):
    path = saved(tmp_path / 'x.pth', {'a': torch.ones(1)})
    seen = []
    CheckpointLoader.load_checkpoint(path, map_location=lambda storage, place: seen.append(place) or storage)
    assert seen == ['cpu']


@pytest.mark.usefixtures('safe_loading')
def test_the_loader_of_mmengine_needs_no_device_of_the_file(tmp_path, monkeypatch):
    seen, load = [], torch.load
    monkeypatch.setattr(
        torch, 'load', lambda *args, **options: seen.append(options['map_location']) or load(*args, **options)
    )
    CheckpointLoader.load_checkpoint(saved(tmp_path / 'x.pth', {'a': torch.ones(1)}))
    assert seen == ['cpu']


@pytest.mark.usefixtures('safe_loading')
def test_the_loader_of_mmengine_takes_what_is_no_checkpoint_of_its_own(tmp_path):
    for weights in (torch.ones(2), {3: torch.ones(2)}):
        with pytest.raises(CheckpointError, match='x.pth holds no weights by their names'):
            CheckpointLoader.load_checkpoint(saved(tmp_path / 'x.pth', dict(state_dict=weights)))
    noted = dict(state_dict={'a': torch.ones(1)}, meta='by hand')
    assert CheckpointLoader.load_checkpoint(saved(tmp_path / 'x.pth', noted)) == noted


@pytest.mark.usefixtures('safe_loading')
def test_an_empty_average_is_none(tmp_path):
    path = saved(tmp_path / 'x.pth', dict(state_dict_ema={}, state_dict=published_state_dict('soft_tiny'), epoch=3))
    assert set(CheckpointLoader.load_checkpoint(path)) == {'state_dict'}


def test_safe_loading_can_be_turned_off():
    from mmsoft.checkpoint.safe_loading import load_from_weights_only, use_safe_loading

    own = [load_from_local, load_from_http, load_from_http]
    for on, loaders in ((True, [load_from_weights_only] * 3), (False, own)):
        use_safe_loading(on)
        found = [CheckpointLoader._get_checkpoint_loader(path) for path in ('a.pth', 'http://a', 'https://a')]
        assert found == loaders


@pytest.mark.slow
def test_importing_changes_no_loader():
    """A config that names the module turns safe loading on; it can be turned off."""
    code = """if True:
        import mmsoft
        from mmengine.runner.checkpoint import CheckpointLoader, load_from_http, load_from_local
        mmsoft.SOFT, mmsoft.SimAXCiT
        schemes = lambda: [CheckpointLoader._get_checkpoint_loader(path) for path in ('a.pth', 'http://a', 'https://a')]
        before = schemes()
        assert before == [load_from_local, load_from_http, load_from_http], before
        from mmengine.utils import import_modules_from_strings
        safe = import_modules_from_strings(['mmsoft.checkpoint.safe_loading'])[0]
        assert schemes() == [safe.load_from_weights_only] * 3
        safe.use_safe_loading(False)
        assert schemes() == before"""
    subprocess.run([sys.executable, '-W', 'ignore', '-c', code], check=True)
