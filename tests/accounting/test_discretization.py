"""Second-order discretization: both sides bound U(s) = E_P (s - u)₊ at every s, u = e^{-loss}, and are tight."""

from __future__ import annotations

import itertools

import mpmath as mp
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.optimize import isotonic_regression as reference

from dprmt.accounting.pairs._pairs import (
    LossCells,
    LossPMF,
    cut_above,
    from_above,
    from_below,
    graded_indices,
    interval_masses,
    isotonic_regression,
    pulled_in,
)

from .oracles.gaussian import gaussian_delta

EPS = np.finfo(np.float64).eps


# ------------------------------------------------------------------------------------------ laws with known U
class Atoms:
    """A privacy loss with finitely many values, in extended precision: its U is exact."""

    def __init__(self, losses, masses, infinite=0.0):
        order = np.argsort(losses)
        self.losses = np.asarray(losses, dtype=np.longdouble)[order]
        self.masses = np.asarray(masses, dtype=np.longdouble)[order]
        self.infinite = infinite

    @classmethod
    def of(cls, pmf: LossPMF) -> Atoms:
        return cls(pmf.index * np.longdouble(pmf.mesh), pmf.mass, pmf.infinite)

    @property
    def kinks(self):
        return np.exp(-self.losses)

    @property
    def total(self) -> float:
        return float(self.masses.sum()) + self.infinite

    def u(self, s):
        """U(s), where an infinite loss is u = 0."""
        inside = np.maximum(np.asarray(s)[:, None] - self.kinks, 0) @ self.masses
        return inside + self.infinite * np.asarray(s)

    def mass_from(self, losses):
        """P(L ≥ loss): what the rounding of U(s) is relative to, per loss."""
        return (self.losses >= np.asarray(losses)[:, None]) @ self.masses + self.infinite

    def cells(self, nodes) -> LossCells:
        """As a StepPair would report them."""
        place = np.searchsorted(nodes, self.losses.astype(np.float64), side="left")
        p = np.bincount(place, weights=self.masses.astype(np.float64), minlength=nodes.size + 1)
        q_atoms = (self.masses * np.exp(-self.losses)).astype(np.float64)
        q = np.bincount(place, weights=q_atoms, minlength=nodes.size + 1)
        return LossCells(
            p=p[1:-1],
            q=q[1:-1],
            p_below=float(p[0]),
            q_below=float(q[0]),
            p_above=float(p[-1]) + self.infinite,
            q_above=float(q[-1]),
        )


def worst_excess(upper: Atoms, lower: Atoms, truth: Atoms, nodes) -> float:
    """By how much U_lower exceeds U_upper anywhere, relative to s·P(L ≥ l), l the node below the cell of -log s.

    Between the kinks of both, the difference is linear; beyond the last it has the slope of the total masses. So
    the maximum over the kinks is that over all s; it is rounding where the order holds.
    """
    losses = np.unique(np.concatenate([upper.losses, lower.losses]))
    s = np.exp(-losses)
    node_below = np.append(-np.inf, nodes)[np.searchsorted(nodes, losses * (1 - 1e-9), side="left")]
    scale = s * (truth.mass_from(node_below) + np.longdouble(1e-300))
    excess = float(np.max((lower.u(s) - upper.u(s)) / scale))
    return max(excess, (lower.total - upper.total) / max(truth.total, 1e-300))


def rounding(index, mesh) -> float:
    return 64 * EPS * max(1.0, 1.0 / (float(np.min(np.diff(index))) * mesh))


def assert_brackets(truth: Atoms, index, mesh) -> None:
    nodes, cells = index * mesh, truth.cells(index * mesh)
    above, below = (Atoms.of(side(index, mesh, cells)) for side in (from_above, from_below))
    assert worst_excess(above, truth, truth, nodes) <= rounding(index, mesh)
    assert worst_excess(truth, below, truth, nodes) <= rounding(index, mesh)


