"""One step as a privacy loss distribution of the dp-accounting package (version 0.6)."""

from __future__ import annotations

from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution as PrivacyLossDistribution

from dprmt._validation import ParameterError, check_count, check_real
from dprmt.accounting.pairs._allocation import AllocationEpoch
from dprmt.accounting.pairs._pairs import LossPMF, charged_cells, from_above, graded_indices
from dprmt.accounting.pairs._steps import AnyStep

_MOST_POINTS = 2**21


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
    index = graded_indices(low, high, mesh, 1.0)  # beyond a loss of 1 nodes lie farther and farther apart
    cells = charged_cells(pair, index * mesh)
    return PrivacyLossDistribution(
        pmf_remove=_pmf(from_above(index, mesh, cells["remove"])),
        pmf_add=_pmf(from_above(-index[::-1], mesh, cells["add"])),
    )


def _pmf(loss: LossPMF) -> Any:
    mass = np.zeros(int(loss.index[-1] - loss.index[0]) + 1)
    mass[loss.index - loss.index[0]] = loss.mass
    return pld_pmf.DensePLDPmf(loss.mesh, int(loss.index[0]), mass, loss.infinite, True)
