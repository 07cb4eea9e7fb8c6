"""Steps whose pair is a mixture of Gaussians: exact norms, groups, replaced samples (V4)."""

import math
from collections.abc import Sequence

from flint import arb, ctx

from dprmt_verify._balls import ONE, ZERO, normal_above
from dprmt_verify._table import Step


class Gaussians(Step):
    """P = still·N(0, 1) + Σ w_j N(a_j, 1), a_j > 0, against N(0, 1), or against its own mirror image.

    Parameters
    ----------
    still : arb
        At least 0; 0 too where P has no such part.
    moving : sequence of (w_j, a_j)
    mirrored : bool
    """

    def __init__(self, still: arb, moving: Sequence[tuple[arb, arb]], mirrored: bool = False) -> None:
        self.still, self.moving, self.mirrored, self._near = still, moving, mirrored, ZERO
        self.least = still.log() if still > 0 and not mirrored else None

    def removed(self, s: arb) -> arb:
        """δ."""
        above, rest = self.half_line(s)
        return above - s * (1 - rest)

    def half_line(self, s: arb) -> tuple[arb, arb]:
        """P of all larger losses, Q of the others."""
        x = self.threshold(s)
        return self.above(x), self.above(-x) if self.mirrored else normal_above(-x)

    def above(self, x: arb) -> arb:
        """P(y > x)."""
        return self.still * normal_above(x) + sum((w * normal_above(x - a) for w, a in self.moving), ZERO)

    def ratio(self, x: arb) -> arb:
        """Of the moving part's density to the normal one."""
        return sum((w * (a * x - a * a / 2).exp() for w, a in self.moving), ZERO)

    def threshold(self, s: arb) -> arb:
        """A ball around the x at which dP/dQ = s, from Newton's method on log left - log right; certified by signs."""
        x, small = self._near, arb(2) ** (-ctx.prec // 3)
        for _ in range(60):
            here, there = self._excess(x, s), self._excess(x + small, s)
            move = (small * here / (there - here)).mid()
            x = (x - move).mid()
            if abs(move) < small:
                break
        for spare in range(8, ctx.prec, 8):
            radius = arb(2) ** (spare - ctx.prec) * (1 + abs(x))
            low, high = (x - radius).lower(), (x + radius).upper()
            if self._excess(low, s) < 0 and self._excess(high, s) > 0:
                self._near = x
                return low.union(high)
        raise ArithmeticError("a threshold of the privacy loss was not found")

    def _excess(self, x: arb, s: arb) -> arb:
        """Logarithm of left over right, where P - sQ is left - right over the normal density, both positive."""
        constant = self.still - s * (self.still if self.mirrored else 1)
        right = s * self.ratio(-x) if self.mirrored else ZERO
        return ((self.ratio(x) + constant.nonnegative_part()) / (right + (-constant).nonnegative_part())).log()


def exact(noises: Sequence[float], rate: float | arb, group: int, steps: int, mirrored: bool) -> Gaussians:
    """Removing or replacing ``group`` samples with coins of their own in a step; without sampling, in all steps.

    Sums of one batch with these noises are one vector, in which a sample's length is √Σ1/σ². A step is
    Σ Bin(m, q)(j) N(j/σ, 1) against N(0, 1), or its mirror image. Without sampling, T steps are one at σ/√T.
    """
    length = sum((arb(noise) ** -2 for noise in noises), ZERO).sqrt()
    if rate == 1:
        return Gaussians(ZERO, [(ONE, group * arb(steps).sqrt() * length)], mirrored)
    weights = [math.comb(group, j) * arb(rate) ** j * (1 - arb(rate)) ** (group - j) for j in range(group + 1)]
    return Gaussians(weights[0], [(weights[j], j * length) for j in range(1, group + 1)], mirrored)
