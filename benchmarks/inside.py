"""Forward hooks that look into attentions (queries, keys, values, products, SOFT's matrices) or switch them off."""
import re
from contextlib import ExitStack, contextmanager
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Type

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.attention import Attention, MultiheadAttention, NystromformerAttention, SOFTAttention, SoftmaxAttention
from mmsoft.attention.nystromformer import nystrom_product
from mmsoft.ops import gaussian_kernel, soft_norm_attention
from mmsoft.ops.soft import RIDGE, soft_alpha, soft_norm_alpha
from mmsoft.utils import UsageError

POWER_STEPS = 50


class Product(NamedTuple):
    """What one attention computes for one batch.

    Attributes:
        attention: The module.
        stage: Its stage in a pyramid, from 1, or 0.
        queries: Shape (B, h, n, d).
        keys: Shape (B, h, m, d): keys, or the bottleneck tokens of SOFT.
        values: Shape (B, h, n, c).
        multiply: The product with other values, shape (B, h, n, c') to the same. It is linear.
        hw: Rows and columns of the map, whose tokens are the last of the n.
    """
    attention: Attention
    stage: int
    queries: Tensor
    keys: Tensor
    values: Tensor
    multiply: Callable[[Tensor], Tensor]
    hw: Tuple[int, int]

    @property
    def extra(self) -> int:
        """Number of class tokens, which come before the tokens of the map."""
        return self.queries.size(2) - self.hw[0] * self.hw[1]

    def row(self, token: int) -> Tensor:
        r"""The weights with which a token of the map attends to all of them, shape (B, h, H', W').

        In :math:`O = S V` row i of S is the gradient of :math:`O_i` with respect to V, so no n×n matrix is needed.
        """
        values = torch.zeros_like(self.values).requires_grad_()
        with torch.enable_grad():
            total = self.multiply(values)[:, :, self.extra + token, 0].sum()
        grad, = torch.autograd.grad(total, values)
        return grad[:, :, self.extra:, 0].unflatten(-1, self.hw)


@torch.no_grad()
def products(network: nn.Module, image: Tensor, kind: Type[Attention] = Attention, stage: int = 0) -> List[Product]:
    """The products of all attentions of a kind in one forward pass, in the order of the network.

    Args:
        network (nn.Module): A backbone.
        image (Tensor): What it is called with.
        kind (type): Kind of attention.
        stage (int): Only in this stage of a pyramid, from 1. Defaults to 0: everywhere.

    Raises:
        UsageError: If the network has none.
    """
    found, parts = [], {}
    with ExitStack() as stack:

        def hook(module: nn.Module, function: Callable) -> None:
            stack.callback(module.register_forward_hook(function).remove)

        for number, attention in _attentions(network, kind):
            if stage in (0, number):
                for name in ('qkv', 'query', 'value', 'bottleneck'):
                    part = getattr(attention, name, None)
                    if isinstance(part, nn.Module):
                        hook(part, lambda module, args, out, name=name: parts.update({name: out}))
                hook(attention, lambda module, args, out, number=number: found.append(
                    _product(module, number, args[1], parts)))
        network(image)
    if not found:
        where = f' in stage {stage}' if stage else ''
        raise UsageError(f'{type(network).__name__} has no {kind.__name__}{where}, which this measurement needs; give '
                         'the config of a network that has one.')
    return found


def _attentions(network: nn.Module, kind: Type[Attention]) -> Iterator[Tuple[int, Attention]]:
    """Attentions of a kind with the number of their stage."""
    for name, module in network.named_modules():
        if isinstance(module, kind):
            stage = re.search(r'(?:^|\.)stages\.(\d+)\.', name)
            yield int(stage[1]) + 1 if stage else 0, module


