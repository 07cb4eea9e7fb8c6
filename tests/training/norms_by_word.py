"""What `make_private` takes as ``norms``, by the words of tables of tests."""

from __future__ import annotations

from typing import Any

from dprmt.training.norms import HutchinsonEstimator, HutchPlusPlusEstimator, NormEstimator, ProbeGenerator


def by_word(
    kind: str, probes: int = 32, sketch: int | None = None, *, sharing: str = "sample", seed: int | None = None
) -> str | NormEstimator:
    """A word that is for exact norms, or an estimator; probes of a known seed, if there is one."""
    options: dict[str, Any] = {"secret": sharing == "sample", "generator": ProbeGenerator(seed)}
    if kind == "hutchinson":
        return HutchinsonEstimator(probes, **options)
    return HutchPlusPlusEstimator(probes, sketch, **options) if kind == "hutch++" else kind
