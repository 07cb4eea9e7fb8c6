"""One step as a privacy random variable of the prv-accountant package (version 0.2)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from prv_accountant import PrivacyRandomVariable
from prv_accountant.privacy_random_variables import PrivacyRandomVariableTruncated

from dprmt._validation import ParameterError, check_choice, check_count, check_real
from dprmt.accounting.basics._bounds import Direction
from dprmt.accounting.basics._numbers import Array, NoRenyiDivergenceError
from dprmt.accounting.pairs._allocation import AllocationEpoch
from dprmt.accounting.pairs._pairs import LossCells, StepPair, charged_cells, from_above, graded_indices
from dprmt.accounting.pairs._steps import AnyStep, ClippingStep


def to_prv(
    step: AnyStep | AllocationEpoch,
    direction: Direction = "remove",
    *,
    largest_loss: float | None = None,
    tail: float = 1e-12,
    bins: int = 128,
) -> UpperLoss:
    """Build a privacy random variable that dominates one step in one adjacency direction.

    ``step``: one step, see ``DPSGD.step``. ``direction``: adjacency direction. An object of prv-accountant has one, so
    compose each and use the larger ε. ``largest_loss``: finite losses are kept within ±``largest_loss`` > 0. Mass
    above counts as an infinite loss, and mass below is moved up. ``None`` uses the smallest bound that moves about
    ``tail``. ``tail``: mass that may be cut off, per step, where the laws of sensitivity and loss end; in (0, 0.001].
    ``bins``: number of bins for the law of the sensitivity, ≥ 8; ε's excess falls like 1/bins².

    Formal guarantees
    -----------------
    The pair of :class:`UpperLoss` dominates the step in the named direction, as ``epsilon(...).upper`` does: no mass
    above ``largest_loss`` is dropped or renormalised. The later computations of prv-accountant are not covered. Limits
    of its version 0.2.0:

    * its error bounds assume exact arithmetic. It raises ValueError if δ nears 1e-18, and RuntimeError if its mean
      computation loses the mesh's accuracy (domains of some tens) or no ε in its domain has so small a δ;
    * it does not check ``eps_max``. Composed losses beyond ±``eps_max`` wrap around, which is unsound, and mass of one
      step beyond it is cut off and renormalised. Choose ``eps_max`` above the ε in question *and* above
      ``largest_loss``. prv-accountant warns of the former. Without ``eps_max`` it needs Rényi divergences, which
      randomized clipping does not have;
    * its composition separates ``pm_inf``: δ = 1 - (1 - pm_inf)^T + (1 - pm_inf)^T · δ_finite. This is exact, and
      ``compute_epsilon`` returns (∞, ∞, ∞) once T · pm_inf reaches δ.

    Examples
    --------
    >>> from dprmt.accounting import DPSGD, Hutchinson
    >>> prv = to_prv(DPSGD(1.0, 0.03, Hutchinson(32, secret=False)).step())
    >>> bool(0 < prv.pm_inf < 1e-10), round(float(prv.cdf(0.1)), 3)
    (True, 0.972)
    """
    check_choice("direction", direction, ("remove", "add"))
    tail = check_real("tail", tail, low=0.0, low_open=True, high=1e-3)
    pair = step.upper_with_slack(check_count("bins", bins, low=8), tail)
    if largest_loss is None:
        largest_loss = max(abs(end) for end in pair.loss_range(tail))
    largest_loss = check_real("largest_loss", largest_loss, low=0.0, low_open=True)
    return UpperLoss(step, pair, direction, largest_loss)


class UpperLoss(PrivacyRandomVariable):  # type: ignore[misc]
    """The privacy loss of an upper pair in one direction; made by :func:`to_prv`."""

    def __init__(
        self, step: AnyStep | AllocationEpoch, pair: StepPair, direction: Direction, largest_loss: float
    ) -> None:
        self.direction, self.largest_loss = direction, largest_loss
        self._step, self._pair = step, pair
        self._low, self._high = -largest_loss, largest_loss
        if isinstance(step, ClippingStep | AllocationEpoch) and step.sample_rate < 1.0:
            # A pair's loss is never below log(1 - q), nor an exchanged pair's above -log(1 - q).
            end = min(-1.000001 * math.log1p(-step.sample_rate), largest_loss)
            self._low, self._high = (-end, largest_loss) if direction == "remove" else (-largest_loss, end)
        self._infinite = self._cells(np.array([self._low, self._high])).p_above
        if self._infinite >= 1.0:
            raise ParameterError("largest_loss", largest_loss, "so large that some losses below it remain")

    @property
    def pm_inf(self) -> float:
        """Probability of an infinite loss."""
        return self._infinite

    def cdf(self, t: ArrayLike) -> Any:
        """Evaluate P(L ≤ t) given that L is finite, exact at each t."""
        below, _ = self._tails(np.asarray(t, dtype=np.float64))
        return below if np.ndim(t) else float(below)

    def probability(self, a: ArrayLike, b: ArrayLike) -> Any:
        """Evaluate P(a < L ≤ b) given that L is finite, without cancellation in either tail."""
        ends = np.broadcast_arrays(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))
        below, above = self._tails(np.stack(ends))
        mass = np.where(below[0] < 0.5, below[1] - below[0], above[0] - above[1])
        return mass if mass.ndim else float(mass)

    def mean(self) -> float:
        """Return the mean of the finite losses, by prv-accountant's own quadrature."""
        end = 1.001 * self.largest_loss
        return float(PrivacyRandomVariableTruncated(self, -end, end).mean())

    def rdp(self, alpha: float) -> float:
        """Bound the Rényi divergence of the finite part for exact norms, by which prv-accountant chooses its domain.

        The result is an upper bound: E e^{(α-1)L} of a discrete loss that dominates it.
        """
        if isinstance(self._step, ClippingStep | AllocationEpoch) and not self._step.is_exact:
            raise NoRenyiDivergenceError(
                "randomized clipping has no finite Rényi divergence of any order > 1: its sensitivity Z has a "
                f"polynomial tail, P(Z > z) ~ z^-{self._step.law.probes}, so E exp(c Z^2) is infinite; give "
                f"PRVAccountant an eps_max above both the ε in question and largest_loss = {self.largest_loss:.4g}"
            )
        fine = 2.0**-20  # first node; they grow by a thousandth each
        index = graded_indices(self._low, self._high, fine, 1e3 * fine)
        law = from_above(index, fine, self._cells(index * fine))
        with np.errstate(divide="ignore"):
            total = float(np.logaddexp.reduce(np.log(law.mass) + (alpha - 1.0) * law.losses))
        return (total - math.log1p(-self.pm_inf)) / (alpha - 1.0)

    def _tails(self, t: Array) -> tuple[Array, Array]:
        """Evaluate P(L ≤ t) and P(t < L), both given that L is finite."""
        inside = np.append(np.clip(t.ravel(), self._low, self._high), self._high)
        nodes, place = np.unique(inside, return_inverse=True)
        cells = self._cells(nodes)
        below = cells.p_below + np.append(0.0, np.cumsum(cells.p))
        # Masses that sum to more than 1 say that P(L > t) may be larger by the excess, at every t. The least law for
        # which that is true, up to P(L > t) = 1, has the excess moved from the lowest losses to infinity.
        below = np.maximum(below - (below[-1] - (1.0 - self.pm_inf)), 0.0)
        above = np.append(np.cumsum(cells.p[::-1])[::-1], 0.0)
        at_most, beyond = (
            np.minimum(tail / (1.0 - self.pm_inf), 1.0)[place[:-1]].reshape(t.shape) for tail in (below, above)
        )
        at_most = np.where(t < self._low, 0.0, np.where(t < self._high, at_most, 1.0))
        beyond = np.where(t < self._low, 1.0, beyond)
        # prv-accountant transforms masses in the precision they come in, and checks for that of longdouble.
        return at_most.astype(np.longdouble), beyond.astype(np.longdouble)

    def _cells(self, nodes: Array) -> LossCells:
        nodes = nodes if self.direction == "remove" else -nodes[::-1]
        return charged_cells(self._pair, nodes)[self.direction]
