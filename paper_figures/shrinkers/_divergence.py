"""Divergence of a spectral estimator: what a shrinker of singular values owes to the noise, without knowing X."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dprmt._validation import ParameterError
from dprmt.spectra._arrays import (
    Array,
    array_namespace,
    as_array,
    cast_like,
    check_finite,
    check_shape,
    singular_values,
    to_float64,
)

_CLOSE = 6e-6  # ∛ε: pairs of relative distance below it use slopes, where differences lose more than half the digits
_ZERO = 1e-150  # singular values below it, in units of the top one, count as 0


def spectral_divergence(observed: Array, shrunk: Array, slopes: Array, shape: Sequence[int]) -> Array:
    """Divergence of ``f(Y) = U diag(f(y_i)) Vᵀ`` as a function of the mn entries of Y.

    For ``Y = X + σW`` with independent standard normal entries of W, ``Σ f(y_i) y_i - σ² div f(Y)`` estimates
    ``⟨f(Y), X⟩`` without bias, and ``‖f(Y) - Y‖² - σ² mn + 2σ² div f(Y)`` is Stein's estimate of
    ``‖f(Y) - X‖²``. With m <= n

        div = Σ f'(y_i) + (n-m) Σ f(y_i)/y_i + Σ_{i<j} [(f_i - f_j)/(y_i - y_j) + (f_i + f_j)/(y_i + y_j)],

    where the first fraction of values that agree to 6e-6 is replaced by the mean of the two slopes, and all
    fractions with a vanishing denominator by a slope. The relative error is about 1e-10 for smooth f.

    Parameters
    ----------
    observed : float or array, shape (..., min(m, n))
        All singular values y_i of Y, >= 0, zeros included, in any order.
    shrunk : float or array, shape (..., min(m, n))
        The values f(y_i), 0 where y_i is 0, broadcast against ``observed``: several shrinkers can share one
        spectrum. f must be almost differentiable: continuous, with kinks, but no jumps.
    slopes : array, of the shape of ``shrunk``
        The derivatives f'(y_i).
    shape : tuple of int
        ``(m, n)`` of Y, either orientation.

    Returns
    -------
    array, shape (...)
        In the form, dtype and device of ``shrunk``, computed in float64.

    Raises
    ------
    ParameterError
        If an array is not finite or not of a real floating dtype, ``observed`` is negative, or ``shrunk`` is
        not 0 where ``observed`` is; if shapes do not fit together.

    References
    ----------
    Candès, Sing-Long & Trzasko (2013), arXiv:1210.4139; Stein (1981).

    Examples
    --------
    >>> import numpy as np
    >>> y = np.array([5.0, 3.0, 1.0])
    >>> round(float(spectral_divergence(y, y, np.ones(3), shape=(3, 7))), 9)  # of the identity: the number of entries
    21.0
    >>> round(float(spectral_divergence(y, np.maximum(y - 2, 0), np.array([1.0, 1.0, 0.0]), shape=(3, 7))), 3)
    9.233
    """
    m, n = check_shape(shape)
    y = singular_values("observed", observed)
    f, slope = (as_array(name, x) for name, x in (("shrunk", shrunk), ("slopes", slopes)))
    for name, x in (("observed", y), ("shrunk", f), ("slopes", slope)):
        if array_namespace(x) is not array_namespace(y):
            raise ParameterError(name, type(x), f"from the same library as observed, {type(observed)}")
        if x.ndim == 0 or x.shape[-1] != min(m, n):
            raise ParameterError(name, tuple(x.shape), f"of shape (..., {min(m, n)}), one number per singular value")
        check_finite(name, x)
    if slope.shape != f.shape:
        raise ParameterError("slopes", tuple(slope.shape), f"of the shape of shrunk, {tuple(f.shape)}")
    xp = array_namespace(y)
    try:
        y, f, slope = xp.broadcast_arrays(y, f, slope) if xp.__name__ == "numpy" else xp.broadcast_tensors(y, f, slope)
    except (ValueError, RuntimeError):
        raise ParameterError("shrunk", tuple(f.shape), f"broadcastable to observed, {tuple(y.shape)}") from None
    if bool(xp.any((y == 0) & (f != 0))):
        raise ParameterError("shrunk", float(f[(y == 0) & (f != 0)][0]), "0 where the singular value is 0")
    return cast_like(divergence(y, to_float64(f), to_float64(slope), (m, n)), shrunk)


def divergence(y: Array, f: Array, slope: Array, shape: tuple[int, int]) -> Array:
    """`spectral_divergence` of checked float64 arrays that may broadcast against each other."""
    y, f = _in_units_of_the_top(y, f)
    xp, pairs, excess = array_namespace(y), _pairs(y), abs(shape[0] - shape[1])
    own = slope * (1 + (pairs.close.sum(-1) + pairs.vanishing.sum(-1)) / 2) + excess * _ratio(f, y, slope)
    # Each pair appears from both of its ends: f_i from one, f_j from the other.
    return (own + f * (xp.sum(pairs.difference, -1) + xp.sum(pairs.sum, -1))).sum(-1)


def squared_jacobian_trace(y: Array, f: Array, slope: Array, shape: tuple[int, int]) -> Array:
    """``tr J²`` of the Jacobian J of ``f(Y)``, whose trace is the divergence.

    J is symmetric with the eigenvalues f'(y_i), f(y_i)/y_i (n-m times each) and, for each pair, both fractions
    of the divergence. By Stein's lemma applied twice, the variance of ``⟨f(Y), σW⟩ - σ² div f(Y)`` is
    ``σ² E‖f(Y)‖² + σ⁴ E tr J²``.
    """
    y, f = _in_units_of_the_top(y, f)
    pairs, excess = _pairs(y), abs(shape[0] - shape[1])
    mean_slope = (slope[..., :, None] + slope[..., None, :]) / 2
    first = (f[..., :, None] - f[..., None, :]) * pairs.difference + mean_slope * pairs.close
    second = (f[..., :, None] + f[..., None, :]) * pairs.sum + mean_slope * pairs.vanishing
    return (slope**2 + excess * _ratio(f, y, slope) ** 2).sum(-1) + (first**2 + second**2).sum((-1, -2)) / 2


class _Pairs(NamedTuple):
    # Of singular values i and j, arrays of shape (..., r, r), 0 on the diagonal.
    difference: Array  # 1/(y_i - y_j), or 0 if that is too large
    close: Array  # 1 in this case
    sum: Array  # 1/(y_i + y_j), or 0 if both are
    vanishing: Array  # 1 in this case


def _pairs(y: Array) -> _Pairs:
    xp = array_namespace(y)
    apart, total = y[..., :, None] - y[..., None, :], y[..., :, None] + y[..., None, :]
    close, vanishing = abs(apart) <= _CLOSE * total, total == 0
    others = 1 - to_float64(xp.eye(y.shape[-1], **({} if xp.__name__ == "numpy" else {"device": y.device})))
    one = xp.ones_like(total)
    return _Pairs(
        difference=xp.where(close, 0 * one, 1 / xp.where(close, one, apart)),
        close=close * others,
        sum=xp.where(vanishing, 0 * one, others / xp.where(vanishing, one, total)),
        vanishing=vanishing * others,
    )


def _in_units_of_the_top(y: Array, f: Array) -> tuple[Array, Array]:
    xp = array_namespace(y)
    top = xp.amax(y, -1)[..., None]
    top = xp.where(top > 0, top, xp.ones_like(top))
    y = y / top
    return xp.where(y > _ZERO, y, xp.zeros_like(y)), f / top


def _ratio(f: Array, y: Array, slope: Array) -> Array:
    xp = array_namespace(y)
    return xp.where(y > 0, f / xp.where(y > 0, y, xp.ones_like(y)), slope)
