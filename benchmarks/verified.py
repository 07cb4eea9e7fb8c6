"""Our own answers as statements: 300 random runs, 100 of them compositions by direction, and what the verifier says.

    python -m benchmarks.verified --seconds 2400        # goes on where the results file ends; prints the table
    python -m benchmarks.verified --again               # with more time, what is not settled or was given up
    python -m benchmarks.verified --count 0             # the table alone

Ranges are those of ``benchmarks.sweep``, of compositions those of :func:`phases`; what the verifier does not cover is
not drawn, nor an ε above 100. What is claimed are our ends with a thousandth of themselves to spare. An end that is
refuted is an error of ours, or of the verifier.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import resource
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "verify"))

from audits.table import markdown
from dprmt._rounding import round_down, round_up
from dprmt.accounting import DPSGD, Group, Hutchinson, PrivacyBounds, ReplaceOne, compose
from dprmt_verify import read_statement, verify

RESULTS = Path(__file__).parent / "results" / "verified.jsonl"
COUNT, SLACK, MOST = 300, 1e-3, 100.0
SECONDS, LIMIT = (1.0, 10.0, 60.0), (8, 40, 150)
"""CPU time for finer meshes, and after which a statement is given up, our answer included, by pass."""
KINDS = ("exact norms", "replace-one", "groups", "public probes", "secret probes")
COMPOSITION = "compositions"


def drawn(number: int) -> tuple[str, dict[str, Any]]:
    """A kind, and a statement that claims our ends; every third is a composition. The same for the same number."""
    rng = np.random.default_rng([2027, number])
    kind = COMPOSITION if number % 3 == 2 else KINDS[(number // 3 * 2 + number % 3) % len(KINDS)]
    while True:
        found = _composition(rng) if kind == COMPOSITION else _run(rng, kind)
        if found is not None:
            return kind, found


def _run(rng: np.random.Generator, kind: str) -> dict[str, Any] | None:
    def between(low: float, high: float) -> float:
        return float(f"{np.exp(rng.uniform(math.log(low), math.log(high))):.6g}")

    sigma, rate, steps, delta = between(0.3, 50.0), between(1e-6, 1.0), round(between(1, 1e6)), between(1e-12, 0.1)
    size, probes = int(rng.integers(2, 5)), round(between(2, 4096))
    mechanism: dict[str, Any] = {"noise_multiplier": sigma, "sampling": {"kind": "poisson", "rate": rate}}
    run = DPSGD(sigma, rate)
    if kind == "replace-one":
        run, mechanism["neighbours"] = DPSGD(sigma, rate, neighbours=ReplaceOne()), {"kind": "replace-one"}
    elif kind == "groups":
        run, mechanism["neighbours"] = DPSGD(sigma, rate, neighbours=Group(size)), {"kind": "group", "size": size}
    elif kind != "exact norms":
        secret = kind == "secret probes"
        run = DPSGD(sigma, rate, Hutchinson(probes, secret=secret))
        mechanism["norms"] = {"kind": "hutchinson", "probes": probes, "secret": secret}
    found = run.epsilon(steps=steps, delta=delta)
    if not 0 < found.upper < MOST:
        return None
    return {"mechanism": {"kind": "dpsgd"} | mechanism, "steps": steps, "delta": delta, "epsilon": _claimed(found)}


def phases(rng: np.random.Generator) -> tuple[list[tuple[DPSGD, int]], float]:
    """Two or three, and δ."""

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    found = []
    for _ in range(int(rng.integers(2, 4))):
        sigma, rate, steps = between(0.6, 4), between(1e-4, 0.1), round(between(10, 2e5))
        probes = int(rng.choice([0] * 7 + [32]))
        run = DPSGD(sigma, rate, Hutchinson(probes, secret=False)) if probes else DPSGD(sigma, rate)
        found.append((run, steps))
    return found, between(1e-7, 1e-3)


def _composition(rng: np.random.Generator) -> dict[str, Any] | None:
    run, delta = phases(rng)
    found = compose(run).epsilon_by_direction(delta)
    if not all(0 < bounds.upper < MOST for bounds in found.values()):
        return None
    told = [{"mechanism": mechanism.as_dict(), "steps": steps} for mechanism, steps in run]
    claimed = {direction: _claimed(bounds) for direction, bounds in found.items()}
    return {"phases": told, "delta": delta, "by_direction": claimed}


def _claimed(found: PrivacyBounds) -> dict[str, float]:
    return {"lower": found.lower * (1 - SLACK), "upper": found.upper * (1 + SLACK)}


def said(number: int, attempt: int = 0) -> dict[str, Any]:
    """A row: what is claimed, and a word and proved bounds for each end; in a process that may be given up."""
    here, there = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_say, args=(number, attempt, there))
    child.start()
    there.close()
    row: dict[str, Any] = {"number": number, "again": attempt}
    try:
        while True:
            row |= here.recv()
    except EOFError:
        child.join()
    if "ends" not in row:
        late = child.exitcode == -signal.SIGXCPU
        row["given up"] = f"more than {LIMIT[attempt]} CPU-seconds" if late else f"ended with {child.exitcode}"
    return row


def _say(number: int, attempt: int, there: Any) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT[attempt], LIMIT[attempt] + 5))
    kind, statement = drawn(number)
    there.send({"kind": kind, "statement": statement})
    start = time.process_time()
    ends = [
        {"claim": str(verdict.claim), "word": verdict.word, "at_least": verdict.at_least, "at_most": verdict.at_most}
        for verdict in verify(read_statement(json.dumps(statement)), SECONDS[attempt])
    ]
    for end in ends:
        end["at_most"] = end["at_most"] if math.isfinite(end["at_most"]) else None
    there.send({"ends": ends, "seconds": round(time.process_time() - start, 2)})


def stored(path: Path = RESULTS) -> list[dict[str, Any]]:
    """The rows that a results file has."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def go_on(path: Path, count: int, seconds: float) -> None:
    """Verify what the file lacks; start no statement after so many seconds."""
    done, start = {row["number"] for row in stored(path)}, time.monotonic()
    for number in sorted(set(range(count)) - done):
        if time.monotonic() - start > seconds:
            return
        with path.open("a") as file:
            file.write(json.dumps(said(number)) + "\n")


