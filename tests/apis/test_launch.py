"""What is said when something is missing, before a model is built."""

import copy
import errno
import functools
import json
import os
import pickle
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import toy
from mmdet.datasets import CocoDataset, Objects365V1Dataset, VOCDataset
from mmdet.datasets.base_video_dataset import BaseVideoDataset
from mmengine.config import Config
from mmengine.dataset import ConcatDataset, RepeatDataset
from mmengine.model import BaseTTAModel, MMDistributedDataParallel, PretrainedInit
from mmengine.registry import DATASETS, MODELS, init_default_scope
from mmengine.runner import CheckpointLoader, Runner
from trainings import forget_runs, project

from mmsoft import SOFT
from mmsoft.apis import launch
from mmsoft.apis.checks import (
    check_classes,
    check_evaluators,
    check_mixing,
    check_objects,
    check_order,
    check_resumable,
)
from mmsoft.checkpoint.safe_loading import load_from_weights_only, use_safe_loading
from mmsoft.utils import UsageError
from mmsoft.utils.cli import command_line
from mmsoft.utils.config import datasets, dicts, explained, load_config, without_pretrained

ROOT = Path(__file__).parents[2]
RETINANET = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'
NO_HEADS = torch.nn.Identity()


def sentence(function, *args):
    with pytest.raises(UsageError) as info:
        function(*args)
    text = str(info.value)
    assert '\n' not in text and text.endswith('.')
    return text


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


def test_flexible_runner(small_shapes, tmp_path, monkeypatch):
    """mmengine's runner for DeepSpeed and FSDP, which builds its model when training begins."""
    monkeypatch.chdir(project(tmp_path, small_shapes))
    forget_runs()
    options = {'runner_type': 'FlexibleRunner', 'train_cfg.max_iters': 2, 'train_cfg.val_interval': 2}
    kept = {f'default_hooks.checkpoint.{name}': 1 for name in ('interval', 'max_keep_ckpts')}
    launch.train('segmenter.py', 'work', cfg_options={**options, **kept})
    assert [path.name for path in Path('work').glob('iter_*.pth')] == ['iter_2.pth']


def test_a_missing_file_is_one_sentence():
    with pytest.raises(UsageError, match=r'^nowhere/x.json is missing: .*--demo-data\.$'), explained('x.py'):
        Path('nowhere/x.json').read_text()


def test_the_class_of_mmengine_s_initializer_is_seen_too():
    init_cfg = dict(type=PretrainedInit, checkpoint='weights/some.pth')
    cfg = Config(dict(model=dict(backbone=dict(type='ResNet', init_cfg=init_cfg))))
    assert without_pretrained(cfg).model.backbone.init_cfg is None
    cfg.model.backbone.init_cfg = [init_cfg, dict(type='Normal', layer='Linear')]
    assert without_pretrained(cfg).model.backbone.init_cfg == [dict(type='Normal', layer='Linear')]
    assert len(cfg.model.backbone.init_cfg) == 2  # which is left alone


def test_a_training_from_scratch_loads_and_freezes_nothing():
    backbone = dict(type='ResNet', frozen_stages=1, norm_eval=True)
    cfg = Config(dict(model=dict(pretrained='torchvision://resnet50', backbone=backbone), load_from='x.pth'))
    scratch = without_pretrained(cfg)
    assert scratch.load_from is scratch.model.pretrained is None
    assert scratch.model.backbone == dict(backbone, frozen_stages=-1, norm_eval=False)


def test_data_sets_in_others_are_found_in_their_order():
    one, two, three, four = (dict(type='CocoDataset', ann_file=name) for name in 'abcd')
    twice = dict(type='RepeatDataset', times=2, dataset=dict(type='ClassBalancedDataset', dataset=two))
    whole = dict(type='ConcatDataset', datasets=(one, twice, three))
    cfg = Config(dict(train_dataloader=dict(dataset=whole), val_dataloader=None, test_dataloader=dict(dataset=four)))
    assert [*datasets(cfg)] == [one, two, three, four]
    assert len([*dicts(cfg.train_dataloader)]) == 7


