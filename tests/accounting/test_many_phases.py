"""Phases side by side: the laws that they would have alone, valid on both sides, and answers that hold the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from dprmt.accounting import DPSGD, Hutchinson, compose
from dprmt.accounting.composition import DeltaAtEpsilon, Level, _level, _many_phases
from dprmt.accounting.composition._many_phases import cells_of_many, laws_side_by_side, most_variation
from dprmt.accounting.composition._step_law import (
    Meshing,
    directed_range,
    discrete_variation,
    law_of_step,
    rough_meshing,
)
from dprmt.accounting.pairs import LossPMF, PublicPair

EPSILONS = np.concatenate([-np.geomspace(1e-3, 2.0, 15), [0.0], np.geomspace(1e-3, 6.0, 30)])
TAIL = 1e-11


def pairs_of(kind: str, side: str) -> list[PublicPair]:
    noise = np.linspace(0.7, 1.4, 7)
    steps = {
        "exact": [DPSGD(sigma, 0.05).step() for sigma in noise],
        "rates": [DPSGD(1.0, rate).step() for rate in (0.01, 0.02, 0.05, 0.3, 1.0)],
        "known": [DPSGD(sigma, 0.05, Hutchinson(24, secret=False)).step() for sigma in noise],
    }[kind]
    return [step.pairs(96, TAIL)[side == "lower"] for step in steps]


def curve(pmf: LossPMF, offset: float) -> np.ndarray:
    """E(1 - e^{ε - L})₊, an infinite loss counting as 1."""
    losses = pmf.losses + offset
    return -np.expm1(np.minimum(EPSILONS[:, None] - losses, 0.0)) @ pmf.mass + pmf.infinite


def truth(pair, direction: str) -> np.ndarray:
    """The curve of a pair from its masses beyond each ε."""
    nodes = EPSILONS if direction == "remove" else -EPSILONS[::-1]
    found = []
    for node in nodes:
        cells = pair.cells(np.array([node - 1e-9, node, node + 1e-9]))
        above = cells if direction == "remove" else cells.mirrored()
        epsilon = node if direction == "remove" else -node
        p, q = above.p[1] + above.p_above, above.q[1] + above.q_above
        found.append(p - math.exp(epsilon) * q + pair.slack)
    return np.array(found if direction == "remove" else found[::-1])


@pytest.mark.parametrize("kind", ["exact", "rates", "known"])
@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("side", ["upper", "lower"])
def test_laws_side_by_side_keep_their_side_and_are_close(kind: str, direction: str, side: str) -> None:
    pairs = pairs_of(kind, side)
    ranges = [directed_range(pair, TAIL, direction) for pair in pairs]
    laws, offsets = laws_side_by_side(pairs, ranges, Meshing(direction, side, 0.005, 0.5, 0.5))
    for pair, law, offset in zip(pairs, laws, offsets, strict=True):
        assert law.index is laws[0].index
        gap = curve(law, offset) - truth(pair, direction)
        assert np.all(gap * (1.0 if side == "upper" else -1.0) >= -1e-13)
        assert np.max(np.abs(gap)) < 6e-4


def test_a_node_short_of_the_mean_would_be_no_lower_bound() -> None:
    """The test above sees a node that is moved the wrong way, by an eighth of a mesh."""
    pairs = pairs_of("exact", "lower")
    ranges = [directed_range(pair, TAIL, "remove") for pair in pairs]
    laws, offsets = laws_side_by_side(pairs, ranges, Meshing("remove", "lower", 0.02, 0.5, 0.5))
    for pair, law, offset in zip(pairs, laws, offsets, strict=True):
        assert np.any(curve(law, offset + 0.02 / 8) > truth(pair, "remove") + 1e-9)


@pytest.mark.parametrize("kind", ["exact", "known"])
def test_cells_are_those_of_each_pair(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_many_phases, "_MOST_SHIFTS", 200)
    pairs, nodes = pairs_of(kind, "lower"), np.linspace(-0.05, 9.0, 300)
    for pair, cells in zip(pairs, cells_of_many(pairs, nodes), strict=True):
        alone = pair.cells(nodes)
        for name in ("p", "q", "p_below", "q_below", "p_above", "q_above"):
            assert np.allclose(getattr(cells, name), getattr(alone, name), rtol=1e-12, atol=1e-18)


@given(st.floats(0.3, 5.0), st.floats(1e-6, 1.0), st.sampled_from([None, 9, 40]))
def test_most_variation_is_that_of_the_discrete_law_and_no_less_than_the_truth(sigma, rate, probes) -> None:
    mechanism = DPSGD(sigma, rate) if probes is None else DPSGD(sigma, rate, Hutchinson(probes, secret=False))
    upper, lower = mechanism.step().pairs(64, 1e-12)
    ends = directed_range(upper, 1e-12, "remove")
    law, _ = law_of_step(upper, ends, rough_meshing("remove", 1e-4, 1.05))
    most = most_variation(upper, ends, "remove", 1e-4)
    assert rate * lower.total_variation() <= most <= discrete_variation(law) * (1.0 + 1e-9) + 1e-13


@given(st.floats(0.03, 0.4), st.floats(1e-3, 1.0), st.sampled_from([2, 9, 40, 400]))
def test_most_variation_covers_spectra_that_rank_one_does_not(sigma, rate, probes) -> None:
    """X = 1 is one of them, and with so little noise worse than rank one."""
    upper, _ = DPSGD(sigma, rate, Hutchinson(probes, secret=False)).step().pairs(64, 1e-12)
    exact = rate * float(2.0 * ndtr(0.5 / sigma) - 1.0)
    assert most_variation(upper, directed_range(upper, 1e-12, "remove"), "remove", 1e-4) >= exact


def test_all_that_is_infinite_is_variation() -> None:
    """Slack, squared-norm ratios of 0, and a discrete law's own."""
    pair = PublicPair(np.array([1.0]), np.array([0.7]), 0.5, infinite=0.3, slack=0.01)
    exact = 0.5 * (0.7 * float(2.0 * ndtr(0.5) - 1.0) + 0.3) + 0.01
    assert most_variation(pair, (-0.7, 3.0), "remove", 1e-4) == pytest.approx(exact, rel=1e-12)
    law = LossPMF(np.array([-1, 0, 2]), np.array([0.2, 0.3, 0.4]), 0.5, 0.1)
    assert discrete_variation(law) == pytest.approx(0.1 + 0.4 * (1.0 - math.exp(-1.0)), rel=1e-12)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε of N(μ, 1) against N(0, 1)."""

    def excess(epsilon: float) -> float:
        return float(ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)) - delta)

    return float(brentq(excess, 0.0, 10.0 * mu + mu**2))


@given(st.lists(st.floats(1.0, 40.0), min_size=5, max_size=40, unique=True), st.integers(1, 5))
@settings(max_examples=12)
def test_gaussian_phases_compose_to_a_gaussian(noise: list[float], steps: int) -> None:
    """Without sampling all phases together are one Gaussian mechanism."""
    bounds = compose([(DPSGD(sigma, 1.0), steps) for sigma in noise]).epsilon_by_direction(1e-6)
    exact = gaussian_epsilon(math.sqrt(steps * sum(sigma**-2.0 for sigma in noise)), 1e-6)
    for bound in bounds.values():
        assert bound.lower <= exact <= bound.upper
        assert bound.is_narrow


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_what_lies_beyond_the_nodes_of_its_own_direction_is_infinite(direction: str) -> None:
    """On nodes that end early on one side, where the other direction's masses are next to nothing."""
    pairs = [DPSGD(sigma, 1.0).step().pairs(96, TAIL)[0] for sigma in (0.1, 0.11, 0.12, 0.13)]
    laws, offsets = laws_side_by_side(pairs, [(-60.0, 70.0)] * 4, Meshing(direction, "upper", 0.05, 0.5, 0.5))
    for pair, law, offset in zip(pairs, laws, offsets, strict=True):
        (mu,), last = pair.shift, law.losses[-1] + offset
        assert law.infinite == pytest.approx(float(ndtr(mu / 2 - last / mu)), rel=1e-9)
        assert law.mass.sum() + law.infinite == pytest.approx(1.0)
        assert np.all(curve(law, offset) >= truth(pair, direction) - 1e-13)


