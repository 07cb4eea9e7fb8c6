"""``python -m audits fuzz``: compositions of all mechanisms and releases, asked in all three directions.

Each run is asked for ε at a δ, for δ at this ε, and for its trade-off function. Looked for: exceptions and warnings,
answers that take more than two CPU seconds, and bounds that contradict each other.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dprmt.accounting import (
    DPSGD,
    AddRemove,
    ApproximateRelease,
    Composition,
    ExactNorms,
    FixedOrder,
    GaussianRelease,
    Group,
    Hutchinson,
    HutchPlusPlus,
    LaplaceRelease,
    Poisson,
    RandomAllocation,
    ReplaceOne,
    ZeroOut,
    compose,
)

RESULTS = Path(__file__).parent / "results" / "fuzz.json"
_ROUNDING = 1e-7  # relative, of comparisons between two certified answers
_ALPHA = (0.0, 1e-6, 1e-3, 0.1, 0.5, 1.0)


def drawn(source: random.Random) -> tuple[Composition, float]:
    """Draw a composition of one to four phases, and a δ."""
    relation = source.choice([ZeroOut(), ZeroOut(), ZeroOut(), AddRemove(), ReplaceOne(), Group(source.randint(2, 4))])
    phases = [_phase(source, relation) for _ in range(source.randint(1, 4))]
    return compose(phases), _log(source, 1e-12, 1e-2)


def _phase(source: random.Random, relation: Any) -> Any:
    kind = source.randrange(8)
    if kind == 0:
        return GaussianRelease(_log(source, 0.5, 50.0))
    if kind == 1:
        return LaplaceRelease(_log(source, 0.2, 20.0)), source.randint(1, 5)
    if kind == 2:
        return ApproximateRelease(source.choice([0.0, source.uniform(0.0, 2.0)]), source.choice([0.0, 1e-9, 1e-6])), 3
    sampling, unit, most = _sampling(source, relation)
    mechanism = DPSGD(_log(source, 0.4, 10.0), sampling, _norms(source), relation)
    return mechanism, unit * round(_log(source, 1, most))


def _sampling(source: random.Random, relation: Any) -> tuple[Any, int, float]:
    kind = source.randrange(6)
    if kind == 0 and not isinstance(relation, AddRemove):
        return FixedOrder(), 1, 30
    if kind == 1:
        length = round(_log(source, 2, 500))
        return RandomAllocation(length), length, 20
    return Poisson(_log(source, 1e-5, 1.0)), 1, 1e5


def _norms(source: random.Random) -> Any:
    secret = source.random() < 0.5
    if source.random() < 0.6:
        return ExactNorms()
    if source.random() < 0.5:
        return Hutchinson(source.randint(8, 128), secret=secret)
    return HutchPlusPlus(source.randint(8, 64), source.randint(8, 32), secret=secret)


def _log(source: random.Random, low: float, high: float) -> float:
    return math.exp(source.uniform(math.log(low), math.log(high)))


def contradictions(run: Composition, delta: float, ask: Callable[[str, Callable[[], Any]], Any]) -> Iterator[str]:
    """Ask in all three directions, and compare the answers.

    ``ask``: calls its second argument, and writes down how long it took under the first.
    """
    epsilon = ask("epsilon", lambda: run.epsilon(delta))
    if not 0.0 <= epsilon.lower <= epsilon.upper:
        yield f"ends of ε: {epsilon!r}"
    if 0.0 < epsilon.upper < 1e6:
        above = ask("delta", lambda: run.delta(epsilon.upper))
        if above.lower > delta * (1 + _ROUNDING):
            yield f"δ({epsilon.upper}) >= {above.lower} > {delta}"
    if 0.0 < epsilon.lower < math.inf:
        below = ask("delta", lambda: run.delta(epsilon.lower))
        if below.upper < delta * (1 - _ROUNDING):
            yield f"δ({epsilon.lower}) <= {below.upper} < {delta}"
    band = ask("trade-off", lambda: run.trade_off(_ALPHA))
    if not np.all(
        (band.lower >= 0.0) & (band.lower <= band.upper + 1e-15) & (band.upper <= 1.0 - np.array(_ALPHA) + 1e-9)
    ):
        yield f"ends of β: {band!r}"
    if epsilon.upper < 600.0:
        least = 1.0 - delta - math.exp(epsilon.upper) * np.array(_ALPHA)
        if np.any(band.upper < least - 1e-9):
            yield f"β at most {band.upper}, and at least {least}"
    if len(run.phases) > 1:
        part = ask("part", lambda: compose(list(run.phases[:-1])).epsilon(delta))
        if part.lower > epsilon.upper * (1 + _ROUNDING) + 1e-12:
            yield f"a part costs {part.lower}, the whole {epsilon.upper}"


def asked(number: int) -> dict[str, Any]:
    """Ask one drawn composition: what was found, and the CPU seconds of every answer."""
    run, delta = drawn(random.Random(number))
    taken: list[tuple[str, float]] = []

    def ask(name: str, call: Callable[[], Any]) -> Any:
        start = time.process_time()
        answer = call()
        taken.append((name, round(time.process_time() - start, 2)))
        return answer

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = list(contradictions(run, delta, ask))
    except Exception as error:  # whatever it is, it is a finding
        found = [f"{type(error).__name__}: {error}"]
    return {"found": found, "taken": taken, "run": f"delta = {delta!r}, {run!r}"}


def main(arguments: list[str]) -> int:
    """Draw and ask what is not in the results yet, and print what was found; 1 if anything was."""
    parser = argparse.ArgumentParser(prog="python -m audits fuzz")
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--most", type=float, default=2.0, help="CPU seconds that an answer may take")
    parser.add_argument("--again", choices=("all", "slow"), help="draw all again, or what was slow or found")
    options = parser.parse_args(arguments)
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() and options.again != "all" else {}
    bad = [number for number, one in kept.items() if one["found"] or _slowest(one) > options.most]
    for number in map(int, bad) if options.again == "slow" else range(options.draws):
        if options.again != "slow" and str(number) in kept:
            continue
        one = asked(number)
        if one["found"] or _slowest(one) > options.most:
            print(f"{number}: {one['found']}, {one['taken']}; {one['run']}", flush=True)
        else:
            del one["run"]
        kept[str(number)] = one
        RESULTS.write_text(json.dumps(kept, ensure_ascii=False).replace('}, "', '},\n"') + "\n", encoding="utf-8")
    seconds = sorted(each for one in kept.values() for _, each in one["taken"])
    found = sum(len(one["found"]) for one in kept.values())
    print(f"{len(kept)} draws, {len(seconds)} answers: {found} contradictions or crashes")
    print(f"{sum(each > options.most for each in seconds)} above {options.most:g} s, slowest {seconds[-1]:.1f} s")
    print(f"median {seconds[len(seconds) // 2]:.2f} s")
    return int(bool(found))


def _slowest(one: dict[str, Any]) -> float:
    return max((seconds for _, seconds in one["taken"]), default=0.0)
