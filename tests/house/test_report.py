"""The demo's table and picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprmt import _report
from dprmt.accounting import DPSGD
from dprmt.cli import main

SMALL = _report.Run(name="small", sample_rate=0.05, steps=20, probes=(16,), curve_steps=(5, 20))


def test_rows_hold_certified_numbers_in_the_expected_order() -> None:
    exact, row = _report.privacy_rows(SMALL)
    upper = {label: bounds.upper for label, bounds in row.epsilon.items()}
    assert exact.epsilon["exact"] == DPSGD(1.0, 0.05).epsilon(20, 1e-5)
    assert upper["published"] >= upper["tight"] > upper["tight, secret probes"] > exact.epsilon["exact"].upper
    assert row.extra_noise["published"] > row.extra_noise["tight, secret probes"] > 0


def test_report_writes_table_and_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_report, "Run", lambda: SMALL)
    assert main(["report", "--out", str(tmp_path / "new")]) == 0
    assert (tmp_path / "new" / "epsilon_against_steps.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "16 probes" in printed
    assert "16 probes" in (tmp_path / "new" / "privacy.txt").read_text(encoding="utf-8")


def test_unusable_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    assert main(["report", "--out", str(occupied)]) == 2
    assert "--out" in capsys.readouterr().err
