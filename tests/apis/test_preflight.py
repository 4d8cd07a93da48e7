"""What is said when something is missing, before a model is built."""

import json
from types import SimpleNamespace

import pytest
import torch
import toy
from mmdet.datasets import CocoDataset
from mmengine.config import Config
from mmengine.model import PretrainedInit

from mmsoft.apis import launch
from mmsoft.apis.preflight import check_classes, check_data, check_exists, check_pretrained, check_resumable, explained
from mmsoft.utils import UsageError
from mmsoft.utils.config import load_config, without_pretrained

RETINANET = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'
TRAINING = ('train_dataloader', 'val_dataloader')
NO_HEADS = torch.nn.Identity()


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def load(name, text=''):
        (tmp_path / 'config.py').write_text(f"_base_ = '{name}'\n{text}")
        return load_config('config.py')

    return load


def sentence(function, *args):
    with pytest.raises(UsageError) as info:
        function(*args)
    text = str(info.value)
    assert '\n' not in text and text.endswith('.')
    return text


@pytest.mark.parametrize(
    'name, files',
    [
        (
            RETINANET,
            [
                'data/coco/annotations/instances_train2017.json',
                'data/coco/train2017/',
                'data/coco/annotations/instances_val2017.json',
                'data/coco/val2017/',
            ],
        ),
        ('mmdet::mask_rcnn/mask-rcnn_r50_fpn_ms-poly-3x_coco.py', ['data/coco/annotations/instances_train2017.json']),
        (
            'mmseg::fcn/fcn_r50-d8_4xb4-80k_ade20k-512x512.py',
            [
                f'data/ade/ADEChallengeData2016/{kind}/{split}/'
                for split in ('training', 'validation')
                for kind in ('images', 'annotations')
            ],
        ),
        ('mmpretrain::resnet/resnet18_8xb32_in1k.py', ['data/imagenet/train/', 'data/imagenet/val/']),
    ],
    ids=['coco', 'repeated', 'ade20k', 'imagenet'],
)
def test_data_is_asked_for_file_by_file(load, tmp_path, name, files):
    cfg = load(name)
    for file in files:
        text = sentence(check_data, cfg, *TRAINING)
        assert text.startswith(f'{file.rstrip("/")} is missing') and '--demo-data' in text
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True, parents=True)
        path.mkdir() if file.endswith('/') else path.touch()
    if len(files) > 1:
        check_data(cfg, *TRAINING)


def test_data_that_the_host_downloads_is_not_asked_for(load):
    check_data(load('mmpretrain::resnet/resnet18_8xb16_cifar10.py'), *TRAINING)


def test_a_split_is_a_folder_of_imagenet_only(load, tmp_path):
    (tmp_path / 'data/CUB_200_2011').mkdir(parents=True)
    check_data(load('mmpretrain::resnet/resnet50_8xb8_cub.py'), *TRAINING)


