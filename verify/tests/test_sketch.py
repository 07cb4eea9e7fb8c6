"""Hutch++'s law: its parts against closed forms, its tails against simulated sketches."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flint import arb, ctx
from scipy.special import betainc, ndtr
from scipy.stats import chi

from dprmt_verify.further._sketch import _compared, _solved, _squares, _tail, copies, left_over


@pytest.fixture(autouse=True)
def enough_bits() -> None:
    ctx.prec = 96


@pytest.mark.parametrize(
    ("terms", "dof", "scale"), [(1, 5, 0.2), (4, 2, 0.01), (9, 12, 0.3), (6, 3, 0.05), (0, 4, 1.0)]
)
def test_a_ratio_of_squares_is_below_its_bound(terms: int, dof: int, scale: float) -> None:
    """P(c·χ²(n) ≥ χ²(ν)) by the incomplete beta function; tight where it is rare."""
    truth = float(betainc(dof / 2, terms / 2, scale / (1 + scale))) if terms else 0.0
    bound = float(_tail(arb(scale), dof)(terms))
    assert truth * (1 - 1e-9) <= bound
    assert bound <= 3 * truth + 1e-12


@pytest.mark.parametrize(("mu", "a"), [(0.45, 6.0), (0.7, 2.5), (0.95, 0.0)])
@pytest.mark.parametrize("iterated", [False, True])
def test_the_comparison_is_above_the_probability_that_it_bounds(mu: float, a: float, iterated: bool) -> None:
    """P(χ_s + a ≤ √(Σ b η²)) / Φ(-a), one direction of the threshold's share and small ones."""
    shares, sketch = np.append(1.0, np.full(56, 0.125)), 16
    weights = 1 / (1 - mu * (shares - 1) / shares ** (2 if iterated else 1))
    roots = np.sqrt(np.random.default_rng(1).standard_normal((20_000, shares.size)) ** 2 @ weights)
    truth = chi(sketch).cdf(roots - a).mean() / ndtr(-a)
    assert truth <= 1.02 * float(_compared(arb(8), sketch, iterated, arb(0), arb(mu), arb(a)))


@pytest.mark.parametrize("iterated", [False, True])
@pytest.mark.parametrize(("total", "sketch", "cut"), [(3.5, 6, 0.61), (2.5, 8, 0.29), (4.0, 12, 0.49)])
def test_solving_bounds_every_number_of_large_directions(total: float, sketch: int, cut: float, iterated: bool) -> None:
    """One direction of share 1.5, r - 1 and all the others at θ: P(q f χ²(n) ≥ χ²(s - r + 1)) for each r."""
    large = 1.5
    q = (large - 1) / large ** (2 if iterated else 1)
    weight = q * cut ** (2 if iterated else 1) / (1 - cut)
    bound = float(_solved(arb(total), sketch, iterated, arb(cut), arb(0), arb(1)))
    truths = []
    for solved in range(1, sketch):
        others = math.floor((total - large) / cut) - solved + 1
        if others > 0:
            truths.append(float(betainc((sketch - solved + 1) / 2, others / 2, weight / (1 + weight))))
    assert max(truths) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("terms", [1, 7])
def test_squares_are_spread_with_mass_and_mean(terms: int) -> None:
    atoms = _squares(terms, 22)
    assert abs(float(sum(m for m, _ in atoms)) - 1) < 1e-20
    assert abs(float(sum(m * y for m, y in atoms)) - terms) < 1e-20
    variance = float(sum(m * y * y for m, y in atoms)) - terms**2
    assert 2 * terms < variance < 2.1 * terms


@pytest.mark.parametrize("iterated", [False, True])
@pytest.mark.parametrize("shares", ["flat", "spike over flat", "powers"])
def test_simulated_sketches_leave_less(shares: str, iterated: bool) -> None:
    sketch, draws, generator = 4, 400, np.random.default_rng(2)
    spectra = {"flat": np.ones(8), "spike over flat": np.array([4.0, 1, 1, 1, 1]), "powers": np.arange(1.0, 30) ** -1.5}
    values = np.sqrt(spectra[shares] / spectra[shares].sum())
    left = np.empty(draws)
    for i in range(draws):
        image = (values ** (2 if iterated else 1))[:, None] * generator.standard_normal((values.size, sketch))
        basis = np.linalg.qr(image)[0]
        rest = values[:, None] * (np.eye(values.size) - basis @ basis.T)
        left[i] = np.linalg.norm(rest, 2) ** 2
    for share in (1 / 2, 1 / 3, 1 / 4):
        assert (left > share).mean() <= float(left_over(arb(share), sketch, iterated)) + 3 / np.sqrt(draws)


@pytest.mark.parametrize(("sketch", "iterated", "least", "most"), [(8, True, 5.5, 32), (7, False, 3.4, 28)])
def test_a_law_of_copies(sketch: int, iterated: bool, least: float, most: float) -> None:
    """Weights of one, and 1/E(1/J) between what is known to hold and what a flat spectrum attains."""
    law = copies(sketch, iterated)
    assert abs(float(sum(law.values())) - 1) < 1e-20
    assert all(weight >= 0 for weight in law.values())
    assert least < 1 / sum(float(weight) / j for j, weight in law.items()) < most


def test_of_a_long_sketch_all_columns_may_have_been_rounded() -> None:
    """What is left counts 128 columns; the error is relative to the norm of all."""
    short, long = (left_over(arb(1) / 90, sketch, True) for sketch in (128, 10_000))
    assert 1.2 * short < long < 3 * short


def test_longer_sketches_leave_less() -> None:
    tails = [float(left_over(arb(1) / 5, sketch, iterated)) for sketch in (6, 9, 14) for iterated in (False, True)]
    assert tails[0] > tails[2] > tails[4]
    assert tails[1] > tails[3] > tails[5]
    assert all(one >= two for one, two in zip(tails[::2], tails[1::2], strict=True))
