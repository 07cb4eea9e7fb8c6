"""``dprmt report``: theory against measurement, on one page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from dprmt import __version__
from dprmt._files import strict_json
from dprmt._validation import ParameterError
from dprmt.cli._changes import add_changes, recipe_changes
from dprmt.cli._options import Commands, Option, add_command_with, count, name_of, read_options
from dprmt.cli._records import of_record

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

    from dprmt.report import Progress, Report, RunReport, Section, Table


_SIZES = (
    Option("--steps", count(), "how many of its steps are run (10)", default=None, metavar="N"),
    Option("--seeds", count(), "runs, for bands around Improvement (1)", default=1, metavar="N"),
)
_FROM_JSON = of_record("dprmt report", "asked")
_ASKED = ("recipe", "run_folder", "set", "steps", "seeds")
_LEFT_OUT = "left out where --from-json is given"
_EXAMPLES = """\
examples:
  dprmt report --out report
  dprmt report --out report --recipe minilm-docstrings --json
  dprmt report --out report --recipe smollm2-docstrings --steps 3 --seeds 3
  dprmt report --out page --run runs/sst2
"""


def add_command(commands: Commands) -> None:
    """The command, its options and its help."""
    parser = add_command_with(commands, "report", (*_SIZES, _FROM_JSON), run_report, _EXAMPLES)
    parser.add_argument(
        "--out", required=True, metavar="DIR", type=name_of("a folder"), help="folder for index.html and numbers.json"
    )
    parser.add_argument(
        "--run",
        dest="run_folder",  # `run` is what carries the command out
        metavar="DIR",
        type=name_of("a run folder"),
        help="a run of dprmt train: what it says of itself, from released values alone, in place of all else",
    )
    parser.add_argument(
        "--recipe",
        metavar="RECIPE",
        type=name_of("a recipe"),
        help="a recipe (name or .toml) whose first steps are run instead of the report's own",
    )

    add_changes(parser)


def run_report(namespace: argparse.Namespace) -> None:
    """Write the page, and print its sentences."""
    from rich.console import Console

    from dprmt.report import write_report

    console = Console()
    _take_record(namespace)
    if namespace.run_folder is not None:
        _of_a_run(console, namespace)
        return
    with _progress(console, quiet=namespace.json) as progress:
        report = write_report(
            namespace.out,
            namespace.recipe,
            changes=recipe_changes(namespace.set),
            **read_options(namespace, _SIZES),
            progress=progress,
        )
    if namespace.json:
        _print_json(report, namespace)
    else:
        _print(console, report)


def _take_record(namespace: argparse.Namespace) -> None:
    """What a record was asked, as if it were asked here."""
    record = read_options(namespace, (_FROM_JSON,))[_FROM_JSON.dest]
    if record is None:
        return
    for name in _ASKED:
        if getattr(namespace, name):
            raise ParameterError(name.removesuffix("_folder"), getattr(namespace, name), _LEFT_OUT)
    asked = dict(record["asked"])
    for name in _ASKED:
        value = asked.get(name)
        setattr(namespace, name, str(value) if isinstance(value, int) else value)
    namespace.set = namespace.set or []


def _of_a_run(console: Console, namespace: argparse.Namespace) -> None:
    from dprmt.report import write_run_report

    for name, given in (("recipe", namespace.recipe), ("set", namespace.set or None), ("steps", namespace.steps)):
        if given is not None:
            raise ParameterError(name, given, "left out with --run: a run has its own")
    report = write_run_report(namespace.out, namespace.run_folder)
    if namespace.json:
        _print_json(report, namespace)
        return
    _print_sections(console, report.sections)
    console.print(f"page and numbers: {report.page}, {report.numbers}", soft_wrap=True, highlight=False)


def _print_json(report: Report | RunReport, namespace: argparse.Namespace) -> None:
    sections = [{"title": section.title, "sentences": list(section.sentences)} for section in report.sections]
    asked = {name: getattr(namespace, name) for name in _ASKED}
    written = {"page": str(report.page), "numbers": str(report.numbers), "sections": sections}
    document = {"version": __version__, "asked": asked, **written}
    sys.stdout.write(strict_json(document) + "\n")


def _print_sections(console: Console, sections: Sequence[Section]) -> None:
    for section in sections:
        console.print(f"[bold]{section.title}[/bold]", soft_wrap=True)
        for sentence in section.sentences:
            console.print(sentence, soft_wrap=True, highlight=False, markup=False)


def _print(console: Console, report: Report) -> None:
    _print_sections(console, report.sections)
    console.print(_table(report.privacy))
    console.print(f"page and numbers: {report.page}, {report.numbers}", soft_wrap=True, highlight=False)


def _table(table: Table) -> RichTable:
    from rich.table import Table as RichTable

    printed = RichTable(caption=table.caption)
    for number, name in enumerate(table.header):
        printed.add_column(name, justify="right" if number else "left")
    for row in table.rows:
        printed.add_row(*row)
    return printed


@contextmanager
def _progress(console: Console, *, quiet: bool) -> Iterator[Progress]:
    """A progress bar on terminals, a line on stderr for every tenth where output is piped."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    from dprmt.report import Progress

    if quiet:
        yield Progress()
        return
    if not sys.stdout.isatty():
        lines = PlainProgress(sys.stderr)
        yield Progress(lines.start, lines.describe, lines.advance)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Bar(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield Progress(
            start=lambda total: bar.update(task, total=total),
            describe=lambda text: bar.update(task, description=text),
            advance=lambda amount: bar.advance(task, amount),
        )


class PlainProgress:
    """Progress as plain lines: what is done next, and every tenth of the whole."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._total, self._done, self._tenths = stream, 0.0, 0.0, 0

    def start(self, total: float) -> None:
        """Hear how much there is to do."""
        self._total = total

    def describe(self, text: str) -> None:
        """Say what is done next."""
        self._say(text)

    def advance(self, amount: float) -> None:
        """Count, and say every tenth."""
        self._done += amount
        tenths = int(10 * self._done / self._total + 1e-9) if self._total else 0
        if tenths > self._tenths:
            self._tenths = tenths
            self._say(f"{10 * tenths} %")

    def _say(self, text: str) -> None:
        self._stream.write(f"dprmt report: {text}\n")
        self._stream.flush()
