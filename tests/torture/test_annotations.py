"""Data sets and configs with one thing wrong: one clear error message, and none without need."""

import shutil
from pathlib import Path

import pytest
from damaged_data import CONFIGS, HARMLESS, REFUSED
from trainings import forget_runs

from mmsoft.apis import launch
from mmsoft.datasets.shapes import ensure_shapes
from mmsoft.utils import UsageError

ROOT = Path(__file__).parents[2]
ARCH = 'dict(embed_dims=[16] * 4, num_heads=[1] * 4, depths=[1] * 4)'
HERE = """
here = dict(dataset=dict(data_root='ROOT'), num_workers=0, persistent_workers=False)
train_dataloader = val_dataloader = test_dataloader = here
"""
DETECTION = """
model = dict(backbone=dict(arch=ARCH), neck=dict(in_channels=[16] * 4))
val_evaluator = test_evaluator = dict(ann_file='ROOT/annotations/val.json')
train_cfg = dict(max_epochs=1)
"""
MASKS = """
train_dataloader = dict(here, dataset=dict(data_root='ROOT', pipeline=[
    dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='PackDetInputs')]))
"""
SEGMENTATION = """
model = dict(backbone=dict(arch=ARCH), decode_head=dict(in_channels=[16] * 4, channels=16))
train_cfg = dict(max_iters=1)
"""
CLASSIFICATION = """
from mmsoft.datasets.shapes import CLASSES
model = dict(
    backbone=dict(_delete_=True, type='mmsoft.SOFT', arch=ARCH, out_type='cls_token'),
    head=dict(in_channels=16, num_classes=6, topk=1), train_cfg=None)
train_cfg = dict(max_epochs=1)
param_scheduler = []
files = dict(type='CustomDataset', _delete_=True, data_root='ROOT', metainfo=dict(classes=sorted(CLASSES)), pipeline=[
    dict(type='LoadImageFromFile'), dict(type='Resize', scale=(32, 32)), dict(type='PackInputs')])
here = dict(batch_size=2, num_workers=0, persistent_workers=False)
train_dataloader = dict(here, dataset=dict(files, data_prefix='imagenet/train'))
val_dataloader = test_dataloader = dict(here, dataset=dict(files, data_prefix='imagenet/val'))
"""
FORMS = dict(
    coco=('retinanet_soft_nano_shapes', HERE + DETECTION),
    masks=('retinanet_soft_nano_shapes', HERE + DETECTION + MASKS),
    ade20k=('upernet_soft_nano_shapes', HERE + SEGMENTATION),
    imagenet=('soft_tiny_in1k', CLASSIFICATION),
)


@pytest.fixture(scope='module')
def shapes(tmp_path_factory):
    return ensure_shapes(
        tmp_path_factory.mktemp('shapes') / 'data', train=6, val=2, portraits=24, size=64, portrait_size=32
    )


def write_config(folder, form, extra=''):
    name, text = FORMS[form]
    text = text.replace('ROOT', str(folder / 'data')).replace('ARCH', ARCH)
    (folder / 'base.py').write_text(f"_base_ = '{ROOT}/configs/{name}.py'\n{text}")
    (folder / 'config.py').write_text(extra if '_base_' in extra else f"_base_ = 'base.py'\n{extra}\n")
    return str(folder / 'config.py')


CASES = [(form, name) for form in REFUSED for name in (*REFUSED[form], *HARMLESS[form])]
STRIDE = 41  # so that a few rounds are of all forms
assert len(CASES) % STRIDE and len(CONFIGS) % STRIDE


@pytest.mark.filterwarnings('ignore')
@pytest.mark.rounds(12, 2 * len(CASES))
def test_data_with_one_thing_wrong(trial, shapes, tmp_path):
    """COCO, ADE20K and ImageFolder files with one thing wrong get one error message, others are trained on"""
    form, name = CASES[trial.round * STRIDE % len(CASES)]
    trial.note(form=form, case=name)
    forget_runs()
    shutil.copytree(shapes, tmp_path / 'data')
    damage = REFUSED[form].get(name)
    (damage or HARMLESS[form][name])(tmp_path / 'data', trial.random)
    config = write_config(tmp_path, form)
    if damage:
        with pytest.raises(UsageError) as error:
            launch.train(config, str(tmp_path / 'work'), from_scratch=True)
        said = str(error.value)
        assert said.isprintable() and (str(tmp_path / 'data') in said or config in said), said
    else:
        launch.train(config, str(tmp_path / 'work'), from_scratch=True)


@pytest.mark.filterwarnings('ignore')
@pytest.mark.rounds(8, len(CONFIGS))
def test_configs_with_one_thing_wrong(trial, shapes, tmp_path):
    """A config with one thing wrong gets one error message that names it"""
    name = list(CONFIGS)[trial.round * STRIDE % len(CONFIGS)]
    trial.note(case=name)
    forget_runs()
    (tmp_path / 'data').symlink_to(shapes)
    config = write_config(tmp_path, 'coco', CONFIGS[name])
    with pytest.raises(UsageError) as error:
        launch.train(config, str(tmp_path / 'work'))
    assert str(error.value).isprintable()
