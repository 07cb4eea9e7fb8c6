"""The tables of ``docs/theory/optimizers_under_noise.md`` and its picture, of what is stored; nothing is trained.

Usage: ``python -m paper_figures study under-noise``
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dprmt._files import read_lines, write_whole
from paper_figures._pieces import raw_file
from paper_figures._published import published
from paper_figures._rates import half_power_grid, lowest
from paper_figures._reproduction import RESULTS, Scale
from paper_figures._tuner import LABELS
from paper_figures.heavy_tail import Curve, load_results
from paper_figures.items.barcode import EXTENTS, TUNED_ON, rate_of
from paper_figures.long_runs._options import study_parser
from paper_figures.long_runs.effective_step import draw, sweeps
from paper_figures.long_runs.next_token import RANGES

DOCS = Path(__file__).parents[2] / "docs"
PAGE, PICTURE = DOCS / "theory" / "optimizers_under_noise.md", DOCS / "images" / "heavy_tail_effective_step.png"
SIZES = {"small": 1600, "paper": 17_000}
"""Images of the sets with barcodes."""
HEAD_SEEDS = (0, 1)
"""Of the study of next tokens; the first chooses the rates."""

Table = list[list[str]]


def small_instance() -> Table:
    """Every optimizer at its best effective step."""
    rows = [["", "best h", "loss", "classes of 128", "of 32", "of 8"]]
    for name, found in sweeps(stored_curves("effective-step")).items():
        losses = found.losses[:, found.best]
        right = [100 * found.ends("accuracy", group)[:, found.best].mean() for group in (0, 2, 4)]
        loss = f"{losses.mean():.3f} ± {losses.std(ddof=1):.3f}"
        rows.append([LABELS[name], f"{found.steps[found.best]:.2f}", loss, *(f"{value:.1f} %" for value in right)])
    return rows


def paper_instance() -> Table:
    """Means of two seeds beside the printed numbers, in the order of effective steps."""
    rows = [["", "η, stability", "h", "loss of classes of 8", "accuracy of 1,024", "of 128", "of 8"]]
    curves = stored_curves("heavy-tail")
    for name in ("gd", "adam", "gdm", "adambc"):
        runs = [curve for curve in curves if curve.trial.optimizer == name]
        theirs = printed(name)
        cells = [f"{_mean(runs, 'loss', 8):.2f} \\| {theirs[0]:g}"]
        for size, value in zip((1024, 128, 8), theirs[1:], strict=True):
            cells.append(f"{100 * _mean(runs, 'accuracy', size):.1f} \\| {value:g} %")
        rows.append([LABELS[name], _rate(runs[0]), f"{runs[0].trial.effective_step:.2f}", *cells])
    return rows


def printed(optimizer: str) -> list[float]:
    """Loss of the classes of 8, accuracies of 1,024, 128 and 8: the last from DP-AdamBC's and its lead."""
    paper = published("heavy-tail")
    quantities = ("loss, classes of 8", "accuracy, class of 1024", "accuracy, classes of 128")
    best = paper.number("adambc", quantity="accuracy, classes of 8")
    lead = 0.0
    if optimizer != "adambc":
        lead = paper.number(optimizer, quantity="lead of DP-AdamBC in accuracy, classes of 8")
    return [*(paper.number(optimizer, quantity=quantity) for quantity in quantities), best - lead]


def longer_steps() -> Table:
    """On seed 0, the first row from the runs of the table before."""
    first = [c for c in stored_curves("heavy-tail") if (c.trial.optimizer, c.trial.seed) == ("adambc", 0)]
    rows = [["", "η, stability", "h", "loss", "loss of classes of 8", "accuracy of 1,024", "of 128", "of 8"]]
    chosen = first + stored_curves("heavy-tail-longer-steps")
    for curve in sorted(chosen, key=lambda one: one.trial.effective_step):
        cells = [f"{curve.loss[-1]:.2f}", f"{_mean([curve], 'loss', 8):.2f}"]
        cells += [f"{100 * _mean([curve], 'accuracy', size):.1f} %" for size in (1024, 128, 8)]
        rows.append([LABELS[curve.trial.optimizer], _rate(curve), f"{curve.trial.effective_step:.2f}", *cells])
    return rows


def less_noise() -> Table:
    """σ = 5: means of two seeds."""
    rows = [["", "η, stability", "h", "loss", "of 1,024", "of 128", "of 8", "loss of classes of 8"]]
    curves = stored_curves("heavy-tail-sigma5")
    for name in LABELS:
        runs = [curve for curve in curves if curve.trial.optimizer == name]
        cells = [f"{np.mean([run.loss[-1] for run in runs]):.2f}"]
        cells += [f"{100 * _mean(runs, 'accuracy', size):.1f} %" for size in (1024, 128, 8)]
        cells.append(f"{_mean(runs, 'loss', 8):.2f}")
        rows.append([LABELS[name], _rate(runs[0]), f"{runs[0].trial.effective_step:.1f}", *cells])
    return rows


