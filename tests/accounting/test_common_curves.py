"""Curves of many steps with secret probes at common thresholds (C11): on the right side of the truth, and close."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln, ndtr

from dprmt.accounting import DPSGD, Composition, Hutchinson, HutchPlusPlus, Norms, compose
from dprmt.accounting.pairs import AtomicPair, ClippingStep, pairs_of_steps
from dprmt.accounting.pairs import _common_curves as curves
from dprmt.accounting.pairs import _common_grid as grid

TAIL = 1e-11


def steps_of(noise, probes: int = 24, rate: float = 0.05) -> list[ClippingStep]:
    return [DPSGD(float(sigma), rate, Hutchinson(probes, secret=True)).step() for sigma in noise]


def both_sides(noise, probes: int = 24, rate: float = 0.05, bins: int = 80):
    """Upper and lower curves at common thresholds, by column, with the mass below the bins added to neither."""
    laws = grid._common_bins(steps_of(noise, probes, rate), 2 * bins, TAIL)
    t = np.linspace(-6.0, 11.0, 69)
    spread = grid._spread(laws, 0.0)
    return t, laws, spread, curves._majorants(t, laws.edges**-0.5, spread), curves._lower_curves(t, laws)


def truth(sigma: float, probes: int, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """E Φ(1/(σ√X) - t) of χ²(k)/k and 1 less it, by trapezoids in log X."""
    a = probes / 2
    log_x, width = np.linspace(-1.0 - 160.0 / a, 1.0 + 30.0 / a**0.5 / (a**0.5 + 5.0), 2001, retstep=True)
    weight = width * np.exp(a * np.log(a) + a * log_x - a * np.exp(log_x) - gammaln(a))
    x = np.exp(-log_x / 2) / sigma - t[:, None]
    return ndtr(x) @ weight, ndtr(-x) @ weight


def literal_majorant(shift: np.ndarray, mass: np.ndarray, t: float) -> tuple[float, float]:
    """Equations (C3) and (C4), one atom at a time."""
    star, value, ratio = (t + np.sqrt(t * t + 12)) / 2, 0.0, 0.0
    for mu, m in zip(shift, mass, strict=True):
        y = (star / mu) ** 2
        if y >= 1:
            value += m * ndtr(mu - t)
            ratio += m * np.exp(mu * t - mu**2 / 2)
            continue
        at, share = (star, y) if y >= 1 / 3 else (mu / np.sqrt(3), 1 / 3)
        value += m * (ndtr(3 / at) + at / 2 * np.exp(-4.5 / at**2) / np.sqrt(2 * np.pi) * (1 - share))
        ratio += m * np.exp(star * t - star**2 / 2) * max(1.5 * y - 0.5, 0.0)
    return value, ratio


def literal_lower(laws: curves.CommonBins, row: int, t: float) -> float:
    """(C11), one bin at a time: a tangent where f_t is convex, the chord where it is concave, else the right end."""
    f = lambda v: ndtr(v**-0.5 - t)  # noqa: E731
    star = (t + np.sqrt(t * t + 12)) / 2
    total = laws.below[row] * f(laws.edges[laws.first[row]]) + laws.beyond[row] * ndtr(-t)
    for left, right, m, mean in zip(laws.edges, laws.edges[1:], laws.mass[row], laws.mean[row], strict=False):
        if left**-0.5 <= star:
            c = (left + right) / 2
            slope = -0.5 * c**-1.5 * np.exp(-((c**-0.5 - t) ** 2) / 2) / np.sqrt(2 * np.pi)
            total += m * (f(c) + slope * (mean - c))
        elif right**-0.5 >= star:
            total += m * (f(left) * (right - mean) + f(right) * (mean - left)) / (right - left)
        else:
            total += m * f(right)
    return float(total)


def test_curves_are_sums_over_atoms_and_bins_one_at_a_time() -> None:
    noise = (0.5, 0.8, 2.0)
    t, laws, spread, (value, rest, log_ratio), (lower, lower_rest) = both_sides(noise, bins=20)
    shift = laws.edges**-0.5
    assert np.any(shift > np.sqrt(3) * 3 / 6.6)  # some atoms are frozen at the lowest threshold
    for row in range(len(noise)):
        for place in range(0, t.size, 4):
            expected, ratio = literal_majorant(shift, spread[row], t[place])
            assert value[place, row] == pytest.approx(expected, rel=1e-12)
            assert rest[place, row] == pytest.approx(spread[row].sum() - expected, abs=1e-13)
            assert np.exp(log_ratio[place, row]) == pytest.approx(ratio, rel=1e-11)
            under = literal_lower(laws, row, t[place])
            assert lower[place, row] == pytest.approx(under, rel=1e-11)
            assert lower_rest[place, row] == pytest.approx(1.0 - under, abs=1e-13)


@given(
    st.lists(st.floats(0.35, 30.0), min_size=2, max_size=5, unique=True), st.sampled_from([9, 24, 300]),
    st.sampled_from([8, 40]),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_curves_lie_on_the_right_side_of_the_truth(noise: list[float], probes: int, bins: int) -> None:
    """T_low(t) ≤ E Φ(μ - t) ≤ T̂(t) at every t, and 1 less them, however coarse the bins; (C3) alone may exceed 1."""
    t, laws, _, (value, rest, _), (lower, lower_rest) = both_sides(noise, probes, bins=bins)
    leftover = laws.below * (1 + 0.2 * (2 + t[-1]))
    for row, sigma in enumerate(noise):
        exact, beside = truth(sigma, probes, t)
        assert np.all(value[:, row] + leftover[row] >= exact * (1 - 1e-10))
        assert np.all(rest[:, row] + laws.below[row] - leftover[row] <= beside * (1 + 1e-10))
        assert np.all(lower[:, row] <= exact * (1 + 1e-10))
        assert np.all(lower_rest[:, row] >= beside * (1 - 1e-10))


def test_curves_are_close_to_the_truth() -> None:
    """From below to second order in the bins; from above up to what the majorant itself is too large by."""
    t, _, _, (value, _, _), (lower, _) = both_sides((0.9, 1.4, 3.0), probes=64)
    for row, sigma in enumerate((0.9, 1.4, 3.0)):
        exact, _ = truth(sigma, 64, t)
        seen = exact > 1e-9
        assert np.all(lower[seen, row] >= exact[seen] * (1 - 2e-4))
        assert np.all(value[seen & (t > 0.0), row] <= exact[seen & (t > 0.0)] * (1 + 1e-3))


def divergences(pair: AtomicPair, alpha: np.ndarray) -> dict[str, np.ndarray]:
    q = pair.p * np.exp(-pair.losses)
    return {
        "remove": np.maximum(pair.p - alpha[:, None] * q, 0.0).sum(axis=1) + pair.infinite,
        "add": np.maximum(q - alpha[:, None] * pair.p, 0.0).sum(axis=1),
    }


@given(
    st.lists(st.floats(0.5, 8.0), min_size=2, max_size=4, unique=True), st.sampled_from([9, 24, 300]),
    st.sampled_from([1e-4, 0.05, 0.5, 0.97]),
)  # fmt: skip
@settings(max_examples=20, deadline=None)
def test_pairs_bound_every_divergence_in_both_directions(noise: list[float], probes: int, rate: float) -> None:
    """H_α of the pairs against (C1)'s half-lines, which contain those of the lower pair: valid both ways, and tight."""
    alpha = np.concatenate([np.geomspace(1e-3, 0.9, 12), np.linspace(0.91, 1.1, 20), np.geomspace(1.2, 1e3, 20)])
    steps, q = steps_of(noise, probes, rate), rate
    laws = grid._common_bins(steps, 160, TAIL)
    t = curves.thresholds(laws.edges**-0.5, grid._spread(laws, 0.0), 80, TAIL)
    for (upper, lower), sigma in zip(grid._secret_pairs(tuple(steps), 80, TAIL), noise, strict=True):
        exact, beside = truth(sigma, probes, t)
        present, missing = (1 - q) * ndtr(-t) + q * exact, (1 - q) * ndtr(t) + q * beside
        least = {
            "remove": np.maximum((present - alpha[:, None] * ndtr(-t)).max(axis=1), np.maximum(1 - alpha, 0.0)),
            "add": np.maximum((ndtr(t) - alpha[:, None] * missing).max(axis=1), np.maximum(1 - alpha, 0.0)),
        }
        above, below = divergences(upper, alpha), divergences(lower, alpha)
        for direction, value in least.items():
            assert np.all(above[direction] >= value - 1e-13)
            assert np.all(below[direction] <= value + 1e-13)
            assert np.all(below[direction] >= value - 1e-3 * rate)
            assert np.all(above[direction] <= value + 0.05 * rate)


