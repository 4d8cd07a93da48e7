"""Weights of timm models: published files, files of our trainings, the Hugging Face Hub."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.logging import HistoryBuffer
from published import to_published

timm = pytest.importorskip('timm')


from small_timm import NANO, SMALL, image, small  # noqa: E402

from mmsoft.attention import SOFTAttention  # noqa: E402
from mmsoft.engine.checkpoints import WholeCheckpointsHook  # noqa: E402
from mmsoft.utils import UsageError  # noqa: E402


@pytest.fixture
def published(tmp_path):
    model = timm.create_model('soft_norm_tiny', **NANO)
    path = tmp_path / 'published.pth'
    torch.save(dict(state_dict=to_published('soft', model.state_dict())), path)
    return path, model


def test_published_files_load(published):
    path, model = published
    given = dict(pretrained=True, pretrained_cfg_overlay=dict(file=str(path)), **NANO)
    x = torch.rand(1, 3, 32, 32)
    expected = model.eval()(x)
    assert (timm.create_model('soft_norm_tiny', **given).eval()(x) == expected).all()
    assert (timm.create_model('soft_norm_tiny', checkpoint_path=str(path), **NANO).eval()(x) == expected).all()
    tuned = timm.create_model('soft_norm_tiny', num_classes=3, **given)
    features = timm.create_model('soft_norm_tiny', features_only=True, **given)
    for one in (tuned, features, features.model):
        assert 'state_dict' not in one.pretrained_cfg, 'the weights are there twice'
    for name, tensor in model.backbone.state_dict().items():
        assert (tuned.backbone.state_dict()[name] == tensor).all()
        assert (features.model.backbone.state_dict().get(name, tensor) == tensor).all()


def test_files_of_our_trainings_load(published, tmp_path):
    _, model = published
    path, history = str(tmp_path / 'epoch_1.pth'), dict(loss=HistoryBuffer([1.0], [1]))
    trained = dict(
        meta=dict(epoch=1),
        state_dict=model.state_dict(),
        optimizer={},
        message_hub=dict(log_scalars=history, runtime_info={}, resumed_keys={}),
    )
    torch.save(trained, path)  # with the history of logged values, as mmengine's own are
    overlay = dict(pretrained=True, pretrained_cfg_overlay=dict(file=path), **NANO)
    by_overlay = timm.create_model('soft_norm_tiny', **overlay)
    with pytest.warns(UserWarning, match=r'SOFTAttention\(norm=True\) are loaded into SOFTAttention\(norm=False\)'):
        timm.create_model('soft_tiny', **overlay)
    WholeCheckpointsHook().before_save_checkpoint(None, trained)
    torch.save(trained, path)
    for loaded in (by_overlay, timm.create_model('soft_norm_tiny', checkpoint_path=path, **NANO)):
        assert all((loaded.state_dict()[name] == tensor).all() for name, tensor in model.state_dict().items())


@pytest.mark.parametrize('name', SMALL)
def test_models_are_shared_through_the_hub(name, tmp_path, monkeypatch):
    """Pushed and created again by timm's own functions, with a folder as a stand-in for the Hub."""
    hub = pytest.importorskip('timm.models._hub')

    class Api:
        def __init__(self, **kwargs):
            pass

        def create_repo(self, repo_id, **kwargs):
            return SimpleNamespace(repo_id=repo_id)

        def file_exists(self, **kwargs):
            return False

        def upload_folder(self, repo_id, folder_path, **kwargs):
            shutil.copytree(folder_path, tmp_path / repo_id)

    monkeypatch.setattr(hub, 'HfApi', Api)
    monkeypatch.setattr(hub, 'hf_hub_download', lambda repo_id, filename, **kwargs: str(tmp_path / repo_id / filename))
    model = small(name, num_classes=5, drop_path_rate=0.1).eval()
    timm.models.push_to_hf_hub(model, f'owner/{name}')
    again = timm.create_model(f'hf-hub:owner/{name}', pretrained=True).eval()
    assert again.num_classes == 5 and {path.suffix for path in (tmp_path / 'owner' / name).iterdir()} >= {
        '.safetensors'
    }
    with torch.no_grad():
        x = image(side=32)
        assert (again(x) == model(x)).all()


def test_own_initialisation_of_parts():
    stage = small('soft_norm_tiny', attention=dict(initial_gamma=0.3)).backbone.stages[0]
    assert stage.blocks[0].attn.bottleneck.norm.weight.unique().tolist() == pytest.approx([0.3])
    assert (stage.blocks[0].norm1.weight == 1).all()


