"""Attention's share is logged during training, and a stage without any is warned of once."""

import logging

import pytest
import torch
from mmengine.config import Config
from mmengine.logging import MMLogger
from torch import nn

from mmsoft import SOFT, AttentionShareHook, SimADeiT


class Visualizer:
    def __init__(self):
        self.scalars = []

    def add_scalars(self, scalars, step):
        self.scalars.append((step, scalars))


class Runner:
    """As much of mmengine's runner as the hook sees."""

    def __init__(self, gamma):
        backbone = SOFT(
            dict(embed_dims=[16], num_heads=[1], depths=[1]),
            out_indices=(0,),
            attention=[dict(type='SOFTAttention', initial_gamma=gamma)],
        )
        backbone.init_weights()
        self.model = nn.ModuleDict(dict(backbone=backbone))
        self.visualizer, self.iter, self.cfg = Visualizer(), 0, Config()
        self.logger = MMLogger.get_current_instance()

    def train(self, hook, iterations):
        for _ in range(iterations):
            hook.before_train_iter(self, self.iter)
            with torch.no_grad():
                self.model.backbone(torch.randn(1, 3, 64, 64))
            hook.after_train_iter(self, self.iter)
            self.iter += 1


@pytest.mark.parametrize('gamma, closed', [(3.0, True), (0.3, False)])
def test_logs_at_its_interval_and_warns_once(gamma, closed, caplog):
    runner, hook = Runner(gamma), AttentionShareHook(interval=2, begin=4)
    with caplog.at_level(logging.WARNING, 'mmengine'):
        MMLogger.get_current_instance().addHandler(caplog.handler)
        runner.train(hook, 2)
        assert not caplog.records, 'before the iteration to begin at'
        runner.train(hook, 2)
        assert bool(caplog.records) == closed, 'at that iteration'
        runner.train(hook, 4)
        MMLogger.get_current_instance().removeHandler(caplog.handler)
    assert [step for step, _ in runner.visualizer.scalars] == [2, 4, 6, 8]
    name = 'backbone.stages.0.blocks.0.attn'
    for _, scalars in runner.visualizer.scalars:
        assert set(scalars) == {f'attention_{kind}/{name}' for kind in ('share', 'exponent', 'gain')}
        assert (scalars[f'attention_share/{name}'] < 0.01) == closed
    warnings = [
        record for record in caplog.records if 'Attention contributes less than 1% in stage 0' in record.message
    ]
    assert len(warnings) == closed
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in runner.model.modules())


@pytest.mark.parametrize('second, closed', [(3.0, True), (0.3, False)])
def test_a_stage_attends_if_one_of_its_blocks_does(second, closed, caplog):
    """Names are those of the network, also where several processes wrap it."""
    runner, hook = Runner(3.0), AttentionShareHook(interval=1, begin=1)
    backbone = SOFT(dict(embed_dims=[16], num_heads=[1], depths=[2]), out_indices=(0,))
    for block, gamma in zip(backbone.stages[0].blocks, (3.0, second)):
        nn.init.constant_(block.attn.bottleneck.norm.weight, gamma)
    runner.model = nn.ModuleDict(dict(module=nn.ModuleDict(dict(backbone=backbone)), backbone=backbone))
    with caplog.at_level(logging.WARNING, 'mmengine'):
        MMLogger.get_current_instance().addHandler(caplog.handler)
        runner.train(hook, 1)
        MMLogger.get_current_instance().removeHandler(caplog.handler)
    assert bool(caplog.records) == closed
    names = {name.partition('/')[2] for name in runner.visualizer.scalars[0][1]}
    assert names == {f'backbone.stages.0.blocks.{i}.attn' for i in (0, 1)}


def test_all_stages_are_told_and_nothing_that_is_not_measured(caplog):
    """SimA has no exponent."""
    runner, hook = Runner(3.0), AttentionShareHook()
    assert (hook.interval, hook.begin) == (200, 1000)
    hook.interval = hook.begin = 1
    soft = SOFT(dict(embed_dims=[16] * 3, num_heads=[1] * 3, depths=[1] * 3), out_indices=(2,))
    runner.model = nn.ModuleDict(dict(backbone=soft))
    for stage in soft.stages:
        nn.init.constant_(stage.blocks[0].attn.bottleneck.norm.weight, 3.0)
    with caplog.at_level(logging.WARNING, 'mmengine'):
        MMLogger.get_current_instance().addHandler(caplog.handler)
        runner.train(hook, 1)
        MMLogger.get_current_instance().removeHandler(caplog.handler)
    assert 'less than 1% in stage 0, 1, 2 (from 0)' in caplog.text
    runner.model['backbone'] = SimADeiT(dict(embed_dims=16, num_heads=1, depth=1), out_indices=(0,))
    runner.train(hook, 1)
    assert [*runner.visualizer.scalars[-1][1]] == [
        f'attention_{kind}/backbone.blocks.0.attn' for kind in ('share', 'gain')
    ]


def test_a_network_without_such_attention_is_left_alone():
    runner, hook = Runner(0.3), AttentionShareHook(interval=1, begin=1)
    runner.model = nn.ModuleDict(dict(backbone=nn.Conv2d(3, 4, 1)))
    runner.train(hook, 2)
    assert not runner.visualizer.scalars
