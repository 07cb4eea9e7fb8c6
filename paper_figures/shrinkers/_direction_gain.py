r"""What a direction other than the gradient gains in one step on a quadratic loss: preconditioning, without any noise.

Along v, the best decrease at any rate is ``½⟨g, v⟩²/vᵀHv``; along g it is ``½‖g‖⁴/gᵀHg``. Their ratio is

    ``κ(v) = ⟨g, v⟩²·gᵀHg / (‖g‖⁴·vᵀHv)``,

at most ``K = gᵀHg·gᵀH⁺g/‖g‖⁴ >= 1`` by Cauchy–Schwarz, with equality at ``v = H⁺g``; K = 1 if and only if g is an
eigenvector of H. Proofs: docs/theory/when_denoising_helps.md, Theorems 1 to 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprmt._validation import ParameterError
from dprmt.spectra._arrays import Array, array_namespace, as_array, check_finite, check_nonempty, is_tensor
from paper_figures.shrinkers._noise_gain import _curvature, _flat_gradient, _matrix, _quadratic_form

_FLAT = 1e-12  # an eigenvalue that counts as zero, relative to the largest
_INSIDE = 1e-8  # share of g in the directions without curvature that passes as rounding


def direction_gain(direction: Array, gradient: Array, hessian: Array | Callable[[Array], Array] | Any) -> float:
    """Gain of a step along another direction over one along the gradient, both without noise and at their best rate.

    A map of a noisy gradient whose mean is ``direction`` gains at most ``(1 + ρ)`` times this over the noisy gradient,
    ρ that of `noise_gain`, and exactly that if nothing of its noise meets curvature.

    Parameters
    ----------
    direction : array of the shape of ``gradient``
        v: the mean of a denoised gradient, or what would be left of the gradient itself. Its length does not matter.
    gradient : array of any shape, d entries
        g, NumPy or torch, of floating dtype.
    hessian : array of shape (d, d), callable, or object with a ``matvec`` method
        H, as in `noise_gain`.

    Returns
    -------
    float
        κ(v) >= 0: above 1 for a better direction than g, 0 if v does not point downhill. Not private where g or H
        are not.

    Raises
    ------
    ParameterError
        If shapes, libraries or dtypes do not match, a matrix is not positive semidefinite as far as seen, or there is
        no curvature along one of the two.

    References
    ----------
    docs/theory/when_denoising_helps.md, Theorem 1.

    Examples
    --------
    >>> import numpy as np
    >>> g, curvature = np.array([32.0, 6.0]), np.diag([1e-3, 1.0])
    >>> round(direction_gain([32.0, 0.0], g, curvature), 2)  # without its weak, sharp entry
    33.74
    >>> round(direction_gain([0.0, 6.0], g, curvature), 4)
    0.0012
    """
    g, v = _flat_gradient(gradient), _flat_gradient(direction)
    if len(v) != len(g) or array_namespace(v) is not array_namespace(g):
        raise ParameterError("direction", tuple(v.shape), f"an array like the gradient, of {len(g)} entries")
    g, v = g / _length("gradient", g), v / _length("direction", v)
    apply = getattr(hessian, "matvec", hessian)
    if callable(apply):
        form = _quadratic_form(apply, as_array("gradient", gradient), None)
    else:
        H = _matrix(hessian, g)
        form = lambda x: float(x @ (H @ x))  # noqa: E731
    along = max(float(g @ v), 0.0)
    return along**2 * _curvature(form(g), 0.0) / _curvature(form(v), 0.0, of="direction")


def largest_direction_gain(gradient: Array, hessian: Array) -> float:
    """The most that any direction gains over the gradient, at ``H⁺g``; times ``1 + ρ``, the most of any denoiser.

    Parameters
    ----------
    gradient : array of any shape, d entries
        g, NumPy or torch, of floating dtype.
    hessian : array of shape (d, d)
        H, symmetric positive semidefinite. A matrix: products give no upper bound on ``gᵀH⁺g``.

    Returns
    -------
    float
        ``K = gᵀHg·gᵀH⁺g/‖g‖⁴ >= 1``; infinite if part of g lies in directions without curvature.

    Raises
    ------
    ParameterError
        If shapes, libraries or dtypes do not match, H is not symmetric positive semidefinite, or has no curvature along
        the gradient.

    References
    ----------
    docs/theory/when_denoising_helps.md, Theorem 2.

    Examples
    --------
    >>> import numpy as np
    >>> round(largest_direction_gain(np.array([32.0, 6.0]), np.diag([1e-3, 1.0])), 2)
    33.74
    >>> largest_direction_gain(np.array([32.0, 6.0]), np.eye(2))  # 1 + ρ bounds every map
    1.0
    """
    g = _flat_gradient(gradient)
    H = _matrix(hessian, g)
    values, vectors = np.linalg.eigh(_numpy(H))
    if values[0] < -_INSIDE * values[-1]:
        raise ParameterError("hessian", float(values[0]), "positive semidefinite; its least eigenvalue")
    return _spread(vectors.T @ _numpy(g / _length("gradient", g)), np.clip(values, 0.0, None))


def filter_gain(signal: Array, curvature: Array, *, monotone: bool = True) -> float:
    """The most that filters of a gradient's singular values gain: matrices with its vectors and other values.

    Such a filter maps ``g = Σ s_i u_i v_iᵀ`` to ``Σ w_i s_i u_i v_iᵀ``. Shrinkers and truncations are monotone: a
    larger singular value has no smaller weight ``w_i >= 0``. They gain only where weak singular values are more curved
    than the whole.

    Parameters
    ----------
    signal : array, shape (k,)
        s, the singular values of the clean gradient, >= 0 in any order, not all 0.
    curvature : array, shape (k,)
        ``h_i = ⟨u_i v_iᵀ, H u_i v_iᵀ⟩ > 0``; curvature between two different directions has to be 0.
    monotone : bool
        Whether to allow monotone weights alone.

    Returns
    -------
    float
        The largest κ, >= 1: with all weights free ``Σ s_i²h_i · Σ s_i²/h_i / (Σ s_i²)²``, else from the isotonic
        regression of ``1/h_i`` on s_i with the weights ``s_i²h_i``.

    Raises
    ------
    ParameterError
        If the two have other shapes or an entry is out of range.

    References
    ----------
    docs/theory/when_denoising_helps.md, Theorem 3; isotonic regression by pooling adjacent violators, Barlow et al.
    (1972), Statistical Inference under Order Restrictions, Theorem 1.1.

    Examples
    --------
    >>> round(filter_gain([32.0, 6.0], [1e-3, 1.0]), 2)  # weak and sharp: truncation preconditions
    33.74
    >>> filter_gain([32.0, 6.0], [1.0, 1e-3])  # weak and flat: no monotone filter beats the gradient
    1.0
    >>> round(filter_gain([32.0, 6.0], [1.0, 1e-3], monotone=False), 2)
    33.74
    """
    s, h = (_numpy(as_array(name, x)) for name, x in (("signal", signal), ("curvature", curvature)))
    if s.ndim != 1 or s.shape != h.shape:
        raise ParameterError("curvature", h.shape, f"of the shape (k,) of signal, which has {s.shape}")
    check_nonempty("signal", s)
    check_finite("signal", s, low=0.0)
    check_finite("curvature", h, low=np.finfo(float).tiny)
    s = s / _length("signal", s)
    if not monotone:
        return _spread(s, h)
    _, group = np.unique(s, return_inverse=True)  # equal singular values have equal weights
    energy, curved = np.bincount(group, s * s), np.bincount(group, s * s * h)
    seen = energy > 0  # what is 0, or underflows, moves nothing
    blocks = _pooled(energy[seen], curved[seen])
    return float(max(sum(E * E / C for E, C in blocks) * curved.sum() / energy.sum() ** 2, 1.0))


def _pooled(energy: NDArray[Any], curved: NDArray[Any]) -> list[tuple[float, float]]:
    # Adjacent violators, weakest first: the ratios energy/curved of the blocks increase.
    blocks: list[tuple[float, float]] = []
    for E, C in zip(energy.tolist(), curved.tolist(), strict=True):
        while blocks and blocks[-1][0] * C >= E * blocks[-1][1]:
            E, C = E + blocks[-1][0], C + blocks[-1][1]
            blocks.pop()
        blocks.append((E, C))
    return blocks


def _spread(g: NDArray[np.float64], h: NDArray[np.float64]) -> float:
    # K of a unit vector in the eigenbasis of H.
    flat = h <= _FLAT * h.max()
    along = _curvature(float(g * g @ h), 0.0)
    if math.sqrt(float(g[flat] @ g[flat])) > _INSIDE:
        return math.inf
    inverse = float((g[~flat] ** 2 / h[~flat]).sum())
    return max(along * inverse, 1.0)


def _length(name: str, x: Array) -> float:
    largest = float(abs(x).max())
    if largest == 0:
        raise ParameterError(name, 0.0, "not 0 in every entry; its largest")
    scaled = x / largest
    return largest * math.sqrt(float(scaled @ scaled))


def _numpy(x: Array) -> NDArray[np.float64]:
    return np.asarray(x.detach().cpu() if is_tensor(x) else x, dtype=np.float64)
