"""SOFT and SOFT-Norm against the outputs of the published networks, from a published file on."""

import re

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS as MMENGINE_MODELS
from published import DATA, NETWORKS, published_state_dict, write_timm_file
from reference_weights import reference_images

PLACES = pytest.mark.parametrize('device, dtype, tolerance', [
    ('cpu', torch.float64, 1e-5),
    ('cpu', torch.float32, 1e-3),
    pytest.param('cuda', torch.float64, 1e-5, marks=pytest.mark.cuda),
    pytest.param('cuda', torch.float32, 1e-3, marks=pytest.mark.cuda),
], ids=lambda value: str(value).replace('torch.', ''))  # yapf: disable


def cases(*outputs):
    """(fixture, input, expected outputs) of every input in the fixtures."""
    params = []
    for name in ('soft_tiny', 'soft_norm_tiny'):
        arrays = np.load(DATA / f'{name}.npz')
        for case in sorted({key.split('/')[0] for key in arrays}):
            expected = [arrays[f'{case}/{output}'] for output in outputs]
            params.append(pytest.param(name, case, expected, id=f'{name}-{case}'))
    return params


def images(case):
    return reference_images(*map(int, re.fullmatch(r'(\d+)x(\d+)x(\d+)s(\d+)', case).groups())).double()


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp('published')
    return {
        name: write_timm_file(folder / f'{name}.pth', published_state_dict(name))
        for name in ('soft_tiny', 'soft_norm_tiny')
    }


@pytest.fixture
def no_tf32(monkeypatch):
    """Which cuDNN's convolutions have by default, and which parity to 1e-3 does not survive."""
    monkeypatch.setattr(torch.backends.cudnn, 'allow_tf32', False)


@PLACES
@pytest.mark.parametrize('name, case, expected', cases('stage1', 'stage2', 'stage3', 'stage4', 'cls'))
def test_maps_and_class_token(files, name, case, expected, device, dtype, tolerance, no_tf32):
    init_cfg = dict(type='Pretrained', checkpoint=files[name])
    model = MMENGINE_MODELS.build(dict(NETWORKS[name][0], with_cls_token=True, init_cfg=init_cfg))
    model.init_weights()
    with torch.no_grad():
        *maps, (last, cls) = model.to(device, dtype).eval()(images(case).to(device, dtype))
    for out, reference in zip([*(m[:, ::16] for m in (*maps, last)), cls], expected):
        np.testing.assert_allclose(out.cpu().numpy(), reference, rtol=0, atol=tolerance)


@pytest.mark.usefixtures('safe_loading')
@pytest.mark.parametrize('name, case, expected', cases('logits'))
def test_logits_through_mmpretrain(files, name, case, expected):
    get_model = pytest.importorskip('mmpretrain').get_model
    config = Config(
        dict(
            model=dict(
                type='ImageClassifier',
                backbone=dict(NETWORKS[name][0], out_type='cls_token'),
                head=dict(type='LinearClsHead', num_classes=1000, in_channels=512),
                data_preprocessor=dict(num_classes=1000, mean=[0, 0, 0], std=[1, 1, 1]),
            )
        )
    )
    model = get_model(config, pretrained=files[name])
    with torch.no_grad():
        logits = model.double().eval()(images(case))
    np.testing.assert_allclose(logits[:, ::10].numpy(), expected[0], rtol=0, atol=1e-4)