masses = st.one_of(st.floats(-12, 0).map(lambda x: 10.0**x), st.just(1.0), st.floats(-200, -12).map(lambda x: 10.0**x))
meshes = st.one_of(st.floats(1e-3, 0.2), st.floats(0.2, 6.0))
gaps = st.lists(st.integers(1, 6), min_size=1, max_size=12)


@st.composite
def grids(draw, low=-40, high=30):
    """Increasing integers with uneven gaps, and a mesh."""
    start = draw(st.integers(low, high))
    return np.cumsum([start, *draw(gaps)]), draw(meshes)


@st.composite
def laws_on_grids(draw):
    """Atoms anywhere relative to the nodes: inside cells, on nodes, outside, all in one cell, nearly empty cells."""
    index, mesh = draw(grids())
    nodes = index * mesh
    span = nodes[-1] - nodes[0]
    inside = st.floats(0, 1).map(lambda share: float(nodes[0] + share * span))
    in_one_cell = st.floats(0, 1).map(lambda share: float(nodes[0] + share * (nodes[1] - nodes[0])))
    on_node = st.sampled_from(nodes.tolist())
    outside = st.floats(-3, 3).map(lambda share: max(float(nodes[0] + share * span), -600.0))  # e^600 is a float
    place = draw(st.sampled_from([inside, in_one_cell, st.one_of(inside, on_node), st.one_of(inside, outside)]))
    atoms = draw(st.lists(st.tuples(place, masses), min_size=1, max_size=25))
    infinite = draw(st.sampled_from([0.0, 0.0, 1e-9, 0.3]))
    return Atoms([a for a, _ in atoms], [m for _, m in atoms], infinite), index, mesh


# ------------------------------------------------------------------------------------------ bounds at every s
@given(grids(), st.floats(-0.2, 1.2), st.sampled_from([0.0, 1e-6, 0.3]), st.randoms(use_true_random=False))
def test_what_is_cut_off_counts_as_infinite(grid, share, infinite, random) -> None:
    """Nowhere more private, wherever the cut is; nothing is lost, and smaller losses stay."""
    index, mesh = grid
    weights = np.array([1e-9 + random.random() for _ in index])
    law = LossPMF(index, (1.0 - infinite) * weights / weights.sum(), mesh, infinite)
    loss = mesh * float(index[0] + share * (index[-1] - index[0]))
    cut = cut_above(law, loss)
    assert worst_excess(Atoms.of(cut), Atoms.of(law), Atoms.of(law), law.losses) <= rounding(index, mesh)
    assert cut.mass.sum() + cut.infinite == pytest.approx(1.0)
    assert cut.index.size == max(np.count_nonzero(law.losses <= loss), 1)


@given(laws_on_grids())
@example((Atoms([0.1, 0.9], [0.5, 0.5]), np.array([0, 1]), 1.0))  # one cell: nothing but chords and tangents
@example((Atoms([0.5], [1.0]), np.array([-1, 0, 1, 2]), 1.0))  # all mass at one point of one cell
@example((Atoms([0.5, 1.5, 2.5], [1e-9, 1.0, 1e-9]), np.array([0, 1, 2, 3]), 1.0))  # nearly empty neighbours
@example((Atoms([0.5, 1.5, 2.5, 3.5], [1.0, 1e-12, 1e-12, 1.0]), np.array([0, 1, 2, 3, 4]), 1.0))
def test_both_sides_bound_u_at_every_s(case):
    """U_below(s) ≤ U(s) ≤ U_above(s) for all s ≥ 0, whatever the masses and wherever they lie in their cells."""
    assert_brackets(*case)


