"""The split of a budget of products: no worse than all splits, with the costs of each choice."""

from __future__ import annotations

import json

import pytest

from dprmt._validation import ParameterError
from dprmt.accounting import DPSGD, RandomizedClipping, choose_probes
from dprmt.cli import main

RUN = (2.0, 0.02, 100, 1e-5)


def test_the_split_is_the_best_of_all() -> None:
    """Against every width of the sketch, at a small budget; each row is its own mechanism's ε."""
    exact, *rows = choose_probes(*RUN, budget=26)
    assert exact.epsilon == DPSGD(*RUN[:2]).epsilon(*RUN[2:])
    assert len(rows) == 6
    assert [row.epsilon.upper for row in rows] == sorted(row.epsilon.upper for row in rows)
    chosen = next(row for row in rows if row.estimator == "Hutch++, one pass" and row.probe_sharing == "batch")
    assert 2 * chosen.sketch + chosen.probes == chosen.products == 26  # type: ignore[operator]
    every = [
        RandomizedClipping(*RUN[:2], 26 - 2 * s, sketch=s).epsilon(*RUN[2:]).upper for s in (3, 4, 5, 6, 7, 8, 10, 12)
    ]
    assert chosen.epsilon.upper <= min(every) * 1.0005


def test_a_sketch_pays_off_from_a_budget_on() -> None:
    """With few products there is no room for Hutch++, with many it beats Hutchinson in the same sharing."""
    assert {row.estimator for row in choose_probes(*RUN, budget=7)} == {"exact norms", "Hutchinson"}
    best = choose_probes(*RUN, budget=40)[1]
    assert best.estimator.startswith("Hutch++")
    assert best.probe_sharing == "sample"


def test_the_costs_are_those_of_the_shapes() -> None:
    """T = 4, d = 1000, p = 500 is cheapest through two T x T matrices; a small layer is exact for every choice."""
    exact, *rows = choose_probes(*RUN, budget=7, layers=[(4, 1000, 500), (3, 5, 6)])
    assert exact.cost == (2 * 16 * 1500 + 2 * 3 * 5 * 6, 2 * 4 * 16)
    assert rows[0].cost == (7 * 2 * 4 * 1500 + 2 * 3 * 5 * 6, 4 * (1004 * 7 + 500 * 7))


@pytest.mark.parametrize("layers", [[], [(1, 2)], [(1, 2, 0)]])
def test_bad_shapes_are_refused(layers: list[tuple[int, ...]]) -> None:
    with pytest.raises(ParameterError, match="layers must be"):
        choose_probes(*RUN, budget=8, layers=layers)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    run = ["--noise-multiplier", "2", "--sample-rate", "0.02", "--steps", "100", "--delta", "1e-5"]
    assert main(["probes", *run, "--budget", "7", "--layers", "1024x4096x4096", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["choices"]
    assert [row["probes"] for row in rows] == [None, 7, 7]
    assert rows[1]["cost"]["flops"] == 7 * 2 * 1024 * 8192
    assert main(["probes", *run, "--budget", "7"]) == 0
    assert "exact norms" in capsys.readouterr().out
    for bad in (["--budget", "1"], ["--budget", "8", "--layers", "4x4"], ["--budget", "8", "--layers", "a"]):
        assert main(["probes", *run, *bad]) == 2
        error = capsys.readouterr().err
        assert error.startswith("dprmt probes: --")
        assert error.count("\n") == 1