def go_on_again(path: Path, seconds: float) -> None:
    """Once more each, with more time, those that are not settled, then those given up; start none after so long."""
    rows, start = {row["number"]: row for row in stored(path)}, time.monotonic()
    for kept in ("not settled", "given up"):
        for number, row in rows.items():
            attempt = row.get("again", 0) + 1
            if word(row) == kept and attempt < len(LIMIT) and time.monotonic() - start < seconds:
                rows[number] = said(number, attempt)
                path.write_text("".join(json.dumps(row) + "\n" for row in rows.values()))


def word(row: dict[str, Any]) -> str:
    """Of a statement, that of its worst end."""
    words = {end["word"] for end in row.get("ends", [])}
    return next((one for one in ("refuted", "not settled", "proved") if one in words), "given up")


def table(rows: list[dict[str, Any]]) -> str:
    """Statements by kind, in Markdown."""
    columns = ("proved", "refuted", "not settled", "given up")
    lines = []
    for kind in (*KINDS, COMPOSITION, "all"):
        some = [row for row in rows if kind in (row.get("kind", ""), "all")]
        if some:
            found, ends = Counter(map(word, some)), [end for row in some for end in row.get("ends", [])]
            proved = sum(end["word"] == "proved" for end in ends)
            counts = [str(found[column]) for column in columns]
            seconds = np.median([row.get("seconds", LIMIT[row.get("again", 0)]) for row in some])
            lines.append([kind, str(len(some)), *counts, f"{proved} of {len(ends)}", f"{seconds:.1f}"])
    return markdown(["kind", "statements", *columns, "ends proved", "median CPU s"], lines)


def left(rows: list[dict[str, Any]]) -> str:
    """Every statement that is not proved, with how near each of its ends came."""
    lines = []
    for row in rows:
        if word(row) == "proved":
            continue
        ends = [
            f"{end['claim']} (proved: from {round_down(end['at_least'])} to {round_up(end['at_most'] or math.inf)})"
            for end in row.get("ends", [])
            if end["word"] != "proved"
        ]
        lines.append(f"{row['number']} {row.get('kind')}: {word(row)}: {'; '.join(ends) or row.get('given up')}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    go_on(options.results, options.count, options.seconds)
    if options.again:
        go_on_again(options.results, options.seconds)
    rows = stored(options.results)
    print(f"{table(rows)}\n\n{left(rows)}")
    return sum(word(row) == "refuted" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
