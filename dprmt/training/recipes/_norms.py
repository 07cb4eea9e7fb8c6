"""How per-sample norms are taken, in a recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dprmt._validation import ParameterError
from dprmt.training.recipes._fields import Section, checked, count, flag, optional, word
from dprmt.training.recipes._words import NORMS, EstimatorWord


@dataclass(frozen=True)
class NormsRecipe(Section):
    """Per-sample norms: exact, or their estimator with its options.

    Attributes
    ----------
    kind : {"exact", "ghost", "auto", "hutchinson", "hutch++"}
        "exact" forms gradients, "ghost" uses Gram matrices where they are cheaper, and "auto" uses the recommendation
        of ``dprmt plan``. The others estimate norms.
    probes : int or None
        Number k >= 2 of Gaussian probes per layer for estimates; 32 by default.
    sketch : int or None
        Width of the sketch, >= 1; only for ``"hutch++"``. By default about the best split between sketch and probes
        (see ``dprmt probes``).
    power_iteration : bool or None
        Whether the sketch of ``"hutch++"`` uses one power iteration (3s + k products), the default, or one pass (2s +
        k).
    secret : bool or None
        Whether estimates use independent secret probes for every sample, the default, or one matrix per layer and
        step, which may become public.

    Raises
    ------
    ParameterError
        If a value is of the wrong type or outside its range, or not for this kind; it names ``privacy.norms.key``.

    Examples
    --------
    >>> NormsRecipe("hutchinson").secret, NormsRecipe("ghost").probes
    (True, None)
    """

    section = "privacy.norms"
    kind: str = checked(word(NORMS), "exact")
    probes: int | None = checked(optional(count(2)), None)
    sketch: int | None = checked(optional(count()), None)
    power_iteration: bool | None = checked(optional(flag), None)
    secret: bool | None = checked(optional(flag), None)

    def check_together(self) -> None:
        """Refuse options of probes or sketches that there are not; write out defaults where there are."""
        self._take(_estimates, probes=32, secret=True)
        self._take(_sketches, sketch=None, power_iteration=True)

    def _take(self, asks: Callable[[EstimatorWord | None], bool], **defaults: Any) -> None:
        is_asked = asks(NORMS[self.kind])
        for key, default in defaults.items():
            value = getattr(self, key)
            if is_asked and value is None:
                object.__setattr__(self, key, default)
            elif not is_asked and value is not None:
                kinds = " or ".join(repr(name) for name, word in NORMS.items() if asks(word))
                allowed = f"left out unless privacy.norms.kind is {kinds}"
                raise ParameterError(f"privacy.norms.{key}", value, allowed, f"remove privacy.norms.{key}")


def _estimates(word: EstimatorWord | None) -> bool:
    return word is not None


def _sketches(word: EstimatorWord | None) -> bool:
    return word is not None and word.sketches
