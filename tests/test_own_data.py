"""The template of docs/own_data.md trains on data under other names once its first part is changed; its segmenter, too."""

import argparse
import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config, DictAction
from trainings import CONFIGS, forget_runs, project

from mmsoft.apis import launch, train
from mmsoft.apis.checks import check_evaluators
from mmsoft.utils.config import datasets, dicts

ROOT = Path(__file__).parent.parent
TEMPLATE = ROOT / 'configs/templates/own_detection.py'


def write_data(root, classes):
    """Squares of a colour for each class, in two splits."""
    rng = np.random.default_rng(0)
    for split in ('learn', 'check'):
        folder = root / f'pictures/{split}'
        folder.mkdir(parents=True)
        images, annotations = [], []
        for number in range(1, 3):
            image = np.full((64, 96, 3), 128, np.uint8)
            for label in range(len(classes)):
                left, top, side = (int(one) for one in rng.integers((0, 0, 12), (70, 40, 24)))
                image[top : top + side, left : left + side] = 40 * label
                one = dict(id=len(annotations) + 1, image_id=number, category_id=label + 1, iscrowd=0, area=side**2)
                annotations.append(dict(one, bbox=[left, top, side, side]))
            cv2.imwrite(str(folder / f'{number}.png'), image)
            images.append(dict(id=number, file_name=f'{number}.png', width=96, height=64))
        categories = [dict(id=label + 1, name=name) for label, name in enumerate(classes)]
        (root / f'{split}.json').write_text(
            json.dumps(dict(images=images, annotations=annotations, categories=categories))
        )


def edited(folder, classes, **others):
    """The template as a user would change it, in another folder than the repository's."""
    changes = dict(
        root=f"'{folder}/animals'",
        classes=repr(classes),
        palette=repr([(9, 9, 9)] * len(classes)),
        **{'train_annotations, train_images': "'learn.json', 'pictures/learn/'"},
        **{'val_annotations, val_images': "'check.json', 'pictures/check/'"},
        scale='(96, 64)',
        smallest='12',
        max_per_img='7',
        epochs='1',
    )
    changes.update(others)
    text = TEMPLATE.read_text().replace("'../retinanet", f"'{ROOT}/configs/retinanet")
    for name, value in changes.items():
        text, count = re.subn(rf'^{name} = [^#\n]*', f'{name} = {value}  ', text, flags=re.M)
        assert count == 1, name
    path = folder / f'mine{len(others)}.py'
    path.write_text(text)
    return path


@pytest.mark.parametrize('classes', [('hen', 'fox', 'owl'), ('hen',)])
def test_the_template_leaves_nothing_of_the_base_data(tmp_path, classes):
    path = edited(tmp_path, classes)
    cfg = Config.fromfile(path)
    for dataset in datasets(cfg):
        assert dataset.data_root == f'{tmp_path}/animals' and tuple(dataset.metainfo.classes) == classes
    for name in ('val_evaluator', 'test_evaluator'):
        assert cfg[name].ann_file == f'{tmp_path}/animals/check.json'
    with_slash = Config.fromfile(edited(tmp_path, classes, root=f"'{tmp_path}/animals/'"))
    check_evaluators(with_slash, 'val', 'test')
    assert [one['num_classes'] for one in dicts(cfg.model) if 'num_classes' in one] == [len(classes)]
    assert cfg.model.test_cfg.max_per_img == cfg.tta_model.tta_cfg.max_per_img == 7
    views = [tuple(step.scale) for step in cfg.tta_pipeline[1].transforms[0]]
    assert views == [(48, 32), (96, 64), (144, 96)]
    text = path.read_text()
    assert (
        '1333' not in text[text.index('# The rest') :]
        and 'data/coco'
        not in Config({key: cfg[key] for key in cfg if key.endswith(('dataloader', 'evaluator'))}).pretty_text
    )


def weights(path):
    """The learned weights in a checkpoint; the statistics of norms change even with a learning rate of 0."""
    state_dict = torch.load(path, weights_only=True)['state_dict']
    return {name: value for name, value in state_dict.items() if not re.search('running_|num_batches', name)}


