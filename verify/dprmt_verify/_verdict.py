"""Proved, refuted or not settled: a statement against bounds on finer and finer meshes."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from dprmt_verify._run import Run
from dprmt_verify._statement import Claim, Statement

Word = Literal["proved", "refuted", "not settled", "not covered"]


class Verdict(NamedTuple):
    """Of one claim, with proved bounds of ε in the claim's directions."""

    claim: Claim
    word: Word
    at_least: float = 0.0
    at_most: float = math.inf

    def __str__(self) -> str:
        return f"{self.word}: {self.claim} (proved: {self.at_least:.7g} <= ε <= {self.at_most:.7g})"


def verify(statement: Statement, seconds: float = 60.0, cells: int = 10) -> list[Verdict]:
    """One verdict a claim; meshes are halved until all are settled or the next would not fit in the time left.

    Parameters
    ----------
    statement : Statement
    seconds : float
        CPU time that may be spent; the first mesh is always tried.
    cells : int
        In a standard deviation of a step's loss, on the first mesh. None makes a wrong claim proved.

    Returns
    -------
    list of Verdict
    """
    start = time.process_time()
    verdicts = {claim: Verdict(claim, "not settled") for claim in statement.claims}
    while left := [claim for claim, verdict in verdicts.items() if verdict.word == "not settled"]:
        began = time.process_time()
        with suppress(ArithmeticError, ValueError):  # where balls are too wide to decide, or have no middle
            run = Run(statement.phases, statement.delta, max(abs(claim.value) for claim in left), cells)
            for ways in {claim.directions for claim in left}:
                verdicts |= _judged(run, statement.delta, [claim for claim in left if claim.directions == ways])
        now, cells = time.process_time(), 2 * cells
        if now - start + 3 * (now - began) > seconds:
            break
    return list(verdicts.values())


def _judged(run: Run, delta: float, claims: Sequence[Claim]) -> dict[Claim, Verdict]:
    """Of claims about the same directions."""
    high, ways = 1.25 * max(abs(claim.value) for claim in claims) + 0.1, claims[0].directions
    _, at_most = _switch(lambda epsilon: all(run.above(way, epsilon) < delta for way in ways), high)
    at_least, _ = _switch(lambda epsilon: not any(run.below(way, epsilon) > delta for way in ways), high)
    return {claim: _verdict(claim, at_least, at_most) for claim in claims}


def _verdict(claim: Claim, at_least: float, at_most: float) -> Verdict:
    upper, value = claim.end == "upper", claim.value
    proved, refuted = (at_most <= value, value < at_least) if upper else (value <= at_least, at_most < value)
    word: Word = "proved" if proved else "refuted" if refuted else "not settled"
    return Verdict(claim, word if proved or claim.attained else "not covered", at_least, at_most)


def _switch(holds: Callable[[float], bool], high: float) -> tuple[float, float]:
    """Two numbers close together, at the second of which it holds, and at the first not (or it is 0)."""
    if holds(0.0) or not holds(high):
        return (0.0, 0.0) if holds(0.0) else (high, math.inf)
    low = 0.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high
