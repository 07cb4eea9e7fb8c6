"""``dprmt report``: theory against measurement, on one page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table as RichTable

from dprmt.cli._options import Commands, UsageError

if TYPE_CHECKING:
    from dprmt.report import Progress, Report, Table


def add_command(commands: Commands) -> None:
    """Declare it."""
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
    """Write the page, and print its sentences."""
    if not namespace.out:  # would be the current folder
        raise UsageError("dprmt report: --out must be the name of a folder, got ''")
    from dprmt.report import write_report

    console = Console()
    with _progress(console) as progress:
        report = write_report(namespace.out, namespace.recipe, progress=progress)
    _print(console, report)


def _print(console: Console, report: Report) -> None:
    for section in report.sections:
        console.print(f"[bold]{section.title}[/bold]", soft_wrap=True)
        for sentence in section.sentences:
            console.print(sentence, soft_wrap=True, highlight=False, markup=False)
    console.print(_table(report.privacy))
    console.print(f"page and numbers: {report.page}, {report.numbers}", soft_wrap=True, highlight=False)


def _table(table: Table) -> RichTable:
    printed = RichTable(caption=table.caption)
    for number, name in enumerate(table.header):
        printed.add_column(name, justify="right" if number else "left")
    for row in table.rows:
        printed.add_row(*row)
    return printed


@contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    """A progress bar on terminals; silent where output is none."""
    from dprmt.report import Progress

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Bar(*columns, TimeElapsedColumn(), console=console, transient=True, disable=not sys.stdout.isatty()) as bar:
        task = bar.add_task("starting", total=None)
        yield Progress(
            start=lambda total: bar.update(task, total=total),
            describe=lambda text: bar.update(task, description=text),
            advance=lambda amount: bar.advance(task, amount),
        )
