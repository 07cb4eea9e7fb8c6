"""The report on privacy: what randomized clipping costs in a realistic run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dprmt.accounting import DPSGD, Hutchinson, HutchPlusPlus, Norms, PrivacyBounds, ZeroOut, calibrate
from dprmt.report._page import Picture, Section, Table
from dprmt.report._words import relative


@dataclass(frozen=True)
class Run:
    """A fine-tuning run: the setting of the table."""

    name: str = "SST-2 (67,349 samples), expected batch 2,000, 400 steps"
    noise_multiplier: float = 1.0
    sample_rate: float = 2000 / 67349
    steps: int = 400
    delta: float = 1e-5
    probes: tuple[int, ...] = (16, 32, 64, 128)
    curve_steps: tuple[int, ...] = (10, 25, 50, 100, 150, 200, 300, 400, 500, 600, 800)
    curve_probes: int = 32


_HEADINGS = {
    "published": "public probes, published analysis",
    "tight": "public probes, tight",
    "tight, secret probes": "secret probes, tight",
    "Hutch++, secret probes": "Hutch++ of as many products, secret",
}


def _norms(label: str, products: int) -> Norms:
    # A sketch of a quarter, whose columns take two products each, is near the best split.
    if label == "Hutch++, secret probes":
        return HutchPlusPlus(products - 2 * (products // 4), products // 4, secret=True)
    if label == "published":
        return Hutchinson(products, secret=False, analysis="envelope")
    return Hutchinson(products, secret=label == "tight, secret probes")


@dataclass(frozen=True)
class Row:
    """One line of the table: ε at the run's noise, and the noise for the exact mechanism's ε, per analysis."""

    probes: int | None
    epsilon: dict[str, PrivacyBounds]
    extra_noise: dict[str, float]


def work(run: Run) -> int:
    """Count the calls of ``advance`` by the two functions below."""
    return 1 + 2 * len(run.probes) * len(_HEADINGS) + (1 + len(_HEADINGS)) * len(run.curve_steps)


def privacy_rows(run: Run, advance: Callable[[], None] = lambda: None) -> list[Row]:
    """Return the table's lines: exact norms first, then one per number of probes."""
    exact = DPSGD(run.noise_multiplier, run.sample_rate).epsilon(steps=run.steps, delta=run.delta)
    advance()
    rows = [Row(None, {"exact": exact}, {})]
    for probes in run.probes:
        epsilon, extra = {}, {}
        for label in _HEADINGS:
            mechanism = DPSGD(run.noise_multiplier, run.sample_rate, _norms(label, probes))
            epsilon[label] = mechanism.epsilon(steps=run.steps, delta=run.delta)
            advance()
            found = calibrate(mechanism, steps=run.steps, target_epsilon=exact.upper, delta=run.delta)
            extra[label] = found.noise_multiplier / run.noise_multiplier - 1.0
            advance()
        rows.append(Row(probes, epsilon, extra))
    return rows


def privacy_curves(run: Run, advance: Callable[[], None] = lambda: None) -> dict[str, list[PrivacyBounds]]:
    """Return ε along the run for exact norms and each analysis."""
    mechanisms = {"exact norms": DPSGD(run.noise_multiplier, run.sample_rate)}
    names = {
        "published": "probes, envelope (published)",
        "tight": "probes, tight",
        "tight, secret probes": "probes, tight, secret probes",
        "Hutch++, secret probes": "products of Hutch++, secret probes",
    }
    for label, name in names.items():
        norms = _norms(label, run.curve_probes)
        mechanisms[f"{run.curve_probes} {name}"] = DPSGD(run.noise_multiplier, run.sample_rate, norms)
    curves: dict[str, list[PrivacyBounds]] = {}
    for name, chosen in mechanisms.items():
        curves[name] = []
        for steps in run.curve_steps:
            curves[name].append(chosen.epsilon(steps=steps, delta=run.delta))
            advance()
    return curves


def privacy_table(run: Run, rows: list[Row]) -> Table:
    """Format the rows as a table: certified upper bounds, and their excess over exact norms."""
    exact = rows[0].epsilon["exact"].upper
    cells = [["exact norms", *[_three_decimals(exact)] * len(_HEADINGS)]]
    for row in rows[1:]:
        values = [
            f"{_three_decimals(row.epsilon[label].upper)} ({100 * (row.epsilon[label].upper / exact - 1):+.1f} %)"
            for label in _HEADINGS
        ]
        cells.append([f"{row.probes} probes", *values])
    caption = f"{_setting(run)} ε: certified upper bound; in brackets, how far it is above that of exact norms."
    return Table(caption, ["clipping", *(f"ε, {_HEADINGS[label]}" for label in _HEADINGS)], cells)


