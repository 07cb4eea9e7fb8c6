r"""Unknown noise in a matrix: its level, and whether the law of white noise fits.

**MP-PCA.** Let k of the r singular values be spikes. The others have ``Σs² ≈ σ²(r-k)(q-k)``, q the longer side, and
squares that reach over ``4σ²√((r-k)(q-k))``. Values are added from the smallest on, as long as this reach with the
estimated σ is at least the observed reach. An eighth of the values always counts as noise.

**Fit.** D is the largest distance between the distribution of the values below the gate and the Marchenko–Pastur law.
Singular values repel each other, so D is far smaller than for independent draws: about ``(1.2 + .44 log r)/r`` at 1 %.
Its null distribution is drawn by Bartlett's decomposition for at most 32 values and moved by ``.44 log`` beyond. Other
noise can have the same bulk (heavy tails do, by universality), so the entries are also tested, without the spikes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
import scipy
from numpy.typing import NDArray

from dprmt._validation import ParameterError, check_choice, check_count
from dprmt.spectra._arrays import (
    Array,
    MatrixT,
    array_namespace,
    check_matrices,
    check_matrix,
    check_shape,
    detached,
    numbers,
    promote_half,
    singular_values,
)
from dprmt.spectra._marchenko_pastur import MarchenkoPastur

SigmaMethod = Literal["mp-pca", "median"]
Floats = NDArray[np.float64]
ROUNDING = 2.0**-23
"""Relative rounding of the entries of checkpoints, which a matrix of low rank has in addition to its signal."""
_DRAWS = 399  # draws of the null distribution


def estimate_sigma(matrix: MatrixT, method: SigmaMethod = "mp-pca") -> MatrixT:
    """Estimate the standard deviation of the noise in each matrix from its singular values.

    In DP training σ is known: use the estimate to check it, or if you do not know it. Rows and columns of zeros are
    ignored, because they hold no noise.

    Parameters
    ----------
    matrix : array, shape (..., m, n)
        A matrix or a stack of them, either orientation; NumPy or torch, of real dtype.
    method : {"mp-pca", "median"}
        "mp-pca" uses as many of the smallest values as the law of noise can hold, and tolerates many spikes. "median"
        divides the median by the median of the law. It is right if the signal's rank is far below min(m, n)/2, and
        weak signals that "mp-pca" counts as noise do not change it.

    Returns
    -------
    array, shape (...)
        Estimates >= 0 in the units, form and device of the matrix. Half precision gives float32, since its rounding
        would exceed the error of the estimate. The estimate is 0 if only rounding remains next to the signal, as in a
        matrix of low rank.

    Raises
    ------
    ParameterError
        If ``matrix`` has fewer than two axes, is empty, not finite, not real, or a
        convolution's kernel.

    Notes
    -----
    On pure noise the relative error of "mp-pca" has a standard deviation of about ``.7/√(mn)``, and "median" 0.7 to
    1.7 times ``1/√(mn)``. For 30 spikes in 60 × 64 and σ = 1, they estimate 1.0 and 1.9.

    References
    ----------
    Cordero-Grande et al. (2019), NeuroImage 200, the second estimate of MP-PCA; Gavish & Donoho (2014),
    arXiv:1305.5870v3, for the median.

    Examples
    --------
    >>> import numpy as np
    >>> noise = 0.1 * np.random.default_rng(0).standard_normal((5, 64, 256))
    >>> estimate_sigma(noise).round(2)
    array([0.1, 0.1, 0.1, 0.1, 0.1])
    """
    values = promote_half(check_matrices("matrix", matrix))
    check_choice("method", method, get_args(SigmaMethod))
    xp, parts = array_namespace(values), [detached(values).reshape(-1, *values.shape[-2:])]
    filled = parts[0] != 0
    if not (bool(filled.any(-1).all()) and bool(filled.any(-2).all())):
        parts = [y[kept.any(-1)][:, kept.any(-2)][None] for y, kept in zip(parts[0], filled, strict=True)]
    eps = float(xp.finfo(values.dtype).eps)
    found = [_estimates(numbers(xp.linalg.svdvals(part)), tuple(part.shape[1:]), method, eps) for part in parts]
    estimates = xp.asarray(np.concatenate(found), dtype=values.dtype, device=values.device)
    return estimates.reshape(values.shape[:-2])[()]


def _estimates(spectra: Floats, shape: tuple[int, int], method: str, rounding: float) -> Floats:
    # From singular values in decreasing order, one row a matrix.
    short, long = sorted(shape)
    if short == 0:  # of a matrix of zeros
        return np.zeros(len(spectra))
    if method == "median":
        found = median_sigma(spectra, shape)
    else:
        top = np.maximum(spectra[:, :1], 1e-300)
        squares = (spectra[:, ::-1] / top) ** 2
        kept = np.arange(1, short + 1)
        capacity = kept * (long - short + kept)
        variances = np.cumsum(squares, 1) / capacity
        fits = squares - squares[:, :1] < 4 * variances * np.sqrt(capacity) * (1 + 1e-9)
        fits[:, : max(4, -(-short // 8)) - 1] = True  # too few values to decide
        most = np.where(fits.all(1), short, np.argmin(fits, 1)) - 1  # up to the first that does not
        found = np.sqrt(np.where(most < 0, 0.0, variances[np.arange(len(spectra)), most])) * top[:, 0]
    noise = found * (math.sqrt(short) + math.sqrt(long))
    return np.where(noise > 4 * rounding * long * spectra[:, 0], found, 0.0)


@lru_cache
def _unit_median(shape: tuple[int, int]) -> float:
    return MarchenkoPastur(shape, sigma=1.0).median


def median_sigma(spectrum: Array, shape: tuple[int, int]) -> Array:
    """Return the noise level of matrices of this shape from the medians of decreasing singular values."""
    count = spectrum.shape[-1]
    return (spectrum[..., (count - 1) // 2] + spectrum[..., count // 2]) / 2 / _unit_median(shape)


@dataclass(frozen=True)
class NoiseFit:
    """Test of whether a matrix without its spikes is white noise.

    Attributes
    ----------
    sigma : float
        The noise level by `estimate_sigma`; 0 if there is none.
    distance, p_value : float
        Kolmogorov distance between the values below the gate and the law of noise of the *stated* level, and the
        probability that noise of that level has a larger one, down to 1/400.
    verdict : str
        Result in words.
    fits : bool
        Whether the stated level is accepted, and no test rejects white noise.
    entries : str
        Evidence against equal, independent, Gaussian entries, in words; empty if there is none or the entries are
        unknown.
    """

    sigma: float
    distance: float
    p_value: float
    verdict: str
    fits: bool
    entries: str = ""


def noise_fit(values: Floats, shape: tuple[int, int], sigma: float, spikes: int, entries: str) -> NoiseFit:
    """Test how well noise of level σ explains the singular values after the spikes.

    ``values`` are in decreasing order. ``entries`` is the result of `other_noise` for the matrix without its spikes.
    """
    estimate = spectrum_sigma(values, shape, ROUNDING)
    if estimate == 0:
        rank = int((values > 4 * ROUNDING * max(shape) * values[0]).sum())
        verdict = f"no noise: rank {rank} of {min(shape)} to rounding"
        return NoiseFit(0.0, 1.0, 1 / (_DRAWS + 1), verdict, False, entries)
    distance, p_value = _tested(values[spikes:], shape, sigma, spikes)
    least, same = 0.01, 0.05  # p value of a law that fits, and relative difference of noise levels called the same
    if p_value >= least:
        return NoiseFit(estimate, distance, p_value, entries or "noise of this σ", not entries, entries)
    above = clear_spikes(values, shape, estimate)
    own = _tested(values[above:], shape, estimate, above)[1] if above < len(values) else 0.0
    if not entries and own >= least and abs(estimate / sigma - 1) > same:
        verdict = f"σ is about {estimate:.3g}, not {sigma:.3g}"
    elif not entries and abs(estimate / sigma - 1) <= same and distance <= 0.1:
        verdict = "noise near this σ, with weak signal below the gate"
    else:
        median = float(median_sigma(values, shape))
        apart = abs(median / estimate - 1) > same
        found = f", σ is {estimate:.3g} by mp-pca and {median:.3g} by median" if apart else ""
        verdict = entries or f"no noise model fits{found}"
    return NoiseFit(estimate, distance, p_value, verdict, False, entries)


def clear_spikes(values: Floats, shape: tuple[int, int], sigma: float) -> int:
    """Return the number of values that are 2 % above the edge of noise."""
    return int((values > 1.02 * sigma * (math.sqrt(shape[0]) + math.sqrt(shape[1]))).sum())


def spectrum_sigma(values: Floats, shape: tuple[int, int], rounding: float) -> float:
    """Evaluate `estimate_sigma` of a matrix with these singular values, in decreasing order."""
    return float(_estimates(values[None], shape, "mp-pca", rounding)[0])


def _tested(values: Floats, shape: tuple[int, int], sigma: float, spikes: int) -> tuple[float, float]:
    # D of the values after the spikes, and its p value.
    short, long = sorted(shape)
    count, rest = short - spikes, long - spikes
    if count < min(4, short):  # too few to hold a law against
        return 1.0, 1 / (_DRAWS + 1)
    distance = float(_distance(np.sort(values), count, rest, sigma))
    size = min(count, 32)  # of a matrix in the null distribution
    null = _null(size, max(size, round(size * rest / count)))
    larger = null + 0.44 * math.log(count / size) >= count * distance
    return distance, (1 + int(larger.sum())) / (_DRAWS + 1)


def _distance(ascending: Floats, short: int, long: int, sigma: float) -> Floats:
    law = np.asarray(MarchenkoPastur((short, long), sigma).cdf(ascending))
    steps = np.arange(short + 1) / short
    return np.asarray(np.maximum(law - steps[:-1], steps[1:] - law).max(-1))


@lru_cache(maxsize=64)
def _null(short: int, long: int) -> Floats:
    # r·D of noise, from squared singular values: of bidiagonal matrices of chi variables.
    places = np.arange(short)
    degrees = np.concatenate([long - places, short - 1 - places[:-1]])
    d, e = np.split(np.random.default_rng(0).chisquare(degrees, (_DRAWS, len(degrees))), [short], axis=1)
    tridiagonal = np.zeros((_DRAWS, short, short))  # its lower half
    tridiagonal[:, places, places] = d
    tridiagonal[:, places[1:], places[1:]] += e
    tridiagonal[:, places[1:], places[:-1]] = np.sqrt(d[:, :-1] * e)
    values = np.sqrt(np.clip(np.linalg.eigvalsh(tridiagonal), 0.0, None))
    return short * _distance(values, short, long, 1.0)


def whiten(matrix: Floats, rounds: int = 20) -> tuple[Floats, Floats, Floats]:
    """Scale rows and columns so that the mean square of each is 1.

    Use it for noise whose variances are a product ``u_i v_j``. The result has white noise of σ = 1, and a low-rank
    signal keeps its rank.

    Parameters
    ----------
    matrix : array, shape (m, n)
        A matrix without rows or columns of zeros.
    rounds : int, default 20
        Number of Sinkhorn iterations, >= 1.

    Returns
    -------
    whitened : array, shape (m, n)
        ``matrix / rows[:, None] / columns``.
    rows, columns : array, shape (m,) and (n,)
        Scales > 0.

    Raises
    ------
    ParameterError
        If ``matrix`` is not a finite matrix, or has a row or a column of zeros.

    References
    ----------
    Landa, Zhang & Kluger (2022), arXiv:2103.13840, biwhitening.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> noise = np.exp(rng.standard_normal((64, 1))) * rng.standard_normal((64, 256))
    >>> white, rows, columns = whiten(noise)
    >>> round(float(estimate_sigma(white)), 2)
    1.0
    """
    values = numbers(check_matrix("matrix", matrix))
    if not ((values != 0).any(0).all() and (values != 0).any(1).all()):
        raise ParameterError("matrix", values.shape, "one matrix without rows or columns of zeros")
    squares, columns = values**2, np.ones(values.shape[1])
    for _ in range(check_count("rounds", rounds)):
        rows = (squares @ (1 / columns)) / values.shape[1]
        columns = ((1 / rows) @ squares) / values.shape[0]
    rows, columns = np.sqrt(rows), np.sqrt(columns)
    return values / rows[:, None] / columns, rows, columns


def other_noise(blocks: Iterable[Floats], tall: bool = False) -> str:
    """Describe the evidence against equal, independent, Gaussian entries; empty if there is none.

    ``blocks`` are consecutive columns of the matrix, or of its transpose if it is ``tall``.
    """
    across, down, fourths = 0.0, 0.0, 0.0  # sums of products of neighbours in a row and in a column
    by_row, by_column, last = [], [], None
    for block in blocks:
        squares = block**2
        by_row.append(squares.sum(1))
        by_column.append(squares.sum(0))
        fourths += float(np.einsum("ij,ij->", squares, squares))
        across += float(np.einsum("ij,ij->", block[:, 1:], block[:, :-1]))
        across += 0.0 if last is None else float(last @ block[:, 0])
        down += float(np.einsum("ij,ij->", block[1:], block[:-1]))
        last = block[:, -1]
    rows, columns = np.sum(by_row, 0), np.concatenate(by_column)
    m, n = len(rows), len(columns)
    sides = [("row", rows, n, across, m * (n - 1)), ("column", columns, m, down, (m - 1) * n)]
    if tall:
        sides = [("row", *sides[1][1:]), ("column", *sides[0][1:])]
    empty = [int((sums == 0).sum()) for _, sums, *_ in sides]
    if any(empty):
        return "{} rows and {} columns are zero: leave them out".format(*empty)
    if min(m, n) < 2:
        return ""
    sure = 5.0  # standard deviations from which on a property is called
    variance = float(rows.sum()) / (m * n)
    kurtosis = fourths / (m * n) / variance**2
    for name, sums, others, _, _ in sides:
        expected = max(kurtosis - 1, 2.0) / others
        if float(np.var(sums / others / variance)) > expected * (1 + sure * math.sqrt(2 / (len(sums) - 1))) + 0.01:
            return f"{name}s differ in scale: whiten first"
    for name, _, _, products, pairs in sides:
        correlation = products / pairs / variance
        if abs(correlation) * math.sqrt(pairs) > sure and abs(correlation) > 0.02:
            return f"neighbours in a {name} are correlated ({correlation:.2f}): not white, no threshold holds"
    if abs(kurtosis - 3) > sure * math.sqrt(24 / (m * n)) + 0.1:
        tails = "heavy" if kurtosis > 3 else "light"
        return f"entries have {tails} tails (kurtosis {kurtosis:.1f}, Gaussian 3): false alarms are not as stated"
    return ""


def screenot_threshold(observed: Any, shape: Sequence[int], rank: int) -> float:
    """Find the hard threshold of least error for noise of unknown, also correlated, kind (ScreeNOT).

    Parameters
    ----------
    observed : array, shape (min(m, n),)
        Singular values of the noisy matrix, in any order.
    shape : tuple of int
        ``(m, n)`` of the matrix, either orientation.
    rank : int
        An upper bound on the rank of the signal, in [1, (min(m, n) - 1)/2]; it may be loose.

    Returns
    -------
    float
        Keep the singular values above it, drop the others.

    Raises
    ------
    ParameterError
        If the number of values is not min(m, n) or ``rank`` is out of range.

    References
    ----------
    Donoho, Gavish & Romanov (2023), arXiv:2009.12297, with imputation of the bulk's edge.

    Examples
    --------
    >>> noise = np.random.default_rng(0).standard_normal((100, 100))
    >>> round(screenot_threshold(np.linalg.svdvals(noise), (100, 100), rank=5) / 10, 1)  # 4/√3 for white noise
    2.3
    """
    short, long = sorted(check_shape(shape))
    values = np.sort(numbers(singular_values("observed", observed)))
    if values.shape != (short,):
        raise ParameterError("observed", values.shape, f"of shape ({short},)")
    k = check_count("rank", rank, high=max(1, (short - 1) // 2))
    edge = values[short - k - 1]
    gap = edge - values[max(short - 2 * k - 1, 0)]
    heights = (1 - (np.arange(k) / k) ** (2 / 3)) / (2 ** (2 / 3) - 1)  # as at an edge of square-root density
    bulk = np.append(values[: short - k], edge + heights * gap)
    β = short / long

    def excess(y: float) -> float:
        # Ψ + 4, whose root is the threshold.
        gaps = y * y - bulk**2
        φ, slope = float(np.mean(y / gaps)), -float(np.mean((y * y + bulk**2) / gaps**2))
        other, other_slope = β * φ + (1 - β) / y, β * slope - (1 - β) / y**2
        return y * (slope / φ + other_slope / other) + 4

    top = float(bulk.max())
    return float(scipy.optimize.brentq(excess, top * (1 + 1e-9), 100 * max(top, 1e-300)))
