r"""The Marchenko–Pastur law of the singular values of a noise matrix, exact to rounding at both edges.

With ``ρ = √(min/max)`` of the two sides and the angle θ in [0, π] defined by ``s² = σ²(m + n - 2√(mn) cos
θ)``, the law has density ``(2/π) sin²θ / (1 + ρ² - 2ρ cos θ)`` in θ: the square-root edges are gone. Its
integral is elementary; the form used here has no cancelling terms at θ → 0, and with ρ → -ρ, θ → π - θ it
gives the upper tail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dprmt._validation import check_real
from dprmt.spectra._arrays import (
    Array,
    ArrayT,
    array_namespace,
    as_array,
    cast_like,
    check_finite,
    check_nonempty,
    check_shape,
    is_tensor,
    to_float64,
)
from dprmt.spectra._formulas import noise_scales


class MarchenkoPastur:
    """Law of the min(m, n) singular values of an m × n matrix of independent N(0, σ²) entries, large m and n.

    Works for every aspect ratio; a square shape gives the quarter-circle law. The methods take Python
    numbers, NumPy arrays and torch tensors of floating dtype, any shape, and return the same form, dtype and
    device, computed in float64.

    Parameters
    ----------
    shape : tuple of int
        ``(m, n)`` of the matrix, either orientation.
    sigma : float
        Standard deviation of one entry, > 0, in the units of the matrix.

    Attributes
    ----------
    shape : tuple of int
        As given.
    sigma : float
        As given.

    Raises
    ------
    ParameterError
        If ``shape`` is not a pair of integers >= 1 or ``sigma`` is not positive and finite. The methods raise
        it for an argument that is empty, not finite or not of a real floating dtype.

    References
    ----------
    Marčenko & Pastur (1967), for the squares of the singular values.

    Examples
    --------
    >>> law = MarchenkoPastur((16, 144), sigma=0.5)
    >>> law.support
    (4.0, 8.0)
    >>> round(law.median, 6), law.cdf(8.0), float(law.ppf(0.0))
    (5.887456, 1.0, 4.0)
    """

    def __init__(self, shape: Sequence[int], sigma: float) -> None:
        self.shape = m, n = check_shape(shape)
        self.sigma = check_real("sigma", sigma, low=0.0, low_open=True)
        self._short, self._long = min(m, n), max(m, n)
        self._scales, self._unit = noise_scales(m, n, self.sigma), noise_scales(m, n, 1.0)
        ρ = math.sqrt(self._short / self._long)
        one_minus_ρ2 = (self._long - self._short) / self._long
        self._from_lower_edge = _Tail(ρ, one_minus_ρ2 / (1 + ρ), one_minus_ρ2)
        self._from_upper_edge = _Tail(-ρ, 1 + ρ, one_minus_ρ2)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MarchenkoPastur):
            return NotImplemented
        return (self.shape, self.sigma) == (other.shape, other.sigma)

    def __hash__(self) -> int:
        return hash((self.shape, self.sigma))

    def __repr__(self) -> str:
        return f"MarchenkoPastur(shape={self.shape}, sigma={self.sigma})"

    @property
    def support(self) -> tuple[float, float]:
        """The bulk edges ``(σ|√n - √m|, σ(√n + √m))``."""
        return self._scales.lower_edge.high, self._scales.upper_edge.high

    @cached_property
    def median(self) -> float:
        """The median singular value."""
        return float(self.ppf(0.5))

    def pdf(self, x: ArrayT) -> ArrayT:
        """Evaluate the density at ``x``, per unit of singular value; 0 outside the support.

        Returns
        -------
        float or array
            Values >= 0, of the shape of ``x``.
        """
        values = _checked("x", x)
        xp = array_namespace(values)
        from_lower, from_upper = self._edge_roots(values)
        # √(s² - b₋²)/s tends to 1 at s = 0, which is inside the support of square matrices only.
        positive = values > 0
        ratio = xp.where(positive, from_lower / xp.where(positive, values, 1.0), 1.0)
        inside = (values >= self.support[0]) & (values <= self.support[1])
        density = (from_upper / self.sigma) * ratio / (math.pi * self.sigma * self._short)
        return cast_like(xp.where(inside, density, 0.0), x)

    def cdf(self, x: ArrayT) -> ArrayT:
        """Evaluate the probability of a singular value at or below ``x``.

        Returns
        -------
        float or array
            Values in [0, 1], of the shape of ``x``.
        """
        return cast_like(in_blocks(lambda s: self._probability(s, below=True), _checked("x", x)), x)

    def sf(self, x: ArrayT) -> ArrayT:
        """Evaluate the probability of a singular value above ``x``, accurate up to the edge where ``1 - cdf`` is not.

        Returns
        -------
        float or array
            Values in [0, 1], of the shape of ``x``.
        """
        return cast_like(in_blocks(lambda s: self._probability(s, below=False), _checked("x", x)), x)

    def ppf(self, q: ArrayT) -> ArrayT:
        """Find the singular value with ``cdf`` equal to ``q``: the quantile function.

        Parameters
        ----------
        q : float or array
            Probabilities in [0, 1].

        Returns
        -------
        float or array
            Values within the support, of the shape of ``q``.

        Raises
        ------
        ParameterError
            If an entry of ``q`` is outside [0, 1], or as for the other methods.
        """
        p = as_array("q", q)
        check_nonempty("q", p)
        check_finite("q", p, low=0.0, high=1.0)
        return cast_like(self.sigma * in_blocks(self._unit_quantile, to_float64(p)), q)

    def _unit_quantile(self, p: Array) -> Array:
        # For σ = 1, each half from its edge.
        xp = array_namespace(p)
        lower, upper = self._unit.lower_edge.high, self._unit.upper_edge.high
        width = 2 * self._unit.threshold.high
        low_half = p <= 0.5
        rise = width * xp.sin(self._from_lower_edge.inverse(p[low_half]) / 2)
        fall = width * xp.sin(self._from_upper_edge.inverse(1 - p[~low_half]) / 2)
        result = xp.empty_like(p)
        result[low_half], result[~low_half] = xp.sqrt(lower**2 + rise**2), xp.sqrt((upper - fall) * (upper + fall))
        return result

    def _edge_roots(self, values: Array) -> tuple[Array, Array]:
        # √(s² - b₋²) and √(b₊² - s²), 0 outside the support.
        xp = array_namespace(values)
        edges = self._scales
        s = xp.clip(values, *self.support)
        above = xp.clip(edges.lower_edge.below(values), 0.0, None)
        below = xp.clip(-edges.upper_edge.below(values), 0.0, None)
        from_lower = xp.sqrt(above) * xp.sqrt(s + edges.lower_edge.high)
        return from_lower, xp.sqrt(below) * xp.sqrt(s + edges.upper_edge.high)

    def _probability(self, values: Array, *, below: bool) -> Array:
        # Probability at or below, or above, from the nearer edge: accurate where it is small.
        xp = array_namespace(values)
        from_lower, from_upper = self._edge_roots(values)
        near = from_lower < from_upper
        far = ~near
        # (s² - b₋²) + (b₊² - s²) is the square of twice the threshold: the roots are sine and cosine of half an angle.
        lower_sin, upper_sin = (root / (2 * self._scales.threshold.high) for root in (from_lower, from_upper))
        low = self._from_lower_edge.mass(lower_sin[near], upper_sin[near])
        high = self._from_upper_edge.mass(upper_sin[far], lower_sin[far])
        result = xp.empty_like(values)
        result[near], result[far] = (low, 1 - high) if below else (1 - low, high)
        return result


class _Tail(NamedTuple):
    """The law as seen from one of its edges: ρ > 0 from the lower, ρ < 0 from the upper one."""

    ρ: float
    one_minus_ρ: float
    one_minus_ρ2: float

    def mass(self, half_sin: Array, half_cos: Array) -> Array:
        # Probability within an angle of the edge, from sine and cosine of its half: three terms of order angle³, none
        # of which cancel.
        xp = array_namespace(half_sin)
        angle, sin, versine = 2 * xp.atan2(half_sin, half_cos), 2 * half_sin * half_cos, 2 * half_sin**2
        base = self.one_minus_ρ + self.ρ * versine  # 1 - ρ cos(angle)
        apart = base > 0  # base is 0 only in the square case, at (or, in floats, next to) the lower edge
        base = xp.where(apart, base, 1.0)
        middle = (1 + self.ρ) * sin * xp.where(apart, versine / base, 1.0)
        rest = self.one_minus_ρ2 * (_minus_atan(self.ρ * sin / base) / self.ρ) / self.ρ
        return (_minus_sin(angle, sin) + middle + rest) / math.pi

    def density(self, half_sin: Array, half_cos: Array) -> Array:
        # Derivative of `mass` by the angle.
        xp = array_namespace(half_sin)
        distance2 = self.one_minus_ρ**2 + 4 * self.ρ * half_sin**2
        apart = distance2 > 0
        return 2 / math.pi * xp.where(apart, (2 * half_sin * half_cos) ** 2 / xp.where(apart, distance2, 1.0), 1.0)

    def inverse(self, mass: Array) -> Array:
        # The angle with the given mass <= 1/2, by Newton's method between the logarithms of the two, which converges
        # quadratically: after a step of 1e-9 the error is one of rounding.
        xp = array_namespace(mass)
        target = xp.where(mass > 0, mass, 0.5)
        angle = self._start(target)
        for _ in range(50):  # four are enough
            half = xp.sin(angle / 2), xp.cos(angle / 2)
            reached = self.mass(*half)
            slope = angle * self.density(*half) / reached
            new = xp.clip(angle * xp.exp(xp.log(target / reached) / slope), 0.0, math.pi)
            done = bool(xp.all(abs(new - angle) <= 1e-9 * angle))
            angle = new
            if done:
                break
        return xp.where(mass > 0, angle, 0.0)

    def _start(self, target: Array) -> Array:
        # Within a few 1e-6 where it is not too small, from a table if there are enough points to pay for it.
        xp = array_namespace(target)
        cubic = xp.clip((6 * math.pi * target) ** (1 / 3), 0.0, math.pi / 2)
        if len(target) < _TABLE:
            return cubic
        masses, angles = (target.new_tensor(t) if is_tensor(target) else t for t in _table(self))
        place = xp.clip(xp.searchsorted(masses, target), 1, len(masses) - 1)
        low, high = masses[place - 1], masses[place]
        share = xp.clip((target - low) / (high - low), 0.0, 1.0)
        start = angles[place - 1] + share * (angles[place] - angles[place - 1])
        return xp.where(target > masses[0], start, cubic)


_TABLE = 2**11


@lru_cache(maxsize=16)
def _table(tail: _Tail) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    # Masses and angles, close together in the logarithm.
    angles = np.geomspace(1e-4, math.pi, _TABLE)
    masses = tail.mass(np.sin(angles / 2), np.cos(angles / 2))
    kept = np.flatnonzero(np.diff(masses, prepend=0.0) > 0)
    return masses[kept], angles[kept]


_BLOCK = 2**14  # entries whose temporaries stay in the processor's cache


def in_blocks(function: Callable[[Array], Array], values: Array) -> Array:
    """Return an elementwise function of an array, block by block on the CPU."""
    xp, flat = array_namespace(values), values.reshape(-1)
    if len(flat) <= _BLOCK or (is_tensor(values) and values.device.type != "cpu"):
        return function(flat).reshape(values.shape)
    blocks = [function(flat[start : start + _BLOCK]) for start in range(0, len(flat), _BLOCK)]
    return xp.concatenate(blocks).reshape(values.shape)


def _checked(name: str, x: Array) -> Array:
    values = as_array(name, x)
    check_nonempty(name, values)
    check_finite(name, values)
    return to_float64(values)


def _minus_sin(x: Array, sin: Array) -> Array:
    # ``x - sin x`` for x >= 0, without cancellation.
    xp = array_namespace(x)
    z = x * x
    return xp.where(z < 1, x * z * _horner(_MINUS_SIN, z), x - sin)


def _minus_atan(x: Array) -> Array:
    # ``x - atan x``, without cancellation.
    xp = array_namespace(x)
    small = xp.abs(x) < 0.4
    near = xp.where(small, x, 0.0)  # the others' powers may overflow
    z = near * near
    return xp.where(small, near * z * _horner(_MINUS_ATAN, z), x - xp.atan(x))


def _horner(coefficients: list[float], z: Array) -> Array:
    total = coefficients[-1] * z
    for coefficient in coefficients[-2:0:-1]:
        total += coefficient
        total *= z
    return total + coefficients[0]


def _economised(taylor: NDArray[np.float64], high: float, degree: int) -> list[float]:
    # A power series as the polynomial of lower degree that interpolates it at the Chebyshev points of [0, high].
    points = high / 2 * (1 + np.polynomial.chebyshev.chebpts1(degree + 1))
    values = np.polynomial.polynomial.polyval(points, taylor)
    fit = np.polynomial.Polynomial.fit(points, values, degree, domain=[0, high])
    return fit.convert().coef.tolist()


_MINUS_SIN = _economised(np.array([(-1) ** k / math.factorial(2 * k + 3) for k in range(12)]), 1.0, 8)
_MINUS_ATAN = _economised(np.array([(-1) ** k / (2 * k + 3) for k in range(24)]), 0.16, 11)
