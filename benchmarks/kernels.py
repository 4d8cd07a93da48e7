"""The kernel matrices that Newton's steps meet in SOFT, and how accurate the networks are."""
from collections import defaultdict
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

import pandas as pd
import torch
from torch import Tensor

from .common import code_version, read_table, write_table
from .contenders import IMAGES, build_contender, contender
from .inside import inverted_matrices

Size = Tuple[int, int]


def look_at_kernels(models: Sequence[str], size: Size, file: Path, checkpoint: Optional[str] = None) -> pd.DataFrame:
    """:func:`share_above_cut` and :func:`errors` of SOFT with all weights and images.

    Args:
        models (Sequence[str]): See :func:`contender`; others than SOFT are left out.
        size (tuple[int, int]): Rows and columns of the image.
        file (Path): CSV file. What it holds of the same code, case and size is not computed again.
        checkpoint (str, optional): Further weights, which are always computed again.

    Returns:
        DataFrame: A row for each model, weights and image.
    """
    (code, _), name = code_version(), f'{size[0]}×{size[1]}'
    known = read_table(file).to_dict('records') if file.exists() else []
    done = {(row['code'], row['size'], row['model'], row['weights'], row['image']): row for row in known}
    rows = []
    for model in models:
        conditions = contender(model).conditions(checkpoint)
        for case in ((model, *condition) for condition in conditions if len(conditions) > 1):
            row = done.get((code, name, *case)) if case[1] != checkpoint else None
            if row is None:
                shares = ', '.join(f'{share:.0%}' for share in share_above_cut(*case, size))
                ours, iteration = errors(*case, size)
                row = dict(zip(('model', 'weights', 'image'), case), size=name, above_the_cut=shares,
                           error=f'{ours:.0e}', error_of_the_iteration=f'{iteration:.0e}', code=code)
                known.append(row)
                write_table(pd.DataFrame(known), file)
            rows.append(row)
    return pd.DataFrame(rows)


@torch.no_grad()
def share_above_cut(model: str, weights: str, image: str, size: Size) -> List[float]:
    r"""Share of the eigenvalues of the kernel matrices that the iteration inverts, in each stage with such matrices.

    T steps from :math:`\alpha M` multiply an eigenvector by :math:`(1 - e^{-s \lambda^2}) / \lambda` with
    :math:`s = \alpha 2^T`: they invert what lies above the cut :math:`1 / \sqrt s` and leave out what lies below.
    """
    shares = defaultdict(list)
    for stage, matrix, alpha in inverted_matrices(build_contender(model, weights).eval(), IMAGES[image](1, *size)):
        eigenvalues = torch.linalg.eigvalsh(matrix[:1].double())  # one head stands for all: they are alike
        shares[stage].append((eigenvalues.square() * alpha[:1] * 2.**20 > 1).double().mean().item())
    return [sum(each) / len(each) for each in shares.values()]


def errors(model: str, weights: str, image: str, size: Size) -> Tuple[float, float]:
    """Largest errors over all maps, relative to the largest value of Newton's iteration in float64.

    Returns:
        tuple[float, float]: Of the network in float32, and of Newton's iteration in float32.
    """
    x, newton = IMAGES[image](1, *size), f'{model}:attention.inverse=newton'

    @torch.no_grad()
    def maps(name: str, dtype: torch.dtype) -> List[Tensor]:
        torch.manual_seed(0)
        network = build_contender(name, weights).to(dtype).eval()
        return [map_.double() for map_ in network(x.to(dtype))]

    exact = maps(newton, torch.float64)
    largest = max(map_.abs().max() for map_ in exact)
    found = (maps(name, torch.float32) for name in (model, newton))
    ours, iteration = (max((a - b).abs().max() / largest for a, b in zip(each, exact)).item() for each in found)
    return ours, iteration
