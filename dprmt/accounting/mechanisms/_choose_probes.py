"""How to spend a budget of products per layer: probes alone, or a sketch and probes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dprmt._validation import ParameterError, check_count
from dprmt.accounting.basics._bounds import PrivacyBounds
from dprmt.accounting.laws._norms import ExactNorms, Hutchinson, HutchPlusPlus, Norms
from dprmt.accounting.mechanisms._dpsgd import DPSGD


class NormCost(NamedTuple):
    """Cost of one sample's norms, over all layers.

    Attributes
    ----------
    flops : int
        Multiplications and additions, summed over layers.
    bytes : int
        Memory in addition to the float32 activations, for the largest layer.
    """

    flops: int
    bytes: int


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
    shapes = None if layers is None else _checked_layers(layers)

    def choice(norms: Norms, products: int = budget) -> ProbeChoice:
        bounds = replace(mechanism, norms=norms).epsilon(steps=steps, delta=delta, epochs=epochs)
        return ProbeChoice(norms, products, bounds, None if shapes is None else _norm_cost(shapes, norms, products))

    # With fewer probes the tail of Z is heavy for no gain in the sketch.
    least_probes = max(2, min(8, budget // 3), budget // 6)
    rows = []
    for secret in (False, True):
        rows.append(choice(Hutchinson(budget, secret=secret)))
        for per_column, power in ((2, False), (3, True)):  # products for each column of the sketch

            def row(
                sketch: int, per_column: int = per_column, power: bool = power, secret: bool = secret
            ) -> ProbeChoice:
                probes = budget - per_column * sketch
                return choice(HutchPlusPlus(probes, sketch, power_iteration=power, secret=secret))

            widest = (budget - least_probes) // per_column
            if widest >= 3:
                rows.append(_best_width(row, widest))
    return (choice(ExactNorms(), 0), *sorted(rows, key=lambda row: row.epsilon.upper))


def _best_width(row: Callable[[int], ProbeChoice], widest: int) -> ProbeChoice:
    """Return the best of a few widths, then of those half-way to its neighbours."""
    tried = {int(width): row(int(width)) for width in np.unique(np.linspace(3, widest, 5).round())}
    for _ in range(2):
        widths = sorted(tried)
        place = widths.index(min(tried, key=lambda width: tried[width].epsilon.upper))
        near = widths[max(place - 1, 0) : place + 2]
        for middle in {(low + high) // 2 for low, high in itertools.pairwise(near)} - set(tried):
            tried[middle] = row(middle)
    return min(tried.values(), key=lambda choice: choice.epsilon.upper)


def _checked_layers(layers: Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
    if len(layers) == 0 or any(not isinstance(layer, Sequence) or len(layer) != 3 for layer in layers):
        raise ParameterError("layers", layers, "a non-empty list of (tokens, in_features, out_features)")
    return [(check_count("layers", a), check_count("layers", b), check_count("layers", c)) for a, b, c in layers]


def _norm_cost(layers: Sequence[tuple[int, int, int]], norms: Norms, products: int) -> NormCost:
    """Estimate the cost of a norm method with this number of products per layer.

    Exact norms use the gradient AᵀG or two T x T matrices, whichever takes fewer operations. Layers whose smaller side
    is at most s + k are exact. Hutch++ includes the orthonormal basis and the projection of the probes.
    """
    probes, sketch, costs = getattr(norms, "probes", 0), getattr(norms, "sketch", 0), []
    for tokens, rows, columns in layers:
        side = min(rows, columns)
        if isinstance(norms, ExactNorms) or side <= probes + sketch:
            ghost = 2 * tokens**2 * (rows + columns), 2 * tokens**2
            flops, numbers = min((2 * tokens * rows * columns, rows * columns), ghost)
        else:
            flops = products * 2 * tokens * (rows + columns) + 2 * side * sketch**2 + 4 * side * sketch * probes
            numbers = (tokens + max(rows, columns)) * max(probes, sketch) + side * (probes + sketch)
        costs.append((flops, 4 * numbers))  # of float32
    return NormCost(sum(flops for flops, _ in costs), max(memory for _, memory in costs))
