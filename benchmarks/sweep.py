"""Random mechanisms: is the answer as narrow as asked, how long did it take, and is it sound.

    python -m benchmarks.sweep --seed 0 --count 2000 --results benchmarks/results/sweep.jsonl --seconds 280

Noise, rate, steps, δ and probes are drawn log-uniformly over the ranges people use and far beyond; both analyses,
public and secret probes, sketches, and exact norms. Every answer is held against bounds that share none of its code:
one step by quadrature (T steps cost at least that), for exact norms dp-accounting's curve from above and from below,
and against the same engine without a split of the loss. The references take longer than the answers: with ``--checked
0.2`` a fifth of the mechanisms, drawn with the seed, are held against them, the others only measured. A results file
keeps the answers, so that a long run can be cut into short ones.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaincinv, gammaln, ndtr

from audits.table import markdown
from dprmt._rounding import round_down, round_up
from dprmt.accounting import DPSGD, ExactNorms, Hutchinson, HutchPlusPlus, Norms, PrivacyBounds

TOLERANCE = 1e-3


@dataclass(frozen=True)
class Question:
    """A mechanism, its steps and δ."""

    mechanism: DPSGD
    steps: int
    delta: float

    @property
    def stratum(self) -> str:
        """What kind of mechanism it is."""
        noise, norms = "σ < .5" if self.mechanism.noise_multiplier < 0.5 else "σ ≥ .5", self.mechanism.norms
        if not isinstance(norms, (Hutchinson, HutchPlusPlus)):
            return f"exact norms, {noise}"
        few = "k ≤ 8" if norms.probes <= 8 else "k > 8"
        how = "secret" if norms.secret else "public"
        sketched = ", sketch" if isinstance(norms, HutchPlusPlus) else ""
        return f"{how} probes, {few}, {noise}{sketched}"


def questions(seed: int, count: int) -> Iterator[Question]:
    """Random ones; the same for the same seed."""
    rng = np.random.default_rng(seed)

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(math.log(low), math.log(high))))

    for _ in range(count):
        sigma, rate, steps = between(0.3, 50.0), between(1e-6, 1.0), round(between(1, 1e6))
        delta, probes, kind = between(1e-12, 0.1), round(between(2, 4096)), rng.integers(6)
        analysis: Literal["tight", "envelope"] = "tight" if rng.random() < 0.7 else "envelope"
        norms: Norms = Hutchinson(probes, secret=bool(rng.random() >= 0.5), analysis=analysis)
        if kind == 0:
            norms = ExactNorms()
        elif kind == 1 and analysis == "tight":
            norms = HutchPlusPlus(probes, max(3, round(between(3, 256))), secret=norms.secret)
        yield Question(DPSGD(sigma, rate, norms), steps, delta)


def width(bounds: PrivacyBounds) -> float:
    """Of the interval, relative to ε where that is above 1."""
    return (bounds.upper - bounds.lower) / max(1.0, bounds.upper) if math.isfinite(bounds.upper) else math.inf


def one_step_epsilon(question: Question) -> float | None:
    """ε of removing a sample from one step with public probes and a rank-one gradient, by quadrature over χ²."""
    mechanism, norms = question.mechanism, question.mechanism.norms
    rate = mechanism.sampling.rate
    if isinstance(norms, ExactNorms):
        mu, mass = np.array([1 / mechanism.noise_multiplier]), np.ones(1)
    elif isinstance(norms, Hutchinson) and not norms.secret:
        x, mass = chi2_nodes(norms.probes)
        mu = 1 / (mechanism.noise_multiplier * np.sqrt(x))
    else:
        return None

    def delta(epsilon: float) -> float:
        ratio = math.log(math.expm1(epsilon) / rate + 1) if epsilon < 500 else epsilon - math.log(rate)
        tail = np.exp(np.minimum(ratio, 700.0)) * ndtr(-mu / 2 - ratio / mu) if ratio < 700 else 0.0
        return rate * float(mass @ np.maximum(ndtr(mu / 2 - ratio / mu) - tail, 0.0))

    if delta(0.0) <= question.delta:
        return 0.0
    high = 1e-6
    while delta(high) > question.delta:
        high *= 2
        if high > 1e9:
            return None
    return float(brentq(lambda e: delta(e) - question.delta, 0.0, high, xtol=1e-12 * high))


def chi2_nodes(probes: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes in log x, and weights, for the law χ²(k)/k."""
    a = probes / 2
    low, high = math.log(max(gammaincinv(a, 1e-40) / a, 1e-200)), math.log((a + 12 * math.sqrt(a) + 80) / a)
    node, weight = np.polynomial.legendre.leggauss(12)
    edges = np.linspace(low, high, 121)
    half = (edges[1:] - edges[:-1]) / 2
    u = ((edges[1:] + edges[:-1])[:, None] / 2 + half[:, None] * node).ravel()
    mass = (half[:, None] * weight).ravel() * np.exp(a * u + a * math.log(a) - a * np.exp(u) - gammaln(a))
    return np.exp(u), mass


