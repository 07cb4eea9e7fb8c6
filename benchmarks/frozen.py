"""Answers that must not move: both ends, bit for bit, of 500 settings of the sweep before and after a change of form.

    python -m benchmarks.frozen store      # adds what the file lacks; may be stopped and begun again
    python -m benchmarks.frozen compare    # exit code 1 and a line per answer that moved

Stored are settings that take less than 2 s. Bits depend on the processor and on the versions of numpy and scipy, so
store (with ``--file``) and compare on one machine, before and after. ``compare --elsewhere`` reads a file of another
machine: how many ends differ, by how much at most, and which intervals do not overlap with the stored ones, which
no rounding explains.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.sweep import TOLERANCE, Question, questions, stored

FILE = Path(__file__).parent / "results" / "frozen.jsonl"
SWEEP = Path(__file__).parent / "results" / "sweep.jsonl"
NUMBER, SEED, SLOWEST = 500, 0, 2.0
ROUNDING = 1e-9  # relative: as far as late digits of another processor reach, most often


def numbers() -> list[int]:
    """Which of the sweep's settings: the first 500 that answer soon."""
    return [row["number"] for row in stored(SWEEP) if row["seconds"] < SLOWEST][:NUMBER]


def answers(chosen: set[int]) -> Iterator[dict[str, Any]]:
    """Rows of number, lower and upper end as hexadecimal floats, as they are found."""
    for number, question in enumerate(questions(SEED, max(chosen, default=-1) + 1)):
        if number in chosen:
            yield {"number": number, **answer(question)}


def answer(question: Question) -> dict[str, str]:
    """Both ends, or the name of the error: a refusal is an answer, too."""
    try:
        bounds = question.mechanism.epsilon(steps=question.steps, delta=question.delta, tolerance=TOLERANCE)
    except (RuntimeError, ArithmeticError) as error:
        return {"error": type(error).__name__}
    return {"lower": float(bounds.lower).hex(), "upper": float(bounds.upper).hex()}


def store(file: Path) -> None:
    """Add the answers that a file lacks."""
    missing = set(numbers()) - {row["number"] for row in stored(file)}
    for row in answers(missing):
        with file.open("a") as lines:
            lines.write(json.dumps(row) + "\n")


def moved(file: Path) -> list[str]:
    """A line per answer that differs in any bit from the stored one."""
    before = {row["number"]: row for row in stored(file)}
    return [f"{row['number']}: {before[row['number']]} -> {row}" for row in differing(before)]


def differing(before: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Today's rows that are not the earlier ones."""
    return [row for row in answers(set(before)) if row != before[row["number"]]]


def between_machines(file: Path) -> list[str]:
    """What can be said where bits differ: how far ends moved, and which intervals do not overlap."""
    before = {row["number"]: row for row in stored(file)}
    pairs = [(before[row["number"]], row) for row in differing(before)]
    apart = [distance(old, new) for old, new in pairs]
    lines = [f"{new['number']}: {old} -> {new}" for old, new in pairs if not overlap(old, new)]
    equal = len(before) - len(pairs)
    return [
        *lines,
        f"{equal} of {len(before)} answers are equal bit for bit, {sum(d <= ROUNDING for d in apart)} to {ROUNDING:g}, "
        f"the others to {max(apart, default=0.0):.2g}; {len(lines)} do not overlap with the stored interval",
    ]


def distance(old: dict[str, Any], new: dict[str, Any]) -> float:
    """The larger relative difference of both ends; infinite between an answer and a refusal."""
    if "error" in old or "error" in new:
        return math.inf
    ends = [[float.fromhex(row[end]) for row in (old, new)] for end in ("lower", "upper")]
    return max(0.0 if first == second else abs(first - second) / max(first, second) for first, second in ends)


def overlap(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether one number can lie in both intervals; a refusal contradicts nothing."""
    if "error" in old or "error" in new:
        return True
    lower, upper = (f(*(float.fromhex(row[end]) for row in (old, new))) for f, end in ((max, "lower"), (min, "upper")))
    return lower <= upper


def main() -> None:
    """Store or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("store", "compare"))
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument(
        "--elsewhere", action="store_true", help="the file is of another machine: say how far, see above"
    )
    arguments = parser.parse_args()
    if arguments.what == "store":
        store(arguments.file)
        return
    if arguments.elsewhere:
        *apart, summary = between_machines(arguments.file)
        print(*apart, summary, sep="\n")
        sys.exit(bool(apart))
    lines, number = moved(arguments.file), len(stored(arguments.file))
    print(*lines, f"{number - len(lines)} of {number} answers are equal bit for bit", sep="\n")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
