"""Random allocation: epochs of two and three steps by quadrature, check values, and two ends that do not cross."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from flint import arb
from scipy.special import ndtr

from dprmt_verify import read_statement, verify
from dprmt_verify._run import Run
from dprmt_verify._statement import BOTH

Array = np.ndarray
SKETCHED = {"kind": "hutch++", "probes": 8, "sketch": 8, "power_iteration": True}


def run_of(sigma: float, steps: int, epochs: int, delta: float, cells: int, **norms: Any) -> Run:
    return Run(read_statement(statement(sigma, steps, epochs, delta, upper=3.0, **norms)).phases, delta, 3.0, cells)


def statement(sigma: float, steps: int, epochs: int, delta: float, **said: Any) -> str:
    sampling = {"kind": "allocation", "steps_per_epoch": steps, "participations": said.pop("participations", 1)}
    mechanism = {"noise_multiplier": sigma, "sampling": sampling, "norms": said.pop("norms", "exact")}
    return json.dumps({"mechanism": mechanism, "steps": steps * epochs, "delta": delta, "epsilon": said})


def below(level: Array, mu: float) -> Array:
    """E(a - V)₊ of V = e^{μx - μ²/2}, x normal."""
    positive = np.maximum(level, 1e-300)
    x = np.log(positive) / mu
    return np.where(level > 0, positive * ndtr(x + mu / 2) - ndtr(x - mu / 2), 0.0)


def epoch(sigma: float, steps: int, epsilon: float) -> tuple[float, float]:
    """δ to remove and to add, of two or three steps: E(a - V₁ - … - V_t)₊, the last step in closed form."""
    mu, (node, weight) = 1 / sigma, np.polynomial.legendre.leggauss(16)
    edges = np.linspace(-9.5, 9.5, 30)
    half = np.diff(edges)[:, None] / 2
    x = (edges[:-1, None] + half + half * node).ravel()
    mass = (half * weight).ravel() * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    ratio = np.exp(mu * x - mu * mu / 2)

    def mean(level: float) -> float:
        if steps == 2:
            return float(mass @ below(level - ratio, mu))
        return float(sum(m * (mass @ below(level - r - ratio, mu)) for m, r in zip(mass, ratio, strict=True)))

    remove = 1 - math.exp(epsilon) + mean(steps * math.exp(epsilon)) / steps
    add = math.exp(epsilon) * mean(steps * math.exp(-epsilon)) / steps
    return remove, add


@pytest.mark.parametrize(("sigma", "steps"), [(1.0, 2), (3.0, 2), (1.5, 3)])
def test_one_epoch_by_quadrature_is_between_both_ends(sigma: float, steps: int) -> None:
    run = run_of(sigma, steps, 1, 1e-6, 8)
    for epsilon in (0.0, 0.1, 0.5, 1.0):
        for way, truth in zip(BOTH, epoch(sigma, steps, epsilon), strict=True):
            low, high = float(run.below(way, epsilon)), float(run.above(way, epsilon))
            assert low <= truth + 1e-9
            assert truth <= high + 1e-9
            if truth > 1e-3:
                assert high - low < 0.05 * truth


@pytest.mark.parametrize(
    ("norms", "lower", "upper"),
    [
        ("exact", 0.596, 0.612),
        pytest.param({"kind": "hutchinson", "probes": 32}, 0.62, 0.65, marks=pytest.mark.slow),
        ({"kind": "hutchinson", "probes": 32, "secret": True}, 0.61, 0.635),
        pytest.param(SKETCHED, 0.6, 0.65, marks=pytest.mark.slow),
    ],
)
def test_check_values(norms: Any, lower: float, upper: float) -> None:
    """σ = 2, t = 100, 10 epochs, δ = 1e-5: ε = 0.6031 with exact norms, 0.635 and 0.623 with 32 probes."""
    document = statement(2.0, 100, 10, 1e-5, norms=norms, lower=lower, upper=upper)
    assert [verdict.word for verdict in verify(read_statement(document), 0.0, 3)] == ["proved", "proved"]


@pytest.mark.parametrize(("sigma", "steps", "epochs"), [(1.2, 5, 2), (5.0, 7, 40), (2.0, 400, 1)])
def test_ends_do_not_cross_and_are_near(sigma: float, steps: int, epochs: int) -> None:
    run = run_of(sigma, steps, epochs, 1e-6, 3)
    for way in BOTH:
        for epsilon in (0.0, 0.2, 1.0, 2.0):
            low, high = run.below(way, epsilon), run.above(way, epsilon)
            assert low <= high
            assert high - low < 0.3 * float(high) + 1e-4


def test_more_participations_are_more_epochs_of_fewer_steps() -> None:
    several = read_statement(statement(2.0, 12, 3, 1e-5, participations=3, upper=1.0)).phases
    single = read_statement(statement(2.0, 4, 9, 1e-5, upper=1.0)).phases
    one, other = (Run(phases, 1e-5, 1.0, 4).above("remove", 0.5) for phases in (several, single))
    assert (several[0].steps, arb(one)) == (9, arb(other))


def test_an_epoch_of_one_step_is_a_step_without_sampling() -> None:
    (phase,) = read_statement(statement(2.0, 1, 9, 1e-5, upper=1.0)).phases
    mu, epsilon = 1.5, 1.0
    truth = float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))
    run = Run([phase], 1e-5, 1.0, 10)
    assert float(run.below("remove", epsilon)) <= truth <= float(run.above("remove", epsilon)) < 1.01 * truth
