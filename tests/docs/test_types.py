"""A user's program type-checks against the package under mypy, and a wrong one does not."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("typed_program.py")
WRONG = """\
from dprmt.accounting import DPSGD
from dprmt.spectra import bulk_edge, denoise
bulk_edge(3.0, 1.0)
denoise("w", 1.0)
x: str = bulk_edge((3, 4), 1.0)
y: str = DPSGD(1.0, 0.1).epsilon(steps=3, delta=1e-5).upper
"""
WRONG_LINES = [3, 4, 5, 6]


def mypy_of(path: Path) -> tuple[str, int]:
    api = pytest.importorskip("mypy.api")
    out, _, status = api.run(["--strict", "--ignore-missing-imports", "--follow-imports=silent", str(path)])
    return out, status


def test_a_users_program_type_checks_under_mypy_and_runs() -> None:
    out, status = mypy_of(PROGRAM)
    assert status == 0, out
    runpy.run_path(str(PROGRAM))


def test_wrong_types_are_seen_by_mypy(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    out, status = mypy_of(wrong)
    assert status == 1
    assert [f"wrong.py:{line}: error" in out for line in WRONG_LINES] == [True] * len(WRONG_LINES), out
