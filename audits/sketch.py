"""``python -m audits sketch``: the real Hutch++ estimator against the law that it is charged by; minutes.

For every width of the sketch, with and without a power iteration, every spectrum of the families and of the gradients
of a recipe that needs no network is sketched afresh many times. What is compared: P(m > 1/(j+1)) with the bound, and
E g(X) for hinges (t - x)₊, divergences h_ε and tails f_t with what the law of J charges, k = 2 to 64. A line shows the
smallest margin in standard errors, and how near the largest E(1 - X)₊ comes to the charge.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import gammainc, ndtr
from scipy.stats import beta

from dprmt.accounting.laws._sketch import ROUNDING, probe_copies, residual_tail

Floats = NDArray[np.float64]


ITEMS = 4


def families(sketch: int, *, thin: int = 1) -> dict[str, Floats]:
    """Spectra by name, each summing to 1; every ``thin``-th of each family."""
    found: dict[str, Floats] = {}
    for family in (_flat, _powers, _geometric, _spikes, _two_levels, _edges, _single_direction, _random):
        for number, (name, values) in enumerate(family(sketch)):
            if number % thin == 0:
                found[name] = values / values.sum()
    return found


def _flat(s: int) -> Iterator[tuple[str, Floats]]:
    for n in sorted({2, max(s // 2, 2), s + 1, s + 2, 3 * s // 2, 2 * s - 1, 2 * s, 2 * s + 1, 3 * s, 4 * s}):
        yield f"flat {n}", np.ones(n)


def _powers(s: int) -> Iterator[tuple[str, Floats]]:
    for power in (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0):
        for n in (s + 1, 2 * s, 3 * s):
            yield f"power {power:g} of {n}", np.arange(1.0, n + 1) ** -power


def _geometric(s: int) -> Iterator[tuple[str, Floats]]:
    for ratio in (0.2, 0.5, 0.7, 0.85, 0.95):
        yield f"geometric {ratio:g}", np.maximum(ratio ** np.arange(2 * s), 1e-12)


def _spikes(s: int) -> Iterator[tuple[str, Floats]]:
    for number in (1, 2, 3):
        for share in (0.3, 0.5, 0.6, 0.7, 0.9, 0.97):
            for n in (s, 2 * s):
                spikes, rest = np.full(number, share / number), np.full(n, (1 - share) / n)
                yield f"{number} spikes {share:g} over {n}", np.append(spikes, rest)


def _two_levels(s: int) -> Iterator[tuple[str, Floats]]:
    for high in (max(s // 2, 2), s - 1, s, 3 * s // 2):
        for low, height in ((s, 0.1), (s, 0.5), (2 * s, 0.5), (s, 0.9), (2 * s, 0.02)):
            yield f"{high} of 1, {low} of {height:g}", np.append(np.ones(high), np.full(low, height))


def _edges(s: int) -> Iterator[tuple[str, Floats]]:
    """Some shares just above a threshold, others just below: what (H3) finds worst."""
    for above in (1, 2, s // 2 + 1, s - 1):
        for below in (1, 3, s):
            yield f"edge {above}, {below}", np.append(np.full(above, 1.05), np.full(below, 0.95))


def _single_direction(s: int) -> Iterator[tuple[str, Floats]]:
    """One value over s equal ones: a sketch leaves exactly one direction."""
    for rest in (0.5, 0.2, 0.05, 0.01, 1e-3):
        yield f"1 - {rest:g} over {s} equal", np.append(1 - rest, np.full(s, rest / s))


def _random(s: int) -> Iterator[tuple[str, Floats]]:
    rng = np.random.default_rng(s)
    for concentration in (0.05, 0.2, 0.5, 1.0, 4.0):
        for n in (s + 1, 3 * s // 2, 2 * s, 3 * s):
            for number in range(3):
                values = rng.dirichlet(np.full(n, concentration)) + 1e-12
                yield f"Dirichlet {concentration:g} of {n}, draw {number}", values


def gradients(name: str = "roberta-tiny-docstrings", items: int = ITEMS) -> dict[str, Floats]:
    """Spectra of single samples' gradients, of every linear layer of a recipe that needs no network."""
    import torch

    from dprmt.report.measurements import recipe_experiment
    from dprmt.training.recipes import load_recipe

    experiment = recipe_experiment(load_recipe(name)).experiment
    model, task = experiment.model, experiment.task
    layers = {key: part.weight for key, part in model.named_modules() if isinstance(part, torch.nn.Linear)}
    layers = {key: weight for key, weight in layers.items() if weight.requires_grad}
    found = {}
    for number in range(items):
        model.zero_grad()
        position = number * task.size // items
        task.losses(model, task.collate([task.items[position]])).sum().backward()
        for key, weight in layers.items():
            if weight.grad is not None:
                shares = np.linalg.svd(weight.grad.numpy().astype(float), compute_uv=False) ** 2
                if shares.sum() > 0:
                    found[f"gradient {number} of {key}"] = shares / shares.sum()
    return found