def test_phases_without_sampling_and_with_little_noise_are_answered_in_both_directions() -> None:
    noise = (0.1, 0.105, 0.11, 0.115)
    exact = gaussian_epsilon(math.sqrt(sum(sigma**-2.0 for sigma in noise)), 1e-5)
    for bound in compose([(DPSGD(sigma, 1.0), 1) for sigma in noise]).epsilon_by_direction(1e-5).values():
        assert bound.lower <= exact <= bound.upper
        assert bound.is_narrow


def mixed_phases() -> list[tuple[DPSGD, int]]:
    noise = np.linspace(0.8, 1.6, 9)
    phases: list[tuple[DPSGD, int]] = [(DPSGD(sigma, 0.02), 3) for sigma in noise]
    phases += [(DPSGD(sigma, 0.02, Hutchinson(24, secret=False)), 2) for sigma in noise]
    phases += [(DPSGD(sigma, 0.01 * sigma), 4) for sigma in noise]
    return [*phases, (DPSGD(1.0, 0.02, Hutchinson(24, secret=True)), 2)]


def test_many_phases_answer_as_they_do_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    run = compose(mixed_phases())
    together = run.epsilon_by_direction(1e-5) | {"δ": run.delta(1.0)}
    monkeypatch.setattr(_many_phases, "_MANY", 1000)
    apart = run.epsilon_by_direction(1e-5) | {"δ": run.delta(1.0)}
    for name, bounds in together.items():
        assert bounds.is_narrow
        assert bounds.lower <= apart[name].upper
        assert apart[name].lower <= bounds.upper
        assert bounds.upper == pytest.approx(apart[name].upper, rel=5e-3)
        assert bounds.lower == pytest.approx(apart[name].lower, rel=5e-3)


