"""Both tails of a weighted sum of independent chi-squares, to almost full relative accuracy.

Divide all scales by ``2 max(w)`` and put ``α = ν/2``: the sum becomes ``Y = Σ r_i Γ(α_i)``, ``r_i <= 1``, and

    (1/2πi) ∫ exp(s y) / s ∏ (1 + r_i s)^(-α_i) ds

is the lower tail along a path that crosses the real axis right of the pole at 0, and minus the upper tail
along one that crosses between the branch point -1 and the pole. At the saddle point, where the path crosses,
the integrand has the size of the answer, so far tails keep their relative accuracy. From there the path is a
hyperbola bent left like the curve of steepest descent, on which the trapezoid rule converges fast.

Sources: Rice (1980), SIAM J. Sci. Stat. Comput. 1, 438-448, and Helstrom (1983), ibid. 4, 353-356 (quadrature
through the saddle point); Weideman & Trefethen (2007), Math. Comp. 76, 1341-1356 (hyperbolas).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dprmt._validation import ParameterError

Array = NDArray[np.float64]


def chi2_mixture_cdf(x: ArrayLike, weights: ArrayLike, dof: ArrayLike) -> Array:
    """Compute the distribution function of ``Σ_i w_i χ²(ν_i)``, accurate in both tails.

    Parameters
    ----------
    x : array_like
        Where to evaluate, of any shape; may be infinite.
    weights : array_like, shape (..., m)
        The weights w_i, finite and >= 0. Zero weights add nothing; if all are zero the sum is the constant 0.
    dof : array_like, shape (..., m)
        The degrees of freedom ν_i, finite, real and >= 0.5.

    Returns
    -------
    ndarray
        P(Σ w_i χ²(ν_i) <= x), with the shape of ``x`` broadcast with the leading axes of the other two.
        The relative error is below 1e-10 for values down to 1e-15 and up to 4·10⁹ degrees of freedom in all
        (measured: below 1e-12 up to 10⁶, 1e-13 up to 10³). Values below 1e-300 are not exact.

    Raises
    ------
    ParameterError
        If ``x`` contains NaN, a weight or dof is outside its range, there is no weight, or shapes do not fit.

    Examples
    --------
    >>> float(chi2_mixture_cdf(2.0, [1.0], [2.0]))  # 1 - exp(-1)
    0.63212055882855...
    >>> chi2_mixture_cdf([0.0, 0.5, 1.0], [0.75, 0.25], [1, 3]).round(6)
    array([0.      , 0.170057, 0.422345])
    """
    return _checked_tails(x, weights, dof)[0]


def chi2_mixture_sf(x: ArrayLike, weights: ArrayLike, dof: ArrayLike) -> Array:
    """Compute the survival function of ``Σ_i w_i χ²(ν_i)``, accurate in both tails.

    Parameters
    ----------
    x : array_like
        Where to evaluate, any shape; may be infinite.
    weights, dof : array_like, shape (..., m)
        The weights w_i >= 0 and degrees of freedom ν_i >= 0.5, as in :func:`chi2_mixture_cdf`.

    Returns
    -------
    ndarray
        P(Σ w_i χ²(ν_i) > x), with the shape and accuracy described in :func:`chi2_mixture_cdf`.

    Raises
    ------
    ParameterError
        As :func:`chi2_mixture_cdf`.

    Examples
    --------
    >>> float(chi2_mixture_sf(60.0, [1.0], [2.0]))  # exp(-30)
    9.3576229688...e-14
    """
    return _checked_tails(x, weights, dof)[1]


def mixture_tails(x: Array, excess: Array | None, weights: Array, dof: Array) -> tuple[Array, Array]:
    """Lower and upper tail at finite positive points, arguments unchecked.

    ``x``, ``excess``: the points, and ``x - Σ w_i ν_i`` if the caller knows it better than a subtraction would (or
    None).
    ``weights``, ``dof``: one column per point, or one for all; every column has a positive weight.
    """
    largest = weights.max(axis=0)
    with np.errstate(under="ignore", over="ignore", invalid="ignore"):
        ratios, alphas = weights / largest, dof / 2
        y = np.clip(x / largest / 2, 1e-300 * (1 + alphas.sum(axis=0)), 1e300)
        shift = y - (ratios * alphas).sum(axis=0) if excess is None else excess / largest / 2
        is_lower = shift <= np.sqrt((ratios**2 * alphas).sum(axis=0))
        tail = np.empty_like(y)
        for lower in (True, False):
            points = np.flatnonzero(is_lower == lower)
            for i in range(0, points.size, 640):  # so that the work arrays stay in cache
                at = points[i : i + 640]
                tail[at] = _tail(_Points(y[at], shift[at], _columns(ratios, at), _columns(alphas, at), lower))
    return np.where(is_lower, tail, 1 - tail), np.where(is_lower, 1 - tail, tail)


class _Points(NamedTuple):
    y: Array  # (p,)
    shift: Array  # y minus the mean, (p,)
    r: Array  # (m, p) or (m, 1)
    alpha: Array  # (m, p) or (m, 1)
    lower: bool  # which tail all of them want


def _tail(points: _Points) -> Array:
    # Size of the integrand at the crossing times the integral normalised by it, with lengths in units of a,
    # the distance from the crossing to the nearest singularity (so that pull = a / distance is at most 1).
    s, one_plus = _lower_crossing(points) if points.lower else _upper_crossing(points)
    c = points.r / one_plus
    a = s if points.lower else np.minimum(1 / c.max(axis=0), -s)
    pull = np.concatenate([c * a, (a / s)[None]])
    alpha = np.concatenate([np.broadcast_to(points.alpha, c.shape), np.ones((1, s.size))])
    log_peak, slope = _at_crossing(points, s, one_plus)
    tail = np.exp(log_peak) * np.abs(a / s) * _trapezoid(slope * (a / s), pull, alpha)
    return np.asarray(np.clip(tail, 0, 1))


def _lower_crossing(points: _Points) -> tuple[Array, Array]:
    # The saddle point s > 0, and 1 + rs: the root of the concave function 1 + Σ α rs/(1+rs) - sy, by Newton
    # from its right, hence monotone. Any s > 0 gives a valid path, hence the mild stopping rule.
    s = (1 + points.alpha.sum(axis=0)) / points.y
    for _ in range(100):
        one_plus = 1 + points.r * s
        share = points.alpha * (points.r * s / one_plus)
        value = 1 + share.sum(axis=0) - s * points.y
        slope = (share / one_plus).sum(axis=0) - s * points.y
        step = np.clip(value / slope, 0, 0.9)
        s = s * (1 - step)
        if np.all(step < 1e-4):
            break
    return s, 1 + points.r * s


def _upper_crossing(points: _Points) -> tuple[Array, Array]:
    # The saddle point s = gap - 1 in (-1, 0), and 1 + rs: the root of 1 - sy + Σ α rs/(1+rs), concave, by
    # Newton from its left. The gap to the branch point keeps its relative accuracy far out in the tail.
    top = points.r == 1
    outer = (points.alpha * top).sum(axis=0)
    gap = outer / (1 + points.y + outer)
    for _ in range(100):
        one_plus = np.where(top, gap, 1 - points.r + points.r * gap)
        c = points.r / one_plus
        value = 1 + (1 - gap) * (points.y - (points.alpha * c).sum(axis=0))
        slope = points.y - (points.alpha * c / one_plus).sum(axis=0)
        step = np.clip(value / slope / gap, 0, 1e3)
        gap = np.minimum(gap * (1 + step), (1 + gap) / 2)
        if np.all(step < 1e-4):
            break
    return gap - 1, np.where(top, gap, 1 - points.r + points.r * gap)


def _at_crossing(points: _Points, s: Array, one_plus: Array) -> tuple[Array, Array]:
    # φ = s y - Σ α log(1 + rs), and s φ' - 1 (what Newton left of 0), each in one of two equal forms: with
    # many degrees of freedom the terms of the first nearly cancel, unless the mean is taken off both.
    u = points.r * s
    log = np.where(one_plus < 0.5, np.log(one_plus), np.log1p(np.maximum(u, -0.5)))
    first, second = s * points.y, (points.alpha * log).sum(axis=0)
    moved, rest = s * points.shift, (points.alpha * _minus_log1p(u, log)).sum(axis=0)
    plain = np.abs(first) + np.abs(second) < np.abs(moved) + np.abs(rest)
    share = points.alpha * (u / one_plus)
    slope = np.where(plain, first - share.sum(axis=0), moved + (share * u).sum(axis=0)) - 1
    return np.where(plain, first - second, moved + rest), slope


def _minus_log1p(u: Array, log1p_u: Array) -> Array:
    # u - log(1+u) without cancellation: with v = u/(2+u), log(1+u) = 2 artanh v and u - 2v = uv.
    v = u / (2 + u)
    series = np.zeros_like(u)
    for j in range(8, 0, -1):
        series = (series + 1 / (2 * j + 1)) * v * v
    return np.where(np.abs(u) < 0.2, v * (u - 2 * series), u - log1p_u)


def _trapezoid(slope: Array, pull: Array, alpha: Array) -> Array:
    # (1/π) Re ∫_0^∞ exp(slope Δ + Σ α (pull Δ - log(1 + pull Δ))) dΔ/i along Δ = i sinh t - κ (cosh t - 1).
    # κ gives the curvature of steepest descent at the crossing, but at most 45 degrees far out: so far every
    # factor of the lower tail falls along the path. The step resolves the Gaussian peak, of width 1/√β.
    beta = (alpha * pull**2).sum(axis=0)
    least = 0.1 / np.sqrt(alpha.sum(axis=0))
    kappa = np.clip(2 / 3 * (alpha * pull**3).sum(axis=0) / beta, least, 1)[:, None]
    step = np.minimum(0.1, 0.6 / np.sqrt(beta))[:, None]  # the rule's error is then below 1e-13 (measured)
    slope, pull, alpha = slope[:, None], pull[:, :, None], alpha[:, :, None]
    nodes = (16, 24, 32, 48, 80, 160)  # path lengths tried, until the integrand has fallen by e^-40
    t = step * np.array(nodes)
    size, _ = _exponent(-kappa * (np.cosh(t) - 1), np.sinh(t), slope, pull, alpha)
    t = step * np.arange(nodes[min(int((size.max(axis=0) > -40.0).sum()), len(nodes) - 1)], dtype=np.int64)
    sinh, cosh = np.sinh(t), np.cosh(t)
    size, angle = _exponent(-2 * kappa * np.sinh(t / 2) ** 2, sinh, slope, pull, alpha)
    values = np.exp(size) * (np.cos(angle) * cosh - np.sin(angle) * sinh * kappa)
    values[:, 0] /= 2
    return np.asarray(values.sum(axis=1) * step[:, 0] / np.pi)


def _exponent(real: Array, imag: Array, slope: Array, pull: Array, alpha: Array) -> tuple[Array, Array]:
    # Real and imaginary part of slope Δ + Σ α (pull Δ - log(1 + pull Δ)). For large α what matters are small
    # pull Δ = z, whose difference from log(1 + z) cancels: with q = Im z / (1 + Re z) it is, term by term,
    # (v - log(1+v))/2 - |z|²/2 for v = 2 Re z + |z|², and q Re z + (q - arctan q).
    square = real**2 + imag**2
    size, angle = slope * real, slope * imag
    for c, a in zip(pull, alpha, strict=True):
        z2 = c * c * square
        v = 2 * c * real + z2
        log, one_plus = np.log1p(v), 1 + c * real
        rest_real, rest_imag = c * real - log / 2, c * imag - np.arctan2(c * imag, one_plus)
        if a.max() > 1e3:
            small = z2 < 0.01
            q = c * imag / np.where(small, one_plus, 1)
            rest_real = np.where(small, (_minus_log1p(v, log) - z2) / 2, rest_real)
            rest_imag = np.where(small, q * c * real + _minus_arctan(q), rest_imag)
        size += a * rest_real
        angle += a * rest_imag
    return size, angle


def _minus_arctan(q: Array) -> Array:
    # q - arctan q for |q| < 0.12.
    series = np.zeros_like(q)
    for j in range(7, 0, -1):
        series = (1 / (2 * j + 1) - series) * q * q
    return series * q


def _checked_tails(x: ArrayLike, weights: ArrayLike, dof: ArrayLike) -> tuple[Array, Array]:
    # Validates, broadcasts, settles the points that need no integral, hands the rest to mixture_tails.
    points = real_array("x", x, "real numbers, not NaN")
    w = real_array("weights", weights, "finite numbers >= 0", low=0.0)
    nu = real_array("dof", dof, "finite numbers >= 0.5", low=0.5)
    if w.ndim == 0 or w.shape[-1] == 0:
        raise ParameterError("weights", weights, "an array with at least one weight along its last axis")
    if nu.ndim == 0 or nu.shape[-1] != w.shape[-1]:
        raise ParameterError("dof", dof, f"one value per weight ({w.shape[-1]}) along the last axis")
    try:
        shape = np.broadcast_shapes(points.shape, w.shape[:-1], nu.shape[:-1])
    except ValueError:
        allowed = f"of a shape that broadcasts with {w.shape[:-1]} (weights) and {nu.shape[:-1]} (dof)"
        raise ParameterError("x", points.shape, allowed) from None
    if w.ndim == nu.ndim == 1:  # one entry per distinct weight: w χ²(a) + w χ²(b) = w χ²(a + b)
        w, where = np.unique(w, return_inverse=True)
        nu = np.bincount(where, weights=nu).astype(np.float64)
    points = np.broadcast_to(points, shape).ravel()
    w, nu = _as_columns(w, shape), _as_columns(nu, shape)
    constant = np.broadcast_to(w.max(axis=0) == 0, points.shape)
    cdf = np.where(constant, points >= 0, points == np.inf).astype(np.float64)
    sf = 1 - cdf
    work = np.flatnonzero(~constant & (points > 0) & (points < np.inf))
    if work.size:
        cdf[work], sf[work] = mixture_tails(points[work], None, _columns(w, work), _columns(nu, work))
    return cdf.reshape(shape)[()], sf.reshape(shape)[()]


def real_array(name: str, value: ArrayLike, allowed: str, low: float | None = None) -> Array:
    # The argument as floats without NaN; with ``low`` also finite and not below it. Else ParameterError.
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ParameterError(name, value, allowed) from None
    bad = np.isnan(array) if low is None else ~((array >= low) & (array < np.inf))
    if bad.any():
        raise ParameterError(name, float(array[bad].flat[0]), allowed)
    return array


def _columns(array: Array, points: NDArray[np.intp]) -> Array:
    return array if array.shape[1] == 1 else array[:, points]


def _as_columns(array: Array, shape: tuple[int, ...]) -> Array:
    rows = array if array.ndim == 1 else np.broadcast_to(array, (*shape, array.shape[-1]))
    return rows.reshape(-1, array.shape[-1]).T
