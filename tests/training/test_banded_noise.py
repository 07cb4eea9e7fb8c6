"""Noise that is correlated between steps: its law, its price, its groups of samples, and how it goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.linalg import toeplitz
from torch import nn
from torch.utils.data import TensorDataset

from dprmt import ParameterError
from dprmt.accounting import DPSGD, CyclicPoisson, Hutchinson, Poisson
from dprmt.training.denoising import Denoising
from dprmt.training.optimizers import DPAdamBC
from dprmt.training.private_run import AdaptiveClipping, BandedNoise, PrivateRun
from dprmt.training.private_run._step_options import CorrelatedNoise, _prefix_sums
from tests.training.test_private_run import ROWS, N, losses, network, new, train, weights

ENTRIES = 20_000
ZEROS = TensorDataset(torch.zeros(N, 200))


def strategy(coefficients: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
    return np.tril(toeplitz(np.concatenate([coefficients, np.zeros(steps)])[:steps]))


def prefix_error(coefficients: NDArray[np.float64], steps: int) -> float:
    """Root mean square, over t = 1, …, T, of the noise in the sum of t steps, in units of z's deviation."""
    return float(np.sqrt(np.arange(steps, 0.0, -1.0) @ _prefix_sums(coefficients, steps) ** 2 / steps))


def silent(**options: Any) -> PrivateRun:
    """A run on rows without a gradient: its parameters move by the noise alone."""
    return new(ZEROS, nn.Linear(200, 100, bias=False), **{"noise": BandedNoise(3), "steps": 7, **options})


def moves(private: PrivateRun, until: int = 7) -> NDArray[np.float64]:
    """Noise of each step in units of σC, shape (steps, entries)."""
    found = []
    for batch in private:
        before = weights(private.model)[0]
        private.step(lambda rows: private.model(rows[0]).sum(1), batch)
        found.append((before - weights(private.model)[0]).flatten().double().numpy() * 12 / 0.3)
        if private.steps_taken == until:
            break
    return np.array(found)


def furthest(found: NDArray[np.float64], law: NDArray[np.float64]) -> float:
    """Largest distance of two covariances, in standard deviations of the estimate."""
    spread = np.sqrt((np.outer(np.diag(law), np.diag(law)) + law**2) / ENTRIES)
    return float((np.abs(found - law) / spread).max())


# -------------------------------------------------------------------------------------------------------- coefficients


@pytest.mark.parametrize(("bands", "steps"), [(2, 1), (2, 40), (4, 3), (5, 60)])
def test_columns_have_norm_one_but_for_the_last_ones(bands: int, steps: int) -> None:
    lengths = np.linalg.norm(strategy(BandedNoise(bands).coefficients(steps), steps), axis=0)
    assert (lengths <= 1.0).all()
    inside = max(1, steps - bands + 1)
    assert lengths[:inside] == pytest.approx(1.0, abs=1e-12)
    assert (np.diff(lengths[inside - 1 :]) < 0).all()


def test_coefficients_have_the_least_error_of_all_columns_of_norm_one() -> None:
    """Against dense matrices, over a grid for two bands and around the answer for four."""
    ones = np.tri(40)

    def literal(c: NDArray[np.float64]) -> float:
        return float(np.linalg.norm(ones @ np.linalg.inv(strategy(c / np.linalg.norm(c), 40))) / np.sqrt(40))

    two, four = BandedNoise(2).coefficients(40), BandedNoise(4).coefficients(40)
    assert prefix_error(four, 40) == pytest.approx(literal(four), rel=1e-9)
    best = min((literal(np.array([1.0, x])), x) for x in np.linspace(0.0, 1.0, 501))
    assert literal(two) <= best[0]
    assert two[1] / two[0] == pytest.approx(best[1], abs=0.003)
    rng = np.random.default_rng(0)
    assert literal(four) < min(literal(four + 0.03 * rng.standard_normal(4)) for _ in range(50))
    assert literal(four) < literal(two) < literal(np.array([1.0])) == pytest.approx(np.sqrt(41 / 2))


@pytest.mark.parametrize(("bands", "steps", "share"), [(2, 23_440, 0.7077), (4, 2344, 0.5063), (64, 2344, 0.1590)])
def test_long_runs_reach_the_least_error(bands: int, steps: int, share: float) -> None:
    """Trials of the search overflow. The floor is 1/√b of independent noise: all c_j equal, in a run without end."""
    found = prefix_error(BandedNoise(bands).coefficients(steps), steps) / np.sqrt((steps + 1) / 2)
    assert 1 / np.sqrt(bands) < found < share


# ------------------------------------------------------------------------------------------------------------- its law


@pytest.mark.parametrize("secure", [False, True])
def test_the_noise_of_all_steps_has_the_covariance_of_the_strategy(secure: bool) -> None:
    found = moves(silent(secure=secure))
    inverse = np.linalg.inv(strategy(BandedNoise(3).coefficients(7), 7))
    covariance, wanted = found @ found.T / ENTRIES, inverse @ inverse.T
    assert furthest(covariance, wanted) < 5.5  # of 28 entries
    for wrong in (inverse.T @ inverse, np.linalg.inv(inverse @ inverse.T), np.eye(7)):
        assert furthest(covariance, wrong) > 10
    sums = np.cumsum(found, axis=0)
    assert furthest(sums @ sums.T / ENTRIES, np.tri(7) @ wanted @ np.tri(7).T) < 5.5
    errors = np.sqrt((sums**2).mean(1))
    assert np.sqrt((errors**2).mean()) == pytest.approx(prefix_error(BandedNoise(3).coefficients(7), 7), rel=0.02)
    assert errors[-1] < 0.85 * np.sqrt(7)  # of independent noise


