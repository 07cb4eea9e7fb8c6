"""Argument checks: every refusal names the argument, the value and the allowed range."""

from __future__ import annotations

import math
import pickle

import pytest

from dprmt import ParameterError
from dprmt._rounding import round_down, round_up
from dprmt._validation import check_choice, check_count, check_real


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0.0, 1.5, "0.5", None, True, 1j, [0.5]])
def test_real_refuses(value: object) -> None:
    with pytest.raises(ParameterError) as caught:
        check_real("rate", value, low=0.0, high=1.0, low_open=True)
    assert str(caught.value) == f"rate must be a finite number in (0, 1], got {value!r}"


@pytest.mark.parametrize("value", [1e-300, 0.5, 1, 1.0])
def test_real_accepts(value: float) -> None:
    assert check_real("rate", value, low=0.0, high=1.0, low_open=True) == value


@pytest.mark.parametrize("value", [0, -3, 1.0, 2.5, "3", True, None, math.nan])
def test_count_refuses(value: object) -> None:
    with pytest.raises(ParameterError, match=r"steps must be an integer >= 1, got"):
        check_count("steps", value)  # type: ignore[arg-type]


def test_choice_refuses() -> None:
    with pytest.raises(ParameterError, match="analysis must be one of 'a', 'b', got 'c'"):
        check_choice("analysis", "c", ("a", "b"))


@pytest.mark.parametrize("value", [4.6390002, 1e-17, 123456.7, 2.5, 0.0])
def test_printed_bounds_stay_bounds(value: float) -> None:
    assert float(round_down(value)) <= value <= float(round_up(value))
    assert float(round_up(value)) - float(round_down(value)) <= 1.1e-5 * value


def test_errors_cross_process_boundaries() -> None:
    error = pickle.loads(pickle.dumps(ParameterError("steps", 0, "an integer >= 1", "pass steps")))
    assert (error.name, error.value, error.allowed, error.fix) == ("steps", 0, "an integer >= 1", "pass steps")
    assert str(error) == "steps must be an integer >= 1, got 0.\nFix: pass steps."
