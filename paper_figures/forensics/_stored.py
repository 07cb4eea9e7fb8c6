"""What the checks gave, kept beside the results, and the page that shows it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dprmt._files import strict_json, write_whole
from paper_figures._pieces import cpu_seconds
from paper_figures._published import published
from paper_figures._reproduction import RESULTS, Row, said
from paper_figures._rows import table_of, verdict_counts
from paper_figures.forensics._check import Check

FILE = RESULTS / "forensics.json"
PAGE = Path(__file__).parents[2] / "docs" / "reproduction_forensics.md"
HEAD = """---
type: results
audience: researchers
summary: Checks of papers against their own printed numbers, without training.
---
# Checks from printed numbers

Each check takes numbers that a paper prints, and computes others that the same paper prints too. No check trains a
model. Most printed numbers are consistent; a difference is listed with its reason, tested or open.
`python -m paper_figures page` writes this page from the results of `python -m paper_figures forensics`. *Ours* is
the computed number, with an interval where last digits of the inputs, or what is not printed, leave one open. *Margin*
is how far from the printed number it may lie: one unit of the last digit, unless the check says otherwise.
*Reproduced*: the interval lies within the margin; *compatible, wide*: it merely meets it; **differs**: it does not. A
reason is tested, by the command that is named, or or open.
"""
NUMBERLESS = """## Named without a number

- LoRA with randomized clipping: the notes have two differences in words, without the accuracies they are of.
- Probes of ±1: named as later work, without a number; the accountant here has Gaussian probes only.
- DP-SGD-JL: `k + 1` forward passes against one are stated, no measurement is printed; it is not implemented here.
- Parameter counts: in names of models alone (Qwen of 0.6, 1.7 and 4 billion, Llama of 1 and 3, OPT of 6.7); no printed
  number follows from them. Appendix J.2 of version 3 names a Qwen of 1.5 billion, and of Llama that of 1 billion alone,
  where Table 2 has five models and none of 1.5: which of its rows the settings of J.2 are of stays open.
- Theorem D.10 of DP-GRAPE: the notes have its name and no statement.
- Projectors that depend on the data: an experiment that the notes suggest, without a result. Here a projector is drawn
  without data, or computed from gradients that have their noise, `privatize-then-project`.
- Figures: curves without printed values; [the other page](reproduction.md) has them in their form.
"""


@dataclass(frozen=True)
class Kept:
    """One check."""

    rows: tuple[Row, ...]
    cpu_seconds: float


def run(checks: Iterable[Check]) -> dict[str, Kept]:
    """Compute, and keep beside what is there of others."""
    found = {}
    for check in checks:
        began = cpu_seconds()
        rows = tuple(check.rows(published))
        found[check.name] = Kept(rows, round(cpu_seconds() - began, 2))
    known = {
        name: {"rows": [said(row) for row in kept.rows], "cpu_seconds": kept.cpu_seconds}
        for name, kept in (stored() | found).items()
    }
    write_whole(FILE, strict_json(known, indent=1) + "\n")
    return found


def stored() -> dict[str, Kept]:
    """What was kept."""
    content = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return {
        name: Kept(tuple(Row(**row) for row in kept["rows"]), kept["cpu_seconds"]) for name, kept in content.items()
    }


def page(checks: Mapping[str, Check]) -> str:
    """The whole text; a check that was not run is an error."""
    kept = stored()
    lines = ["| check | verdicts | CPU s |", "|---|---|---|"]
    for name, check in checks.items():
        verdicts = verdict_counts(kept[name].rows)
        lines.append(f"| [{check.title}](#{name}) | {verdicts} | {kept[name].cpu_seconds:.0f} |")
    sections = [_section(check, kept[name]) for name, check in checks.items()]
    return "\n".join([HEAD, "\n".join(lines) + "\n", *sections, NUMBERLESS])


def _section(check: Check, kept: Kept) -> str:
    differs = any(row.verdict() == "differs" for row in kept.rows)
    if differs and not check.reasons:
        raise ValueError(f"{check.name}: a row differs, and no reason is given")
    lines = [f'<a id="{check.name}"></a>', f"## {check.title}", "", check.how, "", *table_of(kept.rows)]
    if differs:
        lines += ["", *(f"- {reason.sentence()}" for reason in check.reasons)]
    return "\n".join([*lines, "", f"`{check.command}`"]) + "\n"
