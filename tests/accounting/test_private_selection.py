"""The best of a random number of runs (N8): above what it costs, not above what Rényi bounds say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dprmt import ParameterError
from dprmt.accounting import DPSGD, ApproximateRelease, FixedOrder, GaussianRelease, compose, private_selection
from dprmt.accounting.mechanisms import _private_selection

RUN = (DPSGD(1.0, 2000 / 67349), 400)
_Y = np.linspace(-14.0, 15.0, 60001)


def literal_delta(mean: float, number: str, highest: bool, epsilon: float) -> float:
    """δ of the best of K draws of N(0, 1) or N(1, 1), whose density is p·φ'(F), by quadrature; the larger direction."""
    found = 0.0
    for first, second in ((0.0, 1.0), (1.0, 0.0)):
        below = [(stats.norm.cdf if highest else stats.norm.sf)(_Y, at) for at in (first, second)]
        if number == "poisson":
            times = [mean * np.exp(mean * (share - 1.0)) for share in below]
        else:
            times = [(1.0 / mean) / (1.0 - (1.0 - 1.0 / mean) * share) ** 2 for share in below]
        p, q = (stats.norm.pdf(_Y, at) * factor for at, factor in zip((first, second), times, strict=True))
        found = max(found, float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum()) * (_Y[1] - _Y[0]))
    return found


@settings(max_examples=15)
@given(
    mean=st.floats(1.0, 30.0),
    number=st.sampled_from(["geometric", "poisson"]),
    highest=st.booleans(),
    epsilon=st.floats(0.0, 8.0),
)
def test_it_bounds_the_best_of_gaussians(mean: float, number: str, highest: bool, epsilon: float) -> None:
    """With the score along the gradient or against it, at every ε, those below c included."""
    best = private_selection(compose([GaussianRelease(1.0)]), expected_runs=mean, number=number)
    assert best.delta(epsilon) >= literal_delta(mean, number, highest, epsilon) - 1e-9


@pytest.mark.parametrize(("number", "within"), [("geometric", 1.38), ("poisson", 1.82)])
def test_and_by_so_much(number: str, within: float) -> None:
    """E K = 10: within so much of the ε of the worse of both scores, 4.8865 at δ = 1e-5."""
    best = private_selection(compose([GaussianRelease(1.0)]), expected_runs=10, number=number).epsilon(1e-5)
    truth = 4.8865
    assert max(literal_delta(10, number, highest, truth - 1e-3) for highest in (True, False)) > 1e-5
    assert truth < best < within * truth


@pytest.mark.parametrize("mean", [3, 30, 100])
@pytest.mark.parametrize(("number", "shape"), [("geometric", 1.0), ("poisson", math.inf)])
def test_it_is_below_renyi_bounds(mean: float, number: str, shape: float) -> None:
    """dp-accounting's RepeatAndSelectDpEvent, which bounds Rényi divergences of the same selection."""
    accountant = RdpAccountant()
    one = dp_event.PoissonSampledDpEvent(2000 / 67349, dp_event.GaussianDpEvent(1.0))
    accountant.compose(dp_event.RepeatAndSelectDpEvent(dp_event.SelfComposedDpEvent(one, 400), mean, shape))
    ours = private_selection(compose([RUN]), expected_runs=mean, number=number).epsilon(1e-5)
    assert compose([RUN]).epsilon(1e-5).upper <= ours < accountant.get_epsilon(1e-5)


def test_pure_privacy_triples() -> None:
    """Under (ε, 0) the geometric law costs at most 3ε (Liu and Talwar 2019), nearly so for many runs."""
    best = private_selection(compose([ApproximateRelease(0.5, 0.0)]), expected_runs=1000.0)
    assert 1.4 < best.epsilon(1e-6) < 1.501


@given(mean=st.floats(1.0, 1e4), delta=st.floats(1e-8, 0.5), number=st.sampled_from(["geometric", "poisson"]))
@settings(max_examples=8)
def test_never_below_one_run_and_more_runs_cost_more(mean: float, delta: float, number: str) -> None:
    run = compose([GaussianRelease(2.0)])
    few, more = (private_selection(run, expected_runs=m, number=number).epsilon(delta) for m in (mean, 1.5 * mean))
    assert run.epsilon(delta).upper <= few <= more * (1 + 1e-3) + 1e-3


def test_one_run_is_a_run() -> None:
    best = private_selection(DPSGD(4.0, FixedOrder()), epochs=3, expected_runs=1)
    bounds = DPSGD(4.0, FixedOrder()).epsilon(epochs=3, delta=1e-5)
    assert best.epsilon(1e-5) == pytest.approx(bounds.upper, rel=1e-3)
    assert best.delta(best.epsilon(1e-5)) == pytest.approx(1e-5, rel=0.05)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"expected_runs": 0.5}, "expected_runs"),
        ({"expected_runs": 1e7}, "expected_runs"),
        ({"number": "fixed"}, "number"),
        ({"run": 1.0}, "run"),
        ({"steps": 3}, "steps"),
        ({"run": RUN[0]}, "steps"),
    ],
)
def test_bad_input(change: dict[str, Any], name: str) -> None:
    with pytest.raises(ParameterError) as caught:
        private_selection(**({"run": compose([RUN]), "expected_runs": 2} | change))
    assert caught.value.name == name
    best = private_selection(compose([RUN]), expected_runs=2)
    for question, value in ((best.epsilon, 0.0), (best.epsilon, 1.0), (best.delta, -1.0)):
        with pytest.raises(ParameterError):
            question(value)


@pytest.mark.parametrize("cells", [3, 40])
def test_both_ends_of_every_cell_bound_the_excess(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However coarse the levels are, never below the supremum on a fine grid of the same lines (N8)."""
    run = compose([GaussianRelease(1.0)])
    fine = _private_selection._geometric_excess(run, 10.0)
    monkeypatch.setattr(_private_selection, "_CELLS", cells)
    assert _private_selection._geometric_excess(run, 10.0) >= fine * (1 - 1e-3)
