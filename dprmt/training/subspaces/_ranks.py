"""Rules for the number of dimensions of every layer's subspace."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import SupportsIndex, TypeAlias

from dprmt._validation import check_count, check_real


@dataclass(frozen=True)
class LayerShape:
    """Shape of a layer, the only input of a rule: nothing that depends on the data.

    Parameters
    ----------
    name : str
        Name of the weight, as in ``model.named_parameters()``.
    m, n : int
        Lengths of the longer side, which is projected, and of the other one.
    """

    name: str
    m: int
    n: int


RankRule: TypeAlias = Callable[[LayerShape], int | None]
"""r for a layer, or None for a layer that is not to be projected."""


def share_of_dimension(share: float, *, at_least: SupportsIndex = 1, at_most: SupportsIndex | None = None) -> RankRule:
    """Return the rule r = ⌈share·m⌉: the same share of memory saved in every layer.

    Parameters
    ----------
    share : float
        In (0, 1]; also the share of the per-sample gradients' memory that remains.
    at_least, at_most : int
        Bounds on r; layers shorter than ``at_least`` keep r = m.

    Returns
    -------
    callable
        The rule.

    Raises
    ------
    ParameterError
        If an argument is out of its range.

    Examples
    --------
    >>> rule = share_of_dimension(1 / 16, at_least=8, at_most=64)
    >>> [rule(LayerShape("l", m, 4)) for m in (4, 64, 768, 3072)]
    [4, 8, 48, 64]
    """
    part = check_real("share", share, low=0.0, low_open=True, high=1.0)
    low = check_count("at_least", at_least)
    high = None if at_most is None else check_count("at_most", at_most, low=low)

    def rule(layer: LayerShape) -> int:
        r = max(low, math.ceil(part * layer.m))
        return min(layer.m, r if high is None else min(r, high))

    return rule


def at_most(rank: SupportsIndex) -> RankRule:
    """Return the rule r = min(rank, m): one number also for models with layers shorter than it.

    Parameters
    ----------
    rank : int
        r >= 1 of layers that are long enough.

    Returns
    -------
    callable
        The rule.

    Raises
    ------
    ParameterError
        If the rank is not an integer >= 1.

    Examples
    --------
    >>> rule = at_most(64)
    >>> [rule(LayerShape("l", m, 4)) for m in (16, 768)]
    [16, 64]
    """
    r = check_count("rank", rank)
    return lambda layer: min(r, layer.m)
