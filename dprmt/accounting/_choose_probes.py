"""How to spend a budget of products per layer: probes alone, or a sketch and probes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dprmt._validation import check_count
from dprmt.accounting._bounds import PrivacyBounds
from dprmt.accounting._mechanisms import DPSGD, ProbeSharing, RandomizedClipping
from dprmt.accounting._norm_cost import LayerShape, NormCost, check_layers, estimate_cost, exact_cost

_FIRST_TRIES = 5


@dataclass(frozen=True)
class ProbeChoice:
    """One row of :func:`choose_probes`.

    Attributes
    ----------
    estimator : str
        "exact norms", "Hutchinson", "Hutch++, one pass" or "Hutch++, power iteration".
    probe_sharing : {"batch", "sample"} or None
        ``None`` for exact norms.
    probes, sketch : int or None
        k and s.
    power_iteration : bool
        As in :class:`RandomizedClipping`.
    products : int
        Products with the gradient or its transpose per layer: k, 2s + k or 3s + k; 0 for exact norms.
    epsilon : PrivacyBounds
        ε of the run.
    cost : NormCost or None
        Operations and memory per sample, where layers were given.
    """

    estimator: str
    probe_sharing: ProbeSharing | None
    probes: int | None
    sketch: int | None
    power_iteration: bool
    products: int
    epsilon: PrivacyBounds
    cost: NormCost | None = None


@dataclass(frozen=True)
class _Kind:
    """A way to spend the budget; ``per_column`` products for each column of the sketch."""

    estimator: str
    per_column: int
    power_iteration: bool = False

    def probes(self, budget: int, sketch: int) -> int:
        return budget - self.per_column * sketch


_HUTCHINSON = _Kind("Hutchinson", 0)
_SKETCHED = (_Kind("Hutch++, one pass", 2), _Kind("Hutch++, power iteration", 3, power_iteration=True))


def choose_probes(
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    delta: float,
    budget: int,
    *,
    layers: Sequence[Sequence[int]] | None = None,
) -> tuple[ProbeChoice, ...]:
    """The best split of ``budget`` products per layer between sketch and probes, for each estimator and sharing.

    Parameters
    ----------
    noise_multiplier, sample_rate : float
        σ and q.
    steps : int
        Number of steps.
    delta : float
        δ.
    budget : int
        Products of a vector with each layer's gradient or its transpose, in [2, 1e5].
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
    Each row's ε is that of the mechanism with the row's own numbers, certified as everywhere. That no other split would
    be better is not: a few widths of the sketch are tried, then those beside the best one.

    Examples
    --------
    >>> exact, best, *others = choose_probes(2.0, 0.03, 400, 1e-5, budget=32)
    >>> best.estimator, best.probe_sharing, exact.epsilon.upper < best.epsilon.upper < 1.02 * exact.epsilon.upper
    ('Hutch++, one pass', 'sample', True)
    """
    budget = check_count("budget", budget, low=2, high=10**5)
    shapes = None if layers is None else check_layers(layers)
    reference = DPSGD(noise_multiplier, sample_rate).epsilon(steps, delta)
    cost = None if shapes is None else exact_cost(shapes)
    exact = ProbeChoice("exact norms", None, None, None, False, 0, reference, cost)
    rows = []
    for sharing in ("batch", "sample"):
        for kind in (_HUTCHINSON, *_SKETCHED):

            def row(sketch: int, kind: _Kind = kind, sharing: ProbeSharing = sharing) -> ProbeChoice:
                return _choice(kind, sharing, sketch, budget, (noise_multiplier, sample_rate, steps, delta), shapes)

            widest = (budget - _least_probes(budget)) // kind.per_column if kind.per_column else 0
            if not kind.per_column:
                rows.append(row(0))
            elif widest >= 3:
                rows.append(_best_width(row, widest))
    return (exact, *sorted(rows, key=lambda choice: choice.epsilon.upper))


def _choice(
    kind: _Kind,
    sharing: ProbeSharing,
    sketch: int,
    budget: int,
    run: tuple[float, float, int, float],
    shapes: tuple[LayerShape, ...] | None,
) -> ProbeChoice:
    sigma, rate, steps, delta = run
    probes, width = kind.probes(budget, sketch), sketch or None
    mechanism = RandomizedClipping(
        sigma, rate, probes, probe_sharing=sharing, sketch=width, power_iteration=kind.power_iteration
    )
    cost = None if shapes is None else estimate_cost(shapes, probes, width, budget)
    bounds = mechanism.epsilon(steps, delta)
    return ProbeChoice(kind.estimator, sharing, probes, width, kind.power_iteration, budget, bounds, cost)


def _least_probes(budget: int) -> int:
    """Fewer are never the best split: the tail of Z would be heavy for no gain in the sketch."""
    return max(2, min(8, budget // 3), budget // 6)


def _best_width(row: Callable[[int], ProbeChoice], widest: int) -> ProbeChoice:
    """The best of a few widths, then of those half-way to its neighbours."""
    tried = {int(width): row(int(width)) for width in np.unique(np.linspace(3, widest, _FIRST_TRIES).round())}
    for _ in range(2):
        widths = sorted(tried)
        place = widths.index(min(tried, key=lambda width: tried[width].epsilon.upper))
        near = widths[max(place - 1, 0) : place + 2]
        for middle in {(low + high) // 2 for low, high in itertools.pairwise(near)} - set(tried):
            tried[middle] = row(middle)
    return min(tried.values(), key=lambda choice: choice.epsilon.upper)
