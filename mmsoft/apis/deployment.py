"""Exports whole classifiers, segmenters and detectors to ONNX files, which describe their inputs and are checked."""

import io
import json
import re
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any, Callable, Optional

import torch
from mmengine.config import Config
from torch import Tensor, nn

from mmsoft import __version__
from mmsoft.layers.maps import AdaptivePool
from mmsoft.utils import UsageError
from mmsoft.utils.config import Options, explained, load_config, type_name
from mmsoft.utils.files import atomic_write

from .tasks import build_task

KEY = 'mmsoft'  # of the description, as JSON, in a file's metadata
Size = Optional[Sequence[int]]


def export(
    config: str, checkpoint: str, out: str, size: Size = None, force: bool = False, cfg_options: Options = None
) -> str:
    """Writes a whole model as one ONNX file, with a description of its images; see docs/deployment.md.

    Arguments are the options of ``tools/export.py``; ``size`` is (rows, columns). Returns a summary. UsageError if
    files are missing or exist, options do not fit, the model cannot be exported, or its file gives other results.
    """
    if (path := Path(out)).suffix != '.onnx':
        raise UsageError(f'--out {out} must end with .onnx.')
    if path.exists() and not force:
        raise UsageError(f'{out} exists; add --force to replace it, or choose another --out.')
    if missing := [name for name in ('onnx', 'onnxruntime') if not find_spec(name)]:
        raise UsageError(f'Exporting to ONNX needs more packages: pip install {" ".join(missing)}')
    height, width = size or (256, 320)
    if min(height, width) < 32:
        raise UsageError(f'--size {height} {width} is too small; give at least 32 rows and columns.')
    cfg = load_config(config, cfg_options)
    task = build_task(cfg, checkpoint, 'cpu')
    model, kind = task.inferencer.model, type(task).__name__.lower()
    described = dict(task=kind, **describe(cfg, model), size=list(size) if size else None)
    free: tuple[int, ...] = () if size else (2, 3)
    if cfg.default_scope == 'mmdet':  # mmdet suppresses boxes image by image
        from .detection_graph import Detections

        graph, example = Detections(model), (torch.rand(1, 3, height, width), torch.tensor([height, width]))
    else:
        graph, example, free = Scores(model), (torch.rand(2, 3, height, width),), (0, *free)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter('ignore')  # about values that become constants
        with explained(config, 'exported'):  # heads may need more than images
            contents = to_onnx(graph.eval(), example, free, described)
        with explained(config, 'exported' if size else 'exported for any size; try --size H W'):
            check(contents, graph, example, varied=not size)
    with atomic_write(path) as file:
        file.write(contents)
    return f'{out}: {kind} of images of {f"{height}x{width}" if size else "any size"}, {len(contents) / 1e6:.1f} MB.'


def describe(cfg: Config, model: nn.Module) -> dict[str, Any]:
    """Description of a file for programs: how images become its input, and what its labels mean."""
    settings = cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor') or {}
    test = settings.get('test_cfg') or {}  # the only padding of mmseg
    windows, head = cfg.model.get('test_cfg') or {}, getattr(model, 'decode_head', None)
    steps = [(step, type_name(step)) for step in cfg.test_dataloader.dataset.pipeline]
    meta = getattr(model, 'dataset_meta', None) or getattr(model, '_dataset_meta', None) or {}
    return dict(
        channel_order='RGB' if settings.get('bgr_to_rgb') or settings.get('to_rgb') else 'BGR',
        mean=settings.get('mean'),
        std=settings.get('std'),
        pad_size=test.get('size'),
        pad_divisor=settings.get('pad_size_divisor') or test.get('size_divisor') or 1,
        pipeline=[dict(step, type=name) for step, name in steps if not re.search('Load|Pack', name)],
        slide=dict(crop_size=windows.crop_size, stride=windows.stride) if windows.get('mode') == 'slide' else None,
        align_corners=getattr(model, 'align_corners', None),
        threshold=getattr(head[-1] if isinstance(head, nn.ModuleList) else head, 'threshold', None),
        dataset_meta={key: meta[key] for key in ('classes', 'palette') if meta.get(key)},
        mmsoft=__version__,
    )