def noise_table(rows: list[Row]) -> Table:
    """Tabulate the noise that makes up for random norms."""
    cells = [
        [f"{row.probes} probes", *(f"+{100 * row.extra_noise[label]:.1f} %" for label in _HEADINGS)] for row in rows[1:]
    ]
    exact = _three_decimals(rows[0].epsilon["exact"].upper)
    caption = f"How much larger σ has to be for the ε = {exact} of exact norms. Same setting."
    return Table(caption, ["clipping", *(f"σ, {_HEADINGS[label]}" for label in _HEADINGS)], cells)


SPEEDUPS = (0.05, 0.1, 0.2, 0.3)


def savings(run: Run) -> list[tuple[float, int, PrivacyBounds]]:
    """Return the speed-up, the remaining steps, rounded up, and their ε with exact norms."""
    mechanism = DPSGD(run.noise_multiplier, run.sample_rate)
    steps = [math.ceil(run.steps * (1 - speedup)) for speedup in SPEEDUPS]
    return list(zip(SPEEDUPS, steps, (mechanism.epsilon(steps=count, delta=run.delta) for count in steps), strict=True))


def savings_table(run: Run, rows: list[Row]) -> Table:
    """Tabulate the ε saved by a method that needs fewer steps at the same noise."""
    exact = rows[0].epsilon["exact"]
    cells = [
        [
            f"{100 * speedup:.0f} %",
            str(steps),
            _three_decimals(spent.upper),
            f"{_floored(exact.lower - spent.upper)} to {_three_decimals(exact.upper - spent.lower)}",
        ]
        for speedup, steps, spent in savings(run)
    ]
    caption = (
        f"Δε of a speed-up: a method that reaches in (1 - s)T steps what another reaches in T = {run.steps}, exact"
        " norms. Same setting."
    )
    return Table(caption, ["speed-up s", "steps", "ε", "Δε, between"], cells)


def _setting(run: Run) -> str:
    return f"{run.name}; σ = {run.noise_multiplier:g}, δ = {run.delta:g}; {ZeroOut.kind} neighbours."


def privacy_section(run: Run, rows: list[Row], curves: dict[str, list[PrivacyBounds]]) -> Section:
    """Show table, picture and sentence."""
    from dprmt.plots import plot_epsilon_against_steps

    def draw(ax: Any) -> None:
        plot_epsilon_against_steps(run.curve_steps, curves, delta=run.delta, ax=ax)

    return Section(
        title="What randomized clipping costs",
        sentences=[privacy_sentence(rows)],
        tables=[privacy_table(run, rows), noise_table(rows), savings_table(run, rows)],
        pictures=[
            Picture(draw, "Certified ε against the number of steps, one curve per analysis of randomized clipping")
        ],
        numbers={
            "setting": {"noise_multiplier": run.noise_multiplier, "sample_rate": run.sample_rate, "delta": run.delta}
            | {"steps": run.steps, "neighbours": ZeroOut.kind},
            "neighbours": ZeroOut.kind,
            "rows": [
                {
                    "probes": row.probes,
                    "epsilon": {label: _bounds(bounds) for label, bounds in row.epsilon.items()},
                    "extra_noise": row.extra_noise,
                }
                for row in rows
            ],
            "curve_steps": list(run.curve_steps),
            "curves": {label: [_bounds(bounds) for bounds in curve] for label, curve in curves.items()},
        },
    )


def privacy_sentence(rows: list[Row]) -> str:
    """Describe the table in words."""
    exact = rows[0].epsilon["exact"].upper
    row = rows[-1] if len(rows) < 3 else rows[2]
    over = {label: row.epsilon[label].upper / exact - 1 for label in _HEADINGS}
    published, tight, secret, sketched = (_added(over[label]) for label in _HEADINGS)
    prices = [over[label] for label in _HEADINGS]
    if not (prices[0] >= prices[1] > prices[2] > prices[3] > 0):
        return (
            f"Unexpected order: with {row.probes} probes the published analysis adds {published} to the ε of exact"
            f" norms, the tight one {tight}, secret probes for every sample {secret}, and Hutch++ of as many products"
            f" {sketched}."
        )
    return (
        f"With {row.probes} probes the published analysis adds {published} to the ε = {_three_decimals(exact)} of exact"
        f" norms and the tight one {tight}; secret probes for every sample bring this down to {secret},"
        f" {relative(prices[2] / prices[0], 0)} of the published price, and Hutch++ of as many products to {sketched}."
    )


def _added(price: float) -> str:
    return f"{relative(price)} as much again" if price > 1 else relative(price)


def _floored(lower: float) -> str:
    return f"{math.floor(1000 * lower) / 1000:.3f}"


def _three_decimals(upper: float) -> str:
    """Return an upper bound printed so that it still is one."""
    return f"{math.ceil(1000 * upper) / 1000:.3f}" if math.isfinite(upper) else "none"


def _bounds(bounds: PrivacyBounds) -> dict[str, float]:
    return {"lower": bounds.lower, "estimate": bounds.estimate, "upper": bounds.upper}
