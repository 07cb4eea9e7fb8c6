"""Distinguishing games against the real code: never above the claim, near it, and planted bugs are found."""

from __future__ import annotations

import os
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from audits import device, games, kills, mixing, mutations, page
from audits.blocks import COPIES, Stage, many_games
from audits.bounds import evidence
from audits.faults import planted, repaired
from audits.game import canary_lengths, noise_p_value
from audits.published import planted_in_telemetry, published_games
from audits.settings import all_games, parallel
from audits.shards import planted_in_shards, sharded_games
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


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name.startswith("hutchinson") else [])
        for name in GAMES
        if "person" in name or "replaced" in name or name == "hutchinson, public probes"
    ],
)
def test_persons_and_replaced_samples_are_seen_as_well_as_claimed_and_no_better(name: str) -> None:
    verdict = judge(GAMES[name], 120, deltas=(0.2,))
    assert not verdict.broken
    assert verdict.mu > 0.1


@pytest.mark.slow
def test_a_clipped_canary_is_seen_as_well_as_claimed_and_no_better() -> None:
    verdict = judge(GAMES["exact, clipped"], 1000)
    assert not verdict.broken
    assert (verdict.share > 0.6, verdict.claimed_mu) == (True, 1.0)
    assert 0.65 < verdict.mu <= 1.0


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


TEXT = page.PAGE.read_text(encoding="utf-8")


def test_the_table_of_mixing_is_what_trying_it_gives() -> None:
    """Every code is refused, and would move the clipped sum by more than C; numbers up to rounding."""
    found = mixing.mixing()
    assert all(finding.moved > 1 for finding in found.values())
    assert all(finding.micro_batch is not None for finding in found.values())
    rows = [line.split(" | ") for line in page.marked(TEXT, "mixing").splitlines()[2:]]
    now = [line.split(" | ") for line in mixing.table(found).splitlines()[2:]]
    for row, expected in zip(rows, now, strict=True):
        assert (row[0], *row[2:]) == (expected[0], *expected[2:])
        assert float(row[1].split()[0]) == pytest.approx(float(expected[1].split()[0]), rel=0.1)


@pytest.mark.parametrize("code", mixing.right_codes(), ids=lambda code: code.what)
def test_what_does_not_mix_is_taken(code: mixing.Code) -> None:
    assert mixing.taken(code)


@pytest.mark.parametrize("name", ["games", "bugs", "kills"])
def test_the_other_tables_are_as_stored(name: str) -> None:
    assert page.marked(TEXT, name) == page.parts()[name]()


@pytest.mark.slow
def test_noise_and_games_are_as_they_should_be_on_a_cpu(tmp_path) -> None:
    assert device.main(["--device", "cpu", "--trials", "1000", "--out", str(tmp_path / "found.json")]) == 0


@pytest.mark.parametrize("generator", ["torch", "secure"])
def test_noise_of_the_right_size_is_taken_and_of_another_refused(generator: str) -> None:
    """One part in a hundred more or less is seen."""
    assert device.noise_law("cpu", generator, torch.float32).fine
    for sigma in (1.98, 2.02):
        assert not device.noise_law("cpu", generator, torch.float32, sigma=sigma).fine


@pytest.fixture(scope="module")
def everywhere() -> list[kills.Point]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside idle threads
        return kills.occasions()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_killed_at_points_of_all_kinds_a_run_has_charged_what_it_made(everywhere: list[kills.Point]) -> None:
    kinds = {point.kind: point for point in everywhere if point.step > 1}
    assert set(kinds) == {"open", "fsync", "rename", "remove", "mkdir", "rmdir", "half a line", "gradient"}
    assert {point.step for point in everywhere} >= set(range(1, kills.STEPS + 1))
    for kind in ("fsync", "half a line"):
        outcome = kills.tried(kinds[kind], "kill -9")
        assert outcome.sound
        assert 0 < outcome.used <= outcome.charged < outcome.charged_at_the_end + 1
    noise = next(point for point in everywhere if point.file == "after the noise" and point.step == 3)
    assert (lambda o: (o.charged, o.used, o.sound))(kills.tried(noise, "kill -9")) == (3, 3, True)
    assert kills.tried(kinds["open"], "disk full").sound


def test_points_are_spread_over_kinds_files_and_steps(everywhere: list[kills.Point]) -> None:
    chosen = kills.spread(everywhere, 60)
    assert len(chosen) == 60 == len(set(chosen))
    assert {(point.kind, point.file) for point in chosen} == {(point.kind, point.file) for point in everywhere}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_two_owners_and_a_clock_that_runs_backwards() -> None:
    assert kills.two_owners()
    assert kills.clock_set_back()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_step_that_is_charged_after_its_gradient_would_be_found(
    everywhere: list[kills.Point], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dprmt.training.private_run._ledger import PrivacyLedger

    def charge(ledger: PrivacyLedger, attempt: int, step: int, *rest: Any) -> None:
        if step != 3:
            before(ledger, attempt, step, *rest)

    before = PrivacyLedger.charge
    monkeypatch.setattr(PrivacyLedger, "charge", charge)
    noise = next(point for point in everywhere if point.file == "after the noise" and point.step == 3)
    assert not kills.tried(noise, "kill -9").sound


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_sixty_kills_and_twenty_full_disks() -> None:
    assert kills.main([]) == 0


BUGS = mutations.read_list()


def test_every_planted_bug_has_its_place() -> None:
    assert len({bug["name"] for bug in BUGS}) == len(BUGS)
    for bug in BUGS:
        source = mutations.place_of(bug).read_text(encoding="utf-8")
        assert compile(mutations.mutated(bug, source), bug["file"], "exec")
        assert all((mutations.ROOT / test.split("::")[0]).exists() for test in bug["tests"] if test.startswith("tests"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_bug_is_seen_by_its_tests() -> None:
    assert mutations.main(["--area", os.environ.get("AREA", "")]) == 0


SHARDED = {game.game.name: game for game in sharded_games()}


@pytest.mark.parametrize("name", ["ghost, clipped"])
def test_canaries_of_two_processes_are_seen_as_well_as_claimed_and_no_better(name: str) -> None:
    verdict = judge(SHARDED[name], 480, deltas=(0.1, 0.2))
    assert not verdict.broken
    assert verdict.share > 0.25


@pytest.mark.parametrize("bug", planted_in_shards())
def test_what_only_several_processes_can_do_wrong_refutes_the_claim(bug: str) -> None:
    """A sample that both add, under two names; noise as where processes share out every entry's variance."""
    assert judge(planted_in_shards()[bug], 900, deltas=(0.1, 0.2)).broken


@pytest.mark.slow
def test_what_metrics_say_is_seen_no_better_than_claimed() -> None:
    """A rule that is learnt from telemetry alone tells the canary, within the claim; of sums without noise, beyond."""
    verdict = judge(published_games()[0], 240, deltas=(0.1, 0.2))
    assert not verdict.broken
    assert verdict.mu > 0.1
    (leak,) = planted_in_telemetry().values()
    assert judge(leak, 80, deltas=(0.1, 0.2)).broken
