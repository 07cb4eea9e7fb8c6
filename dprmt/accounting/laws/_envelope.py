"""The largest distribution function that a spectrum of given rank can give the estimate of a norm.

With k Gaussian probes, X = Σ_i λ_i χ²_i(k)/k for a spectrum λ on the simplex with d corners (d the rank), and

    G_d(x) = max over λ in the simplex of P(X <= x).

For k >= 2, where the maximum has two distinct weights, the larger occurs once and none is zero: it is the
maximum over one number, the leading weight λ in [1/d, 1], of

    P(λ, x) = P(λ χ²(k)/k + (1-λ) χ²((d-1)k)/((d-1)k) <= x).

∂P/∂λ has the sign of M(λ) - x, with M(λ) the mode of X + wE + w'E' (w = 2λ/k, w' = 2(1-λ)/((d-1)k), E and E'
standard exponentials), M(1) = 1 and M(1/d) = 1 + 2/(dk). Hence three segments:

    x <= 1         λ = 1, one spectral value
    1 < x < x_+    "the hump", the maximum inside (1/d, 1), unique if M is unimodal
    x >= x_+       λ = 1/d, equal spectral values

x_+ = 1 + 1/k for d = 2. For d > 2 the hump loses to λ = 1/d at 1 + 2/(dk) < x_+ < 1 + 1/k, while it still is
a local maximum, so λ jumps. That M is unimodal and the bracket of x_+ are checked numerically (k from 2 to
4096, d from 2 to 10⁶), not proved.

Source: the project's note on randomized clipping, section 2, after arXiv:2605.24879, appendix B.6, and
Székely & Bakirov (2003), Probab. Theory Relat. Fields 126, 184-202.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dprmt._validation import check_count
from dprmt.accounting.laws._chi2_mixture import Array, mixture_tails, real_array

ENVELOPE_MARGIN = 1e-12


def envelope_cdf(x: ArrayLike, probes: SupportsIndex, rank: SupportsIndex | None = None) -> Array:
    """Return the envelope G_d(x), the largest P(X <= x) over all spectra of rank at most d.

    Parameters
    ----------
    x : array_like
        Values of the squared-norm ratio X (estimated over true squared norm), any shape; may be infinite. G_d is 0
        for ``x <= 0``.
    probes : int
        The number k >= 2 of Gaussian probes.
    rank : int, optional
        The largest rank d >= 1, with ``probes * rank <= 2**32``. None is d → ∞: P(χ²(k)/k <= x) for x < 1
        and 1 for x >= 1, which is above G_d for every d.

    Returns
    -------
    ndarray
        G_d(x), of the shape of ``x``.

    Raises
    ------
    ParameterError
        If ``x`` contains NaN, or ``probes`` or ``rank`` is not an integer of its range.

    Notes
    -----
    *Formal guarantees.* If X is a sum as above of at most ``rank`` terms, each estimated with ``probes``
    independent Gaussian probes, then P(X <= x) <= envelope_cdf(x, probes, rank) + ENVELOPE_MARGIN. The
    margin, 1e-12, covers the search for the maximum and the evaluation; for ``x <= 1`` the relative error is
    below 1e-10 for values down to 1e-15. ``rank=None`` holds for every spectrum, also where part of the norm
    is computed exactly (X = h + (1-h)·sum); a finite rank does not. For 1 < x < x_+ the guarantee rests on
    the numerical checks named at the head of this module.

    Examples
    --------
    >>> envelope_cdf([0.5, 1.01, 1.5], probes=32, rank=8).round(6)
    array([0.008231, 0.557755, 1.      ])
    >>> envelope_cdf([0.5, 1.01, 1.5], probes=32).round(6)
    array([0.008231, 1.      , 1.      ])
    """
    k, d = _checked(probes, rank)
    points = real_array("x", x, "real numbers, not NaN")
    cdf, _ = _maximum(points.ravel(), k, d)
    return cdf.reshape(points.shape)[()]


def envelope_leading_weight(x: ArrayLike, probes: SupportsIndex, rank: SupportsIndex | None = None) -> Array:
    """Return the leading weight λ of the spectrum that attains the envelope; the others are (1-λ)/(d-1) each.

    λ is in [1/d, 1] and has the shape of ``x``. For 1 < x < x_+ it is accurate to about 1e-5, because P is flat at its
    maximum. For ``rank=None`` and x >= 1 the supremum is the limit λ = 0.

    Examples
    --------
    >>> envelope_leading_weight([0.5, 1.01, 1.5], probes=32, rank=8).round(4)
    array([1.    , 0.4097, 0.125 ])
    """
    k, d = _checked(probes, rank)
    points = real_array("x", x, "real numbers, not NaN")
    _, weight = _maximum(points.ravel(), k, d)
    return weight.reshape(points.shape)[()]


def envelope_switch(probes: SupportsIndex, rank: SupportsIndex | None = None) -> float:
    """Return the value x_+ of the squared-norm ratio from which on equal spectral values attain the envelope.

    Returns: x_+; 1 for ``rank=1`` and ``rank=None``, where no spectrum in between is ever best.

    Examples
    --------
    >>> envelope_switch(probes=4, rank=2)
    1.25
    >>> round(envelope_switch(probes=4, rank=3), 6)
    1.175479
    """
    k, d = _checked(probes, rank)
    return 1.0 if d is None or d == 1 else 1.0 + _guide(k, d).switch


def _checked(probes: SupportsIndex, rank: SupportsIndex | None) -> tuple[int, int | None]:
    k = check_count("probes", probes, low=2)  # one probe gives no log-concave density
    return k, None if rank is None else check_count("rank", rank, high=2**32 // k)


def _maximum(x: Array, k: int, d: int | None) -> tuple[Array, Array]:
    # G_d and the leading weight at a vector of points.
    cdf, weight = np.zeros_like(x), np.ones_like(x)
    right = x >= 1 if d is None else x > 1
    left = (x > 0) & ~right
    cdf[left] = _equal(x[left], x[left] - 1, k)
    if d is None:
        cdf[right], weight[right] = 1.0, 0.0
    elif right.any():
        cdf[right], weight[right] = _right_of_one(x[right] - 1, k, d)
    return cdf, weight


def _right_of_one(excess: Array, k: int, d: int) -> tuple[Array, Array]:
    # Equal weights, or the hump where it is higher. The hump's λ falls with x, so the guides bracket it.
    cdf, weight = _equal(1 + excess, excess, k * d), np.full_like(excess, 1 / d)
    if d == 1:
        return cdf, weight
    guide = _guide(k, d)
    middle = np.flatnonzero(excess < guide.switch * (1 + 1e-9))
    e = excess[middle]
    cell = np.clip(np.searchsorted(guide.excess, e), 1, guide.excess.size - 1)
    radius = (guide.log_weight[cell - 1] - guide.log_weight[cell]) / 2 + 1e-3
    hump, log = _climb(e, np.interp(e, guide.excess, guide.log_weight), radius, k, d)
    higher = hump > cdf[middle]
    cdf[middle], weight[middle] = np.where(higher, hump, cdf[middle]), np.where(higher, np.exp(log), 1 / d)
    return cdf, weight


def _equal(x: Array, excess: Array, dof: int) -> Array:
    # P(χ²(dof)/dof <= x), with excess = x - 1.
    cdf = np.ones_like(x)
    at = np.flatnonzero(x < np.inf)
    if at.size:
        nu = np.array([[float(dof)]])
        cdf[at] = mixture_tails(x[at], excess[at], 1 / nu, nu)[0]
    return cdf


def _law(excess: Array, log_weight: Array, k: int, d: int) -> Array:
    # P(λ, 1 + excess) for log λ and excess of shapes that broadcast. The mean of X is exactly 1.
    e, log = (a.ravel() for a in np.broadcast_arrays(excess, log_weight))
    weights = np.stack([np.exp(log) / k, -np.expm1(log) / ((d - 1) * k)])
    dof = np.array([[float(k)], [float((d - 1) * k)]])
    return mixture_tails(1 + e, e, weights, dof)[0].reshape(np.broadcast_shapes(excess.shape, log_weight.shape))


class _Guide(NamedTuple):
    """x_+ - 1, and log λ of the hump at increasing values of x - 1 from 0 to there."""

    switch: float
    excess: Array
    log_weight: Array


@lru_cache(maxsize=128)
def _guide(k: int, d: int) -> _Guide:
    from scipy.optimize import brentq  # on use: a third of the subpackage's import time

    def advantage(excess: float) -> float:
        e = np.array([excess])
        hump, _, exists = _hump(e, k, d)
        return float(hump[0] - _equal(1 + e, e, k * d)[0]) if exists[0] else -1.0

    switch = 1 / k if d == 2 else float(brentq(advantage, 2 / (d * k), 1 / k, xtol=1e-30, rtol=1e-14))
    excess = switch * np.sin(np.linspace(0, np.pi / 2, 65)) ** 2  # dense at both ends, where λ is steep
    log_weight = np.zeros_like(excess)
    log_weight[1:] = _hump(excess[1:], k, d)[1]
    return _Guide(switch, excess, np.minimum.accumulate(log_weight))


def _hump(excess: Array, k: int, d: int) -> tuple[Array, Array, NDArray[np.bool_]]:
    # The rightmost local maximum of P(·, x) from scratch: its value, its log λ, whether the grid shows one.
    grid = np.linspace(-np.log(d), 0, 65)
    rising = np.diff(_law(excess, grid[:, None], k, d), axis=0) > 0
    last = np.where(rising.any(axis=0), grid.size - 1 - np.argmax(rising[::-1], axis=0), 0)
    value, log = _climb(excess, grid[last], np.full_like(excess, grid[1] - grid[0]), k, d)
    return value, log, last > 0


def _climb(excess: Array, start: Array, radius: Array, k: int, d: int) -> tuple[Array, Array]:
    # Maximum of P(·, x) near log λ = start: vertices of parabolas through three points, ever closer together.
    # A vertex is off by about radius², so the last step leaves a shortfall of about radius⁴ = 1e-14.
    low = -np.log(d)
    radius = np.minimum(radius, -low / 2)
    for _ in range(25):
        centre = np.clip(start, low + radius, -radius)
        below, here, above = _law(excess, centre + radius * np.array([[-1], [0], [1]]), k, d)
        slope, bend = (above - below) / 2, above - 2 * here + below
        offset = np.clip(slope / np.maximum(-bend, 1e-30), -1, 1)
        start = centre + offset * radius
        if np.all(radius < 1e-3):
            break
        radius = np.where(np.abs(offset) < 0.9, radius / 4, radius / 1.5)
    return _law(excess, start, k, d), start
