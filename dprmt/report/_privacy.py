"""The report on privacy: what randomized clipping costs in a realistic run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dprmt.accounting import DPSGD, ExactNorms, Hutchinson, HutchPlusPlus, Norms, PrivacyBounds, ZeroOut, calibrate
from dprmt.plots import plot_epsilon_against_steps
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


def privacy_section(run: Run, rows: list[Row], curves: dict[str, list[PrivacyBounds]]) -> Section:
    """Show certified upper bounds of ε and their excess over exact norms, and the noise that makes up for it."""
    exact, labels = rows[0].epsilon["exact"], list(_ANALYSES)
    prices = [[row.epsilon[label].upper / exact.upper - 1 for label in labels] for row in rows[1:]]
    number = min(1, len(prices) - 1)
    said = [per_cent(price) for price in prices[number]]
    sentence = (
        f"With {rows[1 + number].probes} probes the published analysis adds {said[0]} to the ε = {exact:.3f} of exact"
        f" norms and the tight one {said[1]}; secret probes for every sample add {said[2]}, and Hutch++ of as many"
        f" products {said[3]}."
    )
    dearer, noisier = [["exact norms", *[f"{exact:.3f}"] * len(labels)]], []
    for row, extra in zip(rows[1:], prices, strict=True):
        name = f"{row.probes} probes"
        ends = zip(labels, extra, strict=True)
        dearer.append([name, *(f"{row.epsilon[label]:.3f} ({100 * more:+.1f} %)" for label, more in ends)])
        noisier.append([name, *(f"+{100 * row.extra_noise[label]:.1f} %" for label in labels)])
    tables = [
        Table(
            f"{run.name}; σ = {run.noise_multiplier:g}, δ = {run.delta:g}; {ZeroOut.kind} neighbours."
            " ε: certified upper bound; in brackets, how far it is above that of exact norms.",
            ["clipping", *(f"ε, {heading}" for heading, _, _ in _ANALYSES.values())],
            dearer,
        ),
        Table(
            f"How much larger σ has to be for the ε = {exact:.3f} of exact norms. Same setting.",
            ["clipping", *(f"σ, {heading}" for heading, _, _ in _ANALYSES.values())],
            noisier,
        ),
    ]
    picture = Picture(
        lambda ax: plot_epsilon_against_steps(run.curve_steps, curves, delta=run.delta, ax=ax),
        "Certified ε against the number of steps, one curve per analysis of randomized clipping",
    )
    setting = {name: getattr(run, name) for name in ("noise_multiplier", "sample_rate", "delta", "steps")}
    numbers = {
        "setting": setting | {"neighbours": ZeroOut.kind},
        "neighbours": ZeroOut.kind,
        "rows": [vars(row) | {"epsilon": {name: one.as_dict() for name, one in row.epsilon.items()}} for row in rows],
        "curve_steps": list(run.curve_steps),
        "curves": {label: [bounds.as_dict() for bounds in curve] for label, curve in curves.items()},
    }
    return Section("What randomized clipping costs", [sentence], tables, [picture], numbers)
