"""What the verifier's page says of our own answers, held to the stored runs."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
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


def test_what_is_given_up_has_many_probes() -> None:
    some = [row for row in ROWS if word(row) == "given up"]
    assert {row["kind"] for row in some} == {"public probes", "secret probes"}
    public = sum(row["kind"] == "public probes" for row in some)
    said = f"{len(some)} runs with estimated norms, {public} public and {len(some) - public} secret"
    assert f"{said}, all of them with {min(map(probes, some))} probes or more" in PAGE


def test_what_is_not_settled_is_as_near_as_the_page_says() -> None:
    near = [gap for gap, _ in gaps("replace-one", "groups", "compositions", "exact norms")]
    assert len(near) == 27
    assert np.median(near) <= 2.2e-4
    assert 3.4e-3 < max(near) <= 3.5e-3
    public = gaps("public probes")
    far = [row for gap, row in public if gap > 1e-2]
    assert (len(public), len(far)) == (16, 7)
    assert max(map(probes, far)) == 6
    secret = gaps("secret probes")
    assert len(secret) == 17
    assert sum(gap <= 0.03 for gap, _ in secret) == 8
    assert [gap for gap, _ in secret if 0.03 < gap < 1] == [pytest.approx(0.054, abs=5e-4)]
    assert {probes(row) for gap, row in secret if gap == math.inf} == {7, 78, 111, 247}
