"""What is said of data, classes and annotations that do not fit, before a training."""

import json
import os
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import toy
from mmdet.datasets import CocoDataset, Objects365V1Dataset, VOCDataset
from mmdet.datasets.base_video_dataset import BaseVideoDataset
from mmengine.config import Config
from mmengine.dataset import ConcatDataset, RepeatDataset
from mmengine.registry import MODELS
from wrong_input import head, sentence

from mmsoft.apis import launch
from mmsoft.apis.checks import check_classes, check_evaluators, check_objects, check_order
from mmsoft.utils.config import datasets, explained, load_config

ROOT = Path(__file__).parents[2]
RETINANET = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'
NO_HEADS = torch.nn.Identity()


def test_evaluation_compares_with_the_annotations_of_its_data(tmp_path, monkeypatch):
    """Otherwise mmdet trains, and its evaluation ends with an IndexError."""
    monkeypatch.chdir(tmp_path)
    Path('config.py').write_text(
        f"_base_ = '{RETINANET}'\nval_evaluator = dict(ann_file='data/coco/annotations/instances_train2017.json')"
    )
    cfg = load_config('config.py')
    assert 'val_evaluator.ann_file is data/coco/annotations/instances_train2017.json' in sentence(
        check_evaluators, cfg, 'train', 'val'
    )
    cfg.val_evaluator.ann_file = str(tmp_path / 'data/coco/train2017/../annotations/instances_val2017.json')
    check_evaluators(cfg, 'train', 'val')


@pytest.mark.parametrize('place', ['http://127.0.0.1/val.json', 's3://data/val.json', '/data/val.json'])
def test_annotations_may_be_elsewhere_than_images(place):
    """mmengine joins neither addresses nor absolute paths with data_root."""
    cfg = load_config(f'{ROOT}/configs/retinanet_soft_tiny_1x.py')
    cfg.val_dataloader.dataset.ann_file = cfg.val_evaluator.ann_file = place
    check_evaluators(cfg, 'val')
    cfg.val_evaluator.ann_file = place.replace('val', 'test')
    assert 'test.json, and val_dataloader reads' in sentence(check_evaluators, cfg, 'val')
    cfg.val_dataloader.dataset.ann_file, cfg.val_evaluator = Path('val.json'), dict(type='CocoMetric')
    check_evaluators(cfg, 'val')


@pytest.mark.parametrize(
    'name', ['mask2former_panoptic_soft_small_50e', 'mask2former_panoptic_sima_xcit_small_12_p16_50e']
)
def test_panoptic_data_are_scored_by_two_files(name):
    """mmdet's evaluators of panoptic and of instance segmentation."""
    cfg = load_config(f'{ROOT}/configs/{name}.py')
    check_evaluators(cfg, 'train', 'val', 'test')
    del cfg.test_evaluator[0].ann_file  # CocoPanopticMetric compares with the data set
    check_evaluators(cfg, 'test')
    cfg.val_evaluator[0].ann_file = 'x.json'
    assert 'val_evaluator.ann_file is x.json' in sentence(check_evaluators, cfg, 'val')
    cfg.val_evaluator = [dict(type='CocoMetric', ann_file=cfg.val_dataloader.dataset.ann_file) for _ in range(2)]
    cfg.val_evaluator[1].ann_file = 'y.json'
    assert 'val_evaluator.ann_file is ' in sentence(check_evaluators, cfg, 'val')


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


@contextmanager
def changed(coco):
    """Gives the content of its file, and writes what has become of it."""
    file = Path(coco['data_root'], coco['ann_file'])
    content = json.loads(file.read_text())
    yield content
    file.write_text(json.dumps(content))


def built(coco, classes):
    return CocoDataset(**{key: value for key, value in coco.items() if key != 'type'}, metainfo=dict(classes=classes))


def test_classes_of_the_file(coco):
    check_classes(built(coco, ('star', 'heart')), NO_HEADS, True)
    check_classes(built(coco, ('heart',)), NO_HEADS, True)


def test_videos_have_objects_in_their_images():
    class Videos:
        cat_ids = (1,)
        get_data_info = staticmethod(lambda i: dict(video_id=i, images=[dict(instances=[])]))
        __len__ = staticmethod(lambda: 2)

    check_objects(Videos())


