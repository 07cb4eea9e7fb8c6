"""Where the lattice of losses starts (O1): valid on both sides, in both directions, and narrow on a wide mesh."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dprmt.accounting import DPSGD, Hutchinson
from dprmt.accounting.basics import UnsoundLawError
from dprmt.accounting.composition import EpsilonAtDelta, Level
from dprmt.accounting.composition import _loss_grid as _step_law
from dprmt.accounting.composition import _solve as _level
from dprmt.accounting.composition._loss_grid import LossGrid, directed_range, discretize_step, loss_grid
from dprmt.accounting.pairs import LossCells, LossPMF, from_above

STEPS = {
    "exact": DPSGD(0.7, 1e-4).step(),
    "known": DPSGD(0.9, 1e-3, Hutchinson(16, secret=False)).step(),
    "known, few": DPSGD(0.9, 1e-3, Hutchinson(5, secret=False)).step(),
    "secret": DPSGD(0.9, 1e-3, Hutchinson(24, secret=True)).step(),
    "secret, few": DPSGD(0.9, 1e-3, Hutchinson(3, secret=True)).step(),
}
NAMES = [pytest.param(name, marks=pytest.mark.slow if "few" in name else ()) for name in STEPS]
EPSILONS = np.concatenate([-np.geomspace(1e-6, 1e-2, 9), [0.0], np.geomspace(1e-7, 3.0, 40)])


def curve(pmf: LossPMF, offset: float) -> np.ndarray:
    """E(1 - e^{ε - L})₊, an infinite loss counting as 1."""
    losses = pmf.losses + offset
    return -np.expm1(np.minimum(EPSILONS[:, None] - losses, 0.0)) @ pmf.mass + pmf.infinite


def on_lattice(step, direction, side, mesh: float, moved: bool, within: float = 1.0) -> tuple[np.ndarray, LossGrid]:
    upper, lower = step.pairs(128, 1e-12)
    ends = directed_range(upper, 1e-12, direction)
    pair = upper if side == "upper" else lower
    grid = loss_grid(pair, ends, direction, side, mesh, within, stretched=within == 0.0) if moved else LossGrid(mesh)
    pmf = discretize_step(pair, grid.covering(ends, 2.0), grid, direction, side)
    return curve(pmf, grid.offset), grid


@pytest.mark.parametrize("name", NAMES)
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


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_a_stretched_lattice_keeps_the_sides(name: str, direction: str) -> None:
    """A mesh of which log(1 - q), or the mean of what lies near it, is a multiple: no offset, and a node there."""
    step = STEPS[name]
    far = abs(math.log1p(-step.sample_rate))
    above, _ = on_lattice(step, direction, "upper", far / 6.0, moved=False)
    below, _ = on_lattice(step, direction, "lower", far / 6.0, moved=False)
    for cells in (5.3, 11.7):
        upper, above_grid = on_lattice(step, direction, "upper", far / cells, moved=True, within=0.0)
        lower, grid = on_lattice(step, direction, "lower", far / cells, moved=True, within=0.0)
        assert above_grid.offset == grid.offset == 0.0
        assert far / above_grid.mesh == pytest.approx(math.floor(cells), rel=1e-12)
        assert grid.mean_cell is not None
        assert np.all(upper >= below - 1e-15)
        assert np.all(lower <= above + 1e-15)
        assert np.all(upper >= lower - 1e-15)


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("mesh", [1.5e-4, 2.4e-4, 2.6e-4, 3.2e-4, 4e-4, 1e-3])
def test_one_cell_holds_all_that_is_averaged(direction: str, mesh: float) -> None:
    """A node may lie between log(1 - q) and the cell's mean: below that node nothing is left, and E u is kept."""
    step = DPSGD(1.0, 1e-3).step()
    pair = step.pairs(128, 1e-12)[1]
    ends = directed_range(pair, 1e-12, direction)
    grid = loss_grid(pair, ends, direction, "lower", mesh, within=1.0)
    law = discretize_step(pair, grid.covering(ends, 2.0), grid, direction, "lower")
    losses = law.losses + grid.offset
    assert law.mass @ np.exp(-losses) >= 1.0 - 4e-12  # what the range of losses cuts off
    assert grid.mean_cell is not None
    inner = -1 if direction == "remove" else 1
    assert law.mass[law.index == grid.mean_cell.index + inner].sum() <= 1e-12
    fine = discretize_step(pair, LossGrid(2e-5).covering(ends, 2.0), LossGrid(2e-5), direction, "upper")
    assert np.all(curve(law, grid.offset) <= curve(fine, 0.0) + 1e-15)


