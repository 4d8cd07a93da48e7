"""mmsoft.timm: names in timm's registry, and the libraries that build on it."""

import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.logging import HistoryBuffer
from published import to_published

timm = pytest.importorskip('timm')

from timm.models import group_parameters  # noqa: E402
from timm.optim import create_optimizer_v2  # noqa: E402

import mmsoft.timm  # noqa: E402
from mmsoft import SOFT, SimACvT, SimADeiT, SimAXCiT  # noqa: E402
from mmsoft.attention import SOFTAttention  # noqa: E402
from mmsoft.engine.checkpoints import WholeCheckpointsHook  # noqa: E402
from mmsoft.utils import OptionError, UsageError  # noqa: E402

NANO = dict(arch=dict(embed_dims=[32] * 4, num_heads=[1] * 4, depths=[1] * 4))
COLUMN = dict(embed_dims=32, num_heads=1, depth=3)
SMALL = dict(
    soft_tiny=NANO,
    soft_norm_tiny=NANO,
    sima_deit_tiny=dict(arch=COLUMN, img_size=32),
    sima_xcit_nano_12_p16=dict(arch=dict(COLUMN, patch_size=16)),
    sima_cvt_13=dict(arch=dict(embed_dims=[32] * 3, num_heads=[1] * 3, depths=[1] * 3)),
)


def small(name, **options):
    return timm.create_model(name, **{**SMALL[name], **options})


def image(batch=1, side=64):
    return torch.rand(batch, 3, side, side)


def test_every_size_has_a_name():
    names = set(timm.list_models('soft_*') + timm.list_models('sima_*'))
    sizes = sum(len(backbone.arch_settings) for backbone in (SOFT, SOFT, SimAXCiT, SimADeiT, SimACvT))
    assert len(names) == sizes and {'soft_tiny', 'soft_norm_huge', 'sima_xcit_small_12_p16', 'sima_cvt_13'} <= names
    assert timm.__name__ == 'timm' and mmsoft.timm is not timm
    assert names <= set(timm.list_models(name_matches_cfg=True))


def test_maps_of_columns_are_those_of_detectors():
    model = timm.create_model('sima_xcit_nano_12_p16', features_only=True)
    assert tuple(model.feature_info.out_indices) == (3, 5, 7, 11)
    model = small('sima_deit_tiny', arch=dict(COLUMN, depth=6), features_only=True)
    assert tuple(model.feature_info.out_indices) == (1, 2, 3, 5)


def test_all_names_can_be_imported():
    found = {}
    exec('from mmsoft.timm import *', found)
    assert {'TimmModel', *timm.list_models('soft_*')} <= set(found)
    assert found['soft_tiny'](**NANO).num_classes == 1000


@pytest.mark.parametrize(
    'name, crop',
    [('soft_norm_large', 0.9), ('sima_xcit_small_12_p16', 1.0), ('sima_deit_small', 1.0), ('sima_cvt_13', 1.0)],
)
def test_images_are_cropped_as_published(name, crop):
    config = timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
    assert config['crop_pct'] == crop and config['input_size'] == (3, 224, 224)
    assert config['interpolation'] == 'bicubic'