def test_one_phase_more_among_many_never_lowers_a_bound_below_the_others() -> None:
    phases = mixed_phases()
    assert compose(phases).epsilon(1e-5).upper > compose(phases[:-1]).epsilon(1e-5).lower


def test_losses_far_beyond_the_question_count_as_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few probes: of a tail of losses up to 1e4, δ(0) sees that they are large; told apart, they cost the mesh."""
    phases = [(DPSGD(sigma, 0.03, Hutchinson(8, secret=False)), 2) for sigma in (0.8, 1.2)]

    def bounds() -> tuple[float, float]:
        at = Level(compose(phases).schedule(), DeltaAtEpsilon(0.0), "remove", -1)
        return tuple(at.curve(side, split=False).delta_bounds(0.0)[end] for side, end in (("lower", 0), ("upper", 1)))

    monkeypatch.setattr(_level, "_MAX_WINDOW", 2**15)
    lower, upper = bounds()
    monkeypatch.setattr(_level, "_FARTHER", 1e13)
    far_lower, far_upper = bounds()
    assert far_lower <= upper
    assert lower <= far_upper
    assert upper - lower < 0.1 * upper < far_upper - far_lower


def test_a_finer_mesh_narrows_phases_too() -> None:
    """Nodes beside the means of the commonest losses cost a lower bound 2 % here, on a mesh a third as wide."""
    exact, known = [(1.0567, 8), (1.3559, 9)], [(0.9149, 10), (1.3943, 2), (1.0768, 14), (1.3153, 13)]
    phases = [(DPSGD(sigma, 0.00434), steps) for sigma, steps in exact]
    phases += [(DPSGD(sigma, 0.00434, Hutchinson(16, secret=False)), steps) for sigma, steps in known]
    assert compose(phases).epsilon(4.57e-6).is_narrow


@pytest.mark.parametrize(("noise_multiplier", "steps", "delta"), [(0.5, 50, 1e-5), (0.3, 7, 1e-8)])
def test_two_public_probes_without_sampling_have_an_answer_where_epsilon_is_in_millions(noise_multiplier, steps, delta):
    """Losses have no end here, and one 1/X decides: P(ΣV > v) ≈ T/v, and ε is half of that variance."""
    mechanism = DPSGD(noise_multiplier, 1.0, Hutchinson(2, secret=False))
    alone = mechanism.epsilon(steps=steps, delta=delta)
    assert alone.upper <= 1.002 * alone.lower
    assert alone.lower <= steps / (2 * noise_multiplier**2 * delta) <= alone.upper
    assert compose([(mechanism, steps)]).epsilon(delta) == alone