@pytest.mark.parametrize('error', [OSError(errno.ENOSPC, 'No space'), FileNotFoundError('no file')], ids=str)
def test_errors_that_name_no_file(error):
    with pytest.raises((UsageError, OSError)) as info, explained('x.py'):
        raise error
    told = 'x.py cannot be run (FileNotFoundError: no file)' if error.errno is None else error
    assert str(info.value).startswith(str(told))


def test_an_error_after_ctrl_c_is_no_error_of_a_config():
    with pytest.raises(SyntaxError), explained('x.py'):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise SyntaxError('Failed to format the config file')  # noqa: B904


@pytest.mark.parametrize(
    'name, content, says',
    [
        ('absent.py', None, 'absent.py cannot be read as a config (FileNotFoundError'),
        ('notes.txt', 'hello', 'cannot be read'),
        ('broken.py', 'model = dict(', 'cannot be read'),
        ('undefined.py', 'model = dict(type=Nowhere)', 'Nowhere'),
        ('baseless.py', "_base_ = 'mmdet::no/such_config.py'", 'no/such_config.py'),
        ('scopeless.py', 'model = dict()', 'scopeless.py has default_scope'),
        ('foreign.py', "default_scope = 'mmocr'", "foreign.py has default_scope='mmocr'; set one of mmdet"),
    ],
)
def test_configs_that_cannot_be_read(tmp_path, name, content, says):
    path = tmp_path / name
    if content:
        path.write_text(content)
    assert says in sentence(load_config, str(path))


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


def test_a_runner_is_built_of_what_fits(tmp_path):
    """Data set and heads, and a checkpoint of another model, of which mmengine would only warn."""
    path, training = str(tmp_path / 'x.pth'), dict(meta=dict(iter=3), message_hub={}, optimizer={})

    def build(weights, **changes):
        torch.save(dict(state_dict=weights, **training), path)
        return launch.build(
            Config(toy.config(tmp_path / 'run', load_from=path, default_scope='mmengine', **changes)), 'train'
        )

    one, other = {'linear.weight': torch.ones(1, 1), 'linear.bias': torch.ones(1)}, dict(weight=torch.ones(3))
    use_safe_loading(False)
    build(one).train()
    assert CheckpointLoader._schemes[''] is load_from_weights_only
    assert 'x.pth does not fit' in sentence(build, other)
    part = {'linear.weight': torch.ones(1, 1)}
    build(part)
    assert 'x.pth does not fit' in sentence(lambda: build(part, resume=True))
    del training['optimizer']
    assert 'x.pth has no optimizer, so training cannot resume' in sentence(lambda: build(one, resume=True))
    loader = toy.config(tmp_path)['train_dataloader']
    test = dict(train_dataloader=None, train_cfg=None, optim_wrapper=None, test_dataloader=loader)
    cfg = toy.config(tmp_path / 'run', load_from=path, default_scope='mmengine', **test, test_cfg={}, test_evaluator=[])
    torch.save(dict(state_dict=part), path)
    assert 'x.pth does not fit' in sentence(launch.build, Config(cfg), 'test')


def test_a_model_begins_with_weights_of_its_own(tmp_path, monkeypatch):
    """Also by ``init_cfg`` of the whole model, which mmengine reads later and only warns about."""
    path, start = str(tmp_path / 'x.pth'), dict(type='Pretrained', checkpoint=str(tmp_path / 'x.pth'))
    torch.save(dict(weight=torch.ones(3)), path)

    def build(init_cfg, *loops, **changes):
        monkeypatch.setattr(toy.ToyModel, 'init_cfg', property(lambda _: init_cfg, lambda *_: None), raising=False)
        return launch.build(Config(toy.config(tmp_path / 'run', default_scope='mmengine', **changes)), *loops)

    assert 'x.pth does not fit' in sentence(lambda: build(start, 'train'))
    assert 'x.pth does not fit' in sentence(lambda: build([dict(type='Kaiming', layer='Conv2d'), start], 'train'))
    for other in (
        None,
        dict(type='Kaiming'),
        dict(start, prefix='a.'),
        dict(start, checkpoint='torchvision://resnet50'),
    ):
        build(other, 'train')
    loader = toy.config(tmp_path)['train_dataloader']
    test = dict(train_dataloader=None, train_cfg=None, optim_wrapper=None, test_dataloader=loader)
    build(start, 'test', **test, test_cfg={}, test_evaluator=[])  # which never reads it
    fits = dict(state_dict={'linear.weight': torch.ones(1, 1)})
    torch.save(fits, path)
    build(start, 'train')
    torch.save(dict(weight=torch.ones(3)), path)
    torch.save(fits, tmp_path / 'last.pth')
    build(start, 'train', load_from=str(tmp_path / 'last.pth'))  # which is loaded last


