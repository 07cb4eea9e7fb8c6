r"""One Adam step on a quadratic: the exact decrease of the loss and what the cosine guarantees of it.

Setting of appendix I of arXiv:2510.01137v3: ``f(x) = ½(x - x*)ᵀH(x - x*)`` with gradient g at x, and the step
``x - αPs`` with a fixed preconditioner P whose eigenvalues lie in [p_min, p_max].

Proposition I.1 as printed bounds ``gᵀPs`` from below by ``p_min gᵀs``, because P - p_min I is positive semidefinite.
This bounds ``gᵀPg``, but not a bilinear form in two different vectors. With P = diag(1, 10), g = (2, -1) and s = (1,
1), ``gᵀs = 1`` but ``gᵀPs = -8``. The printed bound needs the further premise ``gᵀ(P - p_min I)s >= 0``, which P = p·I
guarantees for all vectors. It fails most easily at the small cosines of noisy training.

The corrected bound writes ``P = c·I + E`` with ``c = (p_max + p_min)/2`` and ``‖E‖ <= h = (p_max - p_min)/2``. Then
``gᵀPs >= ‖g‖‖s‖(c·cos(g, s) - h)``, which is the best bound in these quantities. Hence

    ``Δ(s) = αgᵀPs - ½α²(Ps)ᵀH(Ps) >= α‖g‖‖s‖(c·cos(g, s) - h) - ½α²λ_max(H)p_max²‖s‖²``.

It lies below the printed bound by ``α‖g‖‖s‖h(1 - cos(g, s))``. It still increases with the cosine, with slope c
instead of p_min, but its first term is positive only if ``cos(g, s) > (p_max - p_min)/(p_max + p_min)``: a
preconditioner can turn a direction by that much. So it applies to noisy training only as far as the noise makes Adam's
second moments equal.

Angles in the geometry of P avoid this loss. With ``⟨a, b⟩_P = aᵀPb`` and ``cos_P(g, s) = gᵀPs/(‖g‖_P‖s‖_P)``, the
first term is an identity, and ``(Ps)ᵀH(Ps) <= λ_max(H)·p_max·‖s‖_P²``. Hence the P-weighted bound

    ``Δ(s) >= α‖g‖_P‖s‖_P cos_P(g, s) - ½α²λ_max(H)p_max‖s‖_P²``.

It is never below the corrected bound, because ``‖s‖_P² <= p_max‖s‖²``, and it is the best bound in its quantities. For
g ≠ 0 and cos_P > 0 it is positive at every step size below ``2‖g‖_P cos_P/(λ_max(H)p_max‖s‖_P)``. A step of a given
P-norm is therefore improved by its cosine in P's geometry, not by the Euclidean cosine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dprmt._validation import ParameterError, check_real
from dprmt.spectra._alignment import NamedBlocks, cosine, inner, matching_blocks, norm
from dprmt.spectra._arrays import Array, array_namespace, as_array, check_finite, detached, to_float64

_SYMMETRY = 1e-8  # relative asymmetry and negative curvature that pass as rounding


@dataclass(frozen=True)
class AdamImprovement:
    """Decrease of a quadratic loss in one preconditioned step, and lower bounds on it.

    Attributes
    ----------
    improvement : float
        Δ(s) = f(x) - f(x - αPs), exact.
    bound : float
        The best lower bound in terms of the cosine, the norms and p_min, p_max, λ_max(H). Always valid.
    printed_bound : float
        Proposition I.1 as printed.
    printed_bound_applies : bool
        Whether ``gᵀPs >= p_min gᵀs``, the premise that the printed proof needs.
    weighted_bound : float
        The best lower bound in terms of the cosine and the norms in the geometry of P, p_max and λ_max(H). Always
        valid, and never below ``bound``.
    weighted_cosine : float
        ``cos_P(g, s) = gᵀPs/(‖g‖_P‖s‖_P)`` in [-1, 1]; 0 if either vector is zero.
    """

    improvement: float
    bound: float
    printed_bound: float
    printed_bound_applies: bool
    weighted_bound: float
    weighted_cosine: float


def adam_improvement_bound(
    gradient: Array,
    direction: Array,
    preconditioner: Array,
    hessian: Array | Callable[[Array], Array] | Any,
    step_size: float,
    largest_curvature: float | None = None,
) -> AdamImprovement:
    """Compute the decrease of a quadratic loss in one Adam step, and its lower bounds (corrected Proposition I.1).

    ``Δ(s) = αgᵀPs - ½α²(Ps)ᵀH(Ps)`` and ``Δ(s) >= α‖g‖‖s‖(½(p_max + p_min)cos(g, s) - ½(p_max - p_min)) -
    ½α²λ_max(H)p_max²‖s‖²``. The printed bound, with ``p_min cos(g, s)`` instead of the bracket, is larger and not
    always true; the head of this module has a counterexample and the missing premise. Both agree if P = p·I or cos(g,
    s) = 1. The P-weighted bound ``α‖g‖_P‖s‖_P cos_P(g, s) - ½α²λ_max(H)p_max‖s‖_P²``, with norms and cosine in the
    geometry of P, is always true and never below the first one.

    Parameters
    ----------
    gradient, direction : array, shape (d,)
        g and s, NumPy or torch, real; computed in float64.
    preconditioner : array, shape (d,) or (d, d)
        The diagonal of P, positive, or P itself, symmetric positive definite. For Adam ``1/(√v̂ + ε)``.
    hessian : array of shape (d, d), callable, or object with a ``matvec`` method
        H, symmetric positive semidefinite, or the map v -> Hv.
    step_size : float
        α > 0.
    largest_curvature : float, optional
        λ_max(H) or an upper bound of it, >= 0. Computed from a matrix; required for an operator, whose
        largest eigenvalue an iteration would only bound from below.

    Returns
    -------
    AdamImprovement
        Exact decrease and bounds, in the units of the loss. The result is not private if the gradient is not.

    Raises
    ------
    ParameterError
        If shapes, libraries or dtypes do not match, P or H is not as described, or a number is out of range.

    References
    ----------
    Proposition I.1 of arXiv:2510.01137v3.

    Examples
    --------
    >>> import numpy as np
    >>> g, s = np.array([2.0, -1.0]), np.array([1.0, 1.0])
    >>> r = adam_improvement_bound(g, s, np.array([1.0, 10.0]), np.eye(2), step_size=1e-3)
    >>> r.bound <= r.improvement < r.printed_bound
    True
    >>> r.printed_bound_applies, r.bound <= r.weighted_bound <= r.improvement
    (False, True)
    """
    g, s = _vectors(gradient=gradient, direction=direction)
    α = check_real("step_size", step_size, low=0.0, low_open=True)
    (P_s, P_g), p_min, p_max = _precondition(preconditioner, s[None], g[None])
    image: NamedBlocks = {None: P_s}
    H_P_s, λ_max = _curvature(hessian, P_s, largest_curvature)
    slope = inner(g, image)
    s_P2, g_P2 = inner(s, image), inner(g, {None: P_g})
    penalty = α * α / 2 * λ_max * p_max**2 * inner(s, s)
    scale, cos = norm(g) * norm(s), cosine(g, s)
    scale_P = math.sqrt(s_P2) * math.sqrt(g_P2)
    return AdamImprovement(
        improvement=α * slope - α * α / 2 * inner(image, {None: H_P_s}),
        bound=α * scale * ((p_max + p_min) / 2 * cos - (p_max - p_min) / 2) - penalty,
        printed_bound=α * scale * p_min * cos - penalty,
        printed_bound_applies=slope >= p_min * inner(g, s) - 1e-13 * p_max * scale,  # rounding
        weighted_bound=α * slope - α * α / 2 * λ_max * p_max * s_P2,
        weighted_cosine=max(-1.0, min(1.0, slope / scale_P)) if scale_P > 0 else 0.0,
    )


def adam_bound_gap(
    gradient: Array,
    direction: Array,
    baseline: Array,
    preconditioner: Array,
    step_size: float,
    printed: bool = False,
) -> float:
    """Compare the lower bounds of two directions of equal norm (Corollary I.2).

    At equal norms r the curvature terms cancel, and the bounds of `adam_improvement_bound` differ by ``α·½(p_max +
    p_min)·‖g‖·r·(cos(g, s₁) - cos(g, s₂))``: the better aligned direction has the better guarantee. The printed bounds
    differ by the same expression with p_min instead of the mean. That identity is correct, but the gap means nothing
    if the printed bounds fail.

    Parameters
    ----------
    gradient, direction, baseline : array, shape (d,)
        g, s₁ and s₂, with ``‖s₁‖ = ‖s₂‖`` up to a relative error of 1e-6.
    preconditioner : array, shape (d,) or (d, d)
        As in `adam_improvement_bound`.
    step_size : float
        α > 0.
    printed : bool
        Whether to compare the printed bounds instead of the valid ones.

    Returns
    -------
    float
        Bound of ``direction`` minus bound of ``baseline``, in the units of the loss.

    Raises
    ------
    ParameterError
        As in `adam_improvement_bound`, or if the norms of the two directions differ.

    References
    ----------
    Corollary I.2 of arXiv:2510.01137v3.

    Examples
    --------
    >>> import numpy as np
    >>> g, p = np.array([1.0, 0.0]), np.array([1.0, 3.0])
    >>> adam_bound_gap(g, np.array([1.0, 0.0]), np.array([0.0, 1.0]), p, step_size=0.5)
    1.0
    """
    g, first, second = _vectors(gradient=gradient, direction=direction, baseline=baseline)
    α = check_real("step_size", step_size, low=0.0, low_open=True)
    r = norm(first)
    if not math.isclose(r, norm(second), rel_tol=1e-6):
        raise ParameterError("baseline", norm(second), f"a vector of the norm of direction, {r:g}; its norm")
    _, p_min, p_max = _precondition(preconditioner, first[None])
    slope = p_min if printed else (p_max + p_min) / 2
    return α * slope * norm(g) * r * (cosine(g, first) - cosine(g, second))


def _vectors(**arguments: Array) -> list[NamedBlocks]:
    for name, value in arguments.items():
        if as_array(name, value).ndim != 1:
            raise ParameterError(name, tuple(as_array(name, value).shape), "of shape (d,)")
    return matching_blocks(**arguments)


def _precondition(preconditioner: Array, *vectors: Array) -> tuple[list[Array], float, float]:
    # P v of each vector, p_min and p_max.
    P = _companion("preconditioner", preconditioner, vectors[0], ndims=(1, 2))
    if P.ndim == 1:
        p_min, p_max, images = float(P.min()), float(P.max()), [P * to_float64(v) for v in vectors]
    else:
        p_min, p_max = _extreme_eigenvalues("preconditioner", P)
        images = [P @ to_float64(v) for v in vectors]
    if p_min <= 0:
        raise ParameterError("preconditioner", p_min, "positive definite; its smallest eigenvalue")
    return images, p_min, p_max


def _curvature(hessian: Any, v: Array, largest_curvature: float | None) -> tuple[Array, float]:
    # H v and λ_max(H).
    if largest_curvature is not None:
        largest_curvature = check_real("largest_curvature", largest_curvature, low=0.0)
    apply = getattr(hessian, "matvec", hessian)
    if callable(apply):
        if largest_curvature is None:
            raise ParameterError("largest_curvature", None, "given if the hessian is an operator")
        image = _companion("hessian(v)", apply(v), v, ndims=(1,))
        curvature = inner({0: v}, {0: image})
        if curvature > largest_curvature * inner({0: v}, {0: v}) * (1 + _SYMMETRY):
            raise ParameterError("largest_curvature", largest_curvature, "an upper bound on its eigenvalues")
        return image, largest_curvature
    H = _companion("hessian", hessian, v, ndims=(2,))
    λ_min, λ_max = _extreme_eigenvalues("hessian", H)
    if λ_min < -_SYMMETRY * abs(λ_max):
        raise ParameterError("hessian", λ_min, "positive semidefinite; its smallest eigenvalue")
    if largest_curvature is not None and largest_curvature < λ_max * (1 - _SYMMETRY):
        raise ParameterError("largest_curvature", largest_curvature, f">= the hessian's largest eigenvalue, {λ_max:g}")
    return H @ v, λ_max if largest_curvature is None else largest_curvature


def _companion(name: str, value: Array, v: Array, ndims: tuple[int, ...]) -> Array:
    # `value` as a float64 array of shape (d,) or (d, d) for the d of v, from the library of v.
    array, d = detached(as_array(name, value)), v.shape[0]
    allowed = " or ".join(str((d,) * ndim) for ndim in ndims)
    if array.ndim not in ndims or set(array.shape) != {d}:
        raise ParameterError(name, tuple(array.shape), f"of shape {allowed}")
    if array_namespace(array) is not array_namespace(v):
        raise ParameterError(name, type(array), f"from the same library as the gradient, {type(v)}")
    check_finite(name, array)
    return to_float64(array)


def _extreme_eigenvalues(name: str, matrix: Array) -> tuple[float, float]:
    asymmetry, largest = float(abs(matrix - matrix.T).max()), float(abs(matrix).max())
    if asymmetry > _SYMMETRY * largest:
        raise ParameterError(name, asymmetry, "a symmetric matrix; its largest asymmetry")
    eigenvalues = array_namespace(matrix).linalg.eigvalsh(matrix)
    return float(eigenvalues[0]), float(eigenvalues[-1])
