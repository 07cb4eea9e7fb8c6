"""The three scales of a noise matrix, bulk edges and detection threshold, to twice double precision."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import NamedTuple

from dprmt._validation import check_real
from dprmt.spectra._arrays import Array, check_shape


class TwoFloats(NamedTuple):
    """A number as the unevaluated sum of two floats, good to some 32 digits."""

    high: float
    low: float

    def below(self, y: Array) -> Array:
        """The difference ``y - self`` without cancellation error."""
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
    """Bulk edges and detection threshold to twice double precision."""
    with localcontext(prec=50):
        m, n, scale = Decimal(rows).sqrt(), Decimal(columns).sqrt(), Decimal(sigma)
        return NoiseScales(
            _two_floats(scale * abs(n - m)),
            _two_floats(scale * (n + m)),
            _two_floats(scale * (m * n).sqrt()),
        )


def _two_floats(x: Decimal) -> TwoFloats:
    return TwoFloats(float(x), float(x - Decimal(float(x))))


def checked_scales(shape: Sequence[int], sigma: float) -> tuple[int, int, float, NoiseScales]:
    """Check a shape and a noise level, and give them back with the scales they set."""
    m, n = check_shape(shape)
    sigma = check_real("sigma", sigma, low=0.0)
    return m, n, sigma, noise_scales(m, n, sigma)
