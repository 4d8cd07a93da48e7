"""What is said when something is missing, before a model is built."""
import pytest
import torch

from mmsoft.apis.preflight import check_checkpoint, check_data, check_pretrained, explained
from mmsoft.utils.config import load_config
from mmsoft.utils.errors import UsageError

RETINANET = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'
TRAINING = ('train_dataloader', 'val_dataloader')


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


@pytest.mark.parametrize('name, files', [
    (RETINANET, [
        'data/coco/annotations/instances_train2017.json', 'data/coco/train2017/',
        'data/coco/annotations/instances_val2017.json', 'data/coco/val2017/'
    ]),
    ('mmdet::mask_rcnn/mask-rcnn_r50_fpn_ms-poly-3x_coco.py', ['data/coco/annotations/instances_train2017.json']),
    ('mmseg::fcn/fcn_r50-d8_4xb4-80k_ade20k-512x512.py', [
        f'data/ade/ADEChallengeData2016/{kind}/{split}/' for split in ('training', 'validation')
        for kind in ('images', 'annotations')
    ]),
    ('mmpretrain::resnet/resnet18_8xb32_in1k.py', ['data/imagenet/train/', 'data/imagenet/val/']),
], ids=['coco', 'repeated', 'ade20k', 'imagenet'])
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


def test_annotations_of_the_evaluation(load, tmp_path):
    cfg = load(RETINANET, "val_evaluator = dict(ann_file='other.json')")
    for folder in ('annotations', 'train2017', 'val2017'):
        (tmp_path / 'data/coco' / folder).mkdir(parents=True)
    for split in ('train', 'val'):
        (tmp_path / f'data/coco/annotations/instances_{split}2017.json').touch()
    assert '--cfg-options val_evaluator.ann_file=FILE' in sentence(check_data, cfg, *TRAINING)


@pytest.mark.parametrize('backbone, where', [('mmsoft.SOFT', 'fudan-zvg/SOFT'), ('mmsoft.SimAXCiT', 'UCDvision/sima'),
                                             ('ResNet', 'their authors')])
def test_pretrained_weights(load, tmp_path, backbone, where):
    pretrained = "dict(type='Pretrained', checkpoint='weights/some.pth')"
    cfg = load(RETINANET, f"model = dict(backbone=dict(_delete_=True, type='{backbone}', init_cfg={pretrained}))")
    text = sentence(check_pretrained, cfg)
    assert 'weights/some.pth' in text and where in text and '--from-scratch' in text
    (tmp_path / 'weights').mkdir()
    (tmp_path / 'weights/some.pth').touch()
    check_pretrained(cfg)


def test_weights_from_the_net_are_left_to_the_host(load):
    check_pretrained(load(RETINANET))


@pytest.mark.parametrize('name, content, says', [
    ('absent.py', None, 'no config'),
    ('notes.txt', 'hello', 'not a config'),
    ('broken.py', 'model = dict(', 'cannot be read'),
    ('undefined.py', 'model = dict(type=Nowhere)', 'Nowhere'),
    ('baseless.py', "_base_ = 'mmdet::no/such_config.py'", 'no/such_config.py'),
    ('scopeless.py', 'model = dict()', 'default_scope'),
    ('foreign.py', "default_scope = 'mmocr'", 'mmocr'),
])
def test_configs_that_cannot_be_read(tmp_path, name, content, says):
    path = tmp_path / name
    if content:
        path.write_text(content)
    assert says in sentence(load_config, str(path))


def test_training_goes_on_from_checkpoints_of_trainings(tmp_path):
    path = tmp_path / 'x.pth'
    torch.save(dict(state_dict={'a': torch.ones(1)}, meta=dict(iter=3)), path)
    check_checkpoint(str(path))
    assert f'{path} has no message_hub' in sentence(lambda: check_checkpoint(str(path), of_training=True))


def test_what_hosts_raise_before_the_first_iteration_is_a_sentence():

    @explained
    def build(config):
        return {}[config]

    assert sentence(build, 'x.py') == "x.py cannot be run (KeyError: 'x.py')."
