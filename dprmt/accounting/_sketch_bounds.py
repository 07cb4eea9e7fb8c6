r"""What a Gaussian sketch may leave in one direction: P(m > x), for every spectrum.

m is the largest squared singular value of M(I - QQᵀ) over ‖M‖²_F. The smaller one of two proved bounds, (H2) and
(H3) of ``docs/theory/randomized_clipping.md``.
"""

from __future__ import annotations

import math

from dprmt.accounting._sketch_comparison import comparison_bound
from dprmt.accounting._sketch_elimination import elimination_bound

_LARGEST_ELIMINATED = 40
_NEGLIGIBLE = 1e-12
_CUTS, _MORE_CUTS = (0.75, 1.0), (0.65, 0.85, 1.05, 1.25)


def residual_tail(share: float, sketch: int, power_iteration: bool) -> float:
    """An upper bound on P(m > share) that holds for every spectrum.

    ``power_iteration``: whether Q spans MᵀMS; otherwise the bound holds for MᵀS' and MᵀMS alike.

    Examples
    --------
    >>> residual_tail(1 / 2, sketch=16, power_iteration=True) < 1e-13
    True
    """
    total = 1.0 / share
    best = min(1.0, comparison_bound(total, sketch, power_iteration))
    sketch = min(sketch, _LARGEST_ELIMINATED)  # more columns leave less; beyond, (H2) is good enough by itself
    if best > _NEGLIGIBLE and total < 0.65 * sketch + 1.0:  # elsewhere (H2) is the smaller one
        middle = 0.75 * math.sqrt(max(total - 1.0, 0.1) / sketch)
        for factor in _MORE_CUTS if sketch <= 16 else _CUTS:  # any cut is valid; these are good ones
            cut = min(max(factor * middle, 0.02), 0.95)
            best = min(best, elimination_bound(total, sketch, power_iteration, cut))
    return best
