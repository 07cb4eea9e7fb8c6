"""What may be written in a paper about a run's privacy, and under which conditions it is true."""

from __future__ import annotations

import math
from typing import Any

from dprmt import __version__
from dprmt.accounting import PrivacyBounds
from dprmt.cli._clipping_options import clipping_keywords
from dprmt.cli._rounding import round_down, round_up
from dprmt.cli._run_options import phases_of
from dprmt.cli._sampling_options import sampling_sentence


def statement(worst: PrivacyBounds, values: dict[str, Any], *, epsilon: str, delta: str) -> str:
    """One paragraph; ``epsilon`` and ``delta`` are how the two enter it, one of them as a bound."""
    if math.isinf(worst.upper):
        return "No finite bound could be certified for this run; nothing may be claimed."
    return (
        f"Training runs DP-SGD {_run(values)}."
        f" The released model is (ε, δ)-differentially private with {epsilon} and {delta} under the addition or"
        f" removal of one example (both directions; the one that decides: {worst.direction}). The bound was computed"
        f" with dprmt {__version__}, which charges discretization, truncation and rounding to it; the exact value for"
        f" {_whose(values)} is at least {round_down(worst.lower)}."
    )


def upper_bound(symbol: str, bounds: PrivacyBounds) -> str:
    """``ε ≤ 3.81``, rounded up."""
    return f"{symbol} ≤ {round_up(bounds.upper, 4)}"


def _run(values: dict[str, Any]) -> str:
    phases = [
        f"{sampling_sentence(phase)}, with Gaussian noise of standard deviation {phase['noise_multiplier']:.6g} times"
        f" the clipping norm and per-example clipping {_norms(phase)}"
        for phase in phases_of(values)
    ]
    return phases[0] if len(phases) == 1 else f"in {len(phases)} phases: {'; then '.join(phases)}"


def _norms(values: dict[str, Any]) -> str:
    keywords = clipping_keywords(values)
    if not keywords:
        return "by exact gradient norms"
    sharing = {"batch": "shared by the examples of a step", "sample": "drawn in secret for every example"}
    estimate = f"{keywords['probes']} Gaussian probes per layer"
    if keywords.get("sketch") is not None:
        estimate = f"a sketch of {keywords['sketch']} columns and {estimate} (Hutch++)"
    return f"by gradient norms estimated with {estimate}, {sharing[keywords['probe_sharing']]}"


def _whose(values: dict[str, Any]) -> str:
    kinds = {_whose_phase(phase) for phase in phases_of(values)}
    return kinds.pop() if len(kinds) == 1 else "the worst case of these analyses"


def _whose_phase(values: dict[str, Any]) -> str:
    keywords = clipping_keywords(values)
    if keywords.get("sketch") is not None:
        return "the worst case of this analysis"
    return "the worst case of the published envelope" if keywords.get("analysis") == "envelope" else "this mechanism"
