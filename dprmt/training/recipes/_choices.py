"""Registered names in recipes: places in the library, or in another package that registers them in its metadata.

Recipes are read without torch, so a name holds only the place of its object, and a run imports it.
"""

from __future__ import annotations

import importlib
from collections import UserDict
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from dprmt._validation import ParameterError

Entry = TypeVar("Entry")


class Choices(UserDict[str, Entry]):
    """Choices by name: own entries, which nothing from outside replaces, and others, loaded when they are asked for.

    ``group``: the group of entry points whose names are registered and whose objects are of ``kind``.
    """

    def __init__(self, group: str, kind: type[object], own: dict[str, Entry]) -> None:
        super().__init__(own)
        self.group, self._kind = group, kind

    def __missing__(self, name: str) -> Entry:
        offers = self._offers(name)
        if not offers:
            raise KeyError(name)
        asked, package = f"the name {name!r} of {self.group}", _package(offers[0])
        if len(offers) > 1:
            raise ParameterError(asked, sorted(map(_package, offers)), "offered by one installed package")
        try:
            entry = offers[0].load()
        except (ImportError, AttributeError) as error:
            raise ParameterError(asked, offers[0].value, f"importable from {package} ({error})") from error
        if not isinstance(entry, self._kind):
            raise ParameterError(asked, entry, f"a dprmt.training.recipes.{self._kind.__name__} in {package}")
        return entry  # type: ignore[return-value]  # own tables may have None besides, entry points not

    def __contains__(self, name: object) -> bool:
        return name in self.data or (isinstance(name, str) and bool(self._offers(name)))

    def __iter__(self) -> Iterator[str]:
        yield from self.data
        yield from sorted(entry_points(group=self.group).names - self.data.keys())

    def __len__(self) -> int:
        return len(list(iter(self)))

    def source(self, name: str) -> str | None:
        """Return the package and version that a name comes from; None for an own entry of the table."""
        return None if name in self.data else _package(self._offers(name)[0])

    def _offers(self, name: str) -> list[EntryPoint]:
        """List the entries of each installed package once, even if its folder is twice on the path."""
        offers = entry_points(group=self.group, name=name)
        return list({(_package(offer), offer.value): offer for offer in offers}.values())


def _package(offer: EntryPoint) -> str:
    return "an unnamed package" if offer.dist is None else f"{offer.dist.name} {offer.dist.version}"


@dataclass(frozen=True)
class Choice:
    """A named choice of a recipe, and the place of what it stands for.

    Parameters
    ----------
    place : str
        ``"module:name"``, importable where the run is.

    Examples
    --------
    >>> Choice("math:sqrt").meaning()(4.0)
    2.0
    """

    place: str

    def meaning(self) -> Any:
        """Return the object at the place, imported now.

        Returns
        -------
        object
            Object of the kind that the table needs.
        """
        module, _, name = self.place.partition(":")
        return getattr(importlib.import_module(module), name)


@dataclass(frozen=True)
class OptimizerChoice(Choice):
    """An optimizer: a function of the parameters and, by keyword, of what `make_optimizer` is given.

    Parameters
    ----------
    place : str
        As for `Choice`.
    keeps_momentum : bool
        Whether its momentum can be denoised.
    in_subspaces : bool
        Whether it moves weights in the projected coordinates of `dprmt.training.subspaces.Subspaces`.

    Examples
    --------
    >>> OPTIMIZERS["adam"].keeps_momentum, OPTIMIZERS["gd"].keeps_momentum
    (True, False)
    """

    keeps_momentum: bool = False
    in_subspaces: bool = False


@dataclass(frozen=True)
class DenoiserChoice(Choice):
    """A denoiser: a function of `dprmt.training.denoising.Denoising` that gives a function of layers.

    It receives noisy matrices by name, with the standard deviation of an entry's noise. It returns the matrices that
    replace them, and a report by name whose entries have ``denoised``.

    Parameters
    ----------
    place : str
        As for `Choice`.
    keeps_norm : bool
        Whether a replaced matrix gets the norm of the noisy one, if ``norm_correction`` is absent.

    Examples
    --------
    >>> DENOISERS["paper"].keeps_norm, DENOISERS["shrink"].keeps_norm
    (True, False)
    """

    keeps_norm: bool = False


@dataclass(frozen=True)
class EstimatorChoice(Choice):
    """A norm estimator: a function of ``probes``, ``secret`` and ``generator``, given by keyword.

    It returns a `dprmt.training.norms.NormEstimator`.

    Parameters
    ----------
    place : str
        As for `Choice`.
    sketches : bool
        Whether it takes ``sketch`` and ``power_iteration`` as well, which recipes of others may not give.

    Examples
    --------
    >>> [name for name, choice in NORMS.items() if choice is not None]
    ['hutchinson', 'hutch++']
    """

    sketches: bool = False


_ESTIMATORS, _OPTIMIZERS = "dprmt.training.norms", "dprmt.training.optimizers"
_METHODS = "dprmt.training.denoising._options"

NORMS: Choices[EstimatorChoice | None] = Choices(
    "dprmt.norms",
    EstimatorChoice,
    {
        "exact": None,
        "ghost": None,
        "auto": None,
        "hutchinson": EstimatorChoice(f"{_ESTIMATORS}:HutchinsonEstimator"),
        "hutch++": EstimatorChoice(f"{_ESTIMATORS}:HutchPlusPlusEstimator", sketches=True),
    },
)
"""``privacy.norms.kind``; None where norms are exact. Entry points ``dprmt.norms`` are `EstimatorChoice`."""

OPTIMIZERS: Choices[OptimizerChoice] = Choices(
    "dprmt.optimizers",
    OptimizerChoice,
    {
        "gd": OptimizerChoice(f"{_OPTIMIZERS}._make:gd"),
        "gdm": OptimizerChoice(f"{_OPTIMIZERS}._make:gdm", keeps_momentum=True),
        "adam": OptimizerChoice(f"{_OPTIMIZERS}._make:adam", keeps_momentum=True),
        "adamw": OptimizerChoice(f"{_OPTIMIZERS}._make:adamw", keeps_momentum=True),
        "adambc": OptimizerChoice(f"{_OPTIMIZERS}._make:adambc", keeps_momentum=True),
        "grape": OptimizerChoice(f"{_OPTIMIZERS}._make:grape", in_subspaces=True),
    },
)
"""``optimizer.name``. Entry points ``dprmt.optimizers`` are `OptimizerChoice`."""

DENOISERS: Choices[DenoiserChoice] = Choices(
    "dprmt.denoisers",
    DenoiserChoice,
    {
        "none": DenoiserChoice(f"{_METHODS}:nothing"),
        "shrink": DenoiserChoice(f"{_METHODS}:shrinkage"),
        "paper": DenoiserChoice(f"{_METHODS}:shrinkage", keeps_norm=True),
    },
)
"""``denoising.method``. Entry points ``dprmt.denoisers`` are `DenoiserChoice`."""
