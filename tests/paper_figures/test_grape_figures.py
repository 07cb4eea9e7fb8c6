"""The flattening picture, and what the items on DP-GRAPE share, on small settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.grape import Case, build, formula, measure
from dprmt import ParameterError
from paper_figures.items._projected_runs import digits, perceptron, train_once
from paper_figures.items.grape_vit import cifar_images


def accuracy(projection: dict[str, str], rank: int = 16) -> float:
    """One seed of the digits, one learning rate, at ε = 2."""
    options = {"rank": lambda shape: min(rank, shape.n), **projection}
    return train_once(
        perceptron(64, 10, seed=0),
        digits(),
        optimizer={"name": "adam", "learning_rate": 0.02},
        privacy={"target_epsilon": 2.0},
        steps=25,
        batch=140,
        seed=0,
        projection=options,
    )


def test_records_of_cifar_are_read_and_others_refused(tmp_path: Path) -> None:
    file = tmp_path / "batch.bin"
    file.write_bytes(bytes([7]) + bytes([255]) * 1024 + bytes(2048) + bytes([2]) + bytes(3072))
    images, labels = cifar_images(file)
    assert labels.tolist() == [7, 2]
    assert images.shape == (2, 3, 32, 32)
    assert images[0, 0].min() == 1
    assert images[0, 1:].max() == images[1].max() == 0
    file.write_bytes(bytes(3072))
    with pytest.raises(ParameterError, match="3073"):
        cifar_images(file)


@pytest.mark.parametrize("method", ["DP-Adam", "DP-GRAPE", "DP-GRAPE ghost"])
def test_the_benchmark_forms_what_the_formula_says(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One narrow layer in place of OPT's: per-sample bytes are those of Table 2."""
    import benchmarks.grape as benchmark

    monkeypatch.setattr(benchmark, "WIDTH", 64)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    case = Case("OPT", 1, batch=3, tokens=5, rank=8)
    with pytest.warns(UserWarning, match="Full backward hook"):
        result = measure(case, method)
    assert result["formed"] == formula(case, method, build(case)[0]) > 0
    assert result["peak"] > result["between_steps"] > result["weights"]


def test_no_rate_of_the_stored_orders_lies_at_the_edge_of_its_grid() -> None:
    from paper_figures._pieces import raw_file
    from paper_figures._reproduction import RESULTS
    from paper_figures.items.grape_order import EPSILONS, METHODS, RATES, TUNED_ON, _name

    lines = raw_file(RESULTS, "grape-order", "long").read_text(encoding="utf-8").splitlines()
    accuracy = {line["name"]: line["value"] for line in map(json.loads, lines)}
    for method in METHODS:
        for epsilon in EPSILONS:
            tried = [accuracy[_name("", method, epsilon, rate, TUNED_ON)] for rate in RATES]
            assert 0 < max(range(len(RATES)), key=tried.__getitem__) < len(RATES) - 1, (method, epsilon, tried)
