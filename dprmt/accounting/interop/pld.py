"""One step as a privacy loss distribution of the dp-accounting package (version 0.6)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution as PrivacyLossDistribution
from scipy.signal import lfilter

from dprmt._validation import ParameterError, check_count, check_real
from dprmt.accounting.basics._numbers import Array
from dprmt.accounting.pairs._allocation import AllocationEpoch
from dprmt.accounting.pairs._pairs import LossPMF, charged_cells, from_above, graded_indices
from dprmt.accounting.pairs._steps import AnyStep

_MOST_POINTS = 2**21
_BULK = 1.0  # beyond this loss the exact curve is taken at wider and wider steps, and interpolated from above


def to_pld(
    step: AnyStep | AllocationEpoch,
    discretization: float = 1e-4,
    *,
    largest_loss: float | None = None,
    tail: float = 1e-12,
    bins: int = 128,
) -> PrivacyLossDistribution:
    """Build a privacy loss distribution that dominates one step, in both adjacency directions.

    ``step``: one step, see ``DPSGD.step``. ``discretization``: spacing of the losses, in [1e-7, 1]; use one spacing
    for everything that you compose. The relative error in ε is about ``discretization``² / (12 · variance of one
    step's loss). ``largest_loss``: losses are kept within ±``largest_loss`` > 0. Mass above counts as an infinite
    loss, and mass below is moved up. ``None`` uses the smallest bound that moves about ``tail``. ``tail``: mass that
    may be cut off, per step, where the laws of sensitivity and loss end; in (0, 0.001]. ``bins``: number of bins for
    the law of the sensitivity, ≥ 8; ε's excess falls like 1/bins². The result is pessimistic; use it with
    ``self_compose``, ``compose``, ``get_epsilon_for_delta`` and ``get_delta_for_epsilon``.

    Formal guarantees
    -----------------
    Both directions dominate the step as ``epsilon(...).upper`` does. The construction connects the dots (Doroshenko et
    al. 2022, arXiv:2207.04380v1, Algorithm 1) of the exact δ-curve of the step's upper pair, at every grid point up to
    a loss of 1 and at wider steps beyond. The infinite mass has everything above the grid, and every error.

    Rounding of double precision, here and in dp-accounting's FFT, is *not* included, in contrast to ``epsilon`` and
    ``delta`` of dprmt. Do not rely on δ below about 1e-10. dp-accounting cannot use the smaller of two analyses, as
    ``epsilon`` does.

    Examples
    --------
    >>> from dprmt.accounting import DPSGD, Hutchinson
    >>> pld = to_pld(DPSGD(2.0, 0.03, Hutchinson(32, secret=False)).step(), discretization=1e-3)
    >>> 1.34 < pld.self_compose(400).get_epsilon_for_delta(1e-5) < 1.38
    True
    """
    mesh = check_real("discretization", discretization, low=1e-7, high=1.0)
    tail = check_real("tail", tail, low=0.0, low_open=True, high=1e-3)
    pair = step.upper_with_slack(check_count("bins", bins, low=8), tail)
    low, high = pair.loss_range(tail)
    if largest_loss is not None:
        largest_loss = check_real("largest_loss", largest_loss, low=0.0, low_open=True)
        low, high = max(low, -largest_loss), min(high, largest_loss)
    if (high - low) / mesh > _MOST_POINTS:
        least = (high - low) / _MOST_POINTS
        allowed = f">= {least:.3g} for losses in [{low:.4g}, {high:.4g}] (or give a largest_loss or a larger tail)"
        raise ParameterError("discretization", mesh, allowed)
    index = graded_indices(low, high, mesh, _BULK)
    cells = charged_cells(pair, index * mesh)
    return PrivacyLossDistribution(
        pmf_remove=_pmf(from_above(index, mesh, cells["remove"])),
        pmf_add=_pmf(from_above(-index[::-1], mesh, cells["add"])),
    )


def _pmf(loss: LossPMF) -> Any:
    index = np.arange(loss.index[0], loss.index[-1] + 1, dtype=np.int64)
    mass = np.zeros(index.size)
    mass[loss.index - loss.index[0]] = loss.mass
    deltas = hockey_stick_curve(LossPMF(index, mass, loss.mesh, loss.infinite))
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(loss.mesh, int(index[0]), int(index[-1]), deltas)


def hockey_stick_curve(pmf: LossPMF) -> Array:
    """Evaluate δ(ε) at each loss l_i of a uniform grid: Σ_{j > i} m_j (1 - e^{l_i - l_j}) plus the infinite mass.

    Examples
    --------
    >>> pmf = LossPMF(np.array([0, 1]), np.array([0.5, 0.25]), mesh=np.log(2), infinite=0.25)
    >>> hockey_stick_curve(pmf).tolist()
    [0.375, 0.25]
    """
    # A sum of positive terms: with E_k = Σ_{j ≥ k} m_j e^{l_k - l_j}, δ(l_i) - δ(l_{i+1}) = (1 - e^{-mesh}) E_{i+1}.
    discounted = lfilter([1.0], [1.0, -math.exp(-pmf.mesh)], pmf.mass[::-1])
    drops = -math.expm1(-pmf.mesh) * discounted[:-1]
    curve: Array = pmf.infinite + np.append(0.0, np.cumsum(drops))[::-1]
    return np.minimum(curve, 1.0)
