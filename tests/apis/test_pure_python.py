"""Configs of pure Python, OpenMMLab's second form: types are classes, and their paths in the copy that training leaves."""

import json
import re

import mmdet.registry
import pytest
import torch
from mmcv.ops import nms, soft_nms

from mmsoft.apis import launch, predict
from mmsoft.apis.detection_graph import Detections
from mmsoft.backbones import SOFT
from mmsoft.datasets.shapes import SEMANTIC_METAINFO
from mmsoft.utils import UsageError
from mmsoft.utils.config import load_config

IMPORTS = """
from mmcv.transforms import LoadImageFromFile, RandomFlip
from mmengine.dataset import DefaultSampler, InfiniteSampler
from mmengine.hooks import CheckpointHook
from mmengine.optim import OptimWrapper
from mmengine.runner import IterBasedTrainLoop, TestLoop
from mmseg.datasets import BaseSegDataset
from mmseg.datasets.transforms import LoadAnnotations, PackSegInputs
from mmseg.evaluation import IoUMetric
from mmseg.models import EncoderDecoder, FCNHead, SegDataPreProcessor
from mmseg.models.losses import CrossEntropyLoss
from mmseg.visualization import SegLocalVisualizer
from torch.optim import AdamW

from mmsoft.attention import SOFTAttention
from mmsoft.backbones import SOFT
from mmsoft.engine.loops import Runner
"""
CONTENT = """
arch = dict(embed_dims=[32, 32, 64, 64], num_heads=[1, 1, 2, 2], depths=[1, 1, 1, 1])
loss = dict(type=CrossEntropyLoss)
model = dict(
    type=EncoderDecoder,
    data_preprocessor=dict(type=SegDataPreProcessor, size=(64, 64), test_cfg=dict(size_divisor=32)),
    backbone=dict(type=SOFT, arch=arch, attention_norm=False, attention=dict(type=SOFTAttention)),
    decode_head=dict(type=FCNHead, in_channels=64, channels=32, num_convs=1, num_classes=10, loss_decode=loss),
    test_cfg=dict(mode='whole'),
)
dataset = dict(type=BaseSegDataset, data_root=ROOT, metainfo=METAINFO, reduce_zero_label=True)
load = [dict(type=LoadImageFromFile), dict(type=LoadAnnotations)]
train_dataloader = dict(
    batch_size=4,
    sampler=dict(type=InfiniteSampler, shuffle=True),
    dataset=dict(
        dataset,
        data_prefix=dict(img_path='images/training', seg_map_path='annotations/training'),
        pipeline=[*load, dict(type=RandomFlip, prob=0.5), dict(type=PackSegInputs)],
    ),
)
test_dataloader = dict(
    sampler=dict(type=DefaultSampler, shuffle=False),
    dataset=dict(
        dataset,
        data_prefix=dict(img_path='images/validation', seg_map_path='annotations/validation'),
        pipeline=[*load, dict(type=PackSegInputs)],
    ),
)
test_evaluator = dict(type=IoUMetric)
train_cfg = dict(type=IterBasedTrainLoop, max_iters=3)
test_cfg = dict(type=TestLoop)
optim_wrapper = dict(type=OptimWrapper, optimizer=dict(type=AdamW, lr=1e-2))
default_hooks = dict(checkpoint=dict(type=CheckpointHook, by_epoch=False, interval=3))
visualizer = dict(type=SegLocalVisualizer, name='visualizer')
runner_type = Runner
randomness = dict(seed=0)
"""
NAMED = re.sub(r'type( ?= ?)(\w+)', r"type\1'\2'", CONTENT)
NAMED = NAMED.replace("'SOFT'", "'mmsoft.SOFT'").replace("'Runner'", "'mmsoft.Runner'")


@pytest.fixture
def run(tmp_path, small_shapes):
    """Trains the config of a text in a folder of its own; returns its checkpoint, and the config that training left."""
    content = {'ROOT': repr(str(small_shapes)), 'METAINFO': repr(SEMANTIC_METAINFO)}

    def run(name, text):
        for key, value in content.items():
            text = text.replace(f'={key}', f'={value}')
        config = tmp_path / f'{name}.py'
        config.write_text(text)
        launch.train(str(config), str(tmp_path / name))
        return tmp_path / name / 'iter_3.pth', tmp_path / name / f'{name}.py'

    return run


def weights(checkpoint):
    return torch.load(checkpoint, weights_only=False)['state_dict']


