"""Why SOFT's attention closes: a detector of the evidence, watched while it trains with one thing changed."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor

from mmsoft.attention.measure import measured_attention
from mmsoft.attention.soft import SOFTAttention

from .scenes import Method, run


class Watched(NamedTuple):
    """A training that is watched while it runs.

    Attributes:
        method: What is trained.
        changes: Settings of the whole config by dotted keys.
        queries: Factor of the queries' weights before training.
        noise: Whether the gradients of all that makes the kernel are replaced by noise of the same size.
        scale: Factor of the images' sides.
    """

    method: Method
    changes: dict[str, Any] = {}
    queries: float = 1.0
    noise: bool = False
    scale: float = 1.0

    @property
    def network(self) -> str:
        """See :class:`Method`."""
        return self.method.network

    def train(self, seed: int, root: Path, work_dir: Path) -> dict[str, Any]:
        """Trains from the start; returns AP50 with attention and without, and the ``course`` of :class:`Watch`."""
        cfg = self.method.make_config(seed, root, work_dir)
        cfg.merge_from_dict(dict(self.changes, resume=False))
        if self.scale != 1:
            cfg.train_dataloader.dataset.pipeline.insert(2, dict(type='Resize', scale_factor=self.scale))
            cfg.test_dataloader.dataset.pipeline[2].scale_factor = self.scale
        watch = Watch(self)
        found = run(cfg, watch)
        scores, control = ({'box AP50': found[key]['box AP50']} for key in ('scores', 'without_attention'))
        return dict(scores=scores, without_attention=control, iterations=found['iterations'], course=watch.course)


def _keys(*names: str, **factors: float) -> dict[str, Any]:
    """Factors of the optimizer for parameters whose names contain the keys."""
    return {'optim_wrapper.paramwise_cfg.custom_keys': dict.fromkeys(names, factors)}


def _backbone(key: str, value: Any) -> dict[str, Any]:
    return {f'model.backbone.{key}': value}


CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    'none': ('nothing changed, γ = 1', {}),
    'gamma_01': ('γ = 0.1', dict(changes=_backbone('attention.initial_gamma', 0.1))),
    'gamma_03': ('γ = 0.3', dict(changes=_backbone('attention.initial_gamma', 0.3))),
    'gamma_06': ('γ = 0.6', dict(changes=_backbone('attention.initial_gamma', 0.6))),
    'channels_8': ('8 channels a head', dict(changes=_backbone('arch.num_heads', [4, 8, 16]))),
    'channels_16': ('16 channels a head', dict(changes=_backbone('arch.num_heads', [2, 4, 8]))),
    'channels_32_64_128': ('32/64/128 channels a head', dict(changes=_backbone('arch.num_heads', [1, 1, 1]))),
    'frozen_queries': ('queries frozen', dict(changes=_keys('.query.', lr_mult=0))),
    'frozen_sampling': ('sampling frozen', dict(changes=_keys('.bottleneck.conv', lr_mult=0))),
    'frozen_gamma': ("sampling's LayerNorm frozen", dict(changes=_keys('.bottleneck.norm', lr_mult=0))),
    'frozen': ('queries and sampling frozen', dict(changes=_keys('.query.', '.bottleneck.conv', lr_mult=0))),
    'slow_queries': ('queries learn at 0.1 of the rate', dict(changes=_keys('.query.', lr_mult=0.1))),
    'slow': ('queries and sampling, at 0.1', dict(changes=_keys('.query.', '.bottleneck.', lr_mult=0.1))),
    'fast_queries': ('queries, at 10 times the rate', dict(changes=_keys('.query.', lr_mult=10))),
    'eps': ("AdamW's ε = 1e-4, not 1e-8", dict(changes={'optim_wrapper.optimizer.eps': 1e-4})),
    'reversed': ('the kernel goes up the gradient', dict(changes=_keys('.query.', '.bottleneck.', lr_mult=-1))),
    'noise': ('gradients of the kernel are noise', dict(noise=True)),
    'queries_half': ("queries' weights × 0.5", dict(queries=0.5)),
    'queries_double': ("queries' weights × 2", dict(queries=2.0)),
    'decay_0': ('no weight decay', dict(changes={'optim_wrapper.optimizer.weight_decay': 0.0})),
    'decay_05': ('weight decay 0.5, not 0.05', dict(changes={'optim_wrapper.optimizer.weight_decay': 0.5})),
    'decay_gamma': ('no weight decay of γ', dict(changes=_keys('.bottleneck.norm', decay_mult=0))),
    'images_64': ('images of 64²', dict(scale=2 / 3)),
    'images_128': ('images of 128²', dict(scale=4 / 3)),
    'images_192': ('images of 192²', dict(scale=2.0)),
    'short': ('75 iterations', dict(iterations=75)),
    'long': ('450 iterations', dict(iterations=450)),
}
"""What is changed, one thing at a time, to see why attention closes: titles,
and options of :class:`Watched`, or the length of the training."""


class Watch(Hook):
    """Measures attentions every few iterations, with the weights before the step.

    ``course`` has, by the name of an attention in the backbone, for each measurement: ``iteration``, ``share`` and
    ``gain``; and for SOFT ``exponent``, its parts ``queries`` and ``tokens`` (means of ½‖q‖² and ½‖b‖²), the norm of
    the queries' ``weight``, γ's root mean square ``gamma``, and ``gradient``: the norm of that of the queries' weights
    over that of the values' weights, which have the same shape and the same input.
    """

    def __init__(self, watched: Watched, interval: int = 10) -> None:
        self.watched, self.interval = watched, interval
        self.course: dict[str, dict[str, list[float]]] = {}

    def before_train(self, runner: Runner) -> None:
        """Changes what no config does."""
        named = runner.model.backbone.named_modules()
        self.attentions = {name: one for name, one in named if isinstance(one, SOFTAttention)}
        for one in self.attentions.values():
            with torch.no_grad():
                one.query.weight.mul_(self.watched.queries)
            if self.watched.noise:
                for parameter in (*one.query.parameters(), *one.bottleneck.parameters()):
                    parameter.register_hook(lambda g: torch.randn_like(g) * g.square().mean().sqrt())

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Begins to measure, if it is time to."""
        self.stack = ExitStack()
        self.found: dict[str, Any] = {}
        if runner.iter % self.interval and runner.iter + 1 != runner.max_iters:
            return
        self.found = self.stack.enter_context(measured_attention(runner.model.backbone))
        self.more: dict[str, dict[str, float]] = {}
        for name, one in self.attentions.items():
            gamma = one.bottleneck.norm.weight.square().mean().sqrt().item()
            more = self.more[name] = dict(weight=one.query.weight.norm().item(), gamma=gamma)
            for handle in (
                one.bottleneck.register_forward_hook(
                    lambda module, args, b, more=more: more.update(queries=_length(args[0], 1), tokens=_length(b, 2))
                ),
                one.value.weight.register_hook(lambda g, more=more: more.update(value=g.norm().item())),
                one.query.weight.register_hook(lambda g, more=more: more.update(query=g.norm().item())),
            ):
                self.stack.callback(handle.remove)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        """Ends the measurement."""
        self.stack.close()
        for name, one in self.found.items():
            now = dict(iteration=runner.iter, share=one.share, gain=one.gain)
            if name in self.attentions:
                more = self.more[name]
                more['gradient'] = more.pop('query', 0.0) / more.pop('value')
                now.update(exponent=one.exponent, **more)
            course = self.course.setdefault(name, {})
            for key, value in now.items():
                course.setdefault(key, []).append(value)


def _length(tokens: Tensor, channels: int) -> float:
    """Mean of half the squared length of tokens, whose channels are a dimension."""
    return tokens.detach().square().sum(channels).mean().item() / 2
