"""Every config's recipe against what the authors ran (data/recipes.yml, where the sources are)."""

from pathlib import Path

import pytest
import yaml
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope

from mmsoft.utils.config import datasets, type_name

CONFIGS = Path(__file__).parent.parent / 'configs'
RECIPES = yaml.safe_load((Path(__file__).parent / 'data/recipes.yml').read_text())['configs']
# Of each transform, what makes a difference. A transform that is not here is one too many.
TRANSFORMS = dict(
    CachedMixUp=('img_scale', 'ratio_range'),
    CachedMosaic=('img_scale',),
    CenterCrop=('crop_size',),
    FilterAnnotations=(),
    Pad=('size',),
    PhotoMetricDistortion=(),
    RandAugment=('policies', 'num_policies', 'magnitude_level', 'total_level', 'magnitude_std'),
    RandomChoice=('transforms',),
    RandomChoiceResize=('scales',),
    RandomCrop=('crop_size', 'crop_type', 'cat_max_ratio'),
    RandomErasing=('erase_prob', 'mode', 'min_area_ratio', 'max_area_ratio'),
    RandomFlip=('prob',),
    RandomResize=('scale', 'ratio_range'),
    RandomResizedCrop=('scale', 'interpolation'),
    Resize=('scale',),
    ResizeEdge=('scale', 'edge', 'interpolation'),
    YOLOXHSVRandomAug=(),
)
IO = ('LoadImageFromFile', 'LoadAnnotations', 'LoadPanopticAnnotations', 'PackInputs', 'PackDetInputs', 'PackSegInputs')


def words(key, value):
    if key == 'scale' and not isinstance(value, int):
        return [min(value), max(value)]
    if key == 'scales':
        assert len({max(scale) for scale in value}) == 1
        return [*(min(scale) for scale in value), max(value[0])]
    if key == 'transforms':
        return [f'[{", ".join(pipeline(one))}]' for one in value]
    return value if isinstance(value, (list, tuple)) else [round(value, 3) if isinstance(value, float) else value]


def pipeline(transforms):
    """A line for each transform that changes pictures."""
    return [
        ' '.join(
            [
                type_name(one),
                *(str(word) for key in TRANSFORMS[type_name(one)] if key in one for word in words(key, one[key])),
            ]
        )
        for one in transforms
        if type_name(one) not in IO
    ]


def schedule(cfg):
    """Warm-up and what follows it, which together take all of the training."""
    schedulers = cfg.param_scheduler if isinstance(cfg.param_scheduler, list) else [cfg.param_scheduler]
    warm_up = schedulers[0] if schedulers[0].type == 'LinearLR' else None
    after = schedulers[1:] if warm_up else schedulers
    length, last = (
        (cfg.train_cfg.max_iters, 'iterations')
        if 'max_iters' in cfg.train_cfg
        else (cfg.train_cfg.max_epochs, 'epochs')
    )
    found = {'length': f'{length} {last}', 'warm-up': 'none'}
    if warm_up:
        assert warm_up.start_factor <= 1e-3
        found['warm-up'] = f'{warm_up.end} {"epochs" if warm_up.by_epoch else "iterations"}'
    if not after:
        return dict(found, schedule='constant')
    (decay,) = after
    assert decay.get('end', length) == length
    if decay.type == 'MultiStepLR':
        after = f'{dict([(0.1, "tenth")])[decay.gamma]} after {", ".join(map(str, decay.milestones))}'
    else:
        follows = decay.begin == warm_up.end and decay.by_epoch == warm_up.by_epoch and 'T_max' not in decay
        assert follows or decay.begin + decay.T_max == decay.end
        name = {'CosineAnnealingLR': 'cosine', 'PolyLR': f'polynomial {decay.get("power")}'}[decay.type]
        after = f'{name} to {decay.eta_min:f}'.rstrip('0') if decay.eta_min else f'{name} to 0.0'
        after += '' if follows else f', from {decay.begin}'
    return dict(found, schedule=after)


def recipe(cfg):
    """What recipes.yml says of a config, read off the config."""
    optimizer, backbone, loader = cfg.optim_wrapper.optimizer, cfg.model.backbone, cfg.train_dataloader
    paramwise = cfg.optim_wrapper.get('paramwise_cfg', {})
    trained, tested = ([*datasets(cfg, f'{split}_dataloader')][-1] for split in ('train', 'test'))
    assert tuple(optimizer.get('betas', (0.9, 0.999))) == (0.9, 0.999)
    assert cfg.auto_scale_lr.base_batch_size % loader.batch_size == 0
    assert cfg.test_dataloader.dataset.pipeline == cfg.val_dataloader.dataset.pipeline
    found = {
        'optimizer': optimizer.type,
        'learning rate': optimizer.lr,
        'weight decay': optimizer.weight_decay,
        'clipping': (cfg.optim_wrapper.get('clip_grad') or {}).get('max_norm'),
        'batch': cfg.auto_scale_lr.base_batch_size,
        'layer decay': paramwise.get('layer_decay_rate'),
        'rate of the backbone': paramwise.get('custom_keys', {}).get('backbone', {}).get('lr_mult'),
        **schedule(cfg),
        'repeated': loader.dataset.get('times'),
        'sampler': ' '.join(str(loader.sampler[key]) for key in ('type', 'num_repeats') if key in loader.sampler),
        'augmentation': pipeline(trained.pipeline),
        'test': pipeline(tested.pipeline),
        'drop path': backbone.get('drop_path_rate'),
        'average': next((1 - hook.momentum for hook in cfg.get('custom_hooks', []) if hook.type == 'EMAHook'), None),
    }
    if cfg.default_scope == 'mmpretrain':
        found['mixing'] = [f'{one.type} {one.alpha}' for one in cfg.model.train_cfg.augments]
        found['label smoothing'] = cfg.model.head.loss.label_smooth_val
    assert not backbone.get('drop_rate')
    return {key: value for key, value in found.items() if value is not None}


@pytest.mark.parametrize('name', sorted(path.stem for path in CONFIGS.glob('*.py') if '_shapes' not in path.stem))
def test_recipe(name):
    assert recipe(Config.fromfile(CONFIGS / f'{name}.py')) == RECIPES[name]


def test_the_table_has_no_more_than_the_configs():
    assert all((CONFIGS / f'{name}.py').is_file() for name in RECIPES)


@pytest.mark.parametrize(
    'name, spared', [('soft_tiny_in1k', {'cls_token'}), ('sima_deit_small_in1k', {'cls_token', 'pos_embed'})]
)
def test_what_is_not_decayed(name, spared):
    """timm spares vectors, biases and what a network's ``no_weight_decay`` names."""
    cfg = Config.fromfile(CONFIGS / f'{name}.py')
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    free = {names[id(one)] for group in groups if group['weight_decay'] == 0 for one in group['params']}
    assert free == {
        key
        for key, parameter in model.named_parameters()
        if parameter.ndim == 1 or key.endswith('.bias') or key.split('.')[-1] in spared
    }