def test_gradients_are_summed_as_ever() -> None:
    """With next to no noise, a run with and one without correlation release the same sum of the same batch."""
    runs = [new(noise=noise, noise_multiplier=1e-3, batch_size=20, steps=1) for noise in (None, BandedNoise(3))]
    sums = []
    for private in runs:
        private._draws.at = lambda _: list(range(10))  # type: ignore[method-assign]
        before = weights(private.model)
        private.step(losses(private), next(iter(private)))
        sums.append([a - b for a, b in zip(before, weights(private.model), strict=True)])
    for one, other in zip(*sums, strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=0)
        assert float(one.abs().max()) > 1e-3


# ----------------------------------------------------------------------------------------------- its price and samples


@pytest.mark.parametrize("secure", [False, True])
def test_groups_take_turns_and_samples_enter_at_the_rate_of_their_group(secure: bool) -> None:
    if secure:
        pytest.importorskip("cryptography")
    private = new(noise=BandedNoise(4), batch_size=3, steps=2000, secure=secure)
    counts = np.zeros(N)
    for number in range(2000):
        batch = private._draws.at(number)
        assert {position % 4 for position in batch} <= {number % 4}
        counts[batch] += 1
    rate = private.mechanism.sampling.step_rate
    assert 4 * 3 / N <= rate < 4 * 3 / N + 2.0**-23
    assert np.abs(counts / 500 - rate).max() < 5 * np.sqrt(rate * (1 - rate) / 500)
    assert counts.sum() / 2000 == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize("norms", ["exact", Hutchinson(64, secret=True)])
def test_epsilon_is_that_of_cyclic_sampling(norms: Any) -> None:
    private = new(noise=BandedNoise(4), norms=norms, batch_size=3, steps=6, noise_multiplier=2.0)
    train(private)
    mechanism = DPSGD(2.0, CyclicPoisson(private.mechanism.sample_rate, 4), private.mechanism.norms)
    assert private.mechanism == mechanism
    assert private.epsilon() == mechanism.epsilon(steps=6, delta=1e-5)
    uncorrelated = DPSGD(2.0, Poisson(private.mechanism.sample_rate), private.mechanism.norms)
    assert private.epsilon().lower > uncorrelated.epsilon(steps=6, delta=1e-5).upper
    assert "from one of 4 groups of samples in turn" in private.statement()
    assert "correlated: C⁻¹z" in private.statement()
    assert private.records["noise"] == {"kind": "banded", "bands": 4}


def test_a_target_is_met() -> None:
    private = new(noise=BandedNoise(2), noise_multiplier=None, target_epsilon=2.0, epochs=1, steps=None)
    assert 1.99 < private.mechanism.epsilon(steps=private.steps, delta=1e-5).upper <= 2.0


# ----------------------------------------------------------------------------------------------------- how it goes on


@pytest.mark.parametrize("is_lost", [True, False])
def test_noise_starts_anew_where_its_past_is_lost(is_lost: bool) -> None:
    """A column that went on in both stretches would be longer than 1: lost steps, and a state without its secret."""
    private, other = silent(), silent()
    before = moves(private, 3)
    state = private.state_dict(secret=is_lost)
    if is_lost:
        moves(private, 5)
        other = private
    other.load_state_dict(state)
    found = np.concatenate([before, moves(other, 5)])
    going_on = np.linalg.inv(strategy(BandedNoise(3).coefficients(7), 5))
    anew = going_on.copy()
    anew[3:, :3] = 0.0
    anew[3:, 3:] = going_on[:2, :2]
    assert furthest(found @ found.T / ENTRIES, anew @ anew.T) < 5.5
    assert furthest(found @ found.T / ENTRIES, going_on @ going_on.T) > 10


def test_a_failed_step_ends_a_stretch() -> None:
    noise, one = CorrelatedNoise(np.array([0.8, 0.6])), torch.ones(1)
    with noise.row(1):
        assert noise.following(0, one.clone()) == pytest.approx(1.25)
    with noise.row(2):
        assert noise.following(0, one.clone()) == pytest.approx((1 - 0.6 * 1.25) / 0.8)
    with pytest.raises(AttributeError), noise.row(3):
        noise.following(0, None)  # type: ignore[arg-type]
    for number in (4, 6):  # after an error, and after a gap
        with noise.row(number):
            assert noise.following(0, one.clone()) == pytest.approx(1.25)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"noise": 4}, "noise must be BandedNoise"),
        ({"batch_size": 21}, "batch_size must be at most 20, the size of one of 3 groups of 60 samples"),
        ({"sampling": "allocation"}, "sampling must be left out with BandedNoise"),
        ({"clipping_norm": AdaptiveClipping(noise_multiplier=1.0)}, "clipping_norm must be one"),
        ({"denoising": Denoising()}, "denoising must be"),
        ({"telemetry": True}, "telemetry must be"),
    ],
)
def test_what_assumes_independent_noise_raises(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ParameterError, match=match):
        new(**{"noise": BandedNoise(3), **options})
    if "noise" not in options:
        return
    with pytest.raises(ParameterError, match="bands"):
        BandedNoise(1)
    model = network()
    with pytest.raises(ParameterError, match="optimizer must be"):
        new(ROWS, model, DPAdamBC(model.parameters(), lr=0.1, floor=1e-6), noise=BandedNoise(3))
