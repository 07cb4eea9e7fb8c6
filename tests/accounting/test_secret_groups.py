"""Groups of samples with secret probes: (N10)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import gammaincinv, gammaln, ndtr
from scipy.stats import binom

from dprmt.accounting import DPSGD, Group, Hutchinson, HutchPlusPlus
from dprmt.accounting.laws import GammaMixture, NormRatioBins, bins_of_equal_shifts
from dprmt.accounting.pairs import _secret_group
from dprmt.accounting.pairs._secret_group import (
    _Cells,
    _Coins,
    _LatticeCells,
    _on_lattice,
    _ratios,
    _without_wide,
    secret_group_above,
    secret_group_below,
)
from dprmt.accounting.pairs._secret_upper_pair import SecretUpperPair

Array = NDArray[np.float64]
Q, SIGMA = 2000 / 67349, 1.0
T = np.array([-2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 6.0])
LAST = 20.0


def bins_of(probes: int, bins: int, tail: float = 1e-13) -> NormRatioBins:
    return bins_of_equal_shifts(GammaMixture.single(probes), bins, tail)


def ratio_nodes(dof: int) -> tuple[Array, Array]:
    """Gauss-Legendre nodes in the logarithm of a ratio χ²(dof)/dof, and weights."""
    half = dof / 2
    low = math.log(gammaincinv(half, 1e-18) / half)
    high = math.log((half + 12 * math.sqrt(half) + 40) / half)
    node, weight = np.polynomial.legendre.leggauss(10)
    edges = np.linspace(low, high, 41)
    width = np.diff(edges)[:, None] / 2
    u = ((edges[1:] + edges[:-1])[:, None] / 2 + width * node).ravel()
    density = half * u + half * math.log(half) - half * np.exp(u) - gammaln(half)
    return np.exp(u), (width * weight).ravel() * np.exp(density)


def power(probes: int, ranks: tuple[int, ...], q: float) -> Array:
    """P(x > t | somebody is drawn), gradients of flat spectra of these ranks, aligned."""
    total = np.zeros(T.size)
    for subset in range(1, 2 ** len(ranks)):
        some = [rank for i, rank in enumerate(ranks) if subset >> i & 1]
        shift, mass = np.zeros(1), np.ones(1)
        for rank in some:
            ratio, share = ratio_nodes(rank * probes)
            shift = np.add.outer(shift, 1 / (SIGMA * np.sqrt(ratio))).ravel()
            mass = np.multiply.outer(mass, share).ravel()
        weight = q ** len(some) * (1 - q) ** (len(ranks) - len(some))
        total += weight * np.array([ndtr(shift - t) @ mass for t in T])
    return total / -math.expm1(len(ranks) * math.log1p(-q))


@pytest.mark.parametrize("q", [0.03, 0.5])
@pytest.mark.parametrize("probes", [8, 32])
def test_no_spectra_are_told_apart_better_than_is_charged(probes: int, q: float) -> None:
    """Rank-one gradients, flat ones, and one of each kind, two and one samples of a group of two."""
    law = bins_of(probes, 320)
    above, below = secret_group_above(law, SIGMA, q, 2), secret_group_below(law, SIGMA, q, 2)
    charged = above.capped_curve(T, LAST)[0]
    for ranks in ((1, 1), (1, 3), (2, 2), (5, 40)):
        assert np.all(power(probes, ranks, q) <= charged * (1 + 1e-9))
    worst = power(probes, (1, 1), q)
    under = below.curve(T)[0]
    assert np.all(under <= worst * (1 + 1e-9))
    assert np.all(under >= worst * (1 - 5e-3))
    small = T >= 2.0  # where shifts of both are below μ*, nothing is lost but to bins
    assert np.all(charged[small] <= worst[small] * 1.04)


def test_a_group_of_one_is_one_sample() -> None:
    law = bins_of(32, 160)
    x, mass = law.spread(0.0)
    one = SecretUpperPair(1 / (SIGMA * np.sqrt(x)), mass, Q, law.below)
    group = secret_group_above(law, SIGMA, Q, 1)
    assert group.sample_rate == pytest.approx(Q, rel=1e-12)
    for of_group, of_one in zip(group.capped_curve(T, LAST), one.capped_curve(T, LAST), strict=True):
        assert of_group == pytest.approx(of_one, rel=1e-6, abs=1e-10)


def test_all_mass_is_there() -> None:
    """Of a group of 40; so much lies below the first bin, and in more samples than are followed, that it is seen."""
    law = bins_of(16, 64, tail=1e-4)
    coins = _Coins.of(40, 0.1, law.below)
    assert law.below > 1e-5
    assert coins.beyond > 1e-6
    above, below = secret_group_above(law, SIGMA, 0.1, 40), secret_group_below(law, SIGMA, 0.1, 40)
    one = float(law.spread(0.0)[1].sum())
    followed = float(coins.weight @ one ** np.arange(1, coins.weight.size + 1))
    sums = coins.weight.size
    assert 5e-13 * sums < above.mass.sum() / followed - 1 < 2e-12 * sums  # a little more, for the rounding of each
    assert above.mass.sum() + above.below - above.excess == pytest.approx(1.0, rel=0, abs=1e-14)
    assert above.excess > 1e-9
    assert below.bins.mass.sum() == pytest.approx(1.0, rel=0, abs=1e-12)


def test_what_is_too_rare_to_be_followed_is_charged() -> None:
    """So many of forty samples are drawn together, or any ratio is so small, that it counts as an infinite shift."""
    law = bins_of(16, 64, tail=1e-4)
    coins = _Coins.of(40, 0.1, law.below)
    most, drawn = coins.weight.size, binom.sf(0, 40, 0.1)
    assert 4 < most < 40
    assert coins.beyond == pytest.approx(binom.sf(most, 40, 0.1) / drawn, rel=1e-9, abs=0)
    numbers = np.arange(1, most + 1)
    small = float(binom.pmf(numbers, 40, 0.1) @ numbers) * law.below / drawn
    assert secret_group_above(law, SIGMA, 0.1, 40).below == pytest.approx(small + coins.beyond, rel=1e-9, abs=0)


def test_rare_cells_that_are_wide_lie_at_their_least_shift() -> None:
    high, middle, low = np.array([1.1, 2.2, 9.0]), np.array([1.05, 2.1, 3.0]), np.array([1.0, 2.0, 0.5])
    mass = np.array([0.5, 0.499, 0.001])
    assert [list(part) for part in _without_wide(high, middle, low, mass)] == [
        [1.1, 2.2, 0.5],
        [1.05, 2.1, 0.5],
        [1.0, 2.0, 0.5],
        [0.5, 0.499, 0.001],
    ]


@pytest.mark.parametrize(("size", "reference", "upper"), [(2, 9.1778, 9.18), (4, 21.271, 21.29)])
def test_check_values_of_aligned_rank_one_gradients(size: int, reference: float, upper: float) -> None:
    """ε of rank-one gradients by another program, mesh 2e-4: never above what is charged."""
    mechanism = DPSGD(SIGMA, Q, Hutchinson(32, secret=True), Group(size))
    assert mechanism.has_pairs
    bounds = mechanism.epsilon(steps=400, delta=1e-5)
    assert reference * (1 - 1e-4) < bounds.upper < upper
    assert reference * 0.999 < bounds.lower < bounds.upper
    assert bounds.is_narrow


def test_more_samples_more_probes_and_a_sketch() -> None:
    def epsilon(norms: Hutchinson | HutchPlusPlus, size: int) -> tuple[float, float]:
        bounds = DPSGD(SIGMA, Q, norms, Group(size)).epsilon(steps=50, delta=1e-4)
        return bounds.lower, bounds.upper

    two, three = epsilon(Hutchinson(32, secret=True), 2), epsilon(Hutchinson(32, secret=True), 3)
    more, sketch = epsilon(Hutchinson(256, secret=True), 2), epsilon(HutchPlusPlus(32, 32, secret=True), 2)
    public, exact = (
        epsilon(Hutchinson(32, secret=False), 2),
        DPSGD(SIGMA, Q, neighbours=Group(2)).epsilon(steps=50, delta=1e-4),
    )
    assert exact.lower < sketch[0] < sketch[1] < two[0] < two[1] < three[0]
    assert exact.lower < more[0] < more[1] < two[0]
    assert two[1] < public[0]


def triples(values: Array) -> Array:
    return np.add.outer(np.add.outer(values, values), values).ravel()


@pytest.mark.parametrize("most_nodes", [8192, 40])
def test_cells_of_sums_hold_their_shifts_and_means_of_ratios(most_nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three samples, all triples of cells one by one; also where the lattice grows coarser on the way."""
    monkeypatch.setattr(_secret_group, "_MOST_NODES", most_nodes)
    law = bins_of(16, 12, tail=1e-4)
    cells = _Cells.of(law)
    *_, sums = _LatticeCells.of(cells).sums(3)
    got = sums.cells()
    low, middle, high = triples(cells.low), triples(cells.middle), triples(cells.high)
    mass = np.multiply.outer(np.multiply.outer(cells.mass, cells.mass), cells.mass).ravel()
    usual = np.isfinite(high) & (low > 0.0)
    assert got.mass.sum() == pytest.approx(mass.sum(), rel=1e-12)
    for threshold in got.low:  # in cells that begin below it
        inside = low[usual] < threshold * (1 - 1e-9)
        assert got.mass[got.low < threshold * (1 - 1e-9)].sum() >= mass[usual][inside].sum() * (1 - 1e-12)
    for threshold in got.high:
        beyond = high[usual] > threshold * (1 + 1e-9)
        assert got.mass[got.high > threshold * (1 + 1e-9)].sum() >= mass[usual][beyond].sum() * (1 - 1e-12)
    there = got.low > 0.0
    exact = float((mass[usual] / middle[usual] ** 2).sum())
    claimed = float((got.mass[there] / got.middle[there] ** 2).sum())
    assert exact * (1 - 1e-12) <= claimed <= exact * (1.02 if most_nodes > 40 else 1.03)


def test_atoms_on_a_lattice_keep_their_mean_and_are_wider() -> None:
    x, mass = bins_of(16, 30).spread(0.0)
    first, masses = _on_lattice(x, mass, 0.05)
    ratio = _ratios(first, masses, 0.05)
    assert masses.sum() == pytest.approx(mass.sum(), rel=1e-13)
    assert ratio @ masses == pytest.approx(x @ mass, rel=1e-12)
    for kink in np.linspace(0.1, 3.0, 30):
        assert np.maximum(kink - ratio, 0.0) @ masses >= np.maximum(kink - x, 0.0) @ mass * (1 - 1e-12)
