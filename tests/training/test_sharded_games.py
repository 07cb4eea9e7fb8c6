"""Distinguishing games against a model that two processes share: within the claim, near it, and bugs are found."""

from __future__ import annotations

import pytest

from audits.shards import planted_in_shards, sharded_games
from audits.verdict import judge

GAMES = {game.game.name: game for game in sharded_games()}


@pytest.mark.parametrize("name", ["ghost, clipped"])
def test_canaries_of_two_processes_are_seen_as_well_as_claimed_and_no_better(name: str) -> None:
    verdict = judge(GAMES[name], 480, deltas=(0.1, 0.2))
    assert not verdict.broken
    assert verdict.share > 0.25


@pytest.mark.parametrize("bug", planted_in_shards())
def test_what_only_several_processes_can_do_wrong_refutes_the_claim(bug: str) -> None:
    """A sample that both add, under two names; noise as where processes share out every entry's variance."""
    assert judge(planted_in_shards()[bug], 900, deltas=(0.1, 0.2)).broken
