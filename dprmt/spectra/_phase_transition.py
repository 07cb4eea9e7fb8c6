"""The phase transition of a low-rank signal in white noise: edge, threshold, spike map, overlaps, shrinkage.

Setting: ``Y = X + σ W``, ``X`` of fixed rank, ``W`` an m × n matrix of independent standard normal entries. Equation
numbers refer to arXiv:2510.01137v3.

| in the API          | in the paper    | meaning                                                  |
|---------------------|-----------------|----------------------------------------------------------|
| ``signal``          | λ               | a singular value of X                                    |
| ``observed``        | λ̃              | the singular value of Y that it causes                   |
| ``sigma``           | σ = σ_DP·C/b    | standard deviation of one entry of the noise, batch of b |
| bulk edge           | σ(√m + √n), b₊  | limit of the largest singular value of σW (b₋: smallest) |
| detection threshold | σ(mn)^{1/4}, λ* | the smallest signal that shows above the bulk edge       |

Everything is computed in float64, whatever the dtype of the argument, by the formulas of `dprmt.spectra._formulas`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

import numpy as np

from dprmt._validation import ParameterError, check_choice, check_real
from dprmt.spectra._arrays import (
    ArrayT,
    MatrixT,
    array_namespace,
    cast_like,
    check_shape,
    float64_like,
    keeps_labels,
    numbers,
    singular_values,
)
from dprmt.spectra._formulas import Loss, checked_scales, edge_roots, mapped_spikes, shrunk, squared_overlaps
from dprmt.spectra._marchenko_pastur import MarchenkoPastur


def bulk_edge(shape: Sequence[int], sigma: float) -> float:
    """Return the bulk edge σ(√m + √n), where the singular values of pure noise end.

    Parameters
    ----------
    shape : tuple of int
        ``(m, n)`` of the matrix, either orientation.
    sigma : float
        Standard deviation of one entry of the noise, >= 0; in the units of the matrix.

    Returns
    -------
    float
        The almost-sure limit of the largest singular value. At finite size the largest singular value
        fluctuates around it, see `tracy_widom_edge` and `kappa_for`.

    Raises
    ------
    ParameterError
        If ``shape`` is not a pair of integers >= 1 or ``sigma`` is negative or not finite.

    References
    ----------
    Eq. 3 of arXiv:2510.01137v3.

    Examples
    --------
    >>> bulk_edge((16, 144), sigma=0.5)
    8.0
    """
    return checked_scales(shape, sigma)[3].upper_edge.high


def detection_threshold(shape: Sequence[int], sigma: float) -> float:
    """Return the detection threshold σ(mn)^{1/4}, below which a signal leaves no trace in the top singular values.

    Parameters
    ----------
    shape : tuple of int
        ``(m, n)`` of the matrix, either orientation.
    sigma : float
        Standard deviation of one entry of the noise, >= 0; in the units of the matrix.

    Returns
    -------
    float
        The threshold on a singular value of the *clean* matrix. It lies below the bulk edge.

    Raises
    ------
    ParameterError
        If ``shape`` is not a pair of integers >= 1 or ``sigma`` is negative or not finite.

    References
    ----------
    Eq. 3 of arXiv:2510.01137v3.

    Examples
    --------
    >>> detection_threshold((16, 81), sigma=0.5)
    3.0
    """
    return checked_scales(shape, sigma)[3].threshold.high


@keeps_labels
def spike_map(signal: ArrayT, shape: Sequence[int], sigma: float) -> ArrayT:
    """Compute the singular value F(λ) of the noisy matrix that a clean singular value λ causes.

    Above the detection threshold ``F(λ) = √((λ + σ²n/λ)(λ + σ²m/λ)) > λ``; at and below it the bulk edge.

    Parameters
    ----------
    signal : float or array
        Clean singular values, >= 0, any shape. Python numbers, NumPy arrays and torch tensors of real
        dtype; the result comes back in the same form, dtype and device, integers as float64.
    shape : tuple of int
        ``(m, n)`` of the matrix, either orientation.
    sigma : float
        Standard deviation of one entry of the noise, >= 0. With 0 the map is the identity.

    Returns
    -------
    float or array
        Values of the shape of ``signal``, never below the bulk edge.

    Raises
    ------
    ParameterError
        If ``signal`` is negative, not finite or not real, or as in `bulk_edge`.

    References
    ----------
    Eq. 3 of arXiv:2510.01137v3; Benaych-Georges & Nadakuditi (2012).

    Examples
    --------
    >>> round(spike_map(10.0, (16, 81), sigma=1.0), 9)
    14.489996549
    >>> spike_map(0.0, (16, 81), sigma=1.0) == bulk_edge((16, 81), sigma=1.0)
    True
    """
    m, n, sigma, scales = checked_scales(shape, sigma)
    values = singular_values("signal", signal)
    return cast_like(values * 1.0 if sigma == 0 else mapped_spikes(values, m, n, sigma, scales), signal)


@keeps_labels
def spike_map_inverse(observed: ArrayT, shape: Sequence[int], sigma: float) -> ArrayT:
    """Compute the clean singular value λ with F(λ) = y, for an observed singular value y above the bulk edge.

    ``F⁻¹(y) = ½(√(y²-b₋²) + √(y²-b₊²))``. At and below the bulk edge λ is not identified, since every value in ``[0,
    λ*]`` leads to the edge. The result there is 0, "no detectable signal", as in Gavish & Donoho (2017). So the map
    jumps at the edge from 0 to λ* = `detection_threshold`, which is an upper bound on the hidden signal.

    Parameters
    ----------
    observed : float or array
        Singular values of the noisy matrix, >= 0, any shape, in any of the forms `spike_map` takes.
    shape : tuple of int
        ``(m, n)`` of the matrix, either orientation.
    sigma : float
        Standard deviation of one entry of the noise, >= 0. With 0 the map is the identity.

    Returns
    -------
    float or array
        Values of the shape of ``observed``: 0, or above the detection threshold; never above ``observed``.

    Raises
    ------
    ParameterError
        If ``observed`` is negative, not finite or not real, or as in `bulk_edge`.

    References
    ----------
    Inverse of Eq. 3 of arXiv:2510.01137v3. Gavish & Donoho (2017), arXiv:1405.7511v2. The form here has no
    cancellation.

    Examples
    --------
    >>> y = spike_map(10.0, (16, 81), sigma=1.0)
    >>> round(spike_map_inverse(y, (16, 81), sigma=1.0), 12)
    10.0
    >>> spike_map_inverse(12.9, (16, 81), sigma=1.0)  # bulk edge: 13
    0.0
    """
    _, _, sigma, scales = checked_scales(shape, sigma)
    values = singular_values("observed", observed)
    outer, inner, above = edge_roots(values, scales)
    found = array_namespace(values).where(above, (inner + outer) / 2, 0.0)
    return cast_like(values * 1.0 if sigma == 0 else found, observed)


def vector_overlaps(signal: ArrayT, shape: Sequence[int], sigma: float) -> tuple[ArrayT, ArrayT]:
    """Compute the squared overlaps |⟨u,ũ⟩|² and |⟨v,ṽ⟩|² between clean and noisy singular vectors.

    Above the detection threshold the left overlap (in R^m) is ``(λ⁴ - mnσ⁴)/(λ⁴ + mλ²σ²)``; the right one (in R^n) has
    n instead of the single m. At and below the threshold both are 0. The vectors of the shorter side are the more
    accurate ones.

    Parameters
    ----------
    signal : float or array
        Clean singular values, >= 0, any shape, in any of the forms `spike_map` takes. The formulas are for
        values that differ from each other; equal ones share one subspace.
    shape : tuple of int
        ``(m, n)`` of the matrix. The orientation matters: the transpose swaps left and right.
    sigma : float
        Standard deviation of one entry of the noise, >= 0. With 0 every positive signal has overlap 1.

    Returns
    -------
    left, right : float or array
        In [0, 1], each of the shape of ``signal``.

    Raises
    ------
    ParameterError
        If ``signal`` is negative, not finite or not real, or as in `bulk_edge`.

    References
    ----------
    Eqs. 4–6 of arXiv:2510.01137v3; Gavish & Donoho (2017), arXiv:1405.7511v2.

    Examples
    --------
    >>> left, right = vector_overlaps(10.0, (16, 81), sigma=1.0)
    >>> round(left, 4), round(right, 4)
    (0.7503, 0.4809)
    """
    m, n, sigma, scales = checked_scales(shape, sigma)
    values = singular_values("signal", signal)
    left, right = squared_overlaps(values, m, n, sigma, scales)
    return cast_like(left, signal), cast_like(right, signal)


def predicted_spectrum(signals: MatrixT, shape: Sequence[int], sigma: float) -> MatrixT:
    """Predict the singular values of ``X + σW`` from the singular values of X: spikes, then the bulk.

    The signals above the detection threshold become spikes, Eq. 3; the other ``min(m, n) - #spikes`` values
    are put at the midpoint quantiles of the Marchenko–Pastur law.

    Parameters
    ----------
    signals : array, shape (..., r)
        Clean singular values, >= 0, in any order, r <= min(m, n); values left out count as 0, and an empty
        axis is pure noise. In any array form `spike_map` takes.
    shape : tuple of int
        ``(m, n)`` of the matrix, either orientation.
    sigma : float
        Standard deviation of one entry of the noise, >= 0.

    Returns
    -------
    array, shape (..., min(m, n))
        Noisy singular values in decreasing order.

    Raises
    ------
    ParameterError
        If ``signals`` has no axis or more than min(m, n) values on its last, is negative, not finite or not
        real, or as in `bulk_edge`.

    References
    ----------
    Eq. 3 of arXiv:2510.01137v3; Marčenko & Pastur (1967).

    Examples
    --------
    >>> predicted_spectrum([30.0, 1.0], (4, 100), sigma=1.0).round(2)
    array([31.69, 11.06,  9.93,  8.85])
    """
    m, n, sigma, scales = checked_scales(shape, sigma)
    values = singular_values("signals", signals)
    count = min(m, n)
    if values.ndim < 1 or values.shape[-1] > count:
        raise ParameterError("signals", tuple(values.shape), f"an array of shape (..., r) with r <= {count}")
    xp, decreasing = array_namespace(values), np.zeros((*values.shape[:-1], count))
    decreasing[..., : values.shape[-1]] = -np.sort(-numbers(values))
    values = float64_like(decreasing, values)
    if sigma == 0:
        return cast_like(values, signals)
    spikes = scales.threshold.below(values) > 0  # and after them quantiles of the bulk
    number = xp.sum(1.0 * spikes, -1)[..., None]
    from_top = (float64_like(np.arange(count) + 0.5, values) - number) / xp.clip(count - number, 1.0, None)
    bulk = MarchenkoPastur((m, n), sigma).ppf(1 - xp.clip(from_top, 0.0, 1.0))
    return cast_like(xp.where(spikes, mapped_spikes(values, m, n, sigma, scales), bulk), signals)


@keeps_labels
def shrink(observed: ArrayT, shape: Sequence[int], sigma: float, loss: Loss = "frobenius") -> ArrayT:
    """Shrink noisy singular values by the rule that is optimal for the given loss and large matrices.

    With ``λ = F⁻¹(y)`` and the cosines ``c_u, c_v`` between clean and noisy singular vectors (square roots of
    `vector_overlaps`), y above the bulk edge becomes

    - Frobenius: ``λ·c_u·c_v = √((y²-b₊²)(y²-b₋²))/y``;
    - operator: ``λ·min(c_u/c_v, c_v/c_u)``, which is λ for square matrices;
    - nuclear: ``λ·max(0, c_u·c_v - s_u·s_v)`` with the sines ``s_u, s_v``.

    At and below the bulk edge the answer is 0.

    Parameters
    ----------
    observed : float or array
        Singular values of the noisy matrix, >= 0, any shape. Python numbers, NumPy arrays and torch tensors
        of real dtype; the result comes back in the same form, dtype and device, integers as float64.
    shape : tuple of int
        ``(m, n)`` of the matrix, either orientation.
    sigma : float
        Standard deviation of one entry of the noise, >= 0. With 0 the values are returned unchanged.
    loss : {"frobenius", "operator", "nuclear"}
        The norm of the error to be minimised.

    Returns
    -------
    float or array
        Values of the shape of ``observed``, between 0 and `spike_map_inverse`.

    Raises
    ------
    ParameterError
        If ``observed`` is negative, not finite or not real, ``shape`` is not a
        pair of integers >= 1, ``sigma`` is negative or not finite, or ``loss`` is unknown.

    References
    ----------
    Eq. 9 of arXiv:2510.01137v3 (Frobenius, in a form without cancellation). Gavish & Donoho (2017), arXiv:1405.7511v2
    (Frobenius, nuclear). Leeb (2022), arXiv:2005.11807 (operator: the rule λ of Gavish & Donoho is optimal for square
    matrices only).

    Examples
    --------
    >>> losses = "frobenius", "operator", "nuclear"
    >>> [round(shrink(20.0, (16, 81), sigma=1.0, loss=loss), 3) for loss in losses]
    [14.716, 15.733, 12.633]
    >>> shrink(12.9, (16, 81), sigma=1.0)  # bulk edge: 13
    0.0
    """
    m, n, sigma, _ = checked_scales(shape, sigma)
    check_choice("loss", loss, get_args(Loss))
    y = singular_values("observed", observed)
    return cast_like(y * 1.0 if sigma == 0 else shrunk(y, (m, n), sigma, loss), observed)


def hard_threshold(shape: Sequence[int], sigma: float | None = None) -> float:
    """Return the threshold at which keeping or dropping whole singular values has the least Frobenius error.

    Parameters
    ----------
    shape : tuple of int
        ``(m, n)`` of the matrix, either orientation.
    sigma : float, optional
        Standard deviation of one entry of the noise, >= 0, in the units of the matrix.

    Returns
    -------
    float
        With ``sigma``: the threshold on the singular values, ``λ*(β)·√max(m,n)·σ`` with β = min(m,n)/max(m,n)
        and ``λ*(β)² = 2(β+1) + 8β/(β + 1 + √(β²+14β+1))``; the Frobenius shrinker halves a value there.
        Without: the coefficient ω(β) by which to multiply the *median singular value* of the noisy matrix; it
        is ``λ*(β)`` over the median of the Marchenko–Pastur law in the same units, not its cubic fit.

    Raises
    ------
    ParameterError
        If ``shape`` is not a pair of integers >= 1 or ``sigma`` is negative or not finite.

    References
    ----------
    Gavish & Donoho (2014), arXiv:1305.5870v3.

    Examples
    --------
    >>> round(hard_threshold((100, 100), sigma=0.1), 6) == round(4 / 3**0.5, 6)
    True
    >>> round(hard_threshold((100, 100)), 4)
    2.8584
    """
    m, n = check_shape(shape)
    β = min(m, n) / max(m, n)
    coefficient = math.sqrt(2 * (β + 1) + 8 * β / (β + 1 + math.sqrt(β * β + 14 * β + 1)))
    threshold = coefficient * math.sqrt(max(m, n))
    if sigma is None:
        return threshold / MarchenkoPastur((m, n), sigma=1.0).median
    return threshold * check_real("sigma", sigma, low=0.0)
