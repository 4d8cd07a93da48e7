"""The template for users' own data trains on data under other names, once its first part is changed."""

import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
from mmengine.config import Config
from trainings import forget_runs

from mmsoft.apis import train
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


def edited(folder, classes):
    """The template as a user would change it, in a folder ``configs`` beside the repository's."""
    changes = dict(
        root=f"'{folder}/animals/'",
        classes=repr(classes),
        palette=repr([(9, 9, 9)] * len(classes)),
        **{'train_annotations, train_images': "'learn.json', 'pictures/learn/'"},
        **{'val_annotations, val_images': "'check.json', 'pictures/check/'"},
        scale='(96, 64)',
        smallest='12',
        max_per_img='7',
        epochs='1',
    )
    text = TEMPLATE.read_text().replace("'../retinanet", f"'{ROOT}/configs/retinanet")
    for name, value in changes.items():
        text, count = re.subn(rf'^{name} = [^#\n]*', f'{name} = {value}  ', text, flags=re.M)
        assert count == 1, name
    path = folder / 'mine.py'
    path.write_text(text)
    return path


@pytest.mark.parametrize('classes', [('hen', 'fox', 'owl'), ('hen',)])
def test_the_template_leaves_nothing_of_the_base_data(tmp_path, classes):
    path = edited(tmp_path, classes)
    cfg = Config.fromfile(path)
    for dataset in datasets(cfg):
        assert dataset.data_root == f'{tmp_path}/animals/' and tuple(dataset.metainfo.classes) == classes
    for name in ('val_evaluator', 'test_evaluator'):
        assert cfg[name].ann_file == f'{tmp_path}/animals/check.json'
    assert [one['num_classes'] for one in dicts(cfg.model) if 'num_classes' in one] == [len(classes)]
    assert cfg.model.test_cfg.max_per_img == 7
    text = path.read_text()
    assert (
        '1333' not in text[text.index('# The rest') :]
        and 'data/coco'
        not in Config({key: cfg[key] for key in cfg if key.endswith(('dataloader', 'evaluator'))}).pretty_text
    )


def test_the_template_trains(tmp_path):
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
    assert list((tmp_path / 'work').glob('epoch_1.pth'))
