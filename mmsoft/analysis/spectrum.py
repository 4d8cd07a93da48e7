"""What Newton's steps see of the kernel matrices that occur, and how exact the network stays."""
from typing import List, Tuple
from unittest import mock

import torch
from torch import Tensor

from mmsoft.ops import soft
from .contenders import PICTURES, build_contender

Size = Tuple[int, int]


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
    network, shares = build_contender(model, weights).eval(), []
    seen: List[float] = []

    def record(matrix: Tensor, y: Tensor, alpha: Tensor, iterations: int = 20, *args, **kwargs) -> Tensor:
        eigenvalues = torch.linalg.eigvalsh(matrix[:, :1].double())  # of one head: they are alike
        seen.append((eigenvalues.square() * alpha[:, :1, :, 0] * 2.**iterations > 1).double().mean().item())
        return solve(matrix, y, alpha, iterations, *args, **kwargs)

    def end_stage(*_) -> None:
        if seen:
            shares.append(sum(seen) / len(seen))
            seen.clear()

    for stage in network.stages:
        stage.register_forward_hook(end_stage)
    solve = soft.inverse_product
    with mock.patch.object(soft, 'inverse_product', record):
        network(PICTURES[picture](1, *size))
    return shares


def errors(model: str, weights: str, picture: str, size: Size) -> Tuple[float, float]:
    """Largest errors of all maps: of the network in float32, and of Newton's iteration in float32.

    Args:
        model (str): Key of a SOFT among the contenders.
        weights (str): See :func:`build_contender`.
        picture (str): Key of the pictures.
        size (tuple[int, int]): Its rows and columns.

    Returns:
        tuple[float, float]: Distances from Newton's iteration in float64, relative to its largest value.
    """
    image = PICTURES[picture](1, *size)

    def maps(dtype: torch.dtype, **options) -> List[Tensor]:
        torch.manual_seed(0)
        network = build_contender(model, weights, **options).to(dtype).eval()
        with torch.no_grad():
            return [map_.double() for map_ in network(image.to(dtype))]

    newton = dict(attention=dict(type='SOFTAttention', norm='norm' in model, inverse='newton'))
    exact = maps(torch.float64, **newton)
    largest = max(map_.abs().max() for map_ in exact)
    ours, iteration = (
        max((a - b).abs().max() for a, b in zip(maps(torch.float32, **options), exact)) for options in ({}, newton))
    return (ours / largest).item(), (iteration / largest).item()