@given(seed=st.integers(0, 2**32 - 1))
def test_both_sides_bound_u_for_enormous_losses(seed):
    """Losses of hundreds and thousands, where e^{-loss} underflows: first order, but still on the right side."""
    rng = np.random.default_rng(seed)
    index = np.cumsum(rng.integers(1, 9, size=60)) - 30
    mesh = float(rng.uniform(3, 30))
    atoms = rng.uniform(-50.0, index[-1] * mesh, size=40)
    assert_brackets(Atoms(atoms, rng.random(40) ** 4), index, mesh)


def test_mirrored_cells_are_the_cells_of_the_exchanged_pair():
    """(P, Q) ↦ (Q, P) negates the loss: the Q-mass becomes the P-mass of the mirrored cell."""
    truth = Atoms([-1.3, 0.2, 0.7, 5.0], [0.1, 0.4, 0.3, 0.2])
    nodes = np.array([-1.0, 0.0, 0.5, 1.0])
    exchanged = Atoms(-truth.losses, truth.masses * truth.kinks)
    mirrored, direct = truth.cells(nodes).mirrored(), exchanged.cells(-nodes[::-1])
    for name in ("p", "q", "p_below", "q_below", "p_above", "q_above"):
        assert getattr(mirrored, name) == pytest.approx(getattr(direct, name), rel=1e-14), name


# ------------------------------------------------------------------------------------------ tightness
def gaussian_cells(index, mesh, mu):
    """Cells of N(μ,1) against N(0,1), whose loss is N(μ²/2, μ²)."""
    bounds = np.concatenate([[-np.inf], index * mesh, [np.inf]])
    p = interval_masses((bounds - mu**2 / 2) / mu)
    q = interval_masses((bounds + mu**2 / 2) / mu)
    return LossCells(p[1:-1], q[1:-1], float(p[0]), float(q[0]), float(p[-1]), float(q[-1]))


def delta_of(pmf: LossPMF, epsilon):
    return np.maximum(1 - np.exp(epsilon[:, None] - pmf.losses), 0) @ pmf.mass + pmf.infinite


def gaussian_gaps(mesh, mu, epsilon):
    reach = int(np.ceil((12 * mu + mu**2) / mesh))
    index = np.arange(-reach, reach + 1)
    cells = gaussian_cells(index, mesh, mu)
    truth = gaussian_delta(epsilon, mu)
    above, below = (delta_of(dots(index, mesh, cells), epsilon) for dots in (from_above, from_below))
    return above - truth, truth - below


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_halving_the_mesh_quarters_the_gap(mu):
    """Second order on both sides, at the nodes of the coarser mesh and between them, for the Gaussian pair."""
    mesh = 0.08 * mu
    epsilon = mesh * np.arange(0, 40, 0.0371)
    for coarse, fine in zip(gaussian_gaps(mesh, mu, epsilon), gaussian_gaps(mesh / 2, mu, epsilon), strict=True):
        assert np.all(coarse > -1e-14)
        assert np.all(fine > -1e-14)
        assert 3.6 < coarse.mean() / fine.mean() < 4.4


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_the_gap_is_that_of_chords(mu):
    """Neither side gives away more than E_P of a chord's gap, h²/8 in the loss, by more than a factor of 3."""
    mesh = 0.08 * mu
    epsilon = mesh * np.arange(0, 40, 0.0371)
    density = np.exp(-((epsilon - mu**2 / 2) ** 2) / (2 * mu**2)) / (mu * np.sqrt(2 * np.pi))
    for gap in gaussian_gaps(mesh, mu, epsilon):
        assert np.all(gap <= 3 * mesh**2 / 8 * density.max())
        assert gap.max() >= mesh**2 / 8 * density.max() / 3


