"""Every refusal names the argument, its value and the allowed range."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from dprmt import ParameterError
from dprmt.accounting import (
    DPSGD,
    AddRemove,
    CyclicPoisson,
    FixedSize,
    GaussianRelease,
    Group,
    Hutchinson,
    HutchPlusPlus,
    LaplaceRelease,
    Poisson,
    RandomAllocation,
    clt_mu,
    compose,
    gdp_epsilon,
    gdp_trade_off,
    neighbours_from_dict,
    norms_from_dict,
    sampling_from_dict,
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


RUN = DPSGD(1.0, 0.1)
ALLOCATED = DPSGD(1.0, RandomAllocation(10))


def epsilon(**change: Any) -> object:
    return RUN.epsilon(**({"steps": 10, "delta": 1e-5} | change))


NUMBER = "must be a finite number in"
STEPS = "^steps must be .* got -?[0-9.]+$"
QUESTIONS: list[tuple[str, Callable[[Any], object], list[Any]]] = [
    (rf"delta {NUMBER} \[1e-290, 1\), got", lambda x: epsilon(delta=x), [0.0, 1e-300, 1.0, -1e-5, math.nan, "1", None]),
    (r"epsilon .* \[0, 1e\+17\], got", lambda x: RUN.delta(steps=10, epsilon=x), [-0.1, 1e300, math.inf, "1", None]),
    (rf"epsilon {NUMBER} \[0, 1e\+17\], got", lambda x: RUN.delta(steps=10, epsilon=x), [math.nan, -math.inf]),
    (r"steps must be an integer in \[0, 10{9}\], got", lambda x: epsilon(steps=x), [-1, 10**18, 1.5, 10.0]),
    (r"steps must be an integer in \[0, 10{9}\], got", lambda x: epsilon(steps=x), ["10", True, None, math.nan]),
    (f"tolerance {NUMBER}", lambda x: epsilon(tolerance=x), [0.0, 2.0, math.nan, "fine"]),
    ("phases", compose, [[], [RUN], [(1.0, 3)], [(RUN, 3, 4)], [("DPSGD", 3)]]),
    (STEPS, lambda x: compose([x]), [(RUN, -1), (RUN, 2.5), (ALLOCATED, 15), (GaussianRelease(1.0), -1)]),
]


@pytest.mark.parametrize(("message", "ask", "values"), QUESTIONS)
def test_what_is_asked(message: str, ask: Callable[[Any], object], values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ParameterError, match=message):
            ask(value)


@pytest.mark.parametrize(
    "alpha", [-0.1, 1.1, [0.5, math.nan], "x", "0.5", ["0.5"], [0.5, "x"], [[0.5], [0.1, 0.2]], 1j, True]
)
def test_alpha(alpha: Any) -> None:
    for ask in (
        lambda value: RUN.trade_off(steps=10, alpha=value),
        compose([(RUN, 10)]).trade_off,
        partial(gdp_trade_off, 1.0),
    ):
        with pytest.raises(ParameterError, match=r"^alpha must be numbers in \[0, 1\], got ") as error:
            ask(alpha)
        assert repr(alpha) in str(error.value)


CASES: list[tuple[str, Callable[[], object]]] = [
    ("mu", lambda: gdp_epsilon(-1.0, 1e-5)),
    ("steps", lambda: clt_mu(1.0, 0.1, 0)),
    (r"^probes must be an integer in \[2, 100000\], got 1", lambda: Hutchinson(1, secret=False)),
    ("^rank must be an integer >= 1, got 0", lambda: Hutchinson(8, secret=False, rank=0)),
    ("^secret must be True or False, got 'no'", lambda: Hutchinson(8, secret="no")),
    ("^analysis must be one of 'tight', 'envelope', got", lambda: Hutchinson(8, secret=False, analysis="loose")),
    (r"^sketch must be an integer in \[3, 10000\], got 2", lambda: HutchPlusPlus(8, 2, secret=False)),
    ("^power_iteration must be True or False, got 1", lambda: HutchPlusPlus(8, 3, power_iteration=1, secret=False)),
    (r"^rate must be a finite number in \[1e-09, 1\], got 0.0", lambda: Poisson(0.0)),
    (r"^steps_per_epoch must be an integer in \[1, 10000000\], got 0", lambda: RandomAllocation(0)),
    (r"^participations must be an integer in \[1, 3\], got 4", lambda: RandomAllocation(3, 4)),
    (r"^sampling must be Poisson\(rate\) with a rate in \[1e-9, 1\].*, got 1.5", lambda: DPSGD(1.0, 1.5)),
    (r"^sampling must be Poisson.*, got Hutchinson\(8, secr", lambda: DPSGD(1.0, Hutchinson(8, secret=False))),
    (r"^norms must be ExactNorms\(\), Hutchinson\(probes, secret=…\) or .*, got 32", lambda: DPSGD(1.0, 0.03, 32)),
    ("^noise_multiplier must be .*, got 0.0", lambda: DPSGD(0.0, 0.1)),
    ("^norms.kind must be one of 'exact', 'hutchinson', 'hutch", lambda: norms_from_dict({"kind": "sketchy"})),
    ("^norms.probes must be left out .*, got 3", lambda: norms_from_dict({"kind": "exact", "probes": 3})),
    ("^norms.sketch must be given if norms is 'hut", lambda: norms_from_dict({"kind": "hutch++", "probes": 3})),
    ("^sampling.rate must be given if sampling is 'poisson'", lambda: sampling_from_dict({"kind": "poisson"})),
    ("steps must be an integer", lambda: epsilon(steps=[])),
    ("steps must be an integer", lambda: epsilon(steps=[1.5])),
    (r"steps must be an integer in \[1, 1000000000\]", lambda: epsilon(steps=[0, 3])),
    ("steps must be an integer", lambda: epsilon(steps=[[1]])),
    ("epochs must be left out", lambda: RUN.epsilon(epochs=[1], delta=1e-5)),
    ("steps must be whole epochs .* got 15", lambda: ALLOCATED.epsilon(steps=[10, 15], delta=1e-5)),
    ("epochs must be left out", lambda: ALLOCATED.epsilon(steps=[10], delta=1e-5, epochs=[1])),
    ("epsilon must be", lambda: RUN.delta(steps=3, epsilon=[-1.0])),
    ("epsilon must be", lambda: RUN.delta(steps=3, epsilon=[])),
    ("steps must be", lambda: RUN.delta(steps=[3], epsilon=1.0)),
    ("tolerance must be", lambda: RUN.epsilon(steps=[3], delta=1e-5, tolerance=2.0)),
    (r"size .* \[1, 1000\]", lambda: Group(0)),
    ("size", lambda: Group(2.5)),
    ("of", lambda: Group(2, Group(2))),
    ("neighbours", lambda: DPSGD(1.0, 0.1, neighbours="replace")),
    ("neighbours.kind", lambda: neighbours_from_dict({"kind": "cousin"})),
    ("beside must be a sequence of GaussianRelease", lambda: DPSGD(1.0, 0.1, beside=[LaplaceRelease(1.0)])),
    ("norms must be ExactNorms", lambda: DPSGD(1.0, 0.1, Hutchinson(8, secret=True), beside=[GaussianRelease(1.0)])),
    ("given together", lambda: Poisson(0.1, at_most=3)),
    (r"at_most must be an integer in \[1, 10\]", lambda: Poisson(0.1, 11, 10)),
    ("norms must be ExactNorms", lambda: DPSGD(1.0, Poisson(0.1, 3, 10), Hutchinson(8, secret=True))),
    ("of one sample", lambda: DPSGD(1.0, Poisson(0.1, 3, 10), neighbours=Group(2))),
    ("of one sample", lambda: DPSGD(1.0, CyclicPoisson(0.1, 3), neighbours=Group(2))),
    (r"rate must be a finite number in \[1e-09, 0.333333", lambda: CyclicPoisson(0.5, 3)),
    (r"batch_size must be an integer in \[1, 10\], got 11", lambda: FixedSize(11, 10)),
    ("norms must be ExactNorms", lambda: DPSGD(1.0, FixedSize(100, 1000), Hutchinson(8, secret=True))),
    (r"neighbours must be ZeroOut\(\) or R", lambda: DPSGD(1.0, FixedSize(100, 1000), neighbours=AddRemove())),
    ("epochs must be left out of fixed", lambda: DPSGD(1.0, FixedSize(100, 1000)).epsilon(epochs=3, delta=1e-5)),
]


@pytest.mark.parametrize(("message", "call"), CASES)
def test_what_is_no_value_is_named(message: str, call: Callable[[], object]) -> None:
    with pytest.raises(ParameterError, match=message):
        call()
