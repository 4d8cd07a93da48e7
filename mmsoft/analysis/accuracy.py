"""How far fast arithmetic in float32 is from the published arithmetic in float64, on whole networks."""
from typing import List, NamedTuple, Sequence, Tuple

import torch
from mmengine.logging import print_log

from .benchmark import size_name
from .benchmark_report import markdown_table
from .contenders import ENTRANTS, build_contender
from .parity_weights import parity_images

Size = Tuple[int, int]


class Accuracy(NamedTuple):
    """Largest absolute errors over all four maps.

    Attributes:
        model: Key of the contender.
        size: Rows and columns of the image.
        error: Of the contender in float32.
        noise: Of the faithful iteration in float32: what the published network's own rounding does.
        largest: Largest absolute value of the exact maps.
    """
    model: str
    size: Size
    error: float
    noise: float
    largest: float


def measure_accuracy(models: Sequence[str], sizes: Sequence[Size]) -> List[Accuracy]:
    """Compares SOFT's contenders with Newton's iteration in float64, on the parity weights.

    Args:
        models (Sequence[str]): Keys of contenders; those that are not SOFT are passed over.
        sizes (Sequence[tuple[int, int]]): Rows and columns of the image.

    Returns:
        list[Accuracy]: One entry a contender and size.
    """
    results = []
    for model in models:
        contender = ENTRANTS[model]
        if contender.backbone['type'] != 'mmsoft.SOFT' or contender.dense:
            continue
        faithful = contender._replace(backbone=dict(contender.backbone, inverse='newton'))
        for size in sizes:
            exact = _maps(faithful, size, torch.float64)
            error, noise = (_distance(_maps(one, size, torch.float32), exact) for one in (contender, faithful))
            largest = max(map_.abs().max().item() for map_ in exact)
            results.append(Accuracy(model, size, error, noise, largest))
            print_log(f'    {model} at {size_name(size)}: {error:.1e} from float64, the iteration {noise:.1e}')
    return results


def accuracy_section(results: Sequence[Accuracy]) -> str:
    """A Markdown section, empty without results."""
    if not results:
        return ''
    rows = [[ENTRANTS[r.model].label, size_name(r.size), f'{r.error:.1e}', f'{r.noise:.1e}', f'{r.largest:.1f}']
            for r in results]
    header = ['backbone', 'image', 'ours, float32', 'iteration, float32', 'largest value']
    return ('## Accuracy\n\nLargest absolute difference to Newton\'s iteration in float64 over the four maps, on the '
            f'parity weights, on the CPU.\n\n{markdown_table(header, rows)}')


def _maps(contender, size: Size, dtype: torch.dtype) -> List[torch.Tensor]:
    model = build_contender(contender).to(dtype)
    model.eval()
    with torch.no_grad():
        return [map_.double() for map_ in model(parity_images(1, *size).to(dtype))]


def _distance(maps: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float:
    return max((a - b).abs().max().item() for a, b in zip(maps, exact))
