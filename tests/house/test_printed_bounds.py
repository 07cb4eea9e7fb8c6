"""No certified end is printed by a format that may round it inward: in docs, notebooks, examples and code."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
INWARD = re.compile(
    r"\{[^{}\n]*\b(?:upper|lower)(?:['\"]\])?(?:\[[^\]]*\])?(?: or [\w.]+)?\s*:[^{}\n=]*\}"  # an f-string of one end
    r"|(?<![\w.])round\([^()\n]*\.(?:upper|lower)(?:\[[^\]]*\])?\s*,"  # round to nearest
    r"|%\.\d+[fge][^\n]*%\s*\(?[^\n]*\.(?:upper|lower)\b"
)
PLACES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "docs").rglob("*.py")),
    *sorted((ROOT / "notebooks").glob("*.ipynb")),
    *(
        place
        for folder in ("dprmt", "benchmarks", "audits", "paper_figures")
        for place in (ROOT / folder).rglob("*.py")
    ),
]


def test_ends_are_printed_by_what_rounds_outward() -> None:
    texts = {place.relative_to(ROOT): place.read_text(encoding="utf-8") for place in PLACES}
    found = [f"{place}: {match.group(0)}" for place, text in texts.items() for match in INWARD.finditer(text)]
    assert not found, 'print bounds with f"{bounds:.3f}" or round_up:\n' + "\n".join(found)


def test_the_check_sees_what_rounds_inward_and_lets_bounds_pass() -> None:
    inward = (
        'print(f"ε <= {bounds.upper:.3f}")',
        """f"[{row['lower']:.6g}, {row['upper'] or math.inf:.6g}]\"""",
        'f"{a.epsilon(steps=3, delta=1e-5).lower:.3g}", f"{curve.upper[-1]:.2f}"',
        "round(bounds.upper, 3)",
        '"%.3f" % bounds.upper',
    )
    assert [line for line in inward if not INWARD.search(line)] == []
    assert not INWARD.search('f"ε <= {bounds:.3f}", bounds.upper, {"upper": bounds.upper}, round(x, 3)')
