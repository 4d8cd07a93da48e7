"""What is said of labels that the model has no classes for."""

from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
import toy
from mmengine.registry import DATASETS, MODELS
from mmengine.structures import PixelData
from mmpretrain.structures import DataSample
from mmseg.structures import SegDataSample

from mmsoft.engine import loops
from mmsoft.engine.samples import check_labels
from mmsoft.utils import UsageError

pytestmark = pytest.mark.usefixtures('inside')

META = dict(img_path='a.jpg', img_shape=(2, 2), ori_shape=(4, 4))


@MODELS.register_module()
class ToySegmenter(toy.ToyModel):
    """Three classes, and 254 is left out."""

    def __init__(self):
        super().__init__()
        self.decode_head = torch.nn.Module()
        self.decode_head.num_classes, self.decode_head.ignore_index = 3, 254

    def forward(self, inputs, data_samples, mode='tensor'):
        labels = torch.stack([sample.gt_sem_seg.data.squeeze(0) for sample in data_samples])
        scores = super().forward(inputs)['loss'].expand(len(labels), 3, 2, 2)
        return dict(loss=F.cross_entropy(scores, labels, ignore_index=254))


@DATASETS.register_module()
class LabelMaps(toy.ToyData):
    def __init__(self, labels):
        self.labels = labels

    def __getitem__(self, index):
        sample = SegDataSample(gt_sem_seg=PixelData(data=torch.tensor(self.labels)), metainfo=META)
        return dict(inputs=torch.rand(1), data_samples=sample)


@pytest.mark.parametrize(
    'labels, says',
    [
        ([[[0, 1], [2, 254]]], ''),
        ([[[0, 1], [2, 3]]], 'with the value 3: classes are 0 to 2, and 254 is left out'),
        ([[[0, 100], [200, 1]]], 'with the value 100'),
        ([[[0, 1], [1, 2]], [[0, 1], [1, 2]], [[0, 1], [1, 2]]], 'with colours'),
        ([[[0, 1], [1, 2]], [[1, 1], [1, 1]]], 'with colours'),  # grey and transparent
        ([[[0, 1, 1], [2, 2, 0]]], 'of another size'),
    ],
    ids=str,
)
@pytest.mark.parametrize('train_cfg', [dict(by_epoch=True, max_epochs=1), dict(by_epoch=False, max_iters=2)], ids=str)
def test_label_maps_have_the_classes_of_the_model(tmp_path, labels, says, train_cfg):
    """The error of the loss names no file."""
    data = dict(toy.config(tmp_path)['train_dataloader'], dataset=dict(type='LabelMaps', labels=labels))
    data['collate_fn'] = dict(type='pseudo_collate')
    runner = loops.Runner(
        **toy.config(tmp_path, model=dict(type='ToySegmenter'), train_dataloader=data, train_cfg=train_cfg)
    )
    if says:
        with pytest.raises(UsageError, match=f'^a.jpg has a label map {says}'):
            runner.train()
        batch = dict(data_samples=[runner.train_dataloader.dataset[0]['data_samples']])
        for hook in ('before_val_iter', 'before_test_iter'):  # or else scores are of other labels
            with pytest.raises(UsageError, match=f'^a.jpg has a label map {says}'):
                runner.call_hook(hook, batch_idx=0, data_batch=batch)
    else:
        runner.train()


def test_labels_are_classes_of_the_classifier():
    """Counted from 1, the last one is none."""
    model, samples = torch.nn.Module(), [DataSample(metainfo=dict(img_path='a.jpg')).set_gt_label(2)]
    model.backbone, model.head = torch.nn.Module(), torch.nn.Module()
    model.head.num_classes = 3
    model.backbone.head = torch.nn.Module()
    model.backbone.head.num_classes = 2
    check_labels(dict(data_samples=samples), model)
    samples.append(DataSample(metainfo=dict(img_path='b.jpg')).set_gt_label(3))
    with pytest.raises(UsageError, match=r'^b.jpg has a label with the value 3: classes are 0 to 2\.$'):
        check_labels(dict(data_samples=samples), model)
    with pytest.raises(UsageError, match='the value -1: classes are 0 to 2'):
        check_labels(dict(data_samples=[samples[0].set_gt_label(-1)]), model)


