"""``dprmt tradeoff``."""

from __future__ import annotations

import argparse
import csv
import io

import numpy as np

from dprmt import __version__
from dprmt.accounting import ExactNorms, Poisson, TradeOff, clt_mu
from dprmt.cli._answers import print_answer
from dprmt.cli._options import Commands, Option, add_command_with, check_picture_name, count, name_of
from dprmt.cli._run_options import RUN, Run, read_run
from dprmt.cli._summaries import MEANING
from dprmt.cli._terminal import waiting
from dprmt.statements import relation_label, round_down, round_up

_POINTS = Option(
    "--points", count(low=2, high=100_001), "number of false positive rates (default 101)", default=101, metavar="N"
)
_OPTIONS = (*RUN, _POINTS)
_EXAMPLES = """\
examples:
  dprmt tradeoff --noise-multiplier 1 --sample-rate 0.03 --steps 400 > curve.csv
  dprmt tradeoff --noise-multiplier 1 --sample-rate 0.03 --steps 400 --probes 32 --public-probes --plot curve.png
"""


def add_command(commands: Commands) -> None:
    """The command, its options and its help."""
    parser = add_command_with(commands, "tradeoff", _OPTIONS, run_tradeoff, f"{MEANING}\n{_EXAMPLES}")
    parser.add_argument("--plot", metavar="FILE", type=name_of("a file"), help="write a picture (png, pdf or svg)")


def run_tradeoff(namespace: argparse.Namespace) -> None:
    """The curve, at rates that are denser where it bends: near both ends."""
    run, values = read_run(namespace, (_POINTS,))
    if namespace.plot is not None:
        check_picture_name("dprmt tradeoff", namespace.plot)
    alpha = (1.0 - np.cos(np.linspace(0.0, np.pi, values["points"]))) / 2.0
    with waiting("composing"):
        band = run.composition().trade_off(alpha)
    if namespace.plot is not None:
        _draw(namespace.plot, band, run)
    columns = {"alpha": band.alpha, "lower": band.lower, "estimate": band.estimate, "upper": band.upper}
    curve = {name: column.tolist() for name, column in columns.items()}
    document = {"version": __version__, "points": len(alpha), **curve, **run.document()}
    lines = [f"wrote {namespace.plot}"] if namespace.plot is not None else _csv(columns, run)
    print_answer(namespace, document, lines)


def _draw(place: str, band: TradeOff, run: Run) -> None:
    from dprmt.plots import plot_trade_off, save_picture

    mu, ((first, steps), *more) = None, run.phases
    if not more and isinstance(first.norms, ExactNorms) and first.sampling == Poisson(first.sampling.rate):
        mu = clt_mu(first.joint_noise_multiplier, first.sampling.rate, steps)
    save_picture(place, lambda ax: plot_trade_off({run.label(): band}, gaussian_mu=mu, ax=ax))


def _csv(columns: dict[str, np.ndarray], run: Run) -> list[str]:
    """Every line says whose privacy it is about, as lines of several curves may come into one table."""
    relation = relation_label(run.composition().neighbours)
    outward = {"lower": lambda end: round_down(end, 9), "upper": lambda end: round_up(end, 9)}
    shown = [[outward.get(name, "{:.9g}".format)(end) for end in column] for name, column in columns.items()]
    rows = [[*row, relation] for row in zip(*shown, strict=True)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[*columns, "neighbours"], *rows])
    return text.getvalue().splitlines()
