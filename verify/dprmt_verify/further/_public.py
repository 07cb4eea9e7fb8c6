"""Steps whose norms are estimated with public probes, the same for all samples of a step (V5)."""

from flint import arb

from dprmt_verify._balls import ZERO, normal_above, normal_density
from dprmt_verify._table import Step
from dprmt_verify.further._norm_ratio import NormRatio


class PublicProbes(Step):
    """Given X = x the step is a sampled Gaussian of shift μ = 1/(σ√x), and X is seen.

    Parameters
    ----------
    noise_multiplier, rate : float
        σ and q.
    charged, attained : NormRatio
        X of a law that no gradient exceeds in convex functions, and of some gradient; where they are the same one,
        min(X, 1) is stochastically below all (V5).
    """

    def __init__(self, noise_multiplier: float, rate: float, charged: NormRatio, attained: NormRatio) -> None:
        self._sigma, self._rate, self._ordered = arb(noise_multiplier), arb(rate), charged is attained
        self.least = (1 - self._rate).log() if rate < 1 else None
        self._lost, spread = charged.spread(self._bend)
        self._above = [(mass, x, 1 / (self._sigma * x.sqrt())) for mass, x in spread]
        self._below = [(mass, 1 / (self._sigma * x.sqrt())) for mass, x in attained.pulled(self._bend)]

    def removed(self, s: arb) -> arb:
        """δ, by the unsampled curve at κ = 1 + (s - 1)/q."""
        kappa = 1 + (s - 1) / self._rate
        delta = self._expected(abs(kappa.log()))
        return self._rate * (delta if kappa >= 1 else 1 - kappa + kappa * delta)

    def half_line(self, s: arb) -> tuple[arb, arb]:
        """P of all larger losses, Q of the others."""
        log = (1 + (s - 1) / self._rate).log()
        moved = sum((mass * normal_above(log / mu - mu / 2) for mass, mu in self._below), ZERO)
        absent = sum((mass * normal_above(log / mu + mu / 2) for mass, mu in self._below), ZERO)
        return absent + self._rate * (moved - absent), 1 - absent

    def _bend(self, left: arb) -> arb:
        """ρ such that h falls and is convex in e^{ρx} right of ``left``, at every ε."""
        return ((1 / (12 * self._sigma**2 * left) - 1) * 3 / (2 * left)).upper().max(ZERO)

    def _height(self, epsilon: arb, mu: arb) -> arb:
        return normal_above(epsilon / mu - mu / 2) - epsilon.exp() * normal_above(epsilon / mu + mu / 2)

    def _expected(self, epsilon: arb) -> arb:
        """At least E h(X) for every spectrum, h the unsampled curve at ε as a function of X."""
        most = (6 + 2 * (9 + epsilon**2).sqrt()).sqrt()  # h is convex right of X = 1/(σ·most)²
        end, top = 1 / (self._sigma * most) ** 2, self._height(epsilon, most)
        slope = most / 2 * normal_density(epsilon / most - most / 2) / end
        at_one, tight, ordered = self._height(epsilon, 1 / self._sigma), self._lost * (top + slope * end), self._lost
        for mass, x, mu in self._above:
            value = self._height(epsilon, mu)
            tight += mass * value.max(top + slope * (end - x))  # the tangent where it is above
            ordered += mass * (at_one if x >= 1 else value)
        return tight.upper().min(ordered.upper()) if self._ordered else tight.upper()
