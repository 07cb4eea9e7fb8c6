"""Distinguishing games against the real code: never above the claim, near it, and planted bugs are found."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from audits import games
from audits.blocks import COPIES, Stage, many_games
from audits.bounds import evidence
from audits.faults import planted, repaired
from audits.game import canary_lengths, noise_p_value
from audits.published import planted_in_telemetry, published_games
from audits.settings import all_games, parallel
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


@pytest.mark.slow
def test_a_clipped_canary_is_seen_as_well_as_claimed_and_no_better() -> None:
    verdict = judge(GAMES["exact, clipped"], 1000)
    assert not verdict.broken
    assert verdict.share > 0.6
    assert verdict.claimed_mu == 1.0
    assert 0.65 < verdict.mu <= 1.0


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name.startswith("hutchinson") else [])
        for name in GAMES
        if "person" in name or "replaced" in name
    ],
)
def test_persons_and_replaced_samples_are_seen_as_well_as_claimed_and_no_better(name: str) -> None:
    verdict = judge(GAMES[name], 120, deltas=(0.2,))
    assert not verdict.broken
    assert verdict.mu > 0.1


def test_persons_whose_rows_are_clipped_one_by_one_refute_the_claim() -> None:
    """Four rows of C each where one C is claimed."""
    sound = GAMES["exact, persons side by side, others"]

    def rows_as_samples(noise_multiplier: float) -> tuple[torch.nn.Module, object]:
        model, private = parallel("exact")(noise_multiplier)
        accumulate = private.accumulate
        private.accumulate = lambda *args, units, **options: accumulate(*args, **options)
        return model, private

    assert judge(replace(sound, factory=rows_as_samples), 150, deltas=(0.1,)).broken


def test_estimated_norms_give_the_lengths_that_the_accountant_takes() -> None:
    for game in (GAMES["hutchinson, public probes"], GAMES["hutchinson, public probes, two layers, others"]):
        assert game.law is not None
        assert game.law(canary_lengths(game, 300)) > 1e-3


@pytest.mark.slow
def test_one_who_knows_the_probes_sees_the_canary_and_no_better_than_claimed() -> None:
    verdict = judge(GAMES["hutchinson, public probes"], 150, deltas=(0.2,))
    assert not verdict.broken
    assert verdict.mu > 0.1


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param("realised batch size", marks=pytest.mark.slow),
        pytest.param("a layer without noise", marks=pytest.mark.slow),
        "the bias is not clipped",
    ],
)
def test_a_planted_bug_refutes_the_claim_and_without_it_nothing_does(bug: str) -> None:
    game = planted()[bug]
    assert judge(game, 300, deltas=(0.1,)).broken
    assert not judge(repaired(game, bug), 300, deltas=(0.1,)).broken


@pytest.mark.parametrize("name", ["exact, clipped", "ghost, clipped", "exact, DP-GRAPE", "hutchinson, secret probes"])
def test_many_games_at_once_are_each_seen_as_well_as_claimed_and_no_better(name: str) -> None:
    """A few hundred trials, of two steps: never above the claim, and not far below."""
    (game,) = (game for game in many_games(2) if game.name == name)
    verdict = judge(game, 720, deltas=(0.1, 0.2))
    assert not verdict.broken
    assert verdict.share > 0.25


def test_blocks_do_not_reach_each_other() -> None:
    """A canary of its own in every block: what one releases does not depend on the others."""
    for game in many_games(1):
        stage = Stage(game, 0.0)
        alone, together = stage.release([3], 0), Stage(game, 0.0).release(list(range(COPIES)), 0)
        assert torch.allclose(alone[3], together[3], atol=1e-6), game.name
        assert float(alone[3].norm()) > 0.3
        assert float(alone[[i for i in range(COPIES) if i != 3]].abs().max()) < 1e-6


def test_noise_in_every_micro_batch_shows_in_its_variance() -> None:
    game = planted()["noise in every micro-batch"]
    assert noise_p_value(game) < 1e-6
    assert noise_p_value(repaired(game, "noise in every micro-batch")) > 1e-3


@pytest.mark.slow
def test_every_game_and_every_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the stored results lack is played, on a copy of them: a test leaves the tree as it was."""
    monkeypatch.setattr(games, "RESULTS", Path(shutil.copy(games.RESULTS, tmp_path)))
    assert games.main(["--only", os.environ.get("GAMES", "")]) == 0


def test_one_probe_for_all_layers_shows_in_the_lengths() -> None:
    game = planted()["one probe for all layers"]
    assert game.law is not None
    assert game.law(canary_lengths(game, 300)) < 1e-3


@pytest.mark.slow
def test_what_metrics_say_is_seen_no_better_than_claimed() -> None:
    """A rule that is learnt from telemetry alone tells the canary, within the claim."""
    verdict = judge(published_games()[0], 240, deltas=(0.1, 0.2))
    assert not verdict.broken
    assert verdict.mu > 0.1


@pytest.mark.slow
def test_telemetry_of_sums_before_their_noise_is_found() -> None:
    (leak,) = planted_in_telemetry().values()
    assert judge(leak, 80, deltas=(0.1, 0.2)).broken