# ------------------------------------------------------------------------------------------ where the nodes lie
@given(
    low=st.one_of(st.floats(-60, 10), st.floats(-1e-9, 0)),
    width=st.one_of(st.floats(1e-6, 100), st.floats(1e2, 1e12), st.floats(1e-12, 1e-6)),
    log_mesh=st.floats(-9, 0.5),
    ratio=st.floats(0.5, 300),
)
@example(low=-0.02, width=0.52, log_mesh=-1.0, ratio=2.0)
def test_nodes_cover_the_interval_and_grow_slowly(low, width, log_mesh, ratio):
    """Increasing integers from at most low to at least high, dense within the bulk, growing by ≤ mesh/bulk beyond."""
    high, mesh = low + width, 10.0**log_mesh
    assume(low < high and max(abs(low), abs(high)) < 1e17 * mesh)
    index = graded_indices(low, high, mesh, ratio * mesh)
    assert index.dtype == np.int64
    assert index.size >= 2
    gap = np.diff(index)
    assert np.all(gap >= 1)
    assert index[0] * mesh <= low + 4 * EPS * abs(low)
    assert index[-1] * mesh >= high - 4 * EPS * abs(high)
    inner = max(int(np.ceil(ratio)), 1)
    nearer = np.minimum(np.abs(index[1:]), np.abs(index[:-1]))
    assert np.all(gap <= np.maximum(2 + 2 * nearer / inner, 1))
    assert np.all(gap[np.maximum(np.abs(index[1:]), np.abs(index[:-1])) <= inner] == 1)
    assert index[1] * mesh > low - 4 * EPS * abs(low)
    assert index[-2] * mesh < high + 4 * EPS * abs(high)


# ------------------------------------------------------------------------------------------ Gaussian cells
@pytest.mark.parametrize("z", [0.0, 0.5, 3.0, 8.0, 20.0, 36.0])
@pytest.mark.parametrize("width", [1e-6, 1e-3, 0.3, 5.0])
def test_interval_masses_match_mpmath(z, width):
    """Absolute error at most (8 + z²) roundings of the tail in which the interval lies, z its inner end."""
    mp.mp.dps = 60
    for left in (z, -z - width):
        points = np.array([left, left + width])
        near, far = sorted((mp.ncdf(-abs(mp.mpf(float(x)))) for x in points), reverse=True)
        exact, tail = near - far, near
        value = interval_masses(points)[0]
        assert abs(mp.mpf(float(value)) - exact) <= (8 + z**2) * EPS * tail


def test_interval_masses_across_zero_and_with_infinite_ends():
    points = np.array([-np.inf, -40.0, -1.0, 0.0, 2.0, 39.0, np.inf])
    value = interval_masses(points)
    mp.mp.dps = 40
    edges = [mp.mpf(0), *(mp.ncdf(mp.mpf(x)) for x in points[1:-1]), mp.mpf(1)]
    for i, exact in enumerate(b - a for a, b in itertools.pairwise(edges)):
        assert float(value[i]) == pytest.approx(float(exact), rel=1e-14, abs=1e-322)
    assert value.sum() == pytest.approx(1.0, abs=4 * EPS)


@given(p=st.floats(1e-3, 1.0), offset=st.floats(1e-9, 0.5), width=st.floats(1e-6, 1e-2), beyond=st.floats(0.0, 1e-60))
@example(p=0.0427, offset=9.2e-6, width=4.75e-4, beyond=0.0)
def test_what_a_cell_leaves_at_larger_losses_is_no_rounding(p, offset, width, beyond) -> None:
    """Outcomes of a cell can all have its mean: then there is nothing beyond, and from below no more may stay there."""
    mass, share = np.array([beyond, p, 0.0]), np.array([1.0, 1.0 - offset, 1.0])
    left = pulled_in(np.array([width, width, width / 1e3]), mass, share, np.zeros(4))
    assert float(left[:2].sum()) <= beyond
    assert float(left.sum()) == pytest.approx(p + beyond, rel=1e-14)


def test_weights_over_three_hundred_orders_of_magnitude() -> None:
    weights = np.geomspace(1.0, 1e-290, 400)
    values = np.sin(np.arange(400.0)) / weights
    assert_allclose(isotonic_regression(values, weights), reference(values, weights=weights).x, rtol=1e-9)
