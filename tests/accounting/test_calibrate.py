"""Calibration and the split of probes: on the private side, close to it, no worse than other splits."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

from dprmt import ParameterError
from dprmt.accounting import (
    DPSGD,
    ExactNorms,
    FixedOrder,
    GaussianRelease,
    Hutchinson,
    HutchPlusPlus,
    Norms,
    Poisson,
    ProbeChoice,
    RandomAllocation,
    calibrate,
    choose_probes,
    compose,
    fixed,
    largest_steps,
    norms_from_dict,
)
from dprmt.cli import _accounting, main


@settings(max_examples=8)
@given(st.floats(0.05, 20.0), st.floats(1e-9, 1e-3), st.floats(1e-3, 0.5), st.integers(1, 2000))
def test_exact_norms(target: float, delta: float, rate: float, steps: int) -> None:
    """ε's upper bound meets the target, and 0.5 % less noise certainly misses it."""
    sigma = calibrate(DPSGD(1.0, rate), steps=steps, target_epsilon=target, delta=delta).noise_multiplier
    assert DPSGD(sigma, rate).epsilon(steps=steps, delta=delta).upper <= target
    less_noise = DPSGD(sigma / 1.005, rate).epsilon(steps=steps, delta=delta, tolerance=1e-4)
    assert less_noise.lower > target * (1 - 2e-3) - 1e-3


@pytest.mark.parametrize(
    "norms",
    [
        Hutchinson(32, secret=False),
        Hutchinson(32, secret=False, analysis="envelope"),
        pytest.param(Hutchinson(32, analysis="envelope", secret=False, rank=4), marks=pytest.mark.slow),
        Hutchinson(16, secret=True),
        Hutchinson(16, secret=True, analysis="envelope"),
    ],
)
def test_randomized_clipping(norms: Hutchinson) -> None:
    found = calibrate(DPSGD(7.0, 0.02, norms), steps=300, target_epsilon=2.0, delta=1e-5)
    assert (found.norms, found.sampling) == (norms, Poisson(0.02))
    assert found.epsilon(steps=300, delta=1e-5).upper <= 2.0
    assert replace(found, noise_multiplier=found.noise_multiplier / 1.01).epsilon(steps=300, delta=1e-5).lower > 2.0


def test_phases_keep_the_ratios_of_their_noise() -> None:
    """A composition comes back as one, no noisier than it need be."""
    estimated = DPSGD(3.0, 0.02, Hutchinson(16, secret=False))
    run = compose([(DPSGD(1.0, 0.05), 40), (estimated, 60), (DPSGD(2.0, RandomAllocation(9)), 18)])
    found = calibrate(run, target_epsilon=1.5, delta=1e-6)
    (first, _), (second, _), (third, steps) = found.phases
    assert first.noise_multiplier == pytest.approx(second.noise_multiplier / 3.0, rel=1e-12)
    assert (third.norms, third.sampling, steps) == (ExactNorms(), RandomAllocation(9), 18)
    assert found.epsilon(1e-6).upper <= 1.5
    less = [(replace(phase, noise_multiplier=phase.noise_multiplier / 1.005), steps) for phase, steps in found.phases]
    assert compose(less).epsilon(1e-6, tolerance=1e-4).lower > 1.5 * (1 - 2e-3)


@pytest.mark.parametrize(("target", "delta"), [(1e-5, 1e-9), (400.0, 1e-5)])
def test_far_targets(target: float, delta: float) -> None:
    sigma = calibrate(DPSGD(1.0, 0.1), steps=100, target_epsilon=target, delta=delta).noise_multiplier
    assert math.isfinite(sigma)
    assert DPSGD(sigma, 0.1).epsilon(steps=100, delta=delta).upper <= target


@settings(max_examples=8)
@given(wanted=st.floats(0.01, 0.9), sigma=st.sampled_from([1.0, 5.0]))
def test_targets_of_an_attack_are_met_and_not_by_much(wanted: float, sigma: float) -> None:
    """Without sampling all is in closed form: advantage 2Φ(μ/2) - 1, power Φ(Φ⁻¹(α) + μ), with μ = √E/σ."""
    run, epochs = DPSGD(sigma, FixedOrder()), 2
    found = calibrate(run, epochs=epochs, target_advantage=wanted)
    assert found.advantage(steps=epochs).upper <= wanted
    assert found.noise_multiplier == pytest.approx(math.sqrt(epochs) / (2 * ndtri((1 + wanted) / 2)), rel=1e-2)
    level = 0.3 * wanted
    found = calibrate(run, epochs=epochs, target_true_positive_rate=wanted, false_positive_rate=level)
    assert found.true_positive_rate(steps=epochs, false_positive_rate=level).upper <= wanted
    assert found.noise_multiplier == pytest.approx(math.sqrt(epochs) / (ndtri(wanted) - ndtri(level)), rel=1e-2)


