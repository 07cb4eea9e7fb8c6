"""The edge of noise at finite size: the Tracy–Widom law, and κ for a chosen false-alarm rate.

The Tracy–Widom law with β = 1 is the law of the largest eigenvalue of large real Wishart matrices. Its distribution
function is the Fredholm determinant ``F₁(s) = det(1 - B_s)`` of the kernel ``Ai(x + y + s)`` on the half-line (Ferrari
& Spohn 2005, arXiv:math-ph/0505012), discretised by Gauss–Legendre quadrature (Bornemann 2010, arXiv:0904.1581).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import scipy
from numpy.typing import NDArray

from dprmt._validation import ParameterError, check_choice, check_real
from dprmt.spectra._arrays import check_shape
from dprmt.spectra._formulas import checked_scales
from dprmt.spectra._phase_transition import bulk_edge
from dprmt.spectra._top_singular_value import LARGEST_SIDE, centre_and_scale, exceeded_with, upper_tail

Centring = Literal["johnstone", "ma"]


def tracy_widom_tail(s: float) -> float:
    """Return the probability that a Tracy–Widom variable is above s, to a relative accuracy of 1e-11."""
    return -math.expm1(_log_cdf(s))


@lru_cache(maxsize=256)
def tracy_widom_quantile(p: float) -> float:
    """Return the value that a Tracy–Widom variable exceeds with probability p in [1e-30, 1 - 1e-6], within 1e-10.

    Examples
    --------
    >>> round(tracy_widom_quantile(0.05), 4), round(tracy_widom_quantile(0.01), 4)
    (0.9793, 2.0234)
    """
    # Root of log tail = log p; the tail is 1 - 2e-12 at -8, and below 1e-34 at 24.
    return float(scipy.optimize.brentq(lambda s: math.log(-math.expm1(_log_cdf(s)) / p), -8.0, 24.0, xtol=1e-12))


def _log_cdf(s: float) -> float:
    # log det(1 - B_s), through the eigenvalues of the discretised kernel.
    if s < -12:  # F₁(-12) < 1e-35
        return -math.inf
    half = max(16.0 - s, 6.0) / 2  # beyond, the kernel is below 1e-19 of its size at the origin
    x, root = half * (_nodes()[0] + 1), np.sqrt(half * _nodes()[1])
    kernel = np.outer(root, root) * scipy.special.airy(s + np.add.outer(x, x))[0]
    return float(np.log1p(-np.clip(np.linalg.eigvalsh(kernel), None, 1 - 1e-16)).sum())


@lru_cache(maxsize=1)
def _nodes() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.polynomial.legendre.leggauss(64)


def tracy_widom_edge(shape: Sequence[int], sigma: float, false_alarm: float, centring: Centring = "johnstone") -> float:
    """Compute the level that the top singular value of noise exceeds at the given rate, in the Tracy–Widom limit.

    ``s₁² ≈ σ²(μ + τ·TW₁)`` with ``μ = (a + b)²`` and ``τ = (a + b)(1/a + 1/b)^{1/3}``. For n >= m Johnstone uses ``a =
    √(n-1), b = √m``, and Ma ``a = √(n-1/2), b = √(m-1/2)``.

    Parameters
    ----------
    shape : tuple of int
        ``(m, n)`` of the matrix, either orientation; for "johnstone" the longer side must be >= 2.
    sigma : float
        Standard deviation of one entry of the noise, >= 0, in the units of the matrix.
    false_alarm : float
        Probability in [1e-30, 1 - 1e-6].
    centring : {"johnstone", "ma"}
        Constants to use. With Ma's the error of the rate is O(min(m,n)^{-2/3}).

    Returns
    -------
    float
        A threshold on the largest singular value.

    Raises
    ------
    ParameterError
        If an argument is outside its range.

    Notes
    -----
    This is a limit: for a stated rate use `kappa_for`, which is exact. True rates, by `false_alarm_rate`, in % for
    requested rates of 1 % and 0.1 %:

    | shape       | Johnstone    | Ma           |
    |-------------|--------------|--------------|
    | (16, 768)   | 0.713, 0.066 | 0.937, 0.090 |
    | (32, 2048)  | 0.764, 0.071 | 0.956, 0.093 |
    | (256, 256)  | 1.006, 0.104 | 1.005, 0.104 |
    | (768, 3072) | 0.961, 0.096 | 1.000, 0.101 |

    References
    ----------
    Johnstone (2001), Ann. Statist. 29, Theorem 1.1; Ma (2012), arXiv:1203.0839.

    Examples
    --------
    >>> round(tracy_widom_edge((768, 3072), 1.0, 0.01) / (768**0.5 + 3072**0.5), 4)
    1.0045
    """
    m, n, sigma, _ = checked_scales(shape, sigma)
    check_choice("centring", centring, get_args(Centring))
    quantile = tracy_widom_quantile(check_real("false_alarm", false_alarm, low=1e-30, high=1 - 1e-6))
    short, long = sorted((m, n))
    if centring == "johnstone" and long == 1:
        raise ParameterError("shape", (m, n), "a pair whose longer side is >= 2, for Johnstone's centring")
    less = (0.0, 1.0) if centring == "johnstone" else (0.5, 0.5)
    centre, scale = centre_and_scale(math.sqrt(short - less[0]), math.sqrt(long - less[1]))
    return sigma * math.sqrt(max(centre + scale * quantile, 0.0))


def false_alarm_rate(shape: Sequence[int], kappa: float) -> float:
    """Compute the probability P(s₁ > κ·b₊) that pure noise passes a gate at κ times the bulk edge.

    Parameters
    ----------
    shape : tuple of int
        ``(m, n)`` of the matrix, either orientation.
    kappa : float
        Gate in units of the bulk edge, > 0; Eq. 10 uses 1.02.

    Returns
    -------
    float
        Probability in [0, 1]. It is exact if min(m, n) <= 1024, up to a relative error of 1e-8. Above, it is the
        Tracy–Widom limit with Ma's constants. At (1024, 1024) the rate is then off by 0.2 % of itself at 1 %, 2 % at
        0.1 % and 11 % at 1e-6, and by less for larger matrices.

    Raises
    ------
    ParameterError
        If ``shape`` is not a pair of integers >= 1 or ``kappa`` is not positive and finite.

    References
    ----------
    The gate of Eq. 10 of arXiv:2510.01137v3.

    Examples
    --------
    >>> [round(100 * false_alarm_rate(shape, 1.02), 3) for shape in ((16, 768), (16, 1024), (32, 2048))]
    [0.742, 0.454, 0.039]
    """
    m, n, _, scales = checked_scales(shape, 1.0)
    gate = check_real("kappa", kappa, low=0.0, low_open=True) * scales.upper_edge.high
    if min(m, n) <= LARGEST_SIDE:
        return upper_tail(gate, min(m, n), max(m, n))
    centre, scale = centre_and_scale(math.sqrt(m - 0.5), math.sqrt(n - 0.5))
    return tracy_widom_tail((gate * gate - centre) / scale)


def kappa_for(shape: Sequence[int], false_alarm: float) -> float:
    """Compute the gate κ >= 1 that pure noise passes with the given probability: ``P(s₁ > κ·b₊) = false_alarm``.

    Parameters
    ----------
    shape : tuple of int
        ``(m, n)`` of the matrix, either orientation.
    false_alarm : float
        Probability in [1e-30, 1 - 1e-6] that a matrix of pure noise counts as signal.

    Returns
    -------
    float
        The κ for `denoise`, exact if min(m, n) <= 1024 and else by the Tracy–Widom limit with Ma's constants. It is 1
        for rates from ``false_alarm_rate(shape, 1.0)`` on (13 % at 16 × 768, 17 % for large matrices), because the
        shrinker sets everything inside the bulk to 0. So the true rate never exceeds ``false_alarm``.

    Raises
    ------
    ParameterError
        If ``shape`` is not a pair of integers >= 1 or ``false_alarm`` is outside its range.

    Notes
    -----
    The first call for a shape and rate costs milliseconds up to 256 × 256, and 30 to 200 ms at 1024 × 1024.
    Results are cached.

    References
    ----------
    The gate of Eq. 10 of arXiv:2510.01137v3, where κ = 1.02 for all shapes.

    Examples
    --------
    >>> [round(kappa_for(shape, 0.001), 4) for shape in ((16, 768), (32, 2048), (256, 256))]
    [1.0308, 1.0174, 1.0244]
    >>> kappa_for((16, 768), 0.2)
    1.0
    """
    m, n = check_shape(shape)
    rate = check_real("false_alarm", false_alarm, low=1e-30, high=1 - 1e-6)
    return _kappa_for(min(m, n), max(m, n), rate)


@lru_cache(maxsize=1024)
def _kappa_for(m: int, n: int, false_alarm: float) -> float:
    edge = bulk_edge((m, n), 1.0)
    if m <= LARGEST_SIDE:
        gate = exceeded_with(false_alarm, m, n)
    else:
        gate = tracy_widom_edge((m, n), 1.0, false_alarm, centring="ma")
    return max(1.0, gate / edge)


def visible_signal(shape: Sequence[int], sigma: float, false_alarm: float = 0.01, power: float = 0.95) -> float:
    """Find the clean singular value that is detected in a given share of draws.

    Parameters
    ----------
    shape : tuple of int
        ``(m, n)`` of the matrix, either orientation.
    sigma : float
        Standard deviation of one entry of the noise, >= 0, in the units of the matrix.
    false_alarm : float, default 0.01
        False-alarm rate of the gate, in [1e-30, 1 - 1e-6].
    power : float, default 0.95
        Share of draws in which a matrix of rank one with this value passes the gate, in (0, 1).

    Returns
    -------
    float
        From 1600 draws: the share is met within two standard errors, 1.1 % at 95 %.

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Notes
    -----
    With one spike ``X = λuvᵀ`` the noise is reduced to a tridiagonal T that leaves u and v in place. A value g is
    singular for ``T + λe₁e₁ᵀ`` if ``1/λ = β + g√(αγ)``, with ``α = e₁ᵀ(g² - TTᵀ)⁻¹e₁``, γ the same for Tᵀ, and ``β =
    e₁ᵀ(g² - TTᵀ)⁻¹Te₁``. So every draw has one λ.

    Examples
    --------
    >>> from dprmt.spectra import detection_threshold
    >>> round(visible_signal((64, 256), 1.0) / detection_threshold((64, 256), 1.0), 1)
    1.5
    """
    edge = bulk_edge(shape, 1.0)
    gate = kappa_for(shape, false_alarm) * edge
    share = check_real("power", power, low=0.0, high=1.0, low_open=True, high_open=True)
    short, long = sorted((int(shape[0]), int(shape[1])))
    return check_real("sigma", sigma, low=0.0) * float(np.quantile(_first_called(short, long, gate), share))


@lru_cache(maxsize=64)
def _first_called(short: int, long: int, gate: float, draws: int = 1600) -> NDArray[np.float64]:
    # Least λ > 0 that passes the gate, for each draw of noise of σ = 1; 0 if the noise alone passes.
    depth = max(2, _rows_that_matter(short, long, gate))
    k = np.arange(depth)[:, None]
    degrees = np.maximum(np.array([long, short])[:, None, None] - 1 - k, 1e-300)
    rng = np.random.default_rng(0)
    d = rng.standard_normal((depth, draws))
    upper, below = np.sqrt(rng.chisquare(degrees, (2, depth, draws)))  # the last upper one: of all columns beyond
    d[short:] = upper[short:] = 0.0
    # g² - TTᵀ without its rows from the last on: its lower bands, and the block [[u, v], [v, p]] of two rows left.
    diagonal = gate**2 - d**2 - upper**2
    diagonal[1:] -= below[:-1] ** 2
    near = -below[:-1] * d[:-1] - upper[:-1] * d[1:]
    far = -below[1:-1] * upper[:-2]
    u, v, p = diagonal[-2], near[-1], diagonal[-1]
    positive = p > 0
    for row in range(depth - 3, -1, -1):
        ratio = far[row] / p
        u, v, p = diagonal[row] - far[row] * ratio, near[row] - v * ratio, u - v * (v / p)
        positive &= p > 0
    ratio = v / p
    α, first = 1 / (u - v * ratio), d[0] - below[0] * ratio
    β, γ = α * first, (1 + α * first**2 + below[0] ** 2 / p) / gate**2
    called = 1 / (β + gate * np.sqrt(np.maximum(α * γ, 0.0)))
    return np.where(positive & (α > 0), np.maximum(called, 0.0), 0.0)


def _rows_that_matter(short: int, long: int, gate: float) -> int:
    # Rows of T, whose entries become smaller, up to where an entry of (g² - TTᵀ)⁻¹ has decayed below rounding.
    k = np.arange(short)
    a2, b2 = np.maximum(long - 1.0 - k, 0.0), np.maximum(short - 1.0 - k, 0.0)
    rates = np.arccosh(np.maximum((gate**2 - a2 - b2) / np.maximum(2 * np.sqrt(a2 * b2), 1e-300), 1.0))
    return min(short, int(np.searchsorted(np.cumsum(rates), 25.0)) + 1)
