"""Checks of a denoiser and of a shrinker: the symmetries of white noise, and the optimal shrinker's limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from dprmt._validation import check_choice, check_real
from dprmt.spectra import bulk_edge, detection_threshold, shrink, spike_map, vector_overlaps
from dprmt.testing._strategies import (
    Library,
    NoisyMatrix,
    Shape,
    as_float64,
    as_library,
    noisy_matrices,
    require,
    search,
)

Array = NDArray[np.float64]

ROTATION = (
    "The estimate turns with the matrix: white noise looks the same in all orthonormal bases, so f(QYR) = Q f(Y) R "
    "for orthogonal Q and R (Gavish & Donoho 2017, §2)."
)
TRANSPOSITION = "The estimate of the transpose is the transpose of the estimate: f(Yᵀ) = f(Y)ᵀ."
SCALE = "The estimate scales with matrix and noise: f(cY, cσ) = c f(Y, σ)."
NO_NOISE = "Without noise nothing is removed: f(Y, 0) = Y."
OPTIMAL = (
    "The optimal shrinker's mean squared error tends to Σ λ²(1 - c_u²c_v²) over the clean singular values λ "
    "(Gavish & Donoho 2017; Eqs. 4-9 of arXiv:2510.01137)."
)
EDGE = "A singular value at or below the bulk edge σ(√m + √n) is noise and becomes 0 (Eq. 9 of arXiv:2510.01137)."
RANGE = "Noise makes singular values larger: 0 <= f(y) <= y (Eq. 3 of arXiv:2510.01137)."
INCREASES = "A larger singular value is never shrunk to a smaller one: the optimal shrinkers increase."
ALIKE = "A matrix and its transpose have the same singular values, and are treated alike."
LOSS = (
    "No shrinker has a smaller limiting loss than the optimal one (Gavish & Donoho 2017; Leeb 2022 for operator loss)."
)


def check_denoiser(
    f: Callable[[Any, float], Any],
    *,
    promise: float | None = 1.1,
    library: Library = "numpy",
    dtype: str = "float64",
    examples: int = 50,
) -> None:
    """Check an implementation of a matrix denoiser against what white noise implies.

    It checks equivariance under rotation, transposition and scale, exactness without noise, that the argument is not
    modified, and the mean squared error of low-rank matrices.

    Parameters
    ----------
    f : callable
        ``f(matrix, sigma)`` returns the estimate of the clean matrix; sigma is the standard deviation of one entry.
    promise : float or None
        Largest mean squared error, in units of the optimal shrinker's limit, over 32 matrices of shape 60 × 120 with
        at most two spikes; > 0. `dprmt.denoise` has 1.03; a sigma that is wrong by 10 % is rejected at 1.1. With None,
        the error must not exceed the noisy matrix's error.
    library : {"numpy", "torch"}
        Library of the matrices passed to f.
    dtype : str
        Their dtype. Results are compared to 1e-6 for float64, otherwise to 2e-3, relative to their norm.
    examples : int
        Number of random matrices for each symmetry.

    Raises
    ------
    AssertionError
        If a theorem fails. The error names it, the matrix and the size of the failure.

    See Also
    --------
    check_shrinker : for the map of singular values alone.

    Examples
    --------
    >>> from dprmt import denoise
    >>> check_denoiser(denoise, examples=5)
    >>> check_denoiser(lambda matrix, sigma: denoise(matrix, sigma / 2), examples=5)
    Traceback (most recent call last):
    ...
    AssertionError: The optimal shrinker's mean squared error tends to ...
    """
    bound = None if promise is None else check_real("promise", promise, low=0.0, low_open=True)
    tolerance, reach = (1e-6, 20) if dtype == "float64" else (2e-3, 6)
    exponents = st.integers(-reach, reach)
    cases = noisy_matrices(sigma=exponents.map(lambda exponent: 10.0**exponent), library=library, dtype=dtype)

    def estimate(matrix: Array, sigma: float) -> Array:
        given = as_library(matrix, library, dtype)
        before = as_float64(given)
        found = as_float64(f(given, sigma))
        require(np.array_equal(before, as_float64(given)), "The argument is not modified.", matrix.shape, "it was")
        require(found.shape == matrix.shape, "The estimate has the matrix' shape.", matrix.shape, f"got {found.shape}")
        require(bool(np.isfinite(found).all()), "The estimate is finite.", matrix.shape, "got nan or inf")
        return found

    def same(found: Array, expected: Array, theorem: str, where: object) -> None:
        scale = max(float(np.linalg.norm(expected)), float(np.linalg.norm(found)), 1e-300)
        error = float(np.linalg.norm(found / scale - expected / scale))
        require(error <= tolerance, theorem, where, f"relative difference {error:.3g}, rounding explains {tolerance:g}")

    def symmetries(case: NoisyMatrix, exponent: int) -> None:
        noisy, sigma = as_float64(case.noisy), case.sigma
        expected = estimate(noisy, sigma)
        rng = np.random.default_rng(case.seed + 1)
        Q, R = (np.linalg.qr(rng.standard_normal((side, side)))[0] for side in case.shape)
        same(estimate(noisy, 0.0), noisy, NO_NOISE, case)
        same(Q.T @ estimate(Q @ noisy @ R, sigma) @ R.T, expected, ROTATION, case)
        same(estimate(noisy.T.copy(), sigma).T, expected, TRANSPOSITION, case)
        c = 10.0**exponent / sigma
        same(estimate(c * noisy, c * sigma) / c, expected, f"{SCALE} Here c = {c:g}.", case)

    search(symmetries, examples, case=cases, exponent=exponents)
    error = limit = noise = 0.0
    shape, draws, spikes = (60, 120), 8, ((2.0, 4.0), (0.5, 3.0), (1.5,), ())
    for case in (NoisyMatrix(shape, own, seed=seed) for own in spikes for seed in range(draws)):
        noisy, clean = case.noisy, case.clean
        error += float(np.sum((estimate(noisy, case.sigma) - clean) ** 2))
        noise += float(np.sum((noisy - clean) ** 2))
        signals = np.array(case.spikes or (0.0,)) * detection_threshold(shape, 1.0)
        left, right = vector_overlaps(signals, shape, 1.0)
        limit += float(np.sum(signals**2 * (1 - left * right)))
    where = f"{draws} matrices of shape {shape} for each of the spikes {spikes}, sigma = 1"
    if bound is None:
        amount = f"mean squared error {error / noise:.3g} times the noisy matrix's, promised at most 1"
        require(error <= noise, "Denoising is no worse than doing nothing.", where, amount)
    else:
        amount = f"mean squared error {error / limit:.3g} times that limit, promised at most {bound:g}"
        require(error <= bound * limit, OPTIMAL, where, amount)


def check_shrinker(
    f: Callable[[Array, Shape, float], Any], loss: str = "frobenius", *, excess: float = 1e-6, examples: int = 50
) -> float:
    """Check an implementation of a singular-value shrinker, and measure how much it loses against the optimal one.

    Parameters
    ----------
    f : callable
        ``f(observed, shape, sigma)`` returns what the noisy singular values, a float64 array, become.
    loss : {"frobenius", "operator", "nuclear"}
        The norm of the error that counts.
    excess : float
        Largest relative excess over the optimal limiting loss, >= 0, at any clean singular value from 1.001 to 50
        times the detection threshold. Hard thresholding needs 0.41 in Frobenius norm.
    examples : int
        Number of random shapes and noise levels.

    Returns
    -------
    float
        The largest relative excess that was found.

    Raises
    ------
    AssertionError
        If a theorem fails, or the excess is larger than allowed: at which singular value, by how much.

    See Also
    --------
    dprmt.shrink : for the optimal shrinkers.

    Examples
    --------
    >>> from dprmt import shrink
    >>> check_shrinker(shrink) < 1e-6
    True
    """
    check_choice("loss", loss, ("frobenius", "operator", "nuclear"))
    allowed = check_real("excess", excess, low=0.0)
    sides, worst = st.integers(1, 2000), 0.0

    def values(observed: Array, shape: Shape, sigma: float) -> Array:
        found = as_float64(f(observed.copy(), shape, sigma))
        require(found.shape == observed.shape, "Each singular value becomes one.", shape, f"got shape {found.shape}")
        return found

    def holds(shape: Shape, exponent: int) -> None:
        nonlocal worst
        sigma = 10.0**exponent
        edge, unit = bulk_edge(shape, sigma), detection_threshold(shape, sigma)
        signals = unit * np.geomspace(1.001, 50, 60)
        observed = spike_map(signals, shape, sigma)
        where = f"shape {shape}, sigma {sigma:g}"
        kept = values(edge * np.array([0.0, 0.3, 0.9, 1.0 - 1e-9]), shape, sigma)
        shrunk, turned = values(observed, shape, sigma), values(observed, shape[::-1], sigma)
        unscaled = values(observed / sigma, shape, 1.0) - shrunk / sigma
        for amounts, most, theorem, words in (
            (np.abs(kept) / edge, 1e-9, EDGE, "up to {:.3g} edges are left of values below the edge"),
            (-shrunk / observed, 1e-9, RANGE, "it is below 0 by {:.3g} of the observed value"),
            (shrunk / observed - 1, 1e-9, RANGE, "it is above the observed value by {:.3g} of it"),
            (-np.diff(shrunk) / edge, 1e-9, INCREASES, "it falls by {:.3g} edges"),
            (np.abs(unscaled) / np.max(observed / sigma), 1e-6, SCALE, "relative difference {:.3g} to sigma = 1"),
            (np.abs(turned - shrunk) / observed, 1e-6, ALIKE, "relative difference {:.3g} for the transposed shape"),
        ):
            require(float(np.max(amounts)) <= most, theorem, where, words.format(np.max(amounts)))
        best, own = (
            _losses(part, signals, shape, sigma, loss)
            for part in (shrink(observed, shape, sigma, loss=loss), shrunk)  # type: ignore[arg-type]
        )
        over = own / best - 1.0
        place = int(np.argmax(over))
        at = f"{where}, clean value {signals[place] / unit:.4g} thresholds (y = {observed[place]:.6g})"
        require(float(over.min()) >= -1e-6, LOSS, where, f"this one's is {-float(over.min()):.3g} smaller: tell us")
        amount = (
            f"the {loss} loss is {100 * over[place]:.3g} % above the optimal one, allowed are {100 * allowed:.3g} %"
        )
        require(float(over[place]) <= allowed, LOSS, at, amount)
        worst = max(worst, float(over[place]))

    search(holds, examples, shape=st.tuples(sides, sides), exponent=st.integers(-20, 20))
    return worst


def _losses(shrunk: Array, signals: Array, shape: Shape, sigma: float, loss: str) -> Array:
    """Compute norms of λ e₁e₁ᵀ - η ũṽᵀ, the 2 × 2 block to which the error of one spike tends."""
    left, right = vector_overlaps(signals, shape, sigma)
    u, v = (np.stack([np.sqrt(part), np.sqrt(1 - part)], -1) for part in (left, right))
    blocks = -shrunk[:, None, None] * u[:, :, None] * v[:, None, :]
    blocks[:, 0, 0] += signals
    order: Any = {"frobenius": "fro", "operator": 2, "nuclear": "nuc"}[loss]
    result: Array = np.linalg.norm(blocks / sigma, order, axis=(1, 2))
    return result
