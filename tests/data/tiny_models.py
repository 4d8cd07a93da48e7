"""Tiny versions of our configs' models, with random weights, on disk."""

from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from mmsoft.datasets.demo import retarget
from mmsoft.utils.config import dicts

ROOT = Path(__file__).parents[2]
NANO = dict(embed_dims=[32] * 4, num_heads=[1] * 4, depths=[1] * 4)


def narrow(model):
    """Every width of a model after its backbone is 32, after its neck 64: of the heads' 32 groups none has one number."""
    width = 64 if 'neck' in model else 32
    for part in dicts({name: part for name, part in model.items() if name != 'backbone'}):
        for key, value in part.items():
            if key.endswith('channels'):
                part[key] = [32] * len(value) if isinstance(value, (list, tuple)) else width


def write_tiny(name, folder, max_per_img=8):
    """Writes a tiny version of a config, and random weights for it with which it finds objects; returns both files."""
    torch.manual_seed(0)
    cfg = retarget(Config.fromfile(ROOT / 'configs' / f'{name}.py'))
    narrow(cfg.model)
    cfg.model.backbone.arch = NANO
    test = cfg.model.get('test_cfg') or {}
    if test.get('rpn'):
        test.rpn.update(nms_pre=50, max_per_img=40)
    (test.get('rcnn') or test).update(score_thr=1e-3, max_per_img=max_per_img)
    cfg.dump(folder / 'config.py')
    init_default_scope(cfg.default_scope)
    model = cfg.model
    if cfg.default_scope == 'mmpretrain':
        model = dict(model, data_preprocessor=cfg.data_preprocessor)
    meta = dict(dataset_meta=dict(cfg.test_dataloader.dataset.get('metainfo', {})))
    weights = MODELS.build(model).state_dict()
    if 'rpn_head.rpn_cls.bias' in weights:
        weights['rpn_head.rpn_cls.bias'].fill_(-25.0)  # where ONNX Runtime's sigmoid is 0
    torch.save(dict(state_dict=weights, meta=meta), folder / 'weights.pth')
    return str(folder / 'config.py'), str(folder / 'weights.pth')
