"""Values of the accountant: checked, comparable, hashable, picklable, read back, and printed as they are."""

from __future__ import annotations

import copy
import json
import math
import pickle
from dataclasses import FrozenInstanceError, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dprmt.accounting
from dprmt._rounding import round_down, round_up
from dprmt.accounting import (
    DPSGD,
    AddRemove,
    CyclicPoisson,
    ExactNorms,
    GaussianDPRelease,
    GaussianRelease,
    Group,
    Hutchinson,
    HutchPlusPlus,
    LaplaceRelease,
    Poisson,
    PrivacyBounds,
    RandomAllocation,
    RenyiRelease,
    ReplaceOne,
    ZCDPRelease,
    ZeroOut,
    compose,
    neighbours_from_dict,
    norms_from_dict,
    release_from_dict,
    sampling_from_dict,
)
from dprmt.statements import mechanism_from_dict

PROBES, FLAGS = st.integers(2, 100), st.booleans()
NORMS = st.one_of(
    st.just(ExactNorms()),
    st.builds(
        Hutchinson,
        PROBES,
        secret=FLAGS,
        rank=st.none() | st.integers(1, 9),
        analysis=st.sampled_from(["tight", "envelope"]),
    ),
    st.builds(HutchPlusPlus, PROBES, st.integers(3, 99), power_iteration=FLAGS, secret=FLAGS),
)
PLAIN = st.one_of(
    st.builds(Poisson, st.floats(1e-9, 1.0)),
    st.builds(RandomAllocation, st.integers(9, 99), participations=st.integers(1, 9)),
)
SAMPLINGS = st.one_of(
    PLAIN,
    st.builds(Poisson, st.floats(0.1, 0.9), st.integers(1, 9), st.just(10)),
    st.builds(CyclicPoisson, st.floats(0.01, 0.1), st.integers(1, 9)),
)
RELATIONS = st.sampled_from([ZeroOut(), AddRemove(), ReplaceOne(), Group(3), Group(2, ReplaceOne())])
RENYI = RenyiRelease((2, 4), (0.1, 0.2))
RELEASES = st.sampled_from([GaussianDPRelease(0.5), ZCDPRelease(0.1), RENYI, LaplaceRelease(1.0, 0.1)])
MECHANISMS = st.builds(DPSGD, st.floats(1e-3, 1e6), PLAIN, NORMS)


@given(st.one_of(NORMS, SAMPLINGS, MECHANISMS, RELATIONS, RELEASES))
def test_a_value_survives_what_values_survive(value: Any) -> None:
    typed = eval(repr(value), vars(dprmt.accounting))
    same = (typed, pickle.loads(pickle.dumps(value)), copy.deepcopy(value), replace(value))
    assert all(other == value and hash(other) == hash(value) for other in same)
    assert len({value, *same}) == 1
    with pytest.raises(FrozenInstanceError):
        value.probes = 3


@given(NORMS, SAMPLINGS, RELATIONS, RELEASES)
def test_a_value_is_read_back_from_json(norms: Any, sampling: Any, relation: Any, release: Any) -> None:
    assert neighbours_from_dict(relation.as_dict()) == relation
    assert release_from_dict(json.loads(json.dumps(release.as_dict()))) == release
    assert norms_from_dict(json.loads(json.dumps(norms.as_dict()))) == norms
    assert sampling_from_dict(json.loads(json.dumps(sampling.as_dict()))) == sampling
    beside = DPSGD(1.0, Poisson(0.1, 3, 10), beside=[GaussianRelease(2.0), GaussianRelease(3.0)])
    assert mechanism_from_dict(json.loads(json.dumps(beside.as_dict()))) == beside
    whole = DPSGD(1.0, 0.1, norms).as_dict()
    assert whole["norms"] == norms.as_dict()


def test_a_plain_number_is_poisson_sampling() -> None:
    assert DPSGD(1.0, 0.5) == DPSGD(1.0, Poisson(0.5)) != DPSGD(1.0, RandomAllocation(2))
    assert DPSGD(1.0, np.float32(0.5)).sampling == Poisson(0.5)


def test_compositions_compare_too() -> None:
    """In any order of phases; pickled, and printed as typed."""
    phases = [(DPSGD(1.0, 0.1), 3), (DPSGD(2.0, RandomAllocation(4), Hutchinson(8, secret=False)), 8)]
    run = compose(phases)
    same = (compose(phases[::-1]), pickle.loads(pickle.dumps(run)), eval(repr(run), vars(dprmt.accounting)))
    assert all(other == run and hash(other) == hash(run) for other in same)
    assert run != compose(phases[:1])
    assert run != phases


@given(st.floats(1e-12, 1e12), st.sampled_from([".0f", ".2f", ".3g", ".4e", "10.3f", "+.1f"]))
def test_printed_numbers_are_still_bounds(value, spec):
    """Rounded up, and by no more than a unit of the last place."""
    shown, exact = Decimal(f"{PrivacyBounds(0.0, value, value):{spec}}"), Decimal(repr(value))
    assert exact <= shown < exact + Decimal(10) ** shown.as_tuple().exponent


def test_formats_by_example():
    bounds = PrivacyBounds(0.9, 1.0, 1.00001)
    assert [f"{bounds:.2f}", f"{bounds:.1e}", f"{bounds:8.3f}"] == ["1.01", "1.1e+0", "   1.001"]
    assert f"{bounds}" == str(bounds) == "between 0.9 and 1.00001"
    assert str(PrivacyBounds(0.12345678, 0.2, 0.98765432)) == "between 0.123456 and 0.987655"
    assert str(PrivacyBounds(2.0, 2.0, math.inf)) == "between 2 and inf"
    assert f"{PrivacyBounds(0.0, math.inf, math.inf):.2f}" == "inf"
    assert float(bounds) == 1.00001
    with pytest.raises(ValueError, match="invalid format"):
        f"{bounds:.2q}"


def test_every_answer_knows_what_was_asked():
    for mechanism in (DPSGD(2.0, 0.1), DPSGD(2.0, 0.1, Hutchinson(16, secret=False))):
        assert mechanism.epsilon(steps=10, delta=1e-3).at_delta == 1e-3
        assert mechanism.delta(steps=10, epsilon=0.5).at_epsilon == 0.5
        assert all(bounds.at_delta == 1e-3 for bounds in mechanism.epsilon_by_direction(steps=10, delta=1e-3).values())


@pytest.mark.parametrize("safe", ["lower", "upper"])
def test_zero_has_no_sign(safe) -> None:
    """Where 1 - δ is rounded down to nothing, an end may be -0."""
    bounds = PrivacyBounds(-0.0, -0.0, -0.0, safe=safe, at_delta=1e-5)
    assert f"{bounds:.2f}" == "0.00"
    assert "-0" not in str(bounds).replace("1e-05", "")
    assert (round_up(-0.0), round_down(-0.0)) == ("0", "0")