FULL: dict[str, Any] = {"run": DPSGD(1.0, 1.0), "steps": 10**6}
LITTLE: dict[str, Any] = {"run": DPSGD(1.0, 0.01), "target_epsilon": 1.0, "delta": 1e-5, "steps": 100}
REFUSED = [
    *(
        (FULL, change, name)
        for change, name in (
            ({}, "target_epsilon"),
            ({"target_epsilon": 1.0}, "delta"),
            ({"target_advantage": 0.2, "delta": 1e-5}, "delta"),
            ({"target_advantage": 0.2, "target_epsilon": 1.0, "delta": 1e-5}, "target_epsilon"),
            *(({"target_advantage": value}, "target_advantage") for value in (0.0, 1.0, 1e-9)),
            ({"target_true_positive_rate": 0.2}, "false_positive_rate"),
            ({"target_advantage": 0.2, "false_positive_rate": 0.1}, "false_positive_rate"),
            ({"target_true_positive_rate": 0.1, "false_positive_rate": 0.1}, "target_true_positive_rate"),
            ({"target_true_positive_rate": 0.1, "false_positive_rate": 0.0}, "false_positive_rate"),
        )
    ),
    *(
        (LITTLE, change, name)
        for change, name in (
            *(({"target_epsilon": value}, "target_epsilon") for value in (0.0, math.nan, 1e9)),
            ({"target_epsilon": 1e-12, "delta": 1e-12, "run": DPSGD(1.0, 1.0)}, "target_epsilon"),
            ({"delta": 1.0}, "delta"),
            *(({"steps": value}, "steps") for value in (2.5, None)),
            ({"epochs": 3}, "epochs"),
            ({"run": compose([(DPSGD(1.0, 0.1), 3)])}, "steps"),
            ({"run": 1.0}, "run"),
            ({"tolerance": 0.0}, "tolerance"),
        )
    ),
]


@pytest.mark.parametrize(("setting", "change", "name"), REFUSED)
def test_bad_or_unreachable_input(setting: dict[str, Any], change: dict[str, Any], name: str) -> None:
    with pytest.raises(ParameterError) as caught:
        calibrate(**(setting | change))
    assert caught.value.name == name


def test_what_is_spent_does_not_move() -> None:
    """The rest of a run gets the noise that it needs, not a share of the past's: σ = 1.312; both would get 1.06."""
    done, rest = (DPSGD(1.0, 0.01), 1000), (DPSGD(1.0, 0.01), 500)
    found = calibrate(compose([fixed(done), rest]), target_epsilon=2.0, delta=1e-5)
    ((noisier, steps),) = found.free_phases()
    assert (found.fixed, steps) == ((done,), 500)
    assert noisier.noise_multiplier == pytest.approx(1.312, abs=2e-3)
    assert found.epsilon(1e-5).upper <= 2.0
    louder = replace(noisier, noise_multiplier=noisier.noise_multiplier / 1.01)
    assert compose([done, (louder, 500)]).epsilon(1e-5).lower > 2.0
    assert calibrate(compose([fixed(compose([done])), rest]), target_epsilon=2.0, delta=1e-5) == found
    for options in ({"target_epsilon": 1.5, "delta": 1e-5}, {"target_advantage": 0.05}):
        with pytest.raises(ParameterError, match="must be above the cost of releases and fixed phases"):
            calibrate(compose([fixed(done), rest]), **options)
    with pytest.raises(ParameterError, match="a phase of DPSGD that is not fixed"):
        calibrate(compose([fixed(done)]), target_epsilon=2.0, delta=1e-5)


