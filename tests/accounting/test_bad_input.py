"""Every refusal names the argument, its value and the allowed range."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest

from dprmt import ParameterError
from dprmt.accounting import (
    DPSGD,
    GaussianRelease,
    Hutchinson,
    RandomAllocation,
    clt_mu,
    compose,
    gdp_epsilon,
    gdp_trade_off,
)

BAD = {
    "noise_multiplier": [0.0, -1.0, math.nan, math.inf, "1", None, True, 1e-9],
    "sampling": [0.0, 1.1, -0.1, math.nan, "0.1", None, 1e-12, True],
    "norms": [None, 32, "exact", Hutchinson],
}


def refusals(cases: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    return [(name, value) for name, values in cases.items() for value in values]


@pytest.mark.parametrize(("name", "value"), refusals(BAD))
def test_mechanisms(name: str, value: Any) -> None:
    with pytest.raises(ParameterError) as caught:
        DPSGD(**{"noise_multiplier": 1.0, "sampling": 0.1} | {name: value})
    assert (caught.value.name, caught.value.value) == (name, value) or value != value
    assert str(caught.value) == f"{name} must be {caught.value.allowed}, got {value!r}"


@pytest.mark.parametrize("delta", [0.0, 1e-300, 1.0, -1e-5, math.nan, "1e-5", None])
def test_delta(delta: Any) -> None:
    with pytest.raises(ParameterError, match=r"delta must be a finite number in \[1e-290, 1\), got"):
        DPSGD(1.0, 0.1).epsilon(steps=10, delta=delta)


@pytest.mark.parametrize("epsilon", [-0.1, 1e300, math.nan, math.inf, "1", None])
def test_epsilon(epsilon: Any) -> None:
    with pytest.raises(ParameterError, match=r"epsilon must be a finite number in \[0, 1e\+17\], got"):
        DPSGD(1.0, 0.1).delta(steps=10, epsilon=epsilon)


@pytest.mark.parametrize("steps", [-1, 10**18, 1.5, 10.0, "10", True, None, math.nan])
def test_steps(steps: Any) -> None:
    with pytest.raises(ParameterError, match=r"steps must be an integer in \[0, 1000000000\], got"):
        DPSGD(1.0, 0.1).epsilon(steps=steps, delta=1e-5)


@pytest.mark.parametrize("tolerance", [0.0, 2.0, math.nan, "fine"])
def test_tolerance(tolerance: Any) -> None:
    with pytest.raises(ParameterError, match="tolerance must be a finite number in"):
        DPSGD(1.0, 0.1).epsilon(steps=10, delta=1e-5, tolerance=tolerance)


@pytest.mark.parametrize(
    "alpha", [-0.1, 1.1, [0.5, math.nan], "x", "0.5", ["0.5"], [0.5, "x"], [[0.5], [0.1, 0.2]], 1j, True]
)
def test_alpha(alpha: Any) -> None:
    run = DPSGD(1.0, 0.1)
    for ask in (
        lambda value: run.trade_off(steps=10, alpha=value),
        compose([(run, 10)]).trade_off,
        partial(gdp_trade_off, 1.0),
    ):
        with pytest.raises(ParameterError, match=r"^alpha must be numbers in \[0, 1\], got ") as error:
            ask(alpha)
        assert repr(alpha) in str(error.value)


@pytest.mark.parametrize("phases", [[], [DPSGD(1.0, 0.1)], [(1.0, 3)], [(DPSGD(1.0, 0.1), 3, 4)], [("DPSGD", 3)]])
def test_phases(phases: Any) -> None:
    with pytest.raises(ParameterError, match="phases"):
        compose(phases)


@pytest.mark.parametrize(
    "phase",
    [
        (DPSGD(1.0, 0.1), -1),
        (DPSGD(1.0, 0.1), 2.5),
        (DPSGD(1.0, RandomAllocation(100)), 150),
        (GaussianRelease(1.0), -1),
    ],
)
def test_steps_of_a_phase(phase: Any) -> None:
    mechanism, steps = phase
    with pytest.raises(ParameterError, match=f"^steps must be .* got {steps}$"):
        compose([(mechanism, steps)])


def test_gaussian_approximation() -> None:
    with pytest.raises(ParameterError, match="mu"):
        gdp_epsilon(-1.0, 1e-5)
    with pytest.raises(ParameterError, match="steps"):
        clt_mu(1.0, 0.1, 0)