@pytest.mark.parametrize('wrong', [dict(bbox=[0.1, 0.1, 0.5, 0.5]), dict(image_id=999), None])
def test_images_without_objects(coco, wrong):
    coco['filter_cfg'] = None
    for whole in (built(coco, ('star', 'heart')), RepeatDataset(built(coco, ('star', 'heart')), 2)):
        check_objects(whole)
    with changed(coco) as content:
        content['annotations'] = [dict(one, **wrong) for one in content['annotations']] if wrong else []
    assert 'x.json has no objects' in sentence(check_objects, built(coco, ('star', 'heart')))
    assert 'has no objects' in sentence(check_objects, RepeatDataset(built(coco, ('star', 'heart')), 2))


def test_one_image_with_objects_is_enough(coco):
    coco['filter_cfg'] = None
    with changed(coco) as content:
        content['images'] = [dict(content['images'][0], id=number) for number in range(3)]
    check_objects(built(coco, ('star', 'heart')))


def test_voc_images_without_objects_of_the_classes(tmp_path):
    (tmp_path / 'Annotations').mkdir()
    (tmp_path / 'list.txt').write_text('1')
    box = ''.join(f'<{side}>{at}</{side}>' for side, at in dict(xmin=1, ymin=1, xmax=9, ymax=9).items())
    star = f'<object><name>star</name><difficult>0</difficult><bndbox>{box}</bndbox></object>'
    size = '<size><width>64</width><height>64</height></size>'
    (tmp_path / 'Annotations/1.xml').write_text(f'<annotation>{size}{star}</annotation>')
    options = dict(data_root=str(tmp_path), ann_file='list.txt', data_prefix=dict(sub_data_root=''), pipeline=[])
    check_objects(VOCDataset(**options, metainfo=dict(classes=('star',))))
    wrong = VOCDataset(**options, metainfo=dict(classes=('Star',)))
    assert 'list.txt has no objects of its classes' in sentence(check_objects, wrong)


def test_classes_that_are_not_in_the_file(coco):
    text = sentence(check_classes, built(coco, ('star', 'heart', 'tree')), NO_HEADS, True)
    assert 'x.json has the categories star, heart' in text and 'star, heart, tree' in text


def test_classes_are_in_the_order_of_the_file(coco, monkeypatch):
    """Otherwise all boxes get another name, and scores do not tell."""
    check_classes(built(coco, ('star', 'heart')), NO_HEADS, True)
    text = sentence(check_classes, built(coco, ('heart', 'star')), NO_HEADS, True)
    assert 'has the categories star, heart, and metainfo.classes has heart, star' in text
    assert built(coco, ('heart', 'star')).get_data_info(0)['instances'][0]['bbox_label'] == 0  # the star
    monkeypatch.setattr(CocoDataset, 'METAINFO', dict(classes=('heart', 'star')))  # an own file of COCO's names
    assert 'has the categories star, heart' in sentence(check_classes, built(coco, ('heart', 'star')), NO_HEADS, True)
    repeated = SimpleNamespace(dataset=built(coco, ('heart', 'star')))
    assert 'has the categories star, heart' in sentence(check_classes, repeated, NO_HEADS, True)
    remote = built(coco, ('heart', 'star'))
    for place in ('http://localhost/x.json', ['x.json']):
        remote.ann_file = place
        check_classes(remote, NO_HEADS, True)
    large = built(coco, ('heart', 'star'))
    os.truncate(large.ann_file, 10**8)  # as COCO's own, which takes long to read
    check_classes(large, NO_HEADS, True)


def test_of_a_file_the_categories_alone_are_parsed(coco):
    """Parsing all of COCO's training annotations takes many seconds and 2.5 GB in each process."""
    dataset, file = built(coco, ('heart', 'star')), Path(coco['data_root'], coco['ann_file'])
    text = file.read_text()
    file.write_text(text[text.index('"categories"') :].rstrip('}') + ', "annotations": [not JSON')
    assert 'has the categories star, heart, and' in sentence(check_classes, dataset, NO_HEADS, True)
    file.write_text('{"info": {"categories": [{"id": 1, "name": "sky"}]}, ' + text[1:])
    assert 'has the categories star, heart, and' in sentence(check_classes, dataset, NO_HEADS, True)


