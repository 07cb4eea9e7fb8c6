"""The report on privacy: what randomized clipping costs in a realistic run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dprmt.accounting import DPSGD, ExactNorms, Hutchinson, HutchPlusPlus, Norms, PrivacyBounds, ZeroOut, calibrate
from dprmt.report._page import Picture, Section, Table
from dprmt.report._words import per_cent

# Of each analysis: heading of the table, label of the curve, and the norms of so many products. A sketch of a quarter,
# whose columns take two products each, is near the best split.
_ANALYSES: dict[str, tuple[str, str, Callable[[int], Norms]]] = {
    "published": (
        "public probes, published analysis",
        "probes, envelope (published)",
        lambda products: Hutchinson(products, secret=False, analysis="envelope"),
    ),
    "tight": ("public probes, tight", "probes, tight", lambda products: Hutchinson(products, secret=False)),
    "tight, secret probes": (
        "secret probes, tight",
        "probes, tight, secret probes",
        lambda products: Hutchinson(products, secret=True),
    ),
    "Hutch++, secret probes": (
        "Hutch++ of as many products, secret",
        "products of Hutch++, secret probes",
        lambda products: HutchPlusPlus(products - 2 * (products // 4), products // 4, secret=True),
    ),
}
Say = Callable[[str], None]


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

    def mechanism(self, norms: Norms | None = None) -> DPSGD:
        """One step of it, with a norm method."""
        return DPSGD(self.noise_multiplier, self.sample_rate, norms or ExactNorms())

    def epsilon(self, steps: int, norms: Norms | None = None) -> PrivacyBounds:
        """ε of so many steps."""
        return self.mechanism(norms).epsilon(steps=steps, delta=self.delta)

    @property
    def setting(self) -> str:
        """The beginning of a caption."""
        return f"{self.name}; σ = {self.noise_multiplier:g}, δ = {self.delta:g}; {ZeroOut.kind} neighbours."


@dataclass(frozen=True)
class Row:
    """One line of the table: ε at the run's noise, and the noise for the exact mechanism's ε, per analysis."""

    probes: int | None
    epsilon: dict[str, PrivacyBounds]
    extra_noise: dict[str, float]


def privacy_rows(run: Run, say: Say = lambda text: None) -> list[Row]:
    """Return the table's lines: exact norms first, then one per number of probes."""
    exact = run.epsilon(run.steps)
    rows = [Row(None, {"exact": exact}, {})]
    for probes in run.probes:
        say(f"accounting: {probes} probes")
        epsilon, extra = {}, {}
        for label, (_, _, norms) in _ANALYSES.items():
            epsilon[label] = run.epsilon(run.steps, norms(probes))
            mechanism = run.mechanism(norms(probes))
            found = calibrate(mechanism, steps=run.steps, target_epsilon=exact.upper, delta=run.delta)
            extra[label] = found.noise_multiplier / run.noise_multiplier - 1.0
        rows.append(Row(probes, epsilon, extra))
    return rows


def privacy_curves(run: Run, say: Say = lambda text: None) -> dict[str, list[PrivacyBounds]]:
    """Return ε along the run for exact norms and each analysis."""
    norms: dict[str, Norms] = {"exact norms": ExactNorms()}
    norms |= {f"{run.curve_probes} {name}": make(run.curve_probes) for _, name, make in _ANALYSES.values()}
    curves = {}
    for name, chosen in norms.items():
        say(f"accounting: curve of {name}")
        curves[name] = [run.epsilon(steps, chosen) for steps in run.curve_steps]
    return curves


def privacy_table(run: Run, rows: list[Row]) -> Table:
    """Format the rows as a table: certified upper bounds, and their excess over exact norms."""
    exact = rows[0].epsilon["exact"]
    caption = f"{run.setting} ε: certified upper bound; in brackets, how far it is above that of exact norms."
    cells = [["exact norms", *[f"{exact:.3f}"] * len(_ANALYSES)]]
    for row in rows[1:]:
        more = {label: 100 * (bounds.upper / exact.upper - 1) for label, bounds in row.epsilon.items()}
        values = [f"{row.epsilon[label]:.3f} ({more[label]:+.1f} %)" for label in _ANALYSES]
        cells.append([f"{row.probes} probes", *values])
    return Table(caption, ["clipping", *(f"ε, {heading}" for heading, _, _ in _ANALYSES.values())], cells)


def _noise_table(rows: list[Row]) -> Table:
    """Tabulate the noise that makes up for random norms."""
    extra = [[f"+{100 * row.extra_noise[label]:.1f} %" for label in _ANALYSES] for row in rows[1:]]
    cells = [[f"{row.probes} probes", *values] for row, values in zip(rows[1:], extra, strict=True)]
    caption = f"How much larger σ has to be for the ε = {rows[0].epsilon['exact']:.3f} of exact norms. Same setting."
    return Table(caption, ["clipping", *(f"σ, {heading}" for heading, _, _ in _ANALYSES.values())], cells)


def privacy_section(run: Run, rows: list[Row], curves: dict[str, list[PrivacyBounds]]) -> Section:
    """Show table, picture and sentence."""
    from dprmt.plots import plot_epsilon_against_steps

    def draw(ax: Any) -> None:
        plot_epsilon_against_steps(run.curve_steps, curves, delta=run.delta, ax=ax)

    alt = "Certified ε against the number of steps, one curve per analysis of randomized clipping"
    setting = {name: getattr(run, name) for name in ("noise_multiplier", "sample_rate", "delta", "steps")}
    epsilon = [{label: _ends(bounds) for label, bounds in row.epsilon.items()} for row in rows]
    return Section(
        title="What randomized clipping costs",
        sentences=[_privacy_sentence(rows)],
        tables=[privacy_table(run, rows), _noise_table(rows)],
        pictures=[Picture(draw, alt)],
        numbers={
            "setting": setting | {"neighbours": ZeroOut.kind},
            "neighbours": ZeroOut.kind,
            "rows": [vars(row) | {"epsilon": ends} for row, ends in zip(rows, epsilon, strict=True)],
            "curve_steps": list(run.curve_steps),
            "curves": {label: [_ends(bounds) for bounds in curve] for label, curve in curves.items()},
        },
    )


def _privacy_sentence(rows: list[Row]) -> str:
    """Describe the table in words."""
    exact, row = rows[0].epsilon["exact"], rows[-1] if len(rows) < 3 else rows[2]
    prices = [row.epsilon[label].upper / exact.upper - 1 for label in _ANALYSES]
    said = [per_cent(price) for price in prices]
    return (
        f"With {row.probes} probes the published analysis adds {said[0]} to the ε = {exact:.3f} of exact norms and the"
        f" tight one {said[1]}; secret probes for every sample add {said[2]}, and Hutch++ of as many products"
        f" {said[3]}."
    )


def _ends(bounds: PrivacyBounds) -> dict[str, float]:
    return {"lower": bounds.lower, "estimate": bounds.estimate, "upper": bounds.upper}