_POINTS = 4000


def single_direction(rest: float, sketch: int) -> Floats:
    """Shares: one of 1 - ``rest`` over s equal ones."""
    return np.append(1.0 - rest, np.full(sketch, rest / sketch))


def left_over(rest: float, sketch: int, power_iteration: bool) -> tuple[Floats, Floats]:
    """Values of ρ = m, increasing, and their probabilities, each value the least of its cell.

    The kernel of s x (s + 1) normals is a uniformly random direction c, of which ρ needs c₁² ~ Beta(½, s/2) only:
    ρ = 1/Σ c²/λ without and Σ c²/λ / Σ c²/λ² with a power iteration.
    """
    edges = beta.ppf(np.linspace(0.0, 1.0, _POINTS // 2), 0.5, sketch / 2)
    edges = np.unique(np.concatenate([edges, 1.0 - np.geomspace(1e-12, 1.0, _POINTS // 2)]))
    first, others = edges / (1.0 - rest), (1.0 - edges) * sketch / rest
    rho = 1.0 / (first + others)
    if power_iteration:
        rho = (first + others) / (first / (1.0 - rest) + others * sketch / rest)
    mass = np.diff(beta.cdf(edges, 0.5, sketch / 2))
    # 1 - F where F is near 1: the cells of large ρ are what matters.
    upper = -np.diff(beta.sf(edges, 0.5, sketch / 2))
    return np.minimum(rho[:-1], rho[1:]), np.where(edges[:-1] > 0.5, upper, mass)


def attained_hinge(t: float, rest: float, sketch: int, probes: int, power_iteration: bool) -> float:
    """A lower bound on E(t - X)₊ of the real estimator: given ρ it increases with ρ, X being 1 - ρ + ρ χ²(k)/k."""
    rho, mass = left_over(rest, sketch, power_iteration)
    reach = np.maximum((t - 1.0 + rho) / rho, 0.0)
    return float(mass @ (rho * hinge(reach, probes / 2)))


def charged_hinge(t: float, copies: tuple[int, ...], weights: tuple[float, ...], probes: int) -> float:
    """E(t - X)₊ of X ~ χ²(Jk)/(Jk)."""
    return float(hinge(np.array([t]), np.array(copies) * probes / 2) @ np.array(weights))


def hinge(t: Floats, shape: float | Floats) -> Floats:
    """E(t - Y)₊ for Y ~ Γ(shape)/shape."""
    value: Floats = t * gammainc(shape, shape * t) - gammainc(shape + 1.0, shape * t)
    return np.maximum(value, 0.0)


Law = tuple[tuple[int, ...], tuple[float, ...]]
"""Values of J and their probabilities."""
PROBES = (2, 4, 8, 16, 32, 64)
_REPEATS = 4
_NODES = 1200


def residual_shares(shares: Floats, sketch: int, power_iteration: bool, draws: int, seed: int) -> Floats:
    """Squared singular values of M(I - QQᵀ) over ‖M‖², shape (draws, d - s), largest last; fresh sketch each draw."""
    rng = np.random.default_rng(seed)
    weights = shares if power_iteration else np.sqrt(shares)
    image = weights[:, None] * rng.standard_normal((draws, shares.size, sketch))
    rest = np.linalg.qr(image, mode="complete").Q[:, :, sketch:]
    left: Floats = np.linalg.eigvalsh(rest.transpose(0, 2, 1) @ (shares[:, None] * rest))
    return np.clip(left, 0.0, None)


def estimates(left: Floats, probes: int, seed: int) -> Floats:
    """n̂/n, shape (draws, repeats): several draws of the probes for each sketch."""
    rng = np.random.default_rng([seed, probes])
    noise = rng.chisquare(probes, (*left.shape, _REPEATS)) / probes
    ratios: Floats = 1.0 - left.sum(axis=1)[:, None] + (left[:, :, None] * noise).sum(axis=1)
    return ratios


def functions() -> Iterator[tuple[str, str, Callable[[Floats], Floats]]]:
    """Kind, name and g: hinges, divergences at ε of a clipped sample, and tails of its output."""
    for t in (0.25, 0.5, 0.75, 0.9, 1.0):
        yield "(t - x)+", f"t = {t:g}", lambda x, t=t: np.maximum(t - x, 0.0)
    for sigma, epsilon in ((0.7, 4.0), (1.0, 1.0), (1.0, 3.0), (2.0, 0.5), (2.0, 2.0)):
        yield "h_eps", f"sigma = {sigma:g}, eps = {epsilon:g}", lambda x, s=sigma, e=epsilon: divergence(x, s, e)
    for sigma, t in ((0.7, 3.0), (1.0, 1.0), (1.0, 3.0), (2.0, 1.0), (2.0, 2.5)):
        yield "f_t", f"sigma = {sigma:g}, t = {t:g}", lambda x, s=sigma, t=t: ndtr(1.0 / (s * np.sqrt(x)) - t)


def divergence(ratio: Floats, sigma: float, epsilon: float) -> Floats:
    """h_ε(x) of a step without sampling."""
    mu = 1.0 / (sigma * np.sqrt(ratio))
    value: Floats = ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
    return value


@dataclass(frozen=True)
class Charge:
    """X ~ χ²(Jk)/(Jk) as atoms at conditional means, so that E g of a convex g comes out a little too small."""

    at: Floats
    mass: Floats

    @classmethod
    @cache
    def of(cls, law: Law, probes: int) -> Charge:
        """For k probes."""
        edges = np.concatenate([[0.0], np.geomspace(1e-5, 12.0, _NODES), [np.inf]])
        mass, moment = np.zeros(_NODES + 1), np.zeros(_NODES + 1)
        for copies, weight in zip(*law, strict=True):
            a = copies * probes / 2
            mass += weight * np.diff(gammainc(a, a * edges))
            moment += weight * np.diff(gammainc(a + 1.0, a * edges))
        keep = mass > 0
        return cls(np.maximum(moment[keep] / mass[keep], 1e-300), mass[keep])

    def mean(self, g: Callable[[Floats], Floats]) -> float:
        """E g(X)."""
        return float(self.mass @ g(self.at))


@dataclass(frozen=True)
class Margin:
    """How far one expectation of the real estimator stays below the charge."""

    kind: str
    name: str
    errors: float
    seen: float
    charged: float


def margins(left: Floats, law: Law, probes: tuple[int, ...], seed: int) -> Iterator[Margin]:
    """Of E g(X), for every g and k."""
    for k in probes:
        charge, ratios = Charge.of(law, k), estimates(left, k, seed)
        for kind, name, g in functions():
            values = g(ratios).mean(axis=1)
            seen, error, charged = float(values.mean()), float(values.std()) / math.sqrt(len(values)), charge.mean(g)
            errors = (charged - seen) / error if error > 0 else math.copysign(math.inf, charged - seen + 1e-12)
            yield Margin(kind, f"k = {k}, {name}", errors, seen, charged)


_bound = cache(residual_tail)


def share_margins(left: Floats, sketch: int, power_iteration: bool) -> Iterator[Margin]:
    """Of P(m > 1/(j+1)) against the bound that the law of J is made of; as a normal quantile of the binomial tail."""
    largest = left[:, -1]
    for j in range(1, 2 * sketch + 1):
        hits = int(np.sum(largest > 1 / (j + 1) + 1e-12))
        bound = _bound(1 / (j + 1), sketch, power_iteration)
        above, below = stats.binom.sf(hits - 1, largest.size, bound), stats.binom.cdf(hits - 1, largest.size, bound)
        errors = float(stats.norm.ppf(above) if above < 0.5 else -stats.norm.ppf(below))
        yield Margin("P(m > 1/(j+1))", f"j = {j}", errors, hits / largest.size, bound)


STORED = Path(__file__).parent / "results" / "sketch.json"
REFUTED, LARGE = -4.5, 1e3
KINDS = ("P(m > 1/(j+1))", "(t - x)+", "h_eps", "f_t")
DRAWS = {3: 2000, 5: 2000, 8: 1500, 12: 1000, 16: 800, 32: 250, 64: 80}


def main(arguments: list[str] | None = None) -> int:
    """Print the table, and store it; 1 if a charge is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m audits sketch", description=__doc__)
    parser.add_argument("--sketches", type=int, nargs="+", default=list(DRAWS), help=f"default {list(DRAWS)}")
    parser.add_argument("--thin", type=int, default=1, help="take every n-th spectrum only")
    parser.add_argument("--show", action="store_true", help="print the stored table instead")
    parser.add_argument("--out", type=Path, default=STORED, help="JSON that the lines are added to")
    parser.add_argument("--rounding", action="store_true", help="measure the rounding of the basis instead")
    options = parser.parse_args(arguments)
    if options.rounding:
        return _rounding()
    found = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    _head()
    if not options.show:
        real = gradients()
        for sketch in options.sketches:
            chosen = families(sketch, thin=options.thin) | dict(list(real.items())[:: options.thin])
            for power_iteration in (False, True):
                line = attack(sketch, power_iteration, chosen, DRAWS.get(sketch, 80))
                found[f"{sketch} {'power iteration' if power_iteration else 'one pass'}"] = line
                options.out.parent.mkdir(exist_ok=True)
                options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for name, line in sorted(found.items(), key=lambda item: (int(item[0].split()[0]), item[0])):
        print(_line(name, line))
    _optimistic()
    return int(any(line["margins"][kind]["errors"] < REFUTED for line in found.values() for kind in KINDS))


def attack(sketch: int, power_iteration: bool, spectra: dict[str, Floats], draws: int) -> dict[str, Any]:
    """The smallest margin of every kind over all spectra that a sketch does not capture whole."""
    law = probe_copies(sketch, power_iteration)
    hard = {name: shares for name, shares in spectra.items() if (shares > 0).sum() > sketch}
    worst: dict[str, tuple[str, Margin]] = {}
    attained = 0.0
    for seed, (name, shares) in enumerate(hard.items()):
        few = max(draws * 4 * sketch // max(shares.size, 4 * sketch), 50)  # long spectra are expensive, and easy
        left = residual_shares(shares[shares > 0], sketch, power_iteration, few, seed)
        found = [*share_margins(left, sketch, power_iteration), *margins(left, law, PROBES, seed)]
        for margin in found:
            if margin.kind not in worst or margin.errors < worst[margin.kind][1].errors:
                worst[margin.kind] = name, margin
            if margin.name.endswith("t = 1") and margin.kind == "(t - x)+":
                attained = max(attained, margin.seen / margin.charged)
    smallest = {
        kind: {
            "errors": min(margin.errors, LARGE),
            "spectrum": name,
            "at": margin.name,
            "seen": margin.seen,
            "bound": margin.charged,
        }
        for kind, (name, margin) in worst.items()
    }
    return {"spectra": len(hard), "draws": draws, "margins": smallest, "attained": attained}


def _head() -> None:
    columns = "".join(f"{kind:>16}" for kind in KINDS)
    print(f"{'sketch':<20}{'spectra':>8}{'draws':>7}{columns}{'E(1-X)+ seen':>14}")


def _line(name: str, line: dict[str, Any]) -> str:
    columns = "".join(f"{line['margins'][kind]['errors']:>16.1f}" for kind in KINDS)
    return f"{name:<20}{line['spectra']:>8}{line['draws']:>7}{columns}{100 * line['attained']:>13.0f}%"


def _optimistic() -> None:
    """Laws that claim too much, where one spectrum refutes them: expectations in closed form, no simulation."""
    print("\nE(t - X)+ of one value over s equal ones, one pass, over the charge of")
    print(f"{'s':>4}{'k':>5}{'t':>6}{'rest':>7}{'the law':>12}{'J + 1':>12}{'J = 4s':>12}")
    for sketch, probes, t, rest in ((3, 8, 0.5, 0.2), (3, 32, 0.1, 0.01), (3, 64, 0.3, 0.05), (4, 64, 0.3, 0.05)):
        copies, weights = probe_copies(sketch, False)
        seen = attained_hinge(t, rest, sketch, probes, False)
        laws: Iterable[Any] = ((copies, weights), (tuple(j + 1 for j in copies), weights), ((4 * sketch,), (1.0,)))
        ratios = [seen / charged_hinge(t, *law, probes) for law in laws]
        print(f"{sketch:>4}{probes:>5}{t:>6}{rest:>7}" + "".join(f"{ratio:>12.3g}" for ratio in ratios))


def _rounding() -> int:
    worst = 0.0
    print(f"{'T x d x p':<18}{'factors':<10}{'one pass':>10}{'iterated':>10}   s = 16, ε₀ charged: {ROUNDING:g}")
    for shape in SHAPES:
        for name, power in SPECTRA.items():
            found = [missed(*shape, power, 16, iterated) for iterated in (False, True)]
            worst = max(worst, *found)
            print(f"{'x'.join(map(str, shape)):<18}{name:<10}" + "".join(f"{value:>10.1e}" for value in found))
    return int(worst > ROUNDING)


SHAPES = ((16, 300, 200), (256, 768, 768), (1024, 768, 3072), (4096, 1024, 1024))
SPECTRA = {"random": 0.0, "decaying": 1.0, "steep": 3.0}
"""Tokens, rows and columns of layers whose basis is rounded, and how their factors decay."""


def missed(
    tokens: int, rows: int, columns: int, power: float, sketch: int, power_iteration: bool, half: bool = False
) -> float:
    """‖(I - QQᵀ)A‖/‖A‖ in Frobenius norms: A in float64, Q from the library's own float32 code.

    ``half``: with the sketch rounded to bfloat16 first, as coarser products would.
    """
    import torch

    from dprmt.training.norms._estimators import _head_basis
    from dprmt.training.norms._clipping import layer_gradient

    generator = torch.Generator().manual_seed(tokens + columns)
    scale = torch.arange(1, tokens + 1, dtype=torch.float64) ** -power
    a = torch.randn(1, tokens, rows, generator=generator, dtype=torch.float64).float()
    g = (scale[None, :, None] * torch.randn(1, tokens, columns, generator=generator, dtype=torch.float64)).float()
    draws = torch.randn(columns if power_iteration else rows, sketch, generator=generator, dtype=torch.float64).float()
    used = draws.bfloat16().float() if half else draws
    basis = _head_basis(layer_gradient(a, g), used, power_iteration).double()[0]
    a, g, image = a.double(), g.double(), draws.double()
    if power_iteration:
        image = a.mT @ (g @ image)
    exact = g.mT @ (a @ image)
    basis = torch.linalg.qr(basis).Q  # its own rounding is the norms', not the range's
    return float((exact - basis @ (basis.mT @ exact)).norm() / exact.norm())


if __name__ == "__main__":
    sys.exit(main())