def test_the_order_is_that_of_labels(coco):
    """Objects365's data sets sort categories by their ids."""
    with changed(coco) as content:
        content['categories'].reverse()
    options = {key: value for key, value in coco.items() if key != 'type'}
    check_classes(Objects365V1Dataset(**options, metainfo=dict(classes=('star', 'heart'))), NO_HEADS, True)
    other = Objects365V1Dataset(**options, metainfo=dict(classes=('heart', 'star')))
    assert 'has the categories star, heart, and' in sentence(check_classes, other, NO_HEADS, True)


def test_classes_are_in_the_order_of_their_folders():
    dataset = SimpleNamespace(img_prefix='data/train', folder_to_idx=dict(heart=0, star=1))
    for classes in (('heart', 'star'), ('a heart', 'a star')):  # which may have names of their own
        dataset.metainfo = dict(classes=classes)
        check_classes(dataset, NO_HEADS, False)
    dataset.metainfo = dict(classes=('star', 'heart'))
    assert "data/train has folders in the order ['heart', 'star']" in sentence(check_classes, dataset, NO_HEADS, False)


def test_labels_are_those_of_the_training():
    """Without a folder for each class, or from a file with another order, they would be compared with other classes."""

    def having(*classes):
        return SimpleNamespace(metainfo=dict(classes=classes))

    trained = dict(classes=['crane', 'star', 'heart', 'crane'])  # of ImageNet's names, two occur twice
    for same in (having(*trained['classes']), having('crane', 'star'), having('moon', 'sun'), SimpleNamespace()):
        assert check_order(same, trained) is trained
    for before in (None, {}, 'by hand'):
        assert check_order(having('star'), before) == (before or dict(classes=('star',)))
    for wrong in (having('crane', 'heart'), having('moon', 'heart', 'star')):
        assert 'heart is class 1, and was class 2 in training: keep' in sentence(check_order, wrong, trained)


def test_videos_may_have_some_of_the_classes(coco):
    """mmdet's MOTChallengeDataset knows thirteen, its files and heads have one."""
    options = {key: value for key, value in coco.items() if key not in ('type', 'filter_cfg', 'pipeline')}
    parts = torch.nn.ModuleDict(dict(bbox_head=torch.nn.Identity(), reid=torch.nn.ModuleDict()))
    parts.bbox_head.num_classes = 2
    with MODELS.switch_scope_and_registry('mmdet'):
        identities = dict(type='LinearReIDHead', num_fcs=1, in_channels=4, fc_channels=4, out_channels=4)
        parts.reid['head'] = MODELS.build(
            dict(identities, num_classes=380, loss_cls=dict(type='mmpretrain.CrossEntropyLoss'))
        )
    for classes, says in {
        ('star', 'tree', 'heart'): None,
        ('heart', 'star'): 'has the categories star, heart, and',
        ('tree',): 'has the categories star, heart, and',
        ('star', 'tree'): 'model.bbox_head has num_classes=2; set 1',
    }.items():
        dataset = BaseVideoDataset(**options, metainfo=dict(classes=classes))
        if says:
            assert says in sentence(check_classes, dataset, parts, True)
        else:
            check_classes(dataset, parts, True)


@pytest.mark.parametrize('root', [None, '', 'data'])
def test_evaluation_of_several_data_sets(root):
    sets = [dict(type='CocoDataset', ann_file=name, data_root=root) for name in ('a.json', 'b.json')]
    metric = dict(type='CocoMetric', ann_file=str(Path(root or '', 'b.json')))
    cfg = Config(dict(val_dataloader=dict(dataset=dict(type='ConcatDataset', datasets=sets)), val_evaluator=metric))
    check_evaluators(cfg, 'val')
    cfg.val_evaluator.ann_file = 'c.json'
    assert 'a.json, ' in (text := sentence(check_evaluators, cfg, 'val')) and 'b.json: set' in text
    for one in datasets(cfg):
        del one['ann_file']  # so there is nothing to compare with
    check_evaluators(cfg, 'val')


