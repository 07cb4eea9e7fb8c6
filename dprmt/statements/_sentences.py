"""Sentences for a paper about a run's privacy, with the conditions under which they are true."""

from __future__ import annotations

import math
from typing import Any

from dprmt import __version__
from dprmt._rounding import round_down
from dprmt._validation import ParameterError
from dprmt.accounting import (
    DPSGD,
    AddRemove,
    Composition,
    Group,
    Neighbours,
    Norms,
    PrivacyBounds,
    Release,
    ReplaceOne,
    Sampling,
)

ONE_RUN = "a composition: of parallel runs each has its own statement, and the largest ε holds for all"
_SAMPLING = {
    "poisson": "for T = {steps} steps on batches by Poisson sampling at rate q = {0.rate:.6g}",
    "cyclic-poisson": (
        "for T = {steps} steps on batches by Poisson sampling from one of {0.bands} groups of samples in turn, at rate"
        " {0.step_rate:.6g} of the group"
    ),
    "fixed-size": (
        "for T = {steps} steps on batches of {0.batch_size} of {0.samples} samples, drawn uniformly without replacement"
        " anew in every step"
    ),
    "fixed-order": "for {steps} epochs in a fixed order (every sample in one batch of each, none drawn)",
    "allocation": (
        "for {epochs} epochs of {0.steps_per_epoch} steps with random allocation (every sample in one step of {each})"
    ),
}
_ANSWER = "the answer of a mechanism"
_RELEASES = {
    "gaussian": "a vector with Gaussian noise of standard deviation {0.noise_multiplier:g}",
    "laplace": "a number with Laplace noise of scale {0.scale:g}{drawn}",
    "approximate": "the answer of an ({0.epsilon:g}, {0.delta:g})-private mechanism",
    "gaussian-dp": f"{_ANSWER} that is {{0.mu:g}}-GDP",
    "zcdp": f"{_ANSWER} that is {{0.rho:g}}-zCDP",
    "renyi": f"{_ANSWER} with bounded Rényi divergences of {{orders}} orders",
}


def statement(worst: PrivacyBounds, run: Composition, *, epsilon: str, delta: str) -> str:
    """Write the privacy statement of a run as one paragraph.

    Parameters
    ----------
    worst : PrivacyBounds
        Bounds on ε at a δ, or on δ at an ε, in the deciding direction.
    run : Composition
        The run that the statement describes.
    epsilon, delta : str
        Printed forms of both, one of them as a bound.

    Returns
    -------
    str
        The paragraph; it claims nothing if no finite bound is known.

    Examples
    --------
    >>> from dprmt.accounting import compose
    >>> run = compose([(DPSGD(1.0, 0.01), 100)])
    >>> print(statement(run.epsilon(1e-5), run, epsilon="ε ≤ 0.8", delta="δ = 1e-5")[:85])
    Training runs DP-SGD for T = 100 steps on batches by Poisson sampling at rate q = 0.0
    """
    if not isinstance(run, Composition):
        raise ParameterError("run", type(run).__name__, ONE_RUN, "state each run on disjoint data")
    if math.isinf(worst.upper):
        return "No finite bound could be certified for this run; nothing may be claimed."
    beside = "; ".join(release_sentence(release, times) for release, times in releases(run))
    more = f" Released beside the model, in units of what neighbours can change: {beside}." if beside else ""
    decides = f"both directions; the one that decides: {worst.direction}" if worst.direction else "in either direction"
    return (
        f"Training runs DP-SGD {_run(run)}.{more}"
        f" The released model is (ε, δ)-differentially private with {epsilon} and {delta} {relation_sentence(run)}"
        f" ({decides}). The bound was computed"
        f" with dprmt {__version__}, which charges discretization, truncation and rounding to it; the exact value for"
        f" {_whose(run)} is at least {round_down(worst.lower)}."
    )


def relation_label(neighbours: Neighbours) -> str:
    """Name the neighbouring relation in a few words, for printing next to ε.

    Parameters
    ----------
    neighbours : ZeroOut, AddRemove, ReplaceOne or Group
        Neighbouring relation.

    Returns
    -------
    str
        The kind of relation; for a group also its size and the change of each sample.

    Examples
    --------
    >>> relation_label(ReplaceOne()), relation_label(Group(3))
    ('replace-one', 'zero-out, groups of 3')
    """
    if isinstance(neighbours, Group):
        return f"{neighbours.of.kind}, groups of {neighbours.size}"
    return neighbours.kind


