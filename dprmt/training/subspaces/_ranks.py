"""Rules for the number of dimensions of every layer's subspace."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from dprmt._validation import check_count, check_real
from dprmt.spectra import shrink


@dataclass(frozen=True)
class LayerShape:
    """What a rule may look at: nothing that depends on the data.

    Parameters
    ----------
    name : str
        Of the weight, as in ``model.named_parameters()``.
    m, n : int
        Lengths of the longer side, which is projected, and of the other one.
    """

    name: str
    m: int
    n: int


RankRule: TypeAlias = Callable[[LayerShape], int | None]
"""r for a layer, or None for a layer that is not to be projected."""


def share_of_dimension(share: float, *, at_least: SupportsIndex = 1, at_most: SupportsIndex | None = None) -> RankRule:
    """The rule r = ⌈share·m⌉: the same share of memory saved in every layer.

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
    """The rule r = min(rank, m): one number also for models with layers shorter than it.

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


@dataclass(frozen=True)
class EnergyShare:
    """Adapts r at every change of an SVD subspace: the fewest dimensions that hold a share of the signal's energy.

    What counts is the energy of the singular values of the *released* gradient after shrinkage, so that noise,
    which fills all dimensions alike, does not buy any.

    Parameters
    ----------
    share : float
        In (0, 1].
    at_most : int
        Largest r, which is what memory is needed for; layers whose shorter side is less keep that.
    at_least : int
        Smallest r; what is used if nothing stands out from the noise.

    Formal guarantees
    -----------------
    A function of released gradients and public numbers: post-processing.

    Raises
    ------
    ParameterError
        If an argument is out of its range.

    Examples
    --------
    >>> rule = EnergyShare(0.9, at_most=16)
    >>> rule.adapt([9.0, 4.0, 1.0], (100, 3), noise_std=0.0)  # squares 81, 16, 1
    2
    """

    share: float
    at_most: int
    at_least: int = 1

    def __post_init__(self) -> None:
        check_real("share", self.share, low=0.0, low_open=True, high=1.0)
        check_count("at_least", self.at_least)
        check_count("at_most", self.at_most, low=self.at_least)

    def __call__(self, layer: LayerShape) -> int:
        """The largest r that the layer may get.

        Returns
        -------
        int
            At most n.
        """
        return min(self.at_most, layer.n)

    def adapt(self, singular_values: ArrayLike, shape: tuple[int, int], noise_std: float) -> int:
        """The rank for one layer.

        Parameters
        ----------
        singular_values : array, shape (k,)
            Of the released gradient, descending.
        shape : (int, int)
            m and n.
        noise_std : float
            Standard deviation of the noise in one entry of it.

        Returns
        -------
        int
            Between ``at_least`` and ``at_most``, and at most the number of singular values.
        """
        values = np.asarray(singular_values, dtype=np.float64)
        energy = np.square(shrink(values, shape, noise_std) if noise_std > 0 else values)
        total = energy.sum()
        enough = int(np.searchsorted(energy.cumsum(), self.share * total)) + 1 if total > 0 else self.at_least
        return min(max(enough, self.at_least), self.at_most, len(values))
