"""``dprmt report``: theory against measurement, or a finished run, on one page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dprmt import __version__
from dprmt._files import strict_json
from dprmt._validation import ParameterError, require
from dprmt.cli._options import Commands, Option, add_command_with, count, named, read_options
from dprmt.cli._recipes import SET
from dprmt.cli._runs import of_record
from dprmt.cli._text_table import text_table

if TYPE_CHECKING:
    from dprmt.report import Report, RunReport

_FROM_JSON = of_record("dprmt report", "asked")
_RUN = "a run of dprmt train: what it released, instead of all else"
_OPTIONS = (
    named("--out", "DIR", "a folder", "folder for index.html and numbers.json", required=True),
    named("--run", "RUN", "a run folder", _RUN, dest="run_folder"),
    named("--recipe", "RECIPE", "a recipe", "a recipe (name or .toml) whose first steps are run; else the report's"),
    SET,
    Option("--steps", count(), "how many of its steps are run (10)", metavar="STEPS"),
    Option("--seeds", count(), "runs, for bands around Improvement (1)", default=1, metavar="SEEDS"),
    _FROM_JSON,
)
_ASKED = ("recipe", "run_folder", "set", "steps", "seeds")
_EXAMPLES = """\
examples:
  dprmt report --out report
  dprmt report --out report --recipe minilm-docstrings --json
  dprmt report --out report --recipe smollm2-docstrings --steps 3 --seeds 3
  dprmt report --out page --run runs/sst2
"""


def add_command(commands: Commands) -> None:
    """The command, its options and its help."""
    add_command_with(commands, "report", _OPTIONS, run_report, _EXAMPLES)


def run_report(namespace: argparse.Namespace) -> None:
    """Write the page, and print its sentences."""
    require("demo", "matplotlib", "jinja2")
    from dprmt.report import Progress, write_report, write_run_report

    _take_record(namespace)
    asked = {name: getattr(namespace, name) for name in _ASKED}
    values = read_options(namespace, tuple(option for option in _OPTIONS if option is not _FROM_JSON))
    out, folder = values.pop("out"), values.pop("run_folder")
    report: Report | RunReport
    if folder is not None:
        for name in ("recipe", "set", "steps"):
            if asked[name]:
                raise ParameterError(name, asked[name], "left out with --run: a run has its own")
        report = write_run_report(out, folder)
    else:
        lines = Progress() if namespace.json else ProgressLines().progress()
        report = write_report(out, changes=values.pop("set"), **values, progress=lines)
    if namespace.json:
        _print_json(report, asked)
    else:
        _print(report)


def _take_record(namespace: argparse.Namespace) -> None:
    """What a record was asked, as if it were asked here."""
    record = read_options(namespace, (_FROM_JSON,))[_FROM_JSON.dest]
    if record is None:
        return
    for name in _ASKED:
        if getattr(namespace, name):
            raise ParameterError(name, getattr(namespace, name), "left out where --from-json is given")
        value = record["asked"].get(name)
        setattr(namespace, name, str(value) if isinstance(value, int) else value)


def _print_json(report: Report | RunReport, asked: Mapping[str, Any]) -> None:
    sections = [{"title": section.title, "sentences": list(section.sentences)} for section in report.sections]
    written = {"page": str(report.page), "numbers": str(report.numbers), "sections": sections}
    sys.stdout.write(strict_json({"version": __version__, "asked": dict(asked), **written}) + "\n")


def _print(report: Report | RunReport) -> None:
    for section in report.sections:
        sys.stdout.writelines(f"{line}\n" for line in (section.title, *section.sentences))
    table = getattr(report, "privacy", None)
    if table is not None:
        sys.stdout.write(f"\n{text_table(table.header, table.rows)}{table.caption}\n")
    sys.stdout.write(f"page and numbers: {report.page}, {report.numbers}\n")


class ProgressLines:
    """Progress as lines on stderr: what is done next, and every tenth of the whole."""

    def __init__(self) -> None:
        self._total, self._done, self._tenths = 0.0, 0.0, 0

    def progress(self) -> Any:
        """What a report calls."""
        from dprmt.report import Progress

        return Progress(self._start, self._say, self._advance)

    def _start(self, total: float) -> None:
        self._total = total

    def _advance(self, amount: float) -> None:
        self._done += amount
        tenths = int(10 * self._done / self._total + 1e-9) if self._total else 0
        if tenths > self._tenths:
            self._tenths = tenths
            self._say(f"{10 * tenths} %")

    def _say(self, text: str) -> None:
        sys.stderr.write(f"dprmt report: {text}\n")
        sys.stderr.flush()
