"""tools/export.py: whole models of every task, and results of their files equal to PyTorch's."""

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import onnxruntime
import pytest
import torch
from mmdet.models import FCNMaskHead, RetinaHead, RPNHead, StandardRoIHead
from mmdet.structures import DetDataSample
from mmengine.config import ConfigDict
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData
from mmpretrain.datasets import ResizeEdge

from mmsoft.apis import deployment, detection_graph, export, predict
from mmsoft.apis.tasks import Detection, build_task
from mmsoft.layers.maps import AdaptivePool
from mmsoft.utils import UsageError
from mmsoft.utils.config import load_config

ROOT = Path(__file__).parents[2]
MODELS_OF = (
    *('soft_tiny_in1k', 'upernet_soft_small_160k', 'retinanet_soft_tiny_1x', 'atss_soft_small_3x', 'gfl_soft_small_3x'),
    *('mask_rcnn_soft_tiny_1x', 'cascade_mask_rcnn_soft_small_3x', 'sparse_rcnn_soft_small_3x'),
)
# Of these, the heads are compared without a file, see below.
SLOW = ('cascade_mask_rcnn_soft_small_3x', 'atss_soft_small_3x', 'gfl_soft_small_3x')


@pytest.fixture(scope='module')
def exported(tiny_model, once):
    """A config, weights and their ONNX file, which is written once for all tests."""

    def make(name):
        config, weights = tiny_model(name)

        def write(folder):
            assert 'any size' in export(config, weights, str(folder / 'model.onnx'))

        return config, weights, once(f'exported_{name}', write) / 'model.onnx'

    return make


