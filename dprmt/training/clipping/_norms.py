"""From a word, a value of the accountant's or an estimator to the one that is used."""

from __future__ import annotations

from typing import TypeAlias

from dprmt._validation import ParameterError, check_choice
from dprmt.accounting import ExactNorms, Hutchinson, HutchPlusPlus, Norms
from dprmt.training.norms import HutchinsonEstimator, HutchPlusPlusEstimator, NormEstimator, NormRecord, ProbeGenerator
from dprmt.training.recipes import NORMS, NormsRecipe

NormsWanted: TypeAlias = str | Norms | NormsRecipe | NormEstimator
"""Names are "exact", "ghost", "hutchinson" and "hutch++", with secret probes, and registered ones."""


def wanted_estimator(norms: NormsWanted, generator: ProbeGenerator | None) -> NormEstimator | None:
    """Return the estimator, with a new secret unless probes come from a ``generator``; None for exact norms."""
    if isinstance(norms, NormEstimator):
        return norms
    if isinstance(norms, ExactNorms):
        return None
    generator = ProbeGenerator() if generator is None else generator
    if isinstance(norms, Hutchinson):
        if norms.analysis != "tight":
            allowed = "of the tight analysis, in training: the accountant takes the smaller answer of both"
            raise ParameterError("norms", norms, allowed)
        everything = norms.rank is not None
        return HutchinsonEstimator(norms.probes, secret=norms.secret, everything=everything, generator=generator)
    if isinstance(norms, HutchPlusPlus):
        own = {"power_iteration": norms.power_iteration, "secret": norms.secret}
        return HutchPlusPlusEstimator(norms.probes, norms.sketch, generator=generator, **own)
    if isinstance(norms, str):
        norms = NormsRecipe(kind=check_choice("norms", norms, NORMS))
    if not isinstance(norms, NormsRecipe):
        words = ", ".join(map(repr, NORMS))
        raise ParameterError(
            "norms", norms, f"one of {words}, a value such as Hutchinson(32, secret=False), or a NormEstimator"
        )
    word = NORMS[norms.kind]
    if word is None:
        return None
    options = {"sketch": norms.sketch, "power_iteration": norms.power_iteration}
    estimator: NormEstimator = word.meaning()(
        probes=norms.probes, secret=norms.secret, generator=generator, **(options if word.sketches else {})
    )
    return estimator


def forms_gradients(norms: NormsWanted) -> bool:
    """Return whether per-sample gradients are formed even where Gram matrices are smaller."""
    return norms == "exact" or (isinstance(norms, NormsRecipe) and norms.kind == "exact")


def check_rank(norms: NormsWanted, record: NormRecord) -> None:
    """Raise unless a rank that was given is one that holds."""
    if isinstance(norms, Hutchinson) and norms.rank is not None:
        least = getattr(record.norms, "rank", None)
        if least is None or least > norms.rank:
            what = "None" if least is None else f"at least {least}, that of all layers' shapes together"
            raise ParameterError("norms.rank", norms.rank, what)
