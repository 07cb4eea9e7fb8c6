"""Accounting speed: CPU time of common questions.

python -m benchmarks.accounting                          # prints the table, a few minutes
python -m benchmarks.accounting --results benchmarks/results/accounting.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from audits.table import markdown
from dprmt._rounding import round_down, round_up
from dprmt.accounting import DPSGD, Hutchinson, calibrate, compose

SIGMA, RATE, STEPS, DELTA = 0.779078, 2000 / 67349, 400, 1e-5
PROBES = ("public", "secret")
SETTINGS = {
    "(a)": (SIGMA, RATE, STEPS, DELTA),
    "(b)": (1.0, 1e-3, 100_000, 1e-6),
    "(c)": (0.406531, 64 / 42000, 400, 1e-5),
}
_SLOW = 1.0


def cpu_seconds(work: Callable[[], Any], repeats: int = 5) -> tuple[float, Any]:
    """Smallest CPU time of a few runs, fewer of slow ones, and the answer."""
    best, answer = float("inf"), None
    for _ in range(repeats):
        start = time.process_time()
        answer = work()
        best = min(best, time.process_time() - start)
        if best > _SLOW:
            break
    return best, answer


def ours() -> dict[str, Callable[[], Any]]:
    """Questions to this package; every interval holds for both directions."""
    questions: dict[str, Callable[[], Any]] = {}
    for name, (sigma, rate, steps, delta) in SETTINGS.items():
        questions[f"ε, exact norms {name}"] = lambda s=sigma, q=rate, t=steps, d=delta: DPSGD(s, q).epsilon(
            steps=t, delta=d
        )
    for name in ("(a)", "(c)"):
        sigma, rate, steps, delta = SETTINGS[name]
        for who in PROBES:
            run = DPSGD(sigma, rate, Hutchinson(32, secret=who == "secret"))
            questions[f"ε, 32 {who} probes {name}"] = lambda r=run, t=steps, d=delta: r.epsilon(steps=t, delta=d)
    few, quiet = DPSGD(SIGMA, RATE, Hutchinson(8, secret=False)), DPSGD(0.5, RATE, Hutchinson(32, secret=False))
    questions["ε, 8 public probes (a)"] = lambda: few.epsilon(steps=STEPS, delta=DELTA)
    questions["ε, 32 public probes (a), σ = 0.5"] = lambda: quiet.epsilon(steps=STEPS, delta=DELTA)
    target = {"steps": STEPS, "target_epsilon": 2.0, "delta": DELTA}
    questions["calibration to ε = 2, exact norms"] = lambda: calibrate(DPSGD(1.0, RATE), **target)
    for who in PROBES:
        asked = DPSGD(1.0, RATE, Hutchinson(32, secret=who == "secret"))
        questions[f"calibration to ε = 2, 32 {who} probes"] = lambda run=asked: calibrate(run, **target)
    for probes in (None, 32):
        name = "exact norms" if probes is None else f"{probes} probes"
        phases = [(_mechanism(sigma, probes), 2) for sigma in np.linspace(0.7, 1.3, 200)]
        schedule = compose(phases)
        questions[f"ε, 200 phases, {name}"] = lambda s=schedule: s.epsilon(DELTA)
    for who in PROBES:
        questions[f"ε, 100 phases, 32 {who} probes, T = 400 in all"] = _phases(who == "secret")
    return questions


def _phases(secret: bool) -> Callable[[], Any]:
    """Another σ each time, by a billionth: what phases share is kept, and would be found the second time."""
    asked = itertools.count()

    def ask() -> Any:
        noise = np.linspace(0.7, 1.3, 100) * (1.0 + 1e-9 * next(asked))
        return compose([(DPSGD(float(sigma), RATE, Hutchinson(32, secret=secret)), 4) for sigma in noise]).epsilon(
            DELTA
        )

    return ask


def _mechanism(sigma: float, probes: int | None) -> DPSGD:
    return DPSGD(sigma, RATE) if probes is None else DPSGD(sigma, RATE, Hutchinson(probes, secret=False))


def measured() -> dict[str, Any]:
    """All times and answers, in one run."""
    rows: dict[str, Any] = {"ours": []}
    for name, work in ours().items():
        seconds, answer = cpu_seconds(work)
        calibrated = isinstance(answer, DPSGD)
        ends = 2 * [answer.noise_multiplier] if calibrated else [answer.lower, answer.upper]
        rows["ours"].append({"question": name, "ms": 1e3 * seconds, "answer": ends})
    return rows


def report(rows: dict[str, Any]) -> str:
    """The table, in Markdown."""
    lines = []
    for row in rows["ours"]:
        low, high = row["answer"]
        shown = f"[{round_down(low)}, {round_up(high)}]" if low != high else f"σ = {round_up(high)}"
        lines.append([row["question"], f"{row['ms']:.0f}", shown])
    return markdown(["question", "CPU ms", "answer"], lines)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="a JSON file to write")
    arguments, _ = parser.parse_known_args()
    warnings.simplefilter("ignore")
    rows = measured()
    if arguments.results:
        arguments.results.write_text(json.dumps(rows, indent=1) + "\n")
    print(report(rows))


if __name__ == "__main__":
    main()
