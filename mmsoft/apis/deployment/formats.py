"""Exported files: written and read, with what a program must know to use them."""
import io
import json
import logging
import warnings
import zipfile
from contextlib import contextmanager, suppress
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Dict, Iterator, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from mmsoft.utils import UsageError
from mmsoft.utils.files import atomic_write

SUFFIXES = dict(onnx='.onnx', torch='.pt2')
KEY = 'mmsoft'
"""Where the description is: an entry of an ONNX file's metadata, an extra file of one of torch.export."""
OPSET = 17
AXES = {0: 'batch', 2: 'height', 3: 'width'}
"""Dimensions of images that may be free."""
LEAST_SIDE = 33
"""Of free sides in a file of torch.export, for a coarsest stride of 32."""


def is_exported(path: str) -> bool:
    """Whether a file is an exported model by its name."""
    return Path(path).suffix in SUFFIXES.values()


def write(kind: str, graph: nn.Module, example: Tuple[Tensor, ...], free: Sequence[int], description: Dict[str, Any],
          path: Path, divisor: int = 1, least_side: int = LEAST_SIDE) -> None:
    """Exports a model.

    Args:
        kind (str): Key of :data:`SUFFIXES`.
        graph (nn.Module): Takes the tensors that ``graph.inputs`` names and returns those of ``graph.outputs``.
        example (tuple[Tensor]): Its arguments, the first of them images.
        free (Sequence[int]): Dimensions of the images that are others in other calls.
        description (dict): What is kept beside the model, as JSON.
        path (Path): File to write.
        divisor (int): Of free sides in a file of torch.export.
        least_side (int): Of them, too: one more than the coarsest stride, as the recorder cannot reason of maps with a
            single place. Defaults to :data:`LEAST_SIDE`.

    Raises:
        UsageError: If a package is missing, the recorder does not understand the model, or what torch.export recorded
            is wrong at another size.
    """
    text = json.dumps(description, ensure_ascii=False)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter('ignore')  # of what the recorder cannot know to be the same at every size
        if kind == 'torch':
            if not hasattr(torch, 'export'):
                raise UsageError('torch.export came with torch 2.1; update torch, or export to ONNX.')
            contents = io.BytesIO()
            with _one_sentence('torch.export'):
                program = torch.export.export(
                    graph, example, dynamic_shapes=_shapes(graph, free, divisor, least_side), strict=False)
                torch.export.save(program, contents, extra_files={KEY: text})
            if 2 in free and not _holds(contents, graph, example, divisor, least_side):
                raise UsageError(f'torch {torch.__version__} does not record this model for images of any size; give '
                                 '--size HxW, or export to ONNX, which takes any.')
            with atomic_write(path) as file:
                file.write(contents.getvalue())
            return
        onnx = _package('onnx', 'Writing ONNX')
        # By TorchScript, in seconds and for all sizes; the other exporter goes by way of torch.export.
        recorder = dict(dynamo=False) if 'dynamo' in signature(torch.onnx.export).parameters else {}
        contents = io.BytesIO()
        with _one_sentence('torch.onnx'):
            torch.onnx.export(
                graph, example, contents, opset_version=OPSET, input_names=list(graph.inputs),
                output_names=list(graph.outputs), dynamic_axes=dict(images={dim: AXES[dim] for dim in free}),
                **recorder)
    model = onnx.load_model_from_string(contents.getvalue())
    onnx.helper.set_model_props(model, {KEY: text})
    with atomic_write(path) as file:
        file.write(model.SerializeToString())


def read(path: str) -> Tuple[Callable[..., Tuple[Tensor, ...]], Dict[str, Any]]:
    """Reads an exported file; nothing in it is run that is not a tensor operation.

    Args:
        path (str): File that :func:`write` made.

    Returns:
        tuple: The model, which takes and returns tensors on the CPU, and its description.

    Raises:
        UsageError: If it is no such file, or a package is missing.
    """
    if not Path(path).is_file():
        raise UsageError(f'There is no exported model {path}; tools/export.py makes them.')
    read_one = _read_onnx if path.endswith('.onnx') else _read_torch
    try:
        run, text = read_one(path)
    except UsageError:
        raise
    except Exception as error:  # a runtime's own
        raise UsageError(f'{path} cannot be read as an exported model: {str(error).splitlines()[0]}') from error
    if not text:
        raise UsageError(f'{path} was not made by tools/export.py, which writes down what pictures it takes.')
    return run, json.loads(text)