@pytest.mark.parametrize('classes', [('star',), ('heart',)])
def test_scores_count_the_classes_of_all_data_sets(coco, classes):
    with changed(coco) as content:
        del content['annotations'][1]['area']  # of a heart
    other = {('star',): ('heart',), ('heart',): ('star',)}[classes]
    sets = [dict(coco, metainfo=dict(classes=one)) for one in (classes, other)]
    loader = dict(dataset=dict(type='ConcatDataset', datasets=sets))
    metric = dict(type='CocoMetric', ann_file=f'{coco["data_root"]}/x.json')
    cfg = Config(dict(val_dataloader=loader, val_evaluator=metric))
    assert 'annotations[1] of' in sentence(check_evaluators, cfg, 'val')


def test_captions_are_in_another_file():
    loader = dict(dataset=dict(type='COCOCaption', ann_file='captions.json'))
    metric = dict(type='COCOCaption', ann_file='captions_gt.json')
    check_evaluators(Config(dict(val_dataloader=loader, val_evaluator=metric)), 'val')


def test_a_word_for_a_tuple(coco):
    segmentation = SimpleNamespace(metainfo=dict(classes='star'))  # which knows of no file to compare with
    for dataset in (built(coco, ('star')), segmentation):
        assert "needs a comma behind it, as in ('star',)" in sentence(check_classes, dataset, NO_HEADS, True)


def test_fewer_colours_than_classes():
    """mmdet draws with them, after the test of all images."""
    metainfo = dict(classes=('star', 'heart'), palette=[(0, 0, 0)])
    text = sentence(check_classes, SimpleNamespace(metainfo=metainfo), NO_HEADS, True)
    assert 'metainfo.palette has 1 colours for 2 classes' in text
    for palette in ('random', None, [(0, 0, 0), (9, 9, 9)]):
        check_classes(SimpleNamespace(metainfo=dict(metainfo, palette=palette)), NO_HEADS, True)
    one_for_all = dict(classes=tuple('abcd'), palette=(0, 0, 0))
    check_classes(SimpleNamespace(metainfo=one_for_all), NO_HEADS, True)


@pytest.mark.parametrize('classes', [None, ('star', 'heart'), 'classes.txt'])
@pytest.mark.parametrize('key', ['iscrowd', 'area'])
def test_what_scores_of_coco_need(coco, key, classes):
    """pycocotools ends with a KeyError, after the first epoch."""
    coco['metainfo'] = dict(classes=classes) if classes else None
    metric = dict(type='CocoMetric', ann_file=f'{coco["data_root"]}/x.json')
    cfg = Config(dict(val_evaluator=metric, val_dataloader=dict(dataset=coco)))
    check_evaluators(cfg, 'val')
    with changed(coco) as content:
        del content['annotations'][1][key]
    assert 'annotations[1] of' in sentence(check_evaluators, cfg, 'val')


def test_ids_of_objects_that_scores_can_hold(coco, capsys):
    """pycocotools puts them into an array of numbers, which takes '12' and not 'a2'; 0 is nothing found."""
    metric = dict(type='CocoMetric', ann_file=f'{coco["data_root"]}/x.json')
    cfg = Config(dict(val_evaluator=metric, val_dataloader=dict(dataset=coco)))
    for number in ('0', '12', '-5', '1.5', 'a2'):
        with changed(coco) as content:
            content['annotations'][1]['id'] = number
        if number != 'a2':
            check_evaluators(cfg, 'val')
        assert ('has the id 0' in capsys.readouterr().out) == (number == '0')
    assert "has the id 'a2', and scores need numbers" in sentence(check_evaluators, cfg, 'val')


