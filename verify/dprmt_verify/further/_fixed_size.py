"""Batches of a fixed or a largest size: a sample that joins displaces another one (V9)."""

from collections.abc import Sequence

from flint import arb

from dprmt_verify._balls import ONE, ZERO, normal_above
from dprmt_verify._gaussians import exact
from dprmt_verify._table import Step


class FixedSize(Step):
    """The supremum over data sets from above, the data set whose others are opposite from below.

    Parameters
    ----------
    noises : sequence of float
        Noise multipliers of the sums of a batch.
    rate : arb
    replaced : bool
    """

    def __init__(self, noises: Sequence[float], rate: arb, replaced: bool) -> None:
        length = sum((arb(noise) ** -2 for noise in noises), ZERO).sqrt()
        self._rate, self._joined, self._changed = rate, 2 * length, ZERO if replaced else length

    def removed(self, s: arb) -> arb:
        """δ: of N(2a) against N(a) or N(0) where the loss is positive, else of Poisson sampling's pair exchanged."""
        if s >= 1:
            x = self._threshold(s)
            return self._above(x, self._joined) - s * self._above(x, self._changed)
        moved = self._joined - self._changed
        x = (1 + (1 / s - 1) / self._rate).log() / moved + moved / 2
        return 1 - s + s * self._above(x, moved) - normal_above(x)

    def half_line(self, s: arb) -> tuple[arb, arb]:
        """P of the outcomes beyond the smallest and largest of this loss, Q of those between."""
        try:
            x = self._threshold(s).mid()
        except ValueError:  # no outcome has so small a loss
            return ONE, ZERO
        above, absent = self._above(x, self._joined), 1 - self._above(x, self._changed)
        if self._changed == 0 or self._rate == 1 or not s < 1:
            return above, absent
        x = self._threshold(s, -1).mid()
        return above + 1 - self._above(x, self._joined), absent - 1 + self._above(x, self._changed)

    def _above(self, x: arb, shift: arb) -> arb:
        return (1 - self._rate) * normal_above(x) + self._rate * normal_above(x - shift)

    def _threshold(self, s: arb, sign: int = 1) -> arb:
        """The largest x at which dP/dQ = s, or the smallest."""
        q, a = self._rate, self._changed
        if a == 0:
            return _log(1 + (s - 1) / q) / self._joined + self._joined / 2
        apart = 1 - 4 * (1 - q) / q * (-a * a).exp() * (1 - s) / s**2
        return _log(s * (3 * a * a / 2).exp() / 2 * (1 + sign * _root(apart))) / a


class Truncated(Step):
    """Poisson sampling, or with probability w, where the others fill the batch, a fixed size; the lot is seen."""

    def __init__(self, noises: Sequence[float], rate: float, most: int, samples: int, neighbours: str) -> None:
        q, replaced = arb(rate), neighbours == "replace-one"
        self._full = q.beta_lower(most, samples - most, 1) if most < samples else ZERO
        share = arb(most) / samples * q.beta_lower(most + 1, samples - most, 1) if most < samples else ZERO
        self._plain = exact(noises, q, 1, 1, replaced)
        self._below = exact(noises, q * (1 - self._full) + share, 1, 1, replaced)
        inside = share / self._full if self._full > 0 else q
        self._crowded: Step = FixedSize(noises, inside, replaced)
        if neighbours == "add-remove":
            self._crowded = exact([noise / 2 for noise in noises], inside, 1, 1, False)
        self.least = self._plain.least

    def curve(self, loss: arb) -> tuple[arb, arb]:
        """The mean of both."""
        each = zip(self._plain.curve(loss), self._crowded.curve(loss), strict=True)
        plain, crowded = ((1 - self._full) * one + self._full * other for one, other in each)
        return plain, crowded

    def tails(self, loss: arb) -> tuple[arb, arb]:
        """Of the data set whose others have no gradient."""
        return self._below.tails(loss)


def _log(x: arb) -> arb:
    if not x > 0:
        raise ValueError("the loss is never so small")
    return x.log()


def _root(x: arb) -> arb:
    if not x >= 0:
        raise ValueError("the loss is never so small")
    return x.sqrt()