@pytest.mark.parametrize("sampling", [Poisson(0.01), RandomAllocation(100)])
def test_the_steps_that_are_left(sampling: Poisson | RandomAllocation) -> None:
    mechanism = DPSGD(1.0, sampling)
    unit = mechanism.steps_per_epoch or 1
    steps = largest_steps(mechanism, 2.0, 1e-5)
    within, beyond = (mechanism.epsilon(steps=count, delta=1e-5).upper for count in (steps, steps + unit))
    assert within <= 2.0 < beyond
    done = fixed((mechanism, 5 * unit))
    left = largest_steps(compose([done, (mechanism, unit)]), 2.0, 1e-5)
    assert left == steps - 5 * unit
    assert largest_steps(mechanism, 1e-6, 1e-5) == 0
    with pytest.raises(ParameterError, match="epsilon must be above the cost of releases"):
        largest_steps(compose([GaussianRelease(1.0), (mechanism, unit)]), 2.0, 1e-5)
    with pytest.raises(ParameterError, match="one phase of DPSGD that is not fixed"):
        largest_steps(compose([done]), 2.0, 1e-5)


def test_the_error_names_the_target_that_was_asked_for() -> None:
    """Not the excess over the false positive rate, which is what the search compares."""
    with pytest.raises(ParameterError, match=r"target_true_positive_rate must be .*, got 0\.99999$"):
        calibrate(DPSGD(1.0, 1e-6), steps=1, target_true_positive_rate=0.99999, false_positive_rate=0.01)


MECHANISM = DPSGD(3.0, 0.02)
RUN: dict[str, Any] = {"steps": 50, "delta": 1e-5}
LAYERS = [(4, 1000, 500), (3, 5, 6)]


@pytest.fixture(scope="module")
def choices() -> tuple[ProbeChoice, ...]:
    return choose_probes(MECHANISM, **RUN, budget=32, layers=LAYERS)


def test_the_split_is_the_best_of_all(choices: tuple[ProbeChoice, ...]) -> None:
    """Against other widths of the sketch; rows are sorted, and Hutch++ with secret probes is the best of them."""
    exact, *rows = choices
    assert exact.epsilon == MECHANISM.epsilon(**RUN)
    assert len(rows) == 6
    assert [row.epsilon.upper for row in rows] == sorted(row.epsilon.upper for row in rows)
    assert isinstance(rows[0].norms, HutchPlusPlus)
    assert rows[0].norms.secret
    chosen = next(row for row in rows if is_one_pass(row.norms, secret=False))
    assert 2 * chosen.norms.sketch + chosen.norms.probes == chosen.products == 32  # type: ignore[attr-defined]
    others = [
        replace(MECHANISM, norms=HutchPlusPlus(32 - 2 * s, s, secret=False)).epsilon(**RUN).upper for s in (5, 11)
    ]
    assert chosen.epsilon.upper <= min(others) * 1.0005


def is_one_pass(norms: Norms, *, secret: bool) -> bool:
    return isinstance(norms, HutchPlusPlus) and not norms.power_iteration and norms.secret == secret


def test_the_costs_are_those_of_the_shapes(choices: tuple[ProbeChoice, ...]) -> None:
    """T = 4, d = 1000, p = 500 is cheapest through two T x T matrices; a small layer is exact for every choice."""
    small = 2 * 3 * 5 * 6
    assert choices[0].cost == (2 * 16 * 1500 + small, 2 * 4 * 16)
    hutchinson = next(row for row in choices if isinstance(row.norms, Hutchinson))
    assert hutchinson.cost == (32 * 2 * 4 * 1500 + small, 4 * (1004 * 32 + 500 * 32))


def test_the_command(
    choices: tuple[ProbeChoice, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def answer(mechanism: DPSGD, **run: Any) -> tuple[ProbeChoice, ...]:
        asked.append((mechanism, run))
        return choices

    monkeypatch.setattr(_accounting, "choose_probes", answer)
    run = ["probes", "--noise-multiplier", "3", "--sample-rate", "0.02", "--steps", "50", "--delta", "1e-5"]
    assert main([*run, "--budget", "32", "--layers", "4x1000x500,3x5x6", "--json"]) == 0
    assert asked == [(MECHANISM, {**RUN, "budget": 32, "layers": LAYERS})]
    rows = json.loads(capsys.readouterr().out)["choices"]
    assert [norms_from_dict(row["norms"]) for row in rows] == [choice.norms for choice in choices]
    assert rows[0]["cost"] == {"flops": choices[0].cost.flops, "bytes": choices[0].cost.bytes}  # type: ignore[union-attr]
    assert [row["epsilon"]["upper"] for row in rows] == [choice.epsilon.upper for choice in choices]
    assert main([*run, "--budget", "32"]) == 0
    assert capsys.readouterr().out.count("\n") == len(choices) + 3  # heads, a rule, and the neighbours
