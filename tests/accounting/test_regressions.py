"""Settings at which an earlier version was wrong; each names what was wrong."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.special import ndtr
from scipy.stats import chi2

from dprmt.accounting import DPSGD, Hutchinson, compose
from dprmt.accounting.composition._compose import DeltaCurve, Question, best_tilt, composed, window
from dprmt.accounting.composition._solve import solve
from dprmt.accounting.pairs._pairs import LossCells, from_below


def secret_add_delta(sigma: float, rate: float, probes: int, epsilon: float) -> float:
    """δ of one step for adding a sample, secret probes, rank-one gradient: sup over half-lines, by quadrature."""

    def present(t: float) -> float:
        density = lambda x: chi2.pdf(x * probes, probes) * probes * ndtr(1 / (sigma * np.sqrt(x)) - t)  # noqa: E731
        return (1 - rate) * ndtr(-t) + rate * quad(density, 0, 12, limit=300, epsabs=1e-12)[0]

    found = minimize_scalar(lambda t: -(ndtr(t) - np.exp(epsilon) * (1 - present(t))), bounds=(-8, 8), method="bounded")
    return float(-found.fun)


@pytest.mark.parametrize(
    ("sigma", "rate", "probes", "epsilon"), [(0.3, 0.9, 32, 0.3), (0.5, 0.9, 8, 0.0), (0.6, 0.9, 16, 0.2)]
)
def test_secret_probes_add_direction_is_not_too_small(sigma: float, rate: float, probes: int, epsilon: float) -> None:
    """The likelihood ratio used to be inverted below the point where the bound T̂ reaches 1."""
    run = compose([(DPSGD(sigma, rate, Hutchinson(probes, secret=True)), 1)])
    lower, _, upper = run.delta_by_direction(epsilon)["add"]
    truth = secret_add_delta(sigma, rate, probes, epsilon)
    assert lower <= truth * (1 + 1e-9)
    assert truth * (1 - 1e-9) <= upper <= truth * 1.03


@pytest.mark.parametrize(
    ("sigma", "rate", "probes", "steps"), [(0.6, 0.1, 32, 100), (0.5, 0.05, 32, 200), (1.0, 0.03, 8, 400)]
)
def test_bounds_of_every_single_refinement_agree(sigma: float, rate: float, probes: int, steps: int) -> None:
    """Lower bounds used to cross upper ones at fine meshes; `solve` now refuses to return such a pair."""
    schedule = [(DPSGD(sigma, rate, Hutchinson(probes, secret=True)).step(), steps)]
    for direction in ("remove", "add"):
        bounds = solve(schedule, Question(1e-5), direction, 1e-4)
        assert 0 < bounds.lower <= bounds.upper


def test_lower_pair_of_secret_probes_has_no_more_than_all_mass() -> None:
    """Negative increments of the lower curve used to be cut off, which lifted it above the truth."""
    step = DPSGD(0.6, 0.9, Hutchinson(4, secret=True)).step()
    _, lower = step.pairs(64, 1e-9)
    cells = lower.cells(np.arange(-2500, 40_000, 10) * 1e-3)
    assert float(cells.p.sum() + cells.p_below + cells.p_above) <= 1 + 1e-9


def test_one_cell_keeps_its_place() -> None:
    """A law inside one cell used to be moved to the cell's private end."""
    cells = LossCells(np.array([1.0]), np.array([0.97]), 0.0, 0.0, 0.0, 0.0)
    pmf = from_below(np.array([0, 1]), 0.1, cells)
    assert pmf.mass @ (1 - np.exp(-pmf.losses)) <= 1.0 - 0.97 + 1e-12


def test_nearly_constant_losses_beside_large_ones() -> None:
    """The composition of five unsampled steps with five negligible ones: μ = √5, in closed form."""
    bounds = compose([(DPSGD(1.0, 1.0), 5), (DPSGD(1e6, 1e-3), 5)]).epsilon(1e-5)
    mu = np.sqrt(5.0)
    delta = lambda e: ndtr(mu / 2 - e / mu) - np.exp(e) * ndtr(-mu / 2 - e / mu)  # noqa: E731
    assert delta(bounds.lower) >= 1e-5 * (1 - 1e-6)
    assert delta(bounds.upper) <= 1e-5 * (1 + 1e-6)


def test_heavy_tails_survive_a_coarse_mesh() -> None:
    """With few probes the lower bound used to lose the whole tail, and to fall from 100 to 2."""
    bounds = DPSGD(2.0, 2000 / 67349, Hutchinson(4, secret=False)).epsilon(steps=400, delta=1e-5)
    assert bounds.lower > 0.5 * bounds.upper > 50


def test_an_answer_beyond_all_losses_is_zero_up_to_error() -> None:
    """A loss curve with no grid point near ε used to raise."""
    step = DPSGD(1.0, 0.01).step()
    pair, _ = step.pairs(8, 1e-12)
    index = np.arange(-50, 50, dtype=np.int64)
    pmf = from_below(index, 0.01, pair.cells(index * 0.01))
    question = Question(epsilon=40.0)
    tilt = best_tilt([(pmf, 3)], question)[0]
    low, high = DeltaCurve(question, composed([(pmf, 3)], tilt, window([(pmf, 3)], tilt))).delta_bounds(40.0)
    assert_allclose([low, high], 0.0, atol=1e-8)


@pytest.mark.parametrize(
    ("asked", "at"), [("epsilon", 1e-5), ("delta", 1.5)], ids=["epsilon at delta", "delta at epsilon"]
)
def test_small_rates_beside_large_ones_by_direction(asked: str, at: float) -> None:
    """A node between log(1 - q) and the commonest losses' mean made the lower end of adding a sample 2.381."""
    run = compose(
        [
            (DPSGD(1.6526650801318743, 0.01561269961016319, Hutchinson(32, secret=False)), 3056),
            (DPSGD(1.9116909043188168, 0.0007141453229595131), 7502),
        ]
    )
    found = getattr(run, f"{asked}_by_direction")(at)["add"]
    if asked == "epsilon":  # the truth lies between 2.3535 and 2.3537
        assert found.lower < 2.3537
        assert found.upper > 2.3535
    assert found.is_narrow


def test_very_many_steps_of_a_small_rate() -> None:
    """The same at T = 3e8: [355.041, 355.143] where ε of adding a sample is 351.9 ± 1.3."""
    found = DPSGD(1.0, 0.001).epsilon_by_direction(steps=3 * 10**8, delta=1e-5)["add"]
    assert found.lower < 353.2
    assert found.upper > 350.6