def image(height, width):
    coarse = np.random.default_rng(height).integers(0, 255, (6, 7, 3), dtype=np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


def assert_same_detections(got, model, inputs, samples):
    """The graph's rows are mmdet's predictions, in pixels of the network's input."""
    want = model.predict(inputs, samples, rescale=False)[0].pred_instances
    boxes, scores, labels, *masks = (out[got[1] > 0] for out in got)
    assert len(want) == len(boxes) > 0
    torch.testing.assert_close(boxes, want.bboxes, rtol=0, atol=2e-3)
    torch.testing.assert_close(scores, want.scores, rtol=0, atol=2e-3)
    assert torch.equal(labels, want.labels)
    if masks:
        head = model.roi_head.mask_head
        head = head[0] if isinstance(head, torch.nn.ModuleList) else head
        every_class = masks[0][:, None].expand(-1, head.num_classes, -1, -1)
        (pasted,) = head.predict_by_feat(
            [every_class],
            [InstanceData(bboxes=boxes, labels=labels)],
            [samples[0].metainfo],
            model.roi_head.test_cfg,
            activate_map=True,
        )
        assert (pasted.masks == want.masks).double().mean() > 0.9999 and want.masks.any()


@pytest.mark.parametrize(
    'name',
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW))
        for name in MODELS_OF
        if not name.startswith('sparse')
    ],
)
@torch.no_grad()
def test_results_are_those_of_the_model(name, exported):
    config, weights, file = exported(name)
    run, task = deployment.reader(file.read_bytes()), build_task(load_config(config), weights, 'cpu')
    model = task.inferencer.model
    for size in ((60, 84), (64, 48)):
        data = model.data_preprocessor(task.collate([task.prepare(image(*size))]), False)
        inputs, samples = data['inputs'], data['data_samples']
        if isinstance(task, Detection):
            assert_same_detections(run(inputs, torch.tensor(samples[0].img_shape[:2])), model, inputs, samples)
        else:
            torch.testing.assert_close(run(inputs)[0], model(inputs, mode='tensor'), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize('name', ['atss_soft_small_3x', 'gfl_soft_small_3x', 'cascade_mask_rcnn_soft_small_3x'])
@torch.no_grad()
def test_other_heads_are_decoded_as_by_mmdet(name, tiny_model):
    config, weights = tiny_model(name)
    task = build_task(load_config(config), weights, 'cpu')
    model = task.inferencer.model
    data = model.data_preprocessor(task.collate([task.prepare(image(60, 84))]), False)
    inputs, samples = data['inputs'], data['data_samples']
    if name.startswith('atss'):  # centerness comes after the threshold
        model.bbox_head.atss_cls.bias.fill_(-4.0)  # sigmoid: 0.018
        model.bbox_head.atss_centerness.bias.fill_(-4.0)
        model.test_cfg.score_thr = model.bbox_head.test_cfg.score_thr = 0.01
        assert model.predict(inputs, samples, rescale=False)[0].pred_instances.scores.max() < 0.01
    if name.startswith('cascade'):
        model.rpn_head.test_cfg.update(nms_pre=5, max_per_img=40)  # more than it finds
        model.roi_head.test_cfg.max_per_img = 30
        for head in model.roi_head.bbox_head:  # with boxes of each class
            head.reg_class_agnostic, head.fc_reg = False, torch.nn.Linear(head.fc_reg.in_features, 4 * head.num_classes)
    else:
        model.bbox_head.test_cfg.max_per_img = 5000
    got = detection_graph.Detections(model)(inputs, torch.tensor(samples[0].img_shape[:2]))
    assert name.startswith('cascade') or got[1].min() == 0
    assert_same_detections(got, model, inputs, samples)


def test_the_example_without_pytorch_detects_what_predict_does(exported, tmp_path):
    config, weights, file = exported('retinanet_soft_tiny_1x')
    photo = str(tmp_path / 'photo.png')
    cv2.imwrite(photo, image(60, 84))
    detect = runpy.run_path(str(Path(__file__).with_name('onnx_example.py')))['detect']
    boxes, scores, names = detect(str(file), photo, min_score=1e-3)
    assert predict(config, weights, photo, str(tmp_path / 'out'), 'cpu', save_pred=True) == []
    want = json.loads((tmp_path / 'out/preds/photo.json').read_text())
    classes = load_config(config).test_dataloader.dataset.metainfo['classes']
    assert names == [classes[label] for label in want['labels']]
    np.testing.assert_allclose(scores, want['scores'], atol=2e-3)
    np.testing.assert_allclose(boxes, want['bboxes'], atol=5e-3)


@pytest.mark.parametrize(
    'kind, options, changes',
    [
        (RetinaHead, dict(loss_cls=dict(type='CrossEntropyLoss', use_sigmoid=False)), {}),
        (RetinaHead, {}, dict(nms=dict(type='nms', iou_threshold=0.5, class_agnostic=True))),
        (RetinaHead, {}, dict(min_bbox_size=20)),
        (RPNHead, {}, {}),
    ],
    ids=['softmax', 'all classes together', 'large boxes', 'levels apart'],
)
@torch.no_grad()
def test_settings_of_a_head_are_those_of_mmdet(kind, options, changes):
    init_default_scope('mmdet')
    options = dict(num_classes=1 if kind is RPNHead else 3, in_channels=8, feat_channels=8, **options)
    cfg = dict(nms_pre=100, score_thr=0.2, nms=dict(type='nms', iou_threshold=0.5), max_per_img=30)
    head = kind(**options, test_cfg=ConfigDict(dict(cfg, **changes))).eval()
    maps = [torch.rand(1, 8, 96 // stride, 96 // stride) for stride in (8, 16, 32, 48, 96)]
    sample = DetDataSample(metainfo=dict(img_shape=(80, 90)))
    want = head.predict(maps, [sample], rescale=False)[0]
    boxes, scores, labels = detection_graph.find(head, maps, torch.tensor([90.0, 80, 90, 80]))
    assert len(want) > 5
    labels = labels * (kind is not RPNHead)  # whose labels are levels here
    for got, other in ((boxes, want.bboxes), (scores, want.scores), (labels, want.labels)):
        torch.testing.assert_close(got[scores > 0], other)


def test_masks_of_all_classes_in_one(monkeypatch):
    logits = torch.randn(2, 1, 3, 3)
    monkeypatch.setattr(detection_graph, 'pool', lambda *_: logits)
    roi = SimpleNamespace(mask_roi_extractor=None, mask_head=torch.nn.Identity())
    masks = detection_graph.find_masks(roi, [], (torch.rand(2, 4), torch.rand(2), torch.tensor([2, 0])))
    assert torch.equal(masks, logits[:, 0].sigmoid())


def test_second_stages_of_other_kinds_are_not_exported(tiny_model):
    config, weights = tiny_model('mask_rcnn_soft_tiny_1x')
    model = build_task(load_config(config), weights, 'cpu').inferencer.model
    roi, soft = model.roi_head, dict(type='soft_nms', iou_threshold=0.5)
    roi.test_cfg.nms.class_agnostic = True
    assert detection_graph.Detections(model).outputs[-1] == 'masks'
    for part, name, value in (
        (roi.bbox_head.loss_cls, 'custom_activation', True),  # as SeesawLoss has
        (roi.bbox_roi_extractor.roi_layers[0], 'pool_mode', 'max'),
        (roi.mask_head, '__class__', type('PointHead', (FCNMaskHead,), {})),
        (roi, '__class__', type('OtherRoIHead', (StandardRoIHead,), {})),
        (roi.test_cfg, 'nms', soft),
        (model.rpn_head.test_cfg, 'nms', soft),
    ):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(UsageError, match='cannot be exported'):
            patch.setattr(part, name, value, raising=False)
            detection_graph.Detections(model)


class Suppress(torch.nn.Module):
    """The last step of every detector, by itself."""

    inputs, outputs = ('boxes', 'scores', 'labels'), ('found', 'scores_found', 'labels_found')
    cfg = ConfigDict(max_per_img=3, nms=dict(type='nms', iou_threshold=0.5))

    def forward(self, boxes, scores, labels):
        return detection_graph.suppress(boxes, scores, labels, torch.full((4,), 50.0), self.cfg)


def test_images_of_one_object_or_none():
    """Whatever was found in the example."""
    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 40, 40]])
    scores, labels = torch.tensor([0.7, 0.8, 0.9]), torch.tensor([5, 5, 2])
    example = boxes, scores, labels
    contents = deployment.to_onnx(Suppress(), example, (), dict(steps=[dict(type=Path), torch.float32]))
    run, said = deployment.reader(contents), onnxruntime.InferenceSession(contents).get_modelmeta()
    assert json.loads(said.custom_metadata_map['mmsoft']) == dict(steps=[dict(type='Path'), 'torch.float32'])
    missing = torch.full((3,), -1.0)
    for found, want in (
        (scores, [2, 1]),
        (scores.where(labels == 2, missing), [2]),
        (scores * 0, [0, 2]),
        (missing, []),
    ):
        for got, given, fill in zip(run(boxes, found, labels), (boxes, found, labels), (0, -1, 0)):
            assert torch.equal(got, torch.cat([given[want], given.new_full((3 - len(want), *given.shape[1:]), fill)]))


