"""Sentence about the norm methods of a plan or summary: requested, used, and their cost."""

from __future__ import annotations

from dataclasses import replace

from dprmt.accounting import ExactNorms, GaussianRelease, Hutchinson, HutchPlusPlus, Norms
from dprmt.statements import norms_label
from dprmt.training.norms import LayerRecord, NormRecord
from dprmt.training.private_run._clip_only import ClippingOnly
from dprmt.training.private_run._ledger import Mechanism, spent_epsilon
from dprmt.training.recipes import NORMS


def norms_sentence(asked: str, record: NormRecord, units: str | None = None) -> str:
    """Count the layers with estimated norms; if there are none although they were requested, ε is the ε of exact
    norms.

    ``units``: regime of units of several rows, if there are any.

    Examples
    --------
    >>> layers = [LayerRecord("lora_A"), LayerRecord("lora_B")]
    >>> norms_sentence("hutch++", NormRecord(layers))  # doctest: +ELLIPSIS
    'exact in all 2 layers, though hutch++ was asked for: an exact norm costs less in layers this small, ...'
    >>> dense = LayerRecord("dense", HutchPlusPlus(32, 12, secret=True))
    >>> norms_sentence("hutch++", NormRecord([dense, *layers]))
    'hutch++ (32 secret probes, a sketch of 12) in 1 of 3 layers, exact in the others, where that costs less'
    """
    if units is not None:
        alone = "one at a time" in units
        return f"{units}; norms exact" if alone else f"{units}; norms {norms_sentence(asked, record)}"
    estimated, many = record.estimated, len(record.layers)
    if not estimated:
        every = f"exact in all {many} layers" if many > 1 else "exact in the only layer"
        if NORMS.get(asked) is None:
            return every
        return (
            f"{every}, though {asked} was asked for: an exact norm costs less in layers this small, and so does its ε"
        )
    kinds = "; ".join(dict.fromkeys(_kind(layer.norms) for layer in estimated))
    others = ", exact in the others, where that costs less" if len(estimated) < many else ""
    return f"{kinds} in {len(estimated)} of {many} layers{others}"


def _kind(norms: Norms | None) -> str:
    if not isinstance(norms, (Hutchinson, HutchPlusPlus)):
        return "of unknown law" if norms is None else repr(norms)
    return f"{norms.kind} ({norms_label(norms)})"


def layer_norms(layer: LayerRecord) -> dict[str, object]:
    """Return a layer's name and how its norm is obtained, for JSON."""
    return {"layer": layer.layer, **({"kind": "unknown"} if layer.norms is None else layer.norms.as_dict())}


def epsilon_of_exact_norms(
    mechanism: Mechanism, steps: int, delta: float, planned: int, releases: tuple[GaussianRelease, ...] = ()
) -> float | None:
    """Return an upper bound of the ε of as many steps with the same noise and exact norms; None where there is no ε."""
    if isinstance(mechanism, ClippingOnly):
        return None
    return spent_epsilon(replace(mechanism, norms=ExactNorms()), delta, planned, releases).after(steps, exactly=True)
