"""Certified values of δ by ball arithmetic (python-flint): writes ``balls.json``. Shares no code with the library.

    python tests/accounting/oracles/make_balls.py cases     # some minutes; a kind after it makes that alone

One step's outcomes are cut into cells whose losses L = log(dP/dQ) lie between consecutive multiples of a mesh h; every
cell's P- and Q-mass is a ball that holds it. The masses of T steps' cells are the coefficients of a power of a ball
polynomial, and a product cell k has losses in [kh, (k + T)h]. A cell with all losses above ε contributes exactly
P - e^ε Q to δ(ε); one that holds ε contributes at least max(0, P - e^ε Q), at most P (1 - e^{ε - (k+T)h}) and at most
P e^{ε - kh} - e^ε Q; P-mass outside all cells counts as nothing or as itself. Exchanging P and Q gives the other
direction.
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

ctx.prec = 96
HERE = Path(__file__).parent

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


def average(function: Callable[[acb], acb], dof: int) -> arb:
    """E g(χ²(ν)/ν) for 0 ≤ g ≤ 1, as a ball: what the ends leave out widens it."""
    a = dof / 2
    low, high = gammaincinv(a, 1e-22) / a, (a + 14 * math.sqrt(a) + 60) / a
    value = acb.integral(
        lambda x, _: function(x) * density(x, dof), acb(low), acb(high), rel_tol=arb(2) ** -50, abs_tol=arb(2) ** -100
    ).real
    shape = arb(dof) / 2
    left_out = 1 - (shape * high).gamma_lower(shape, regularized=1) + (shape * low).gamma_lower(shape, regularized=1)
    return value + arb(0.5, 0.5) * left_out


def complex_normal(x: acb) -> acb:
    """Φ(x), analytic."""
    return (-x / arb(2).sqrt()).erfc() / 2


def known_cells(sigma: float, rate: float, dof: int, head: float, mesh: float, high: float) -> Masses:
    """Known probes: the loss grows with y for each shift, and its cells' masses are averaged over shifts."""
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
) -> dict[str, list[tuple[float, float]]]:
    """[lower, upper] of δ(ε), for both directions."""
    p_poly, first = power(masses[0], steps, masses[2], window)
    q_poly, q_first = power(masses[1], steps, masses[2], window)
    assert first == q_first
    p, q = p_poly.coeffs(), q_poly.coeffs()
    size = max(len(p), len(q))
    p, q = p + [arb(0)] * (size - len(p)), q + [arb(0)] * (size - len(q))
    ends = [(first + k) * mesh for k in range(size)]
    found = {"remove": [], "add": []}
    for epsilon in epsilons:
        cells = [(p[k], q[k], ends[k], ends[k] + steps * mesh) for k in range(size)]
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
    plan = [("exact", (1, 2, 3, 5, 8), 130), ("known", (1, 1, 1, 2), 15), ("flat", (1,), 16)]
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
            if kind == "exact":
                masses = exact_cells(sigma, rate, mesh, high)
            else:
                masses = known_cells(sigma, rate, dof, 0.5 if kind == "flat" else 0.0, mesh, high)
            epsilons = [round(share * high / mesh) * mesh for share in (0.1, 0.35)]
            row = {"kind": kind, "sigma": sigma, "rate": rate, "probes": dof, "steps": steps, "epsilons": epsilons}
            yield row | enclosures(masses, steps, mesh, epsilons)


def reach(sigma: float, dof: int | None) -> float:
    """A loss that is hardly ever exceeded in one step."""
    x = 1.0 if dof is None else gammaincinv(dof / 2, 1e-4) * 2 / dof
    mu = 1 / (sigma * math.sqrt(x))
    return mu * (mu / 2 + (8.0 if dof is None else 4.0))


def main() -> None:
    """Write one part of the file, keep the other."""
    path = HERE / "balls.json"
    stored = json.loads(path.read_text()) if path.exists() else {}
    if "cases" in sys.argv[1:]:
        stored["cases"] = []
        for row in cases([word for word in sys.argv[1:] if word != "cases"]):
            stored["cases"].append(row)
            path.write_text(json.dumps(stored) + "\n")


if __name__ == "__main__":
    main()