@pytest.mark.parametrize('head', [{}, dict(num_classes=3), dict(num_classes=None, ignore_index=255)], ids=str)
def test_label_maps_that_no_head_is_for(head):
    """As of mmdet's panoptic detectors: the error of the loss is what is told."""
    model = torch.nn.Module()
    model.decode_head = torch.nn.Module()
    vars(model.decode_head).update(head)
    for maps in (PixelData(sem_seg=torch.full((1, 2, 2), 9)), PixelData(data=torch.full((1, 2, 2), 255))):
        check_labels(dict(data_samples=[SegDataSample(gt_sem_seg=maps)]), model)


def test_labels_that_are_no_classes():
    """Of a retrieval they are images; of a map of one class, foreground and background."""
    model = torch.nn.Module()
    model.head = model.decode_head = torch.nn.Module()
    model.head.num_classes, model.head.ignore_index = 3, 255
    retrieved = DataSample().set_gt_label(7)
    with pytest.raises(UsageError, match='the value 7'):
        check_labels(dict(data_samples=[retrieved]), model)
    model.prototype = None
    check_labels(dict(data_samples=[retrieved]), model)
    del model.prototype
    views = [retrieved.clone().set_gt_label(1), retrieved]  # of a test with --tta
    with pytest.raises(UsageError, match='the value 7'):
        check_labels(dict(data_samples=[views]), model)
    model.head.num_classes = 1
    maps = PixelData(data=torch.ones(1, 2, 2, dtype=torch.long))
    check_labels(dict(data_samples=[SegDataSample(gt_sem_seg=maps, metainfo=dict(ori_shape=None))]), model)
    for batch in ([1], dict(data_samples=torch.ones(2)), dict(data_samples=dict(a=[1])), dict(data_samples=None)):
        check_labels(batch, model)


def test_label_maps_are_as_large_as_their_images():
    """In the file of a test, in the pipeline of a training, or in a batch; nothing is said where sizes are unknown."""
    model = torch.nn.Module()
    model.decode_head = torch.nn.Module()
    model.decode_head.num_classes, model.decode_head.ignore_index = 3, 255
    maps = PixelData(data=torch.zeros(1, 4, 6, dtype=torch.long))
    for meta in ({}, dict(ori_shape=(4, 6, 3), img_shape=(8, 8)), dict(ori_shape=(9, 9), pad_shape=(4, 6))):
        check_labels(dict(data_samples=[SegDataSample(gt_sem_seg=maps, metainfo=meta)]), model)
    turned = SegDataSample(gt_sem_seg=maps, metainfo=dict(ori_shape=(6, 4), img_shape=(12, 8), pad_shape=(12, 8)))
    with pytest.raises(UsageError, match='An image has a label map of another size'):
        check_labels(dict(data_samples=[turned]), model)


def test_other_errors_of_a_loss_stay(tmp_path):
    data = dict(toy.config(tmp_path)['train_dataloader'], dataset=dict(type='LabelMaps', labels=[[[0, 1], [2, 2]]]))
    data['collate_fn'] = dict(type='pseudo_collate')
    runner = loops.Runner(**toy.config(tmp_path, model=dict(type='ToySegmenter'), train_dataloader=data))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match='of the program'):
        patch.setattr(ToySegmenter, 'forward', lambda *_, **__: (_ for _ in ()).throw(RuntimeError('of the program')))
        runner.train()


@pytest.mark.parametrize('error', [AssertionError, IndexError, RuntimeError])
def test_any_error_of_a_loss_may_be_one_of_labels(tmp_path, monkeypatch, error):
    data = dict(toy.config(tmp_path)['train_dataloader'], dataset=dict(type='LabelMaps', labels=[[[0, 1], [2, 3]]]))
    data['collate_fn'] = dict(type='pseudo_collate')
    runner = loops.Runner(**toy.config(tmp_path, model=dict(type='ToySegmenter'), train_dataloader=data))
    monkeypatch.setattr(ToySegmenter, 'forward', Mock(side_effect=error))
    with pytest.raises(UsageError, match='^a.jpg has a label map with the value 3'):
        runner.train()


def test_the_last_head_of_several_counts():
    """As of mmseg's cascades."""
    model = torch.nn.Module()
    model.decode_head = torch.nn.ModuleList(torch.nn.Module() for _ in range(2))
    for head, classes in zip(model.decode_head, (2, 3)):
        head.num_classes, head.ignore_index = classes, 255
    for value, says in ((2, ''), (3, 'the value 3: classes are 0 to 2')):
        sample = SegDataSample(gt_sem_seg=PixelData(data=torch.full((1, 2, 2), value)))
        with pytest.raises(UsageError, match=says) if says else nullcontext():
            check_labels(dict(data_samples=[sample]), SimpleNamespace(module=model))  # in several processes