def test_the_template_trains_and_starts_from_a_detector(tmp_path):
    forget_runs()
    classes = ('hen', 'fox', 'owl')
    write_data(tmp_path / 'animals', classes)
    small = dict(embed_dims=[32, 64, 96, 128], num_heads=[1, 2, 3, 4], depths=[1] * 4)
    options = {
        'model.backbone.arch': dict(_delete_=True, **small),
        'model.neck.in_channels': small['embed_dims'],
        **{f'{split}_dataloader.num_workers': 0 for split in ('train', 'val')},
        **{f'{split}_dataloader.persistent_workers': False for split in ('train', 'val')},
    }
    train(str(edited(tmp_path, classes)), str(tmp_path / 'work'), cfg_options=options, from_scratch=True)
    log = next((tmp_path / 'work').rglob('scalars.json')).read_text().splitlines()
    assert np.isfinite([json.loads(line)['loss'] for line in log if '"loss"' in line]).all()
    (checkpoint,) = (tmp_path / 'work').glob('epoch_1.pth')
    more = {'model.test_cfg.score_thr': 0.0, 'test_dataloader.num_workers': 0}
    more['test_dataloader.persistent_workers'] = False
    path, folder = str(edited(tmp_path, classes)), str(tmp_path / 'tta')
    scores = launch.test(path, str(checkpoint), folder, tta=True, cfg_options={**options, **more})
    assert 0 <= scores['coco/bbox_mAP'] <= 1

    warm = edited(tmp_path, classes, warm_start=repr(str(checkpoint)), **{'batch_size, learning_rate': '2, 0.0'})
    train(str(warm), str(tmp_path / 'warm'), cfg_options=options)  # without ImageNet weights
    before, after = weights(checkpoint), weights(tmp_path / 'warm/epoch_1.pth')
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize('base', ['atss_soft_small_3x', 'mask_rcnn_soft_small_1x', 'gfl_soft_small_3x'])
def test_the_template_is_for_other_detectors_too(base, tmp_path):
    path = edited(tmp_path, ('hen',))
    path.write_text(path.read_text().replace('/retinanet_soft_tiny_1x.py', f'/{base}.py'))
    cfg = Config.fromfile(path)
    assert cfg.tta_model.type == 'DetTTAModel' and cfg.tta_pipeline[1].transforms[0][1].scale == (96, 64)


def config_of(section):
    """The config in a section of the page."""
    return re.search(rf'^## {section}.*?```python\n(.*?)```', (ROOT / 'docs/own_data.md').read_text(), re.S | re.M)[1]


@pytest.mark.parametrize('zero_is_unlabelled', [False, True])
def test_the_segmenter_of_the_page_trains(tmp_path, zero_is_unlabelled):
    forget_runs()
    rng = np.random.default_rng(0)
    for split in ('train', 'val'):
        for kind in ('images', 'labels'):
            (tmp_path / f'fields/{kind}/{split}').mkdir(parents=True)
        for number in range(2):
            label = rng.integers(3, size=(8, 12), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
            cv2.imwrite(str(tmp_path / f'fields/images/{split}/{number}.jpg'), np.stack([label * 60] * 3, -1))
            cv2.imwrite(str(tmp_path / f'fields/labels/{split}/{number}.png'), label + zero_is_unlabelled)
    text = config_of('Segmentation')
    for old, new in (
        ("'data/fields", f"'{tmp_path}/fields"),
        ("'configs/", f"'{ROOT}/configs/"),
        ('zero_label=False', f'zero_label={zero_is_unlabelled}'),
    ):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / 'fields.py').write_text(text)
    small = dict(embed_dims=[32, 64, 96, 128], num_heads=[1, 2, 3, 4], depths=[1] * 4)
    options = {
        'model.backbone.arch': dict(_delete_=True, **small),
        'model.decode_head.in_channels': small['embed_dims'],
        'model.decode_head.channels': 16,
        'model.auxiliary_head.in_channels': 96,
        'model.data_preprocessor.size': (64, 64),
        'train_dataloader.dataset.pipeline.2.scale': (96, 64),
        'train_dataloader.dataset.pipeline.3.crop_size': (64, 64),
        'val_dataloader.dataset.pipeline.1.scale': (96, 64),
        'train_cfg.max_iters': 2,
        'default_hooks.logger.interval': 1,
        **{f'{split}_dataloader.num_workers': 0 for split in ('train', 'val')},
        **{f'{split}_dataloader.persistent_workers': False for split in ('train', 'val')},
    }
    train(str(tmp_path / 'fields.py'), str(tmp_path / 'work'), cfg_options=options, from_scratch=True)
    log = [json.loads(line) for line in next((tmp_path / 'work').rglob('scalars.json')).read_text().splitlines()]
    assert np.isfinite([line['loss'] for line in log if 'loss' in line]).all() and 'mIoU' in log[-1]


