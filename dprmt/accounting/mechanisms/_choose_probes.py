"""How to spend a budget of products per layer: probes alone, or a sketch and probes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dprmt._validation import check_count
from dprmt.accounting.basics._bounds import PrivacyBounds
from dprmt.accounting.laws import ExactNorms, Hutchinson, HutchPlusPlus, Norms
from dprmt.accounting.mechanisms._dpsgd import DPSGD
from dprmt.accounting.mechanisms._norm_cost import NormCost, check_layers, norm_cost

_FIRST_TRIES = 5


@dataclass(frozen=True)
class ProbeChoice:
    """One row of :func:`choose_probes`.

    Attributes
    ----------
    norms : Norms
        How norms are taken, for :class:`DPSGD`.
    products : int
        Products with the gradient or its transpose per layer: k, 2s + k or 3s + k; 0 for exact norms.
    epsilon : PrivacyBounds
        ε of the run.
    cost : NormCost or None
        Operations and memory per sample, where layers were given.
    """

    norms: Norms
    products: int
    epsilon: PrivacyBounds
    cost: NormCost | None = None


@dataclass(frozen=True)
class _Kind:
    """A way to spend the budget; ``per_column`` products for each column of the sketch."""

    per_column: int
    power_iteration: bool = False

    def norms(self, budget: int, sketch: int, secret: bool) -> Norms:
        probes = budget - self.per_column * sketch
        if not sketch:
            return Hutchinson(probes, secret=secret)
        return HutchPlusPlus(probes, sketch, power_iteration=self.power_iteration, secret=secret)


_HUTCHINSON = _Kind(0)
_SKETCHED = (_Kind(2), _Kind(3, power_iteration=True))


def choose_probes(
    mechanism: DPSGD,
    *,
    budget: int,
    delta: float,
    steps: int | None = None,
    epochs: int | None = None,
    layers: Sequence[Sequence[int]] | None = None,
) -> tuple[ProbeChoice, ...]:
    """Rank splits of ``budget`` products per layer between sketch and probes, public and secret.

    Parameters
    ----------
    mechanism : DPSGD
        Its noise and sampling are used; its norms are ignored.
    budget : int
        Products of a vector with each layer's gradient or its transpose, in [2, 1e5].
    delta : float
        The δ at which ε is compared, in [1e-290, 1).
    steps, epochs : int or None
        Length of the run, as in :meth:`DPSGD.epsilon`.
    layers : sequence of (tokens, in_features, out_features), optional
        Shapes of the linear layers, for the cost of each choice.

    Returns
    -------
    tuple of ProbeChoice
        Exact norms first, as the reference; then the smallest ε first. Hutch++ is left out where the budget is too
        small for it.

    Raises
    ------
    ParameterError
        If an argument lies outside its range.

    Formal guarantees
    -----------------
    The ε of each row is certified for the mechanism with the norms of this row. The optimality of the split is not
    certified: a few sketch widths are tried, then the neighbours of the best one.

    Examples
    --------
    >>> exact, best, *others = choose_probes(DPSGD(2.0, 0.03), steps=400, delta=1e-5, budget=32)
    >>> best.norms, exact.epsilon.upper < best.epsilon.upper < 1.02 * exact.epsilon.upper
    (HutchPlusPlus(..., secret=True), True)
    """
    budget = check_count("budget", budget, low=2, high=10**5)
    shapes = None if layers is None else check_layers(layers)

    def choice(norms: Norms, products: int = budget) -> ProbeChoice:
        bounds = replace(mechanism, norms=norms).epsilon(steps=steps, delta=delta, epochs=epochs)
        return ProbeChoice(norms, products, bounds, None if shapes is None else norm_cost(shapes, norms, products))

    rows = []
    for secret in (False, True):
        for kind in (_HUTCHINSON, *_SKETCHED):

            def row(sketch: int, kind: _Kind = kind, secret: bool = secret) -> ProbeChoice:
                return choice(kind.norms(budget, sketch, secret))

            widest = (budget - _least_probes(budget)) // kind.per_column if kind.per_column else 0
            if not kind.per_column:
                rows.append(row(0))
            elif widest >= 3:
                rows.append(_best_width(row, widest))
    return (choice(ExactNorms(), 0), *sorted(rows, key=lambda row: row.epsilon.upper))


def _least_probes(budget: int) -> int:
    """Return the fewest probes worth trying: with fewer, the tail of Z is heavy for no gain in the sketch."""
    return max(2, min(8, budget // 3), budget // 6)


def _best_width(row: Callable[[int], ProbeChoice], widest: int) -> ProbeChoice:
    """Return the best of a few widths, then of those half-way to its neighbours."""
    tried = {int(width): row(int(width)) for width in np.unique(np.linspace(3, widest, _FIRST_TRIES).round())}
    for _ in range(2):
        widths = sorted(tried)
        place = widths.index(min(tried, key=lambda width: tried[width].epsilon.upper))
        near = widths[max(place - 1, 0) : place + 2]
        for middle in {(low + high) // 2 for low, high in itertools.pairwise(near)} - set(tried):
            tried[middle] = row(middle)
    return min(tried.values(), key=lambda choice: choice.epsilon.upper)
