r"""One step of Poisson-subsampled Gaussian noise whose random sensitivity Z is public.

P: (Z, (1-q) N(0,1) + q N(Z/σ, 1)) against Q: (Z, N(0,1)). The privacy loss is an increasing function of
the second coordinate, for each value of Z: equation (A1) of ``docs/theory/randomized_clipping.md``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from dprmt.accounting.basics import Array
from dprmt.accounting.pairs._cells import ROWS_AT_A_TIME, LossCells, interval_masses


@dataclass(frozen=True)
class PublicPair:
    """The pair for a discrete law of the sensitivity.

    ``infinite``: probability of Z = ∞: the sample's participation is then plain to see.
    ``slack``: extra probability charged to an infinite loss in both directions.
    """

    shift: Array
    mass: Array
    sample_rate: float
    infinite: float = 0.0
    slack: float = 0.0

    def loss_range(self, tail: float) -> tuple[float, float]:
        """An interval outside which P has mass at most ``tail`` above and Q at most ``tail`` below."""
        share = np.minimum(tail / (self.mass.size * self.mass), 0.5)
        top = self.shift - ndtri(np.minimum(share / self.sample_rate, 0.5))
        high = float(np.max(self._loss(np.maximum(top, -ndtri(share)))))
        if self.sample_rate < 1.0:
            return float(np.log1p(-self.sample_rate)), high
        return float(np.min(self._loss(ndtri(share)))), high

    def _loss(self, y: Array) -> Array:
        q, mu = self.sample_rate, self.shift
        exponent = mu * y - mu**2 / 2
        if q == 1.0:
            return exponent
        return np.logaddexp(np.log1p(-q), np.log(q) + exponent)

    def cells(self, nodes: Array) -> LossCells:
        """Masses between increasing loss nodes, mixed over Z."""
        return self.mixed(nodes, *self._masses(nodes))

    def _masses(self, nodes: Array) -> tuple[Array, Array]:
        """Masses of the intervals between losses and beyond them, without and with the sample."""
        ratio = np.concatenate([[-np.inf], log_shift_ratio(nodes, self.sample_rate), [np.inf]])
        absent, present = np.empty((2, nodes.size + 1))
        for start in range(0, nodes.size + 1, ROWS_AT_A_TIME):
            rows = slice(start, start + ROWS_AT_A_TIME)
            with np.errstate(over="ignore"):
                y = ratio[start : start + ROWS_AT_A_TIME + 1, None] / self.shift + self.shift / 2
            absent[rows] = interval_masses(y) @ self.mass
            present[rows] = interval_masses(y - self.shift) @ self.mass
        return absent, present

    def mixed(self, nodes: Array, absent: Array, present: Array) -> LossCells:
        """The cells from their masses without and with the sample, the first and last of which lie outside."""
        q = self.sample_rate
        p = (1.0 - q) * absent + q * present
        if self.infinite > 0:  # with Z = ∞ the loss is ∞ if the sample takes part, else log(1 - q)
            lowest = int(np.searchsorted(nodes, np.log1p(-q))) if q < 1.0 else 0
            p[lowest] += (1.0 - q) * self.infinite
            absent = absent.copy()
            absent[lowest] += self.infinite
            p[-1] += q * self.infinite
        return LossCells(
            p=p[1:-1],
            q=absent[1:-1],
            p_below=float(p[0]),
            q_below=float(absent[0]),
            p_above=float(p[-1]),
            q_above=float(absent[-1]),
        )

    def total_variation(self) -> float:
        """H_1 of the pair without subsampling, E[2Φ(μ/2) - 1]."""
        return float((2 * ndtr(self.shift / 2) - 1) @ self.mass) + self.infinite


def log_shift_ratio(loss: Array, sample_rate: float) -> Array:
    """Log of the likelihood ratio r of the unsampled pair at a given loss, from exp(loss) = 1 - q + q r."""
    if sample_rate == 1.0:
        return loss
    low = np.log1p(-sample_rate)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        above = np.log((1.0 - sample_rate) * np.expm1(np.maximum(loss - low, 0.0)))
        large = loss + np.log1p(-(1.0 - sample_rate) * np.exp(-loss))
    return np.where(loss > 1.0, large, above) - np.log(sample_rate)
