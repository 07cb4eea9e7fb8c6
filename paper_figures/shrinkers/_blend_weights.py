"""Which non-negative combination of shrinkers has the largest estimated cosine with the clean matrix.

**The cone.** The members are the noisy matrix itself, ``f_0(y) = y``, and soft thresholds ``(y - t_k)_+``; the
last t_k is the bulk edge, the others lie inside the bulk. Non-negative combinations are convex functions that
rise from 0 with increasing slope: small values, mostly noise, keep the smallest part. In units of σ let

    c_k = Σ f_k(y_i) y_i - div f_k(Y),     Γ_kl = Σ f_k(y_i) f_l(y_i).

c_k estimates ``⟨f_k(Y), X⟩`` without bias, so ``wᵀc/√(wᵀΓw)`` estimates ``cos(f(Y), X)·‖X‖`` for ``f = Σ w_k f_k``.

**Maximal cosine.** Minimising ``Q(w) = wᵀΓw - 2wᵀc`` over w >= 0 does it over the ray tw, t >= 0, of every w:
the least value on a ray is ``-(wᵀc)²/(wᵀΓw)`` if ``wᵀc > 0``, else 0. So the minimiser maximises
``wᵀc/√(wᵀΓw)`` over the cone if that is positive anywhere, and is 0 otherwise.

**Caution.** The maximum over noisy estimates is too high, and where signal is scarce the noise of c chooses. The
known standard errors s_k of c_k lean against it: ``c_0 + κs_0`` in place of c_0, ``c_k - κs_k`` in place of c_k
for thresholds inside the bulk, with κ = 3/4. The threshold at the edge sees hardly any noise and stays. For the
maximiser w, with ``‖f‖ = √(wᵀΓw)`` and the *unbiased* c,

    wᵀc/‖f‖ >= c_0/‖Y‖ + κ s_0 (1/‖Y‖ - w_0/‖f‖) + κ Σ_k w_k s_k/‖f‖ >= c_0/‖Y‖:

no member is negative, so ``Γ >= 0`` and ``‖f‖ >= w_0‖Y‖``. Hence the estimated cosine is never below that of Y.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from paper_figures.shrinkers._divergence import divergence, squared_jacobian_trace

Floats: TypeAlias = NDArray[np.float64]

_KNOTS = 0.6, 0.8, 1.0  # of the soft thresholds, as fractions of the way through the bulk
NAMES = ("identity", *(f"soft {knot:.1f}" for knot in _KNOTS))
"""Names of the members; "soft q" is the threshold ``b₋ + q(b₊ - b₋)``, b± the edges of the bulk."""

_CAUTION = np.array([0.75, -0.75, -0.75, 0.0])  # in standard errors, per member
_RIDGE = 1e-10  # of the diagonal of Γ; makes the minimiser unique where members are parallel on this spectrum
_PAIR_ENTRIES = 2**22  # of the arrays of all pairs of singular values that are in memory at once


class Moments(NamedTuple):
    """What the weights depend on, for a batch of spectra, in units of σ².

    All three may be sums over several noisy matrices instead.
    """

    inner_products: Floats
    """c, shape (batch, members)."""
    gram: Floats
    """Γ, shape (batch, members, members)."""
    variances: Floats
    """Of the errors of c, shape (batch, members), in units of σ⁴."""


def soft_thresholds(shape: tuple[int, int]) -> Floats:
    """The thresholds of all members but the first."""
    outer, inner = np.sqrt(max(shape)) + np.sqrt(min(shape)), np.sqrt(max(shape)) - np.sqrt(min(shape))
    return np.array([inner + knot * (outer - inner) if knot < 1 else outer for knot in _KNOTS])


def members(values: Floats, shape: tuple[int, int]) -> Floats:
    """The values f_k(y_i) of all members.

    Of a matrix with one singular value all members are parallel, so that only the first one counts there.
    """
    soft = np.clip(values[:, None, :] - soft_thresholds(shape)[:, None], 0, None)
    return np.concatenate([values[:, None, :], soft * (min(shape) > 1)], axis=1)


def moments_of(values: Floats, shape: tuple[int, int]) -> Moments:
    """The estimates c, the Gram matrix Γ and the variances, of one noisy matrix each.

    Returns: with the variances estimated without bias: ``‖f‖² + tr J²``.

    Examples
    --------
    >>> moments_of(np.array([[40.0, 12.0]]), (2, 100)).inner_products.round(3).tolist()  # edges: 8.586, 11.414
    [[1544.0, 1118.857, 1095.469, 1072.081]]
    """
    parts, size = [], max(1, _PAIR_ENTRIES // (len(NAMES) * values.shape[-1] ** 2))
    for start in range(0, len(values), size):
        y = values[start : start + size]
        f = members(y, shape)
        gram = f @ f.swapaxes(-1, -2)
        arguments = y[:, None, :], f[:, 1:], (f[:, 1:] > 0).astype(np.float64), shape
        entries = np.full((len(y), 1), float(shape[0] * shape[1]))  # the identity's divergence, and its tr J²
        c = gram[:, 0] - np.concatenate([entries, divergence(*arguments)], axis=1)
        jacobians = np.concatenate([entries, squared_jacobian_trace(*arguments)], axis=1)
        parts.append(Moments(c, gram, np.einsum("...ii->...i", gram) + jacobians))
    return Moments(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def fit_weights(moments: Moments) -> Floats:
    """The weights of the members, scaled so that ``Σ w_k f_k(Y)`` is the least-squares estimate of X.

    Returns: not negative. All 0 if no combination has a positive estimated inner product with X.
    """
    c, gram, variances = moments
    w = nonnegative_least_squares(gram, c + _CAUTION * np.sqrt(variances))
    product, square = inner_product(w, c), squared_norm(w, gram)
    detected = (product > 0) & (square > 0)
    return w * np.where(detected, product / np.where(detected, square, 1), 0)[:, None]


def estimated_gain(weights: Floats, moments: Moments) -> Floats:
    """Estimated cosine with X of ``Σ w_k f_k(Y)``, minus that of Y.

    The unknown ‖X‖² is taken as its unbiased estimate c_0, but not smaller than the standard error of that, from
    which 0 cannot be told, and not so small that a cosine would exceed 1.
    """
    c, gram, variances = moments
    ours, noisy = (
        np.clip(product, 0, None) / np.sqrt(np.where(square > 0, square, 1))
        for product, square in ((inner_product(weights, c), squared_norm(weights, gram)), (c[:, 0], gram[:, 0, 0]))
    )
    signal = np.sqrt(np.maximum.reduce([c[:, 0], np.sqrt(variances[:, 0]), ours**2, noisy**2]))
    return np.clip(ours - noisy, 0, None) / signal


def inner_product(weights: Floats, c: Floats) -> Floats:
    """``wᵀc`` of each row."""
    return np.einsum("bk,bk->b", weights, c)


def squared_norm(weights: Floats, gram: Floats) -> Floats:
    """``wᵀΓw`` of each row."""
    return np.einsum("bk,bkl,bl->b", weights, gram, weights)


def nonnegative_least_squares(gram: Floats, target: Floats) -> Floats:
    """The minimisers of ``wᵀΓw - 2wᵀc`` over w >= 0, by trying all sets of positive weights.

    Exact for Γ with its diagonal raised by 1e-10 of itself. Members that are 0 (on the diagonal of Γ) get no
    weight.

    Examples
    --------
    >>> gram = np.array([[[1.0, 0.5], [0.5, 1.0]]])
    >>> nonnegative_least_squares(gram, np.array([[1.0, -1.0]])).round(6).tolist()
    [[1.0, 0.0]]
    """
    scale = np.sqrt(np.einsum("...ii->...i", gram))
    absent = scale == 0
    scale = np.where(absent, 1, scale)
    c = np.where(absent, -1, target / scale)
    Γ = gram / scale[:, :, None] / scale[:, None, :] + np.eye(gram.shape[-1]) * np.where(absent, 1, _RIDGE)[:, None, :]
    best, weights = np.zeros(len(c)), np.zeros_like(c)
    for size in range(1, c.shape[-1] + 1):
        for chosen in map(list, itertools.combinations(range(c.shape[-1]), size)):
            w = np.linalg.solve(Γ[:, chosen][:, :, chosen], c[:, chosen, None])[..., 0]
            value = (w * c[:, chosen]).sum(-1)  # minus the least value on this face
            better = (w >= 0).all(-1) & (value > best)
            best = np.where(better, value, best)
            weights[better] = 0
            weights[np.ix_(better, chosen)] = w[better]
    return weights / scale
