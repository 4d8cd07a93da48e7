"""mmsoft.timm: names in timm's registry, and the libraries that build on it."""
import subprocess
import sys

import pytest
import torch

timm = pytest.importorskip('timm')

import mmsoft.timm  # noqa: E402
from mmsoft import SOFT, SimACvT, SimADeiT, SimAXCiT  # noqa: E402
from mmsoft.attention import SOFTAttention  # noqa: E402
from mmsoft.checkpoint import to_published  # noqa: E402
from mmsoft.utils import UsageError  # noqa: E402

NANO = dict(arch=dict(embed_dims=[32] * 4, num_heads=[1] * 4, depths=[1] * 4))


def test_every_size_has_a_name():
    names = set(timm.list_models('soft_*') + timm.list_models('sima_*'))
    sizes = sum(len(body.arch_settings) for body in (SOFT, SOFT, SimAXCiT, SimADeiT, SimACvT))
    assert len(names) == sizes and {'soft_tiny', 'soft_norm_huge', 'sima_xcit_small_12_p16', 'sima_cvt_13'} <= names
    assert timm.__name__ == 'timm' and mmsoft.timm is not timm


@pytest.mark.parametrize('name, out_indices', [('soft_tiny', (1, 3)), ('sima_xcit_nano_12_p16', (3, -1)),
                                               ('sima_deit_tiny', (0, 5)), ('sima_cvt_13', None)])
def test_feature_info_is_what_comes_out(name, out_indices):
    model = timm.create_model(name, features_only=True, out_indices=out_indices).eval()
    maps = model(torch.rand(1, 3, 64, 96))
    assert [m.shape[1] for m in maps] == model.feature_info.channels()
    assert [(64 // r, 96 // r) for r in model.feature_info.reduction()] == [tuple(m.shape[2:]) for m in maps]
    assert len(maps) == len(out_indices or (0, 1, 2))


def test_names_tell_the_normalisation():
    for name in ('soft', 'soft_norm'):
        products = {module.product.__name__ for module in timm.create_model(f'{name}_tiny', **NANO).modules()
                    if isinstance(module, SOFTAttention)}
        assert products == {f'{name}_attention'}


def test_a_classifier_as_timm_knows_it():
    model = timm.create_model('soft_norm_tiny', num_classes=7, drop_path_rate=0.1, **NANO).eval()
    x = torch.rand(2, 3, 32, 32)
    assert model(x).shape == (2, 7) and model.forward_features(x).shape == (2, model.num_features)
    assert (model.forward_head(model.forward_features(x)) == model(x)).all()
    model.reset_classifier(0)
    assert model(x).shape == (2, 32)
    assert timm.data.resolve_model_data_config(model)['input_size'] == (3, 224, 224)


@pytest.fixture
def published(tmp_path):
    model = timm.create_model('soft_norm_tiny', **NANO)
    path = tmp_path / 'published.pth'
    torch.save(dict(state_dict=to_published(model.state_dict())[1]), path)
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
    for name, tensor in model.backbone.state_dict().items():
        assert (tuned.backbone.state_dict()[name] == tensor).all()
        assert (features.backbone.state_dict()[name] == tensor).all()


def test_what_is_not_there_is_one_sentence(published):
    with pytest.raises(UsageError, match='no weights of soft_tiny to download'):
        timm.create_model('soft_tiny', pretrained=True, **NANO)
    with pytest.raises(UsageError, match='holds a network of the family soft'):
        timm.create_model('sima_deit_tiny', pretrained=True, pretrained_cfg_overlay=dict(file=str(published[0])))


def test_without_timm_it_is_one_sentence():
    code = 'import sys; sys.modules["timm"] = None; import mmsoft; mmsoft.SOFT; import mmsoft.timm'
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert run.returncode and 'mmsoft.timm needs timm, which is not installed' in run.stderr.splitlines()[-1]
