"""What an accountant behind ``verify/dprmt_peers`` says at the 200 stored settings, against the bounds proved there.

    python -m benchmarks.peers opake gdpnum        # in an environment that has the packages; stores answers
    python -m benchmarks.peers --table             # the table of docs/other_accountants.md

Settings and proved bounds of ε are in ``results/other_accountants.jsonl``. An answer below the proved lower bound
is refuted, one above the upper bound is proved. The standard library is all that the script itself needs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "verify"))

RESULTS = Path(__file__).parent / "results" / "other_accountants.jsonl"
_RUN = ("noise_multiplier", "rate", "steps", "delta")
_WORDS = ("proved", "refuted", "not settled", "no answer")


def answered(name: str, setting: dict[str, Any]) -> dict[str, Any]:
    """An answer with its CPU seconds and verdict, or why there is none."""
    start = time.process_time()
    try:
        upper = importlib.import_module(f"dprmt_peers.{name}").epsilon(*(setting[key] for key in _RUN))
        answer: dict[str, Any] = {"upper": upper if math.isfinite(upper) else None}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {str(error)[:120]}"}
    answer["seconds"] = round(time.process_time() - start, 2)
    low, high = setting["proved"]
    if answer.get("upper") is not None:
        upper = answer["upper"]
        answer["upper is"] = "proved" if upper >= high else "refuted" if upper < low else "not settled"
    return answer


def main(arguments: list[str] | None = None) -> None:
    """Ask, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", nargs="*", help="names of files in verify/dprmt_peers")
    parser.add_argument("--every", type=int, default=1, help="ask at every so many settings only")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args(arguments)
    settings = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    for name in options.peers:
        importlib.import_module(f"dprmt_peers.{name}").epsilon(
            1.0, 0.5, 1, 1e-5
        )  # what it imports is no part of an answer
        for setting in settings[:: options.every]:
            setting["answers"][name] = answered(name, setting)
            setting["versions"][name] = metadata.version(name)
        RESULTS.write_text("".join(json.dumps(setting) + "\n" for setting in settings), encoding="utf-8")
    if options.table:
        sys.stdout.writelines(f"{row}\n" for row in table(settings))


def table(settings: list[dict[str, Any]]) -> list[str]:
    """A row for each accountant: verdicts, and the median of what is claimed over what is proved."""
    rows = [f"| accountant | {' | '.join(_WORDS)} | median claimed / proved |", "|---|" + "---|" * 5]
    for name in dict.fromkeys(name for setting in settings for name in setting["answers"]):
        asked = [(setting, setting["answers"][name]) for setting in settings if name in setting["answers"]]
        verdicts = [answer.get("upper is", "no answer") for _, answer in asked]
        shares = [answer["upper"] / setting["proved"][1] for setting, answer in asked if answer.get("upper")]
        counts = " | ".join(str(verdicts.count(word)) for word in _WORDS)
        rows.append(f"| {name} | {counts} | {statistics.median(shares):.4f} |")
    return rows


if __name__ == "__main__":
    main()
