"""Killed or out of disk at chosen operations, a run has charged what it made; all: ``python -m audits kills``."""

from __future__ import annotations

import warnings

import pytest

from audits import kills


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
    from dprmt.training.private_run import PrivateRun

    charge = PrivateRun._charge
    monkeypatch.setattr(PrivateRun, "_charge", lambda self: charge(self) if self.steps_taken != 2 else None)
    noise = next(point for point in everywhere if point.file == "after the noise" and point.step == 3)
    assert not kills.tried(noise, "kill -9").sound


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_sixty_kills_and_twenty_full_disks() -> None:
    assert kills.main([]) == 0
