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
import scipy
from numpy.typing import NDArray

from dprmt._validation import check_real
from dprmt.spectra._arrays import (
    Array,
    ArrayT,
    array_namespace,
    as_array,
    cast_like,
    check_finite,
    check_shape,
    float64_like,
    is_tensor,
    to_float64,
)
from dprmt.spectra._formulas import noise_scales


class MarchenkoPastur:
    """Law of the min(m, n) singular values of an m × n matrix of independent N(0, σ²) entries, large m and n.

    Works for every aspect ratio; a square shape gives the quarter-circle law. The methods take Python
    numbers, NumPy arrays and torch tensors of real dtype, any shape, and return the same form, dtype and
    device, computed in float64; integers give float64.

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
        it for an argument that is not finite or not real.

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
        check_finite("q", p, low=0.0, high=1.0)
        return cast_like(self.sigma * in_blocks(self._unit_quantile, to_float64(p)), q)

    def _unit_quantile(self, p: Array) -> Array:
        # For σ = 1, each half from its edge.
        xp = array_namespace(p)
        nearer, lower = xp.minimum(p, 1 - p), to_float64(p <= 0.5)
        mass = xp.where(nearer > 0, nearer, 0.5)
        angle = _Tail.from_edges(self._short, self._long, lower).inverse(mass, self._first_angles(mass, lower))
        angle = xp.where(nearer > 0, angle, 0.0)
        (low, _), (high, _), (threshold, _) = self._unit
        chord = 2 * threshold * xp.sin(angle / 2)
        return xp.sqrt(lower * (low**2 + chord**2) + (1 - lower) * (high - chord) * (high + chord))

    def _first_angles(self, mass: Array, lower: Array) -> Array:
        # From a table if there are enough points to pay for it.
        xp = array_namespace(mass)
        root = mass ** (1 / 3)
        if len(mass) < _CELLS:
            return xp.clip((6 * math.pi) ** (1 / 3) * root, 0.0, math.pi / 2)
        place = (root - _FIRST_ROOT) * (_CELLS / (0.5 ** (1 / 3) - _FIRST_ROOT))
        cell = xp.clip(xp.asarray(place, dtype=xp.int64), 0, _CELLS - 1)
        place, cell = place - cell, 2 * cell + xp.asarray(lower, dtype=xp.int64)
        a, b, c, d = (float64_like(row, mass)[cell] for row in _angle_table(self._short, self._long))
        return root * (d + place * (c + place * (b + place * a)))

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
        lower = to_float64(from_lower < from_upper)
        # (s² - b₋²) + (b₊² - s²) is the square of twice the threshold: the roots are sine and cosine of half an angle.
        unit = 2 * self._scales.threshold.high
        half_sin, half_cos = xp.minimum(from_lower, from_upper) / unit, xp.maximum(from_lower, from_upper) / unit
        mass = _Tail.from_edges(self._short, self._long, lower).mass(half_sin, half_cos)
        complement = 1 - lower if below else lower
        return complement + (1 - 2 * complement) * mass


class _Tail(NamedTuple):
    """The law as seen from an edge for each point: ρ > 0 from the lower, ρ < 0 from the upper one."""

    ρ: Array
    one_minus_ρ: Array
    one_minus_ρ2: float

    @classmethod
    def from_edges(cls, short: int, long: int, lower: Array) -> _Tail:
        # ``lower`` is 1 for points seen from the lower edge, otherwise 0.
        ρ, one_minus_ρ2 = math.sqrt(short / long), (long - short) / long
        return cls((2 * lower - 1) * ρ, lower * (one_minus_ρ2 / (1 + ρ)) + (1 - lower) * (1 + ρ), one_minus_ρ2)

    def mass(self, half_sin: Array, half_cos: Array) -> Array:
        # Probability within an angle of the edge, from sine and cosine of its half: three terms of order angle³, none
        # of which cancel. The last is x - atan x for x = ρ sin/(1 - ρ cos), by halving the angle atan x twice.
        xp = array_namespace(half_sin)
        angle, sin = 2 * xp.atan2(half_sin, half_cos), 2 * half_sin * half_cos
        versine = xp.clip(2 * half_sin**2, 1e-300, None)
        base = self.one_minus_ρ + self.ρ * versine  # 1 - ρ cos(angle)
        distance = xp.sqrt(self.one_minus_ρ**2 + 2 * self.ρ * versine)
        t = self.ρ * sin / (base + distance)
        t2 = t * t
        u = t / (1 + xp.sqrt(1 + t2))
        u2 = u * u
        rest = t * (t2 * (1 + distance / base) + 2 * u2) + 4 * u * u2 * _horner(_MINUS_ATAN, u2)
        z = angle * angle
        first = angle * z * _horner(_MINUS_SIN, z)
        return (first + (1 + self.ρ) * sin * (versine / base) + self.one_minus_ρ2 * rest / self.ρ / self.ρ) / math.pi

    def density(self, half_sin: Array, half_cos: Array) -> Array:
        # Derivative of `mass` by the angle.
        versine = array_namespace(half_sin).clip(2 * half_sin**2, 1e-300, None)
        return 4 / math.pi * versine * half_cos**2 / (self.one_minus_ρ**2 + 2 * self.ρ * versine)

    def inverse(self, mass: Array, start: Array) -> Array:
        # The angle with the given mass in (0, 1/2], by Newton's method between the logarithms of the two, which
        # converges quadratically: after a step of 1e-8 the error is one of rounding.
        xp, angle = array_namespace(mass), start
        for _ in range(50):  # four are enough
            half = xp.sin(angle / 2), xp.cos(angle / 2)
            reached = self.mass(*half)
            step = xp.log(mass / reached) * reached / (angle * self.density(*half))
            angle = xp.clip(angle * xp.exp(step), 0.0, math.pi)
            if bool(xp.all(abs(step) <= 1e-8)):
                break
        return angle


_CELLS = 2**10  # of the table of angles
_FIRST_ROOT = 1e-5  # cube root of the mass where the table begins; below, angle over root is constant to rounding


@lru_cache(maxsize=16)
def _angle_table(short: int, long: int) -> NDArray[np.float64]:
    # Angle over m^(1/3), by cubic polynomials in cells of m^(1/3), for masses m from the upper and from the lower edge.
    root = np.linspace(_FIRST_ROOT, 0.5 ** (1 / 3), _CELLS + 1)
    tails = _Tail.from_edges(short, long, np.array([[0.0], [1.0]]))
    ratios = tails.inverse(root**3, np.minimum((6 * math.pi) ** (1 / 3) * root, math.pi / 2)) / root
    return scipy.interpolate.CubicSpline(np.arange(_CELLS + 1), ratios, axis=1).c.reshape(4, -1)


def in_blocks(function: Callable[[Array], Array], values: Array) -> Array:
    """Return an elementwise function of an array, block by block on the CPU."""
    xp, flat = array_namespace(values), values.reshape(-1)
    size = 2**14  # entries whose temporaries stay in the processor's cache
    if len(flat) <= size or (is_tensor(values) and values.device.type != "cpu"):
        return function(flat).reshape(values.shape)
    blocks = [function(flat[start : start + size]) for start in range(0, len(flat), size)]
    return xp.concatenate(blocks).reshape(values.shape)


def _checked(name: str, x: Array) -> Array:
    values = as_array(name, x)
    check_finite(name, values)
    return to_float64(values)


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


_MINUS_SIN = [(-1) ** k / math.factorial(2 * k + 3) for k in range(13)]
"""Coefficients of ``(x - sin x)/x³`` in x², for x <= π."""
_MINUS_ATAN = _economised(np.array([(-1) ** k / (2 * k + 3) for k in range(40)]), (math.sqrt(2) - 1) ** 2, 11)
"""Coefficients of ``(x - atan x)/x³`` in x², for x <= tan(π/8)."""
