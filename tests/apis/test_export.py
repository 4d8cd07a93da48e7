"""tools/export.py: whole models of every task, and predictions from their files equal to PyTorch's."""
import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import onnxruntime
import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS, init_default_scope

from mmsoft.apis import export, predict
from mmsoft.apis.deployment import detection, formats
from mmsoft.datasets.demo import retarget
from mmsoft.utils.errors import UsageError

ROOT = Path(__file__).parents[2]
NANO = dict(embed_dims=[32] * 4, num_heads=[1] * 4, depths=[1] * 4)
FPN = dict(neck=dict(in_channels=[32] * 4))
MODELS_OF = {
    'soft_tiny_in1k': dict(head=dict(in_channels=32)),
    'upernet_soft_small_160k': dict(
        decode_head=dict(in_channels=[32] * 4, channels=32), auxiliary_head=dict(in_channels=32, channels=32)),
    'retinanet_soft_tiny_1x': FPN,
    'atss_soft_small_3x': FPN,
    'gfl_soft_small_3x': FPN,
    'mask_rcnn_soft_tiny_1x': FPN,
    'cascade_mask_rcnn_soft_small_3x': FPN,
    'sparse_rcnn_soft_small_3x': FPN,
}
TO_TORCH = ('upernet_soft_small_160k', 'retinanet_soft_tiny_1x', 'mask_rcnn_soft_tiny_1x')
SLOW = ('cascade_mask_rcnn_soft_small_3x', )


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """Writes a tiny version of a config, and random weights for it, once for each name."""
    made = {}

    def make(name, **backbone):
        key = name, *backbone
        if key not in made:
            torch.manual_seed(0)
            folder = tmp_path_factory.mktemp(name)
            cfg = retarget(Config.fromfile(ROOT / 'configs' / f'{name}.py'))
            cfg.merge_from_dict(dict(model=MODELS_OF[name]))
            cfg.model.backbone.update(arch=NANO, **backbone)
            test = cfg.model.get('test_cfg') or {}
            if test.get('rpn'):
                test.rpn.update(nms_pre=50, max_per_img=40)
            (test.get('rcnn') or test).update(score_thr=1e-3, max_per_img=8)
            cfg.dump(folder / 'config.py')
            init_default_scope(cfg.default_scope)
            model = cfg.model
            if cfg.default_scope == 'mmpretrain':
                model = dict(model, data_preprocessor=cfg.data_preprocessor)
            meta = dict(dataset_meta=dict(cfg.test_dataloader.dataset.get('metainfo', {})))
            torch.save(dict(state_dict=MODELS.build(model).state_dict(), meta=meta), folder / 'weights.pth')
            made[key] = str(folder / 'config.py'), str(folder / 'weights.pth')
        return made[key]

    return make


@pytest.fixture
def pictures(tmp_path):
    """Two pictures of different shape that the pipelines scale and pad."""
    folder = tmp_path / 'pictures'
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, shape in (('a.png', (60, 84)), ('b.png', (64, 48))):
        coarse = rng.integers(0, 255, (6, 7, 3), dtype=np.uint8)
        cv2.imwrite(str(folder / name), cv2.resize(coarse, shape[::-1], interpolation=cv2.INTER_CUBIC))
    return folder


def assert_alike(one, other):
    """Equal but for rounding, in JSON of any depth."""
    assert type(one) is type(other)
    if isinstance(one, (dict, list)):
        assert len(one) == len(other)
        for key in one if isinstance(one, dict) else range(len(one)):
            assert_alike(one[key], other[key])
    else:
        assert one == (pytest.approx(other, abs=2e-3) if isinstance(one, float) else other)


@pytest.mark.parametrize('name, to', [
    *(pytest.param(name, 'onnx', marks=[pytest.mark.slow] * (name in SLOW)) for name in MODELS_OF
      if not name.startswith('sparse')),
    *(pytest.param(name, 'torch', marks=pytest.mark.slow) for name in TO_TORCH),
])
def test_predictions_are_pytorchs(name, to, trained, pictures, tmp_path):
    # torch.export of a block of SOFT takes ten seconds, so one has to do.
    softmax, first = dict(type='SoftmaxAttention'), 'SOFTAttention' if 'retinanet' in name else 'SoftmaxAttention'
    attention = dict(attention=[dict(type=first), softmax, softmax, softmax]) if to == 'torch' else {}
    config, weights = trained(name, **attention)
    file = str(tmp_path / f'model{formats.SUFFIXES[to]}')
    assert 'any size' in export(config, weights, file, to)
    drawn = {}
    for checkpoint in (weights, file):
        out = tmp_path / Path(checkpoint).stem
        assert predict(config, checkpoint, str(pictures), str(out), 'cpu', save_pred=True) == []
        drawn[checkpoint] = {path.relative_to(out): path for path in sorted(out.rglob('*')) if path.is_file()}
    assert list(drawn[weights]) == list(drawn[file])
    for one, other in zip(drawn[weights].values(), drawn[file].values()):
        if one.suffix == '.json':
            content = json.loads(one.read_text())
            assert_alike(content, json.loads(other.read_text()))
            assert content
        else:
            assert (cv2.imread(str(one)) == cv2.imread(str(other))).all()


class Suppress(torch.nn.Module):
    """The last step of every detector, by itself."""

    inputs, outputs = ('boxes', 'scores', 'labels'), ('found', 'scores_found', 'labels_found')
    cfg = ConfigDict(score_thr=0.3, max_per_img=3, nms=dict(type='nms', iou_threshold=0.5))

    def forward(self, boxes, scores, labels):
        return detection._suppress(boxes, scores, labels, torch.full((4, ), 50.), self.cfg)


