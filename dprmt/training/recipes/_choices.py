"""Names in recipes, and the objects they stand for: of the library, or registered by another package's metadata.

Recipes are read without torch: a name is looked up when a recipe is read, and its object imported when a run needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from dprmt._validation import ParameterError


class Names:
    """Names with the place ``"module:object"`` of each: own ones, and entry points of ``group`` in other packages.

    Nothing from outside replaces an own name.

    Examples
    --------
    >>> "adam" in OPTIMIZERS
    True
    """

    def __init__(self, group: str, own: dict[str, str]) -> None:
        self.group, self.own = group, own

    def __iter__(self) -> Iterator[str]:
        yield from self.own
        yield from sorted(entry_points(group=self.group).names - self.own.keys())

    def load(self, name: str) -> Any:
        """Import the object that a name stands for."""
        found = list(entry_points(group=self.group, name=name))
        if name in self.own:
            found = [EntryPoint(name, self.own[name], self.group)]
        # A package whose folder is twice on the path offers each name twice.
        offers = {(getattr(offer.dist, "name", ""), offer.value): offer for offer in found}
        what = f"the name {name!r} of {self.group}"
        if len(offers) != 1:
            raise ParameterError(what, sorted(package for package, _ in offers), "offered by one installed package")
        (entry,) = offers.values()
        try:
            return entry.load()
        except (ImportError, AttributeError) as error:
            raise ParameterError(what, entry.value, f"one that can be imported ({error})") from error


EXACT_NORMS = ("exact", "ghost", "auto")
"""Kinds of ``privacy.norms`` without an estimator."""

NORMS = Names(
    "dprmt.norms",
    dict.fromkeys(EXACT_NORMS, "")
    | {
        "hutchinson": "dprmt.training.norms:HutchinsonEstimator",
        "hutch++": "dprmt.training.norms:HutchPlusPlusEstimator",
    },
)
"""``privacy.norms.kind``: functions of ``probes``, ``secret`` and ``generator``, by keyword, that return a
`NormEstimator`; nothing is loaded for exact norms."""

OPTIMIZERS = Names(
    "dprmt.optimizers",
    {
        "gd": "torch.optim:SGD",
        "gdm": "torch.optim:SGD",
        "adam": "torch.optim:Adam",
        "adamw": "torch.optim:AdamW",
        "adambc": "dprmt.training.optimizers:DPAdamBC",
        "grape": "dprmt.training.optimizers:DPGrape",
    },
)
"""``optimizer.name``: functions of the parameters and, by keyword, of what they name of ``lr``, ``noise_variance``,
``subspaces`` and the keys of the section.
"""

DENOISERS = Names(
    "dprmt.denoisers",
    {
        "none": "dprmt.training.denoising._options:nothing",
        "shrink": "dprmt.training.denoising._options:shrinkage",
        "paper": "dprmt.training.denoising._options:shrinkage",
    },
)
"""``denoising.method``: functions of `dprmt.training.denoising.Denoising` that return a function of layers.

That one receives noisy matrices by name, with the standard deviation of an entry's noise. It returns the matrices that
replace them, and a report by name whose entries have ``denoised``.
"""
