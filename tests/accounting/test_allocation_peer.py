"""Random allocation against the one package that accounts for it, PLD_accounting: its interval must hold ours."""

from __future__ import annotations

import json

import pytest

from benchmarks.allocation import PEER_SETTINGS, compare, with_peer

QUICK = [setting for setting in PEER_SETTINGS if setting[0] > 2.0 and setting[2] <= 4][:4]
"""The peer takes a second for these, and up to half a minute for others: ``python -m benchmarks.allocation --peer``."""


@pytest.mark.peer
@pytest.mark.parametrize("setting", QUICK)
def test_the_peer_s_interval_holds_ours(setting):
    """Both intervals are bounds of the same ε, and ours is the narrower."""
    pytest.importorskip("PLD_accounting")
    found = with_peer(setting)
    (low, high), (lower, upper) = found["peer"], found["ours"]
    assert low <= lower <= upper <= high
    assert upper - lower < high - low


def test_a_comparison_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    """One line a setting; a wrong interval is not counted as inside."""
    asked = []

    def fake(setting):
        asked.append(setting)
        ours = [0.1, 0.2] if len(asked) == 1 else [5.0, 5.1]
        return {"setting": setting, "peer": [0.0, 1.0], "ours": ours, "peer_seconds": 1.0, "seconds": 0.1}

    monkeypatch.setattr("benchmarks.allocation.with_peer", fake)
    for _ in range(2):
        compare(tmp_path / "peer.jsonl", 1)
    assert asked == list(PEER_SETTINGS[:2])
    assert len([json.loads(line) for line in (tmp_path / "peer.jsonl").read_text().splitlines()]) == 2
    assert "2 settings: the intervals meet in 1, ours lies inside theirs in 1" in capsys.readouterr().out
