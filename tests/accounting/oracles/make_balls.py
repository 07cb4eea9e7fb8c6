"""Certified values of δ by ball arithmetic (python-flint): writes ``balls.json``. It shares no code
with the library but the law of a sketch, which is stored with its cases.

    python tests/accounting/oracles/make_balls.py cases     # some minutes; kinds after it make those alone
    python tests/accounting/oracles/make_balls.py run       # a minute or two: 400 steps of one run, both directions

One step's outcomes are cut into cells whose losses L = log(dP/dQ) lie between consecutive multiples of a mesh h; every
cell's P- and Q-mass is a ball that holds it. The masses of T steps' cells are the coefficients of a power of a ball
polynomial, and a product cell k has losses in [kh, (k + T)h]. A cell with all losses above ε contributes exactly
P - e^ε Q to δ(ε); one that holds ε contributes at least max(0, P - e^ε Q), at most P (1 - e^{ε - (k+T)h}) and at most
P e^{ε - kh} - e^ε Q; P-mass outside all cells counts as nothing or as itself. Exchanging P and Q gives the other
direction. With secret probes the likelihood ratio is an average over shifts that grows with the outcome; its lattice
points are met to τ = 1e-9, and a product cell k has losses in [kh - Tτ, (k + T)h + Tτ].

One step with public probes, and with them a sketch, needs no cells: δ is an average of those of single shifts. With
secret probes one outcome separates what counts from what does not; it is enclosed.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flint import acb, arb, arb_poly, ctx
from scipy.special import gammaincinv

from dprmt.accounting.laws._sketch import probe_copies  # the law of (H4) is what a sketched step is defined by

ctx.prec = 96
FILE = Path(__file__).with_name("balls.json")

TOUCH = 1e-9
"""How far a cell of secret probes may reach beyond its ends."""

Law = list[tuple[float, int]]
"""Of the squared-norm ratio: weights of χ²(ν)/ν, and each ν."""

Masses = tuple[list[arb], list[arb], int]
"""P- and Q-masses of consecutive cells, and the index of the first."""


def normal(x: Any) -> Any:
    """Φ(x) of a ball."""
    return (-x / arb(2).sqrt()).erfc() / 2


def log_ratio(loss: arb, rate: arb) -> arb:
    """Log of the unsampled likelihood ratio at a loss: e^loss = 1 - q + q r."""
    return ((loss.exp() - 1 + rate) / rate).log()


def exact_cells(sigma: float, rate: float, mesh: float, high: float) -> Masses:
    """Exact norms: one shift."""
    q, mu, h = arb(rate), 1 / arb(sigma), arb(mesh)
    first = math.floor(math.log1p(-rate) / mesh) if rate < 1 else -math.ceil(high / mesh)
    last = math.ceil(high / mesh)
    absent, present = [], []
    for i in range(first, last + 1):
        if rate < 1 and i == first:
            absent.append(arb(0))
            present.append(arb(0))
            continue
        y = log_ratio(i * h, q) / mu + mu / 2
        absent.append(normal(y))
        present.append(normal(y - mu))
    return cells_of(absent, present, q, first)


def cells_of(absent: list[arb], present: list[arb], q: arb, first: int) -> Masses:
    """Masses of cells from distribution functions at their ends."""
    q_mass = [b - a for a, b in itertools.pairwise(absent)]
    p_mass = [(1 - q) * m + q * (b - a) for m, a, b in zip(q_mass, present, present[1:], strict=False)]
    return p_mass, q_mass, first


def density(x: acb, dof: int) -> acb:
    """Of χ²(ν)/ν."""
    a = arb(dof) / 2
    return (a * x.log() - a * x + a * a.log() - a.lgamma()).exp() / x


def average(function: Callable[[acb], acb], dof: int, tail: float = 1e-22) -> arb:
    """E g(χ²(ν)/ν) for 0 ≤ g ≤ 1, as a ball: what the ends leave out widens it."""
    a = dof / 2
    low, high = gammaincinv(a, tail) / a, (a + 14 * math.sqrt(a) - 1.2 * math.log(tail)) / a
    value = acb.integral(
        lambda x, _: function(x) * density(x, dof), acb(low), acb(high), rel_tol=arb(2) ** -50, abs_tol=arb(2) ** -100
    ).real
    with ctx.workprec(1000):  # the series cancel
        shape = arb(dof) / 2
        left_out = (
            1 - (shape * high).gamma_lower(shape, regularized=1) + (shape * low).gamma_lower(shape, regularized=1)
        )
    return value + arb(0.5, 0.5) * left_out


def mean(function: Callable[[acb], acb], law: Law) -> arb:
    """E g(X) for 0 ≤ g ≤ 1."""
    return sum((arb(weight) * average(function, dof) for weight, dof in law), arb(0))


def complex_normal(x: acb) -> acb:
    """Φ(x), analytic."""
    return (-x / arb(2).sqrt()).erfc() / 2


def known_cells(sigma: float, rate: float, dof: int, head: float, mesh: float, high: float) -> Masses:
    """Public probes: the loss grows with y for each shift, and its cells' masses are averaged over shifts."""
    q, h = arb(rate), arb(mesh)
    first, last = math.floor(math.log1p(-rate) / mesh), math.ceil(high / mesh)
    absent, present = [arb(0)], [arb(0)]
    for i in range(first + 1, last + 1):
        ratio = log_ratio(i * h, q)

        def at(x: acb, moved: int, ratio: arb = ratio) -> acb:
            mu = 1 / (arb(sigma) * (head + (1 - head) * x).sqrt())
            return complex_normal(ratio / mu + mu / 2 - moved * mu)

        absent.append(average(lambda x: at(x, 0), dof))
        present.append(average(lambda x: at(x, 1), dof))
    return cells_of(absent, present, q, first)