def test_detections_of_nearly_one_score_may_come_in_either_order():
    found = torch.rand(20, 4) * 300, torch.linspace(0.9, 0.2, 20), torch.arange(20)
    order = [1, 0, *range(2, 20)]
    assert deployment.is_same([out[order] for out in found], found)
    assert not deployment.is_same([found[0] + 2, *found[1:]], found)
    assert not deployment.is_same([found[0], found[1] + 0.01, found[2]], found)
    assert not deployment.is_same([out[:19] for out in found], found)
    dense = torch.rand(2, 3, 8, 8)
    assert deployment.is_same([dense + 1e-4], [dense]) and not deployment.is_same([dense.flip(0)], [dense])


def test_a_segmenter_s_padding_to_a_size_is_described():
    cfg = load_config(f'{ROOT}/configs/upernet_soft_nano_shapes.py')
    assert deployment.describe(cfg, torch.nn.Identity())['pad_size'] == (128, 128)
    cfg.model.data_preprocessor = dict(size_divisor=32, test_cfg=dict(size_divisor=64))
    assert deployment.describe(cfg, torch.nn.Identity())['pad_divisor'] == 64
    cfg.model.data_preprocessor.pop('test_cfg')  # mmseg pads images to train on alone
    assert deployment.describe(cfg, torch.nn.Identity())['pad_divisor'] == 1
    cfg = load_config(f'{ROOT}/configs/retinanet_soft_nano_shapes.py')
    described = deployment.describe(cfg, torch.nn.Identity())
    assert described['pad_size'] is None and described['pad_divisor'] == 32


