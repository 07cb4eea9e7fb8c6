"""Accountant and norms, linked: who counts a step of estimated norms must have been told of these very norms.

Opacus creates accountants by name and calls them from the optimizer, which knows nothing of how norms are obtained.
What both see are the parameters: there the samplers leave a link, which `dprmt.accounting`'s accountant asks at every
step.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from dprmt._validation import ParameterError, TrainingStateError
from dprmt.accounting import Hutchinson, HutchPlusPlus, Norms
from dprmt.training.norms import NormRecord

MINE = "mine"
_ATTRIBUTE = "accountant_link"  # read by RandomizedClippingAccountant


class AccountantLink:
    """Between one model's norms and the accountant of the optimizer that moves it."""

    def __init__(self, record: NormRecord, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._record, self._parameters = record, list(parameters)
        self._counted = not record.estimated  # any accountant is right for exact norms
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
            todo = f"make the engine's {_needed(self._record)}, or say accountant='mine' for a count of one's own"
            raise TrainingStateError(f"no accountant that knows of these norms counted step {self._first_step}: {todo}")

    def remove(self) -> None:
        """Leave the parameters as they were."""
        for parameter in self._parameters:
            if getattr(parameter, _ATTRIBUTE, None) is self:
                delattr(parameter, _ATTRIBUTE)


def _needed(record: NormRecord) -> str:
    return f"dprmt.accounting.opacus.register({record.norms!r})"


def _covers(accountant: Any, record: NormRecord) -> bool:
    configuration = getattr(accountant, "configuration", None)
    if configuration is None:
        return not record.estimated
    return any(configuration.norms == weaker for weaker in _weaker(record.norms))


def _weaker(norms: Norms | None) -> Iterator[Norms]:
    """All that may be charged for norms: less is known of a rank, a sketch or a secret, or it is the envelope's."""
    if norms is None:
        return
    yield norms
    if isinstance(norms, HutchPlusPlus):
        for power, secret in itertools.product({norms.power_iteration, False}, {norms.secret, False}):
            yield replace(norms, power_iteration=power, secret=secret)
        norms = Hutchinson(norms.probes, secret=norms.secret)
    if isinstance(norms, Hutchinson):
        for rank, secret in itertools.product({norms.rank, None}, {norms.secret, False}):
            for analysis in ("tight", "envelope"):
                yield replace(norms, rank=rank, secret=secret, analysis=analysis)