def test_annotations_that_scores_do_not_count(coco, capsys):
    """pycocotools writes the id of what a detection found, or 0."""
    with changed(coco) as content:
        content['annotations'][0].update(id=0, segmentation=[[1, 1, 9, 9]])
    metric = dict(type='CocoMetric', ann_file=f'{coco["data_root"]}/x.json', metric='bbox')
    check_evaluators(Config(dict(val_evaluator=metric, val_dataloader=dict(dataset=coco))), 'val')
    assert 'annotations[0]' in (said := capsys.readouterr().out) and 'has the id 0' in said
    for kinds in ('segm', ['bbox', 'segm']):  # whose scores end with a TypeError
        metric.update(metric=kinds)
        cfg = Config(dict(val_evaluator=metric, val_dataloader=dict(dataset=coco)))
        assert 'no polygon of 3' in sentence(check_evaluators, cfg, 'val')
    square = [1, 1, 9, 1, 9, 9, 1, 9]
    for wrong in ([[1, 1, 9, 9]], [], None, square):
        with changed(coco) as content:
            content['annotations'][0].update(segmentation=wrong)
            content['annotations'][1].update(segmentation=[square])
        assert 'annotations[0] of' in (text := sentence(check_evaluators, cfg, 'val')) and 'no polygon of 3' in text
        unscored = Config(dict(cfg, val_dataloader=dict(dataset=dict(coco, metainfo=dict(classes=('heart',))))))
        check_evaluators(unscored, 'val')
    run_lengths, triangle = dict(size=[64, 64], counts=[4096]), [[1, 1, 9, 1, 9, 9]]
    for fine in ([square, [1, 1, 9, 9]], triangle, [run_lengths], run_lengths):
        with changed(coco) as content:
            content['annotations'][0].update(segmentation=fine)  # which pycocotools takes
        check_evaluators(cfg, 'val')


def test_a_data_set_that_mmengine_cannot_build(coco, tmp_path):
    """Without a sample it says "need at least one array to concatenate"."""
    coco.update(metainfo=dict(classes=('tree', 'house')))
    loader = dict(batch_size=1, num_workers=0, dataset=coco, sampler=dict(type='DefaultSampler', shuffle=True))
    cfg = toy.config(tmp_path / 'run', train_dataloader=loader, default_scope='mmdet')

    def build():
        with explained('x.py'):
            launch.build(cfg, 'train')

    assert 'x.py cannot be run (a data set has no samples: check its files, metainfo.classes' in sentence(build)


@pytest.mark.parametrize(
    'part, key',
    [
        *(('annotations', key) for key in ('area', 'bbox', 'image_id', 'category_id')),
        *(('images', key) for key in ('height', 'width', 'file_name')),
    ],
)
def test_a_coco_file_that_lacks_something(coco, part, key, tmp_path):
    """mmdet says its name alone."""
    with changed(coco) as content:
        del content[part][0][key]
    loader = dict(batch_size=1, num_workers=0, dataset=coco, sampler=dict(type='DefaultSampler', shuffle=True))
    cfg = toy.config(tmp_path / 'run', train_dataloader=loader, default_scope='mmdet')

    def build():
        with explained('x.py'):
            launch.build(cfg, 'train')

    assert f"x.py cannot be run (KeyError: '{key}', which COCO files need)" in sentence(build)


@pytest.mark.parametrize('order', [1, -1])
def test_data_sets_combined_with_ignore_keys_may_have_fewer_classes(coco, order):
    """Those of the first ones; heads with too few are found all the same."""
    whole, part = built(coco, ('star', 'heart')), built(coco, ('star',))
    both = ConcatDataset([whole, part][::order], ignore_keys=['classes', 'palette'])
    check_classes(both, head('bbox_head', 2), True)
    assert 'has num_classes=1; set 2' in sentence(check_classes, both, head('bbox_head', 1), True)
    repeated = SimpleNamespace(dataset=both, metainfo=both.metainfo)
    check_classes(repeated, head('bbox_head', 2), True)
    same = ConcatDataset([whole, built(coco, ('star', 'heart'))], ignore_keys=['palette'])
    assert 'num_classes=80; set 2' in sentence(check_classes, same, head('bbox_head', 80), True)
    assert 'num_classes=2; set 1' in sentence(check_classes, part, head('bbox_head', 2), True)


def test_data_of_tests_may_come_later(coco, tmp_path):
    """Training builds no loop of the test."""
    loader = dict(batch_size=1, num_workers=0, dataset=coco, sampler=dict(type='DefaultSampler', shuffle=False))
    later = dict(loader, dataset=dict(coco, ann_file='later.json'))
    evaluator = dict(type='CocoMetric', ann_file=f'{coco["data_root"]}/later.json')
    coco['metainfo'] = dict(classes=('star', 'heart'))
    parts = dict(test_dataloader=later, test_cfg={}, test_evaluator=evaluator)
    cfg = toy.config(tmp_path / 'run', train_dataloader=loader, default_scope='mmdet', **parts)
    launch.build(Config(cfg), 'train', 'val')
