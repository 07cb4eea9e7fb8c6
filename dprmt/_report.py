"""``dprmt report``: what randomized clipping costs in a realistic run, as a table and pictures."""

from __future__ import annotations

import argparse
import io
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from dprmt._options import Parser, UsageError
from dprmt._pictures import save_picture
from dprmt._report_spectrum import report_spectrum
from dprmt.accounting import DPSGD, PrivacyBounds, RandomizedClipping, calibrate_noise_multiplier


@dataclass(frozen=True)
class Run:
    """A fine-tuning run: the setting of the report."""

    name: str = "SST-2 (67,349 examples), expected batch 2,000, 400 steps"
    noise_multiplier: float = 1.0
    sample_rate: float = 2000 / 67349
    steps: int = 400
    delta: float = 1e-5
    probes: tuple[int, ...] = (16, 32, 64, 128)
    curve_steps: tuple[int, ...] = (10, 25, 50, 100, 150, 200, 300, 400, 500, 600, 800)
    curve_probes: int = 32


_ANALYSES = {
    "published": {"analysis": "envelope", "probe_sharing": "batch"},
    "tight": {"analysis": "tight", "probe_sharing": "batch"},
    "tight, secret probes": {"analysis": "tight", "probe_sharing": "sample"},
}


@dataclass(frozen=True)
class Row:
    """One line of the table: ε at the run's noise, and the noise for the exact mechanism's ε, per analysis."""

    probes: int | None
    epsilon: dict[str, PrivacyBounds]
    extra_noise: dict[str, float]


def add_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Declare ``dprmt report``."""
    summary = "what randomized clipping costs: a table, and pictures in a folder"
    parser = commands.add_parser("report", help=summary, description=summary, allow_abbrev=False)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the pictures and the table")
    parser.set_defaults(run=run_report)


def run_report(namespace: argparse.Namespace) -> None:
    """``dprmt report``: compute, print, draw."""
    out = _writable_folder(namespace.out)
    run = Run()
    console = Console()
    with _progress(console, _work(run)) as advance:
        rows = privacy_rows(run, advance)
        curves = privacy_curves(run, advance)
    table = privacy_table(run, rows)
    console.print(table)
    text = io.StringIO()
    Console(file=text, width=100).print(table)
    (out / "privacy.txt").write_text(text.getvalue(), encoding="utf-8")
    draw_privacy(out / "epsilon_against_steps.png", run, curves)
    console.print(report_spectrum(out / "spectrum.png"), soft_wrap=True, highlight=False)
    names = "epsilon_against_steps.png", "spectrum.png", "privacy.txt"
    console.print("pictures and table: " + ", ".join(f"{out}/{name}" for name in names), soft_wrap=True)


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


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[], None]]:
    """A progress bar on stderr-free terminals; silent where output is not a terminal."""
    with Progress(console=console, transient=True, disable=not sys.stdout.isatty()) as bar:
        task = bar.add_task("accounting", total=total)
        yield lambda: bar.advance(task)


def _work(run: Run) -> int:
    return 1 + 2 * len(run.probes) * len(_ANALYSES) + (1 + len(_ANALYSES)) * len(run.curve_steps)


def privacy_rows(run: Run, advance: Callable[[], None] = lambda: None) -> list[Row]:
    """The table's lines: exact norms first, then one per number of probes.

    Returns
    -------
    list of Row
        In the order of ``run.probes``.
    """
    exact = DPSGD(run.noise_multiplier, run.sample_rate).epsilon(run.steps, run.delta)
    advance()
    rows = [Row(None, {"exact": exact}, {})]
    for probes in run.probes:
        epsilon, extra = {}, {}
        for label, options in _ANALYSES.items():
            mechanism = RandomizedClipping(run.noise_multiplier, run.sample_rate, probes, **options)  # type: ignore[arg-type]
            epsilon[label] = mechanism.epsilon(run.steps, run.delta)
            advance()
            sigma = calibrate_noise_multiplier(
                exact.upper,
                run.delta,
                run.sample_rate,
                run.steps,
                probes,
                **options,  # type: ignore[arg-type]
            )
            extra[label] = sigma / run.noise_multiplier - 1.0
            advance()
        rows.append(Row(probes, epsilon, extra))
    return rows


def privacy_table(run: Run, rows: list[Row]) -> Table:
    """The rows as a table: certified upper bounds, and the extra noise that makes up for random norms.

    Returns
    -------
    rich.table.Table
        For printing.
    """
    exact = _three_decimals(rows[0].epsilon["exact"].upper)
    table = Table(
        title=f"{run.name}; σ = {run.noise_multiplier:g}, δ = {run.delta:g}",
        caption=f"ε: certified upper bound; in brackets, extra noise for the ε = {exact} of exact norms",
    )
    table.add_column("clipping")
    for label in _ANALYSES:
        table.add_column(f"ε, {label}", justify="right")
    table.add_row("exact norms", *[f"{exact}         "] * len(_ANALYSES))
    for row in rows[1:]:
        cells = [
            f"{_three_decimals(row.epsilon[label].upper)}  (+{100 * row.extra_noise[label]:.1f} %)"
            for label in _ANALYSES
        ]
        table.add_row(f"{row.probes} probes", *cells)
    return table


def _three_decimals(upper: float) -> str:
    """An upper bound printed so that it still is one."""
    return f"{math.ceil(1000 * upper) / 1000:.3f}" if math.isfinite(upper) else "none"


def privacy_curves(run: Run, advance: Callable[[], None] = lambda: None) -> dict[str, list[PrivacyBounds]]:
    """ε along the run for exact norms and each analysis.

    Returns
    -------
    dict
        Label to one bound per entry of ``run.curve_steps``.
    """
    mechanisms = {"exact norms": DPSGD(run.noise_multiplier, run.sample_rate)}
    names = {"published": "envelope (published)", "tight": "tight", "tight, secret probes": "tight, secret probes"}
    for label, options in _ANALYSES.items():
        mechanism = RandomizedClipping(run.noise_multiplier, run.sample_rate, run.curve_probes, **options)  # type: ignore[arg-type]
        mechanisms[f"{run.curve_probes} probes, {names[label]}"] = mechanism  # type: ignore[assignment]
    curves: dict[str, list[PrivacyBounds]] = {}
    for name, chosen in mechanisms.items():
        curves[name] = []
        for steps in run.curve_steps:
            curves[name].append(chosen.epsilon(steps, run.delta))
            advance()
    return curves


def draw_privacy(path: Path, run: Run, curves: dict[str, list[PrivacyBounds]]) -> None:
    """The curves as a picture."""
    from dprmt.plots import plot_epsilon_against_steps

    def draw(ax: object) -> None:
        drawn = plot_epsilon_against_steps(run.curve_steps, curves, delta=run.delta, ax=ax)  # type: ignore[arg-type]
        drawn.set_title(f"{run.name}\nσ = {run.noise_multiplier:g}", fontsize="medium")

    save_picture(path, draw)
