"""The flattening picture, and what the items on DP-GRAPE share, on small settings."""

from __future__ import annotations

import warnings

import pytest
import torch

from benchmarks.grape import Case, build, formula, measure


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
