"""What importing a room may pull in."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "matplotlib", "opacus", "prv_accountant", "dp_accounting", "mpmath", "transformers")


def loaded_after(statement: str) -> set[str]:
    """Which heavy modules a fresh interpreter holds after a statement."""
    code = f"{statement}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("room", ["dprmt", "dprmt.accounting", "dprmt.spectra", "dprmt.cli"])
def test_light_rooms_import_nothing_heavy(room: str) -> None:
    assert loaded_after(f"import {room}") == set()


def test_the_check_sees_heavy_modules() -> None:
    assert loaded_after("import matplotlib") == {"matplotlib"}


def test_answers_need_nothing_heavy_either() -> None:
    statement = "from dprmt.accounting import RandomizedClipping as R; R(2.0, 0.1, 8).epsilon(3, 1e-5)"
    assert loaded_after(statement) == set()