@pytest.mark.parametrize('name', [RETINANET, 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_ms-poly-3x_coco.py'])
def test_the_advice_to_point_elsewhere_works(load, tmp_path, name):
    cfg = load(name)
    elsewhere = tmp_path / 'elsewhere'
    for folder in ('annotations', 'train2017', 'val2017'):
        (elsewhere / folder).mkdir(parents=True)
    for split in ('train', 'val'):
        (elsewhere / f'annotations/instances_{split}2017.json').touch()
    for _ in range(3):  # to train on, to evaluate on, and what the evaluation compares with
        text = sentence(check_data, cfg, *TRAINING)
        key, place = text.split('--cfg-options ')[1].split(',')[0].split('=')
        place = elsewhere / ('annotations/instances_val2017.json' if place == 'FILE' else '')
        cfg.merge_from_dict({key: str(place)})
    check_data(cfg, *TRAINING)


def test_evaluation_compares_with_the_annotations_of_its_data(load, tmp_path):
    """Otherwise mmdet trains, and its evaluation ends with an IndexError."""
    cfg = load(RETINANET, "val_evaluator = dict(ann_file='data/coco/annotations/instances_train2017.json')")
    for folder in ('annotations', 'train2017', 'val2017'):
        (tmp_path / 'data/coco' / folder).mkdir(parents=True)
    for split in ('train', 'val'):
        (tmp_path / f'data/coco/annotations/instances_{split}2017.json').touch()
    text = sentence(check_data, cfg, *TRAINING)
    assert 'val_evaluator.ann_file is data/coco/annotations/instances_train2017.json' in text
    cfg.val_evaluator.ann_file = str(tmp_path / 'data/coco/train2017/../annotations/instances_val2017.json')
    check_data(cfg, *TRAINING)


def test_annotations_of_the_evaluation(load, tmp_path):
    cfg = load(RETINANET, "val_evaluator = dict(ann_file='other.json')")
    for folder in ('annotations', 'train2017', 'val2017'):
        (tmp_path / 'data/coco' / folder).mkdir(parents=True)
    for split in ('train', 'val'):
        (tmp_path / f'data/coco/annotations/instances_{split}2017.json').touch()
    assert '--cfg-options val_evaluator.ann_file=FILE' in sentence(check_data, cfg, *TRAINING)


def test_pretrained_weights(load, tmp_path):
    pretrained = "dict(type='Pretrained', checkpoint='weights/some.pth')"
    cfg = load(RETINANET, f"model = dict(backbone=dict(_delete_=True, type='mmsoft.SOFT', init_cfg={pretrained}))")
    text = sentence(check_pretrained, cfg)
    assert 'weights/some.pth' in text and 'docs/pretrained_weights.md' in text and '--from-scratch' in text
    (tmp_path / 'weights').mkdir()
    (tmp_path / 'weights/some.pth').touch()
    check_pretrained(cfg)


def test_the_class_of_mmengine_s_initializer_is_seen_too(load):
    cfg = load(RETINANET)
    cfg.model.backbone.init_cfg = dict(type=PretrainedInit, checkpoint='weights/some.pth')
    assert 'weights/some.pth' in sentence(check_pretrained, cfg)
    assert without_pretrained(cfg).model.backbone.init_cfg is None
    check_pretrained(without_pretrained(cfg))


def test_weights_from_the_net_are_left_to_the_host(load):
    check_pretrained(load(RETINANET))


@pytest.mark.parametrize(
    'name, content, says',
    [
        ('absent.py', None, 'no config'),
        ('notes.txt', 'hello', 'cannot be read'),
        ('broken.py', 'model = dict(', 'cannot be read'),
        ('undefined.py', 'model = dict(type=Nowhere)', 'Nowhere'),
        ('baseless.py', "_base_ = 'mmdet::no/such_config.py'", 'no/such_config.py'),
        ('scopeless.py', 'model = dict()', 'default_scope'),
        ('foreign.py', "default_scope = 'mmocr'", 'mmocr'),
    ],
)
def test_configs_that_cannot_be_read(tmp_path, name, content, says):
    path = tmp_path / name
    if content:
        path.write_text(content)
    assert says in sentence(load_config, str(path))


def test_a_checkpoint_that_is_missing(tmp_path):
    assert 'x.pth' in sentence(check_exists, str(tmp_path / 'x.pth'))
    (tmp_path / 'x.pth').touch()
    check_exists(str(tmp_path / 'x.pth'))


# Data sets as an OpenMMLab library has built them.


@pytest.fixture
def coco(tmp_path):
    """Settings of a data set of one image with a star and a heart."""
    boxes = [dict(id=i, image_id=1, category_id=i, bbox=[1, 1, 9, 9], area=81, iscrowd=0) for i in (1, 2)]
    content = dict(
        images=[dict(id=1, file_name='1.jpg', width=64, height=64)],
        annotations=boxes,
        categories=[dict(id=1, name='star'), dict(id=2, name='heart')],
    )
    (tmp_path / 'x.json').write_text(json.dumps(content))
    return dict(
        type='CocoDataset',
        data_root=str(tmp_path),
        ann_file='x.json',
        pipeline=[],
        data_prefix=dict(img=''),
        filter_cfg=dict(filter_empty_gt=True),
    )


def built(coco, classes):
    return CocoDataset(**{key: value for key, value in coco.items() if key != 'type'}, metainfo=dict(classes=classes))


def test_classes_of_the_file(coco):
    check_classes(built(coco, ('star', 'heart')), NO_HEADS, True)
    check_classes(built(coco, ('heart',)), NO_HEADS, True)


def test_classes_that_are_not_in_the_file(coco):
    text = sentence(check_classes, built(coco, ('star', 'heart', 'tree')), NO_HEADS, True)
    assert 'x.json has the categories star, heart' in text and 'star, heart, tree' in text


def test_a_word_for_a_tuple(coco):
    assert 'in the config are s, t, a, r: ' in sentence(check_classes, built(coco, ('star')), NO_HEADS, True)


def test_a_data_set_that_mmengine_cannot_build(coco, tmp_path):
    """Without a sample it says "need at least one array to concatenate"."""
    coco.update(metainfo=dict(classes=('tree', 'house')))
    loader = dict(batch_size=1, num_workers=0, dataset=coco, sampler=dict(type='DefaultSampler', shuffle=True))
    cfg = toy.config(tmp_path / 'run', train_dataloader=loader, default_scope='mmdet')

    def build():
        with explained('x.py'):
            launch.build(cfg, 'train')

    assert 'x.py cannot be run (a data set has no samples: check its files, metainfo.classes' in sentence(build)


def head(name, count):
    model = torch.nn.Module()
    part = model.add_module(name, torch.nn.Linear(1, 1)) or getattr(model, name)
    part.num_classes = count
    return model


@pytest.mark.parametrize(
    'name, scope, count, fits',
    [
        ('bbox_head', 'mmdet', 2, True),
        ('bbox_head', 'mmdet', 80, False),
        ('rpn_head', 'mmdet', 1, True),
        ('decode_head', 'mmseg', 3, True),
        ('decode_head', 'mmseg', 1, False),
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


def test_a_runner_is_built_of_what_fits(tmp_path):
    """Data set and heads, and a checkpoint of another model, of which mmengine would only warn."""
    path, training = str(tmp_path / 'x.pth'), dict(meta=dict(iter=3), message_hub={}, optimizer={})

    def build(weights, **changes):
        torch.save(dict(state_dict=weights, **training), path)
        return launch.build(
            Config(toy.config(tmp_path / 'run', load_from=path, default_scope='mmengine', **changes)), 'train'
        )

    one, other = {'linear.weight': torch.ones(1, 1), 'linear.bias': torch.ones(1)}, dict(weight=torch.ones(3))
    build(one).train()
    assert 'x.pth does not fit' in sentence(build, other)
    part = {'linear.weight': torch.ones(1, 1)}
    build(part)
    assert 'x.pth does not fit' in sentence(lambda: build(part, resume=True))


def test_training_resumes_from_checkpoints_of_trainings(tmp_path):
    path, training = str(tmp_path / 'x.pth'), dict(state_dict=dict(a=torch.ones(1)), meta=dict(iter=3), optimizer={})
    torch.save(training, path)
    assert 'x.pth has no message_hub' in sentence(check_resumable, path)
    torch.save(dict(training, message_hub={}), path)
    check_resumable(path)


def test_errors_of_a_config_are_sentences(tmp_path):
    with pytest.raises(UsageError) as info, explained('x.py'):
        launch.build(toy.config(tmp_path, model=dict(type='Nonsense')), 'train')
    assert str(info.value).startswith('x.py cannot be run (KeyError: ') and '--traceback' in str(info.value)
    assert isinstance(info.value.__cause__, KeyError)