def relation_sentence(run: Composition) -> str:
    """Describe the neighbouring relation and its condition."""
    relation = run.neighbours
    size, one = (relation.size, relation.of) if isinstance(relation, Group) else (1, relation)
    drawn = any(mechanism.sampling.kind != "fixed-order" for mechanism, _ in trainings(run))
    how = "drawn independently of each other" if drawn else "in whichever batches they are"
    who = "one sample" if size == 1 else f"up to {size} samples of one person, {how},"
    each = " each" if size > 1 else ""
    if isinstance(one, ReplaceOne):
        return f"when {who} may{each} be replaced by any other"
    if isinstance(one, AddRemove):
        return (
            f"under the addition or removal of {who}, provided that the sampling rate and the divisor of the sum were"
            " chosen without the number of samples"
        )
    is_shared = any(mechanism.beside for mechanism, _ in trainings(run))
    absent = "one without a gradient" + (" that is in none of the sums" if is_shared else "")
    return f"when {who} may{each} be replaced by {absent}, the number of samples being public"


def sampling_sentence(sampling: Sampling, steps: int) -> str:
    """Describe how batches are drawn, and for how long; it follows "DP-SGD"."""
    scheme: Any = sampling
    blocks, epochs = getattr(scheme, "participations", 1), steps // (scheme.steps_per_epoch or 1)
    each = "each" if blocks == 1 else f"each of an epoch's {blocks} blocks"
    said = _SAMPLING[scheme.kind].format(scheme, steps=steps, epochs=epochs, each=each)
    if getattr(scheme, "at_most", None):
        said += f" from {scheme.samples} samples, of which at most {scheme.at_most} are kept, chosen uniformly"
    return said


def norms_sentence(norms: Norms) -> str:
    """Describe the norm method, and who may see the probes."""
    estimated: Any = norms
    if norms.kind not in ("hutchinson", "hutch++"):
        return "by exact gradient norms"
    sharing = "drawn in secret for every sample" if norms.secret else "public, the same for the samples of a step"
    estimate = f"{estimated.probes} Gaussian probes per layer"
    if norms.kind == "hutch++":
        estimate = f"a sketch of {estimated.sketch} columns and {estimate} (Hutch++)"
    return f"by gradient norms estimated with {estimate}, {sharing}"


def norms_label(norms: Norms) -> str:
    """Name the norm method in a few words, with who may see the probes."""
    estimated: Any = norms
    if norms.kind not in ("hutchinson", "hutch++"):
        return "exact norms"
    sketch = ""
    if norms.kind == "hutch++":
        sketch = f", a sketch of {estimated.sketch}{' with power iteration' * estimated.power_iteration}"
    return f"{estimated.probes} {'secret' if norms.secret else 'public'} probes{sketch}"


def release_sentence(release: Release, times: int) -> str:
    """Describe the releases in addition to training."""
    rate, orders = getattr(release, "rate", 1.0), len(getattr(release, "orders", ()))
    drawn = "" if rate == 1.0 else f", of samples drawn at rate {rate:g}"
    said = _RELEASES.get(release.kind, f"{_ANSWER} that is private").format(release, drawn=drawn, orders=orders)
    return said if times == 1 else f"{times} × {said}"


def trainings(run: Composition) -> list[tuple[DPSGD, int]]:
    """Return its phases of DP-SGD."""
    return [(mechanism, steps) for mechanism, steps in run.phases if isinstance(mechanism, DPSGD)]


def releases(run: Composition) -> list[tuple[Release, int]]:
    """List the other releases, and how often each is made."""
    return [(release, times) for release, times in run.phases if isinstance(release, Release)]


def _run(run: Composition) -> str:
    phases = []
    for mechanism, steps in trainings(run):
        released = "; ".join(release_sentence(release, 1) for release in mechanism.beside)
        where = "of the same batches, in units of what one sample adds"
        phases.append(
            f"{sampling_sentence(mechanism.sampling, steps)}, with Gaussian noise of standard deviation"
            f" {mechanism.noise_multiplier:.6g} times the clipping norm and per-sample clipping"
            f" {norms_sentence(mechanism.norms)}" + (f" (released {where}: {released})" if released else "")
        )
    return phases[0] if len(phases) == 1 else f"in {len(phases)} phases: {'; then '.join(phases)}"


def _whose(run: Composition) -> str:
    kinds = {_whose_phase(mechanism.norms) for mechanism, _ in trainings(run)}
    return kinds.pop() if len(kinds) == 1 else "the worst case of these analyses"


def _whose_phase(norms: Norms) -> str:
    if norms.kind == "hutch++":
        return "the worst case of this analysis"
    is_tight = norms.kind == "exact" or getattr(norms, "analysis", "") == "tight"
    return "this mechanism" if is_tight else "the worst case of the published envelope"
