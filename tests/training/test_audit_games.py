"""Distinguishing games against the real code: never above the claim, near it, and planted bugs are found."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("peft")

from scipy import stats

from audits.bounds import evidence
from audits.faults import planted, repaired
from audits.game import canary_lengths
from audits.settings import all_games
from audits.verdict import judge

GAMES = {game.name: game for game in all_games(1)}


def test_bounds_hold_as_often_as_they_say_and_are_not_vacuous() -> None:
    """Of attacks on a mechanism with μ = 1, at most 1 % of bounds at 99 % are above the truth."""
    rng, above, sizes = np.random.default_rng(0), 0, []
    for _ in range(400):
        found = evidence(rng.standard_normal(500), 1 + rng.standard_normal(500), 0.5, 0.99)
        above += found.mu() > 1
        sizes.append(found.mu())
    assert stats.binomtest(above, 400, 0.01, alternative="greater").pvalue > 0.01
    assert np.mean(sizes) > 0.6
    # ε at δ = 0.1 of that mechanism: Φ(-ε + ½) - e^ε Φ(-ε - ½) = 0.1.
    far = evidence(rng.standard_normal(200_000), 1 + rng.standard_normal(200_000), 1.66, 0.99)
    truth = 1.158
    assert 0.9 * truth < far.epsilon(0.1) < truth


def test_a_clipped_canary_is_seen_as_well_as_claimed_and_no_better() -> None:
    verdict = judge(GAMES["exact, clipped"], 1000)
    assert not verdict.broken
    assert verdict.share > 0.6
    assert verdict.claimed_mu == 1.0
    assert 0.65 < verdict.mu <= 1.0


def test_estimated_norms_give_the_lengths_that_the_accountant_takes() -> None:
    for game in (GAMES["hutchinson, public probes"], GAMES["hutchinson, public probes, two layers, others"]):
        assert game.law is not None
        assert game.law(canary_lengths(game, 300)) > 1e-3
    # Scores of a few trials, with the twin that knows the probes: the canary is seen, and not better than claimed.
    verdict = judge(GAMES["hutchinson, public probes"], 150, deltas=(0.2,))
    assert not verdict.broken
    assert verdict.mu > 0.1


@pytest.mark.parametrize("bug", ["realised batch size", "a layer without noise", "the bias is not clipped"])
def test_a_planted_bug_refutes_the_claim_and_without_it_nothing_does(bug: str) -> None:
    game = planted()[bug]
    assert judge(game, 300, deltas=(0.1,)).broken
    assert not judge(repaired(game, bug), 300, deltas=(0.1,)).broken


def test_one_probe_for_all_layers_shows_in_the_lengths() -> None:
    game = planted()["one probe for all layers"]
    assert game.law is not None
    assert game.law(canary_lengths(game, 300)) < 1e-3
