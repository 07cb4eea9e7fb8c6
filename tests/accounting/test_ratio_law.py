"""Laws of the likelihood ratio, and their sums: the order that the theory page proves, and that it is tight."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import comb

from dprmt.accounting.pairs import _ratio_sum as _ratio_sum
from dprmt.accounting.pairs._allocation import EpochPair
from dprmt.accounting.pairs._ratio_sum import (
    GridMeasure,
    RatioLaw,
    grid_sum,
    merged,
    never_less_private,
    never_more_private,
    ratio_cells,
    sum_from_above,
    sum_from_below,
)
from dprmt.accounting.pairs._steps import ClippingStep

from .oracles.gaussian import put


def grid(low, high, mesh):
    """0, and multiples of the mesh about 1 % apart."""
    return np.append(0.0, np.unique(np.rint(np.exp(np.arange(low, high, 0.01)) / mesh)) * mesh)


def put_of(law, strikes):
    return np.maximum(strikes[:, None] - law.ratio, 0.0) @ law.mass


@given(
    sigma=st.floats(0.4, 8.0),
    mesh=st.floats(0.002, 0.2),
    tail=st.sampled_from([1e-4, 1e-9]),
    seed=st.integers(0, 2**32 - 1),
)
def test_laws_bound_the_put_function(sigma, mesh, tail, seed):
    """(R2), (R3): E(α - V)+ is nowhere too small for the upper law, nowhere too large for the lower; means are kept."""
    step = ClippingStep(sigma, 1.0)
    pair, _ = step.pairs(64, tail)
    low, high = pair.loss_range(tail)
    rng = np.random.default_rng(seed)
    losses = np.sort(rng.uniform(low, high, 120))
    nodes = np.append(0.0, np.unique(np.ceil(np.exp(losses) / mesh)) * mesh)
    cells = ratio_cells(pair, nodes)
    strikes = np.concatenate([nodes[1:], np.exp(rng.uniform(low, high, 200))])
    truth = put(strikes, 1.0 / sigma)
    above, below, merged_law = never_more_private(cells, 0.0), never_less_private(cells), merged(cells)
    rounding = 1e-12 * (1.0 + strikes)
    assert np.all(put_of(above, strikes) >= truth - rounding)
    assert np.all(put_of(below, strikes) <= truth + rounding)
    assert np.all(put_of(merged_law, strikes) <= truth + rounding)
    assert above.mass.sum() == pytest.approx(1.0, abs=1e-12)
    assert above.mass @ above.ratio == pytest.approx(1.0 - above.lost, abs=1e-10)
    assert below.mass @ below.ratio <= 1.0 + 1e-12


def test_laws_are_tight():
    """With fine cells both put functions are within 1e-3 of the truth, and the lower law leaves out only the tail."""
    pair, _ = ClippingStep(1.0, 1.0).pairs(64, 1e-9)
    cells = ratio_cells(pair, grid(-4.6, pair.loss_range(1e-9)[1], 0.01))
    strikes = np.array([0.3, 0.9, 2.0, 10.0])
    truth = put(strikes, 1.0)
    for law in (never_more_private(cells, 0.0), never_less_private(cells)):
        np.testing.assert_allclose(put_of(law, strikes), truth, rtol=1e-3)
    assert never_less_private(cells).mass.sum() > 1 - 1e-8


def test_a_slack_thins_the_law():
    """(R2): masses times 1 - s, and s at V = 0."""
    pair, _ = ClippingStep(1.0, 1.0).pairs(64, 1e-9)
    cells = ratio_cells(pair, np.append(0.0, np.exp(np.linspace(-7, 7, 200))))
    plain, thinned = never_more_private(cells, 0.0), never_more_private(cells, 0.25)
    np.testing.assert_allclose(thinned.mass[1:], 0.75 * plain.mass[1:])
    assert thinned.mass.sum() == pytest.approx(1.0)
    assert thinned.lost == pytest.approx(0.25, abs=1e-8)


# ---------------------------------------------------------------------------------------------- sums


@given(copies=st.integers(1, 12), size=st.integers(1, 12), seed=st.integers(0, 2**32 - 1))
def test_sums_on_a_grid_are_within_their_error(copies, size, seed):
    """(R5) against repeated convolution."""
    rng = np.random.default_rng(seed)
    index = np.sort(rng.choice(60, size, replace=False)).astype(np.int64)
    mass = rng.dirichlet(np.full(size, 0.3)) * rng.uniform(0.5, 1.0)
    mass = np.maximum(mass, 1e-30)
    truth, dense = np.ones(1), np.bincount(index, weights=mass, minlength=60)
    for _ in range(copies):
        truth = np.convolve(truth, dense)
    first, found, error = grid_sum(GridMeasure(index, mass), copies, -60.0, 1.0)
    inside = truth[first : first + found.size]
    assert truth.sum() - inside.sum() < 1e-14
    padded = np.pad(inside, (0, found.size - inside.size))
    assert np.all(np.abs(found - padded) <= error + 1e-15 * padded)


@pytest.mark.parametrize("masses", [(0.3, 0.7), (0.1, 0.9), (0.2, 0.7999), (1 / 3, 2 / 3)])
def test_many_copies_keep_their_relative_accuracy(masses):
    """Binomial laws of 1e5 trials, to 1e-11 of their peak; that 0.3 and 0.7, as doubles, sum to 1 - 2^-54 is seen."""
    copies = 100_000
    first, mass, errors = grid_sum(GridMeasure(np.array([0, 1]), np.array(masses)), copies, -60.0, 1e-5)
    places, error = np.arange(0, mass.size, 32), float(errors[0])
    with mp.workdps(40):
        miss, hit = mp.mpf(masses[0]), mp.mpf(masses[1])
        counts = (first + places).tolist()
        truth = np.array([float(mp.binomial(copies, k) * hit**k * miss ** (copies - k)) for k in counts])
    assert np.abs(mass[places] - truth).max() <= error + 1e-15 * truth.max()
    assert error < 1e-11 * truth.max()


def test_places_without_mass_change_nothing() -> None:
    """Also far beyond all others, where a tilt makes them the largest by more than double precision holds."""
    mass, truth = np.array([0.9, 0.05, 0.05]), np.ones(1)
    for _ in range(5):
        truth = np.convolve(truth, mass)
    measure = GridMeasure(np.arange(4000), np.append(mass, np.zeros(3997)))
    first, found, error = grid_sum(measure, 5, -30.0, 1e-3)
    inside = np.pad(truth[first : first + found.size], (0, max(found.size - truth.size + first, 0)))
    assert np.all(np.abs(found - inside) <= error)
    assert np.all(error[: truth.size - first] <= 1e-9)


@pytest.mark.parametrize("copies", [2, 3, 9])
def test_large_ratios_change_nothing(copies):
    """(R6): with most ratios as large ones, or none, both sides bound the put function of the sum, and agree."""
    pair, _ = ClippingStep(1.0, 1.0).pairs(64, 1e-9)
    mesh, strikes = 0.01, np.array([0.2, 0.7, 1.0, 3.0, 20.0])
    nodes = grid(-4.5, 8.0, mesh)
    cells = ratio_cells(pair, nodes)
    above, below = never_more_private(cells, 0.0), never_less_private(cells)
    everything = nodes.size
    some = int(np.searchsorted(nodes, 6.0))
    uppers = [put_of(sum_from_above(above, light, mesh, copies, 1e-9), strikes) for light in (everything, some)]
    lowers = [put_of(sum_from_below(below, light, mesh, copies, 1e-9), strikes) for light in (everything, some)]
    np.testing.assert_allclose(uppers[1], uppers[0], rtol=2e-3)
    np.testing.assert_allclose(lowers[1], lowers[0], rtol=2e-3)
    assert np.all(np.array(lowers) < np.array(uppers))


# ------------------------------------------------------------------------------------------- an epoch, exactly

LIGHT = np.array([0, 1, 2, 3]), np.array([0.3, 0.3, 0.3999, 0.0001])
RARE = np.array([9, 40]), np.array([0.02, 0.005])
_ROUNDING = 1e-13


def law_on_integers(large: float, lost: float) -> tuple[RatioLaw, float]:
    """Small ratios and, with so much of their usual mass, large ones; E V = 1 - lost. Also the mesh."""
    return scaled(np.concatenate([LIGHT[0], RARE[0]]), np.concatenate([LIGHT[1], large * RARE[1]]), lost)


def scaled(index: np.ndarray, mass: np.ndarray, lost: float) -> tuple[RatioLaw, float]:
    mass = mass / mass.sum()
    mesh = (1.0 - lost) / float(mass @ index)
    return RatioLaw(mesh * index, mass, lost), mesh


def exact_sum(law: RatioLaw, mesh: float, copies: int) -> tuple[np.ndarray, np.ndarray]:
    """Values and masses of W, by convolving masses."""
    dense, exact = np.bincount(np.rint(law.ratio / mesh).astype(int), weights=law.mass), np.ones(1)
    for _ in range(copies):
        exact = np.convolve(exact, dense)
    return mesh * np.arange(exact.size) / max(copies, 1), exact


def deltas(pair: EpochPair, alphas: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """δ of removing at log α, and of adding at -log α, from the masses beyond; also what rounding may do to it."""
    cells = pair.cells(np.log(alphas))
    p_above, q_above = (np.append(np.cumsum(m[::-1])[::-1], 0.0) for m in (cells.p, cells.q))
    p_below, q_below = (np.append(0.0, np.cumsum(m)) for m in (cells.p, cells.q))
    removed = p_above + cells.p_above, alphas * (q_above + cells.q_above)
    added = q_below + cells.q_below, (p_below + cells.p_below) / alphas
    return {"remove": (removed[0] - removed[1], sum(removed)), "add": (added[0] - added[1], sum(added))}


def check_epoch(law: RatioLaw, mesh: float, copies: int, tail: float, is_tight: bool) -> None:
    ratio, exact = exact_sum(law, mesh, copies)
    alphas = np.concatenate([np.geomspace(ratio[1] / 2, ratio[-1], 300), ratio[1::7] * (1.0 + 1e-9)])
    alphas = np.unique(alphas)
    truth = {
        "remove": np.maximum(ratio - alphas[:, None], 0.0) @ exact + law.lost,
        "add": np.maximum(1.0 - ratio / alphas[:, None], 0.0) @ exact,
    }
    above = deltas(EpochPair.of(sum_from_above(law, LIGHT[0].size, mesh, copies, tail)), alphas)
    below = deltas(EpochPair.of(sum_from_below(law, LIGHT[0].size, mesh, copies, tail)), alphas)
    for direction, values in truth.items():
        found, scale = above[direction]
        assert np.all(found >= values - _ROUNDING * scale)
        assert not is_tight or np.all(found <= 2.0 * values + 0.1 * tail)
        assert np.all(below[direction][0] <= values + _ROUNDING * (values + below[direction][1]))


@pytest.mark.parametrize("large", [0.0, 0.02, 1.0, 20.0])
@pytest.mark.parametrize("copies", [2, 7, 60])
@pytest.mark.parametrize(("tail", "lost"), [(1.0, 0.0), (0.03, 0.2), (1e-6, 0.0)])
def test_an_epoch_is_never_more_private_than_the_exact_sum(large, copies, tail, lost):
    """(R4), (R6): at every α, also where next to nothing but what was lost or left unclear decides."""
    law, mesh = law_on_integers(large, lost)
    check_epoch(law, mesh, copies, tail, is_tight=large * copies <= 60)  # else more than are followed up


@pytest.mark.parametrize("copies", [1, 2, 4])
@pytest.mark.parametrize(
    ("index", "mass"),
    [([0, 1, 2, 60, 61], [0.2, 0.3, 0.2, 3e-11, 0.3]), ([0, 57, 58, 59, 61], [3e-11, 0.2, 0.3, 0.2, 0.3])],
)
def test_each_number_of_large_ratios_pays_for_its_own_windows(index, mass, copies):
    """(R4): what lies outside is lost, and unclear, also beside large ratios; a small one is too rare for a window."""
    law, mesh = scaled(np.array(index), np.array(mass), 0.0)
    small, large = _ratio_sum._split(law, 4, mesh)
    parts = _ratio_sum._parts(small, large, mesh, copies, copies, 1.0, above=True)
    for number, part in enumerate(parts):
        light = exact_sum(RatioLaw(law.ratio[:4], law.mass[:4], law.lost), mesh, copies - number)[1]
        exact = comb(copies, number) * np.append(np.zeros(61 * number), light) * law.mass[-1] ** number
        ratio = mesh * np.arange(exact.size)
        alphas = np.append(ratio[1:] * (1.0 - 1e-9), ratio[1:] + mesh / 2)
        found = np.maximum(part.ratio - alphas[:, None], 0.0) @ part.mass / copies + part.lost
        truth = np.maximum(ratio - alphas[:, None], 0.0) @ exact / copies
        assert np.all(found >= truth * (1.0 - _ROUNDING))
        found = np.maximum(1.0 - part.ratio / alphas[:, None], 0.0) @ part.mass + part.unclear
        truth = np.maximum(1.0 - ratio / alphas[:, None], 0.0) @ exact
        assert np.all(found >= truth * (1.0 - _ROUNDING))


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_masses_half_as_wrong_as_their_error_do_no_harm(sign, monkeypatch):
    """(R5): on whichever side of the truth they are."""
    right = grid_sum

    def wrong(*arguments):
        first, mass, error = right(*arguments)
        return first, np.maximum(mass + sign * 0.5 * error, 0.0), error

    monkeypatch.setattr(_ratio_sum, "grid_sum", wrong)
    check_epoch(*law_on_integers(0.0, 0.0), 60, 1.0, is_tight=True)
