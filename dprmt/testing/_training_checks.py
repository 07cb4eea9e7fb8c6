"""Checks of a norm estimator and of one private step, by samples of what they return."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binom, chi2, kstest

from dprmt._validation import ParameterError, check_count, check_real
from dprmt.accounting import ExactNorms, HutchPlusPlus, Norms, envelope_cdf
from dprmt.testing._strategies import Library, as_float64, as_library, require, search

Array = NDArray[np.float64]

UNBIASED = "The estimate of a squared norm is unbiased: E n̂ = ‖M‖² (Gaussian probes with entries N(0, 1/k))."
ENVELOPE = "P(n̂/‖M‖² <= x) is at most the envelope of k probes (docs/theory/randomized_clipping.md, §2)."
CONVEX_ORDER = (
    "E g(n̂/‖M‖²) is for every convex g at most its value for the charged law "
    "(docs/theory/randomized_clipping.md, T3 and §9)."
)
EXACT = "An exact norm is the norm, up to rounding."
FRESH = (
    "Probes are fresh in every step: the estimates of successive steps are independent (dprmt.accounting.Hutchinson)."
)
SEPARATE = "Secret probes are separate for each sample: estimates of two samples are independent (dprmt.accounting)."
SENSITIVITY = "Removing a sample moves the sum of clipped gradients by at most the clipping norm C."
MIXING = "Samples do not mix: the sum over a batch is the sum over its samples, each taken alone."
VARIANCE = "The noise has standard deviation σC in every entry of the sum, whatever the samples are."
GAUSSIAN = "The noise is normal with mean 0."
FRESH_NOISE = "The noise of every step is fresh: successive steps are independent."

_WIDTHS = 5.5  # standard errors at which a statistical check fails: 4e-8 of a normal law
_FALSE_ALARM = 1e-8  # false-alarm rate of a check by an exact law


def check_norm_estimator(
    f: Any, law: Norms | None = None, *, draws: int = 2000, library: Library = "torch", seed: int = 0
) -> None:
    """Check an estimator of squared per-sample gradient norms against the law that it claims.

    The check is statistical. A correct estimator fails with a probability below 1e-4. With the default draws and 16
    probes, a bias of 7 % fails with probability 0.99, and so does an estimator that uses 11 probes instead of 16.

    Parameters
    ----------
    f : NormEstimator or callable
        An object as in `dprmt.training.norms.NormEstimator`, or ``f(activations, gradients)``: estimates of shape (B,)
        of ‖A_iᵀG_i‖² from factors of shapes (B, T, d) and (B, T, p), with fresh randomness in every call.
    law : Norms, optional
        ``Hutchinson``, ``HutchPlusPlus`` or ``ExactNorms``. By default the estimator's ``norms``.
    draws : int
        Number of steps, >= 100, each with eight samples of four spectra.
    library : {"torch", "numpy"}
        Library of the factors, in float32.
    seed : int
        Seed of the factors, not of the estimator.

    Raises
    ------
    AssertionError
        If a theorem fails. The error names it, the spectrum and the size of the failure.
    ParameterError
        If no law is given or known.

    See Also
    --------
    dprmt.training.norms.NormEstimator : for the protocol.

    Examples
    --------
    >>> from dprmt import ExactNorms
    >>> def norms(activations, gradients):
    ...     return ((activations.swapaxes(1, 2) @ gradients) ** 2).sum((1, 2))
    >>> check_norm_estimator(norms, ExactNorms(), draws=100, library="numpy")
    """
    claimed = law if law is not None else getattr(f, "norms", None)
    if not isinstance(claimed, Norms):
        raise ParameterError("law", claimed, "Hutchinson(…), HutchPlusPlus(…) or ExactNorms()")
    count = check_count("draws", draws, low=100)
    rank = getattr(claimed, "rank", None) or math.inf
    spectra = [(1.0,), (0.5, 0.5), (1 / 32,) * 32, tuple(2.0**-i for i in range(1, 17))]
    spectra = [shares for shares in spectra if len(shares) <= rank]
    activations, gradients = _factors(spectra * 2, np.random.default_rng(seed))
    squares = np.square(np.swapaxes(activations, 1, 2) @ gradients).sum((1, 2))
    given = [as_library(factor, library, "float32") for factor in (activations, gradients)]
    found = np.empty((count, len(squares)))
    for step in range(count):
        if hasattr(f, "squared_norms"):
            result = f.squared_norms(*given, layer="layer", step=step, samples=list(range(len(squares))))
        else:
            result = f(*given)
        found[step] = as_float64(result)
    ratios = found / squares
    for column, shares in enumerate(spectra):
        shown, more = [round(share, 4) for share in shares[:3]], ", …" * (len(shares) > 3)
        where = f"{claimed!r}, {count} draws, squared singular values {str(shown)[:-1]}{more}]"
        first, second = ratios[:, column], ratios[:, column + len(spectra)]
        _check_independent(first[:-1], first[1:], FRESH, where)
        if claimed.secret:
            _check_independent(first, second, SEPARATE, where)
        _check_ratios(first, claimed, where)


def _factors(spectra: Sequence[tuple[float, ...]], rng: np.random.Generator) -> tuple[Array, Array]:
    """Make activations and output gradients whose products have these squared singular values, times 4."""
    sides = (40, 36)  # inputs and outputs of the layer, for 32 tokens
    activations, gradients = (np.zeros((len(spectra), 32, side)) for side in sides)
    for i, shares in enumerate(spectra):
        left, right = (np.linalg.qr(rng.standard_normal((side, len(shares))))[0] for side in sides)
        activations[i, : len(shares)] = 2 * np.sqrt(np.array(shares))[:, None] * left.T
        gradients[i, : len(shares)] = right.T
    return activations, gradients


def _check_ratios(ratios: Array, claimed: Norms, where: str) -> None:
    count, mean = len(ratios), float(ratios.mean())
    require(bool(np.all(np.isfinite(ratios) & (ratios >= 0))), "A squared norm is a number >= 0.", where, f"{ratios}")
    if isinstance(claimed, ExactNorms):
        off = float(np.max(np.abs(ratios - 1)))
        require(off <= 1e-4, EXACT, where, f"the relative error is up to {off:.3g}")
        return
    error = float(ratios.std()) / math.sqrt(count)
    amount = f"the mean of n̂/‖M‖² is {mean:.5g} ± {error:.2g}"
    require(abs(mean - 1) <= _WIDTHS * error + 1e-4, UNBIASED, where, amount)
    grid = np.linspace(0.01, 1.0, 200)
    rank = None if isinstance(claimed, HutchPlusPlus) else claimed.rank  # type: ignore[attr-defined]
    envelope = envelope_cdf(grid, claimed.probes, rank)  # type: ignore[attr-defined]
    below = np.searchsorted(np.sort(ratios), grid * (1 - 1e-4), side="right")
    chance = binom.sf(below - 1, count, np.clip(envelope, 0.0, 1.0))
    place = int(np.argmin(chance))
    amount = f"at x = {grid[place]:.3g}: {below[place] / count:.4g} of the draws, the envelope is {envelope[place]:.4g}"
    require(float(chance[place]) >= _FALSE_ALARM, ENVELOPE, where, amount)
    mixture = claimed.law().convex_mixture
    if mixture is None:
        return
    for c in (0.25, 0.5, 0.75, 1.0):
        level = np.array([c])
        allowed = float(c * mixture.cdf(level)[0] - mixture.partial_mean(level)[0])
        gaps = np.maximum(c - ratios, 0.0)
        mean, error = float(gaps.mean()), float(gaps.std()) / math.sqrt(count)
        amount = f"the mean of max(0, {c} - n̂/‖M‖²) is {mean:.4g} ± {error:.2g}, the law's is {allowed:.4g}"
        require(mean <= allowed + _WIDTHS * error + 1e-4, CONVEX_ORDER, where, amount)


def _check_independent(first: Array, second: Array, theorem: str, where: str) -> None:
    spread = float(first.std() * second.std())
    if spread > 1e-10:  # not exact
        correlation = float(np.mean((first - first.mean()) * (second - second.mean()))) / spread
        amount = f"their correlation is {correlation:.3g} ± {1 / math.sqrt(len(first)):.2g}"
        require(abs(correlation) <= _WIDTHS / math.sqrt(len(first)), theorem, where, amount)


def check_private_step(
    step: Callable[..., Any],
    *,
    clipping_norm: float,
    expected_batch_size: float,
    features: int = 4,
    examples: int = 25,
    values: int = 3000,
) -> None:
    """Check one step of a private training loop: sensitivity, mixing of samples, and the noise.

    The check calls the step with batches that it chooses. The check of the noise is statistical. A correct step fails
    with a probability below 1e-6; a step with 12 % less noise fails with probability 0.99.

    Parameters
    ----------
    step : callable
        ``step(rows, noise_multiplier)`` uses *all* rows, float64 of shape (B, features) with 0 <= B <= 6, as its
        batch. It returns its release: the noisy sum of clipped gradients over the expected batch size, as one NumPy
        array or torch tensor of any shape. You choose the model and the loss; they must be the same in every call. The
        noise multiplier is 0.001 to check sums, and 1.
    clipping_norm : float
        Clipping norm C > 0.
    expected_batch_size : float
        Divisor of the sum, > 0. It must not depend on the batch.
    features : int
        Columns of the rows, >= 1.
    examples : int
        Number of random batches.
    values : int
        Number of noise values to test, >= 500, in at least two steps.

    Raises
    ------
    AssertionError
        If a theorem fails. The error names it, the batch and the size of the failure.

    See Also
    --------
    dprmt.make_private : for a private run, which also checks that samples do not mix.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> def step(rows, noise_multiplier):  # the gradient of a row is the row; C = 1, expected batch size 8
    ...     clipped = rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
    ...     return (clipped.sum(0) + noise_multiplier * rng.standard_normal(4)) / 8
    >>> check_private_step(step, clipping_norm=1.0, expected_batch_size=8)
    """
    C = check_real("clipping_norm", clipping_norm, low=0.0, low_open=True)
    size = check_real("expected_batch_size", expected_batch_size, low=0.0, low_open=True)
    columns, number = check_count("features", features), check_count("values", values, low=500)
    quiet = 1e-3  # the noise multiplier where sums are compared; dprmt's own loops allow none below

    def released(rows: Array, noise: float) -> Array:
        own = as_float64(step(rows.copy(), noise)).ravel()
        require(bool(np.isfinite(own).all()), "What is released is finite.", _rows_text(rows), f"got {own}")
        return own * size / C  # in units of C

    def holds(rows: list[list[int]], scale: int) -> None:
        batch = np.array(rows, np.float64).reshape(-1, columns) * 10.0**scale
        where = _rows_text(batch)
        whole, nothing = released(batch, quiet), released(batch[:0], quiet)
        noise = 1e-3 + quiet * (math.sqrt(whole.size) + 6.0)  # of one released vector, and rounding
        for i in range(len(batch)):
            moved = float(np.linalg.norm(whole - released(np.delete(batch, i, 0), quiet)))
            amount = f"it moves by {moved:.4g} C when row {i} is removed"
            require(moved <= 1 + math.sqrt(2) * noise, SENSITIVITY, where, amount)
        alone = sum((released(batch[i : i + 1], quiet) - nothing for i in range(len(batch))), nothing)
        apart = float(np.linalg.norm(whole - alone))
        require(apart <= 2 * len(batch) * noise, MIXING, where, f"the two differ by {apart:.3g} C")

    row = st.lists(st.integers(-3, 3), min_size=columns, max_size=columns)
    search(holds, examples, rows=st.lists(row, min_size=1, max_size=6), scale=st.integers(-3, 3))
    huge = 1e3 * np.tile(np.arange(1.0, columns + 1.0), (3, 1))
    for batch in (huge[:0], huge):
        still = released(batch, quiet)
        steps = max(2, math.ceil(number / still.size))
        _check_noise(np.stack([released(batch, 1.0) - still for _ in range(steps)]), _rows_text(batch))


def _rows_text(rows: Array) -> str:
    return f"rows {rows.tolist()}" if len(rows) else "the empty batch"


def _check_noise(noise: Array, where: str) -> None:
    """Return the noise of several steps, in units of C, at noise multiplier 1."""
    total, count = float(np.sum(noise**2)), noise.size
    lowest, highest = (math.sqrt(float(chi2.isf(p, count)) / count) for p in (1 - _FALSE_ALARM, _FALSE_ALARM))
    deviation = math.sqrt(total / count)
    amount = f"in units of σC it is {deviation:.4g}; chance explains [{lowest:.4g}, {highest:.4g}], {count} values"
    require(lowest <= deviation <= highest, VARIANCE, where, amount)
    test = kstest(noise.ravel(), "norm")
    amount = f"Kolmogorov-Smirnov distance {test.statistic:.3g}, p = {test.pvalue:.2g}, {count} values"
    require(float(test.pvalue) >= _FALSE_ALARM, GAUSSIAN, where, amount)
    _check_independent(noise[:-1].ravel(), noise[1:].ravel(), FRESH_NOISE, where)