class Scores(nn.Module):
    """A classifier or segmenter up to the logits, at the resolution of its head; replaces adaptive pooling."""

    inputs, outputs = ('images',), ('logits',)

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        for module in list(model.modules()):
            for name, child in module.named_children():
                if type(child) is nn.AdaptiveAvgPool2d and child.output_size not in (1, (1, 1)):
                    setattr(module, name, AdaptivePool(child.output_size))

    def forward(self, images: Tensor) -> Tensor:
        """Maps normalised images (B, 3, H, W) to logits (B, classes), or (B, classes, H', W') of a segmenter."""
        return self.model(images, mode='tensor')


def to_onnx(graph: nn.Module, example: tuple[Tensor, ...], free: Sequence[int], description: dict[str, Any]) -> bytes:
    """Exports a graph of tensors, which are named by ``graph.inputs`` and ``graph.outputs``; returns the ONNX file.

    The first tensor of ``example`` holds images (B, 3, H, W), whose dimensions ``free`` are dynamic. The TorchScript
    exporter takes seconds, and its files accept all sizes.
    """
    import onnx

    contents = io.BytesIO()
    by_script = dict(dynamo=False) if 'dynamo' in signature(torch.onnx.export).parameters else {}
    names = dict(input_names=list(graph.inputs), output_names=list(graph.outputs))
    axes = dict(images={dim: ('batch', 'channels', 'height', 'width')[dim] for dim in free})
    torch.onnx.export(graph, example, contents, opset_version=17, dynamic_axes=axes, **names, **by_script)
    model = onnx.load_model_from_string(contents.getvalue())
    text = json.dumps(description, default=lambda value: getattr(value, '__name__', str(value)))
    onnx.helper.set_model_props(model, {KEY: text})
    return model.SerializeToString()


def check(contents: bytes, graph: nn.Module, example: tuple[Tensor, ...], varied: bool) -> None:
    """Raises UsageError if a file gives other results than its graph for other images, of other sizes if ``varied``."""
    (batch, channels, height, width), run = example[0].shape, reader(contents)
    for rows, columns in [(33, 66), (33 + 2 * height, 33 + 2 * width)] if varied else [(height, width)]:
        images = torch.rand(batch, channels, rows, columns, generator=torch.Generator().manual_seed(0))
        want = graph(images, *example[1:])
        if not is_same(run(images, *example[1:]), want if isinstance(want, tuple) else (want,)):
            wrong = f'at {rows}x{columns} the file gives other results, and is not kept; try --size H W'
            raise UsageError(f'torch {torch.__version__} exports this model wrongly: {wrong}.')


def reader(contents: bytes) -> Callable[..., tuple[Tensor, ...]]:
    """Loads a file as a function of tensors, on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    session = onnxruntime.InferenceSession(contents, options, providers=['CPUExecutionProvider'])
    names = [one.name for one in session.get_inputs()]
    return lambda *inputs: tuple(map(torch.from_numpy, session.run(None, dict(zip(names, map(Tensor.numpy, inputs))))))


def is_same(got: Sequence[Tensor], want: Sequence[Tensor]) -> bool:
    """Whether outputs are equal up to rounding, which may change up to a fifth of a detector's boxes."""
    if any(one.shape != other.shape for one, other in zip(got, want)):
        return False
    if len(want) == 1:
        return torch.allclose(*got, *want, rtol=1e-3, atol=1e-3)
    rows, expected = (torch.cat([out.reshape(len(out), -1) for out in outs], 1) for outs in (got, want))
    return torch.isclose(rows[:, None], expected, 1e-3, 1e-3).all(-1).any(0).double().mean().item() >= 0.8
