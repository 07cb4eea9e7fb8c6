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
    ApproximateRelease,
    Composition,
    CyclicPoisson,
    ExactNorms,
    FixedOrder,
    FixedSize,
    GaussianRelease,
    Group,
    Hutchinson,
    HutchPlusPlus,
    LaplaceRelease,
    Neighbours,
    Norms,
    Poisson,
    PrivacyBounds,
    Release,
    RenyiRelease,
    ReplaceOne,
    Sampling,
)

ONE_RUN = "a composition: of parallel runs each has its own statement, and the largest ε holds for all"


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
    return (
        f"Training runs DP-SGD {_run(run)}.{_beside(run)}"
        f" The released model is (ε, δ)-differentially private with {epsilon} and {delta} {relation_sentence(run)}"
        f" ({_directions(worst)}). The bound was computed"
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
    drawn = any(not isinstance(one.sampling, FixedOrder) for one, _ in trainings(run))
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
    if isinstance(sampling, Poisson):
        drawn = f"for T = {steps} steps on batches by Poisson sampling at rate q = {sampling.rate:.6g}"
        cut = f" from {sampling.samples} samples, of which at most {sampling.at_most} are kept, chosen uniformly"
        return drawn + (cut if sampling.at_most else "")
    if isinstance(sampling, CyclicPoisson):
        groups = f"one of {sampling.bands} groups of samples in turn, at rate {sampling.step_rate:.6g} of the group"
        return f"for T = {steps} steps on batches by Poisson sampling from {groups}"
    if isinstance(sampling, FixedSize):
        of = f"{sampling.batch_size} of {sampling.samples} samples"
        return f"for T = {steps} steps on batches of {of}, drawn uniformly without replacement anew in every step"
    if isinstance(sampling, FixedOrder):
        return f"for {steps} epochs in a fixed order (every sample in one batch of each, none drawn)"
    blocks, per_epoch = sampling.participations, sampling.steps_per_epoch
    where = "one step of each" if blocks == 1 else f"one step of each of an epoch's {blocks} blocks"
    epochs = f"for {steps // per_epoch} epochs of {per_epoch} steps"
    return f"{epochs} with random allocation (every sample in {where})"


def norms_sentence(norms: Norms) -> str:
    """Describe the norm method, and who may see the probes."""
    if not isinstance(norms, (Hutchinson, HutchPlusPlus)):
        return "by exact gradient norms"
    sharing = "drawn in secret for every sample" if norms.secret else "public, the same for the samples of a step"
    estimate = f"{norms.probes} Gaussian probes per layer"
    if isinstance(norms, HutchPlusPlus):
        estimate = f"a sketch of {norms.sketch} columns and {estimate} (Hutch++)"
    return f"by gradient norms estimated with {estimate}, {sharing}"


def norms_label(norms: Norms) -> str:
    """Name the norm method in a few words, with who may see the probes."""
    if not isinstance(norms, (Hutchinson, HutchPlusPlus)):
        return "exact norms"
    sketch = ""
    if isinstance(norms, HutchPlusPlus):
        sketch = f", a sketch of {norms.sketch}{' with power iteration' * norms.power_iteration}"
    return f"{norms.probes} {'secret' if norms.secret else 'public'} probes{sketch}"


def release_sentence(release: Release, times: int) -> str:
    """Describe the releases in addition to training."""
    often = "" if times == 1 else f"{times} × "
    if isinstance(release, GaussianRelease):
        return f"{often}a vector with Gaussian noise of standard deviation {release.noise_multiplier:g}"
    if isinstance(release, LaplaceRelease):
        drawn = "" if release.rate == 1.0 else f", of samples drawn at rate {release.rate:g}"
        return f"{often}a number with Laplace noise of scale {release.scale:g}{drawn}"
    if isinstance(release, ApproximateRelease):
        return f"{often}the answer of an ({release.epsilon:g}, {release.delta:g})-private mechanism"
    if isinstance(release, RenyiRelease):
        return f"{often}the answer of a mechanism with bounded Rényi divergences of {len(release.orders)} orders"
    known = {"gaussian-dp": "{mu:g}-GDP", "zcdp": "{rho:g}-zCDP"}.get(release.kind, "private")
    return f"{often}the answer of a mechanism that is {known.format(**vars(release))}"


def trainings(run: Composition) -> list[tuple[DPSGD, int]]:
    """Return its phases of DP-SGD."""
    return [(mechanism, steps) for mechanism, steps in run.phases if isinstance(mechanism, DPSGD)]


def releases(run: Composition) -> list[tuple[Release, int]]:
    """List the other releases, and how often each is made."""
    return [(release, times) for release, times in run.phases if isinstance(release, Release)]


def _run(run: Composition) -> str:
    phases = [
        f"{sampling_sentence(mechanism.sampling, steps)}, with Gaussian noise of standard deviation"
        f" {mechanism.noise_multiplier:.6g} times the clipping norm and per-sample clipping"
        f" {norms_sentence(mechanism.norms)}{_of_the_same_batches(mechanism)}"
        for mechanism, steps in trainings(run)
    ]
    return phases[0] if len(phases) == 1 else f"in {len(phases)} phases: {'; then '.join(phases)}"


def _of_the_same_batches(mechanism: DPSGD) -> str:
    said = "; ".join(release_sentence(release, 1) for release in mechanism.beside)
    where = "of the same batches, in units of what one sample adds"
    return f" (released {where}: {said})" if said else ""


def _beside(run: Composition) -> str:
    said = [release_sentence(release, times) for release, times in releases(run)]
    where = "in units of what neighbours can change"
    return f" Released beside the model, {where}: {'; '.join(said)}." if said else ""


def _directions(worst: PrivacyBounds) -> str:
    if worst.direction is None:
        return "in either direction"
    return f"both directions; the one that decides: {worst.direction}"


def _whose(run: Composition) -> str:
    kinds = {_whose_phase(mechanism) for mechanism, _ in trainings(run)}
    return kinds.pop() if len(kinds) == 1 else "the worst case of these analyses"


def _whose_phase(mechanism: DPSGD) -> str:
    norms: Any = mechanism.norms
    if isinstance(norms, HutchPlusPlus):
        return "the worst case of this analysis"
    is_tight = isinstance(norms, ExactNorms) or getattr(norms, "analysis", "") == "tight"
    return "this mechanism" if is_tight else "the worst case of the published envelope"
