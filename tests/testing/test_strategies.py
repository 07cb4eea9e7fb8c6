"""The strategies draw what they promise, and shrink to what a person can read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import find, given
from hypothesis import strategies as st

from dprmt import compose
from dprmt.accounting import DPSGD, Norms
from dprmt.spectra import detection_threshold
from dprmt.testing import dpsgd_runs, noisy_matrices, norm_laws, phases, spectra_of_rank, trade_offs


@given(noisy_matrices(batch=st.sampled_from([(), (2,)]), library="torch"))
def test_noisy_matrices_have_their_spikes(case):
    clean, noisy = case.clean, case.noisy
    assert isinstance(clean, torch.Tensor)
    assert clean.shape == noisy.shape == (*case.batch, *case.shape)
    values = torch.linalg.svdvals(clean) / detection_threshold(case.shape, case.sigma)
    spikes = sorted(case.spikes[: min(case.shape)], reverse=True)
    for own in values.reshape(-1, values.shape[-1])[:, : len(spikes)]:
        np.testing.assert_allclose(own, spikes, rtol=1e-9, atol=1e-9)
    assert torch.equal(case.noisy, noisy)


def test_the_noise_has_its_variance():
    case = find(noisy_matrices((200, 300), spikes=(1.0,), sigma=1e-3), lambda _: True)
    assert np.std(case.noisy - case.clean) == pytest.approx(1e-3, rel=0.02)
    assert repr(case) == "NoisyMatrix(shape=(200, 300), spikes=(1.0,), sigma=0.001)"


@given(spectra_of_rank(5, 2))
def test_spectra_are_decreasing_shares(shares):
    assert 2 <= len(shares) <= 5
    assert sum(shares) == pytest.approx(1.0)
    assert all(np.diff(shares) <= 0)
    assert min(shares) > 0


@given(norm_laws(), phases(2))
def test_laws_and_phases_are_accountable(norms, run):
    assert isinstance(norms, Norms)
    assert compose(run).epsilon(delta=1e-5).upper > 0


def test_runs_shrink_to_one_step():
    assert find(dpsgd_runs(), lambda _: True) == (DPSGD(1.0, 0.1), 1)


@given(trade_offs())
def test_trade_offs_are_convex_decreasing_and_below_chance(f):
    alpha = np.linspace(0, 1, 101)
    beta = f(alpha)
    assert np.all(np.diff(beta) <= 1e-12)
    assert np.all(np.diff(beta, 2) >= -1e-12)
    assert np.all((beta >= 0) & (beta <= 1 - alpha + 1e-12))
