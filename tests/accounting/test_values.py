"""The words of a run, norms and sampling: checked, comparable, hashable, picklable, printed as typed, replaceable."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dprmt.accounting
from dprmt.accounting import (
    DPSGD,
    ExactNorms,
    Hutchinson,
    HutchPlusPlus,
    Poisson,
    RandomAllocation,
    compose,
    norms_from_dict,
    sampling_from_dict,
)

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
SAMPLINGS = st.one_of(
    st.builds(Poisson, st.floats(1e-9, 1.0)),
    st.builds(RandomAllocation, st.integers(9, 99), participations=st.integers(1, 9)),
)
MECHANISMS = st.builds(DPSGD, st.floats(1e-3, 1e6), SAMPLINGS, NORMS)


@given(st.one_of(NORMS, SAMPLINGS, MECHANISMS))
def test_a_value_survives_what_values_survive(value: Any) -> None:
    typed = eval(repr(value), vars(dprmt.accounting))
    same = (typed, pickle.loads(pickle.dumps(value)), copy.deepcopy(value), replace(value))
    assert all(other == value and hash(other) == hash(value) for other in same)
    assert len({value, *same}) == 1
    with pytest.raises(FrozenInstanceError):
        value.probes = 3


@given(NORMS, SAMPLINGS)
def test_a_value_is_read_back_from_json(norms: Any, sampling: Any) -> None:
    assert norms_from_dict(json.loads(json.dumps(norms.as_dict()))) == norms
    assert sampling_from_dict(json.loads(json.dumps(sampling.as_dict()))) == sampling
    whole = DPSGD(1.0, sampling, norms).as_dict()
    assert (whole["norms"], whole["sampling"]) == (norms.as_dict(), sampling.as_dict())


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
