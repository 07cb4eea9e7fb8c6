"""How far the basis computed in float32 misses the range of the sketched gradient: ε₀ of the theory's (H5)."""

from __future__ import annotations

import torch

from dprmt.training.norms._hutchpp import _head_basis
from dprmt.training.norms._layer_gradient import layer_gradient

SHAPES = ((16, 300, 200), (256, 768, 768), (1024, 768, 3072), (4096, 1024, 1024))
SPECTRA = {"random": 0.0, "decaying": 1.0, "steep": 3.0}


def missed(
    tokens: int, rows: int, columns: int, power: float, sketch: int, power_iteration: bool, half: bool = False
) -> float:
    """‖(I - QQᵀ)A‖/‖A‖ in Frobenius norms: A in float64, Q from the library's own float32 code.

    ``half``: with the sketch rounded to bfloat16 first, as coarser products would.
    """
    generator = torch.Generator().manual_seed(tokens + columns)
    scale = torch.arange(1, tokens + 1, dtype=torch.float64) ** -power
    a = torch.randn(1, tokens, rows, generator=generator, dtype=torch.float64).float()
    g = (scale[None, :, None] * torch.randn(1, tokens, columns, generator=generator, dtype=torch.float64)).float()
    draws = torch.randn(columns if power_iteration else rows, sketch, generator=generator, dtype=torch.float64).float()
    used = draws.bfloat16().float() if half else draws
    basis = _head_basis(layer_gradient(a, g), used, power_iteration).double()[0]
    a, g, image = a.double(), g.double(), draws.double()
    if power_iteration:
        image = a.mT @ (g @ image)
    exact = g.mT @ (a @ image)
    basis = torch.linalg.qr(basis).Q  # its own rounding is the norms', not the range's
    return float((exact - basis @ (basis.mT @ exact)).norm() / exact.norm())
