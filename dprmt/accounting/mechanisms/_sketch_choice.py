"""Which of the two laws of a sketch answers a question: (H4), or (H6) where the tail of (H4) would be far too heavy."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeVar

import numpy as np

from dprmt.accounting.composition import EpsilonAtDelta, Question
from dprmt.accounting.pairs import ClippingStep

AnyUnit = TypeVar("AnyUnit")
_NEVER = 1e-16
_TAIL_SHIFT, _TAIL_RATIO, _MUCH_LESS = 3.0, 0.4, 1.8  # where the laws of (H4) and (H6) are about as good


def settled(step: AnyUnit, question: Question, steps: int) -> AnyUnit | ClippingStep:
    """The step under the law that suits one question about so many of them; other units as they are.

    Returns: either is valid; whoever intersects bounds has to stay with one of them. Of a question about δ the one
    under (H6) wherever it may be the better one.
    """
    if not isinstance(step, ClippingStep) or step.secret:
        return step
    law, residual = step.law.convex_mixture, step.law.residual
    if law is None or residual is None:
        return step
    if not isinstance(question, EpsilonAtDelta):  # μ²/2 is ε where one norm decides, and less where more do
        x = 2.0 / (2.0 * step.noise_multiplier**2 * max(question.epsilon, 1e-9))
        return replace(step, law=residual) if law.cdf(np.array([x]))[0] > _NEVER else step
    probability = min(question.delta / (steps * step.sample_rate), 0.1)
    x = law.lower_quantile(probability)
    if step.noise_multiplier * math.sqrt(x) > 1.0 / _TAIL_SHIFT or x > _TAIL_RATIO:
        return step
    is_lighter = residual.left_tail.cdf(np.array([_MUCH_LESS * x]))[0] < probability
    return replace(step, law=residual) if is_lighter else step
