"""A function of symmetric matrices times thin ones, from a block Krylov space."""
from typing import Callable, Tuple

import torch
from torch import Tensor


def krylov_product(matrix: Tensor,
                   y: Tensor,
                   function: Callable[[Tensor], Tensor],
                   steps: int = 12,
                   tolerance: float = 2e-5) -> Tuple[Tensor, Tensor]:
    r"""Approximates :math:`f(M) \, y` from the block Krylov space of ``y``, without factorising M.

    The Rayleigh–Ritz approximation :math:`Q f(Q^\top M Q) Q^\top y`, with Q an orthonormal basis of
    :math:`\{y, My, \dots, M^{s-1}y\}`, converges within a few steps where f is smooth on all but a few eigenvalues
    (Saad, *Analysis of some Krylov subspace approximations*, 1992). The kernel matrix of tokens that resemble each
    other is of this sort. The basis is orthogonalised twice and so stays orthonormal whatever the ranks of y and M.

    Args:
        matrix (Tensor): Symmetric matrices M of shape (g, m, m). Use float64 where the largest eigenvalue exceeds the
            others by orders of magnitude: its rounding would drown them.
        y (Tensor): Shape (g, m, c) with c much smaller than m.
        function (Callable): Maps eigenvalues of shape (g, k) to f of them.
        steps (int): Blocks of the basis at most. Defaults to 12.
        tolerance (float): Size of the result's component along the last block, relative to the result, at which the
            steps end. It estimates the error of one step before; the result's own is smaller. Defaults to 2e-5.

    Returns:
        tuple[Tensor, Tensor]: The product of shape (g, m, c), and which of the g products have converged.
    """
    width = y.size(-1)
    steps = min(steps, matrix.size(-1) // width)
    basis = torch.linalg.qr(y).Q
    image = matrix @ basis
    for step in range(2, steps + 1):
        block = image[..., -width:]
        for _ in range(2):
            block = torch.linalg.qr(block - basis @ (basis.mT @ block)).Q
        basis = torch.cat([basis, block], dim=-1)
        image = torch.cat([image, matrix @ block], dim=-1)
        if step % 2 == 0 or step == steps:
            ritz_values, ritz_vectors = torch.linalg.eigh(basis.mT @ image)
            coefficients = ritz_vectors @ (function(ritz_values).unsqueeze(-1) * (ritz_vectors.mT @ (basis.mT @ y)))
            last, whole = coefficients[:, -width:].flatten(1).norm(dim=1), coefficients.flatten(1).norm(dim=1)
            converged = last <= tolerance * whole
            if converged.all():
                break
    return basis @ coefficients, converged
