"""Releases of which only a curve of another privacy definition is known: μ-GDP, zCDP, Rényi divergences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from dprmt._validation import ParameterError, check_real
from dprmt.accounting.basics._value import value_from_dict
from dprmt.accounting.mechanisms._releases import (
    ApproximateRelease,
    GaussianRelease,
    LaplaceRelease,
    Release,
    ReleaseStep,
)
from dprmt.accounting.pairs._pairs import PublicPair, Step
from dprmt.accounting.pairs._renyi import NOTHING, RenyiStep


@dataclass(frozen=True, repr=False)
class GaussianDPRelease(Release):
    """Describe a release by any mechanism that is μ-GDP (Gaussian differential privacy).

    Parameters
    ----------
    mu : float
        μ, for the same neighbours as the run; in [1e-6, 1e3].

    Privacy
    -------
    Holds if: its trade-off function is nowhere below the one of N(0, 1) against N(μ, 1), in either direction.
    Covers: the upper end. The lower end of a composition counts the release as nothing, since it may be more private.

    Examples
    --------
    >>> from dprmt.accounting import compose
    >>> bounds = compose([GaussianDPRelease(1.0)]).epsilon(1e-5)
    >>> bounds.lower, f"{bounds:.2f}"
    (0.0, '4.38')
    """

    kind: ClassVar[str] = "gaussian-dp"

    mu: float

    def __post_init__(self) -> None:
        self._keep(mu=check_real("mu", self.mu, low=1e-6, high=1e3))

    def step(self) -> Step:
        """Return one step; see :meth:`Release.step`."""
        return ReleaseStep(PublicPair(np.array([self.mu]), np.ones(1), 1.0), NOTHING)


@dataclass(frozen=True, repr=False)
class ZCDPRelease(Release):
    """Describe a release by any mechanism that is ρ-zCDP (zero-concentrated differential privacy).

    Parameters
    ----------
    rho : float
        ρ: Rényi divergences are at most ρα for every α > 1, in both directions; in [1e-12, 1e4].

    Privacy
    -------
    Covers: the upper end; ρ of several such releases adds up before it is converted. The lower end counts nothing.
    Proof: ``docs/theory/batches.md``, "Releases known by another definition".

    Examples
    --------
    >>> from dprmt.accounting import compose
    >>> f"{compose([(ZCDPRelease(0.01), 10)]).epsilon(1e-5):.2f}"  # as ρ = 0.1
    '1.92'
    """

    kind: ClassVar[str] = "zcdp"

    rho: float

    def __post_init__(self) -> None:
        self._keep(rho=check_real("rho", self.rho, low=1e-12, high=1e4))

    def step(self) -> Step:
        """Return one step; see :meth:`Release.step`."""
        return RenyiStep(rho=self.rho)


@dataclass(frozen=True, repr=False)
class RenyiRelease(Release):
    """Describe a release by any mechanism whose Rényi divergences of some orders are bounded (RDP).

    Parameters
    ----------
    orders : sequence of float
        Increasing, each in (1, 1e6].
    values : sequence of float
        The bounds, one for each order, in both directions; >= 0.

    Privacy
    -------
    Covers: the upper end; divergences of several such releases add up before they are converted. The lower end counts
    nothing. Proof: ``docs/theory/batches.md``, "Releases known by another definition".

    Examples
    --------
    >>> from dprmt.accounting import compose
    >>> gaussian = RenyiRelease(orders=(2.0, 4.0, 8.0, 16.0), values=(0.04, 0.08, 0.16, 0.32))
    >>> f"{compose([gaussian]).epsilon(1e-5):.2f}"
    '0.84'
    """

    kind: ClassVar[str] = "renyi"

    orders: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        orders, values = self._checked("orders", self.orders, 1.0, True), self._checked("values", self.values, 0.0)
        if len(orders) != len(values) or not orders or any(a >= b for a, b in pairwise(orders)):
            raise ParameterError("orders", orders, "increasing orders, as many as values")
        self._keep(orders=orders, values=values)

    @staticmethod
    def _checked(name: str, numbers: Any, low: float, is_open: bool = False) -> tuple[float, ...]:
        if isinstance(numbers, str) or not isinstance(numbers, Sequence):
            raise ParameterError(name, numbers, "a sequence of numbers")
        return tuple(check_real(name, one, low=low, low_open=is_open, high=1e6) for one in numbers)

    def step(self) -> Step:
        """Return one step; see :meth:`Release.step`."""
        return RenyiStep(curves=((self.orders, self.values, 1),))


_KINDS = (GaussianRelease, LaplaceRelease, ApproximateRelease, GaussianDPRelease, ZCDPRelease, RenyiRelease)


def release_from_dict(record: Mapping[str, Any]) -> Release:
    """Return the value that ``as_dict`` described.

    Parameters
    ----------
    record : mapping
        ``kind``, one of "gaussian", "laplace", "approximate", "gaussian-dp", "zcdp" and "renyi", and the
        value's fields.

    Returns
    -------
    Release
        The value, checked.

    Raises
    ------
    ParameterError
        If the kind is none of these, a field is not one of the value's, or a field lies outside its range.

    Examples
    --------
    >>> release_from_dict(GaussianRelease(2.0).as_dict())
    GaussianRelease(2.0)
    """
    made: Release = value_from_dict("release", _KINDS, record)
    return made
