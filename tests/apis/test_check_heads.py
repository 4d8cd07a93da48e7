"""What is said of heads that count other classes than the data have."""

from types import SimpleNamespace

import pytest
import torch
import toy
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner
from wrong_input import head, sentence

from mmsoft.apis import launch
from mmsoft.apis.checks import check_classes, check_evaluators, check_mixing


@pytest.mark.parametrize(
    'name, scope, count, fits',
    [
        ('bbox_head', 'mmdet', 2, True),
        ('bbox_head', 'mmdet', 80, False),
        ('mask_head', 'mmdet', 80, False),
        ('rpn_head', 'mmdet', 1, True),
        ('decode_head', 'mmseg', 3, True),
        ('decode_head', 'mmseg', 1, False),
        ('auxiliary_head', 'mmseg', 1, False),
        ('head', 'mmpretrain', 1, False),
    ],
)
@pytest.mark.parametrize('wrapped', [False, True])
def test_heads_have_the_classes_of_the_data(name, scope, count, fits, wrapped):
    dataset = SimpleNamespace(metainfo=dict(classes=('star', 'heart')))
    dataset = SimpleNamespace(datasets=[dataset]) if wrapped else dataset
    arguments = dataset, head(name, count), scope == 'mmdet'
    if fits:
        check_classes(*arguments)
    else:
        assert f'model.{name} has num_classes={count}' in sentence(check_classes, *arguments)


def test_every_head_of_a_cascade_is_looked_at():
    dataset, model = SimpleNamespace(metainfo=dict(classes=('star', 'heart'))), torch.nn.Module()
    model.bbox_head = torch.nn.ModuleList(head('fc', count).fc for count in (2, 80))
    assert 'model.bbox_head.1 has num_classes=80; set 2' in sentence(check_classes, dataset, model, True)
    whole = torch.nn.ModuleDict(dict(roi_head=model))
    assert 'model.roi_head.bbox_head.1 has num' in sentence(check_classes, dataset, whole, True)


def test_heads_that_count_something_else():
    """STDC's second auxiliary head tells borders from all else."""
    from mmseg.models.decode_heads import STDCHead

    init_default_scope('mmseg')  # whatever tests before have left
    dataset, model = SimpleNamespace(metainfo=dict(classes=('star', 'sky', 'sea'))), torch.nn.Module()
    model.auxiliary_head = torch.nn.ModuleList([STDCHead(0.1, in_channels=4, channels=4, num_convs=1, num_classes=2)])
    check_classes(dataset, model, exact=False)
    for name in ('GroundingDINOHead', 'ATSSVLFusionHead', 'VPDDepthHead'):  # words of a text, and metres
        part = head('bbox_head', 256)
        part.bbox_head.__class__ = type(name, (torch.nn.Linear,), {})
        check_classes(dataset, part, exact=True)


@pytest.mark.parametrize('count, fits', [(1, True), (3, False), (2, False)])
def test_heads_of_panoptic_data_detect_things(count, fits):
    dataset = SimpleNamespace(metainfo=dict(classes=('star', 'sky', 'sea'), thing_classes=('star',)))
    if fits:
        check_classes(dataset, head('bbox_head', count), True)
    else:
        assert '; set 1, as' in sentence(check_classes, dataset, head('bbox_head', count), True)


def test_heads_are_found_in_the_wrapper_of_several_processes(tmp_path, monkeypatch):
    """mmpretrain's and mmdet's parts are attributes of the model inside."""

    class Wrapped(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.module = model

    monkeypatch.setattr(Runner, 'wrap_model', lambda runner, cfg, model: Wrapped(model))
    checked = []
    monkeypatch.setattr(launch, 'check_mixing', checked.append)
    launch.build(Config(toy.config(tmp_path, default_scope='mmengine')), 'train')
    assert [type(one).__name__ for one in checked] == ['ToyModel']


def test_scores_of_more_classes_than_there_are():
    metric = dict(type='Accuracy', topk=(1, 5))
    cfg = Config(dict(model=dict(head=dict(num_classes=3)), val_evaluator=metric))
    assert 'val_evaluator.topk is (1, 5), and there are 3 classes' in sentence(check_evaluators, cfg, 'val')
    check_evaluators(Config(dict(cfg, val_evaluator=dict(metric, topk=(1, 3)))), 'val')
    check_evaluators(Config(dict(cfg, val_evaluator=[dict(type='Accuracy')])), 'val')
    check_evaluators(Config(dict(cfg, val_evaluator=dict(type='RetrievalRecall', topk=5))), 'val')  # of images
    check_evaluators(Config(dict(cfg, model=dict(head=[dict(num_classes=3)]))), 'val')


@pytest.mark.parametrize('train_cfg', [None, dict(augments=dict(type='Mixup', alpha=0.8))], ids=['alone', 'mixed'])
def test_classifiers_that_mix_images_count_classes_twice(train_cfg):
    parts = dict(backbone=dict(type='LeNet5'))
    parts.update(
        type='ImageClassifier', _scope_='mmpretrain', head=dict(type='LinearClsHead', num_classes=2, in_channels=4)
    )
    for count in (2, None, 1000):
        model = MODELS.build(dict(parts, train_cfg=train_cfg, data_preprocessor=dict(num_classes=count)))
        if count != 1000 or train_cfg is None:
            check_mixing(model)
        else:
            says = 'num_classes is 2 in model.head, 1000 in data_preprocessor: set both.'
            assert sentence(check_mixing, model) == says