def _read_onnx(path: str) -> Tuple[Callable, Optional[str]]:
    onnxruntime = _package('onnxruntime', f'Running {path}')
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    session = onnxruntime.InferenceSession(path, options, providers=['CPUExecutionProvider'])

    def run(*tensors: Tensor) -> Tuple[Tensor, ...]:
        feed = {one.name: tensor.numpy() for one, tensor in zip(session.get_inputs(), tensors)}
        return tuple(map(torch.from_numpy, session.run(None, feed)))

    return run, session.get_modelmeta().custom_metadata_map.get(KEY)


def _read_torch(path: str) -> Tuple[Callable, Optional[str]]:
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith('.pt'):  # torch.export.load would run what is pickled there
                torch.load(io.BytesIO(archive.read(name)), weights_only=True)
    files = {KEY: ''}
    module = _load(path, extra_files=files)

    def run(*tensors: Tensor) -> Tuple[Tensor, ...]:
        try:
            with torch.no_grad():
                out = module(*tensors)
        except (AssertionError, RuntimeError) as error:  # what was recorded as true of all sizes is not
            raise UsageError(f'{path} does not run on images of {"x".join(map(str, tensors[0].shape[2:]))}: '
                             f'{_first_line(error)}') from error
        return out if isinstance(out, tuple) else (out, )

    return run, files[KEY]


def _load(file: Union[str, io.BytesIO], **kwargs) -> nn.Module:
    """A program of torch.export, whose reader warns of each symbol that it has no use for."""
    with suppress(ImportError):
        import_module('torchvision')  # registers the operators that detectors call
    log = logging.getLogger('torch._export.serde.serialize')
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        return torch.export.load(file, **kwargs).module()
    finally:
        log.setLevel(level)


@contextmanager
def _one_sentence(recorder: str) -> Iterator[None]:
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # a recorder's own
        raise UsageError(f'{recorder} of torch {torch.__version__} does not understand this model: '
                         f'{_first_line(error)}') from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _holds(contents: io.BytesIO, graph: nn.Module, example: Tuple[Tensor, ...], divisor: int, least_side: int) -> bool:
    """Whether a file of torch.export can be read, and is the model at sizes beside the example's as well."""
    batch, channels, height, width = example[0].shape
    generator = torch.Generator().manual_seed(0)
    contents.seek(0)
    try:
        read = _load(contents)
        for more in ((0, 33), (2 * height, 2 * width)):
            sides = [-(-(least_side + one) // divisor) * divisor for one in more]
            images = torch.rand(batch, channels, *sides, generator=generator)
            got, want = (outs if isinstance(outs, tuple) else (outs, )
                         for outs in (read(images, *example[1:]), graph(images, *example[1:])))
            if not _same(got, want):
                return False
    except Exception:  # of a reader that does not understand what its writer wrote
        return False
    return True


def _shapes(graph: nn.Module, free: Sequence[int], divisor: int, least_side: int) -> Tuple[Optional[dict], ...]:
    """The free dimensions in the words of torch.export."""
    sides = {}
    for dim in (2, 3):
        part = dict(min=-(-least_side // divisor), max=8192 // divisor)
        sides[dim] = (torch.export.Dim(AXES[dim], **part) if divisor == 1 else
                      divisor * torch.export.Dim(f'{AXES[dim]}_part', **part))
    dims = {0: torch.export.Dim(AXES[0], min=1, max=256), **sides}
    return ({dim: dims[dim] for dim in free}, *(None for _ in graph.inputs[1:]))


def _package(name: str, purpose: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise UsageError(f'{purpose} needs the package {name}, which is not installed: pip install {name}') from error


def _same(got: Sequence[Tensor], want: Sequence[Tensor]) -> bool:
    """Whether outputs are equal but for rounding, which may exchange or replace a tenth of a detector's rows.

    Two boxes of nearly one score come in either order, and either may suppress the other.
    """
    if any(one.shape != other.shape for one, other in zip(got, want)):
        return False
    if len(want) == 1:
        return torch.allclose(*got, *want, rtol=1e-3, atol=1e-3)
    rows, expected = (torch.cat([out.flatten(1) if out.ndim > 1 else out[:, None] for out in outs], 1)
                      for outs in (got, want))
    matches = (rows[:, None] - expected).abs() <= 1e-3 + 1e-3 * expected.abs()
    return matches.all(-1).any(0).double().mean().item() >= 0.9
