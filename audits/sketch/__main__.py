"""``python -m audits.sketch``: the real Hutch++ estimator against the law that it is charged by; minutes.

For every width of the sketch, with and without a power iteration, every spectrum of the families and of the gradients
of a recipe that needs no network is sketched afresh many times. What is compared: P(m > 1/(j+1)) with the bound, and
E g(X) for hinges (t - x)₊, divergences h_ε and tails f_t with what the law of J charges, k = 2 to 64. A line shows the
smallest margin in standard errors, and how near the largest E(1 - X)₊ comes to the charge.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from audits.sketch.attack import PROBES, Floats, Margin, margins, residual_shares, share_margins
from audits.sketch.exact import attained_hinge, charged_hinge
from audits.sketch.spectra import families, gradients
from dprmt.accounting.laws._sketch import ROUNDING, probe_copies

STORED = Path(__file__).parents[1] / "results" / "sketch.json"
REFUTED, LARGE = -4.5, 1e3
KINDS = ("P(m > 1/(j+1))", "(t - x)+", "h_eps", "f_t")
DRAWS = {3: 2000, 5: 2000, 8: 1500, 12: 1000, 16: 800, 32: 250, 64: 80}


def main(arguments: list[str] | None = None) -> int:
    """Print the table, and store it; 1 if a charge is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m audits.sketch", description=__doc__)
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
    from audits.sketch.rounding import SHAPES, SPECTRA, missed

    worst = 0.0
    print(f"{'T x d x p':<18}{'factors':<10}{'one pass':>10}{'iterated':>10}   s = 16, ε₀ charged: {ROUNDING:g}")
    for shape in SHAPES:
        for name, power in SPECTRA.items():
            found = [missed(*shape, power, 16, iterated) for iterated in (False, True)]
            worst = max(worst, *found)
            print(f"{'x'.join(map(str, shape)):<18}{name:<10}" + "".join(f"{value:>10.1e}" for value in found))
    return int(worst > ROUNDING)


if __name__ == "__main__":
    sys.exit(main())