def known_step(sigma: float, rate: float, law: Law, epsilons: list[float]) -> dict[str, list[tuple[float, float]]]:
    """[lower, upper] of δ(ε) of one step with public probes."""
    q = arb(rate)

    def above(x: acb, factor: arb) -> acb:  # P - factor·Q beyond the outcome where their ratio is the factor
        mu = 1 / (arb(sigma) * x.sqrt())
        y = ((factor - 1 + q) / q).log() / mu + mu / 2
        return (1 - q - factor) * complex_normal(-y) + q * complex_normal(mu - y)

    def below(x: acb, factor: arb) -> acb:  # Q - P/factor short of it
        mu = 1 / (arb(sigma) * x.sqrt())
        y = ((factor - 1 + q) / q).log() / mu + mu / 2
        return (1 - (1 - q) / factor) * complex_normal(y) - q / factor * complex_normal(y - mu)

    found = {"remove": [], "add": []}
    for epsilon in epsilons:
        found["remove"].append(ends(mean(lambda x, e=epsilon: above(x, arb(e).exp()), law)))
        within = -epsilon > math.log1p(-rate)
        found["add"].append(ends(mean(lambda x, e=epsilon: below(x, arb(-e).exp()), law)) if within else (0.0, 0.0))
    return found


def ends(ball: arb) -> tuple[float, float]:
    """Of a probability."""
    return max(down(ball), 0.0), up(ball)


def secret_ratio(y: arb, sigma: float, rate: float, dof: int) -> arb:
    """dP/dQ at an outcome, in which the shift's law is averaged."""
    z = acb(y)
    near = average(lambda x: (-((z - 1 / (arb(sigma) * x.sqrt())) ** 2) / 2).exp(), dof, 1e-60)
    return 1 - arb(rate) + arb(rate) * (y * y / 2).exp() * near


def outcome_at(loss: float, sigma: float, rate: float, dof: int, start: float) -> float:
    """Where the loss is a number, nearly: by secants."""
    value = lambda y: float(secret_ratio(arb(y), sigma, rate, dof).log().mid()) - loss  # noqa: E731
    before, now = start, start + 0.05
    at_before, at_now = value(before), value(now)
    while abs(at_now) > TOUCH / 10:
        step = at_now * (now - before) / (at_now - at_before)
        before, at_before = now, at_now
        now -= max(min(step, 0.5), -0.5)
        at_now = value(now)
    return now


def secret_tail(y: arb, sigma: float, dof: int) -> arb:
    """P(outcome > y) of a sampled step, the shift's law averaged."""
    return average(lambda x: complex_normal(1 / (arb(sigma) * x.sqrt()) - acb(y)), dof)


def secret_step(sigma: float, rate: float, dof: int, epsilons: list[float]) -> dict[str, list[tuple[float, float]]]:
    """[lower, upper] of δ(ε) of one step with secret probes.

    Any outcome bounds from below; from above, what lies between it and the best one weighs |ratio - e^ε| at most.
    """
    q, found = arb(rate), {"remove": [], "add": []}
    for epsilon in epsilons:
        for direction, sign in (("remove", 1), ("add", -1)):
            if sign < 0 and -epsilon <= math.log1p(-rate):
                found[direction].append((0.0, 0.0))
                continue
            factor, y = arb(sign * epsilon).exp(), arb(outcome_at(sign * epsilon, sigma, rate, dof, 1.0))
            off = abs(secret_ratio(y, sigma, rate, dof) - factor)
            part, tail = normal(-y), secret_tail(y, sigma, dof)
            if sign > 0:
                value, scale = (1 - q - factor) * part + q * tail, arb(1)
            else:
                value, scale = 1 - part - ((1 - q) * (1 - part) + q * (1 - tail)) / factor, 1 / factor
            found[direction].append((ends(value)[0], up(value + off * scale)))
    return found


