"""``dprmt report``: theory against measurement, or a finished run, on one page."""

from __future__ import annotations

import argparse
import sys

from dprmt import __version__
from dprmt._files import strict_json
from dprmt.cli._options import Commands, add_parser, count, leave_out, name_of
from dprmt.cli._recipes import add_set

_EXAMPLES = (
    "--out report",
    "--out report --recipe smollm2-docstrings --steps 3 --seeds 3",
    "--out page --run runs/sst2",
)


def add_command(commands: Commands) -> None:
    """The command, its options and its help."""
    parser = add_parser(commands, "report", run_report, _EXAMPLES, usage="--out DIR [options]")
    add, folder = parser.add_argument, name_of("a folder")
    run = "a run of dprmt train: what it released, instead of all else"
    recipe = "a recipe (name or .toml) whose first steps are run; else the report's"
    add("--out", metavar="DIR", type=folder, required=True, help="folder for index.html and numbers.json")
    add("--run", metavar="RUN", type=name_of("a run folder"), help=run)
    add("--recipe", metavar="RECIPE", type=name_of("a recipe"), help=recipe)
    add_set(parser)
    add("--steps", metavar="STEPS", type=count(), help="how many of its steps are run (10)")
    add("--seeds", metavar="SEEDS", type=count(), help="runs, for bands around Improvement (1)")


def run_report(namespace: argparse.Namespace) -> None:
    """Write the page, and print its sentences."""
    from dprmt.report import write_report, write_run_report

    if namespace.run is not None:
        leave_out(vars(namespace), ("recipe", "set", "steps", "seeds"), "--run is given: a run has its own")
        report = write_run_report(namespace.out, namespace.run)
    else:
        report = write_report(
            namespace.out,
            namespace.recipe,
            changes=dict(namespace.set),
            steps=namespace.steps,
            seeds=namespace.seeds or 1,
            say=lambda text: print(f"dprmt report: {text}", file=sys.stderr, flush=True),
        )
    if namespace.json:
        sections = [{"title": section.title, "sentences": list(section.sentences)} for section in report.sections]
        written = {"page": str(report.page), "numbers": str(report.numbers), "sections": sections}
        sys.stdout.write(strict_json({"version": __version__, **written}) + "\n")
        return
    for section in report.sections:
        sys.stdout.writelines(f"{line}\n" for line in (section.title, *section.sentences))
    sys.stdout.write(f"page and numbers: {report.page}, {report.numbers}\n")
