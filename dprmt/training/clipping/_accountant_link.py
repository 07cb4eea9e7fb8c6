"""Accountant and norms, linked: who counts a step of estimated norms must have been told of these very norms.

Opacus creates accountants by name and calls them from the optimizer, which knows nothing of how norms are obtained.
What both see are the parameters: there the samplers leave a link, which `dprmt.accounting`'s accountant asks at every
step.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

import torch

from dprmt._validation import ParameterError
from dprmt.training.norms import NormRecord

MINE = "mine"
_ATTRIBUTE = "accountant_link"  # read by RandomizedClippingAccountant


class AccountantLink:
    """Between one model's norms and the accountant of the optimizer that moves it."""

    def __init__(self, record: NormRecord, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._record, self._parameters = record, list(parameters)
        self._counted = record.probes is None  # any accountant is right for exact norms
        self._first_step: int | None = None
        for parameter in self._parameters:
            setattr(parameter, _ATTRIBUTE, self)

    def check(self, accountant: Any) -> None:
        """Raise unless the accountant accounts for these norms, or for weaker claims."""
        if not _covers(accountant, self._record):
            told = repr(getattr(accountant, "configuration", None) or type(accountant).__name__)
            raise ParameterError("accountant", told, f"one for the norms that are used: {_needed(self._record)}")
        self._counted = True

    def trust(self) -> None:
        """The caller accounts for the norms, by the record."""
        self._counted = True

    def starts(self, step: int) -> None:
        """Raise if an earlier step was counted by nobody who knows of these norms."""
        self._first_step = step if self._first_step is None else self._first_step
        if not self._counted and step != self._first_step:
            told = f"none that knows of these norms in step {self._first_step}"
            allowed = f"the engine's, {_needed(self._record)}, or 'mine' for a count of one's own, by .record"
            raise ParameterError("accountant", told, allowed)

    def remove(self) -> None:
        """Leave the parameters as they were."""
        for parameter in self._parameters:
            if getattr(parameter, _ATTRIBUTE, None) is self:
                delattr(parameter, _ATTRIBUTE)


def _needed(record: NormRecord) -> str:
    options = {"probes": record.probes, "probe_sharing": record.probe_sharing, "sketch": record.sketch}
    if record.power_iteration:
        options["power_iteration"] = True
    stated = ", ".join(f"{name}={value!r}" for name, value in options.items() if value is not None)
    return f"dprmt.accounting.opacus.register({stated})"


def _covers(accountant: Any, record: NormRecord) -> bool:
    configuration = getattr(accountant, "configuration", None)
    if configuration is None:
        return record.probes is None
    stated = replace(configuration, sampling="poisson").mechanism(1.0, 0.01)
    own = record.mechanism(1.0, 0.01, analysis=configuration.analysis)
    return any(stated == weaker for weaker in _weaker(own))


def _weaker(mechanism: Any) -> Iterable[Any]:
    # More may be charged than needed: no finite rank, probes that are revealed, no sketch.
    known = {entry.name for entry in fields(mechanism)}
    less: tuple[dict[str, Any], ...]
    less = ({"rank": None}, {"rank": None, "probe_sharing": "batch"}, {"sketch": None, "power_iteration": False})
    for chosen in itertools.product((False, True), repeat=len(less)):
        options = {key: value for part, use in zip(less, chosen, strict=True) if use for key, value in part.items()}
        yield replace(mechanism, **{key: value for key, value in options.items() if key in known})
