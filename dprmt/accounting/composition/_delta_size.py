"""How small a δ is asked about, guessed before anything is composed; what cannot be told from 0: (F5) of the theory."""

from __future__ import annotations

import math
from dataclasses import replace

from dprmt.accounting.basics import Direction
from dprmt.accounting.composition._composed_loss import log_chernoff
from dprmt.accounting.composition._level import LOWEST, ground_of, pairs_at, tail_per_step
from dprmt.accounting.composition._many_phases import Public
from dprmt.accounting.composition._one_step_curve import one_step_delta
from dprmt.accounting.composition._question import LEAST_DELTA, DeltaAtEpsilon, Question
from dprmt.accounting.composition._step_law import directed_range
from dprmt.accounting.pairs import Schedule, Step, StepPair

_MOST_GUESSES, _FAR_SMALLER, _OVERSHOOT = 10, 1e-2, 1e-2  # of δ's size; what Chernoff's bound may be too large by
_FAR_OUT = 1e6
_TAILS, _A_LITTLE_MORE = (1e-20, 1e-200), 1.0 + 1e-6


def sized(schedule: Schedule, question: DeltaAtEpsilon, direction: Direction) -> DeltaAtEpsilon:
    """The question with a guess of its answer's size, by Chernoff's bound, where δ is far smaller than assumed.

    Truncation, mesh and tilt are then right at once: a search from a wrong size does not get there (§6, (F5)).
    """
    given, found, total = question.small, question, sum(count for _, count in schedule)
    for _ in range(_MOST_GUESSES):
        tail = tail_per_step(schedule, found.small)
        pairs, _ = pairs_at(schedule, tail, LOWEST)
        if not all(_is_plain(pair, step) for (pair, _), (step, _) in zip(pairs, schedule, strict=True)):
            return question
        rough = ground_of(pairs, found, direction, tail).laws
        tilt = found.tilt(rough)
        log_guess = log_chernoff(rough, tilt) - tilt * found.epsilon + math.log(_OVERSHOOT)
        guess = math.exp(min(max(log_guess, math.log(LEAST_DELTA)), 0.0))
        if guess >= given and found.small < given:  # so heavy a tail that one step decides
            guess = total * one_step_delta(rough[0][0], found.epsilon) if len(rough) == 1 else given
            return found.sized(guess) if guess < _FAR_SMALLER * given else question
        if guess >= _FAR_SMALLER * found.small:
            return found.sized(min(guess, given)) if found.small < given else question
        found = found.sized(max(guess, found.small**2))  # farther losses, not yet seen, may make it larger
    return found


def _is_plain(pair: StepPair, step: Step) -> bool:
    """Whether less truncation only makes the pair sharper: of secret probes, charges grow with what is kept."""
    return (step.is_exact and step.steps == 1) or isinstance(pair, Public)


def least_upper(schedule: Schedule, question: Question, direction: Direction) -> float:
    """Upper bound on a δ that floating point hardly holds: 0 only where all losses are bounded by less than ε."""
    if not isinstance(question, DeltaAtEpsilon):
        return 0.0
    pairs, _ = pairs_at(schedule, tail_per_step(schedule, question.small), LOWEST)
    ranges = [[directed_range(pair, tail, direction)[1] for tail in _TAILS] for pair, _ in pairs]
    if all(math.isclose(*tops, rel_tol=1e-12) for tops in ranges):  # however little is cut off
        most = sum(steps * max(*tops, 0.0) for (_, steps), tops in zip(pairs, ranges, strict=True))
        if question.epsilon > most * _A_LITTLE_MORE:
            return 0.0
    return question.least


def reachable(schedule: Schedule, question: Question, direction: Direction) -> Question:
    """The question, or one about the largest sum of losses where it asks far beyond."""
    if not isinstance(question, DeltaAtEpsilon) or question.epsilon < _FAR_OUT:
        return question
    tail = tail_per_step(schedule, question.small)
    upper, _ = pairs_at(schedule, tail, LOWEST)
    most = sum(steps * directed_range(pair, tail, direction)[1] for pair, steps in upper)
    return replace(question, epsilon=min(question.epsilon, max(most, _FAR_OUT)))
