"""Measures what attention contributes to a running network and attends to, and removes it for comparison."""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, Optional

import torch
from torch import Tensor, nn

from mmsoft.ops.gaussian import gaussian_kernel

from .base import Attention, MultiheadAttention
from .soft import BottleneckTokens, SOFTAttention
from .softmax import SoftmaxAttention


class Contribution:
    """What one attention contributes to its block.

    Attributes:
        share: Norm of the attention's branch over the norm of what it is added to: the convolution of the values in
            SOFT, the input of the block elsewhere. None until the network has run.
        exponent: SOFT: mean of ½‖q − b‖² over queries q and all bottleneck tokens b. The kernel is exp(−½‖q − b‖²) and
            enters the product twice, so far above 5 attention is closed. None for other attentions.
        gain: Norm of the attention's output over the norm of the values, for SOFT and subclasses of MultiheadAttention.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._exponents: list[float] = []

    share = property(lambda self: self._ratio('attention', 'beside'))
    gain = property(lambda self: self._ratio('output', 'values'))
    exponent = property(lambda self: sum(self._exponents) / len(self._exponents) if self._exponents else None)

    def add(self, **tensors: Tensor) -> None:
        """Adds the squared norms of tensors, by the names that the properties use."""
        for name, tensor in tensors.items():
            self._sums[name] = self._sums.get(name, 0.0) + tensor.detach().float().square().sum().item()

    def add_exponent(self, q: Tensor, bottleneck: Tensor) -> None:
        """Adds the mean exponent of queries (G, n, d) and bottleneck tokens (G, m, d)."""
        q, b = q.detach().float(), bottleneck.detach().float()
        square = q.square().sum(-1).mean(-1) + b.square().sum(-1).mean(-1)
        self._exponents.append((square / 2 - (q.mean(-2) * b.mean(-2)).sum(-1)).mean().item())

    def _ratio(self, above: str, below: str) -> Optional[float]:
        return (self._sums.get(above, 0.0) / self._sums[below]) ** 0.5 if self._sums.get(below) else None


@contextmanager
def measured_attention(model: nn.Module) -> Iterator[dict[str, Contribution]]:
    """Measures the attentions of a model, except those of the class token alone, while the context lasts.

    ``model`` contains mmsoft's attentions, or a user's subclasses of them. Yields a dict of contributions by the names
    of the attentions in the model; each forward pass adds to them.
    """
    contributions: dict[str, Contribution] = {}
    modules = dict(model.named_modules())
    with ExitStack() as stack:
        for name, attention in _attentions(model).items():
            one = contributions[name] = Contribution()
            block = modules[name.rpartition('.')[0]]
            is_soft = isinstance(attention, SOFTAttention)
            for handle in _soft_hooks(attention, one) if is_soft else _residual_hooks(attention, block, one):
                stack.callback(handle.remove)
        yield contributions


@contextmanager
def without_attention(model: nn.Module, stages: Optional[Sequence[int]] = None) -> Iterator[int]:
    """Sets the output of attention to zero while the context lasts, as a control for whether a network uses it.

    The rest of a block stays: convolutions of the values, residual connections, FFNs, the bias of the projection.
    Yields the number of attentions. With ``with_cp=True``, the backward pass recomputes blocks and belongs inside.

    Args:
        model (nn.Module): Any model that contains mmsoft's attentions.
        stages (Sequence[int], optional): Stages of SOFT and CvT, or blocks of XCiT and DeiT, counted from 0. Defaults
            to None: all, except the class token's and, unless there are no others, softmax, as in SOFT's last stage.
    """
    chosen = _attentions(model)
    if stages is None:
        chosen = {name: one for name, one in chosen.items() if not isinstance(one, SoftmaxAttention)} or chosen
    else:
        chosen = {name: one for name, one in chosen.items() if stage_of(name) in stages}
    with ExitStack() as stack:
        for one in chosen.values():
            handle = one.attended.register_forward_hook(lambda module, args, out: torch.zeros_like(out), prepend=True)
            stack.callback(handle.remove)
        yield len(chosen)


class Bottleneck(NamedTuple):
    """Queries (h, d, H', W') of a SOFT attention, and the tokens (h, m, d) that were sampled from them on a grid."""

    queries: Tensor
    tokens: Tensor
    grid: tuple[int, int]

    def kernel(self, y: float, x: float) -> tuple[Tensor, tuple[float, float]]:
        r"""Kernel of the token nearest to (y, x), :math:`\exp(-\frac12 \|b - q_i\|^2)`: what this token attends to.

        Places are fractions of height and width. Returns the kernel (H', W'), a mean over heads, and the token's place.
        """
        row, column = (min(int(part * count), count - 1) for part, count in zip((y, x), self.grid))
        token = self.tokens[:, row * self.grid[1] + column, None]
        kernel = gaussian_kernel(token, self.queries.flatten(2).mT).mean(0).view(self.queries.shape[2:])
        return kernel, ((row + 0.5) / self.grid[0], (column + 0.5) / self.grid[1])


@contextmanager
def watch_bottlenecks(backbone: nn.Module) -> Iterator[dict[str, Bottleneck]]:
    """Yields a dict of the bottlenecks, by name, of SOFT attentions that sample on a grid, from each forward pass."""
    seen: dict[str, Bottleneck] = {}
    names = {module: name for name, module in backbone.named_modules() if isinstance(module, BottleneckTokens)}

    def keep(module: nn.Module, inputs: tuple, tokens: Tensor) -> None:
        if module in names and not module.picks:
            seen[names[module]] = Bottleneck(inputs[0].detach(), tokens.detach(), module.grid(inputs[0].shape[2:]))

    with nn.modules.module.register_module_forward_hook(keep):
        yield seen


def stage_of(name: str) -> int:
    """Stage of an attention by its name in the model, counted from 0; its block if the architecture has no stages."""
    found = re.search(r'(?:^|\.)(?:stages|blocks)\.(\d+)', name)
    return int(found[1]) if found else 0


def _attentions(model: nn.Module) -> dict[str, Attention]:  # a class token's says nothing about the map
    return {name: one for name, one in model.named_modules() if isinstance(one, Attention) and not one.for_class_token}


def _soft_hooks(attention: SOFTAttention, one: Contribution) -> list:
    kept: dict[str, Tensor] = {}

    def attended(module: nn.Module, args: tuple, out: Tensor) -> None:
        kept['attention'] = out
        one.add(attention=out, output=out)

    def projected(module: nn.Module, args: tuple[Tensor]) -> None:
        one.add(beside=args[0] - kept.pop('attention'))

    def sampled(module: nn.Module, args: tuple[Tensor], tokens: Tensor) -> None:
        one.add_exponent(args[0].flatten(2).transpose(1, 2), tokens)

    return [
        attention.attended.register_forward_hook(attended),
        attention.proj.register_forward_pre_hook(projected),
        attention.bottleneck.register_forward_hook(sampled),
        attention.value.register_forward_hook(lambda module, args, out: one.add(values=out)),
    ]


def _residual_hooks(attention: Attention, block: nn.Module, one: Contribution) -> list:
    hooks = [
        block.register_forward_pre_hook(lambda module, args: one.add(beside=args[0])),
        attention.register_forward_hook(lambda module, args, out: one.add(attention=out * getattr(block, 'gamma1', 1))),
        attention.attended.register_forward_hook(lambda module, args, out: one.add(output=out)),
    ]
    if isinstance(attention, MultiheadAttention):
        third = (lambda qkv: qkv.chunk(3, -1)[2]) if attention.is_linear else (lambda qkv: qkv[2])
        hooks.append(attention.qkv.register_forward_hook(lambda module, args, qkv: one.add(values=third(qkv))))
    return hooks