def unsplit(question: Question) -> PrivacyBounds:
    """The coarsest bounds of the engine, all on one mesh."""
    from dprmt.accounting.composition import _solve as _level
    from dprmt.accounting.composition._compose import Question as Asked
    from dprmt.accounting.composition._solve import solve

    keep = _level.best_split
    _level.best_split = lambda *arguments: None  # type: ignore[assignment]
    try:
        schedule = [(question.mechanism.step(), question.steps)]
        return solve(schedule, Asked(question.delta), "remove", 0.5)
    finally:
        _level.best_split = keep


def peer_interval(question: Question) -> tuple[float, float] | None:
    """dp-accounting's ε from below and from above, for exact norms and settings that its mesh suits."""
    if not suits_peer(question):
        return None
    from dp_accounting.pld import privacy_loss_distribution as pld

    mechanism = question.mechanism

    def one_step(**mesh: Any) -> Any:
        return pld.from_gaussian_mechanism(mechanism.noise_multiplier, sampling_prob=mechanism.sampling.rate, **mesh)

    return peer_ends(one_step, question)


def suits_peer(question: Question) -> bool:
    """Whether dp-accounting is here, and a mesh of 1e-3 suits the setting."""
    mechanism = question.mechanism
    if mechanism.norms != ExactNorms() or mechanism.noise_multiplier < 0.5:
        return False
    return question.steps <= 20_000 and question.delta >= 1e-10 and find_spec("dp_accounting") is not None


def peer_ends(one_step: Callable[..., Any], question: Question) -> tuple[float, float]:
    """ε from below and from above of all steps; ``one_step`` makes dp-accounting's for the mesh it is given."""
    low, high = (
        float(
            one_step(value_discretization_interval=1e-3, pessimistic_estimate=pessimistic, use_connect_dots=pessimistic)
            .self_compose(question.steps)
            .get_epsilon_for_delta(question.delta)
        )
        for pessimistic in (False, True)
    )
    return (low if low <= high else 0.0), high  # from below it may overflow to ∞


def complaints(question: Question, bounds: PrivacyBounds) -> list[str]:
    """What contradicts the answer; empty if nothing does."""
    found = []
    one = one_step_epsilon(question)
    if one is not None and bounds.upper < one * (1 - 1e-6) - 1e-9:
        found.append(f"one step costs {one:.6g}, more than all of them: {round_up(bounds.upper)}")
    peer = peer_interval(question)
    if peer is not None and (bounds.upper < peer[0] * (1 - 1e-6) - 1e-9 or bounds.lower > peer[1] * (1 + 1e-6) + 1e-9):
        found.append(f"dp-accounting has [{peer[0]:.6g}, {peer[1]:.6g}]")
    other = unsplit(question)
    if bounds.upper < other.lower * (1 - 1e-9) or max(bounds.lower, 0.0) > max(other.upper, bounds.upper) * (1 + 1e-9):
        found.append(f"on one mesh the engine has [{round_down(other.lower)}, {round_up(other.upper)}]")
    return found


