"""``docs/reproduction.md``: every item with our numbers beside the published ones, made from the stored results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from paper_figures._complete import kept, sentence
from paper_figures._published import Published, names, published
from paper_figures._reproduction import Row, Stored, load
from paper_figures.items import ITEMS

PAGE = Path(__file__).parents[1] / "docs" / "reproduction.md"
HEAD = """# Published figures and tables, ours beside theirs

Written by `python -m paper_figures page` from `paper_figures/results` and `paper_figures/published.toml`; not edited by
hand. *Agrees* is decided by the tolerance or statement that each script names, before it runs. Scale: *small* takes
minutes of one core, and its data and weights install from a package index or come as files; *long* is the same with all
of its steps and seeds; *paper* is what the paper has.
"""
COMPLETE = (
    "One complete run from nothing, `python -m paper_figures run --scale small --data FOLDER --results NEW`, in one"
    " go, on one thread, with the network off: "
)
STORED_RUNS = (
    "Runs that studies had stored, or that were made before their time was recorded, are not in the processor times."
)


def write_page(path: Path) -> None:
    path.write_text(page(), encoding="utf-8")


def page() -> str:
    """The whole text."""
    stored = {name: load(name) for name in ITEMS}
    parts = [HEAD, _overview(stored)]
    parts += [_section(name, result) for name, result in stored.items() if result is not None]
    missing = [name for name in names() if stored.get(name) is None]
    if missing:
        parts.append("## Not run\n\n" + "\n".join(f"- {_sentence(published(name))}" for name in missing) + "\n")
    return "\n".join(parts)


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
    lines += ["", *_table(found.rows, result.scale), "", found.differs]
    lines += ["", f"Why it differs: {found.why}"] if result.disagrees else []
    made = [f"`{result.command}`", f"{result.wall_seconds:.0f} s wall, {result.cpu_seconds:.0f} s CPU"]
    made += [text for text in (found.model, found.data) if text] + ([f"{found.seeds} seeds"] if found.seeds > 1 else [])
    lines += ["", "; ".join(made) + "."]
    lines += ["", *(f"![{ITEMS[name].title}](../paper_figures/results/{picture})" for picture in found.pictures)]
    return "\n".join(lines).rstrip() + "\n"


def _table(rows: Sequence[Row], scale: str) -> list[str]:
    lines = ["| scale | quantity | ours | published | agrees |", "|---|---|---|---|---|"]
    for row in rows:
        agrees = {True: "yes", False: "**no**", None: "–"}[row.agrees()]
        printed = row.claim or ("–" if row.published is None else f"{row.published:g}")
        ours = "none" if math.isnan(row.ours) else f"{row.ours:.4g}{' ' + row.unit if row.unit else ''}"
        lines.append(f"| {scale} | {row.label.replace('|', '∣')} | {ours} | {printed} | {agrees} |")
    return lines


def _sentence(item: Published) -> str:
    numbers = len(item.rows)
    printed = f"{numbers} row{'s' * (numbers > 1)} of numbers" if numbers else item.note or "no number"
    return f"`{item.name}`: {item.document}, {item.place}: {printed}."
