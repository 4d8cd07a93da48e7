"""Draws images as training sees them, augmented, with their annotations: boxes, masks, label maps or classes."""

import argparse
import sys
from pathlib import Path

from mmsoft.apis.cli import command_line


def main() -> None:
    from mmengine.config import DictAction
    from mmengine.registry import DATASETS, VISUALIZERS, init_default_scope
    from mmengine.structures import InstanceData

    from mmsoft.datasets.demo import on_shapes, retarget
    from mmsoft.datasets.shapes import ensure_shapes
    from mmsoft.utils.config import load_config

    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add('config', help='config file')
    add('--out-dir', required=True, help='folder for the images')
    add('--count', type=int, default=20, help='number of images (default: 20)')
    add('--demo-data', action='store_true', help='draw the synthetic shapes data set in data/shapes instead')
    add('--cfg-options', nargs='+', action=DictAction, metavar='KEY=VALUE', help='override settings of the config')
    args = parser.parse_args()
    cfg = load_config(args.config)
    cfg = retarget(cfg) if args.demo_data else cfg
    cfg.merge_from_dict(args.cfg_options or {})
    if on_shapes(cfg):
        ensure_shapes()
    init_default_scope(cfg.default_scope)
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    visualizer = VISUALIZERS.build(dict(cfg.visualizer, name='browse', vis_backends=None))
    visualizer.dataset_meta = dataset.metainfo
    Path(args.out_dir).mkdir(parents=True, exist_ok=True)
    for index in range(min(args.count, len(dataset))):
        item = dataset[index]
        sample, image = (
            item['data_samples'],
            item['inputs'].permute(1, 2, 0).numpy()[..., ::-1].clip(0, 255).astype('uint8'),
        )
        options = dict(draw_pred=False, show=False, out_file=str(Path(args.out_dir, f'{index:06d}.png')))
        if cfg.default_scope == 'mmpretrain':
            visualizer.visualize_cls(image, sample, classes=dataset.metainfo.get('classes'), **options)
            continue
        if cfg.default_scope == 'mmseg':
            options['with_labels'] = False  # mmseg's fail with newer versions of OpenCV
        elif 'gt_instances' in sample:
            found = sample.gt_instances
            boxes = found.bboxes.tensor if hasattr(found.bboxes, 'tensor') else found.bboxes
            masks = dict(masks=found.masks.to_ndarray().astype(bool)) if 'masks' in found else {}
            sample.gt_instances = InstanceData(bboxes=boxes, labels=found.labels, **masks)
        visualizer.add_datasample('image', image, sample, **options)
    print(f'{min(args.count, len(dataset))} images of {len(dataset)} are in {args.out_dir}.')


if __name__ == '__main__':
    sys.exit(command_line(main))