@DATASETS.register_module()
class OtherToyData(toy.ToyData):
    metainfo = dict(classes=('letter', 'number'))


def test_a_runner_is_built_of_data_with_the_same_labels(tmp_path, monkeypatch):
    """As training and validation data, and as the data of the checkpoint, unless training begins with its weights."""
    path, loader = str(tmp_path / 'x.pth'), toy.config(tmp_path)['train_dataloader']
    other = dict(loader, dataset=dict(type='OtherToyData'))
    says = 'number is class 1, and was class 0 in training'

    def build(*loops, classes=('number',), **changes):
        weights = {'linear.weight': torch.ones(1, 1), 'linear.bias': torch.ones(1)}
        meta = dict(iter=3, dataset_meta=dict(classes=classes))
        torch.save(dict(state_dict=weights, meta=meta, message_hub={}, optimizer={}), path)
        return launch.build(Config(toy.config(tmp_path / 'run', default_scope='mmengine', **changes)), *loops)

    val = dict(val_dataloader=other, val_cfg={}, val_evaluator=[])
    assert says in sentence(lambda: build('train', 'val', **val))
    build('train', load_from=path, classes=['x', 'number'])
    moved = 'number is class 0, and was class 1 in training'
    assert moved in sentence(lambda: build('train', load_from=path, resume=True, classes=['x', 'number']))
    tests = dict(train_dataloader=None, train_cfg=None, optim_wrapper=None, test_cfg={}, test_evaluator=[])
    build('test', load_from=path, test_dataloader=loader, **tests)
    assert says in sentence(lambda: build('test', load_from=path, test_dataloader=other, **tests))
    monkeypatch.setattr(toy.ToyModel, 'language_model', None, raising=False)  # which reads the names of any classes
    build('test', load_from=path, test_dataloader=other, **tests)


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


def test_before_training_begins(tmp_path, monkeypatch):
    """Shapes are drawn, objects are looked for, and the optimizer is built."""
    done = []
    monkeypatch.setattr(launch, 'on_shapes', lambda cfg: True)
    monkeypatch.setattr(launch, 'ensure_shapes', lambda: done.append('shapes'))
    monkeypatch.setattr(launch, 'check_objects', lambda dataset: done.append(dataset.metainfo['classes']))
    wrong = dict(optimizer=dict(type='SGD', speed=1))
    with pytest.raises(TypeError, match='speed'):
        launch.build(Config(toy.config(tmp_path, default_scope='mmengine', optim_wrapper=wrong)), 'train')
    assert done == ['shapes', ('number',)]


