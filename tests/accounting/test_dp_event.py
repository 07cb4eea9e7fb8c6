"""Trees of events of dp-accounting, read and written: round trips, and the same ε as its own accountant."""

from __future__ import annotations

import importlib
import io
import unittest

import pytest

from dprmt import ParameterError
from dprmt.accounting import (
    DPSGD,
    AddRemove,
    ApproximateRelease,
    Composition,
    CyclicPoisson,
    FixedOrder,
    FixedSize,
    GaussianRelease,
    Group,
    Hutchinson,
    LaplaceRelease,
    Neighbours,
    Poisson,
    RandomAllocation,
    ReplaceOne,
    ZCDPRelease,
    ZeroOut,
    compose,
)

events = pytest.importorskip("dp_accounting.dp_event")

from dp_accounting import NeighboringRelation, PrivacyAccountant  # noqa: E402
from dp_accounting.pld import PLDAccountant  # noqa: E402
from dp_accounting.rdp import RdpAccountant  # noqa: E402

from dprmt.accounting.interop.dp_event import from_dp_event, to_dp_event  # noqa: E402

REMOVED, REPLACED = AddRemove(), ReplaceOne()
TWO = [GaussianRelease(2.0), GaussianRelease(3.0)]
RUNS: list[tuple[Composition, Neighbours]] = [
    (compose([(DPSGD(1.0, 0.02, neighbours=REMOVED), 100)]), REMOVED),
    (compose([(DPSGD(1.0, 0.02, neighbours=REMOVED, beside=TWO), 100), GaussianRelease(4.0)]), REMOVED),
    (compose([(DPSGD(1.0, Poisson(0.02, 40, 1000), neighbours=REMOVED), 100), LaplaceRelease(3.0)]), REMOVED),
    (compose([(LaplaceRelease(1.0, 0.1), 10), ZCDPRelease(0.1)]), REMOVED),
    (compose([(DPSGD(1.0, FixedSize(20, 1000), neighbours=REPLACED, beside=TWO), 100)]), REPLACED),
]


@pytest.mark.parametrize(("run", "neighbours"), RUNS)
def test_a_run_comes_back_from_its_events(run: Composition, neighbours: Neighbours) -> None:
    assert from_dp_event(to_dp_event(run), neighbours) == run


def events_of_its_tests(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Run dp-accounting's own tests of accountants for the events that they ask about, whatever becomes of them."""
    seen: list[object] = []

    def keep(self: PrivacyAccountant, event: object, *_: object, **__: object) -> PrivacyAccountant:
        if not any(type(event) is type(other) and event == other for other in seen):
            seen.append(event)
        return self

    monkeypatch.setattr(PrivacyAccountant, "compose", keep)
    monkeypatch.setattr(PrivacyAccountant, "supports", keep)
    for name in ("rdp.rdp_privacy_accountant_test", "pld.pld_privacy_accountant_test"):
        tests = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(f"dp_accounting.{name}"))
        unittest.TextTestRunner(stream=io.StringIO()).run(tests)
    return seen


@pytest.mark.filterwarnings("ignore")
def test_events_of_its_own_tests_come_back_or_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"back": 0, "named": 0}
    for event in events_of_its_tests(monkeypatch):
        for neighbours in (REMOVED, REPLACED):
            try:
                run = from_dp_event(event, neighbours)
            except ParameterError:
                answers["named"] += 1
                continue
            assert from_dp_event(to_dp_event(run), neighbours) == run
            answers["back"] += 1
    assert min(answers.values()) >= 50


def sampled(noise: float, rate: float) -> object:
    return events.PoissonSampledDpEvent(rate, events.GaussianDpEvent(noise))


TREES = [
    events.SelfComposedDpEvent(sampled(1.0, 0.02), 200),
    events.ComposedDpEvent([events.SelfComposedDpEvent(sampled(1.0, 0.02), 50), events.GaussianDpEvent(3.0)]),
    events.SelfComposedDpEvent(events.ComposedDpEvent([sampled(2.0, 0.1), events.LaplaceDpEvent(8.0)]), 3),
    events.ComposedDpEvent([events.NoOpDpEvent(), events.PoissonSampledDpEvent(0.05, events.LaplaceDpEvent(0.5))]),
    events.TruncatedSubsampledGaussianDpEvent(500, 0.02, 30, 1.0),
]


@pytest.mark.parametrize("tree", TREES)
def test_its_own_accountant_agrees(tree: object) -> None:
    """Its answers are rounded up on a mesh of 1e-3, so they are not below ours, nor far above."""
    claimed = PLDAccountant(value_discretization_interval=1e-3).compose(tree).get_epsilon(1e-5)
    bounds = from_dp_event(tree).epsilon(1e-5)
    assert bounds.lower <= claimed * (1 + 1e-6) <= 1.02 * bounds.upper + 2e-3


