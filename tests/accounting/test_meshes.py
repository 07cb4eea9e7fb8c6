"""Meshes of losses: narrow wherever the commonest loss would fall between nodes; errors of ours are errors."""

from __future__ import annotations

import numpy as np
import pytest

from dprmt.accounting import DPSGD, Hutchinson
from dprmt.accounting.basics._numbers import UnsoundLawError
from dprmt.accounting.composition import _solve as _level
from dprmt.accounting.composition._compose import Question
from dprmt.accounting.composition._solve import Level
from dprmt.accounting.pairs._pairs import LossCells, from_above


def test_upper_laws_that_lose_mean_are_errors_of_ours() -> None:
    """Q-mass that no node of a cell can carry: connecting the dots would move losses down."""
    cells = LossCells(np.array([0.5]), np.array([0.2]), 0.0, 0.0, 0.0, 0.0)
    with pytest.raises(UnsoundLawError, match="wrong side: please report"):
        from_above(np.array([0, 1]), 0.1, cells)  # its mean loss is log(2.5)


@pytest.mark.parametrize(
    ("run", "steps"), [(DPSGD(0.779078, 2000 / 67349), 400), (DPSGD(0.6, 0.01), 3000), (DPSGD(2.0, 0.05), 3000)]
)
def test_no_mesh_is_unlucky(run: DPSGD, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of second order in the mesh, wherever its nodes would fall beside the commonest loss."""
    schedule = [(run.step(), steps)]
    for mesh in (0.06, 0.05, 0.04, 0.035, 0.03, 0.025, 0.02, 0.015):
        monkeypatch.setattr(_level, "_MESH", mesh)
        at = Level(schedule, Question(1e-5), "remove", 0)
        upper = at.curve("upper").epsilon(1e-5, "upper")
        lower = at.curve("lower").epsilon(1e-5, "lower")
        assert 0.0 < upper - lower < 0.6 * mesh**2 * upper


def test_bounds_of_many_rare_steps_are_narrow_at_once() -> None:
    for run in (DPSGD(0.5, 1e-4), DPSGD(0.8, 2e-4, Hutchinson(64, secret=False))):
        bounds = run.epsilon(steps=10_000, delta=1e-7)
        assert bounds.is_narrow
        delta = run.delta(steps=10_000, epsilon=bounds.upper)
        assert delta.lower <= 1e-7
        assert delta.upper - delta.lower < 2e-2 * delta.upper
