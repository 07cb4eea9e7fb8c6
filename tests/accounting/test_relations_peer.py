"""dp-accounting's replaced and mixed Gaussians at thirty drawn settings each: its bounds and ours hold one truth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from dprmt.accounting import DPSGD, Group, ReplaceOne

pytestmark = pytest.mark.peer
COUNT, MESH = 30, 5e-4


def settings(seed: int) -> list[tuple[float, float, int, float, int]]:
    rng = np.random.default_rng(seed)

    def between(low: float, high: float) -> float:
        return math.exp(rng.uniform(math.log(low), math.log(high)))

    return [
        (between(0.5, 8.0), between(1e-4, 1.0), round(between(1, 3e3)), between(1e-9, 1e-2), round(between(2, 12)))
        for _ in range(COUNT)
    ]


def interval(make: Any, steps: int, delta: float) -> tuple[float, float]:
    """ε from below and from above."""
    ends = [
        make(value_discretization_interval=MESH, pessimistic_estimate=is_above, use_connect_dots=is_above)
        .self_compose(steps)
        .get_epsilon_for_delta(delta)
        for is_above in (False, True)
    ]
    return (ends[0] if ends[0] <= ends[1] else 0.0), ends[1]


def check(mechanism: DPSGD, steps: int, delta: float, make: Any) -> None:
    bounds = mechanism.epsilon(steps=steps, delta=delta)
    below, above = interval(make, steps, delta)
    assert bounds.lower <= above * (1 + 1e-6) + 1e-9
    assert below * (1 - 1e-6) - 1e-9 <= bounds.upper
    assert bounds.upper - bounds.lower <= 1.5e-3 * max(1.0, bounds.upper)


@pytest.mark.parametrize(("sigma", "q", "steps", "delta", "size"), settings(0))
def test_replaced_gaussians(sigma: float, q: float, steps: int, delta: float, size: int) -> None:
    del size
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    def make(**mesh: Any) -> Any:
        relation = NeighboringRelation.REPLACE_ONE
        return pld.from_gaussian_mechanism(sigma, sampling_prob=q, neighboring_relation=relation, **mesh)

    check(DPSGD(sigma, q, neighbours=ReplaceOne()), steps, delta, make)


@pytest.mark.parametrize(("sigma", "q", "steps", "delta", "size"), settings(1))
def test_mixed_gaussians(sigma: float, q: float, steps: int, delta: float, size: int) -> None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    weight = binom.pmf(np.arange(size + 1), size, q)
    kept = [(float(j), float(share)) for j, share in enumerate(weight) if share > 0]

    def make(**mesh: Any) -> Any:
        means, shares = zip(*kept, strict=True)
        return pld.from_mixture_gaussian_mechanism(sigma, list(means), list(shares), **mesh)

    check(DPSGD(sigma, q, neighbours=Group(size)), steps, delta, make)
