"""Runs as trees of events of the dp-accounting package (version 0.6), read and written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dp_accounting import dp_event as events

from dprmt._validation import ParameterError
from dprmt.accounting.laws._norms import ExactNorms
from dprmt.accounting.mechanisms._composition import Composition, compose
from dprmt.accounting.mechanisms._conversions import ZCDPRelease
from dprmt.accounting.mechanisms._dpsgd import DPSGD
from dprmt.accounting.mechanisms._releases import GaussianRelease, LaplaceRelease
from dprmt.accounting.pairs._steps import (
    AddRemove,
    CyclicPoisson,
    FixedOrder,
    FixedSize,
    Group,
    Neighbours,
    Poisson,
    ReplaceOne,
)

Phases = Iterator[tuple[Any, int]]


_REMOVED = AddRemove()


def from_dp_event(event: events.DpEvent, neighbours: Neighbours = _REMOVED) -> Composition:
    """Read a tree of events as a composition.

    Parameters
    ----------
    event : dp_accounting.DpEvent
        Gaussian, Laplace and zCDP mechanisms, sampled by Poisson sampling (truncated, too) or without replacement,
        composed in any depth. Several Gaussians under one ``PoissonSampledDpEvent`` share a batch.
    neighbours : AddRemove, ZeroOut or ReplaceOne
        Neighbouring relation, which an event does not contain. Sampling without replacement needs ``ReplaceOne()``,
        and its noise multiplier is there in units of the change by a replacement, twice the clipping norm.

    Returns
    -------
    Composition
        A composition of :class:`dprmt.DPSGD` and releases.

    Raises
    ------
    ParameterError
        If an event has no counterpart; the error names it.

    Examples
    --------
    >>> from dp_accounting import dp_event
    >>> step = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0))
    >>> from_dp_event(dp_event.SelfComposedDpEvent(step, 1000))
    Composition([(DPSGD(1.0, Poisson(0.01), neighbours=AddRemove()), 1000)])
    """
    return compose(list(_phases(event, neighbours, 1)))


def _phases(event: Any, neighbours: Neighbours, count: int) -> Phases:
    if isinstance(event, events.ComposedDpEvent):
        for part in event.events:
            yield from _phases(part, neighbours, count)
    elif isinstance(event, events.SelfComposedDpEvent):
        yield from _phases(event.event, neighbours, count * event.count)
    elif not isinstance(event, events.NoOpDpEvent):
        yield _mechanism(event, neighbours), count


def _mechanism(event: Any, neighbours: Neighbours) -> Any:
    if isinstance(event, events.GaussianDpEvent):
        return GaussianRelease(event.noise_multiplier)
    if isinstance(event, events.LaplaceDpEvent):
        return LaplaceRelease(event.noise_multiplier)
    if isinstance(event, events.ZCDpEvent) and event.xi == 0.0:
        return ZCDPRelease(event.rho)
    if isinstance(event, events.TruncatedSubsampledGaussianDpEvent):
        most = min(event.truncated_batch_size, event.dataset_size)
        drawn = Poisson(event.sampling_probability, most, event.dataset_size)
        return DPSGD(event.noise_multiplier, drawn, neighbours=neighbours)
    if isinstance(event, events.PoissonSampledDpEvent):
        if isinstance(event.event, events.LaplaceDpEvent):
            return LaplaceRelease(event.event.noise_multiplier, event.sampling_probability)
        return _shared(event.event, 1.0, Poisson(event.sampling_probability), neighbours)
    if isinstance(event, events.SampledWithoutReplacementDpEvent) and isinstance(neighbours, ReplaceOne):
        return _shared(event.event, 2.0, FixedSize(event.sample_size, event.source_dataset_size), neighbours)
    allowed = (
        "made of Gaussian, Laplace and zCDP mechanisms, composed, sampled by Poisson sampling, or without replacement"
    )
    raise ParameterError("event", type(event).__name__, f"{allowed} for ReplaceOne(): this one has no counterpart here")


def _shared(event: Any, unit: float, sampling: Any, neighbours: Neighbours) -> DPSGD:
    """Return one batch for all mechanisms of an event, which are Gaussian."""
    phases = list(_phases(event, neighbours, 1))
    if not phases or not all(isinstance(one, GaussianRelease) for one, _ in phases):
        raise ParameterError("event", type(event).__name__, "Gaussian mechanisms alone where they share a batch")
    noises = [unit * one.noise_multiplier for one, times in phases for _ in range(times)]
    return DPSGD(noises[0], sampling, neighbours=neighbours, beside=[GaussianRelease(noise) for noise in noises[1:]])


def to_dp_event(run: Composition) -> events.DpEvent:
    """Write a composition as a tree of events.

    Parameters
    ----------
    run : Composition
        With exact norms, and releases.

    Returns
    -------
    dp_accounting.DpEvent
        For an accountant of the same neighbours: ``ReplaceOne()`` is its ``REPLACE_ONE``, all others are its
        ``ADD_OR_REMOVE_ONE``.

    Raises
    ------
    ParameterError
        If a phase has no counterpart: estimated norms, random allocation, groups, batches of a fixed size unless a
        sample is replaced, and releases that are known by (ε, δ), μ-GDP or Rényi divergences.

    Examples
    --------
    >>> run = compose([(DPSGD(1.0, 0.01, neighbours=AddRemove()), 1000), GaussianRelease(4.0)])
    >>> from_dp_event(to_dp_event(run)) == run
    True
    """
    parts = [_event(mechanism, steps) for mechanism, steps in run.phases]
    return parts[0] if len(parts) == 1 else events.ComposedDpEvent(parts)


def _event(mechanism: Any, steps: int) -> events.DpEvent:
    if isinstance(mechanism, DPSGD):
        if isinstance(mechanism.sampling, CyclicPoisson):
            steps = -(-steps // mechanism.sampling.bands)
        one = _sampled(mechanism)
    else:
        one = _release(mechanism)
    return one if steps == 1 else events.SelfComposedDpEvent(one, steps)


def _release(release: Any) -> events.DpEvent:
    if isinstance(release, GaussianRelease):
        return events.GaussianDpEvent(release.noise_multiplier)
    if isinstance(release, LaplaceRelease):
        plain = events.LaplaceDpEvent(release.scale)
        return plain if release.rate == 1.0 else events.PoissonSampledDpEvent(release.rate, plain)
    if isinstance(release, ZCDPRelease):
        return events.ZCDpEvent(release.rho)
    raise ParameterError("run", release, "of releases that dp-accounting knows: Gaussian, Laplace, zCDP")


def _sampled(mechanism: DPSGD) -> events.DpEvent:
    drawn, relation = mechanism.sampling, mechanism.neighbours
    if not isinstance(mechanism.norms, ExactNorms) or isinstance(relation, Group):
        raise ParameterError(
            "run", mechanism, "with exact norms and one sample that changes, which dp-accounting knows"
        )

    def shared(unit: float) -> events.DpEvent:
        noises = [mechanism.noise_multiplier, *(one.noise_multiplier for one in mechanism.beside)]
        parts = [events.GaussianDpEvent(noise / unit) for noise in noises]
        return parts[0] if len(parts) == 1 else events.ComposedDpEvent(parts)

    if isinstance(drawn, FixedSize) and isinstance(relation, ReplaceOne):
        return events.SampledWithoutReplacementDpEvent(drawn.samples, drawn.batch_size, shared(2.0))
    if isinstance(drawn, Poisson) and drawn.at_most is not None:
        sizes = (drawn.samples, drawn.rate, drawn.at_most)
        return events.TruncatedSubsampledGaussianDpEvent(*sizes, mechanism.joint_noise_multiplier)
    if isinstance(drawn, Poisson | CyclicPoisson):
        return events.PoissonSampledDpEvent(drawn.step_rate, shared(1.0))
    if isinstance(drawn, FixedOrder) and not isinstance(relation, ReplaceOne):
        return shared(1.0)
    raise ParameterError("run", mechanism, "with a sampling that dp-accounting knows for these neighbours")
