"""Projectors P (m × r): Gaussian, orthonormal, and the leading singular vectors of a released gradient.

With N(0, 1/r) entries, and with √(m/r) times a uniformly distributed orthonormal frame, E PPᵀ = I: so
E‖Pᵀx‖² = ‖x‖², and P(PᵀG) is unbiased for G. (Entries N(0, 1/r²), as in published code, shrink every gradient, and
with it the clipping norm's meaning, by √r.) Singular vectors are not rescaled: PPᵀ is then the projection on their
span.
"""

from __future__ import annotations

import math

import torch

from dprmt.training.norms import ProbeGenerator


def gaussian_projector(generator: ProbeGenerator, name: str, period: int, m: int, r: int) -> torch.Tensor:
    """Independent N(0, 1/r) entries, a function of seed, name and period alone.

    Returns: float32, on the CPU, so that it is the same for every device.
    """
    return generator.shared(step=period, layer=name, rows=m, probes=r, purpose="projector")


def stiefel_projector(generator: ProbeGenerator, name: str, period: int, m: int, r: int) -> torch.Tensor:
    """√(m/r) times orthonormal columns, uniformly distributed on the Stiefel manifold.

    Notes
    -----
    The factor Q of a Gaussian matrix is uniform once R's diagonal is positive: then Q is a function of the matrix
    that commutes with rotations (Mezzadri 2007, arXiv:math-ph/0609050, section 5).
    """
    normal = generator.shared(
        step=period, layer=name, rows=m, probes=r, purpose="orthonormal projector", dtype=torch.float64
    )
    q, upper = torch.linalg.qr(normal)
    signs = torch.where(upper.diagonal() < 0, -1.0, 1.0)
    return (q * (signs * math.sqrt(m / r))).float()


def singular_projector(gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Left singular vectors of a released gradient, leading ones first, and the singular values."""
    matrix = gradient if gradient.dtype == torch.float64 else gradient.float()
    vectors, values, _ = torch.linalg.svd(matrix, full_matrices=False)
    return vectors, values