def test_a_cell_that_is_cut_is_an_error_of_ours() -> None:
    """The former fault: a node between log(1 - q) and the mean cut what was averaged, and E u fell by 3e-7."""
    step = DPSGD(1.0, 1e-3).step()
    pair = step.pairs(128, 1e-12)[1]
    ends = directed_range(pair, 1e-12, "add")
    grid = loss_grid(pair, ends, "add", "lower", 2.6e-4, within=1.0)
    assert grid.mean_cell is not None
    assert grid.mean_cell.end > grid.offset + grid.mesh  # a node lies between
    cut = LossGrid(grid.mesh, grid.offset, replace(grid.mean_cell, end=grid.offset + grid.mesh))
    with pytest.raises(UnsoundLawError, match="wrong side: please report"):
        discretize_step(pair, cut.covering(ends, 2.0), cut, "add", "lower")


def test_upper_laws_that_lose_mean_are_errors_of_ours() -> None:
    """Q-mass that no node of a cell can carry: connecting the dots would move losses down."""
    cells = LossCells(np.array([0.5]), np.array([0.2]), 0.0, 0.0, 0.0, 0.0)
    with pytest.raises(UnsoundLawError, match="wrong side: please report"):
        from_above(np.array([0, 1]), 0.1, cells)  # its mean loss is log(2.5)


def test_a_mesh_that_cuts_the_commonest_losses_merges_them_all(monkeypatch) -> None:
    """Losses within a mesh of their mean, not of log(1 - q): else E u falls short, to first order, from below."""
    step = DPSGD(5.3, 6e-4, Hutchinson(2, secret=True)).step()
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
        monkeypatch.setattr(_level, "_MESH", mesh)
        at = Level(schedule, EpsilonAtDelta(1e-5), "remove", 0)
        upper = at.curve("upper").epsilon_above(1e-5)
        lower = at.curve("lower").epsilon_below(1e-5)
        assert 0.0 < upper - lower < 0.4 * mesh**2 * upper


def test_a_node_above_the_mean_would_be_no_lower_bound() -> None:
    step, mesh = STEPS["exact"], 2e-3
    upper, lower = step.pairs(128, 1e-12)
    ends = directed_range(upper, 1e-12, "remove")
    fine = LossGrid(1e-5)
    truth = curve(discretize_step(upper, fine.covering(ends, 2.0), fine, "remove", "upper"), 0.0)
    grid = loss_grid(lower, ends, "remove", "lower", mesh, within=1.0)
    pmf = discretize_step(lower, grid.covering(ends, 2.0), grid, "remove", "lower")
    assert np.all(curve(pmf, grid.offset) <= truth + 1e-15)
    assert np.any(curve(pmf, grid.offset + 0.01 * mesh) > truth + 1e-9)


def test_bounds_of_many_rare_steps_are_narrow_at_once() -> None:
    for run in (DPSGD(0.4534, 9.455e-6), DPSGD(0.4534, 9.455e-6, Hutchinson(64, secret=False))):
        bounds = run.epsilon(steps=39345, delta=7.42e-9)
        assert bounds.upper - bounds.lower < 1e-3 * bounds.upper
        delta = run.delta(steps=39345, epsilon=bounds.upper)
        assert delta.lower <= 7.42e-9
        assert delta.upper - delta.lower < 2e-2 * delta.upper
