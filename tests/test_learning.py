"""A detector of either kind, a segmenter and a classifier learn, and do not where their maps are broken.

Shapes and finite numbers say nothing of a map whose positions are mixed up. A score that only a whole map allows does.
"""

import json
from typing import Callable, NamedTuple

import pytest
import torch
from mmengine.runner import Runner

from benchmarks.evidence.methods import METHODS
from benchmarks.evidence.scenes import Method
from mmsoft.datasets.demo import with_counts
from mmsoft.datasets.shapes import INSTANCES, METAINFO, ensure_shapes
from mmsoft.utils.config import dicts


def misread(feats):
    """Maps as an operator sees them that takes channels-last memory for NCHW."""
    return tuple(x.permute(0, 2, 3, 1).reshape(x.shape) for x in feats)


def shuffled(feats):
    """Maps whose positions come in an order of their own each time."""
    return tuple(x.flatten(2)[..., torch.randperm(x[0, 0].numel())].view_as(x) for x in feats)


def mixed(x):
    """A map whose pictures and positions are exchanged: tokens (n, B, C) taken for (B, n, C)."""
    return x.permute(2, 3, 0, 1).reshape(x.size(0), -1, x.size(1)).transpose(1, 2).reshape(x.shape)


def misread_rois(model):
    for extractor in (model.roi_head.bbox_roi_extractor, model.roi_head.mask_roi_extractor):
        extractor.register_forward_pre_hook(lambda _, args: (misread(args[0]), *args[1:]))


def shuffle_maps(model):
    model.backbone.register_forward_hook(lambda _, args, maps: shuffled(maps))


def mix_stem(model):
    model.backbone.stages[0].embed.register_forward_hook(lambda _, args, x: mixed(x))


class Case(NamedTuple):
    """What learns.

    Attributes:
        method: The network.
        pictures: That it learns from.
        iterations: Length of the training.
        score: What it is judged by, in the host's words.
        whole: Reached with whole maps.
        broken: Not reached with broken ones.
        break_maps: Breaks those of a model.
        held_out: Whether it is judged on pictures that it has not seen.
    """

    method: Method
    pictures: int
    iterations: int
    score: str
    whole: float
    broken: float
    break_maps: Callable
    held_out: bool = False


FEW_BOXES = METHODS['mask_rcnn']._replace(options={**METHODS['mask_rcnn'].options, 'train_cfg.rcnn.sampler.num': 32})
CASES = dict(
    two_stage=Case(FEW_BOXES, 48, 100, 'coco/segm_mAP_50', 0.5, 0.25, misread_rois, held_out=True),
    one_stage=Case(
        METHODS['retinanet']._replace(network='sima_xcit_p8'), 4, 80, 'coco/bbox_mAP_50', 0.8, 0.6, shuffle_maps
    ),
    segmenter=Case(METHODS['upernet'], 4, 80, 'mIoU', 40, 25, shuffle_maps),
    classifier=Case(METHODS['classifier'], 640, 100, 'accuracy/top1', 60, 40, mix_stem, held_out=True),
)


@pytest.fixture(scope='module')
def shapes(tmp_path_factory):
    """Few and small; to tell outlines apart takes a detector longer, so to it all are one class."""
    root = tmp_path_factory.mktemp('shapes') / 'shapes'
    ensure_shapes(root, train=48, val=16, portraits=640, size=96, portrait_size=48)
    for split in ('train', 'val'):
        one_class(root / INSTANCES[split])
    return root


def one_class(path):
    """All objects are of the first class."""
    document = json.loads(path.read_text())
    document['categories'] = document['categories'][:1]
    for one in document['annotations']:
        one['category_id'] = document['categories'][0]['id']
    path.write_text(json.dumps(document))


def learn(case: Case, shapes, folder, broken: bool) -> float:
    cfg = case.method._replace(sky=False, iterations=case.iterations).make_config(0, shapes, folder)
    cfg.default_hooks.checkpoint.update(interval=-1, save_last=False)
    cfg.train_dataloader.update(batch_size=32 if cfg.default_scope == 'mmpretrain' else 4)
    cfg.train_dataloader.dataset.indices = case.pictures
    cfg.test_dataloader.sampler.shuffle = True  # or a batch would be of one class
    if cfg.default_scope == 'mmdet':
        cfg.model = with_counts(cfg.model.to_dict(), 1)
        for loader in (cfg.train_dataloader, cfg.test_dataloader):
            loader.dataset.metainfo = dict(classes=METAINFO['classes'][:1], palette=METAINFO['palette'][:1])
    if not case.held_out:
        for key in ('ann_file', 'data_prefix'):
            if key in cfg.train_dataloader.dataset:
                cfg.test_dataloader.dataset[key] = cfg.train_dataloader.dataset[key]
        cfg.test_dataloader.dataset.indices = case.pictures
        for evaluator in dicts(cfg.test_evaluator):
            if 'ann_file' in evaluator:
                evaluator['ann_file'] = cut(shapes / cfg.train_dataloader.dataset.ann_file, case.pictures, folder)
    runner = Runner.from_cfg(cfg)
    if broken:
        case.break_maps(runner.model)
    runner.train()
    return runner.test()[case.score]


def cut(ann_file, pictures: int, folder) -> str:
    """The annotations of the first few pictures."""
    document = json.loads(ann_file.read_text())
    document['images'] = document['images'][:pictures]
    ids = {image['id'] for image in document['images']}
    document['annotations'] = [one for one in document['annotations'] if one['image_id'] in ids]
    path = folder / 'seen.json'
    path.write_text(json.dumps(document))
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize('broken', [False, True], ids=['whole', 'broken'])
@pytest.mark.parametrize('name', CASES)
def test_learns_if_its_maps_are_whole(name, broken, shapes, tmp_path):
    case = CASES[name]
    score = learn(case, shapes, tmp_path, broken)
    assert (score < case.broken) if broken else (score >= case.whole), score