def test_the_classifier_of_the_page_learns(tmp_path):
    forget_runs()
    for split in ('train', 'val'):
        for label, name in enumerate(('bee', 'wasp')):
            (tmp_path / f'insects/{split}/{name}').mkdir(parents=True)
            for number in range(8):
                image = np.full((40, 40, 3), (60 + number) * (1 + 2 * label), np.uint8)
                cv2.imwrite(str(tmp_path / f'insects/{split}/{name}/{number}.png'), image)
    text = config_of('Classification')
    for old, new in (
        ("'data/insects", f"'{tmp_path}/insects"),
        ("'configs/", f"'{ROOT}/configs/"),
        ("'wasp'), 30", "'wasp'), 6"),
    ):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / 'insects.py').write_text(text)
    crop = dict(type='RandomResizedCrop', scale=32)
    options = {
        'model.backbone.arch': dict(_delete_=True, embed_dims=[32] * 4, num_heads=[1] * 4, depths=[1] * 4),
        'model.head.in_channels': 32,
        'train_dataloader.batch_size': 4,
        'train_dataloader.dataset.pipeline': [dict(type='LoadImageFromFile'), crop, dict(type='PackInputs')],
        'val_dataloader.dataset.pipeline.1.scale': 36,
        'val_dataloader.dataset.pipeline.2.crop_size': 32,
        **{f'{split}_dataloader.num_workers': 0 for split in ('train', 'val')},
        **{f'{split}_dataloader.persistent_workers': False for split in ('train', 'val')},
        'optim_wrapper.optimizer.lr': 1e-3,
        'randomness.seed': 0,
    }
    train(str(tmp_path / 'insects.py'), str(tmp_path / 'work'), cfg_options=options, from_scratch=True)
    log = [json.loads(line) for line in next((tmp_path / 'work').rglob('scalars.json')).read_text().splitlines()]
    assert [line['accuracy/top1'] for line in log if 'accuracy/top1' in line][-1] == 100
    assert list((tmp_path / 'work').glob('best_accuracy_top1_*.pth'))


@pytest.mark.parametrize('kind', CONFIGS)
def test_the_short_training_of_the_page_runs(kind, small_shapes, tmp_path, monkeypatch):
    monkeypatch.chdir(project(tmp_path, small_shapes))
    forget_runs()
    options, instead = (
        re.search(rf'`[^`]*({start}[^`]*)`', (ROOT / 'docs/own_data.md').read_text())[1].split()
        for start in ('param_scheduler=', r'train_cfg\.max_iters=')
    )
    if kind == 'segmenter':
        options = [*options[:-1], *instead]
    options = [re.sub(r'(max_\w+)=\d+', r'\1=2', one) for one in options]
    parser = argparse.ArgumentParser()
    parser.add_argument('--cfg-options', nargs='+', action=DictAction)
    train(f'{kind}.py', 'work', cfg_options=parser.parse_args(['--cfg-options', *options]).cfg_options)
    assert list(Path('work').glob('*_2.pth'))