def secret_cells(sigma: float, rate: float, dof: int, cells: int) -> tuple[Masses, float]:
    """Secret probes: cells end where the averaged ratio's logarithm is on a lattice, to `TOUCH`; and its mesh."""
    high = float(secret_ratio(arb(5.5), sigma, rate, dof).log().mid())  # what is beyond counts as missing
    mesh = 2.0 ** round(math.log2(high / cells))
    first, last = math.floor(math.log1p(-rate) / mesh), math.ceil(high / mesh)
    lowest = secret_ratio(arb(-8), sigma, rate, dof).log()
    absent, present, y = [arb(0)], [arb(0)], -3.0
    for i in range(first + 1, last + 1):
        if lowest > i * mesh:
            absent.append(arb(0.5, 0.5) * normal(arb(-8)))
            present.append(arb(0.5, 0.5) * normal(arb(-8)))
            continue
        y = outcome_at(i * mesh, sigma, rate, dof, y)
        assert abs(secret_ratio(arb(y), sigma, rate, dof).log() - arb(i) * mesh) < TOUCH
        absent.append(normal(arb(y)))
        present.append(1 - secret_tail(arb(y), sigma, dof))
    return cells_of(absent, present, arb(rate), first), mesh


def power(masses: list[arb], steps: int, shift: int, window: tuple[int, int] | None) -> tuple[arb_poly, int]:
    """Masses of the sums of cells, and the index of the first; outside a window they are forgotten."""
    result, at = arb_poly([1]), 0
    base, base_at = arb_poly(masses), shift
    while steps:
        if steps & 1:
            result, at = cut(result * base, at + base_at, window)
        steps >>= 1
        if steps:
            base, base_at = cut(base * base, 2 * base_at, window)
    return result, at


def cut(poly: arb_poly, at: int, window: tuple[int, int] | None) -> tuple[arb_poly, int]:
    """What lies inside the window."""
    if window is None or (at >= window[0] and at + poly.length() <= window[1]):
        return poly, at
    first = max(window[0] - at, 0)
    return arb_poly(poly.coeffs()[first : max(window[1] - at, 0)]), at + first


def enclosures(
    masses: Masses,
    steps: int,
    mesh: float,
    epsilons: list[float],
    window: tuple[int, int] | None = None,
    touch: float = 1e-12,
) -> dict[str, list[tuple[float, float]]]:
    """[lower, upper] of δ(ε), for both directions."""
    p_poly, first = power(masses[0], steps, masses[2], window)
    q_poly, q_first = power(masses[1], steps, masses[2], window)
    assert first == q_first
    p, q = p_poly.coeffs(), q_poly.coeffs()
    size = max(len(p), len(q))
    p, q = p + [arb(0)] * (size - len(p)), q + [arb(0)] * (size - len(q))
    lows = [(first + k) * mesh for k in range(size)]
    found = {"remove": [], "add": []}
    for epsilon in epsilons:
        cells = [(p[k], q[k], low - steps * touch, low + steps * (mesh + touch)) for k, low in enumerate(lows)]
        found["remove"].append(delta(cells, epsilon))
        found["add"].append(delta([(b, a, -high, -low) for a, b, low, high in cells], epsilon))
    return found


def delta(cells: list[tuple[arb, arb, float, float]], epsilon: float) -> tuple[float, float]:
    """Bounds from (P-mass, Q-mass, smallest, largest loss) of each cell."""
    factor = arb(epsilon).exp()
    above = [(a, b) for a, b, low, _ in cells if low >= epsilon]
    exact = sum((a for a, _ in above), arb(0)) - factor * sum((b for _, b in above), arb(0))
    lower = upper = exact
    for a, b, low, high in cells:
        if low < epsilon < high:
            lower = lower + arb.max(a - factor * b, arb(0))
            from_largest = a * (1 - (arb(epsilon) - arb(high)).exp())
            from_smallest = a - factor * b + a * ((arb(epsilon) - arb(low)).exp() - 1)  # e^ε dQ ≤ e^{ε - low} dP
            upper = upper + arb.min(from_largest, from_smallest)
    missing = 1 - sum((a for a, _, _, _ in cells), arb(0))
    upper = upper + arb.max(missing, arb(0))
    return max(down(lower), 0.0), up(upper)


