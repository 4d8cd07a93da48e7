"""ONNX and torch.export files: written with a description of their inputs, and checked before they are kept."""
import io
import json
import warnings
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from mmsoft.utils import UsageError
from mmsoft.utils.files import atomic_write

SUFFIXES = dict(onnx='.onnx', torch='.pt2')
KEY = 'mmsoft'
"""Where the description is, as JSON: an entry of an ONNX file's metadata, an extra file of one of torch.export."""
OPSET = 17
AXES = {0: 'batch', 2: 'height', 3: 'width'}
"""Dimensions of images that may be free."""
MIN_SIDE = 33
"""The minimum of free sides for torch.export: one more than the coarsest stride, as it cannot reason about maps of one
pixel."""


def write(kind: str, graph: nn.Module, example: Tuple[Tensor, ...], free: Sequence[int], description: Dict[str, Any],
          path: Path, divisor: int = 1, min_side: int = MIN_SIDE) -> None:
    """Exports a model, and keeps the file if it gives the model's results on other images, of other sizes where free.

    Args:
        kind (str): ``'onnx'`` or ``'torch'``.
        graph (nn.Module): Takes the tensors that ``graph.inputs`` names and returns those of ``graph.outputs``.
        example (tuple[Tensor]): Its arguments, the first of them images (B, 3, H, W).
        free (Sequence[int]): Dimensions of the images that may differ in other calls.
        description (dict): Kept in the file as JSON.
        path (Path): File to write.
        divisor (int): What free sides are multiples of, in a file of torch.export.
        min_side (int): Their minimum, too. Defaults to :data:`MIN_SIDE`.

    Raises:
        UsageError: If a package is missing, or the file gives other results than the model.
    """
    text = json.dumps(description, default=lambda value: getattr(value, '__name__', str(value)))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter('ignore')  # about values that become constants
        contents = (_onnx(graph, example, free, text) if kind == 'onnx' else
                    _program(graph, example, _shapes(graph, free, divisor, min_side), text))
        run = reader(kind, contents)
        height, width = example[0].shape[2:]
        low, high = (min_side, min_side + 33), (min_side + 2 * height, min_side + 2 * width)
        for sides in ((low, high) if 2 in free else ((height, width), )):
            images = torch.rand(*example[0].shape[:2], *(-(-side // divisor) * divisor for side in sides)
                                if 2 in free else sides, generator=torch.Generator().manual_seed(0))
            want = graph(images, *example[1:])
            try:
                same = is_same(run(images, *example[1:]), want if isinstance(want, tuple) else (want, ))
            except (AssertionError, RuntimeError):  # the program's own checks of what it took as true of all sizes
                same = False
            if not same:
                raise UsageError(f'torch {torch.__version__} exports this model wrongly: at {images.shape[2]}x'
                                 f'{images.shape[3]} the file gives other results, and is not kept; try '
                                 '--size HxW, or the other format.')
    with atomic_write(path) as file:
        file.write(contents)


def _onnx(graph: nn.Module, example: Tuple[Tensor, ...], free: Sequence[int], text: str) -> bytes:
    """By the exporter that uses TorchScript: it takes seconds, and its files take all sizes."""
    onnx, contents = _package('onnx'), io.BytesIO()
    by_script = dict(dynamo=False) if 'dynamo' in signature(torch.onnx.export).parameters else {}
    torch.onnx.export(
        graph, example, contents, opset_version=OPSET, input_names=list(graph.inputs),
        output_names=list(graph.outputs), dynamic_axes=dict(images={dim: AXES[dim] for dim in free}), **by_script)
    model = onnx.load_model_from_string(contents.getvalue())
    onnx.helper.set_model_props(model, {KEY: text})
    return model.SerializeToString()


def _program(graph: nn.Module, example: Tuple[Tensor, ...], shapes: tuple, text: str) -> bytes:
    contents = io.BytesIO()
    program = torch.export.export(graph, example, dynamic_shapes=shapes, strict=False)
    torch.export.save(program, contents, extra_files={KEY: text})
    return contents.getvalue()


def _shapes(graph: nn.Module, free: Sequence[int], divisor: int, min_side: int) -> Tuple[Optional[dict], ...]:
    """The free dimensions, as torch.export wants them."""
    sides = {}
    for dim in (2, 3):
        part = dict(min=-(-min_side // divisor), max=8192 // divisor)
        sides[dim] = (torch.export.Dim(AXES[dim], **part) if divisor == 1 else
                      divisor * torch.export.Dim(f'{AXES[dim]}_part', **part))
    dims = {0: torch.export.Dim(AXES[0], min=1, max=256), **sides}
    return ({dim: dims[dim] for dim in free}, *(None for _ in graph.inputs[1:]))


def reader(kind: str, contents: bytes) -> Callable[..., Tuple[Tensor, ...]]:
    """What an exported file computes, as a function from tensors to a tuple of tensors, on the CPU."""
    if kind == 'torch':
        module = torch.export.load(io.BytesIO(contents)).module()

        def run(*tensors: Tensor) -> Tuple[Tensor, ...]:
            with torch.no_grad():
                out = module(*tensors)
            return out if isinstance(out, tuple) else (out, )
    else:
        onnxruntime = _package('onnxruntime')
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
        session = onnxruntime.InferenceSession(contents, options, providers=['CPUExecutionProvider'])

        def run(*tensors: Tensor) -> Tuple[Tensor, ...]:
            feed = {one.name: tensor.numpy() for one, tensor in zip(session.get_inputs(), tensors)}
            return tuple(map(torch.from_numpy, session.run(None, feed)))

    return run


def is_same(got: Sequence[Tensor], want: Sequence[Tensor]) -> bool:
    """Whether outputs are equal but for rounding, which may replace a fifth of a detector's rows.

    Of two overlapping boxes with nearly one score, rounding decides which one comes first and suppresses the other.
    """
    if any(one.shape != other.shape for one, other in zip(got, want)):
        return False
    if len(want) == 1:
        return torch.allclose(*got, *want, rtol=1e-3, atol=1e-3)
    rows, expected = (torch.cat([out.flatten(1) if out.ndim > 1 else out[:, None] for out in outs], 1)
                      for outs in (got, want))
    matches = (rows[:, None] - expected).abs() <= 1e-3 + 1e-3 * expected.abs()
    return matches.all(-1).any(0).double().mean().item() >= 0.8


def _package(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise UsageError(f'Exporting to ONNX needs the package {name}: pip install {name}') from error
