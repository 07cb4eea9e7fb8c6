"""Batches of a fixed and of a largest size, in turn, and several sums of one: by quadrature of literal densities."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from dprmt_verify import NotCoveredError, read_statement, verify

X = np.linspace(-12.0, 14.0, 26_001)
FIXED = {"kind": "fixed-size", "batch_size": 3, "samples": 10}
CUT = {"kind": "poisson", "rate": 0.3, "at_most": 4, "samples": 10}


def mixture(shift: float, rate: float) -> np.ndarray:
    parts = (1 - rate) * np.exp(-(X**2) / 2) + rate * np.exp(-((X - shift) ** 2) / 2)
    return parts * (X[1] - X[0]) / math.sqrt(2 * math.pi)


def delta(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def words(
    sampling: dict[str, Any], delta: float, neighbours: str = "zero-out", seconds: float = 10.0, **claims: Any
) -> list[str]:
    run = {"mechanism": {"noise_multiplier": 1.0, "sampling": sampling}, "steps": 1, "neighbours": neighbours}
    statement = read_statement(json.dumps(run | {"delta": delta, **claims}))
    return [verdict.word for verdict in verify(statement, seconds)]


@pytest.mark.parametrize(("neighbours", "changed"), [("zero-out", 1.0), ("replace-one", 0.0)])
def test_one_step_of_a_fixed_size(neighbours: str, changed: float) -> None:
    """At one ε > 0 the supremum and the member agree: N(2) against N(1) or N(0)."""
    at = delta(mixture(2.0, 0.3), mixture(changed, 0.3), 0.5)
    assert words(FIXED, at, neighbours, epsilon={"lower": 0.498, "upper": 0.502}) == ["proved", "proved"]
    assert words(FIXED, at, neighbours, epsilon={"lower": 0.502, "upper": 0.498}) == ["refuted", "refuted"]


def test_zeroing_out_in_the_other_direction() -> None:
    """From above N(1) against N(0), Poisson sampling's own; from below what N(1) against N(2) gives."""
    above = delta(mixture(1.0, 0.3), mixture(0.0, 0.3), 0.2)
    assert words(FIXED, above, by_direction={"add": {"upper": 0.202}}) == ["proved"]
    assert words(FIXED, above, seconds=0.0, by_direction={"add": {"upper": 0.198}}) == ["not settled"]
    below = delta(mixture(1.0, 0.3), mixture(2.0, 0.3), 0.1)
    assert words(FIXED, below, by_direction={"add": {"lower": 0.098}}) == ["proved"]


@pytest.mark.parametrize("neighbours", ["zero-out", "add-remove", "replace-one"])
def test_one_step_of_a_largest_size(neighbours: str) -> None:
    """The mean of both curves, and the data set whose others have no gradient."""
    rest = [math.comb(9, k) * 0.3**k * 0.7 ** (9 - k) for k in range(10)]
    full = sum(rest[4:])
    share = sum(mass * 0.3 * 4 / (k + 1) for k, mass in enumerate(rest) if k >= 4)
    changed = {"zero-out": (0.0, 1.0), "add-remove": (0.0, 0.0), "replace-one": (-1.0, 0.0)}[neighbours]
    plain = delta(mixture(1.0, 0.3), mixture(changed[0], 0.3), 0.4)
    above = (1 - full) * plain + full * delta(mixture(2.0, share / full), mixture(changed[1], share / full), 0.4)
    assert words(CUT, above, neighbours, epsilon={"upper": 0.402}) == ["proved"]
    assert words(CUT, above, neighbours, 0.0, epsilon={"upper": 0.398}) == ["not settled"]
    rate = 0.3 * (1 - full) + share
    below = delta(mixture(1.0, rate), mixture(changed[0], rate), 0.4)
    assert words(CUT, below, neighbours, epsilon={"lower": 0.398}) == ["proved"]


def test_cyclic_sampling_and_sums_of_one_batch() -> None:
    at = delta(mixture(1.25, 0.4), mixture(0.0, 0.4), 0.5)  # √(1 + 1/(4/3)²) = 1.25
    said = {"noise_multiplier": 1.0, "beside": [{"kind": "gaussian", "noise_multiplier": 4 / 3}]}
    said["sampling"] = {"kind": "cyclic-poisson", "rate": 0.1, "bands": 4}
    for steps, word in ((4, "proved"), (5, "refuted")):  # the fifth step has the first group's second turn
        run = {"mechanism": said, "steps": steps, "delta": at, "epsilon": {"upper": 0.502}}
        assert [verdict.word for verdict in verify(read_statement(json.dumps(run)), 10.0)] == [word]


@pytest.mark.parametrize(
    "parts",
    [
        {"mechanism": {"noise_multiplier": 1.0, "sampling": FIXED, "norms": {"kind": "hutchinson", "probes": 32}}},
        {"mechanism": {"noise_multiplier": 1.0, "sampling": FIXED}, "neighbours": "add-remove"},
        {"mechanism": {"noise_multiplier": 1.0, "sampling": CUT}, "neighbours": {"kind": "group", "size": 2}},
        {"mechanism": {"noise_multiplier": 1.0, "sampling": {"kind": "poisson", "rate": 0.3, "at_most": 4}}},
        {"mechanism": {"noise_multiplier": 1.0, "norms": "hutchinson", "beside": [{"kind": "laplace", "scale": 1.0}]}},
    ],
)
def test_what_is_not_covered_says_so(parts: dict[str, Any]) -> None:
    with pytest.raises(NotCoveredError):
        read_statement(json.dumps({"steps": 1, "delta": 1e-5, "epsilon": {"upper": 1.0}, **parts}))
