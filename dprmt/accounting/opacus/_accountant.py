"""Privacy accounting of randomized clipping inside Opacus (version 1.5.4 and later)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from opacus.accountants import IAccountant, register_accountant

from dprmt._validation import ParameterError, check_choice, check_count, check_real
from dprmt.accounting import DPSGD, Neighbours, Norms, Poisson, PrivacyBounds, RandomAllocation, ZeroOut, compose
from dprmt.accounting.laws._norms import checked_norms

NAME = "randomized_clipping"

_BUILT_IN = ("rdp", "gdp", "prv")


@dataclass(frozen=True)
class ClippingConfiguration:
    """Norm method, sampling and neighbours, which Opacus does not pass to the accountant.

    Parameters
    ----------
    norms : ExactNorms, Hutchinson or HutchPlusPlus
        How per-sample norms are computed, over all layers together.
    sampling : {"poisson", "allocation"}
        With "allocation" batches follow random allocation, and Opacus' sample rate is 1 / steps of an epoch.
    neighbours : ZeroOut, AddRemove, ReplaceOne or Group
        Neighbouring relation of the guarantee.

    Raises
    ------
    ParameterError
        If an argument lies outside its range.
    """

    norms: Norms
    sampling: str = "poisson"
    neighbours: Neighbours = ZeroOut()

    def __post_init__(self) -> None:
        checked_norms(self.norms)
        check_choice("sampling", self.sampling, ("poisson", "allocation"))
        DPSGD(1.0, 1.0, self.norms, self.neighbours)

    def as_dict(self) -> dict[str, Any]:
        """Convert the options to JSON values.

        Returns
        -------
        dict
            A dict with ``norms`` (see :meth:`Norms.as_dict`), ``sampling``, and ``neighbours`` if they are not
            zero-out.
        """
        whose = {} if self.neighbours == ZeroOut() else {"neighbours": self.neighbours.as_dict()}
        return {"norms": self.norms.as_dict(), "sampling": self.sampling, **whose}

    def mechanism(self, noise_multiplier: float, sample_rate: float) -> DPSGD:
        """Return the mechanism of one step.

        Parameters
        ----------
        noise_multiplier, sample_rate : float
            σ and q.

        Returns
        -------
        DPSGD
            The mechanism.
        """
        if self.sampling == "allocation":
            return DPSGD(noise_multiplier, RandomAllocation(_epoch_length(sample_rate)), self.norms, self.neighbours)
        return DPSGD(noise_multiplier, Poisson(sample_rate), self.norms, self.neighbours)

    def charged(self, history: list[tuple[float, float, int]]) -> list[tuple[float, float, int]]:
        """Return the history with the epoch under way counted as a whole, for random allocation.

        Parameters
        ----------
        history : list of (noise_multiplier, sample_rate, steps)
            As recorded.

        Returns
        -------
        list of (noise_multiplier, sample_rate, steps)
            What is composed.

        Raises
        ------
        ParameterError
            If noise or rate changed within an epoch of random allocation: no bound is known for that.
        """
        if self.sampling == "poisson":
            return history
        *earlier, (sigma, rate, steps) = history
        for _, early_rate, taken in earlier:
            if taken % _epoch_length(early_rate):
                raise ParameterError("steps", taken, "whole epochs wherever noise or rate of random allocation changes")
        length = _epoch_length(rate)
        return [*earlier, (sigma, rate, -(-steps // length) * length)]


class RandomizedClippingAccountant(IAccountant):  # type: ignore[misc]
    """Opacus accountant for norms that are estimated with Gaussian probes.

    Opacus creates accountants by name and without arguments. So specify the norm method with :func:`register`, or in
    each call of :meth:`get_epsilon`. There is no default, because too many probes would give too small an ε: an
    accountant without a configuration raises an error.

    Formal guarantees
    -----------------
    :meth:`get_epsilon` returns the certified upper bound of :class:`dprmt.accounting.DPSGD` with these norms for the
    recorded history, both adjacency directions, and the stated neighbours (zero-out by default). Mechanism and norms
    have conditions on the training code, and so has Opacus:

    * Opacus divides by the expected batch size, q times the number of samples. So add-remove neighbours have these
      numbers only if q and the divisor do not depend on that number;
    * set ``poisson_sampling=True`` and ``clipping="flat"``. The rate is then 1 / len(data_loader), and Opacus raises
      an error if gradients are accumulated over several batches;
    * *virtual steps* (``BatchMemoryManager``) are recorded correctly, as one step at the rate of the logical batch. If
      probes are public, all physical batches of one logical step must use the same probes;
    * random allocation (``sampling="allocation"``) needs a data loader that draws so, with t batches an epoch,
      ``poisson_sampling=False``, and no accumulation over batches. A shuffling loader does *not* draw so. Every epoch
      that was begun counts as a whole, and you must not draw an interrupted epoch anew under the same accountant;
    * otherwise, without Poisson sampling, Opacus records n accumulated batches as one step at rate n·q. Nothing is
      certified then, nor for n independent Poisson draws, in which a sample may occur more than once;
    * ``make_private_with_epsilon`` calibrates for int(epochs / q) steps, which rounding can make one step too few (75
      batches, 3 epochs: 224 instead of 225). Report :meth:`get_epsilon` after training;
    * if Opacus clips by exact norms, you may account for it as randomized clipping, but ε is then larger than
      necessary.

    Attributes
    ----------
    configuration : ClippingConfiguration or None
        The configuration of :func:`register`, stored in the class.
    history : list of (noise_multiplier, sample_rate, steps)
        History in the format of Opacus' accountants.

    Examples
    --------
    >>> accountant = RandomizedClippingAccountant()
    >>> for _ in range(400):
    ...     accountant.step(noise_multiplier=2.0, sample_rate=0.03)
    >>> from dprmt.accounting import Hutchinson
    >>> accountant.get_epsilon(1e-5, norms=Hutchinson(32, secret=False)) < 1.37
    True
    >>> accountant.get_epsilon(1e-5)
    Traceback (most recent call last):
    ...
    dprmt._validation.ParameterError: norms must be stated before ε can be computed, ...
    """

    configuration: ClassVar[ClippingConfiguration | None] = None
    _name: ClassVar[str] = NAME

    def __init__(self) -> None:
        self.history: list[tuple[float, float, int]] = []

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Record one optimization step.

        Parameters
        ----------
        noise_multiplier : float
            σ ≥ 0.
        sample_rate : float
            q in [1e-9, 1].

        Raises
        ------
        ParameterError
            If an argument lies outside its range, for instance q after accumulating too many batches.
        """
        noise_multiplier, sample_rate, _ = _checked_entry((noise_multiplier, sample_rate, 1))
        if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
            self.history[-1] = (noise_multiplier, sample_rate, self.history[-1][2] + 1)
        else:
            self.history.append((noise_multiplier, sample_rate, 1))

    def get_epsilon(self, delta: float, *, tolerance: float = 1e-3, **stated: Any) -> float:
        """Return the certified upper bound on ε spent so far.

        Parameters
        ----------
        delta : float
            In (0, 1).
        tolerance : float
            As in ``DPSGD.epsilon``.
        **stated
            ``norms``, ``sampling``, ``neighbours``: replace what was registered, for this call. Opacus hands on what
            ``make_private_with_epsilon`` gets; any other name is an error, not ignored.

        Returns
        -------
        float
            ∞ where no finite ε can be certified, in particular without noise.

        Raises
        ------
        ParameterError
            If how norms are taken was not stated, or an argument or an entry of the history is out of range.
        """
        return self.get_bounds(delta, tolerance=tolerance, **stated).upper

    def get_bounds(self, delta: float, *, tolerance: float = 1e-3, **stated: Any) -> PrivacyBounds:
        """Return bounds on ε spent so far; arguments and errors as in :meth:`get_epsilon`.

        Returns
        -------
        PrivacyBounds
            Zeros before the first step.
        """
        configuration = self._configured(stated)
        check_real("delta", delta, low=0.0, high=1.0, low_open=True, high_open=True)
        history = [_checked_entry(entry) for entry in self.history]
        if not history:
            return PrivacyBounds(0.0, 0.0, 0.0)
        if any(noise_multiplier < 1e-3 for noise_multiplier, _, _ in history):
            return PrivacyBounds(0.0, math.inf, math.inf)
        history = configuration.charged(history)
        phases = [(configuration.mechanism(min(sigma, 1e6), rate), steps) for sigma, rate, steps in history]
        return compose(phases).epsilon(delta, tolerance=tolerance)

    def __len__(self) -> int:
        """Return the number of optimization steps taken so far."""
        return sum(steps for _, _, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """Return the name under which Opacus creates this accountant.

        Returns
        -------
        str
            ``"randomized_clipping"`` unless registered under another name.
        """
        return cls._name

    def state_dict(self, destination: Any = None) -> Any:
        """Return Opacus' state, and the configuration.

        Parameters
        ----------
        destination : dict or None
            Filled in place if given.

        Returns
        -------
        dict
            Keys ``"history"``, ``"mechanism"``, ``"configuration"``.
        """
        state = super().state_dict(destination)
        state["configuration"] = None if self.configuration is None else self.configuration.as_dict()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state, if its steps were taken under the same configuration.

        Parameters
        ----------
        state_dict : dict
            From :meth:`state_dict`.

        Raises
        ------
        ParameterError
            If configurations differ, or an entry of the history is out of range.
        ValueError
            If the state is not one of this mechanism (by Opacus).
        """
        if state_dict and state_dict.get("mechanism") == self.mechanism():
            self._check_same_configuration(state_dict)
        previous = self.history
        super().load_state_dict(state_dict)
        loaded, self.history = self.history, previous
        self.history = [_checked_entry(entry) for entry in loaded]

    def _configured(self, stated: dict[str, Any]) -> ClippingConfiguration:
        if self.configuration is not None:
            return replace(self.configuration, **stated)
        if "norms" not in stated:
            allowed = (
                "stated before ε can be computed, by dprmt.accounting.opacus.register(Hutchinson(32, secret=False)), "
                "say, before the PrivacyEngine is made, or by get_epsilon(delta, norms=...); ExactNorms() where "
                "nothing is estimated"
            )
            raise ParameterError("norms", None, allowed)
        return ClippingConfiguration(**stated)

    def _check_same_configuration(self, state_dict: Mapping[str, Any]) -> None:
        here = None if self.configuration is None else self.configuration.as_dict()
        there = state_dict.get("configuration", "missing")
        if here != there:
            allowed = (
                f"the configuration of this accountant, {here!r}: steps under others cannot be accounted for together "
                "(dprmt.accounting.opacus.register sets the configuration of later accountants)"
            )
            raise ParameterError("state_dict['configuration']", there, allowed)


def register(
    norms: Norms, *, sampling: str = "poisson", neighbours: Neighbours = ZeroOut(), name: str = NAME
) -> type[RandomizedClippingAccountant]:
    """Specify how norms are computed, and register an Opacus accountant for it.

    Parameters
    ----------
    norms : ExactNorms, Hutchinson or HutchPlusPlus
        How per-sample norms are computed, over all layers together.
    sampling : {"poisson", "allocation"}
        As in :class:`ClippingConfiguration`.
    neighbours : ZeroOut, AddRemove, ReplaceOne or Group
        Neighbouring relation of the guarantee.
    name : str
        Name for ``PrivacyEngine(accountant=...)``. Registering a name again replaces it for later engines, *and* for
        ``make_private_with_epsilon`` of earlier ones: use different names for different configurations in one process.

    Returns
    -------
    type
        The accountant class, also for use without Opacus' registry.

    Raises
    ------
    ParameterError
        If an argument lies outside its range, or ``name`` belongs to Opacus.

    Formal guarantees
    -----------------
    As for :class:`RandomizedClippingAccountant`, if training computes norms this way in each layer and step, and meets
    the conditions of the given value.

    Examples
    --------
    >>> from dprmt.accounting import Hutchinson
    >>> from opacus.accountants import create_accountant
    >>> _ = register(Hutchinson(32, secret=False), name="rc32")
    >>> accountant = create_accountant("rc32")
    >>> accountant.step(noise_multiplier=2.0, sample_rate=0.03)
    >>> accountant.get_epsilon(delta=1e-5) < 0.13
    True
    """
    if not isinstance(name, str) or not name or name in _BUILT_IN:
        raise ParameterError("name", name, f"a non-empty string, none of {', '.join(map(repr, _BUILT_IN))}")
    configuration = ClippingConfiguration(norms, sampling, neighbours)
    members = {"configuration": configuration, "_name": name, "__doc__": RandomizedClippingAccountant.__doc__}
    accountant = type("RandomizedClippingAccountant", (RandomizedClippingAccountant,), members)
    register_accountant(name, accountant, force=True)
    return accountant


def register_unconfigured() -> None:
    """Register the accountant without a configuration, unless the name exists."""
    with contextlib.suppress(ValueError):
        register_accountant(NAME, RandomizedClippingAccountant)


def _epoch_length(sample_rate: float) -> int:
    """Return the t of which Opacus' sample rate is the inverse."""
    length = round(1.0 / sample_rate)
    if abs(length * sample_rate - 1.0) > 1e-9:
        raise ParameterError("sample_rate", sample_rate, "1 / (steps of an epoch) for random allocation")
    return length


def _checked_entry(entry: Any) -> tuple[float, float, int]:
    """Return an entry of the history with numbers in range."""
    noise_multiplier, sample_rate, steps = entry
    return (
        check_real("noise_multiplier", noise_multiplier, low=0.0),
        check_real("sample_rate", sample_rate, low=1e-9, high=1.0),
        check_count("steps", steps),
    )