def test_what_is_left_of_a_segmenter_is_described():
    cfg = load_config(f'{ROOT}/configs/upernet_soft_nano_shapes.py')
    model = torch.nn.Module()
    model.align_corners, model.decode_head = True, torch.nn.Module()
    model.decode_head.threshold = 0.3
    described = deployment.describe(cfg, model)
    assert (described['align_corners'], described['threshold'], described['slide']) == (True, 0.3, None)
    model.decode_head = torch.nn.ModuleList([torch.nn.Module(), model.decode_head])  # a cascade
    assert deployment.describe(cfg, model)['threshold'] == 0.3
    cfg.test_dataloader.dataset.pipeline.append(dict(type='mmseg.LoadAnnotations'))
    assert not [step for step in deployment.describe(cfg, model)['pipeline'] if 'Load' in step['type']]
    cfg.model.test_cfg = dict(mode='whole', crop_size=(64, 64), stride=(40, 40))
    assert deployment.describe(cfg, model)['slide'] is None
    cfg.model.test_cfg = dict(mode='slide', crop_size=(64, 64), stride=(40, 40))
    assert deployment.describe(cfg, model)['slide'] == dict(crop_size=(64, 64), stride=(40, 40))


def test_heads_that_need_annotations_are_not_exported(tiny_model, tmp_path, monkeypatch):
    config, weights = tiny_model('soft_tiny_in1k')

    def forward(self, images):
        raise TypeError("missing 1 required positional argument: 'batch_data_samples'")

    monkeypatch.setattr(deployment.Scores, 'forward', forward)
    with pytest.raises(UsageError, match=r'config.py cannot be exported \(TypeError: missing 1 required'):
        export(config, weights, str(tmp_path / 'model.onnx'))


def test_networks_that_refuse_the_sizes_of_the_check_are_not_exported(exported, tmp_path, monkeypatch):
    config, weights, file = exported('soft_tiny_in1k')
    monkeypatch.setattr(deployment, 'to_onnx', lambda *_: file.read_bytes())

    def forward(self, images):
        raise AssertionError(f'{tuple(images.shape[2:])} should be divisible by 32')

    monkeypatch.setattr(deployment.Scores, 'forward', forward)
    with pytest.raises(UsageError, match=r'any size; try --size H W \(AssertionError: \(33, 66\) should be'):
        export(config, weights, str(tmp_path / 'model.onnx'))
    assert not list(tmp_path.iterdir())


def test_the_file_says_what_it_takes(tiny_model, tmp_path):
    config, weights = tiny_model('retinanet_soft_tiny_1x')
    file = str(tmp_path / 'model.onnx')
    export(config, weights, file, size=(64, 96))
    session = onnxruntime.InferenceSession(file)
    described = json.loads(session.get_modelmeta().custom_metadata_map['mmsoft'])
    assert described['task'] == 'detection' and described['channel_order'] == 'RGB'
    assert described['mean'] == [123.675, 116.28, 103.53] and described['std'] == [58.395, 57.12, 57.375]
    assert described['pad_divisor'] == 32 and described['size'] == [64, 96]
    assert described['pipeline'][0]['type'] == 'Resize' and described['pipeline'][0]['keep_ratio'] is True
    assert described['dataset_meta']['classes'] and described['dataset_meta']['palette']
    cfg = load_config(config)
    cfg.model.data_preprocessor.bgr_to_rgb = False
    assert deployment.describe(cfg, torch.nn.Identity())['channel_order'] == 'BGR'
    boxes, scores, labels = session.run(
        None, dict(images=np.zeros((1, 3, 64, 96), np.float32), image_size=np.array([60, 90]))
    )
    assert boxes.shape == (8, 4) and scores.shape == labels.shape == (8,)
    assert boxes[:, 0::2].max() <= 90 and boxes[:, 1::2].max() <= 60


