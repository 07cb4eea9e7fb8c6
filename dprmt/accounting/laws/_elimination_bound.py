"""What a sketch leaves, by solving for the large directions: (H3) of the theory, §9."""

from __future__ import annotations

import numpy as np

from dprmt.accounting.basics import Array
from dprmt.accounting.laws._hinge_bound import hinge_bound, tangent_bound

_CELLS = 8


def elimination_bound(total: float, sketch: int, power_iteration: bool, cut: float, error: float = 0.0) -> float:
    """A bound on P(m > x), the directions with a share above ``cut``·x eliminated.

    ``error``: κ²/ρ of (H5), what rounding adds to the numerator of each ratio.

    Returns: the worst case over how many directions are eliminated, how many of them exceed x, and their sum.
    """
    if total > 1.0 + (sketch - 1) * cut:  # s directions may be that large: nothing would be left of the sketch
        return 1.0
    weight = _weight(cut, power_iteration)
    if error > weight:
        return 1.0
    eliminated = np.arange(1, sketch, dtype=np.int64)[:, None, None]  # r
    large = np.arange(1, int(total) + 1, dtype=np.int64)[None, :, None]  # b: those above x
    left, right, feasible = _share_cells(total, cut, eliminated, large)
    gain = large * _gains(right / large, power_iteration)
    rest = np.maximum(total - left - (eliminated - large) * cut, 0.0)
    count, gain, dof, terms = (
        np.broadcast_to(part, feasible.shape)[feasible]
        for part in (large, gain * weight, sketch - eliminated + 1.0, rest / cut + error / weight)
    )
    bound = np.minimum(hinge_bound(gain, terms, dof), count * tangent_bound(gain, terms, dof))
    return float(np.max(bound, initial=0.0))


def _share_cells(total: float, cut: float, eliminated: Array, large: Array) -> tuple[Array, Array, Array]:
    """Cells for the sum of the ``large`` directions' shares over x, and which of them can occur."""
    highest = total - (eliminated - large) * cut
    span = np.maximum(highest - large, 0.0)
    ends = np.linspace(0.0, 1.0, _CELLS + 1)
    left, right = large + span * ends[:-1], large + span * ends[1:]
    feasible = np.broadcast_to((large <= eliminated) & (highest >= large), left.shape)
    return left, right, feasible


def _gains(mean: Array, power_iteration: bool) -> Array:
    """Concave majorant of a large direction's coefficient q at the mean share."""
    if power_iteration:
        return np.where(mean < 2.0, (mean - 1.0) / mean**2, 0.25)
    gain: Array = 1.0 - 1.0 / mean
    return gain


def _weight(cut: float, power_iteration: bool) -> float:
    """The value of f at a share ``cut``."""
    return (cut**2 if power_iteration else cut) / (1.0 - cut)
