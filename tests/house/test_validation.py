"""Argument checks: every refusal names the argument, the value and the allowed range."""

from __future__ import annotations

import ast
import math
import pickle
import re
from pathlib import Path

import pytest

from dprmt import ParameterError
from dprmt._validation import check_choice, check_count, check_real
from dprmt.statements import round_down, round_up

PACKAGE = Path(__file__).parents[2] / "dprmt"


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
    error = pickle.loads(pickle.dumps(ParameterError("steps", 0, "an integer >= 1")))
    assert (error.name, error.value, error.allowed) == ("steps", 0, "an integer >= 1")
    assert str(error) == "steps must be an integer >= 1, got 0"


def sentences_for_values(source: str) -> list[int]:
    """Lines of ``ParameterError``s whose value is written there as words, so that no value of the caller's is named."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ParameterError" and len(node.args) > 1
        if is_sentence(node.args[1])
    ]


def is_sentence(value: ast.expr) -> bool:
    """Whether text has two words next to each other; ``f"{name}: {kind}"`` and ``"<hidden>"`` have not."""
    parts = value.values if isinstance(value, ast.JoinedStr) else [value]
    words = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
    is_text = isinstance(value, ast.JoinedStr) or (isinstance(value, ast.Constant) and isinstance(value.value, str))
    return is_text and not words.startswith("<") and re.search(r"(\w|\{\}),? \w|\w,? \{\}", words) is not None


def test_a_parameter_error_names_a_value_and_never_tells_a_story() -> None:
    """What no argument is to blame for is a `TrainingStateError`, whose text is a plain sentence."""
    found = {
        path.relative_to(PACKAGE).as_posix(): lines
        for path in PACKAGE.rglob("*.py")
        if (lines := sentences_for_values(path.read_text()))
    }
    assert found.keys() == {"cli/_records.py"}  # a file's content is the value there: "a record without 'steps'"


def test_stories_are_told_from_values() -> None:
    for text in ("'a second backward pass'", "f'{n} of them'", "f'one with {option}'", "'no graph'"):
        assert sentences_for_values(f"ParameterError('losses', {text}, 'other')") == [1], text
    for text in (
        "value",
        "'<hidden>'",
        "f'<hidden, {n} bytes>'",
        "f'{name}: {kind}'",
        "'envelope'",
        "None",
        "f'{name}.{key}'",
    ):
        assert sentences_for_values(f"ParameterError('losses', {text}, 'other')") == [], text
