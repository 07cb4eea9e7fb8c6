"""What an attack's successes prove: lower bounds on ε and μ that hold with a stated confidence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Evidence:
    """Upper bounds on the error rates of one attack, each with probability at least ``confidence``."""

    false_positive: float
    false_negative: float

    def epsilon(self, delta: float) -> float:
        """The least ε at δ that the rates allow: a mechanism with a smaller one has no such attack."""
        # (ε, δ) in both directions: 1 - β <= δ + e^ε α and 1 - α <= δ + e^ε β.
        one = (1 - self.false_negative - delta, self.false_positive)
        other = (1 - self.false_positive - delta, self.false_negative)
        return max(float(np.log(over / under)) if over > under > 0 else 0.0 for over, under in (one, other))

    def mu(self) -> float:
        """The least μ of Gaussian differential privacy that the rates allow."""
        quantile = stats.norm.isf
        return max(0.0, float(quantile(self.false_positive) + quantile(self.false_negative)))


def evidence(without: Scores, with_canary: Scores, threshold: float, confidence: float) -> Evidence:
    """Clopper and Pearson's bounds for "above the threshold: it is in". The threshold must be from other scores."""
    false_positives, false_negatives = int((without > threshold).sum()), int((with_canary <= threshold).sum())
    # Half of the doubt for each rate.
    level = 1 - (1 - confidence) / 2
    return Evidence(
        _upper(false_positives, len(without), level),
        _upper(false_negatives, len(with_canary), level),
    )


def best_threshold(without: Scores, with_canary: Scores, delta: float, confidence: float) -> float:
    """The threshold whose bound on ε at δ is largest on scores that are for choosing."""
    candidates = np.quantile(np.concatenate((without, with_canary)), np.linspace(0.005, 0.995, 199))
    return float(max(candidates, key=lambda t: evidence(without, with_canary, t, confidence).epsilon(delta)))


def middle_threshold(without: Scores, with_canary: Scores) -> float:
    """The threshold with equal error rates, where μ is seen best."""
    candidates = np.quantile(np.concatenate((without, with_canary)), np.linspace(0.005, 0.995, 199))
    return float(min(candidates, key=lambda t: abs((without > t).mean() - (with_canary <= t).mean())))


def _upper(successes: int, trials: int, level: float) -> float:
    return 1.0 if successes == trials else float(stats.beta.ppf(level, successes + 1, trials - successes))
