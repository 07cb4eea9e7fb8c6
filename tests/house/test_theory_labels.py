"""Code cites theorems by label: each is on a page, and each that a page proves is used somewhere."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LABEL = r"[A-Z]\d+[a-z]?"
CITED = re.compile(rf"\(({LABEL})(?:[,;][^()]{{0,40}})?\)")
PROVED = [
    re.compile(rf"\*\*\(({LABEL})\)\*\*"),
    re.compile(rf"\\text\{{\(({LABEL})\)\}}"),
    re.compile(rf"^\*\*({LABEL})\. ", re.MULTILINE),
    re.compile(rf"^#+ \(({LABEL})\)", re.MULTILINE),
    re.compile(rf"   \(({LABEL})\)$", re.MULTILINE),
]
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "theory").glob("*.md")}


def cited(*folders: str) -> dict[str, str]:
    """Labels in Python files, with one that cites each."""
    found = {}
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            found |= dict.fromkeys(CITED.findall(path.read_text(encoding="utf-8")), path.name)
    return found


def proved(page: str) -> set[str]:
    return {label for form in PROVED for label in form.findall(PAGES[page])}


def test_every_label_that_is_cited_is_on_a_page() -> None:
    known = set().union(*map(proved, PAGES))
    found = cited("dprmt", "verify/dprmt_verify", "audits", "benchmarks", "paper_figures")
    assert len(found) > 60
    assert {label: file for label, file in found.items() if label not in known} == {}


def test_every_theorem_about_neighbours_is_proved_and_used() -> None:
    """The library itself cites each, and the page gives each a proof, or says that it is a definition."""
    labels, code = proved("neighbours"), cited("dprmt")
    assert labels == {f"N{number}" for number in range(15)}
    assert labels - code.keys() == set()
    for label in labels - {"N0"}:
        place = PAGES["neighbours"].index(f"\n**({label})**") + 1
        after = re.split(r"\n\*\*\(N|\n## ", PAGES["neighbours"][place:])[0]
        assert "*Proof.*" in after or "Theorem 3.3" in after, label