def digits() -> Table:
    """Barcodes on scikit-learn's digits."""
    return _barcodes("small", ("classes of 100", "of 20", "of 5"))


def mnist() -> Table:
    """Barcodes on MNIST's test images."""
    return _barcodes("paper", ("classes of 800", "of 150", "of 40", "of 10"))


def next_token() -> Table:
    """The head on E2E, at the rate with the lowest loss on the first seed."""
    rows = [["", "η", "loss", "100 times or more", "10 to 99", "0 to 9"]]
    runs = pieces("next-token", "study")
    for name, label in LABELS.items():
        tried = {rate: runs[_name(name, rate, 0)]["loss"][-1] for rate in half_power_grid(*RANGES[name])}
        chosen = lowest(tried)
        rows.append([label, f"{chosen:g}", *_with_spread([runs[_name(name, chosen, seed)] for seed in HEAD_SEEDS])])
    return rows


def _barcodes(scale: Scale, groups: Sequence[str]) -> Table:
    rows = [["", "h", "loss", *groups]]
    for name in LABELS:
        step, runs = tuned_barcodes(name, scale)
        rows.append([LABELS[name], f"{step:g}", *_with_spread(runs)])
    return rows


def _with_spread(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    # Loss and accuracies by group at the end.
    ends = np.array([[run["loss"][-1], *(100 * right for right in run["group_accuracy"][-1])] for run in runs])
    loss, *right = zip(ends.mean(0), ends.std(0, ddof=1), strict=True)
    return [f"{loss[0]:.2f} ± {loss[1]:.2f}", *(f"{mean:.1f} ± {spread:.1f} %" for mean, spread in right)]


def _name(optimizer: str, rate: float, seed: int) -> str:
    return f"{optimizer}, lr = {rate:g}, seed {seed}"


def tuned_barcodes(optimizer: str, scale: Scale, step: float | None = None) -> tuple[float, list[Mapping[str, Any]]]:
    """The step with the lowest loss on the seed of the choice, or the one that is given, and its runs by seed."""
    extent, runs = EXTENTS[scale], pieces("barcode", scale)

    def run(at: float, seed: int) -> Mapping[str, Any]:
        rate = rate_of(optimizer, at, extent.sample_rate * SIZES[scale])
        found: Mapping[str, Any] = runs[_name(optimizer, rate, seed)]
        return found

    chosen = step or min(extent.grid, key=lambda at: run(at, TUNED_ON)["loss"][-1])
    return chosen, [run(chosen, seed) for seed in extent.seeds]


TABLES: dict[str, Callable[[], Table]] = {
    "small instance": small_instance,
    "the paper's instance": paper_instance,
    "longer steps": longer_steps,
    "less noise": less_noise,
    "digits": digits,
    "next token": next_token,
    "MNIST": mnist,
}
"""By the name in the page's comments."""


def stored_curves(name: str) -> list[Curve]:
    """Of a file of `heavy_tail.save_results`."""
    return load_results(RESULTS / "raw" / f"{name}.json")


def pieces(item: str, scale: str) -> dict[str, Any]:
    """Runs of an item or a study by name."""
    return {line["name"]: line["value"] for line in read_lines(raw_file(RESULTS, item, scale)) if "value" in line}


def _mean(runs: Sequence[Curve], kind: str, size: int) -> float:
    # At the end, of the classes of that size.
    group = runs[0].class_sizes.index(size)
    return float(np.mean([getattr(run, f"group_{kind}")[-1][group] for run in runs]))


def _rate(run: Curve) -> str:
    floor = f", γ' = {run.trial.stability:g} s²" if run.trial.optimizer == "adambc" else ""
    return f"{run.trial.learning_rate:g}{floor}"


def with_tables(page: str) -> str:
    """The page with the tables of what is stored, each between its two comments.

    Raises
    ------
    ValueError
        If a table's place is missing.
    """
    for name, table in TABLES.items():
        begin, end = f"<!-- table: {name} -->\n", f"<!-- end: {name} -->"
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"page: must have {begin.strip()} and {end}")
        head, *rows = table()
        lines = [_line(head), "|---" * len(head) + "|", *map(_line, rows)]
        page = before + begin + "".join(f"{line}\n" for line in lines) + end + after
    return page


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def main(arguments: Sequence[str]) -> None:
    study_parser("under-noise", __doc__).parse_args(arguments)
    write_whole(PAGE, with_tables(PAGE.read_text(encoding="utf-8")))
    draw(str(PICTURE), sweeps(stored_curves("effective-step")))
    print(f"wrote {PAGE.name} and {PICTURE.name}")
