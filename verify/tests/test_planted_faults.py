"""Faults planted in a copy of the verifier, one at a time: its own tests see each."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

VERIFY = Path(__file__).parents[1]
PARTS, EXACT, NORMS = ("test_parts.py",), ("test_exact_norms.py",), ("test_estimated_norms.py",)
ALLOCATION, SKETCH, STATEMENTS = ("test_allocation.py",), ("test_sketch.py",), ("test_statements.py",)

# What: file, what stands there once, what it becomes, the tests.
FAULTS = {
    "rounded down, not up": (
        "_balls.py",
        "max(-floor(-ball * arb(2) ** bits)",
        "max(floor(ball * arb(2) ** bits)",
        PARTS,
    ),
    "rounded up, not down": (
        "_balls.py",
        "max(floor(ball * arb(2) ** bits)",
        "max(1 + floor(ball * arb(2) ** bits)",
        PARTS,
    ),
    "products rounded down": ("_sums.py", "(mass >> self.bits) + up for", "(mass >> self.bits) for", PARTS),
    "clipped above and forgotten": ("_sums.py", "lost=self.lost + low + high", "lost=self.lost + low", PARTS),
    "halves exchanged": ("_sums.py", "(down, up), start =", "(up, down), start =", PARTS),
    "an odd power has a factor less": ("_sums.py", "if done % 2:", "if done % 2 and done < 3:", PARTS),
    "the first chord is missing": (
        "_ends.py",
        "zip(kept[1:], pairwise(slopes), strict=True)]",
        "zip(kept[1:], pairwise(slopes), strict=True)][1:]",
        PARTS,
    ),
    "the hull of the wrong side": (
        "_ends.py",
        "_slope(kept[-2], kept[-1]) > _slope",
        "_slope(kept[-2], kept[-1]) < _slope",
        PARTS,
    ),
    "the sum starts a number late": (
        "_ends.py",
        "one_floor((epsilon - origin) / mesh) + 1",
        "one_floor((epsilon - origin) / mesh) + 2",
        PARTS,
    ),
    "what is lost is not charged": ("_ends.py", "sum(masses, law.lost)", "sum(masses, 0 * law.lost)", EXACT),
    "directions exchanged": ("_table.py", 'if direction == "remove":', 'if direction == "add":', EXACT),
    "adding is as removing": ("_table.py", "1 - (1 - removed) / loss.exp()", "removed", EXACT),
    "T, not its root": ("_gaussians.py", "group * arb(steps).sqrt()", "group * arb(steps)", EXACT),
    "a sample less in a group": ("_gaussians.py", "for j in range(1, group + 1)]", "for j in range(1, group)]", EXACT),
    "one rate for another": ("further/_public.py", "kappa = 1 + (s - 1) / self._rate", "kappa = 1 + (s - 1)", NORMS),
    "spread to the right alone": (
        "further/_norm_ratio.py",
        "right = cell.mass * share.lower().max(ZERO)",
        "right = cell.mass",
        NORMS,
    ),
    "means are masses": ("further/_norm_ratio.py", "return below, below - first", "return below, below", NORMS),
    "no tangent": (
        "further/_secret.py",
        "if mu < turn:\n                total",
        "if mu < 99:\n                total",
        NORMS,
    ),
    "an epoch has a step more": ("further/_allocation.py", "self._steps - 1", "self._steps", ALLOCATION),
    "ratios are not divided by": (
        "further/_allocation.py",
        "floor(mass / (1 + at * self._mesh))",
        "floor(mass * ONE)",
        ALLOCATION,
    ),
    "the comparison's price is left out": ("further/_sketch.py", " / normal_above(a + missed)", "", SKETCH),
    "directions above θ cost nothing": ("further/_sketch.py", "sketch - solved + 1)", "sketch)", SKETCH),
    "a place in a sum is guessed": ("_balls.py", "if floor(ball) != floor(ball.upper()):", "if False:", PARTS),
    "levels may go back": ("_ends.py", "bool(more > 0) and ", "", PARTS),
    "columns that do not count are not rounded": (
        "further/_sketch.py",
        "length = 2 * sketch *",
        "length = 2 * min(sketch, LONGEST) *",
        SKETCH,
    ),
    "a phase's neighbours are not read": (
        "_statement.py",
        "(mechanism, run, document) if",
        "(mechanism,) if",
        STATEMENTS,
    ),
    "any word is true": ("_words.py", "if not isinstance(where.get(name, False), bool):", "if False:", STATEMENTS),
    "the last of two words is read": ("_statement.py", "if len(dict(pairs)) < len(pairs):", "if False:", STATEMENTS),
    "what is no word of a part is ignored": ("_words.py", "- _KEYS.get(kind", "& _KEYS.get(kind", STATEMENTS),
    "a direction is not read": ("_statement.py", 'if "direction" in document and', "if False and", STATEMENTS),
    "a card's own end is not read": ("further/_card.py", "if said is not None and", "if False and", STATEMENTS),
    "rare ratios are free": ("further/_secret.py", "self._lost = rate * lost *", "self._lost = 0 * lost *", NORMS),
    "δ compared the wrong way": (
        "_verdict.py",
        "run.below(way, epsilon) > delta",
        "run.below(way, epsilon) < delta",
        STATEMENTS,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_seen(name: str, tmp_path: Path) -> None:
    file, find, put, tests = FAULTS[name]
    shutil.copytree(VERIFY, tmp_path / "verify", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\npythonpath = verify\naddopts = --import-mode=importlib -m 'not slow'\nmarkers = slow\n"
    )
    path = tmp_path / "verify" / "dprmt_verify" / file
    source = path.read_text(encoding="utf-8")
    assert source.count(find) == 1
    path.write_text(source.replace(find, put), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    found = subprocess.run(
        [*command, *(f"verify/tests/{test}" for test in tests)],
        cwd=tmp_path,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert found.returncode == 1, found.stdout.decode()[-2000:]
