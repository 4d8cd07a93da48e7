"""Trainings of a detector, a segmenter and a classifier that take seconds, with all that draws at random in ours."""

import math
import shutil
from pathlib import Path

from mmengine.logging import MessageHub, MMLogger
from mmengine.registry import DefaultScope
from mmengine.visualization import Visualizer

ROOT = Path(__file__).parents[2]
SHAPES = dict(train=12, val=4, portraits=32, size=64, portrait_size=32)
ARCH = 'arch = dict(embed_dims=[16, 32, 48, 64], num_heads=[1, 2, 3, 4], depths=[1, 1, 1, 1])\n'
DETECTOR = (
    ARCH
    + f"""
_base_ = '{ROOT}/configs/retinanet_soft_nano_shapes.py'
model = dict(
    backbone=dict(arch=dict(_delete_=True, **arch), drop_path_rate=0.3),
    neck=dict(in_channels=arch['embed_dims'], out_channels=32),
    bbox_head=dict(in_channels=32, feat_channels=32, stacked_convs=1))
train_dataloader = dict(batch_size=3, num_workers=0, persistent_workers=False)
val_dataloader = dict(num_workers=0, persistent_workers=False)
train_cfg = dict(max_epochs=2, val_interval=1)
"""
)
SEGMENTER = (
    ARCH
    + f"""
_base_ = '{ROOT}/configs/upernet_soft_nano_shapes.py'
model = dict(
    data_preprocessor=dict(size=(64, 64), test_cfg=dict(size=(64, 64))),
    backbone=dict(arch=dict(_delete_=True, **arch), drop_path_rate=0.3),
    decode_head=dict(in_channels=arch['embed_dims'], channels=32))
train_dataloader = dict(batch_size=3, num_workers=0, persistent_workers=False)
val_dataloader = dict(num_workers=0, persistent_workers=False)
train_cfg = dict(max_iters=8, val_interval=4)
default_hooks = dict(checkpoint=dict(interval=3))
"""
)
# The recipe of SOFT on ImageNet, with an average of the weights, and SimA's sampler.
CLASSIFIER = (
    ARCH
    + f"""
_base_ = '{ROOT}/configs/_base_/soft_in1k.py'
from mmsoft.datasets.shapes import CLASSES
portraits = dict(type='CustomDataset', data_root='data/shapes', metainfo=dict(classes=sorted(CLASSES)))
train = dict(_delete_=True, data_prefix='imagenet/train', pipeline=[
    _base_.train_pipeline[0], dict(type='RandomResizedCrop', scale=32), *_base_.train_pipeline[2:]], **portraits)
val = dict(_delete_=True, data_prefix='imagenet/val', pipeline=[
    _base_.test_pipeline[0], _base_.test_pipeline[-1]], **portraits)
model = dict(
    backbone=dict(arch=arch, drop_path_rate=0.3),
    head=dict(in_channels=64, num_classes=6),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]))
data_preprocessor = dict(num_classes=6)
train_dataloader = dict(
    batch_size=8, num_workers=0, persistent_workers=False, dataset=train,
    sampler=dict(type='RepeatAugSampler', num_repeats=3))
val_dataloader = dict(batch_size=8, num_workers=0, persistent_workers=False, dataset=val)
test_dataloader = val_dataloader
val_evaluator = dict(topk=(1, ))
test_evaluator = val_evaluator
train_cfg = dict(max_epochs=2)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=True, end=1, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=5e-5, by_epoch=True, begin=1)
]
default_hooks = dict(logger=dict(interval=1))
randomness = dict(seed=0)
"""
)
# Several processes without a GPU, as docs/training.md has it.
ON_CPUS = """
import os
import torch.distributed

if 'RANK' in os.environ and not torch.distributed.is_initialized():  # set by torchrun
    torch.distributed.init_process_group('gloo')
model_wrapper_cfg = dict(type='MMDistributedDataParallel', device_ids=None, broadcast_buffers=False)
"""
CONFIGS = {
    name: text + ON_CPUS for name, text in dict(detector=DETECTOR, segmenter=SEGMENTER, classifier=CLASSIFIER).items()
}
ITERATIONS = 8


def project(folder, shapes):
    """A folder with a copy of the data set and the configs, to run in."""
    shutil.copytree(shapes, folder / 'data/shapes')
    for name, text in CONFIGS.items():
        (folder / f'{name}.py').write_text(text)
    return folder


def forget_runs():
    """mmengine keeps a process's first visualizer, with its folder, and tells runs apart by config and second."""
    for kind in (Visualizer, *Visualizer.__subclasses__(), MessageHub, MMLogger, DefaultScope):
        kind._instance_dict.clear()


def same(one, other):
    """Whether two trees of dicts, lists, tensors and numbers are equal to the bit; NaN equals NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, 'dtype'):
        return one.dtype == other.dtype and one.shape == other.shape and bool(((one == other) | (one != one)).all())
    return one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))