def test_trains_as_with_names_and_so_does_what_it_leaves(run, tmp_path, small_shapes):
    named, _ = run('named', f"default_scope = 'mmseg'{NAMED}")
    checkpoint, left = run('pure', f'{IMPORTS}{CONTENT}default_scope = None\n')  # as in the libraries' own
    assert "'mmseg.models.EncoderDecoder'" in left.read_text()
    again, _ = run('again', left.read_text())
    want = weights(named)
    for other in (checkpoint, again):
        torch.testing.assert_close(weights(other), want, rtol=1e-4, atol=1e-5)

    image, found = sorted((small_shapes / 'images/validation').iterdir())[0], []
    for name in ('named', 'pure', 'again'):
        config, out = str(tmp_path / f'{name}.py'), tmp_path / f'results of {name}'
        predict(config, str(checkpoint), str(image), str(out / 'predicted'), save_pred=True)
        scores = launch.test(config, str(checkpoint), str(tmp_path / f'test of {name}'), str(out / 'maps'))
        found.append((scores, {path.relative_to(out): path.read_bytes() for path in out.rglob('*.png')}))
    assert found[0] == found[1] == found[2]
    assert {path.parts[:2] for path in found[0][1]} >= {
        ('predicted', 'preds'),
        ('maps', image.with_suffix('.png').name),
    }


def test_attention_by_its_path_takes_the_norm_of_the_network():
    for path in ('mmsoft.attention.SOFTAttention', 'mmsoft.attention.soft.SOFTAttention', 'mmsoft.SOFTAttention'):
        backbone = SOFT('tiny', attention_norm=False, attention=dict(type=path))
        assert backbone.stages[0].blocks[0].attn.kind == 'SOFTAttention(norm=False)'


def test_scope_is_that_of_the_model(tmp_path):
    config = tmp_path / 'config.py'
    for text, scope in (
        ('from mmdet.models import RetinaNet\nmodel = dict(type=RetinaNet)', 'mmdet'),
        ("model = dict(type='mmseg.EncoderDecoder', nms=True)", 'mmseg'),
        ("model = dict(type='mmpretrain.models.classifiers.ImageClassifier')\ndefault_scope = None", 'mmpretrain'),
    ):
        config.write_text(text)
        assert load_config(str(config)).default_scope == scope
    for text in (
        "model = dict(type='RetinaNet')",
        'from torch.nn import Linear\nmodel = dict(type=Linear)',
        'model = 3',
    ):
        config.write_text(text)
        with pytest.raises(UsageError, match='default_scope=None; set one of'):
            load_config(str(config))


def test_suppression_by_a_function_or_its_path(tmp_path, small_shapes):
    """mmcv evaluates a path as it stands, where nothing is called mmcv."""
    cfg = load_config('configs/retinanet_soft_nano_shapes.py', {'model.test_cfg.score_thr': 0.0})
    cfg.model.test_cfg.nms.type = 'mmcv.ops.nms'
    cfg.dump(tmp_path / 'config.py')
    cfg = load_config(str(tmp_path / 'config.py'))
    model = mmdet.registry.MODELS.build(cfg.model)
    torch.save(dict(state_dict=model.state_dict()), tmp_path / 'weights.pth')
    image = sorted((small_shapes / 'images/validation').iterdir())[0]
    arguments = [str(tmp_path / 'config.py'), str(tmp_path / 'weights.pth'), str(image), str(tmp_path / 'out')]
    assert predict(*arguments, save_pred=True) == []
    assert json.loads((tmp_path / f'out/preds/{image.stem}.json').read_text())['scores']

    suppression = model.bbox_head.test_cfg.nms
    suppression.type = nms
    assert Detections(model).outputs == ('boxes', 'scores', 'labels')
    suppression.type = soft_nms
    with pytest.raises(UsageError, match='soft_nms cannot be exported; choose nms'):
        Detections(model)
    for other, says in (dict(iou_threshold=0.5, max_num=3), 'nms with max_num cannot'), (None, 'No suppression'):
        model.bbox_head.test_cfg.nms = other
        with pytest.raises(UsageError, match=says):
            Detections(model)


@pytest.mark.parametrize('wrong', ['EncoderDecoder', 'LoadImageFromFile'])
def test_a_class_that_does_not_exist_is_one_message(wrong, tmp_path, small_shapes):
    config = tmp_path / 'config.py'
    content = CONTENT.replace('=ROOT', f'={str(small_shapes)!r}').replace('=METAINFO', '={}')
    config.write_text(re.sub(rf'(import .*)\b{wrong}\b', rf'\1{wrong}s as {wrong}', IMPORTS) + content)
    image = sorted((small_shapes / 'images/validation').iterdir())[0]
    with pytest.raises(UsageError, match=rf'config.py cannot be .*ImportError: Failed to import {wrong}s'):
        predict(str(config), 'weights.pth', str(image), str(tmp_path / 'out'))