@pytest.mark.parametrize('to', ['onnx', 'torch'])
def test_pictures_of_one_object_or_none(to, tmp_path):
    """Whatever was found in the example."""
    path = tmp_path / f'model{formats.SUFFIXES[to]}'
    boxes = torch.tensor([[0., 0, 10, 10], [1, 1, 10, 10], [20, 20, 40, 40]])
    scores, labels = torch.tensor([0.7, 0.8, 0.9]), torch.tensor([5, 5, 2])
    formats.write(to, Suppress(), (boxes, scores, labels), (), dict(task='detection'), path)
    run, _ = formats.read(str(path))
    for found, want in ((scores, [2, 1]), (scores * torch.tensor([1, 0, 0]), [0]), (torch.zeros(3), [])):
        for got, given in zip(run(boxes, found, labels), (boxes, found, labels)):
            assert torch.equal(got, torch.cat([given[want], given.new_zeros(3 - len(want), *given.shape[1:])]))
    code = f'from mmsoft.apis.deployment import formats; formats.read({str(path)!r})'  # where nothing else is imported
    subprocess.run([sys.executable, '-W', 'ignore', '-c', code], cwd=ROOT, check=True)


def test_detections_of_nearly_one_score_may_come_in_either_order():
    found = torch.rand(20, 4) * 300, torch.linspace(0.9, 0.2, 20), torch.arange(20)
    order = [1, 0, *range(2, 20)]
    assert formats._same([out[order] for out in found], found)
    assert not formats._same([found[0] + 2, *found[1:]], found)
    assert not formats._same([out[:19] for out in found], found)
    dense = torch.rand(2, 3, 8, 8)
    assert formats._same([dense + 1e-4], [dense]) and not formats._same([dense.flip(0)], [dense])


def test_the_file_says_what_it_takes(trained, tmp_path, capsys):
    config, weights = trained('retinanet_soft_tiny_1x')
    file = str(tmp_path / 'model.onnx')
    export(config, weights, file, size='64x96')
    session = onnxruntime.InferenceSession(file)
    described = json.loads(session.get_modelmeta().custom_metadata_map['mmsoft'])
    assert described['task'] == 'detection' and described['channel_order'] == 'RGB'
    assert described['mean'] == [123.675, 116.28, 103.53] and described['std'] == [58.395, 57.12, 57.375]
    assert described['pad_divisor'] == 32 and described['size'] == [64, 96]
    assert described['pipeline'][0]['type'] == 'Resize' and described['pipeline'][0]['keep_ratio'] is True
    assert described['dataset_meta']['classes'] and described['dataset_meta']['palette']
    boxes, scores, labels = session.run(
        None, dict(images=np.zeros((1, 3, 64, 96), np.float32), image_size=np.array([60, 90])))
    assert boxes.shape == (8, 4) and scores.shape == labels.shape == (8, )
    assert boxes[:, 0::2].max() <= 90 and boxes[:, 1::2].max() <= 60
    picture = _picture(tmp_path)
    assert predict(config, file, str(picture), str(tmp_path / 'out')) == [picture]
    assert 'takes images of 64x96, and the config makes one of' in capsys.readouterr().err


def _picture(folder):
    cv2.imwrite(str(folder / 'one.png'), np.full((80, 80, 3), 128, np.uint8))
    return folder / 'one.png'


@pytest.mark.parametrize('options, message', [
    (dict(out='model.pth'), 'should end with .onnx'),
    (dict(out='there.onnx'), 'there.onnx exists; add --force'),
    (dict(out='nowhere/model.onnx'), 'no folder'),
    (dict(size='big'), '--size big is no height and width'),
    (dict(size='8x64'), '--size 8x64'),
    (dict(checkpoint='nowhere.pth'), 'no checkpoint'),
    (dict(name='sparse_rcnn_soft_small_3x'), 'SparseRCNN is not exported'),
])
def test_wrong_input_is_one_sentence(options, message, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path('there.onnx').write_text('mine')
    config, weights = trained(options.pop('name', 'soft_tiny_in1k'))
    with pytest.raises(UsageError, match=message):
        export(**dict(dict(config=config, checkpoint=weights, out='model.onnx'), **options))
    assert Path('there.onnx').read_text() == 'mine' and list(tmp_path.iterdir()) == [tmp_path / 'there.onnx']


def test_strange_files_are_one_sentence(trained, tmp_path, monkeypatch):
    config, weights = trained('soft_tiny_in1k')
    picture = str(_picture(tmp_path))

    def refused(file, message):
        with pytest.raises(UsageError, match=message):
            predict(config, str(file), picture, str(tmp_path / 'out'))

    refused(tmp_path / 'none.onnx', 'no exported model')
    for suffix in ('.onnx', '.pt2'):
        (tmp_path / f'text{suffix}').write_text('text')
        refused(tmp_path / f'text{suffix}', 'cannot be read as an exported model')
    file = tmp_path / 'model.onnx'
    export(config, weights, str(file))
    other = Config.fromfile(config)
    other.data_preprocessor.mean = [0., 0., 0.]
    other.dump(tmp_path / 'other.py')
    config = str(tmp_path / 'other.py')
    refused(file, 'its mean is')
    monkeypatch.setitem(sys.modules, 'onnxruntime', None)
    refused(file, 'needs the package onnxruntime')


def test_the_tool(trained, tmp_path):
    config, weights = trained('soft_tiny_in1k')
    file = tmp_path / 'model.onnx'
    command = [sys.executable, str(ROOT / 'tools/export.py'), config, weights, '--out', str(file)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0 and 'model.onnx: classification of images of any size' in run.stdout
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 2 and 'exists; add --force' in run.stderr and 'Traceback' not in run.stderr
