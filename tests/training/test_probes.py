"""Probes: their law, their independence across every part of the key, and that the secret stays one."""

from __future__ import annotations

import copy
import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dprmt import ParameterError
from dprmt.training.norms import ProbeGenerator
from dprmt.training.norms._probes import sample_names

REQUEST = {"step": 3, "layer": "head", "rows": 50, "probes": 16}


def draw(generator: ProbeGenerator, sample: object = None, **changes: object) -> torch.Tensor:
    """One matrix, shared or of one sample."""
    request = {**REQUEST, **changes}
    return generator.shared(**request) if sample is None else generator.per_sample([sample], **request)[0]


@pytest.mark.parametrize("sample", [None, 7])
def test_entries_are_normal_with_variance_one_over_k(sample: object) -> None:
    """The KS test accepts N(0, 1/k) and rejects variances 1/(k-2), 1/(k+2), hence 1 and 2/k as well."""
    values = draw(ProbeGenerator(0), sample, rows=10000).numpy().ravel()
    assert stats.kstest(values, stats.norm(scale=1 / 4).cdf).pvalue > 1e-3
    for k in (14, 18):
        assert stats.kstest(values, stats.norm(scale=1 / math.sqrt(k)).cdf).pvalue < 1e-6


def test_columns_and_rows_are_uncorrelated() -> None:
    values = draw(ProbeGenerator(0), rows=20000, probes=4).double().numpy()
    correlations = np.corrcoef(values.T)[np.triu_indices(4, 1)]
    lagged = np.corrcoef(values[:-1, 0], values[1:, 0])[0, 1]
    assert np.abs([*correlations, lagged]).max() < 4.5 / math.sqrt(20000)


def test_every_part_of_the_key_gives_an_independent_matrix() -> None:
    """Correlations of 800 entries stay within 4.5 standard deviations; the same key gives correlation 1."""
    one, other = ProbeGenerator(0), ProbeGenerator(1)
    matrices = [
        *(draw(one, sample, **changes) for sample in (None, 7, "7", -7) for changes in ({}, {"step": 4})),
        *(draw(one, sample, **changes) for sample in (None, 7) for changes in ({"layer": "h"}, {"purpose": "sketch"})),
        draw(one, layer="head3", step=0),
        draw(one, layer="head", step=30),
        draw(other),
        draw(other, 7),
    ]
    table = np.corrcoef(torch.stack(matrices).flatten(1).double().numpy())
    assert np.abs(table[np.triu_indices(len(table), 1)]).max() < 4.5 / math.sqrt(800)
    assert np.corrcoef(draw(one).flatten(), draw(ProbeGenerator(0)).flatten())[0, 1] == pytest.approx(1.0)


def test_a_sample_keeps_its_matrix_wherever_it_stands() -> None:
    """Theory §8: keyed by identity, never by position; regenerated, whatever was drawn before."""
    generator = ProbeGenerator(0)
    together = generator.per_sample([4, "b", 9], **REQUEST)
    for position, sample in enumerate([4, "b", 9]):
        draw(generator, 1000 + position)
        assert torch.equal(draw(generator, sample), together[position])
    assert torch.equal(generator.per_sample(torch.tensor([9, 4]), **REQUEST), together[[2, 0]])
    assert torch.equal(generator.per_sample(np.array([9, 4]).tolist(), **REQUEST), together[[2, 0]])


def test_the_global_generators_are_neither_used_nor_moved() -> None:
    torch.manual_seed(0)
    before, first = torch.get_rng_state(), draw(ProbeGenerator(0))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(draw(ProbeGenerator(0)), first)


def test_the_seed_is_secret_by_default_and_not_shown() -> None:
    """Two generators differ, and no way of printing or copying one shows the seed."""
    assert not torch.equal(draw(ProbeGenerator()), draw(ProbeGenerator()))
    seed = b"sixteen secret b"
    generator = ProbeGenerator(seed)
    shown = f"{generator!r} {generator!s} {getattr(generator, '__dict__', {})}"
    assert "sixteen" not in shown
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="secret"):
            attempt(generator)
    for wrong in (b"sixteen secret", seed * 5, -123456, 2**256):
        with pytest.raises(ParameterError) as error:
            ProbeGenerator(wrong)
        assert "sixteen" not in str(error.value)
        assert "123456" not in str(error.value)


def test_seeds_of_different_kinds_differ() -> None:
    seeds = [bytes(16), bytes(32), bytes(63), bytes(64), 0, 1, 256]
    matrices = [draw(ProbeGenerator(seed)) for seed in seeds]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(matrices, 2))


@given(st.lists(st.one_of(st.integers(), st.text()), unique_by=lambda sample: (type(sample), sample)))
def test_different_identities_have_different_names(samples: list[int | str]) -> None:
    """Names are injective: the list is accepted, and its names are as many as its members."""
    assert len(set(sample_names(samples))) == len(samples)


@pytest.mark.parametrize(
    "changes",
    [
        {"step": -1},
        {"step": 1.0},
        {"layer": ""},
        {"layer": 3},
        {"rows": 0},
        {"probes": 0},
        {"purpose": ""},
        {"dtype": torch.bfloat16},
    ],
)
def test_bad_requests(changes: dict[str, object]) -> None:
    for sample in (None, 7):
        with pytest.raises(ParameterError, match=next(iter(changes))):
            draw(ProbeGenerator(0), sample, **changes)


@pytest.mark.parametrize("samples", [[1, 2, 1], ["a", "a"], [1.5], [True], [None], "ab", 3])
def test_bad_identities(samples: object) -> None:
    with pytest.raises(ParameterError, match="samples"):
        ProbeGenerator(0).per_sample(samples, **REQUEST)


def test_float64_probes_are_the_float32_ones_before_rounding() -> None:
    fine, coarse = draw(ProbeGenerator(0), dtype=torch.float64), draw(ProbeGenerator(0))
    assert fine.dtype == torch.float64
    assert torch.equal(fine.float(), coarse)
    assert not torch.equal(fine, coarse.double())


def test_keys_have_more_than_32_bits() -> None:
    """Torch's own generator drops the others of its seed."""
    steps = (5, 5 + 2**32)
    assert not torch.equal(*(draw(ProbeGenerator(0), step=step) for step in steps))
    assert not torch.equal(*(draw(ProbeGenerator(step)) for step in steps))
