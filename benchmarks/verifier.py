"""``python -m benchmarks.verifier``: CPU seconds and memory that proofs take, each in a process of its own.

Claimed are both ends of an interval of a thousandth to either side of our estimate. ``--show`` prints what is stored in
``benchmarks/results/verifier.json``; ``--only`` runs the cases whose names hold a word.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from audits.table import markdown
from dprmt.accounting import DPSGD, ExactNorms, Hutchinson, HutchPlusPlus, Poisson, RandomAllocation, compose

RESULTS = Path(__file__).parent / "results" / "verifier.json"
SLACK = 1e-3
_SHARE = 2000 / 67349
Phases = list[tuple[DPSGD, int]]
CASES: dict[str, tuple[Phases, float, float | None]] = {
    "(a)": ([(DPSGD(0.779078, Poisson(_SHARE)), 400)], 1e-5, 5.0),
    "(b)": ([(DPSGD(1.0, Poisson(1e-3)), 100_000)], 1e-6, 20.0),
    "(c)": ([(DPSGD(0.406531, Poisson(64 / 42000)), 400)], 1e-5, 5.0),
    "32 public probes": ([(DPSGD(1.0, Poisson(_SHARE), Hutchinson(32, secret=False)), 400)], 1e-5, 5.0),
    "32 secret probes": ([(DPSGD(1.0, Poisson(_SHARE), Hutchinson(32, secret=True)), 400)], 1e-5, None),
    "Hutch++, s = k = 16": ([(DPSGD(1.0, Poisson(_SHARE), HutchPlusPlus(16, 16, secret=False)), 400)], 1e-5, None),
    "a million steps": ([(DPSGD(1.0, Poisson(1e-3)), 1_000_000)], 1e-6, 30.0),
    "50 phases": ([(DPSGD(1.0 + 0.02 * i, Poisson(0.005 + 0.0005 * i)), 200) for i in range(50)], 1e-6, 60.0),
    "allocation, σ = 1, t = 33": ([(DPSGD(1.0, RandomAllocation(33)), 33 * 12)], 1e-5, None),
    "allocation, σ = 2, t = 100": ([(DPSGD(2.0, RandomAllocation(100)), 1000)], 1e-5, None),
}
"""Phases, δ, and CPU seconds aimed at."""


def document(phases: Phases, delta: float) -> dict[str, Any]:
    """A statement of both ends, the lower one only of what a mechanism attains."""
    epsilon = compose(phases).epsilon(delta).estimate
    ends = {"lower": epsilon * (1 - SLACK), "upper": epsilon * (1 + SLACK)}
    if not all(isinstance(mechanism.norms, ExactNorms | Hutchinson) for mechanism, _ in phases):
        del ends["lower"]
    said = [{"mechanism": mechanism.as_dict(), "steps": steps} for mechanism, steps in phases]
    return {"phases": said, "delta": delta, "epsilon": ends}


def proof(text: str) -> dict[str, Any]:
    """What the verifier says of a statement, CPU seconds, and the most memory of this process in MiB."""
    from dprmt_verify import read_statement, verify

    start = time.process_time()
    verdicts = verify(read_statement(text), 120.0)
    seconds, memory = time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    ends = [(verdict.at_least, verdict.at_most) for verdict in verdicts]
    return {
        "verdicts": [verdict.word for verdict in verdicts],
        "proved": [max(low for low, _ in ends), min(high for _, high in ends)],
        "seconds": round(seconds, 2),
        "memory": round(memory),
    }


def table(results: dict[str, Any]) -> str:
    """Markdown."""
    rows = []
    for name, found in results.items():
        aim, (low, high) = CASES[name][2], found["proved"]
        words = ", ".join(dict.fromkeys(found["verdicts"]))
        aimed = "–" if aim is None else f"{aim:g}"
        rows.append([name, f"[{low:.5g}, {high:.5g}]", words, f"{found['seconds']:.1f}", aimed, str(found["memory"])])
    return markdown(["case", "ε is proved to be in", "both ends", "CPU s", "aim", "MiB"], rows)


def main(arguments: list[str] | None = None) -> None:
    """Run, store and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verifier", description=__doc__)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--proof", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.proof:
        print(json.dumps(proof(sys.stdin.read())))
        return
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for name, (phases, delta, _) in CASES.items():
        if options.show or options.only not in name:
            continue
        text = json.dumps(document(phases, delta))
        command = [sys.executable, "-m", "benchmarks.verifier", "--proof"]
        found = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
        results[name] = json.loads(found)
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(name, results[name], flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
