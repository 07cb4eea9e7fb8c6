"""Norm methods: which law the squared-norm ratio has, and who may see the probes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from dprmt._validation import ParameterError, check_choice, check_count
from dprmt.accounting.basics._value import Value, value_from_dict
from dprmt.accounting.laws._laws import EnvelopeLaw, ExactLaw, NormLaw, RankOneLaw, SketchedLaw
from dprmt.accounting.laws._sketch import Head

Analysis = Literal["tight", "envelope"]


class Norms(Value):
    """The way per-sample norms are taken; one of :class:`ExactNorms`, :class:`Hutchinson`, :class:`HutchPlusPlus`.

    Examples
    --------
    >>> isinstance(Hutchinson(32, secret=False), Norms)
    True
    """

    secret: bool = False
    """True if probes are known to the training code alone."""

    def law(self) -> NormLaw:
        """Return the law of the squared-norm ratio that the accountant uses.

        Returns
        -------
        NormLaw
            The law from which dominating pairs are built.
        """
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class ExactNorms(Norms):
    """Exact per-sample norms: of formed gradients, or ghost norms.

    Formal guarantees
    -----------------
    The norm of every trainable parameter must be exact, up to a rounding margin that is accounted for separately.

    Examples
    --------
    >>> from dprmt.accounting import DPSGD
    >>> DPSGD(1.0, 0.01) == DPSGD(1.0, 0.01, ExactNorms())
    True
    """

    kind: ClassVar[str] = "exact"

    def law(self) -> NormLaw:
        """See :meth:`Norms.law`."""
        return ExactLaw()


@dataclass(frozen=True, repr=False)
class Hutchinson(Norms):
    """Norms estimated by Hutchinson's estimator with Gaussian probes: randomized clipping.

    Parameters
    ----------
    probes : int
        k, number of Gaussian probe vectors per layer; in [2, 1e5].
    secret : bool
        Must be stated. It has no default. False: probes are public, one matrix per layer and step; this is the weaker
        assumption. True: every sample has separate probes, which only the training code sees.
    rank : int or None
        d, an upper bound on the number of nonzero singular values of all layers together. Only allowed if *every*
        parameter's norm is estimated. Used by ``analysis="envelope"``; ``None`` makes no claim.
    analysis : {"tight", "envelope"}
        "tight": every spectrum is compared with a rank-one gradient (§4 and §5 of the theory). "envelope": with the
        stochastic order's envelope of all spectra (§2), the published analysis.

    Formal guarantees
    -----------------
    The bounds of :class:`DPSGD` with these norms hold for training in which the norm of layer l is ‖A_lᵀ(G_l P_l)‖_F,
    where

    * the entries of P_l are independent N(0, 1/k), fresh at each step and independent between layers. Layers whose
      norm is exact are added unchanged, and then ``rank`` stays ``None``;
    * ``secret=False``: all micro-batches of one logical step use the same P_l. The matrix may be public;
    * ``secret=True``: every sample has separate probes, independent of everything else and drawn afresh at each step.
      Their generator is cryptographically strong or secretly seeded, and keyed by the sample's identity and the step,
      never by the position in a batch. Probes, norms and clip factors are never logged, stored or released.

    ``lower`` bounds the worst case of the stated analysis from below. For "tight" this is the mechanism itself,
    because a rank-one gradient attains it. For "envelope" it is the envelope.

    Raises
    ------
    ParameterError
        If an argument lies outside its range.

    References
    ----------
    ``docs/theory/randomized_clipping.md``, §4 and §5; the envelope: §2.

    Examples
    --------
    >>> from dprmt.accounting import DPSGD
    >>> public = DPSGD(2.0, 0.03, Hutchinson(32, secret=False)).epsilon(steps=400, delta=1e-5)
    >>> 1.34 < public.lower < public.upper < 1.36
    True
    >>> DPSGD(2.0, 0.03, Hutchinson(32, secret=True)).epsilon(steps=400, delta=1e-5).upper < public.lower
    True
    """

    kind: ClassVar[str] = "hutchinson"

    probes: int
    secret: bool = field(kw_only=True)
    rank: int | None = field(default=None, kw_only=True)
    analysis: Analysis = field(default="tight", kw_only=True)

    def __post_init__(self) -> None:
        self._keep(probes=check_count("probes", self.probes, low=2, high=10**5))
        self._keep(secret=_checked_flag("secret", self.secret))
        if self.rank is not None:
            self._keep(rank=check_count("rank", self.rank, low=1))
        check_choice("analysis", self.analysis, ("tight", "envelope"))

    def law(self) -> NormLaw:
        """See :meth:`Norms.law`."""
        return RankOneLaw(self.probes) if self.analysis == "tight" else EnvelopeLaw(self.probes, self.rank)


@dataclass(frozen=True, repr=False)
class HutchPlusPlus(Norms):
    """Norms estimated by Hutch++: exact on a sketch's range, by Gaussian probes on the rest.

    Parameters
    ----------
    probes : int
        k, number of Gaussian probe vectors per layer; in [2, 1e5]. If layers differ, pass the smallest.
    sketch : int
        s, columns of the Gaussian sketch, in [3, 1e4]. If layers differ, pass the smallest. If a layer has no sketch,
        the norms are :class:`Hutchinson`'s.
    power_iteration : bool
        Whether each layer's head is a basis of MᵀMS (3s + k products) instead of MᵀS' (2s + k). The ε computed for
        False holds for both.
    secret : bool
        As in :class:`Hutchinson`, for probes and sketch.

    Formal guarantees
    -----------------
    The conditions of :class:`Hutchinson` hold, with Hutch++'s head and tail replacing ‖A_lᵀ(G_l P_l)‖_F. The sketch is
    Gaussian, independent of the probes, fresh at each step and independent between layers. The probes are applied to
    the remainder after the head, M(I - QQᵀ). The bound holds for every spectrum (§9 of the theory), so it assumes
    nothing about the gradients. ``lower`` bounds the law used by the accountant, which no gradient need attain.

    Raises
    ------
    ParameterError
        If an argument lies outside its range.

    References
    ----------
    ``docs/theory/randomized_clipping.md``, §9.

    Examples
    --------
    >>> from dprmt.accounting import DPSGD
    >>> DPSGD(2.0, 0.03, HutchPlusPlus(32, 32, secret=False)).epsilon(steps=400, delta=1e-5).upper < 1.29
    True
    """

    kind: ClassVar[str] = "hutch++"

    probes: int
    sketch: int
    power_iteration: bool = field(default=False, kw_only=True)
    secret: bool = field(kw_only=True)

    def __post_init__(self) -> None:
        self._keep(probes=check_count("probes", self.probes, low=2, high=10**5))
        self._keep(sketch=check_count("sketch", self.sketch, low=3, high=10**4))
        self._keep(power_iteration=_checked_flag("power_iteration", self.power_iteration))
        self._keep(secret=_checked_flag("secret", self.secret))

    def law(self) -> NormLaw:
        """See :meth:`Norms.law`."""
        return SketchedLaw(self.probes, Head(self.sketch, self.power_iteration))


_KINDS = (ExactNorms, Hutchinson, HutchPlusPlus)


def checked_norms(norms: Norms) -> Norms:
    """Return the value, checked; the error names the classes there are."""
    if not isinstance(norms, Norms):
        raise ParameterError(
            "norms", norms, "ExactNorms(), Hutchinson(probes, secret=…) or HutchPlusPlus(probes, sketch, secret=…)"
        )
    return norms


def norms_from_dict(record: Mapping[str, Any]) -> Norms:
    """Return the value that :meth:`Value.as_dict` described.

    Parameters
    ----------
    record : mapping
        ``kind``, one of "exact", "hutchinson" and "hutch++", and the value's fields; left out they are the defaults.

    Returns
    -------
    Norms
        The value, checked.

    Raises
    ------
    ParameterError
        If the kind is none of these, a field is not one of the value's, or a field lies outside its range.

    Examples
    --------
    >>> norms_from_dict({"kind": "hutchinson", "probes": 32, "secret": True})
    Hutchinson(32, secret=True)
    """
    value: Norms = value_from_dict("norms", _KINDS, record)
    return value


def _checked_flag(name: str, value: bool) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise ParameterError(name, value, "True or False")
    return bool(value)
