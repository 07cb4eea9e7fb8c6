"""What the verifier's page says of our own answers, held to the stored runs."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flint")

from benchmarks.verified import stored, word

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "theory" / "verifier.md").read_text(encoding="utf-8")
ROWS = stored()


def probes(row: dict[str, Any]) -> int:
    return int(row["statement"]["mechanism"]["norms"]["probes"])


def gaps(*kinds: str) -> list[tuple[float, dict[str, Any]]]:
    """Of every end that is not settled, how far the proved bound lies from the claim, relative to it."""
    found = []
    for row in ROWS:
        for end in row.get("ends", []) if row["kind"] in kinds else []:
            if end["word"] == "not settled":
                claim = float(re.search(r"[<>]= (\S+)", end["claim"]).group(1))  # type: ignore[union-attr]
                bound = end["at_most"] if "<=" in end["claim"] else end["at_least"]
                found.append((math.inf if not bound or bound > 1e6 else abs(bound / claim - 1), row))
    return found


def test_all_that_was_open_was_asked_again() -> None:
    assert len(ROWS) == 300
    assert all(row.get("again") for row in ROWS if word(row) != "proved")


def test_all_but_estimated_norms_is_proved_and_nothing_is_given_up() -> None:
    open_ = [row for row in ROWS if word(row) != "proved"]
    assert {word(row) for row in open_} == {"not settled"}
    public = sum(row["kind"] == "public probes" for row in open_)
    assert {row["kind"] for row in open_} == {"public probes", "secret probes"}
    assert f"{len(open_)} runs, {public} with public probes and {len(open_) - public} with secret ones" in PAGE
    assert gaps("replace-one", "groups", "compositions", "exact norms") == []


def test_what_is_not_settled_is_as_near_as_the_page_says() -> None:
    found = gaps("public probes", "secret probes")
    far = [(gap, row) for gap, row in found if gap > 1.3e-2]
    assert f"{len(found)} ends, {len(found) - len(far)} of them within 1.3 % of what is proved" in PAGE
    assert f"the other {len(far)} are of runs with {min(probes(row) for _, row in far)} to 7 probes" in PAGE
    assert max(probes(row) for _, row in far) == 7
