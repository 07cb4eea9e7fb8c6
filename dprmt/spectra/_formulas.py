"""Closed formulas of the phase transition, for checked numbers, accurate next to the edge.

Letters and equations follow arXiv:2510.01137v3, see `dprmt.spectra._phase_transition`. Everything is computed in
float64, and b₊, b₋ and λ* are held to twice that precision (as unevaluated sums of two floats). A difference such as y
- b₊ is then as accurate next to the edge as far from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Literal, NamedTuple

from dprmt._validation import check_real
from dprmt.spectra._arrays import Array, array_namespace, check_shape

Loss = Literal["frobenius", "operator", "nuclear"]


class TwoFloats(NamedTuple):
    """A number as the unevaluated sum of two floats, good to some 32 digits."""

    high: float
    low: float

    def below(self, y: Array) -> Array:
        """Return the difference ``y - self`` without cancellation error."""
        return (y - self.high) - self.low


class NoiseScales(NamedTuple):
    """The three singular-value scales of an m × n noise matrix."""

    lower_edge: TwoFloats
    """b₋ = σ|√n - √m|."""
    upper_edge: TwoFloats
    """b₊ = σ(√n + √m)."""
    threshold: TwoFloats
    """λ* = σ(mn)^{1/4}."""


@lru_cache(maxsize=1024)
def noise_scales(rows: int, columns: int, sigma: float) -> NoiseScales:
    """Compute bulk edges and detection threshold to twice double precision."""
    with localcontext(prec=50):
        m, n, scale = Decimal(rows).sqrt(), Decimal(columns).sqrt(), Decimal(sigma)
        values = scale * abs(n - m), scale * (n + m), scale * (m * n).sqrt()
        return NoiseScales(*(TwoFloats(float(x), float(x - Decimal(float(x)))) for x in values))


def checked_scales(shape: Sequence[int], sigma: float) -> tuple[int, int, float, NoiseScales]:
    """Check a shape and a noise level, and give them back with the scales they set."""
    m, n = check_shape(shape)
    sigma = check_real("sigma", sigma, low=0.0)
    return m, n, sigma, noise_scales(m, n, sigma)


def mapped_spikes(values: Array, m: int, n: int, sigma: float, scales: NoiseScales) -> Array:
    """Evaluate `spike_map` of checked float64 values, Eq. 3, with σ > 0."""
    xp = array_namespace(values)
    above = scales.threshold.below(values) > 0
    λ = xp.where(above, values, scales.threshold.high)
    ratio = sigma / λ
    F = xp.sqrt(λ + sigma * n * ratio) * xp.sqrt(λ + sigma * m * ratio)
    edge = scales.upper_edge.high
    return xp.where(above & (edge < F), F, edge)


def edge_roots(observed: Array, scales: NoiseScales) -> tuple[Array, Array, Array]:
    """Compute √(y²-b₊²), √(y²-b₋²) and y > b₊, without cancellation, overflow or underflow.

    The roots are 0 at and below the edge.
    """
    xp = array_namespace(observed)
    above = scales.upper_edge.below(observed) > 0
    y = xp.where(above, observed, scales.upper_edge.high)
    outer, inner = (
        xp.sqrt(xp.where(above, edge.below(y), 0.0)) * xp.sqrt(y + edge.high)
        for edge in (scales.upper_edge, scales.lower_edge)
    )
    return outer, inner, above


def squared_overlaps(signal: Array, m: int, n: int, sigma: float, scales: NoiseScales) -> tuple[Array, Array]:
    """Evaluate `vector_overlaps` of checked float64 values, Eqs. 4–6."""
    xp = array_namespace(signal)
    gap = scales.threshold.below(signal)
    λ = xp.where(gap > 0, signal, 1.0)
    t = xp.where(gap > 0, scales.threshold.high / λ, 1.0)
    one_minus_t4 = xp.where(gap > 0, gap / λ, 0.0) * (1 + t) * (1 + t**2)
    r = xp.where(gap > 0, sigma / λ, 0.0)
    return one_minus_t4 / (1 + m * r * r), one_minus_t4 / (1 + n * r * r)


def shrunk(y: Array, shape: tuple[int, int], sigma: float, loss: Loss) -> Array:
    """Evaluate `shrink` of checked singular values in float64, with σ > 0."""
    m, n = shape
    xp, scales = array_namespace(y), noise_scales(m, n, sigma)
    outer, inner, above = edge_roots(y, scales)
    if loss == "frobenius":  # √((y²-b₊²)(y²-b₋²))/y, equal to Eq. 9
        return outer * (inner / xp.where(above, y, 1.0))
    λ = xp.where(above, (inner + outer) / 2, 1.0)
    if loss == "operator":
        r = sigma / λ
        factor = xp.sqrt((1 + min(m, n) * r * r) / (1 + max(m, n) * r * r))
    else:
        left, right = squared_overlaps(λ, m, n, sigma, scales)
        cosines, sines = xp.sqrt(left * right), xp.sqrt((1 - left) * (1 - right))
        # (c_u c_v)² - (s_u s_v)² = c_u² + c_v² - 1
        factor = (left + right - 1) / (cosines + sines)
    return xp.where(above & (factor > 0), λ * factor, 0.0)