@pytest.mark.parametrize('options', [{}, dict(prefix='student')], ids=str)
def test_weights_of_a_config_come_last(tmp_path, options):
    trained = small('soft_norm_tiny').backbone
    for parameter in trained.parameters():
        torch.nn.init.normal_(parameter)
    student = {f'student.{name}': tensor for name, tensor in trained.state_dict().items()}
    others = {f'teacher.{name}': torch.zeros_like(tensor) for name, tensor in trained.state_dict().items()}
    torch.save({**student, **others} if options else trained.state_dict(), tmp_path / 'x.pth')
    init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'x.pth'), **options)
    model = small('soft_norm_tiny', init_cfg=init_cfg)
    assert all(
        torch.equal(parameter, trained.state_dict()[name]) for name, parameter in model.backbone.named_parameters()
    )


def test_published_weights_of_a_config(tmp_path):
    trained = small('soft_norm_tiny', num_classes=1000)
    for parameter in trained.parameters():
        torch.nn.init.normal_(parameter)
    torch.save(to_published('soft', trained.state_dict()), tmp_path / 'x.pth')
    model = small('soft_norm_tiny', init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'x.pth')))
    own = dict(trained.backbone.named_parameters())
    assert all(torch.equal(parameter, own[name]) for name, parameter in model.backbone.named_parameters())


class Program:
    """What a pickle can run."""

    def __reduce__(self):
        return Path.touch, (Path('run'),)


def test_files_and_names_of_a_config_run_nothing(tmp_path, monkeypatch):
    """timm gives the config of a model in the Hub to the model's function."""
    monkeypatch.chdir(tmp_path)
    torch.save(dict(state_dict=small('soft_norm_tiny').backbone.state_dict(), more=Program()), 'x.pth')
    weights = dict(type='Pretrained', checkpoint='x.pth')
    with pytest.raises(UsageError, match='could run code'):
        small('soft_norm_tiny', init_cfg=weights)
    inside = dict(type='mmpretrain.ResNet', depth=18, init_cfg=weights)
    with pytest.raises(UsageError, match='could run code'):  # of a part that no config of ours would have
        small('sima_xcit_nano_12_p16', act_cfg=inside)
    override = dict(weights, name='patch_embed')
    with pytest.raises(UsageError, match='its override loads weights'):
        small('sima_deit_tiny', init_cfg=dict(type='Constant', layer='LayerNorm', val=1, override=override))
    for options in (dict(norm_cfg=dict(type='pathlib.Path.touch')), dict(init_cfg=[dict(type='mmsoft.os.system')])):
        with pytest.raises(UsageError, match="type '(pathlib.Path.touch|mmsoft.os.system)' is no registered name"):
            small('soft_norm_tiny', **options)
    assert not Path('run').exists()
    for kind in ('mmsoft.SOFTAttention', SOFTAttention):  # a class is of a program, and not of the Hub
        assert small('soft_norm_tiny', attention=dict(type=kind))


def test_names_that_do_not_belong_there_are_told(published):
    _, model = published
    wrong = {**model.state_dict(), 'backbone.stages.0.blocks.0.attn.queri.weight': torch.zeros(1)}
    with pytest.raises(
        RuntimeError, match=r'Unexpected key\(s\) in state_dict: "backbone.stages.0.blocks.0.attn.queri'
    ):
        model.load_state_dict(wrong)
    for other in ({'foo.weight': torch.zeros(1)}, {'head.fc.bias': torch.zeros(1)}):  # of a whole classifier, all are
        with pytest.raises(RuntimeError, match='foo.weight|size mismatch for head.fc.bias'):
            model.load_state_dict({**model.state_dict(), **other})
    no_head = timm.create_model('soft_norm_tiny', num_classes=0, **NANO)
    detector = {'neck.convs.0.weight': torch.zeros(1), 'data_preprocessor.mean': torch.zeros(1)}
    assert not any(no_head.load_state_dict({**model.state_dict(), **detector}))


def test_a_part_of_another_model_is_loaded_with_it():
    one, other = (torch.nn.ModuleDict(dict(student=small('soft_norm_tiny'))) for _ in range(2))
    assert str(other.load_state_dict(one.state_dict())) == '<All keys matched successfully>'
    assert all(torch.equal(tensor, one.state_dict()[name]) for name, tensor in other.state_dict().items())


def test_what_is_not_there_is_one_sentence(published):
    with pytest.raises(RuntimeError, match='No pretrained weights exist for soft_tiny'):
        timm.create_model('soft_tiny', pretrained=True, **NANO)
    with pytest.raises(UsageError, match='holds a network of the family soft'):
        timm.create_model('sima_deit_tiny', pretrained=True, pretrained_cfg_overlay=dict(file=str(published[0])))
