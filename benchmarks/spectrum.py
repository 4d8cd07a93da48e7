"""What Newton's steps see of the kernel matrices that occur, and how exact the networks are."""
from collections import defaultdict
from pathlib import Path
from typing import List, NamedTuple, Optional, Sequence, Tuple
from unittest import mock

import pandas as pd
import torch
from torch import Tensor, nn

from mmsoft.ops import soft
from mmsoft.utils import UsageError
from .contenders import CONTENDERS, PICTURES, build_contender

Size = Tuple[int, int]


def look_at_kernels(models: Sequence[str], size: Size, file: Path, checkpoint: Optional[str] = None) -> pd.DataFrame:
    """:func:`share_above_cut` and :func:`errors` of SOFT with all weights and pictures.

    Args:
        models (Sequence[str]): Keys of the contenders; others than SOFT are passed over.
        size (tuple[int, int]): Rows and columns of the picture.
        file (Path): CSV file to keep the result in, from which what it has is taken.
        checkpoint (str, optional): Further weights.

    Returns:
        DataFrame: A row a model, weights and picture.
    """
    name = f'{size[0]}×{size[1]}'
    rows = pd.read_csv(file).to_dict('records') if file.exists() else []
    done = {(row['model'], row['weights'], row['picture']) for row in rows}
    for model in models:
        conditions = CONTENDERS[model].conditions(checkpoint)
        for case in ((model, *condition) for condition in conditions if len(conditions) > 1):
            if case not in done:
                shares = ', '.join(f'{share:.0%}' for share in share_above_cut(*case, size))
                error, iteration = errors(*case, size)
                rows.append({
                    **dict(zip(('model', 'weights', 'picture'), case)), f'above the cut, {name}': shares,
                    'error': f'{error:.0e}', 'error of the iteration': f'{iteration:.0e}'})
                pd.DataFrame(rows).to_csv(file, index=False)
    return pd.DataFrame(rows)


@torch.no_grad()
def share_above_cut(model: str, weights: str, picture: str, size: Size) -> List[float]:
    r"""Share of the kernel matrices' eigenvalues that the iteration inverts, of each stage.

    T steps from :math:`\alpha M` multiply an eigenvector by :math:`(1 - e^{-s \lambda^2}) / \lambda` with
    :math:`s = \alpha 2^T`: they invert what lies above the cut :math:`1 / \sqrt s` and leave out what lies below.

    Args:
        model (str): Key of a SOFT among the contenders.
        weights (str): See :func:`build_contender`.
        picture (str): Key of the pictures.
        size (tuple[int, int]): Its rows and columns.

    Returns:
        list[float]: A share for each stage that has such matrices.
    """
    shares = defaultdict(list)
    for stage, matrix, alpha in inverted_matrices(build_contender(model, weights).eval(), PICTURES[picture](1, *size)):
        eigenvalues = torch.linalg.eigvalsh(matrix[:1].double())  # of one head: they are alike
        shares[stage].append((eigenvalues.square() * alpha[:1] * 2.**20 > 1).double().mean().item())
    return [sum(each) / len(each) for each in shares.values()]


class InvertedMatrix(NamedTuple):
    """What a block inverts.

    Attributes:
        stage: The block's stage, from 1.
        matrix: A, with SOFT's ridge, shape (h, m, m).
        alpha: Scale of the iteration's starting value, shape (h, 1).
    """
    stage: int
    matrix: Tensor
    alpha: Tensor


@torch.no_grad()
def inverted_matrices(network: nn.Module, image: Tensor) -> List[InvertedMatrix]:
    """The matrices that SOFT inverts, block by block.

    Args:
        network (SOFT): A backbone.
        image (Tensor): One picture, shape (1, 3, H, W).

    Raises:
        UsageError: If it inverts none.
    """
    seen, done, solve = [], [], soft.inverse_product

    def record(matrix: Tensor, y: Tensor, alpha: Tensor, *args, **kwargs) -> Tensor:
        seen.append(InvertedMatrix(1 + len(done), matrix[0], alpha.expand(1, matrix.size(1), 1, 1)[0, ..., 0]))
        return solve(matrix, y, alpha, *args, **kwargs)

    hooks = [stage.register_forward_hook(lambda *_: done.append(None)) for stage in getattr(network, 'stages', ())]
    with mock.patch.object(soft, 'inverse_product', record):
        network(image)
    for hook in hooks:
        hook.remove()
    if not seen:
        raise UsageError(f'{type(network).__name__} inverts no matrix; give a config of SOFT with its own attention.')
    return seen


def errors(model: str, weights: str, picture: str, size: Size) -> Tuple[float, float]:
    """Largest errors over all maps: of the network in float32, and of Newton's iteration in float32.

    Arguments are those of :func:`share_above_cut`.

    Returns:
        tuple[float, float]: Distances from Newton's iteration in float64, relative to its largest value.
    """
    image, newton = PICTURES[picture](1, *size), dict(inverse='newton')

    @torch.no_grad()
    def maps(dtype: torch.dtype, **options) -> List[Tensor]:
        torch.manual_seed(0)
        network = build_contender(model, weights, **options).to(dtype).eval()
        return [map_.double() for map_ in network(image.to(dtype))]

    exact = maps(torch.float64, **newton)
    largest = max(map_.abs().max() for map_ in exact)
    found = (maps(torch.float32, **options) for options in ({}, newton))
    ours, iteration = (max((a - b).abs().max() / largest for a, b in zip(each, exact)).item() for each in found)
    return ours, iteration
