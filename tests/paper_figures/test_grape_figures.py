"""The flattening picture, and what the items on DP-GRAPE share, on small settings."""

from __future__ import annotations

import warnings

import pytest
import torch

from benchmarks.grape import Case, build, formula, measure
from paper_figures.items._projected_runs import ProjectedTask, perceptron


@pytest.mark.parametrize("method", ["DP-Adam", "DP-GRAPE", "DP-GRAPE ghost"])
def test_the_benchmark_forms_what_the_formula_says(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One narrow layer in place of OPT's: per-sample bytes are those of Table 2."""
    import benchmarks.grape as benchmark

    monkeypatch.setattr(benchmark, "WIDTH", 64)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    case = Case("OPT", 1, batch=3, tokens=5, rank=8)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook")  # of Opacus
        result = measure(case, method)
    assert result["formed"] == formula(case, method, build(case)[0]) > 0
    assert result["peak"] > result["between_steps"] > result["weights"]


@pytest.mark.parametrize("order", ["project-then-privatize", "privatize-then-project"])
def test_a_rank_is_at_most_the_shorter_side(order: str) -> None:
    model = perceptron(64, 10, seed=0)
    task = ProjectedTask([0], torch.tensor, lambda *_: torch.zeros(1), projection={"rank": 16, "order": order})
    plan = task.clipping_plan(model, clipping_norm=1.0, expected_batch_size=1.0)
    step = plan.privatize(torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0)
    assert [layer.rank for layer in step.optimizer.original_optimizer.subspaces] == [16, 16, 10]
    step.close()
