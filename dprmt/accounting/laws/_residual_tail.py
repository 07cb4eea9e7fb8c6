r"""What a Gaussian sketch may leave in one direction: P(m > x), for every spectrum.

m is the largest squared singular value of M(I - QQᵀ) over ‖M‖²_F. The smaller one of two proved bounds, (H2) and
(H3) of ``docs/theory/randomized_clipping.md``, with the rounding of Q charged (H5).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from dprmt.accounting.laws._comparison_bound import comparison_bound
from dprmt.accounting.laws._elimination_bound import elimination_bound

_LARGEST_ELIMINATED = 40
ROUNDING = 1e-5
"""ε₀ of (H5): Q spans MᵀMS or MᵀS up to an error of this size relative to its Frobenius norm."""
_ROOM = 1e-3
"""ρ: by how much the threshold is lowered relatively."""
_LONG_SKETCH = 1e-30
"""Probability charged for a sketch of extraordinary length."""
_ELIMINATION_ALONE = 0.3
"""1/x over s below which (H3) is the smaller one."""


class Head(NamedTuple):
    """The sketch whose range is taken exactly: its columns, and whether it is of MᵀMS rather than MᵀS'."""

    sketch: int
    power_iteration: bool = False


def residual_tail(share: float, sketch: int, power_iteration: bool) -> float:
    """An upper bound on P(m > share) that holds for every spectrum.

    ``power_iteration``: whether Q spans MᵀMS; otherwise the bound holds for MᵀS' and MᵀMS alike.

    Examples
    --------
    >>> residual_tail(1 / 2, sketch=16, power_iteration=True) < 1e-13
    True
    """
    total = (1.0 + _ROOM) / share
    error = _missed(share, sketch, power_iteration)
    best = 1.0
    narrow = min(sketch, _LARGEST_ELIMINATED)  # more columns leave less; beyond, (H2) is good enough by itself
    for cut in _good_cuts(total, narrow, power_iteration):
        best = min(best, elimination_bound(total, narrow, power_iteration, cut, error**2 / _ROOM))
    if not 8 < sketch == narrow or total > _ELIMINATION_ALONE * sketch:
        best = min(best, comparison_bound(total, sketch, power_iteration, error))
    return min(1.0, best + _LONG_SKETCH)


def _good_cuts(total: float, sketch: int, power_iteration: bool) -> list[float]:
    """Values of θ that make (H3) small; any is valid. None where (H2) is the smaller one."""
    if total > (0.65 if sketch <= 16 else 0.4) * sketch + 1.0:
        return []
    if sketch <= 8:
        factors: tuple[float, ...] = (0.65, 0.85, 1.05, 1.25)
    elif sketch <= 16:
        factors = (0.85, 1.0) if power_iteration else (0.65, 0.85, 1.0)
    else:
        factors = (0.95,) if power_iteration else (0.77,)
    middle = 0.75 * math.sqrt(max(total - 1.0, 0.1) / sketch)
    return [min(max(factor * middle, 0.02), 0.95) for factor in factors]


def _missed(share: float, sketch: int, power_iteration: bool) -> float:
    """κ: an upper bound on how far a direction left over misses the exact constraints, in units of x (H5)."""
    length = 4.0 * (math.log(1.0 / _LONG_SKETCH) + sketch / 2 * math.log(2.0))  # Σ λ‖g‖² except for that probability
    scale = share / (1.0 + _ROOM)
    return ROUNDING * math.sqrt(length) / (scale if power_iteration else math.sqrt(scale))
