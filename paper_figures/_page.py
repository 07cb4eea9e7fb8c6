"""``docs/reproduction.md``: every item with our numbers beside the published ones, made from the stored results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from paper_figures import forensics
from paper_figures._complete import kept, sentence
from paper_figures._published import Published, names, published
from paper_figures._reproduction import Stored, load
from paper_figures._rows import table_of
from paper_figures._states import WORST, Count, State, counts, states, total
from paper_figures.items import ITEMS

PAGE = Path(__file__).parents[1] / "docs" / "reproduction.md"
OWN_PAGE = PAGE.with_name("reproduction_own.md")
OWN_HEAD = """---
type: results
audience: researchers
summary: Measurements of this project that repeat no paper.
---
# Measurements of no paper

These figures answer questions of this project: what estimated norms cost in ε, how denoisers behave over a grid of
signals, and what random allocation saves. They are not in the count of [published numbers](reproduction.md).
`python -m paper_figures page` writes this page.
"""
HEAD = """---
type: results
audience: researchers
summary: Numbers of five papers next to ours, with a verdict for each.
---
# Published figures and tables

We compared the numbers of five papers with ours. Most numbers that we could compare are reproduced, and most of these
follow from other printed numbers without a new training run. The first table counts them for each paper.

- **Formulas and tables of bounds** reproduce well. Differences are often explained by rounding or by a definition.
- **Accuracies** often differ, because our runs use smaller models or other data. Read their scale before you compare.
- **Claims of a gain** by denoising, projection or heavy-tail optimizers reproduce in part. Each has its interval.

About a quarter of the numbers need models, data or hardware that we do not have. Other pages have
[checks from printed numbers alone](reproduction_forensics.md) and [measurements of no paper](reproduction_own.md).
`python -m paper_figures page` writes this page from `paper_figures/results` and `paper_figures/published.toml`.
"""
COUNTED = """*Compared* are numbers that a row of this page or of the other one holds against another number, with a
margin and a verdict; *from print* are those of the other page alone, two hundred of them one table that two versions
print. A number's verdict is the worst of its rows. The rest needs what is not here, and says what, in
`paper_figures/published.toml`.
"""
VERDICTS = """A verdict takes an interval of ours, of 95 % where there are several seeds, and a margin that each
script names before it runs. *Reproduced*: the interval lies within the margin of theirs; *compatible, wide*: it merely
meets it; **differs**: it does not. Scale: *small* takes minutes of one core, and its data and weights install from a
package index or come as files; *long* is the same with all of its steps and seeds; *paper* is what the paper has.
"""
COMPLETE = (
    "Every item from nothing, `python -m paper_figures run --scale small --data FOLDER --results NEW`, on one thread,"
    " added up by `python -m paper_figures times --results NEW`: "
)
STORED_RUNS = (
    "Runs that studies had stored, or that were made before their time was recorded, are not in the processor times."
)


def write_page(path: Path) -> None:
    """All three pages, side by side."""
    path.write_text(page(), encoding="utf-8")
    path.with_name(OWN_PAGE.name).write_text(own_page(), encoding="utf-8")
    path.with_name(forensics.PAGE.name).write_text(forensics.page(forensics.CHECKS), encoding="utf-8")


def page() -> str:
    """The whole text."""
    stored = {name: load(name) for name in ITEMS}
    shown = {name: result for name, result in stored.items() if name in names()}
    parts = [HEAD, _counts(stored), VERDICTS, _overview(shown)]
    parts += [_section(name, result) for name, result in shown.items() if result is not None]
    missing = [name for name, result in shown.items() if result is None]
    if missing:
        parts.append("## Not run\n\n" + "\n".join(f"- {_sentence(published(name))}" for name in missing) + "\n")
    return "\n".join(parts)


def own_page() -> str:
    """What is of no paper, apart."""
    stored = {name: load(name) for name in ITEMS if name not in names()}
    parts = [OWN_HEAD, _overview(stored)]
    return "\n".join(parts + [_section(name, result) for name, result in stored.items() if result is not None])


def cell_states(stored: Mapping[str, Stored | None]) -> dict[str, State]:
    """What became of every printed number, by the stored results and what follows from print."""
    measured = [row for result in stored.values() if result is not None for row in result.found.rows]
    return states(measured, [row for kept in forensics.stored().values() for row in kept.rows])


def _counts(stored: Mapping[str, Stored | None]) -> str:
    counted = counts(cell_states(stored))
    lines = [
        "| document | numbers | settings | results | compared | measured here | from print | not computable here"
        " | reproduced | compatible, wide | differs |",
        "|" + "---|" * 11,
        *(_count_line(title, count) for title, count in counted.items()),
        _count_line("all", total(counted)),
    ]
    return "\n".join([*lines, "", COUNTED])


def _count_line(title: str, count: Count) -> str:
    numbers = (
        count.settings + count.results,
        count.settings,
        count.results,
        count.compared,
        count.measured,
        count.compared - count.measured,
        count.absent,
        *(count.verdicts.get(verdict, 0) for verdict in reversed(WORST)),
    )
    return f"| {title} | {' | '.join(map(str, numbers))} |"


def _overview(stored: dict[str, Stored | None]) -> str:
    took = kept()
    lines = ["| scale | item | state | CPU s | small scale, CPU s |", "|---|---|---|---|---|"]
    for name, result in stored.items():
        small = f"{took[name].cpu_seconds:.0f}" if name in took else "–"
        if result is None:
            lines.append(f"| – | {ITEMS[name].title} | not run | – | {small} |")
        else:
            link = f"[{ITEMS[name].title}](#{name})"
            lines.append(f"| {result.scale} | {link} | {result.state()} | {result.cpu_seconds:.0f} | {small} |")
    if took:
        lines += ["", f"{COMPLETE}{sentence(took)}. What has no small scale is in it at paper scale. {STORED_RUNS}"]
    return "\n".join(lines) + "\n"


def _section(name: str, result: Stored) -> str:
    found = result.found
    source = published(name) if name in names() else None
    lines = [f'<a id="{name}"></a>', f"## {ITEMS[name].title}", ""]
    lines.append(f"{source.document}: {source.place}." if source else "Of this package.")
    if result.found.missing:
        return "\n".join([*lines, "", f"Not run: needs {result.found.missing}.", ""])
    if source and source.note:
        lines[-1] += f" Note: {source.note}."
    lines += ["", *table_of(found.rows), "", found.differs]
    if result.disagrees and not found.reasons:
        raise ValueError(f"{name}: a row differs, and no reason is given")
    if result.disagrees:
        lines += ["", *(f"- {reason.sentence()}" for reason in found.reasons)]
    made = [
        f"Scale {result.scale}: `{result.command}`",
        f"{result.wall_seconds:.0f} s wall, {result.cpu_seconds:.0f} s CPU",
    ]
    made += [text for text in (found.model, found.data) if text] + ([f"{found.seeds} seeds"] if found.seeds > 1 else [])
    lines += ["", "; ".join(made) + "."]
    lines += ["", *(f"![{ITEMS[name].title}](../paper_figures/results/{picture})" for picture in found.pictures)]
    return "\n".join(lines).rstrip() + "\n"


def _sentence(item: Published) -> str:
    numbers = len(item.rows)
    printed = f"{numbers} row{'s' * (numbers > 1)} of numbers" if numbers else item.note or "no number"
    return f"`{item.name}`: {item.document}, {item.place}: {printed}."