def test_what_is_cut_off_is_charged_once_and_all_else_is_there() -> None:
    noise, rate = np.linspace(0.6, 1.2, 5), 0.05
    for upper, lower in pairs_of_steps(steps_of(noise, rate=rate), 60, TAIL):
        assert TAIL / 10 < upper.infinite < 10 * TAIL
        assert (upper.p * np.exp(-upper.losses)).sum() == pytest.approx(1.0, abs=1e-13)
        assert upper.p.sum() + upper.infinite == pytest.approx(1.0, abs=2 * TAIL)
        assert upper.p.sum() + upper.infinite >= 1.0 - 1e-15
        assert upper.losses[0] == np.log1p(-rate)
        assert lower.infinite == 0.0
        assert lower.p.sum() == pytest.approx(1.0, abs=1e-13)
        assert (lower.p * np.exp(-lower.losses)).sum() == pytest.approx(1.0, abs=1e-12)
        variation = upper.total_variation()
        assert variation == pytest.approx(divergences(upper, np.ones(1))["remove"][0], rel=1e-12)
        assert variation >= divergences(upper, np.ones(1))["add"][0]


@pytest.mark.parametrize(
    ("norms", "rate", "sigma", "delta"),
    [
        (Hutchinson(24, secret=True), 0.03, 0.75, 1e-6),
        (HutchPlusPlus(24, 6, secret=True), 0.03, 0.75, 1e-6),
        (Hutchinson(9, secret=True), 0.3, 3.0, 1e-7),
        (Hutchinson(400, secret=True), 0.9, 4.0, 1e-4),
    ],
)
def test_answers_agree_with_thresholds_of_their_own(
    norms: Norms, rate: float, sigma: float, delta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = phases(norms, rate, sigma)
    together = run.epsilon_by_direction(delta)
    monkeypatch.setattr(grid, "_FEWEST", 100)
    apart = run.epsilon_by_direction(delta)
    assert any(bounds != apart[direction] for direction, bounds in together.items())
    for direction, bounds in together.items():
        assert bounds.is_narrow
        assert bounds.lower <= apart[direction].upper
        assert apart[direction].lower <= bounds.upper


def phases(norms: Norms, rate: float, sigma: float) -> Composition:
    return compose([(DPSGD(float(at), rate, norms), 20) for at in np.linspace(sigma, 2 * sigma, 6)])


def test_so_many_steps_are_taken_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    run = phases(Hutchinson(24, secret=True), 0.03, 0.75)
    together = run.epsilon(1e-6)
    monkeypatch.setattr(grid, "_MOST_CURVES", 4)
    apart = run.epsilon(1e-6)
    assert apart.upper != together.upper
    assert apart.upper == pytest.approx(together.upper, rel=1e-3)
    assert apart.is_narrow


def test_other_steps_have_thresholds_of_their_own() -> None:
    """Without sampling, few probes, an envelope's law, large shifts, and thresholds whose Q-masses are no numbers."""
    q = 0.05
    shared = DPSGD(1.0, q, Hutchinson(24, secret=True)).step()
    alone = [
        DPSGD(1.0, 1.0, Hutchinson(24, secret=True)).step(),
        DPSGD(1.0, q, Hutchinson(8, secret=True)).step(),
        DPSGD(1.0, q, Hutchinson(24, secret=True, analysis="envelope")).step(),
        DPSGD(0.5, q, Hutchinson(12, secret=True)).step(),
    ]
    assert grid._may_share(shared, TAIL)
    assert not grid._may_share(shared, 1e-250)
    assert [grid._may_share(step, TAIL) for step in alone] == [False] * 4
    for step in alone:
        family = [replace(step, noise_multiplier=step.noise_multiplier * more) for more in (1.0, 1.01, 1.02, 1.03)]
        for (upper, lower), one in zip(pairs_of_steps(family, 20, TAIL), family, strict=True):
            assert repr(one.pairs(20, TAIL)) == repr((upper, lower))
