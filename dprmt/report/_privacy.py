"""The report on privacy: what randomized clipping costs in a realistic run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dprmt.accounting import DPSGD, ExactNorms, Hutchinson, HutchPlusPlus, Norms, PrivacyBounds, ZeroOut
from dprmt.plots import plot_epsilon_against_steps
from dprmt.report._page import Picture, Section, Table
from dprmt.report._words import per_cent

_ANALYSES: dict[str, Callable[[int], Norms]] = {
    "public probes, published analysis": lambda products: Hutchinson(products, secret=False, analysis="envelope"),
    "public probes, tight": lambda products: Hutchinson(products, secret=False),
    "secret probes, tight": lambda products: Hutchinson(products, secret=True),
    # A sketch of a quarter, whose columns take two products each, is near the best split.
    "Hutch++, secret": lambda products: HutchPlusPlus(products - 2 * (products // 4), products // 4, secret=True),
}
"""The norms of so many products per layer, by the analysis that counts their ε."""
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

    def epsilon(self, steps: int, norms: Norms = ExactNorms()) -> PrivacyBounds:
        """ε of so many steps."""
        return DPSGD(self.noise_multiplier, self.sample_rate, norms).epsilon(steps=steps, delta=self.delta)


@dataclass(frozen=True)
class Row:
    """One line of the table: ε at the run's noise, per analysis."""

    probes: int | None
    epsilon: dict[str, PrivacyBounds]


def privacy_rows(run: Run, say: Say = lambda text: None) -> list[Row]:
    """Return the table's lines: exact norms first, then one per number of probes."""
    rows = [Row(None, {"exact": run.epsilon(run.steps)})]
    for probes in run.probes:
        say(f"accounting: {probes} probes")
        rows.append(Row(probes, {label: run.epsilon(run.steps, of(probes)) for label, of in _ANALYSES.items()}))
    return rows


def privacy_curves(run: Run, say: Say = lambda text: None) -> dict[str, list[PrivacyBounds]]:
    """Return ε along the run for exact norms and each analysis."""
    norms: dict[str, Norms] = {"exact norms": ExactNorms()}
    norms |= {f"{name}, {run.curve_probes} products": of(run.curve_probes) for name, of in _ANALYSES.items()}
    curves = {}
    for name, chosen in norms.items():
        say(f"accounting: curve of {name}")
        curves[name] = [run.epsilon(steps, chosen) for steps in run.curve_steps]
    return curves


def privacy_section(run: Run, rows: list[Row], curves: dict[str, list[PrivacyBounds]]) -> Section:
    """Show certified upper bounds of ε and their excess over exact norms."""
    exact, labels = rows[0].epsilon["exact"], list(_ANALYSES)
    prices = [[row.epsilon[label].upper / exact.upper - 1 for label in labels] for row in rows[1:]]
    number = min(1, len(prices) - 1)
    said = [per_cent(price) for price in prices[number]]
    sentence = (
        f"With {rows[1 + number].probes} probes the published analysis adds {said[0]} to the ε = {exact:.3f} of exact"
        f" norms and the tight one {said[1]}; secret probes for every sample add {said[2]}, and Hutch++ of as many"
        f" products {said[3]}."
    )
    dearer = [["exact norms", *[f"{exact:.3f}"] * len(labels)]]
    for row, extra in zip(rows[1:], prices, strict=True):
        ends = zip(labels, extra, strict=True)
        cells = (f"{row.epsilon[label]:.3f} ({100 * more:+.1f} %)" for label, more in ends)
        dearer.append([str(row.probes), *cells])
    table = Table(
        f"{run.name}; σ = {run.noise_multiplier:g}, δ = {run.delta:g}; {ZeroOut.kind} neighbours."
        " ε: certified upper bound; in brackets, how far it is above that of exact norms.",
        ["products per layer", *(f"ε, {label}" for label in labels)],
        dearer,
    )
    picture = Picture(
        lambda ax: plot_epsilon_against_steps(run.curve_steps, curves, delta=run.delta, ax=ax),
        "Certified ε against the number of steps, one curve per analysis of randomized clipping",
    )
    numbers = {
        "setting": {name: getattr(run, name) for name in ("noise_multiplier", "sample_rate", "delta", "steps")},
        "neighbours": ZeroOut.kind,
        "rows": [vars(row) | {"epsilon": {name: one.as_dict() for name, one in row.epsilon.items()}} for row in rows],
        "curve_steps": list(run.curve_steps),
        "curves": {label: [bounds.as_dict() for bounds in curve] for label, curve in curves.items()},
    }
    return Section("What randomized clipping costs", [sentence], [table], [picture], numbers)