def test_repetitions_of_repetitions_are_multiplied() -> None:
    twice = events.SelfComposedDpEvent(events.SelfComposedDpEvent(sampled(1.0, 0.05), 5), 4)
    assert from_dp_event(twice) == from_dp_event(events.SelfComposedDpEvent(sampled(1.0, 0.05), 20))
    mixed = events.SelfComposedDpEvent(events.ComposedDpEvent([twice, events.GaussianDpEvent(3.0)]), 2)
    assert [count for _, count in from_dp_event(mixed).phases] == [40, 2]


def test_mechanisms_under_one_sampling_share_a_batch() -> None:
    """Four Gaussians at 2 are one at 1; its Rényi accountant says so too."""
    tree = events.PoissonSampledDpEvent(0.1, events.SelfComposedDpEvent(events.GaussianDpEvent(2.0), 4))
    shared, one = (from_dp_event(events.SelfComposedDpEvent(each, 20)) for each in (tree, sampled(1.0, 0.1)))
    assert shared.epsilon(1e-5).upper == pytest.approx(one.epsilon(1e-5).upper, rel=1e-4)
    assert shared.epsilon(1e-5).upper < RdpAccountant().compose(tree, 20).get_epsilon(1e-5)


def test_replacements_have_its_units() -> None:
    """Sampling without replacement: a Gaussian of noise multiplier m there has σ = 2m here."""
    tree = events.SampledWithoutReplacementDpEvent(1000, 20, events.GaussianDpEvent(0.75))
    assert from_dp_event(tree, REPLACED) == compose([(DPSGD(1.5, FixedSize(20, 1000), neighbours=REPLACED), 1)])
    replaced = PLDAccountant(NeighboringRelation.REPLACE_ONE, value_discretization_interval=1e-3)
    claimed = replaced.compose(sampled(1.0, 0.05), 20).get_epsilon(1e-5)
    bounds = from_dp_event(events.SelfComposedDpEvent(sampled(1.0, 0.05), 20), REPLACED).epsilon(1e-5)
    assert bounds.lower <= claimed <= 1.01 * bounds.upper


def test_what_has_other_words_there() -> None:
    """A fixed order is no sampling; cyclic sampling is fewer steps at a larger rate."""
    thrice = events.SelfComposedDpEvent(events.GaussianDpEvent(2.0), 3)
    assert to_dp_event(compose([(DPSGD(2.0, FixedOrder()), 3)])) == thrice
    cyclic = to_dp_event(compose([(DPSGD(2.0, CyclicPoisson(0.01, 3)), 7)]))
    assert (cyclic.count, cyclic.event.sampling_probability) == (3, pytest.approx(0.03))


@pytest.mark.parametrize(
    "event",
    [
        events.NonPrivateDpEvent(),
        events.RandomizedResponseDpEvent(0.5, 2),
        events.DiscreteLaplaceDpEvent(0.5, 1),
        events.ZCDpEvent(0.1, 0.2),
        events.SampledWithReplacementDpEvent(10, 2, events.GaussianDpEvent(1.0)),
        events.SampledWithoutReplacementDpEvent(10, 2, events.GaussianDpEvent(1.0)),
        events.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [0.5, 0.5]),
        events.RepeatAndSelectDpEvent(events.GaussianDpEvent(1.0), 2, 1),
        events.SingleEpochTreeAggregationDpEvent(1.0, 4),
    ],
)
def test_what_has_no_counterpart_is_named(event: object) -> None:
    with pytest.raises(ParameterError, match=type(event).__name__):
        from_dp_event(events.ComposedDpEvent([events.GaussianDpEvent(1.0), event]))


@pytest.mark.parametrize(
    "mechanism",
    [
        DPSGD(1.0, 0.1, Hutchinson(32, secret=False)),
        DPSGD(1.0, RandomAllocation(10)),
        DPSGD(1.0, 0.1, neighbours=Group(2)),
        DPSGD(1.0, FixedSize(2, 10), neighbours=ZeroOut()),
        ApproximateRelease(1.0, 1e-5),
    ],
)
def test_what_dp_accounting_has_not_is_named(mechanism: DPSGD) -> None:
    with pytest.raises(ParameterError, match="dp-accounting"):
        to_dp_event(compose([(mechanism, 10)]))


def test_one_batch_takes_gaussians_only() -> None:
    shared = events.ComposedDpEvent([events.GaussianDpEvent(1.0), events.LaplaceDpEvent(1.0)])
    with pytest.raises(ParameterError, match="share a batch"):
        from_dp_event(events.PoissonSampledDpEvent(0.1, shared))
