"""What a GPU would have to do, counted on any machine: tensors without memory take the route of CUDA's."""
import itertools
import sys
from collections import defaultdict
from pathlib import Path
from typing import Callable, Dict, NamedTuple, Sequence, Tuple
from unittest import mock

import pandas as pd
import torch
from mmengine.registry import MODELS
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

import mmsoft
from mmsoft.ops import fused
from .benchmark import fold_norms
from .contenders import CONTENDERS

aten = torch.ops.aten
ROOT = Path(mmsoft.__file__).parent
SIZES = [((224, 224), 128), ((512, 512), 2), ((512, 512), 16), ((800, 1344), 2), ((800, 1344), 16)]

# What waits for the device to have finished: reading a number, results whose shape depends on numbers, error codes.
_WAITS = {
    getattr(aten, name)
    for name in ('_local_scalar_dense', 'nonzero', 'masked_select', 'equal', '_linalg_eigh', '_linalg_check_errors',
                 '_unique2', 'unique_dim', 'linalg_eig', '_linalg_svd')
}

# What launches nothing, and is no view in name.
_FREE = {
    getattr(aten, name)
    for name in ('empty', 'empty_like', 'empty_strided', 'new_empty', 'detach', '_unsafe_view')
}

# What PyTorch's own counter leaves out.
_OTHERS = {
    aten.baddbmm_: flop_registry[aten.baddbmm],
    aten.linalg_cholesky_ex: lambda matrix, *args, **kwargs: matrix.numel() * matrix.size(-1) // 3,
    aten.linalg_solve_triangular: lambda matrix, right, *args, **kwargs: right.numel() * matrix.size(-1),
}


class Count(NamedTuple):
    """What is counted.

    Attributes:
        launches: Dispatched operators that are no views.
        flops: Floating-point operations of products and convolutions, two a multiply-accumulate.
        bytes: Of all that these operators read and write, if no cache helps.
        waits: Synchronisations with the host.
    """
    launches: int = 0
    flops: int = 0
    bytes: int = 0
    waits: int = 0

    def __add__(self, other: 'Count') -> 'Count':
        return Count(*(a + b for a, b in zip(self, other)))


class CountingMode(TorchDispatchMode):
    """Counts by the file of the package from which an operator was called, ``''`` if from none."""

    def __init__(self) -> None:
        super().__init__()
        self.by_file: Dict[str, Count] = defaultdict(Count)

    @property
    def total(self) -> Count:
        return sum(self.by_file.values(), Count())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        file, waits = _caller(), int(_waits(func, args, kwargs))
        self.by_file[file] += Count(waits=waits)
        out = func(*args, **kwargs)
        if func.is_view or func._overloadpacket in _FREE:
            return out
        flops = {**flop_registry, **_OTHERS}.get(func._overloadpacket, lambda *args, **kwargs: 0)
        tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor)]
        moved = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        self.by_file[file] += Count(1, int(flops(*args, **kwargs, out_val=out)), moved)
        return out


def count(function: Callable, *args) -> Dict[str, Count]:
    """Counts a function by the package's files.

    Args:
        function (Callable): Anything that works on tensors of the device ``'meta'``, on the route of CUDA's.
        *args: What it is called with.

    Returns:
        dict[str, Count]: By path below the package; ``''`` holds what autograd and other libraries do by themselves.
    """
    route = mock.patch.object(fused, 'available', lambda *tensors: True)
    with route, CountingMode() as mode:
        function(*args)
    return mode.by_file


def count_network(model: str, size: Tuple[int, int], batch: int = 1, backward: bool = False) -> Dict[str, Count]:
    """Counts a contender.

    Args:
        model (str): Key of the contender.
        size (tuple[int, int]): Rows and columns of the pictures.
        batch (int): Pictures at a time.
        backward (bool): Whether to run backward as well, in training mode.

    Returns:
        dict[str, Count]: See :func:`count`.
    """
    network = MODELS.build(CONTENDERS[model].backbone)
    network.train(backward)
    network = (network if backward else fold_norms(network)).to('meta')
    pictures = torch.zeros(batch, 3, *size, device='meta')

    def step() -> None:
        with torch.set_grad_enabled(backward):
            outs = network(pictures)
            if backward:
                sum(out.mean() for out in outs).backward()

    return count(step)


def count_tables(models: Sequence[str]) -> str:
    """Markdown: what evaluation and training of each model cost, and what the parts of the last cost."""
    rows, by_file = [], {}
    for model, (size, batch), backward in itertools.product(models, SIZES, (False, True)):
        by_file = count_network(model, size, batch, backward)
        total, inverse = sum(by_file.values(), Count()), Count()
        for file in ('ops/inverse.py', 'ops/resolvent.py'):
            inverse += by_file.get(file, Count())
        rows.append({
            'backbone': CONTENDERS[model].label, 'image': f'{size[0]}×{size[1]}', 'batch': batch,
            'pass': 'training' if backward else 'evaluation', **_columns(total), 'TFLOP of the inverse':
            f'{inverse.flops / 1e12:.3f}', 'host waits': total.waits})
    parts = sorted(by_file.items(), key=lambda item: -item[1].bytes)
    parts = [{'called from': file or 'autograd and others', **_columns(part)} for file, part in parts]
    tables = [pd.DataFrame(each).to_markdown(index=False, disable_numparse=True) for each in (rows, parts)]
    return '\n\nThe last of them by file:\n\n'.join(tables)


def _columns(count: Count) -> dict:
    return {'launches': count.launches, 'TFLOP': f'{count.flops / 1e12:.3f}', 'GB': f'{count.bytes / 1e9:.1f}'}


def _caller() -> str:
    frame = sys._getframe(2)
    while frame:
        path = Path(frame.f_code.co_filename)
        if ROOT in path.parents and path.parent.name != 'analysis' and path.name != 'numerics.py':
            return path.relative_to(ROOT).as_posix()
        frame = frame.f_back
    return ''


def _waits(func, args, kwargs) -> bool:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if func._overloadpacket in (aten.index, aten.index_put, aten.index_put_):
        return any(index.dtype == torch.bool for index in tree_leaves(args[1]) if isinstance(index, Tensor))
    if func._overloadpacket in (aten._to_copy, aten.copy_):
        devices = {t.device for t in tensors} | {kwargs.get('device') or tensors[0].device}
        return len(devices) > 1
    return func._overloadpacket in _WAITS