@pytest.mark.parametrize(
    'name, out_indices',
    [('soft_tiny', (1, 3)), ('sima_xcit_nano_12_p16', (1, -1)), ('sima_deit_tiny', (0, 1)), ('sima_cvt_13', None)],
)
def test_feature_info_is_what_comes_out(name, out_indices):
    model = small(name, features_only=True, out_indices=out_indices).eval()
    maps = model(torch.rand(1, 3, 64, 96))
    assert [m.shape[1] for m in maps] == model.feature_info.channels()
    assert [(64 // r, 96 // r) for r in model.feature_info.reduction()] == [tuple(m.shape[2:]) for m in maps]
    assert len(maps) == len(out_indices or (0, 1, 2))


def test_architectures_by_name_in_any_case():
    assert timm.create_model('sima_deit_tiny', arch='Small').num_features == 384


def test_names_tell_the_normalisation():
    for name in ('soft', 'soft_norm'):
        products = {
            module.product.__name__ for module in small(f'{name}_tiny').modules() if isinstance(module, SOFTAttention)
        }
        assert products == {f'{name}_attention'}


@pytest.mark.parametrize('name', SMALL)
class TestAsTimmTests:
    """The properties that timm's own tests/test_models.py checks, which all names pass at 224 x 224."""

    def test_forward_and_checkpointing(self, name):
        model, x = small(name).eval(), image()
        expected = model(x)
        assert expected.shape == (1, 1000) and expected.isfinite().all()
        model.set_grad_checkpointing()
        assert torch.allclose(model(x), expected, rtol=1e-4, atol=1e-5)
        assert any(getattr(module, 'with_cp', False) for module in model.modules())
        model.set_grad_checkpointing(False)
        assert not any(getattr(module, 'with_cp', False) for module in model.modules())

    def test_backward(self, name):
        model = small(name, num_classes=42).train()
        scores = model(image(2))
        scores.mean().backward()
        assert scores.shape == (2, 42) and all(p.grad is not None for p in model.parameters())

    def test_head(self, name):
        model, x = small(name, num_classes=7).eval(), image(2)
        features = model.forward_features(x)
        pooled = model.forward_head(features, pre_logits=True)
        assert features.shape[-1] == model.num_features and pooled.shape == (2, model.head_hidden_size)
        assert torch.equal(pooled, features[:, 0]), 'the class token'
        assert torch.equal(model.forward_head(features), model(x)) and model(x).shape == (2, 7)
        for part in (model.default_cfg['classifier'], model.default_cfg['first_conv']):
            assert f'{part}.weight' in model.state_dict()
        model.reset_classifier(0)
        assert torch.equal(model(x), pooled) and model.num_classes == 0
        model.reset_classifier(3, 'avg')
        assert torch.equal(model(x), model.get_classifier()(features[:, 1:].mean(1)))
        model.reset_classifier(0, '')
        assert torch.equal(model(x), features)
        assert small(name, num_classes=0).eval()(x).shape == pooled.shape
        with pytest.raises(UsageError, match='global_pool must be one of'):
            model.reset_classifier(0, 'max')

    def test_intermediates(self, name):
        model, x = small(name).eval(), image()
        features, maps = model.forward_intermediates(x)
        assert torch.equal(features, model.forward_features(x)) and len(maps) == len(model.feature_info) >= 3
        for info, m in zip(model.feature_info, maps):
            assert m.shape == (1, info['num_chs'], 64 // info['reduction'], 64 // info['reduction'])
        (last,) = model.forward_intermediates(x, indices=1, output_fmt='NLC', intermediates_only=True)
        assert torch.equal(last, maps[-1].flatten(2).transpose(1, 2)) and torch.equal(last, features[:, 1:])
        assert model.prune_intermediate_layers([-2, 0]) == [len(maps) - 2, 0]
        with pytest.raises(OptionError, match="output_fmt must be one of NCHW, NLC; got 'NHWC'"):
            model.forward_intermediates(x, output_fmt='NHWC')
        found = model.forward_intermediates(x, indices=[len(maps) - 2, 0], intermediates_only=True)
        assert torch.equal(found[0], maps[-2]) and torch.equal(found[1], maps[0])
        assert model(x).shape[2:] == (model.num_features,), 'all tokens'
        assert len(model.state_dict()) < len(small(name).state_dict())

    def test_symbolic_trace(self, name):
        extraction = pytest.importorskip('torchvision.models.feature_extraction')
        options = dict(
            leaf_modules=timm.models.get_notrace_modules(), autowrap_functions=timm.models.get_notrace_functions()
        )
        model, x = small(name).eval(), image()
        nodes, _ = extraction.get_graph_node_names(model, tracer_kwargs=options)
        traced = extraction.create_feature_extractor(model, nodes[-1:], tracer_kwargs=options).eval()
        assert torch.equal(traced(x)[nodes[-1]], model(x))

    def test_layers(self, name):
        model = small(name)
        assert model.no_weight_decay() == {
            key for key, _ in model.named_parameters() if key.endswith(('pos_embed', 'cls_token'))
        }
        optimizer = create_optimizer_v2(model, 'sgd', lr=1, weight_decay=0.1, layer_decay=0.5)
        rates = [group['lr_scale'] for group in optimizer.param_groups]
        depth = 1 + sum(model.backbone.arch.get('depths', [model.backbone.arch.get('depth', 0)]))
        assert max(rates) == 1 and min(rates) <= 0.5**depth
        coarse = group_parameters(model, model.group_matcher(coarse=True))
        assert sum(map(len, coarse.values())) == len(list(model.parameters())) and 1 < len(coarse) <= 6
        stem = {one for one in dict(model.named_parameters()) if one.startswith(('backbone.p', 'backbone.cls_token'))}
        assert stem in ({*coarse[0]}, set())

    def test_linear_layers_begin_as_published(self, name):
        linear = [module for module in small(name).backbone.modules() if isinstance(module, torch.nn.Linear)]
        assert not any(module.bias.any() for module in linear if module.bias is not None)
        assert all(0.015 < module.weight.std() < 0.025 for module in linear) and linear

    def test_creating_one_logs_nothing(self, name, caplog, capfd):
        small(name)
        out, err = capfd.readouterr()
        assert not caplog.records and 'init' not in out + err


def test_the_data_config():
    assert timm.data.resolve_model_data_config(small('soft_tiny'))['input_size'] == (3, 224, 224)


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


def test_models_can_be_pickled():
    model = small('soft_norm_tiny').eval()
    again, x = pickle.loads(pickle.dumps(model)), image(side=32)
    assert (again(x) == model(x)).all()
    assert again.prune_intermediate_layers([0]) == [0]


def test_image_sizes_may_be_pairs():
    model = small('sima_deit_tiny', img_size=(48, 48))
    assert model.backbone.grid == (3, 3)
    with pytest.raises(OptionError, match='img_size must be one number'):
        small('sima_deit_tiny', img_size=(48, 32))


@pytest.mark.parametrize('name', SMALL)
def test_images_may_have_another_number_of_channels(name):
    assert small(name, in_chans=1).eval()(torch.rand(1, 1, 32, 32)).shape == (1, 1000)


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


def test_pruning_keeps_frozen_what_is():
    model = small('sima_deit_tiny').bfloat16()
    model.backbone.blocks[0].requires_grad_(False)
    model.set_grad_checkpointing()
    model.prune_intermediate_layers([1])
    assert {name.split('.')[2] for name, one in model.named_parameters() if not one.requires_grad} == {'0'}
    assert model.backbone.with_cp is True
    model.reset_classifier(5, 'avg')
    assert model(image().bfloat16()).dtype is torch.bfloat16


@pytest.mark.parametrize('name', SMALL)
def test_pruning_keeps_a_head_whose_map_is_kept(name):
    """As timm: a head of the last map stays if asked for, and none has another map."""
    model, x = small(name).double().eval(), image(side=32).double()
    last = len(model.feature_info) - 1
    with torch.no_grad():
        wanted = model(x)
        assert model.prune_intermediate_layers([last], prune_head=False) == [last]
        assert torch.equal(model(x), wanted) and len(model.forward_intermediates(x)[1]) == 1
        assert model.prune_intermediate_layers([0], prune_head=False) == [0]
        assert isinstance(model.get_classifier(), torch.nn.Identity) and model.num_classes == 0
    model = small(name)
    assert model.prune_intermediate_layers([last]) == [last]
    assert isinstance(model.get_classifier(), torch.nn.Identity) and not model.backbone.has_cls_token
    assert model.prune_intermediate_layers([last], prune_head=False) == [last] and not model.backbone.has_cls_token


def test_models_without_memory():
    with torch.device('meta'):
        assert next(small('soft_norm_tiny').parameters()).is_meta


def test_a_pruned_model_has_no_class_token():
    model = small('sima_deit_tiny').eval()
    assert model.prune_intermediate_layers([0, 1]) == [0, 1]
    x = image()
    tokens, maps = model.forward_intermediates(x)
    assert len(maps) == 2 and torch.equal(tokens, maps[1].flatten(2).transpose(1, 2))
    model.reset_classifier(0, 'avg')
    torch.testing.assert_close(model(x), maps[1].mean((2, 3)))
    with pytest.raises(UsageError, match="global_pool must be one of avg, ; got 'token'"):
        model.reset_classifier(5, 'token')


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
