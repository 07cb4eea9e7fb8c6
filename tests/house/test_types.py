"""A user's program type-checks against the package, and a wrong one does not."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "typed_program.py"


def mypy_of(path: Path) -> tuple[str, int]:
    api = pytest.importorskip("mypy.api")
    out, _, status = api.run(["--strict", "--ignore-missing-imports", "--follow-imports=silent", str(path)])
    return out, status


def test_a_users_program_type_checks_and_runs(tmp_path):
    out, status = mypy_of(PROGRAM)
    assert status == 0, out
    runpy.run_path(str(PROGRAM))


def test_wrong_types_are_seen(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from dprmt.spectra import bulk_edge, denoise\n"
        "bulk_edge(3.0, 1.0)\n"
        "denoise('w', 1.0)\n"
        "x: str = bulk_edge((3, 4), 1.0)\n"
    )
    out, status = mypy_of(wrong)
    assert status == 1
    assert [f"wrong.py:{line}: error" in out for line in (2, 3, 4)] == [True] * 3, out
