"""Where the lattice of losses starts (O1): valid on both sides, in both directions, and narrow on a wide mesh."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dprmt.accounting import DPSGD, RandomizedClipping, _engine, _step_law
from dprmt.accounting._discretization import LossPMF
from dprmt.accounting._questions import EpsilonAtDelta
from dprmt.accounting._step_law import Lattice, directed_range, discretize_step, lattice

STEPS = {
    "exact": DPSGD(0.7, 1e-4).step(),
    "known": RandomizedClipping(0.9, 1e-3, 5).step(),
    "secret": RandomizedClipping(0.9, 1e-3, 24, probe_sharing="sample").step(),
    "secret, few": RandomizedClipping(0.9, 1e-3, 3, probe_sharing="sample").step(),
}
EPSILONS = np.concatenate([-np.geomspace(1e-6, 1e-2, 9), [0.0], np.geomspace(1e-7, 3.0, 40)])


def curve(pmf: LossPMF, offset: float) -> np.ndarray:
    """E(1 - e^{ε - L})₊, an infinite loss counting as 1."""
    losses = pmf.losses + offset
    return -np.expm1(np.minimum(EPSILONS[:, None] - losses, 0.0)) @ pmf.mass + pmf.infinite


def on_lattice(step, direction, side, mesh: float, moved: bool, within: float = 1.0) -> tuple[np.ndarray, Lattice]:
    upper, lower = step.pairs(128, 1e-12)
    ends = directed_range(upper, 1e-12, direction)
    pair = upper if side == "upper" else lower
    grid = lattice(pair, ends, direction, side, mesh, within, stretched=within == 0.0) if moved else Lattice(mesh)
    pmf = discretize_step(pair, grid.covering(ends, 2.0), grid, direction, side)
    return curve(pmf, grid.offset), grid


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_a_moved_lattice_keeps_the_sides(name: str, direction: str) -> None:
    """Against a mesh of a sixth of log(1 - q), which hardly needs a move."""
    step = STEPS[name]
    fine = abs(math.log1p(-step.sample_rate)) / 6.0
    above, _ = on_lattice(step, direction, "upper", fine, moved=False)
    below, _ = on_lattice(step, direction, "lower", fine, moved=False)
    for mesh in (2 * fine, 20 * fine, 200 * fine):
        upper, grid = on_lattice(step, direction, "upper", mesh, moved=True)
        lower, _ = on_lattice(step, direction, "lower", mesh, moved=True)
        assert grid.offset != 0.0
        assert np.all(upper >= below - 1e-15)
        assert np.all(lower <= above + 1e-15)
        assert np.all(upper >= lower - 1e-15)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_a_stretched_lattice_keeps_the_sides(name: str, direction: str) -> None:
    """A mesh of which log(1 - q), or the mean of what lies near it, is a multiple: no offset, and a node there."""
    step = STEPS[name]
    far = abs(math.log1p(-step.sample_rate))
    above, _ = on_lattice(step, direction, "upper", far / 6.0, moved=False)
    below, _ = on_lattice(step, direction, "lower", far / 6.0, moved=False)
    for cells in (5.3, 11.7):
        upper, grid = on_lattice(step, direction, "upper", far / cells, moved=True, within=0.0)
        lower, _ = on_lattice(step, direction, "lower", far / cells, moved=True, within=0.0)
        assert grid.offset == 0.0
        assert abs(grid.home) == math.floor(cells)
        assert abs(grid.home * grid.mesh) == pytest.approx(far, rel=1e-12)
        assert np.all(upper >= below - 1e-15)
        assert np.all(lower <= above + 1e-15)
        assert np.all(upper >= lower - 1e-15)


def test_a_mesh_that_cuts_the_commonest_losses_merges_them_all(monkeypatch) -> None:
    """Losses within a mesh of their mean, not of log(1 - q): else E u falls short, to first order, from below."""
    step = RandomizedClipping(5.3, 6e-4, 2, probe_sharing="sample").step()
    left = EPSILONS < -2e-4
    gaps = []
    for means in (1, 4):
        monkeypatch.setattr(_step_law, "MEANS", means)
        upper, _ = on_lattice(step, "remove", "upper", 4e-4, moved=True)
        lower, _ = on_lattice(step, "remove", "lower", 4e-4, moved=True)
        assert np.all(upper >= lower - 1e-15)
        gaps.append(np.max((upper - lower)[left]))
    assert gaps[1] < 0.2 * gaps[0]


def test_it_narrows_what_a_mesh_wider_than_the_commonest_loss_leaves_open() -> None:
    step, mesh = STEPS["exact"], 2e-3
    left = EPSILONS < -2e-4  # there almost all mass counts, and the mean of u decides
    gaps = []
    for moved in (True, False):
        upper, _ = on_lattice(step, "remove", "upper", mesh, moved)
        lower, _ = on_lattice(step, "remove", "lower", mesh, moved)
        gaps.append(np.max((upper - lower)[left]))
    assert gaps[0] < 0.05 * gaps[1]


@pytest.mark.parametrize(
    ("run", "steps"), [(DPSGD(0.779078, 2000 / 67349), 400), (DPSGD(0.6, 0.01), 3000), (DPSGD(2.0, 0.05), 3000)]
)
def test_no_mesh_is_unlucky(run: DPSGD, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of second order in the mesh, wherever its nodes would fall beside the commonest loss."""
    schedule = [(run.step(), steps)]
    for mesh in (0.06, 0.05, 0.04, 0.035, 0.03, 0.025, 0.02, 0.015):
        monkeypatch.setattr(_engine, "_MESH", mesh)
        curves = _engine.level_curves(schedule, EpsilonAtDelta(1e-5), "remove", 0, split=False)
        assert curves is not None
        upper, lower = curves("upper").epsilon_above(1e-5), curves("lower").epsilon_below(1e-5)
        assert 0.0 < upper - lower < 0.4 * mesh**2 * upper


def test_a_node_above_the_mean_would_be_no_lower_bound() -> None:
    step, mesh = STEPS["exact"], 2e-3
    upper, lower = step.pairs(128, 1e-12)
    ends = directed_range(upper, 1e-12, "remove")
    fine = Lattice(1e-5)
    truth = curve(discretize_step(upper, fine.covering(ends, 2.0), fine, "remove", "upper"), 0.0)
    grid = lattice(lower, ends, "remove", "lower", mesh, within=1.0)
    pmf = discretize_step(lower, grid.covering(ends, 2.0), grid, "remove", "lower")
    assert np.all(curve(pmf, grid.offset) <= truth + 1e-15)
    assert np.any(curve(pmf, grid.offset + 0.01 * mesh) > truth + 1e-9)


def test_bounds_of_many_rare_steps_are_narrow_at_once() -> None:
    for run in (DPSGD(0.4534, 9.455e-6), RandomizedClipping(0.4534, 9.455e-6, 64)):
        bounds = run.epsilon(39345, 7.42e-9, tolerance=5e-4)
        assert bounds.upper - bounds.lower < 5e-4 * bounds.upper
        delta = run.delta(39345, bounds.upper)
        assert delta.lower <= 7.42e-9
        assert delta.upper - delta.lower < 2e-2 * delta.upper