def down(ball: arb) -> float:
    """A double below it."""
    return math.nextafter(float(ball.lower()), -math.inf)


def up(ball: arb) -> float:
    """A double above it."""
    return math.nextafter(float(ball.upper()), math.inf)


def cases(kinds: list[str]) -> Iterator[dict[str, Any]]:
    """Random mechanisms with few steps, of some kinds or of all."""
    plan = [
        ("exact", (1, 2, 3, 5, 8), 130),
        ("known", (1, 1, 1, 2), 15),
        ("flat", (1,), 16),
        ("secret", (1, 1, 2, 3), 24),
        ("sketch", (1,), 15),
    ]
    for kind, lengths, count in plan:
        if kinds and kind not in kinds:
            continue
        rng = random.Random(0)
        for number in range(count):
            steps = lengths[number % len(lengths)]
            sigma, rate = math.exp(rng.uniform(math.log(0.6), math.log(4.0))), math.exp(rng.uniform(-5.0, -0.2))
            dof = rng.choice([6, 8, 16, 32, 64])
            high = reach(sigma, dof if kind != "exact" else None)
            mesh = round(high / (1200 if kind == "exact" else 6 * steps**2), 3)
            epsilons = [round(share * high / mesh) * mesh for share in (0.1, 0.35)]
            if kind in ("secret", "sketch"):
                epsilons = [
                    -0.5 * steps * math.log1p(-rate),
                    (0.1 if steps == 1 else 0.02) * high,
                ]  # the first is not 0 for either direction
            row = {"kind": kind, "sigma": sigma, "rate": rate, "probes": dof, "steps": steps, "epsilons": epsilons}
            if kind == "sketch":
                row["sketch"] = (4, 8, 16)[number % 3]
                row["law"] = probe_copies(row["sketch"], False)
            yield row | answers(row, mesh, high)


def answers(row: dict[str, Any], mesh: float, high: float) -> dict[str, list[tuple[float, float]]]:
    """Enclosures of one mechanism."""
    sigma, rate, dof, steps, epsilons = (row[word] for word in ("sigma", "rate", "probes", "steps", "epsilons"))
    if row["kind"] == "exact":
        return enclosures(exact_cells(sigma, rate, mesh, high), steps, mesh, epsilons)
    if row["kind"] == "sketch":
        copies, weights = row["law"]
        return known_step(sigma, rate, [(w, j * dof) for j, w in zip(copies, weights, strict=True)], epsilons)
    if row["kind"] == "secret" and steps == 1:
        return secret_step(sigma, rate, dof, epsilons)
    if row["kind"] == "secret":
        masses, mesh = secret_cells(sigma, rate, dof, cells=60)
        return enclosures(masses, steps, mesh, epsilons, touch=TOUCH)
    return enclosures(
        known_cells(sigma, rate, dof, 0.5 if row["kind"] == "flat" else 0.0, mesh, high), steps, mesh, epsilons
    )


def whole_run() -> dict[str, Any]:
    """All of a run with exact norms: q = 2000/67349, 400 steps, σ = 0.779078."""
    sigma, rate, steps, mesh, high = 0.779078, 2000 / 67349, 400, 2.0**-14, 11.0
    epsilons = [6.66, 6.68, 6.69, 6.7, 6.71, 6.73]
    window = (math.floor(steps * math.log1p(-rate) / mesh) - steps, math.ceil(16 / mesh))
    row = {"kind": "exact", "sigma": sigma, "rate": rate, "steps": steps, "mesh": mesh, "epsilons": epsilons}
    return row | enclosures(exact_cells(sigma, rate, mesh, high), steps, mesh, epsilons, window)


def reach(sigma: float, dof: int | None) -> float:
    """A loss that is hardly ever exceeded in one step."""
    x = 1.0 if dof is None else gammaincinv(dof / 2, 1e-4) * 2 / dof
    mu = 1 / (sigma * math.sqrt(x))
    return mu * (mu / 2 + (8.0 if dof is None else 4.0))


def main() -> None:
    """Write one part of the file, keep the others."""
    part, *kinds = sys.argv[1:]
    if part == "run":
        write({"run": whole_run()})
        return
    kept = [row for row in stored()["cases"] if kinds and row["kind"] not in kinds]
    for row in cases(kinds):
        kept.append(row)
        write({"cases": kept})


def stored() -> dict[str, Any]:
    """What the file holds."""
    return json.loads(FILE.read_text()) if FILE.exists() else {"cases": []}


def write(part: dict[str, Any]) -> None:
    """Put a part into the file."""
    FILE.write_text(json.dumps(stored() | part) + "\n")


if __name__ == "__main__":
    main()
