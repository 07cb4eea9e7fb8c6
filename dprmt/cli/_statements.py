"""What may be written in a paper about a run's privacy, and under which conditions it is true."""

from __future__ import annotations

import math

from dprmt import __version__
from dprmt.accounting import AddRemove, ExactNorms, Group, Hutchinson, HutchPlusPlus, Norms, PrivacyBounds, ReplaceOne
from dprmt.cli._rounding import round_down
from dprmt.cli._run_options import Run
from dprmt.cli._sampling_options import sampling_sentence


def statement(worst: PrivacyBounds, run: Run, *, epsilon: str, delta: str) -> str:
    """One paragraph; ``epsilon`` and ``delta`` are how the two enter it, one of them as a bound."""
    if math.isinf(worst.upper):
        return "No finite bound could be certified for this run; nothing may be claimed."
    return (
        f"Training runs DP-SGD {_run(run)}."
        f" The released model is (ε, δ)-differentially private with {epsilon} and {delta} {_relation(run)}"
        f" (both directions; the one that decides: {worst.direction}). The bound was computed"
        f" with dprmt {__version__}, which charges discretization, truncation and rounding to it; the exact value for"
        f" {_whose(run)} is at least {round_down(worst.lower)}."
    )


def _relation(run: Run) -> str:
    """Against which neighbour, and with which condition."""
    relation = run.composition().neighbours
    size, one = (relation.size, relation.of) if isinstance(relation, Group) else (1, relation)
    who = "one example" if size == 1 else f"up to {size} examples of one person, drawn independently"
    if isinstance(one, ReplaceOne):
        return f"when {who} may be replaced by any other"
    if isinstance(one, AddRemove):
        return (
            f"under the addition or removal of {who}, provided that the sampling rate and the divisor of the sum were"
            " chosen without the number of examples"
        )
    return f"when {who} may be replaced by one without a gradient, the number of examples being public"


def _run(run: Run) -> str:
    phases = [
        f"{sampling_sentence(mechanism.sampling, steps)}, with Gaussian noise of standard deviation"
        f" {mechanism.noise_multiplier:.6g} times the clipping norm and per-example clipping {_norms(mechanism.norms)}"
        for mechanism, steps in run.phases
    ]
    return phases[0] if len(phases) == 1 else f"in {len(phases)} phases: {'; then '.join(phases)}"


def _norms(norms: Norms) -> str:
    if not isinstance(norms, (Hutchinson, HutchPlusPlus)):
        return "by exact gradient norms"
    sharing = "drawn in secret for every example" if norms.secret else "public, the same for the examples of a step"
    estimate = f"{norms.probes} Gaussian probes per layer"
    if isinstance(norms, HutchPlusPlus):
        estimate = f"a sketch of {norms.sketch} columns and {estimate} (Hutch++)"
    return f"by gradient norms estimated with {estimate}, {sharing}"


def _whose(run: Run) -> str:
    kinds = {_whose_phase(mechanism.norms) for mechanism, _ in run.phases}
    return kinds.pop() if len(kinds) == 1 else "the worst case of these analyses"


def _whose_phase(norms: Norms) -> str:
    if isinstance(norms, HutchPlusPlus):
        return "the worst case of this analysis"
    is_tight = isinstance(norms, ExactNorms) or getattr(norms, "analysis", "") == "tight"
    return "this mechanism" if is_tight else "the worst case of the published envelope"
