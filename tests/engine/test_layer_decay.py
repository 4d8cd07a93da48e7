"""Layer-wise learning-rate decay, the same through a classifier, a detector and a segmenter."""

import copy
from pathlib import Path

import pytest
import torch
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from mmsoft import SOFT
from mmsoft.utils import OptionError
from mmsoft.utils.config import load_config

CONFIGS = Path(__file__).parents[2] / 'configs'
NANO = dict(embed_dims=[16] * 4, num_heads=[1] * 4, depths=[1] * 4)
LR, DECAY, RATE = 1e-3, 0.05, 0.5
OPTIM_WRAPPER = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=LR, weight_decay=DECAY),
    constructor='mmsoft.LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(
        layer_decay_rate=RATE,
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        custom_keys={'pos_embed': dict(decay_mult=0.0), 'cls_token': dict(decay_mult=0.0)},
    ),
)


def settings(model, **changes):
    """Learning rate and weight decay of each parameter, by its name."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = build_optim_wrapper(model, dict(OPTIM_WRAPPER, **changes)).optimizer.param_groups
    return {names[group['params'][0]]: (group['lr'], group['weight_decay']) for group in groups}


@pytest.mark.parametrize(
    'name, head',
    [
        ('soft_tiny_in1k', 'head.fc'),
        ('retinanet_soft_tiny_1x', 'bbox_head.retina_cls'),
        ('upernet_soft_small_160k', 'decode_head.conv_seg'),
    ],
)
def test_every_host(name, head):
    cfg = load_config(str(CONFIGS / f'{name}.py'))
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    found = settings(model)
    assert set(found) == {name for name, parameter in model.named_parameters()}

    layers = sum(model.backbone.arch['depths']) + 1
    first, last = model.backbone.stages[0], model.backbone.stages[3]
    assert found[f'{head}.weight'] == (LR, DECAY) and found[f'{head}.bias'] == (LR, 0)
    assert found['backbone.norm.weight'] == (LR, 0)
    assert found['backbone.stages.0.pos_embed'] == (LR * RATE**layers, 0)
    for stage, block, depth in ((0, 0, layers - 1), (3, len(last.blocks) - 1, 1)):
        prefix = f'backbone.stages.{stage}.blocks.{block}'
        weight = next(key for key in found if key.startswith(f'{prefix}.ffn') and key.endswith('.weight'))
        assert found[weight] == (pytest.approx(LR * RATE**depth), DECAY)
        assert found[weight.replace('weight', 'bias')] == (pytest.approx(LR * RATE**depth), 0)
    norm_types = (torch.nn.LayerNorm, torch.nn.BatchNorm2d)
    norms = [key for key, module in first.named_modules() if isinstance(module, norm_types)]
    assert norms and all(found[f'backbone.stages.0.{key}.weight'][1] == 0 for key in norms)


def test_the_same_layers_as_mmpretrain():
    cfg = load_config(str(CONFIGS / 'soft_tiny_in1k.py'))
    init_default_scope('mmpretrain')
    model = MODELS.build(cfg.model)
    theirs = build_optim_wrapper(
        model, dict(OPTIM_WRAPPER, constructor='mmpretrain.LearningRateDecayOptimWrapperConstructor')
    ).optimizer
    theirs = {group['param_name']: (group['lr'], group['weight_decay']) for group in theirs.param_groups}
    assert theirs == settings(model)


def test_wrapped_parts():
    """As FSDP wraps them, which needs several processes."""
    model = torch.nn.Module()
    model.backbone, model.head = SOFT(NANO), torch.nn.Linear(2, 2)
    want = [*settings(model).values()]
    model.backbone.stages[1] = checkpoint_wrapper(model.backbone.stages[1])
    assert [*settings(model).values()] == want
    model.backbone = torch.compile(model.backbone)
    assert [*settings(model).values()] == want
    assert [*settings(torch.compile(model)).values()] == want
    init_default_scope('mmpretrain')
    classifier = dict(type='ImageClassifier', backbone=dict(type='mmsoft.SOFT', arch=NANO))
    other = torch.nn.Module()
    other.model, other.head = torch.compile(MODELS.build(classifier)), model.head  # which has get_layer_depth, too
    assert [*settings(other).values()] == want


def test_factors_of_parts_are_kept():
    model = torch.nn.Module()
    model.backbone, model.head = SOFT(NANO), torch.nn.Linear(2, 2)
    keys = {'head': dict(lr_mult=10.0), 'stages.3': dict(lr_mult=0.1)}
    alone, found = (
        settings(model, paramwise_cfg=dict(layer_decay_rate=RATE, custom_keys=custom)) for custom in ({}, keys)
    )
    for name, (lr, _) in alone.items():
        factor = next((one['lr_mult'] for key, one in keys.items() if key in name), 1)
        assert found[name][0] == pytest.approx(factor * lr)
    assert {lr for lr, _ in settings(model, paramwise_cfg=dict(bias_decay_mult=0.0)).values()} == {LR}


class Deeper(torch.nn.Module):
    """A backbone around another, which counts one layer more."""

    def __init__(self):
        super().__init__()
        self.net, self.last = SOFT(NANO), torch.nn.Linear(2, 2)

    def get_layer_depth(self, name, prefix):
        layer, count = self.net.get_layer_depth(name, f'{prefix}net.')
        return layer, count + 1


def test_a_backbone_inside_of_a_backbone():
    model = torch.nn.Module()
    model.backbone = SOFT(NANO)
    alone = settings(model)
    model.backbone = Deeper()
    for name, (lr, decay) in alone.items():
        assert settings(model)[name.replace('backbone', 'backbone.net')] == (pytest.approx(RATE * lr), decay)


def test_low_rank_adapters_have_the_layers_of_what_they_adapt():
    """mmpretrain's LoRAModel answers for the backbone, of whose names it knows other ones."""
    lora = pytest.importorskip('mmpretrain.models.peft.lora')
    model = torch.nn.Module()
    model.backbone = lora.LoRAModel(dict(type='mmsoft.SOFT', arch=NANO), rank=1, targets=[dict(type='.*value')])
    model.head = torch.nn.Linear(2, 2)
    found = settings(model)
    for stage in range(3):
        name = f'backbone.module.stages.{stage}.blocks.0.attn.value.lora_up.weight'
        assert found[name][0] == pytest.approx(LR * RATE ** (4 - stage))
    vit = dict(type='mmpretrain.VisionTransformer', arch='deit-tiny', img_size=32, patch_size=16)  # the library's own
    model.backbone = lora.LoRAModel(vit, rank=1, targets=[dict(type='.*qkv')])
    found = settings(model)
    for layer in range(12):
        name = f'backbone.module.layers.{layer}.attn.qkv.lora_up.weight'
        assert found[name][0] == pytest.approx(LR * RATE ** (12 - layer))


def test_backbones_inside_of_other_models():
    """A student and a teacher have one each."""
    model, plain = (torch.nn.Module() for _ in range(2))
    plain.backbone, plain.head = SOFT(NANO), torch.nn.Linear(2, 2)
    model.teacher, model.student = copy.deepcopy(plain), plain
    alone, found = settings(plain), settings(model)
    assert found == {f'{part}.{name}': one for part in ('teacher', 'student') for name, one in alone.items()}
    retriever = torch.nn.Sequential(plain.backbone, plain.head)  # whatever it is called
    assert list(settings(retriever).values()) == list(alone.values())
    assert list(settings(plain.backbone).values()) == list(alone.values())[:-2]
    with pytest.raises(OptionError, match='layer_decay_rate needs a backbone with get_layer_depth'):
        settings(torch.nn.Linear(2, 2))
