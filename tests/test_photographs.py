"""Detector, segmenter and classifier overfit three annotated photographs of Debian's package labelme-examples.

Without it, or where LABELME_EXAMPLES names no copy of its folder ``examples``, these tests are skipped.
"""

import json
import os
from pathlib import Path

import pytest
from mmengine.config import Config
from trainings import forget_runs

from mmsoft.apis import test as evaluate
from mmsoft.apis import train

ROOT = Path(__file__).parent.parent
EXAMPLES = Path(os.environ.get('LABELME_EXAMPLES', '/usr/share/doc/labelme-examples/examples'))
PHOTOGRAPHS = EXAMPLES / 'instance_segmentation/data_dataset_voc'
COCO = EXAMPLES / 'instance_segmentation/data_dataset_coco'
NANO = dict(embed_dims=[32, 96, 160, 256], num_heads=[1, 3, 5, 8], depths=[1, 2, 2, 1])
SCALE = (256, 192)
ITERATIONS = 150

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not EXAMPLES.is_dir(), reason='needs labelme-examples')]


def overfit(config, folder, loader, evaluator, **tested):
    """Scores of a config after training on the photographs that it is tested on; ``tested`` changes that data set."""
    schedule = dict(type='CosineAnnealingLR', T_max=ITERATIONS, by_epoch=False)
    hooks = {**config.default_hooks, 'checkpoint': dict(type='CheckpointHook', interval=ITERATIONS, by_epoch=False)}
    settings = dict(
        train_dataloader=dict(loader, sampler=dict(type='InfiniteSampler', shuffle=True)),
        train_cfg=dict(type='IterBasedTrainLoop', max_iters=ITERATIONS, val_interval=ITERATIONS + 1),
        param_scheduler=[schedule],
        val_dataloader=None,
        val_evaluator=None,
        val_cfg=None,
        test_dataloader=dict(
            loader,
            batch_size=1,
            sampler=dict(type='DefaultSampler', shuffle=False),
            dataset=dict(loader['dataset'], **tested),
        ),
        test_evaluator=evaluator,
        default_hooks=hooks,
    )
    for name, setting in settings.items():
        config[name] = setting
    config.optim_wrapper.optimizer = dict(type='AdamW', lr=1e-3, weight_decay=0.0)
    config.dump(folder / 'config.py')
    train(str(folder / 'config.py'), str(folder))
    forget_runs()
    return evaluate(str(folder / 'config.py'), str(folder / f'iter_{ITERATIONS}.pth'), str(folder))


def test_a_detector_finds_every_object(tmp_path):
    config = Config.fromfile(ROOT / 'configs/retinanet_soft_nano_shapes.py')
    annotations = json.loads((COCO / 'annotations.json').read_text())
    used = {one['category_id'] for one in annotations['annotations']}
    classes = tuple(one['name'] for one in annotations['categories'] if one['id'] in used)
    config.merge_from_dict({'model.bbox_head.num_classes': len(classes)})
    dataset = dict(
        type='CocoDataset',
        ann_file=str(COCO / 'annotations.json'),
        data_prefix=dict(img=f'{COCO}/'),
        metainfo=dict(classes=classes),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations', with_bbox=True),
            dict(type='Resize', scale=SCALE, keep_ratio=True),
            dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
        ],
    )
    metric = dict(type='CocoMetric', ann_file=str(COCO / 'annotations.json'), metric='bbox')
    scores = overfit(config, tmp_path, dict(batch_size=3, num_workers=0, dataset=dataset), metric)
    assert scores['coco/bbox_mAP_50'] > 0.9, scores


def test_a_segmenter_labels_every_pixel(tmp_path):
    config = Config.fromfile(ROOT / 'configs/upernet_soft_nano_shapes.py')
    classes = (PHOTOGRAPHS / 'class_names.txt').read_text().split('\n')
    config.merge_from_dict({'model.decode_head.num_classes': len(classes), 'model.data_preprocessor.size': SCALE[::-1]})
    config.model.data_preprocessor.test_cfg.size = SCALE[::-1]
    palette = [[12 * label] * 3 for label in range(len(classes))]
    dataset = dict(
        type='BaseSegDataset',
        data_prefix=dict(
            img_path=str(PHOTOGRAPHS / 'JPEGImages'), seg_map_path=str(PHOTOGRAPHS / 'SegmentationClassPNG')
        ),
        metainfo=dict(classes=classes, palette=palette),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations', imdecode_backend='pillow'),
            dict(type='Resize', scale=SCALE, keep_ratio=True),
            dict(type='PackSegInputs'),
        ],
    )
    load, annotations, resize, pack = dataset['pipeline']
    loader, metric = dict(batch_size=3, num_workers=0, dataset=dataset), dict(type='IoUMetric', iou_metrics=['mIoU'])
    scores = overfit(config, tmp_path, loader, metric, pipeline=[load, resize, annotations, pack])
    assert scores['aAcc'] > 95, scores


def test_a_classifier_tells_photographs_apart(tmp_path):
    config = Config.fromfile(ROOT / 'configs/soft_tiny_in1k.py')
    photographs = sorted((PHOTOGRAPHS / 'JPEGImages').glob('*.jpg'))
    (tmp_path / 'labels.txt').write_text('\n'.join(f'{path.name} {label}' for label, path in enumerate(photographs)))
    config.model.backbone.arch = NANO
    config.model.head.update(in_channels=NANO['embed_dims'][-1], num_classes=len(photographs))
    config.model.train_cfg = None
    config.custom_hooks = [hook for hook in config.custom_hooks if hook.type != 'EMAHook']
    dataset = dict(
        type='CustomDataset',
        data_prefix=str(PHOTOGRAPHS / 'JPEGImages'),
        ann_file=str(tmp_path / 'labels.txt'),
        metainfo=dict(classes=[path.stem for path in photographs]),
        pipeline=[dict(type='LoadImageFromFile'), dict(type='Resize', scale=128), dict(type='PackInputs')],
    )
    loader = dict(batch_size=3, num_workers=0, dataset=dataset, collate_fn=dict(type='default_collate'))
    assert overfit(config, tmp_path, loader, dict(type='Accuracy'))['accuracy/top1'] == 100
