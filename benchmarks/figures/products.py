"""Looking into a network's attention: its product with the values, and single rows of the matrix it never holds."""
from importlib import import_module
from typing import Callable, List, NamedTuple, Optional, Tuple, Type
from unittest import mock

import torch
from torch import Tensor, nn

from mmsoft.attention import Attention, NystromformerAttention
from mmsoft.utils import UsageError


class Product(NamedTuple):
    """A product of queries, keys and values that an attention has made.

    Attributes:
        function: Linear in its third argument, the values.
        args: Queries (B, h, n, d), what stands for the keys, values (B, h, n, c), and what else the function takes.
        options: What it takes by name.
        hw: Rows and columns of the map, whose tokens are the last of the n.
    """
    function: Callable
    args: Tuple
    options: dict
    hw: Tuple[int, int]

    @property
    def extra(self) -> int:
        """Class tokens, which are in front of the map's."""
        return self.args[0].size(2) - self.hw[0] * self.hw[1]

    def row(self, token: int) -> Tensor:
        r"""The weights with which a token of the map attends to all of them.

        Attention is linear in the values, :math:`O = S V`, so row i of S is the gradient of :math:`O_i` with respect
        to V: it takes a forward and a backward pass, and no n×n matrix unless the attention itself makes one.

        Args:
            token (int): Row of the map · columns + column.

        Returns:
            Tensor: Shape (B, h, H', W').
        """
        values = torch.zeros_like(self.args[2]).requires_grad_()
        with torch.enable_grad():
            out = self.function(*self.args[:2], values, *self.args[3:], **self.options)
        grad, = torch.autograd.grad(out[:, :, self.extra + token, 0].sum(), values)
        return grad[:, :, self.extra:, 0].unflatten(-1, self.hw)


@torch.no_grad()
def last_product(network: nn.Module, image: Tensor, kind: Type[Attention], stage: Optional[int] = None) -> Product:
    """The product of the last attention of a kind.

    Args:
        network (nn.Module): A backbone.
        image (Tensor): What to call it with.
        kind (type): Kind of attention.
        stage (int, optional): Only those of this stage of a pyramid, from 1.

    Raises:
        UsageError: If the network has none.
    """
    body = network
    if stage is not None:
        stages = getattr(network, 'stages', ())
        body = stages[stage - 1] if stage <= len(stages) else nn.Identity()
    attentions = [module for module in body.modules() if isinstance(module, kind)]
    if not attentions:
        raise UsageError(f'{type(network).__name__} has no {kind.__name__}{f" in stage {stage}" if stage else ""}, which '
                         'this figure shows; give the config of a network that has.')
    entered: List[tuple] = []
    hook = attentions[-1].register_forward_pre_hook(lambda module, args: entered.append(args))
    network(image)
    hook.remove()
    return _product(attentions[-1], *entered[0][:2])


def _product(attention: Attention, x: Tensor, hw: Tuple[int, int]) -> Product:
    owner, name = attention, 'product'
    if isinstance(attention, NystromformerAttention):
        owner, name = import_module(NystromformerAttention.__module__), 'nystrom_product'
    function, seen = getattr(owner, name), []

    def record(*args, **options) -> Tensor:
        seen.append(Product(function, args, options, hw))
        return function(*args, **options)

    with mock.patch.object(owner, name, record):
        attention(x, hw)
    return seen[0]