@pytest.mark.parametrize(
    'options, message',
    [
        (dict(out='model.pth'), 'must end with .onnx'),
        (dict(out='there.onnx'), 'there.onnx exists; add --force'),
        (dict(size=(8, 64)), '--size 8 64 is too small'),
        (dict(size=(64, 8)), '--size 64 8 is too small'),
        (dict(checkpoint='nowhere.pth'), 'nowhere.pth is not a file'),
        (dict(name='sparse_rcnn_soft_small_3x'), 'SparseRCNN cannot be exported'),
    ],
)
def test_wrong_input_is_one_sentence(options, message, tiny_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path('there.onnx').write_text('mine')
    config, weights = tiny_model(options.pop('name', 'soft_tiny_in1k'))
    with pytest.raises(UsageError, match=message):
        export(**dict(dict(config=config, checkpoint=weights, out='model.onnx'), **options))
    assert Path('there.onnx').read_text() == 'mine' and list(tmp_path.iterdir()) == [tmp_path / 'there.onnx']


def test_what_is_to_be_installed_first_is_told(monkeypatch):
    monkeypatch.setattr(deployment, 'find_spec', lambda name: None)
    with pytest.raises(UsageError, match=r'pip install onnx onnxruntime$'):
        export('x.py', 'y.pth', 'z.onnx')


@pytest.mark.parametrize('size, free', [(None, (0, 2, 3)), ((64, 96), (0,))])
def test_a_file_is_replaced_on_request(size, free, tiny_model, tmp_path, monkeypatch):
    (tmp_path / 'model.onnx').write_text('old')
    made = []
    monkeypatch.setattr(deployment, 'to_onnx', lambda *args: made.append(args[2]) or b'new')
    monkeypatch.setattr(deployment, 'check', lambda *args, **options: None)
    export(*tiny_model('soft_tiny_in1k'), str(tmp_path / 'model.onnx'), size, force=True)
    assert (tmp_path / 'model.onnx').read_bytes() == b'new' and made == [free]  # images in a batch are free


@pytest.mark.parametrize('size', [2, (2, 3), (None, 3)])
def test_pooling_is_that_of_pytorch(size):
    x = torch.rand(1, 2, 7, 9)
    torch.testing.assert_close(AdaptivePool(size)(x), torch.nn.AdaptiveAvgPool2d(size)(x))


def test_a_classifier_is_described(tiny_model):
    """mmpretrain has the preprocessor beside the model, and classes under another name."""
    config, weights = tiny_model('soft_tiny_in1k')
    cfg = load_config(config)
    cfg.test_dataloader.dataset.pipeline[1].type = ResizeEdge
    model = build_task(cfg, weights, 'cpu').inferencer.model
    described, own = deployment.describe(cfg, model), cfg.data_preprocessor
    assert (described['mean'], described['std'], described['channel_order']) == (own.mean, own.std, 'RGB')
    assert described['dataset_meta']['classes'] == model._dataset_meta['classes']
    assert described['pipeline'][0]['type'] == 'ResizeEdge'


def test_a_file_that_gives_other_results_is_not_kept(exported, tmp_path, monkeypatch):
    config, weights, file = exported('soft_tiny_in1k')
    monkeypatch.setattr(deployment, 'to_onnx', lambda *_: file.read_bytes())
    monkeypatch.setattr(deployment, 'is_same', lambda got, want: False)
    with pytest.raises(UsageError, match='at 33x66 the file gives other results, and is not kept'):
        export(config, weights, str(tmp_path / 'model.onnx'))
    assert not list(tmp_path.iterdir())


def test_the_tool(tiny_model, tmp_path, monkeypatch, capsys):
    config, weights = tiny_model('soft_tiny_in1k')
    monkeypatch.setattr(sys, 'argv', ['export.py', config, weights, '--out', str(tmp_path / 'model.onnx')])
    for code, said in ((0, 'model.onnx: classification of images of any size'), (2, 'exists; add --force')):
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(ROOT / 'tools/export.py'), run_name='__main__')
        assert end.value.code == code and said in ''.join(capsys.readouterr())
