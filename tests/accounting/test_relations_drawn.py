"""Pairs of replaced samples and of groups, drawn: δ of many steps by simulation of outputs that are attained.

Gradients are opposite (replacement) or aligned (groups), of rank one; public probes give all of them one ratio.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import gammaincinv, logsumexp
from scipy.stats import binom

from dprmt.accounting import DPSGD, ExactNorms, Group, Hutchinson, ReplaceOne

Array = NDArray[np.float64]
DRAWS = 100_000
SETTINGS = [
    (ExactNorms(), ReplaceOne(), 1.0, 0.1, 10, 1.0),
    (ExactNorms(), ReplaceOne(), 3.0, 1.0, 8, 1.5),
    (ExactNorms(), Group(2), 1.0, 0.1, 10, 1.0),
    (ExactNorms(), Group(8), 4.0, 0.2, 5, 1.0),
    (ExactNorms(), Group(3), 1.5, 1.0, 1, 2.0),
    (Hutchinson(16, secret=False), ReplaceOne(), 1.0, 0.1, 10, 1.0),
    (Hutchinson(128, secret=False), ReplaceOne(), 1.5, 0.2, 6, 0.5),
    (Hutchinson(16, secret=False), Group(2), 1.2, 0.1, 10, 1.0),
    (Hutchinson(128, secret=False), Group(8), 4.0, 0.1, 5, 0.7),
    (Hutchinson(8, secret=True), ReplaceOne(), 1.0, 0.1, 10, 1.0),
    (Hutchinson(16, secret=True), ReplaceOne(), 0.7, 0.05, 8, 1.0),
    (Hutchinson(64, secret=True), ReplaceOne(), 1.5, 1.0, 2, 2.0),
]


def shifts(norms: ExactNorms | Hutchinson, sigma: float, rng: np.random.Generator) -> Array:
    """What a sample of rank one moves the output by, in units of the noise."""
    if isinstance(norms, ExactNorms):
        return np.full(DRAWS, 1 / sigma)
    return 1 / (sigma * np.sqrt(rng.chisquare(norms.probes, DRAWS) / norms.probes))


def replaced_losses(mechanism: DPSGD, rng: np.random.Generator) -> Array:
    """Log P/Q of one step's output under P, probes seen."""
    q, shift = mechanism.sampling.rate, shifts(mechanism.norms, mechanism.noise_multiplier, rng)  # type: ignore[arg-type]
    x = rng.standard_normal(DRAWS) + np.where(rng.random(DRAWS) < q, shift, 0.0)
    with np.errstate(divide="ignore"):
        out, drawn = np.log(1 - q), math.log(q) - shift**2 / 2
    return np.asarray(np.logaddexp(out, drawn + shift * x) - np.logaddexp(out, drawn - shift * x))


def secret_losses(mechanism: DPSGD, rng: np.random.Generator) -> Array:
    """The same where nobody sees the ratio: densities mixed over 2,000 quantiles of it."""
    norms, q, sigma = mechanism.norms, mechanism.sampling.rate, mechanism.noise_multiplier
    assert isinstance(norms, Hutchinson)
    ratio = gammaincinv(norms.probes / 2, (np.arange(2000) + 0.5) / 2000) * 2 / norms.probes
    shift = 1 / (sigma * np.sqrt(ratio))
    grid = np.linspace(-25.0, 25.0, 1001)
    with np.errstate(divide="ignore"):
        out = np.log(1 - q)
    drawn = logsumexp(np.multiply.outer(grid, shift) - shift**2 / 2, axis=1) - math.log(2000) + math.log(q)
    loss = np.logaddexp(out, drawn) - np.logaddexp(out, drawn[::-1])
    x = rng.standard_normal(DRAWS) + np.where(rng.random(DRAWS) < q, shifts(norms, sigma, rng), 0.0)
    return np.interp(x, grid, loss)


def group_losses(mechanism: DPSGD, rng: np.random.Generator) -> Array:
    """Log P/Q of one step under P, the group present; as many of its samples as coins say move the output."""
    q, shift, size = mechanism.sampling.rate, shifts(mechanism.norms, mechanism.noise_multiplier, rng), 0  # type: ignore[arg-type]
    assert isinstance(mechanism.neighbours, Group)
    size = mechanism.neighbours.size
    x = rng.standard_normal(DRAWS) + rng.binomial(size, q, DRAWS) * shift
    j = np.arange(size + 1)[:, None]
    with np.errstate(divide="ignore"):
        weight = np.log(binom.pmf(j, size, q))
    return np.asarray(logsumexp(weight + j * shift * x - (j * shift) ** 2 / 2, axis=0))


def losses_of(mechanism: DPSGD) -> Callable[[DPSGD, np.random.Generator], Array]:
    if isinstance(mechanism.neighbours, Group):
        return group_losses
    is_secret = isinstance(mechanism.norms, Hutchinson) and mechanism.norms.secret
    return secret_losses if is_secret else replaced_losses


def drawn_delta(mechanism: DPSGD, steps: int, epsilon: float) -> tuple[float, float]:
    """δ of the run at ε, E_P(1 - e^{ε - loss})₊, and its standard error."""
    rng = np.random.default_rng(7)
    step = losses_of(mechanism)
    loss = sum(step(mechanism, rng) for _ in range(steps))
    parts = np.maximum(-np.expm1(np.minimum(epsilon - loss, 0.0)), 0.0)
    return float(parts.mean()), float(parts.std() / math.sqrt(DRAWS))


@pytest.mark.parametrize(("norms", "neighbours", "sigma", "q", "steps", "epsilon"), SETTINGS)
def test_simulated_outputs_are_within_the_bounds_and_those_of_other_noise_are_not(
    norms: ExactNorms | Hutchinson,
    neighbours: ReplaceOne | Group,
    sigma: float,
    q: float,
    steps: int,
    epsilon: float,
) -> None:
    """Removal for groups, whose δ is the larger one here; a tenth more or less noise is told apart."""
    mechanism = DPSGD(sigma, q, norms, neighbours)
    bounds = mechanism.delta(steps=steps, epsilon=epsilon)
    seen, error = drawn_delta(mechanism, steps, epsilon)
    assert seen > 100 / DRAWS
    assert bounds.lower - 4 * error <= seen <= bounds.upper + 4 * error
    by_curves = isinstance(neighbours, Group) and isinstance(norms, Hutchinson)  # no lower end to speak of
    assert bounds.upper < seen * (1.4 if by_curves else 1.25)  # what is charged is nearly attained
    more, _ = drawn_delta(DPSGD(1.1 * sigma, q, norms, neighbours), steps, epsilon)
    less, _ = drawn_delta(DPSGD(sigma / 1.1, q, norms, neighbours), steps, epsilon)
    assert by_curves or more < bounds.lower - 4 * error
    assert by_curves or less > bounds.upper + 4 * error
