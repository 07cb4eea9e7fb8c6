"""Steps whose norms are estimated with probes of each sample's own that nobody sees (V6)."""

from flint import arb

from dprmt_verify._balls import ZERO, normal_above, normal_density
from dprmt_verify._gaussians import Gaussians
from dprmt_verify.further._norm_ratio import NormRatio


class SecretProbes(Gaussians):
    """(1 - q)·N(0, 1) + q·E N(μ, 1) against N(0, 1), μ = 1/(σ√X); from above with a majorant of T(t) = E Φ(μ - t).

    Parameters
    ----------
    noise_multiplier, rate : float
        σ and q.
    charged, attained : NormRatio
        X of a law that no gradient exceeds in convex functions, and of some gradient.
    """

    def __init__(self, noise_multiplier: float, rate: float, charged: NormRatio, attained: NormRatio) -> None:
        def shift(x: arb) -> arb:
            return 1 / (noise_multiplier * x.sqrt())

        lost, atoms = charged.spread(lambda left: ZERO)
        super().__init__(1 - arb(rate), [(mass * rate, shift(x)) for mass, x in atoms])
        last = self.moving[0][1] + 40  # a later threshold's power is at most that of this one: what is lost
        self._lost = rate * lost * _tangent(_turn(last), ZERO) + normal_above(arb(40))
        self._bins = [(x.mass * rate, shift(x.left), shift(x.mean), shift(x.right)) for x in attained.bins[1:]]
        self._plain = Gaussians(self.still, [(mass, mean) for mass, _, mean, _ in self._bins])
        self._cap, low = last, arb(-64)
        for _ in range(30):
            middle = (low + self._cap) / 2
            if self._moved(middle) + self._lost < rate:
                self._cap = middle.mid()
            else:
                low = middle
        if not self._moved(self._cap) + self._lost < rate:
            raise ArithmeticError("no power below that of all outcomes")

    def removed(self, s: arb) -> arb:
        """δ by the majorant, which is 1 left of the cap."""
        if s - self.still < self.ratio(self._cap):
            return 1 - self.still + (self.still - s) * normal_above(self._cap)
        x = self.threshold(s)
        return self.above(x) + self._lost - s * normal_above(x)

    def half_line(self, s: arb) -> tuple[arb, arb]:
        """P at least, for the attained ratio, and Q of the rest."""
        x = self._plain.threshold(s).mid()
        turn, above = _turn(x), self.still * normal_above(x)
        for mass, left, mean, right in self._bins:
            above += mass * normal_above(x - (mean if left < turn else right))
        return above.lower(), normal_above(-x)

    def above(self, x: arb) -> arb:
        """P(y > x), at least."""
        return self.still * normal_above(x) + self._moved(x)

    def ratio(self, x: arb) -> arb:
        """Of the majorant's density to the normal one."""
        turn, value = _turn(x), ZERO
        for mass, mu in self.moving:
            if mu < turn:
                value += mass * (mu * x - mu**2 / 2).exp()
            elif mu > turn:
                value += mass * (turn * x - turn**2 / 2).exp() * (3 * (turn / mu) ** 2 - 1).nonnegative_part() / 2
            else:
                raise ArithmeticError("a threshold at which a majorant turns")
        return value

    def _moved(self, x: arb) -> arb:
        turn, total = _turn(x), ZERO
        for mass, mu in self.moving:
            if mu < turn:
                total += mass * normal_above(x - mu)
            else:
                start = turn.max(mu / arb(3).sqrt())  # where the majorant would grow with t, it stays
                total += mass * _tangent(start, (start / mu) ** 2).max(normal_above(x - mu))
        return total


def _turn(t: arb) -> arb:
    """Φ(μ - t) is a convex function of X where μ is at most this."""
    return (t + (t**2 + 12).sqrt()) / 2


def _tangent(turn: arb, y: arb) -> arb:
    """At y of the way from X = 0 to where it touches."""
    return normal_above(-3 / turn) + turn / 2 * normal_density(3 / turn) * (1 - y)
