"""mmsoft.timm: names in timm's registry, and the libraries that build on it."""

import pickle

import pytest
import torch

timm = pytest.importorskip('timm')

from small_timm import COLUMN, NANO, SMALL, image, small  # noqa: E402
from timm.models import group_parameters  # noqa: E402
from timm.optim import create_optimizer_v2  # noqa: E402

import mmsoft.timm  # noqa: E402
from mmsoft import SOFT, SimACvT, SimADeiT, SimAXCiT  # noqa: E402
from mmsoft.attention import SOFTAttention  # noqa: E402
from mmsoft.utils import OptionError, UsageError  # noqa: E402


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