def answered(number: int, question: Question, check: bool) -> dict[str, Any]:
    """The answer to one question with its CPU time and what contradicts it, as a row of the results file."""
    start = time.process_time()
    bounds = question.mechanism.epsilon(steps=question.steps, delta=question.delta, tolerance=TOLERANCE)
    seconds = time.process_time() - start
    return {
        "number": number,
        "mechanism": repr(question.mechanism),
        "steps": question.steps,
        "delta": question.delta,
        "stratum": question.stratum,
        "lower": bounds.lower,
        "upper": bounds.upper if math.isfinite(bounds.upper) else None,
        "is_narrow": bounds.is_narrow,
        "seconds": round(seconds, 3),
        "checked": check,
        "complaints": complaints(question, bounds) if check else [],
    }


def stored(path: Path | None) -> list[dict[str, Any]]:
    """The rows that a results file has."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def sweep(seed: int, count: int, checked: float, results: Path | None = None, seconds: float = math.inf) -> list[Any]:
    """Ask what a results file does not answer yet, and write it there; stop after so many seconds.

    ``checked``: share of the mechanisms, drawn at random, whose answers are held against references.
    """
    rows = stored(results)
    done, start = {row["number"] for row in rows}, time.monotonic()
    for number, question in enumerate(questions(seed, count)):
        if number in done:
            continue
        if time.monotonic() - start > seconds:
            break
        rows.append(answered(number, question, is_checked(seed, number, checked)))
        if results is not None:
            with results.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    return rows


def is_checked(seed: int, number: int, share: float) -> bool:
    """Whether a mechanism is one of those, whatever else was asked."""
    return bool(np.random.default_rng([seed, number]).random() < share)


def relative_width(row: dict[str, Any]) -> float:
    """As :func:`width`, of a row."""
    return width(PrivacyBounds(row["lower"], row["lower"], _upper(row)))


def table(rows: list[dict[str, Any]]) -> str:
    """The rows by stratum, in Markdown."""
    columns = ["number", "≤ tol", "≤ 1 %", "≤ 5 %", "no upper", "median ms", "slowest s", "> 2 s"]
    columns += ["checked", "contradicted"]
    lines, strata = [], {row["stratum"] for row in rows}
    for name in [*sorted(strata), "all"]:
        some = [row for row in rows if name in (row["stratum"], "all")]
        widths = np.array([relative_width(row) for row in some])
        seconds = np.array([row["seconds"] for row in some])
        values = [len(some), *(int(np.sum(widths <= limit)) for limit in (TOLERANCE, 1e-2, 5e-2))]
        values += [int(np.sum(~np.isfinite(widths)))]
        cells = [*map(str, values), f"{1e3 * np.median(seconds):.0f}", f"{seconds.max():.1f}"]
        cells += [str(int(np.sum(seconds > 2.0))), str(sum(row["checked"] for row in some))]
        cells += [str(sum(bool(row["complaints"]) for row in some))]
        lines.append([name, *cells])
    return markdown(["stratum", *columns], lines)


def _upper(row: dict[str, Any]) -> float:
    return math.inf if row["upper"] is None else float(row["upper"])


def main() -> None:
    """Print the table by stratum, and with ``--verbose`` what stays wide, slow or contradicted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--checked", type=float, default=1.0, help="share of the mechanisms held against references")
    parser.add_argument("--verbose", action="store_true", help="name what stays wide or slow")
    parser.add_argument("--results", type=Path, help="a file to go on from; a line is added per answer")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long, to go on later")
    arguments = parser.parse_args()
    rows = sweep(arguments.seed, arguments.count, arguments.checked, arguments.results, arguments.seconds)
    for row in rows:
        wide, slow = relative_width(row) > 10 * TOLERANCE, row["seconds"] > 2.0
        if row["complaints"] or (arguments.verbose and (wide or slow)):
            print(f"{row['number']:5d} {row['mechanism']}, {row['steps']} steps, δ = {row['delta']:.3g}:", end=" ")
            print(f"[{round_down(row['lower'])}, {round_up(_upper(row))}], {row['seconds']} s", *row["complaints"])
    print(table(rows))


if __name__ == "__main__":
    main()