def test_heads_of_detectors_alone_have_as_many_classes_as_their_data(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(launch, 'check_classes', lambda dataset, model, exact: asked.append(exact))
    for scope in ('mmdet', 'mmseg', 'mmpretrain'):
        launch.build(Config(toy.config(tmp_path / scope, default_scope=scope, experiment_name=scope)), 'train')
    assert asked == [True, False, False]


def test_there_is_something_to_test(tmp_path):
    cfg = Config(toy.config(tmp_path, default_scope='mmengine'))
    assert 'nothing to test: set test_dataloader' in sentence(launch.build, cfg, 'test')


def test_scores_of_more_classes_than_there_are():
    metric = dict(type='Accuracy', topk=(1, 5))
    cfg = Config(dict(model=dict(head=dict(num_classes=3)), val_evaluator=metric))
    assert 'val_evaluator.topk is (1, 5), and there are 3 classes' in sentence(check_evaluators, cfg, 'val')
    check_evaluators(Config(dict(cfg, val_evaluator=dict(metric, topk=(1, 3)))), 'val')
    check_evaluators(Config(dict(cfg, val_evaluator=[dict(type='Accuracy')])), 'val')
    check_evaluators(Config(dict(cfg, val_evaluator=dict(type='RetrievalRecall', topk=5))), 'val')  # of images
    check_evaluators(Config(dict(cfg, model=dict(head=[dict(num_classes=3)]))), 'val')


def test_training_resumes_from_checkpoints_of_trainings(tmp_path):
    path, training = str(tmp_path / 'x.pth'), dict(state_dict=dict(a=torch.ones(1)), meta=dict(iter=3), optimizer={})
    torch.save(training, path)
    assert 'x.pth has no message_hub' in sentence(check_resumable, path)
    torch.save(dict(training, message_hub={}), path)
    check_resumable(path)
    for part in ('meta', 'optimizer'):
        torch.save({key: value for key, value in dict(training, message_hub={}).items() if key != part}, path)
        assert f'x.pth has no {part}' in sentence(check_resumable, path)


def test_a_closed_pipe_is_no_error_of_a_config():
    """As in ``tools/predict.py … | head``."""

    def run():
        with explained('x.py'):
            raise BrokenPipeError(errno.EPIPE, 'Broken pipe')

    with pytest.raises(BrokenPipeError):
        command_line(run)


class Views(BaseTTAModel):
    """What a config names as its tta_model."""

    def merge_preds(self, samples):
        return samples


@pytest.fixture
def hooks():
    """Hooks that runners of ``asked`` get besides those of their configs."""
    return []


@pytest.fixture
def asked(hooks, monkeypatch):
    """The configs of all runners that are asked for; they only look at a noise image."""
    torch.manual_seed(0)
    model = SOFT(dict(embed_dims=[16], num_heads=[1], depths=[1]), out_indices=0).eval()
    model.test_step = model.forward  # as models of hosts
    configs, image = [], torch.rand(1, 3, 64, 64)
    runner = SimpleNamespace(model=model, train=lambda: None, test=lambda: {'max': model(image)[0].max().item()})
    runner.register_hook = hooks.append

    def build(cfg, *loops):
        init_default_scope(cfg.default_scope)
        configs.append(cfg)
        return runner

    monkeypatch.setitem(MODELS.module_dict, 'Views', Views)
    monkeypatch.setattr(launch, 'build', build)
    return configs


def test_options_of_training_and_testing_change_the_config(asked, hooks):
    detector = str(ROOT / 'configs/retinanet_soft_nano_shapes.py')
    launch.train(detector, auto_scale_lr=True, cfg_options={'auto_scale_lr.base_batch_size': 16})
    launch.test(detector, 'x.pth', show=True, wait_time=0.5)
    launch.test(detector, 'x.pth', tta=True, cfg_options=dict(tta_model=dict(type='Views'), tta_pipeline=[1]))
    launch.test(detector, 'x.pth', cfg_options=dict(resume=True, load_from='y.pth', work_dir='mine'))
    scaled, shown, views, own = asked
    assert (own.load_from, own.resume, own.work_dir) == ('x.pth', False, 'mine')
    assert shown.work_dir == './work_dirs/retinanet_soft_nano_shapes'
    assert scaled.auto_scale_lr.enable is True
    shows = shown.default_hooks.visualization
    assert (shows.show, shows.wait_time, shows.draw) == (True, 0.5, True)
    assert [hook.tta_cfg.type for hook in hooks] == ['Views']
    assert views.model == shown.model and views.custom_hooks == shown.custom_hooks
    assert views.test_dataloader.dataset.pipeline == [1]


def test_a_training_continues_as_config_and_options_say(asked, monkeypatch):
    detector, own = str(ROOT / 'configs/retinanet_soft_nano_shapes.py'), dict(work_dir='mine')
    monkeypatch.setattr(launch, 'latest_checkpoint', lambda folder: f'{folder}/last.pth')
    launch.train(detector, resume='auto', from_scratch=True, cfg_options=own, launcher='pytorch')
    launch.train(detector, cfg_options=dict(load_from='y.pth', resume=True, launcher='mpi'))
    found = [(cfg.load_from, cfg.resume, cfg.launcher) for cfg in asked]
    assert found == [('mine/last.pth', True, 'pytorch'), ('y.pth', True, 'none')]


def test_several_versions_of_all_images(asked):
    detector, sets = str(ROOT / 'configs/retinanet_soft_nano_shapes.py'), [dict(type='CocoDataset') for _ in range(2)]
    both = dict(type='ConcatDataset', datasets=sets, _delete_=True)
    options = {'tta_model': dict(type='Views'), 'tta_pipeline': [1], 'test_dataloader.dataset': both}
    launch.test(detector, 'x.pth', tta=True, cfg_options=options)
    assert [one.pipeline for one in asked[0].test_dataloader.dataset.datasets] == [[1], [1]]
    for key in ('tta_model', 'tta_pipeline'):
        with pytest.raises(UsageError, match='--tta needs tta_model and tta_pipeline'):
            launch.test(detector, 'x.pth', tta=True, cfg_options={key: options[key]})


@pytest.fixture
def one_process(tmp_path):
    """A group of processes with this one alone."""
    torch.distributed.init_process_group('gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_versions_of_images_are_of_the_model_itself(asked, hooks, one_process, monkeypatch):
    """Of several processes, too: mmseg's SegTTAModel reads attributes that DistributedDataParallel hides."""
    detector, build = str(ROOT / 'configs/retinanet_soft_nano_shapes.py'), launch.build

    def distributed(cfg, *loops):
        runner = build(cfg, *loops)
        runner.model = MMDistributedDataParallel(module=runner.model)
        return runner

    monkeypatch.setattr(launch, 'build', distributed)
    launch.test(detector, 'x.pth')
    runner = build(asked[0])
    assert type(runner.model) is MMDistributedDataParallel
    runner.model = runner.model.module
    launch.test(detector, 'x.pth', tta=True, cfg_options=dict(tta_model=dict(type='Views'), tta_pipeline=[1]))
    hooks[0].before_test(runner)
    assert type(runner.model) is Views and type(runner.model.module) is SOFT


@pytest.mark.parametrize('wrong', [dict(type='NoViews'), dict(type='Views', views=2)])
def test_a_model_for_versions_may_be_wrong(wrong, asked):
    detector, options = str(ROOT / 'configs/retinanet_soft_nano_shapes.py'), dict(tta_model=wrong, tta_pipeline=[1])
    said = sentence(functools.partial(launch.test, detector, 'x.pth', tta=True, cfg_options=options))
    assert 'NoViews' in said or "argument 'views'" in said


def test_versions_of_images_are_prepared_as_the_model_says(asked, hooks):
    """mmengine's models for --tta prefer what the config has beside the model; all others do not."""
    beside = dict(type='SegDataPreProcessor', mean=[0.0] * 3, std=[1.0] * 3)
    options = dict(data_preprocessor=beside, tta_model=dict(type='SegTTAModel'), tta_pipeline=[1])
    launch.test(f'{ROOT}/configs/upernet_soft_nano_shapes.py', 'x.pth', tta=True, cfg_options=options)
    options.update(data_preprocessor=dict(mean=beside['mean']), tta_model=dict(type='AverageClsScoreTTA'))
    launch.test(f'{ROOT}/configs/soft_tiny_in1k.py', 'x.pth', tta=True, cfg_options=options)
    assert len(hooks) == 2
    for cfg, hook, own in zip(asked, hooks, (asked[0].model.data_preprocessor.mean, beside['mean'])):
        init_default_scope(cfg.default_scope)
        runner = SimpleNamespace(_data_preprocessor=None)
        cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)  # as mmengine's runner
        runner.model = Runner.build_model(runner, cfg.model)
        hook.before_test(runner)
        assert type(runner.model).__name__ == cfg.tta_model.type
        assert runner.model.module.data_preprocessor.mean.flatten().tolist() == pytest.approx(own)
    assert asked[0].model.data_preprocessor.mean != beside['mean']


def test_averaged_weights_are_tested_in_several_versions(small_shapes, tmp_path, monkeypatch):
    """mmpretrain's EMAHook loads them by the names of the model, and would test random weights in one around it."""
    monkeypatch.chdir(project(tmp_path, small_shapes))
    forget_runs()
    launch.train('classifier.py', 'work')
    views = dict(type='TestTimeAug', transforms=[[dict(type='PackInputs')]])
    options = dict(tta_model=dict(type='AverageClsScoreTTA'), tta_pipeline=[dict(type='LoadImageFromFile'), views])
    for tta in (False, True):
        forget_runs()
        launch.test('classifier.py', 'work/epoch_2.pth', 'work', out=f'{tta}.pkl', tta=tta, cfg_options=options)
    weights = torch.load('work/epoch_2.pth', weights_only=False)['state_dict']
    torch.save(dict(state_dict={f'module.{name}': one for name, one in weights.items()}), 'wrapped.pth')
    forget_runs()
    launch.test('classifier.py', 'wrapped.pth', 'work', out='wrapped.pkl')
    plain, *others = (pickle.loads(Path(f'{one}.pkl').read_bytes()) for one in (False, True, 'wrapped'))
    for versions in others:
        assert len(plain) == len(versions) == 8
        for one, other in zip(plain, versions):
            torch.testing.assert_close(one['pred_score'], other['pred_score'])


@pytest.mark.parametrize('shown', [dict(show=True), dict(show_dir='new')], ids=str)
def test_classifiers_are_not_drawn_in_several_versions(shown, asked):
    """mmpretrain would take the versions for the images of a batch."""
    options = dict(tta_model=dict(type='Views'), tta_pipeline=[1])
    for name in ('upernet_soft_nano_shapes', 'soft_tiny_in1k'):
        test = functools.partial(launch.test, f'{ROOT}/configs/{name}.py', 'x.pth', cfg_options=options, **shown)
        test()
        with (
            nullcontext() if name.startswith('upernet') else pytest.raises(UsageError, match='cannot draw with --tta;')
        ):
            test(tta=True)
    assert len(asked) == 3


def test_loaders_of_classifiers_are_mmpretrains_unless_the_config_says_how():
    name, own = f'{ROOT}/configs/soft_tiny_in1k.py', dict(collate_fn=dict(type='mine'), pin_memory='mine')
    loaders = ('val_dataloader', 'val_cfg', 'val_evaluator')
    options = {**dict.fromkeys(loaders), **{f'train_dataloader.{key}': value for key, value in own.items()}}
    cfg = launch._prepare(name, None, options, 'none', False)
    assert {key: cfg.train_dataloader[key] for key in own} == own and cfg.val_dataloader is None
    assert cfg.test_dataloader.collate_fn.type == 'default_collate'


@pytest.mark.parametrize(
    'name, option', [('upernet_soft_small_160k', 'train_cfg.max_iters'), ('soft_tiny_in1k', 'train_cfg.max_epochs')]
)
def test_schedules_of_demo_data_are_as_long_as_asked_for(name, option):
    whole, short = (
        launch._prepare(f'{ROOT}/configs/{name}.py', None, {option: count}, 'none', True) for count in (40, 20)
    )
    assert whole.param_scheduler[-1].end == 2 * short.param_scheduler[-1].end


def test_attention_is_set_to_zero_on_request(asked):
    detector = str(ROOT / 'configs/retinanet_soft_nano_shapes.py')
    whole, without, again = (launch.test(detector, 'x.pth', without_attention=stages) for stages in (None, [], None))
    assert whole == again and abs(whole['max'] - without['max']) > 1e-4
    assert launch.test(detector, 'x.pth', without_attention=[0]) == without
    with pytest.raises(UsageError, match='There is no attention of mmsoft to set to zero'):
        launch.test(detector, 'x.pth', without_attention=[3])


@pytest.mark.parametrize(
    'scope, folder', [('mmdet', '{}/images'), ('mmdet', '../../images'), ('mmseg', 'images'), ('mmpretrain', 'images')]
)
def test_drawings_replace_nothing(scope, folder, tmp_path, monkeypatch):
    """They have the names of images."""
    monkeypatch.chdir(tmp_path)
    Path('images').mkdir()
    folder, hooks = folder.format(tmp_path), dict(visualization={})
    cfg = Config(dict(default_scope=scope, default_hooks=hooks, visualizer={}, work_dir=str(tmp_path / 'work')))
    launch.draw_predictions(cfg, False, folder, 2)
    Path('images/0.jpg').touch()
    assert 'images is not empty' in sentence(launch.draw_predictions, cfg, False, folder, 2)
    if scope == 'mmdet':  # which puts a relative one below a new folder
        launch.draw_predictions(cfg, False, 'images', 2)


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg', 'mmpretrain'])
def test_windows_are_shown_for_some_seconds(scope):
    cfg = Config(dict(default_scope=scope, default_hooks=dict(visualization={}), visualizer={}))
    launch.draw_predictions(cfg, True, None, 0.5)
    assert (cfg.default_hooks.visualization.show, cfg.default_hooks.visualization.wait_time) == (True, 0.5)


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg', 'mmpretrain'])
@pytest.mark.parametrize('kind', [dict, list, tuple])
def test_predictions_are_saved_beside_all_scores(scope, kind, tmp_path):
    given = [dict(type=name) for name in ('Recall', 'Precision')[: 1 if kind is dict else 2]]
    cfg = Config(dict(default_scope=scope, test_evaluator=given[0] if kind is dict else kind(given)))
    out, dump = str(tmp_path / 'new/x.pickle'), 'DumpDetResults' if scope == 'mmdet' else 'DumpResults'  # masks by RLE
    if scope == 'mmseg':
        maps = copy.deepcopy(cfg)
        launch.save_predictions(maps, str(tmp_path / 'maps'))
        kept = dict(output_dir=str(tmp_path / 'maps'), keep_results=True)  # which CityscapesMetric would remove
        assert maps.test_evaluator == [dict(one, **kept) for one in given]
    launch.save_predictions(cfg, out)
    assert cfg.test_evaluator == [*given, dict(type=dump, out_file_path=out)] and Path(out).parent.is_dir()


@pytest.mark.parametrize('options', [{}, dict(type='Evaluator'), dict(type='mmengine.Evaluator')])
@pytest.mark.parametrize('kind', [dict, list])
def test_predictions_are_saved_beside_scores_of_an_evaluator(options, kind, tmp_path):
    given = dict(type='Accuracy')
    cfg = Config(
        dict(default_scope='mmpretrain', test_evaluator=dict(options, metrics=given if kind is dict else [given]))
    )
    launch.save_predictions(cfg, str(tmp_path / 'x.pkl'))
    built = Runner.build_evaluator(SimpleNamespace(), [dict(one, _scope_='mmpretrain') for one in cfg.test_evaluator])
    assert [type(one).__name__ for one in built.metrics] == ['Accuracy', 'DumpResults']
    several = dict(type='MultiDatasetsEvaluator', metrics=[given])  # which would ignore what stands beside its metrics
    cfg.test_evaluator = several
    launch.save_predictions(cfg, str(tmp_path / 'x.pkl'))
    assert cfg.test_evaluator[0] == several


@pytest.mark.parametrize(
    'given, says',
    [
        ('', 'absent.pth is not a file'),
        ('init_cfg=None', 'absent.pth is not a file'),
        ("init_cfg=dict(type='TruncNormal', layer='Linear')", 'absent.pth is not a file'),
        ("init_cfg=[dict(type='Normal', layer='Linear')]", 'absent.pth is not a file'),
        ("init_cfg=[dict(type='Normal', layer='Linear'), dict(type='Pretrained')]", 'absent.pth is not a file'),
    ],
)
def test_an_initial_checkpoint_needs_no_init_cfg(given, says, small_shapes, tmp_path, monkeypatch):
    monkeypatch.chdir(project(tmp_path, small_shapes))
    config = tmp_path / 'config.py'
    config.write_text(f"_base_ = '{ROOT}/configs/retinanet_soft_nano_shapes.py'\nmodel = dict(backbone=dict({given}))")
    options = {'model.backbone.init_cfg.checkpoint': str(tmp_path / 'absent.pth'), 'work_dir': str(tmp_path)}
    options['model.backbone.init_cfg.prefix'] = 'backbone.'
    with pytest.raises(UsageError, match=says):
        launch.train(str(config), demo_data=True, cfg_options=options)


@pytest.mark.parametrize('kind', ['Pretrained', 'PretrainedInit', 'mmengine.model.PretrainedInit'])
def test_an_initial_checkpoint_keeps_the_prefix(kind, small_shapes, tmp_path, monkeypatch):
    monkeypatch.chdir(project(tmp_path, small_shapes))
    config, option = tmp_path / 'config.py', 'model.backbone.init_cfg.checkpoint'
    given = dict(type=kind, checkpoint='old.pth', prefix='student.')
    base = f'{ROOT}/configs/retinanet_soft_nano_shapes.py'
    config.write_text(f'_base_ = {base!r}\nmodel = dict(backbone=dict(init_cfg={given}))')
    torch.save({'teacher.weight': torch.zeros(1)}, tmp_path / 'new.pth')
    with pytest.raises(UsageError, match='new.pth has no names that start with student'):
        launch.train(str(config), str(tmp_path), cfg_options={option: str(tmp_path / 'new.pth')}, demo_data=True)


def test_initialisation_may_be_a_list(small_shapes, tmp_path, monkeypatch):
    monkeypatch.chdir(project(tmp_path, small_shapes))
    config, base = tmp_path / 'config.py', f'{ROOT}/configs/retinanet_soft_nano_shapes.py'
    config.write_text(f'_base_ = {base!r}\nmodel = dict(backbone=dict(init_cfg=[dict(type="Normal", layer="Linear")]))')
    assert launch._prepare(str(config), None, None, 'none', False).model.backbone.init_cfg[0].type == 'Normal'


def test_data_of_tests_may_come_later(coco, tmp_path):
    """Training builds no loop of the test."""
    loader = dict(batch_size=1, num_workers=0, dataset=coco, sampler=dict(type='DefaultSampler', shuffle=False))
    later = dict(loader, dataset=dict(coco, ann_file='later.json'))
    evaluator = dict(type='CocoMetric', ann_file=f'{coco["data_root"]}/later.json')
    coco['metainfo'] = dict(classes=('star', 'heart'))
    parts = dict(test_dataloader=later, test_cfg={}, test_evaluator=evaluator)
    cfg = toy.config(tmp_path / 'run', train_dataloader=loader, default_scope='mmdet', **parts)
    launch.build(Config(cfg), 'train', 'val')


def test_errors_of_a_config_are_sentences(tmp_path):
    with pytest.raises(UsageError) as info, explained('x.py'):
        launch.build(toy.config(tmp_path, model=dict(type='Nonsense')), 'train')
    assert str(info.value).startswith('x.py cannot be run (KeyError: ') and '--traceback' in str(info.value)
    assert isinstance(info.value.__cause__, KeyError)
    with pytest.raises(UsageError) as info, explained('x.py'):
        raise SyntaxError('check the syntax of ' + 9999 * 'x')  # mmengine's, with the whole config behind it
    assert 'SyntaxError: check the syntax of xxx' in str(info.value) and len(str(info.value)) < 1100