def _product(attention: Attention, stage: int, hw: Tuple[int, int], parts: Dict[str, Tensor]) -> Product:
    if isinstance(attention, SOFTAttention):
        q, v = (parts[name].unflatten(2, (attention.num_heads, -1)).transpose(1, 2) for name in ('query', 'value'))
        q = q * attention.scale
        keys = parts['bottleneck'].unflatten(0, (-1, attention.num_heads))

        def multiply(values: Tensor) -> Tensor:
            return attention.product(q, keys, values, **attention.options)
    else:
        q, keys, v = parts['qkv']

        def multiply(values: Tensor) -> Tensor:
            if isinstance(attention, MultiheadAttention):
                return attention.product(q, keys, values)
            assert isinstance(attention, NystromformerAttention)
            scaled = [t * q.size(-1)**-0.25 for t in (q, keys)]
            landmarks = [attention._landmarks(t, hw) for t in scaled]
            return nystrom_product(*scaled, values, *landmarks, attention.iterations)

    return Product(attention, stage, q, keys, v, multiply, hw)


class InvertedMatrix(NamedTuple):
    """What a block of SOFT inverts for the first image of a batch.

    Attributes:
        stage: The block's stage, from 1.
        matrix: A, with SOFT's ridge, shape (h, m, m).
        alpha: Scale of the iteration's starting value, shape (h, 1).
    """
    stage: int
    matrix: Tensor
    alpha: Tensor


def inverted_matrices(network: nn.Module, image: Tensor) -> List[InvertedMatrix]:
    """The matrices that SOFT inverts, block by block; see :func:`products`."""
    found = []
    for product in products(network, image, SOFTAttention):
        if product.attention.product is soft_norm_attention:
            matrix = gaussian_kernel(product.keys)
            alpha = soft_norm_alpha(matrix, matrix.sum(-1, keepdim=True))
        else:
            matrix = gaussian_kernel(product.keys, ridge=RIDGE)
            alpha = soft_alpha(matrix, RIDGE)
        found.append(InvertedMatrix(product.stage, matrix[0], alpha.expand(1, len(matrix[0]), 1, 1)[0, ..., 0]))
    return found


@torch.no_grad()
def attention_norms(network: nn.Module, images: Tensor) -> List[float]:
    r"""Spectral norm of the matrix that SOFT multiplies its values by (2207.03341, Sec. 3.3), by power iteration.

    Returns:
        list[float]: For each stage with such attention, the mean over images, blocks and heads.
    """
    norms: Dict[int, List[float]] = {}
    for product in products(network, images, SOFTAttention):
        x = torch.ones_like(product.values[..., :1])
        for _ in range(POWER_STEPS):
            x = product.multiply(x / x.norm(dim=-2, keepdim=True))
        norms.setdefault(product.stage, []).extend(x.norm(dim=-2).flatten().tolist())
    return [sum(seen) / len(seen) for seen in norms.values()]


@contextmanager
def without_attention(network: nn.Module, stages: Optional[Sequence[int]] = None) -> Iterator[int]:
    """Inside, attentions return nothing but what they add to their product: SOFT's convolution of the values.

    It is a control: whatever a trained network still scores does not come from its attention. Class tokens that
    attend by a module of their own keep it, and so does softmax in networks whose other stages attend otherwise.

    Args:
        network (nn.Module): A backbone, or a model with backbones in it.
        stages (Sequence[int], optional): Stages of a pyramid, from 1. Defaults to None: all.

    Yields:
        int: Number of attentions that are switched off.
    """
    chosen = [module for stage, module in _attentions(network, Attention)
              if not module.for_class_token and (stages is None or stage in stages)]
    chosen = [module for module in chosen if not isinstance(module, SoftmaxAttention)] or chosen
    handles = [handle for module in chosen for handle in _switch_off(module)]
    try:
        yield len(chosen)
    finally:
        for handle in handles:
            handle.remove()


def _switch_off(attention: Attention) -> list:
    if not isinstance(attention, SOFTAttention):
        return [attention.proj.register_forward_pre_hook(lambda module, args: (torch.zeros_like(args[0]), ))]
    seen = {}

    def keep_convolution(module: nn.Module, args: tuple) -> tuple:
        rows, columns = seen['hw']
        extra = seen['v'].size(1) - rows * columns
        return (F.pad(attention._convolve(seen['v'][:, extra:], (rows, columns)), (0, 0, extra, 0)), )

    return [
        attention.value.register_forward_hook(lambda module, args, v: seen.update(v=v)),
        attention.bottleneck.register_forward_pre_hook(lambda module, args: seen.update(hw=args[0].shape[-2:])),
        attention.proj.register_forward_pre_hook(keep_convolution)
    ]
