"""A small part of ``python -m benchmarks.sweep``: random mechanisms against answers that share no code with ours."""

from __future__ import annotations

from itertools import islice

import pytest

from benchmarks.sweep import TOLERANCE, Question, complaints, questions, width
from dprmt.accounting import DPSGD, ExactNorms, Hutchinson, PrivacyBounds

SOME = list(islice(questions(seed=1, count=9), 9))


@pytest.mark.parametrize("number", range(len(SOME)))
def test_nothing_contradicts_the_answer(number: int) -> None:
    question = SOME[number]
    bounds = question.mechanism.epsilon(steps=question.steps, delta=question.delta, tolerance=TOLERANCE)
    assert complaints(question, bounds) == []
    assert bounds.is_narrow == (width(bounds) <= TOLERANCE)


@pytest.mark.parametrize(
    "question",
    [Question(DPSGD(1.0, 0.01), 1000, 1e-5), Question(DPSGD(1.0, 0.3, Hutchinson(32, secret=False)), 1, 1e-5)],
)
def test_the_references_reject_answers_that_are_too_small_or_too_large(question: Question) -> None:
    lower, estimate, upper = question.mechanism.epsilon(steps=question.steps, delta=question.delta)
    assert complaints(question, PrivacyBounds(0.5 * lower, 0.5 * estimate, 0.9 * lower))
    if isinstance(question.mechanism.norms, ExactNorms):
        assert complaints(question, PrivacyBounds(1.1 * upper, 1.1 * upper, 1.2 * upper))
