"""Items of any kind whose unit of privacy is their owner: `ItemTask` with owners."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dprmt import ParameterError, TrainingStateError
from dprmt.accounting import DPSGD
from dprmt.training.clipping import Units
from dprmt.training.data import load_data
from dprmt.training.harness import ItemTask, dry_run, run_in_memory, train, train_task
from dprmt.training.models import byte_tokenizer
from dprmt.training.private_run._batches import Owners, owners_of
from dprmt.training.recipes import DataRecipe, Recipe, Settings, load_recipe
from tests.training.literal import clipped_sum, gradients_of, norm_of
from tests.training.tiny_recipe import recipe_in

ITEMS = [[1, 2, 3], [4], [5, 6], [7, 1], [2, 2, 9, 4], [3]]
OWNERS = ["anna", "ben", "anna", 3, "anna", "ben"]
SETTINGS = Settings(
    privacy={"noise_multiplier": 1.0, "delta": 1e-3, "norms": "ghost"},
    optimizer={"name": "gd", "learning_rate": 0.1},
    training={"batch_size": 2, "micro_batch_size": 4, "steps": 4},
)


def as_mapping(items: list[list[int]]) -> dict[str, torch.Tensor]:
    """Padded texts."""
    longest = max(map(len, items))
    ids = torch.tensor([[*item, *[0] * (longest - len(item))] for item in items])
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def as_tuple(items: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    batch = as_mapping(items)
    return batch["input_ids"], batch["attention_mask"]


def losses(model: nn.Module, batch: Any) -> torch.Tensor:
    """Of a language model, summed over a text's own tokens."""
    ids, mask = (batch["input_ids"], batch["attention_mask"]) if isinstance(batch, dict) else batch
    found = nn.functional.cross_entropy(model(ids).transpose(1, 2), (ids + 1) % 10, reduction="none")
    return (found * mask).sum(1)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(10, 6), nn.Linear(6, 10)).double().train()


@pytest.mark.parametrize("collate", [as_mapping, as_tuple])
@pytest.mark.parametrize("averages", [False, True])
@pytest.mark.parametrize("regime", ["together", "alone"])
def test_a_sum_is_that_of_owners(regime: str, averages: bool, collate: Any) -> None:
    """Σ_u min(1, (1-ρ)C/‖g_u‖) g_u, g_u the sum or mean of the gradients of the items that were drawn of u."""
    units = Units(2, micro_batch_size=4, regime=regime)
    task = ItemTask(ITEMS, collate, losses, length=len, owners=OWNERS, units=units, averages=averages, seed=5)
    model, plain = network(), network()
    settings = Settings(
        privacy={"clip_only": True, "delta": 1e-3, "norms": "exact", "clipping_norm": 2.0},
        optimizer={"name": "gd", "learning_rate": 1.0},
        training={"batch_size": 3, "steps": 1, "micro_batch_size": 4 if regime == "together" else 1},  # a unit is cut
    )
    with run_in_memory(model, task, settings, noise_seed=0) as run:
        list(run.steps())
        bound = 2.0 * (1 - run.private._inner.rounding)
    drawn = [task.owners_of_rows.used(unit, 0) for unit in range(task.size)]
    assert [len(rows) for rows in drawn] == [2, 2, 1]
    shares = [len(rows) if averages else 1 for rows in drawn]
    of_owners = [
        torch.cat([losses(plain, collate([ITEMS[row]])) for row in rows]).sum() / share
        for rows, share in zip(drawn, shares, strict=True)
    ]
    samples = gradients_of(plain, of_owners)
    assert max(map(norm_of, samples)) > bound / 0.9
    for name, value in clipped_sum(samples, bound).items():
        moved = plain.get_parameter(name) - model.get_parameter(name)
        torch.testing.assert_close(moved, value / 3.0, rtol=1e-9, atol=1e-12)


def test_owners_are_drawn_and_charged(tmp_path: Path) -> None:
    """The number of owners is n: two expected of three, not of six items."""
    task = ItemTask(ITEMS, as_mapping, losses, length=len, owners=OWNERS, units=Units(2))
    result = train_task(network(), task, SETTINGS, tmp_path / "run")
    rate = math.ceil(2 / 3 * 2**24) / 2**24
    assert result.epsilon == pytest.approx(DPSGD(1.0, rate).epsilon(steps=4, delta=1e-3).upper, rel=1e-6)
    text = (tmp_path / "run" / "run.json").read_text()
    assert '"unit_of_privacy": "all items that have one of the owners"' in text
    assert '"samples": 3' in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"owners": ["a"] * 5}, "owners must be one integer or string for each of the 6 rows, got 5"),
        ({"owners": "abcdef"}, "owners must be one integer or string for each of the 6 rows, got 6"),
        ({"owners": ["a", "", "b", None, math.nan, "c"]}, "missing values of owners must be 0: .*, got 3"),
        ({"owners": [1.0] * 6}, "owners must be integers or strings, got 1.0"),
        (
            {"owners": dict.fromkeys(range(6), "a")},
            "owners must be a list with the owner of each of the 6 rows, got 'dict'",
        ),
        ({"owners": np.zeros((6, 2))}, "owners must be a list with the owner of each of the 6 rows, got 'ndarray'"),
        ({"owners": [0, -1, 2, -1, 4, 5]}, "missing values of owners must be 0: .*, got 2"),
        ({"owners": ["a", " ", "b", "nan", "<NA>", "c"]}, "missing values of owners must be 0: .*, got 3"),
        ({"owners": [1, "1", 2, 2, 3, 3]}, "owners must be all integers or all strings"),
        ({"owners": [True] * 6}, "owners must be integers or strings, got True"),
        ({"units": Units(2)}, "owners must be given with units or averages"),
        ({"averages": True}, "owners must be given with units or averages"),
    ],
)
def test_bad_owners_are_refused_in_a_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        ItemTask(ITEMS, as_mapping, losses, **options)


TEXTS = [("a fine film", "good", "ann"), ("a dull film", "bad", "ben"), ("fine", "good", "ann"), ("dull", "bad", "cy")]


def table(folder: Path, rows: list[tuple[str, str, object]] = TEXTS, head: str = "text,label,who") -> DataRecipe:
    file = folder / "films.csv"
    file.write_text(head + "\n" + "".join(f"{text},{label},{who}\n" for text, label, who in rows))
    where = {"train": (str(file),), "validation": (str(file),)}
    return DataRecipe("files", **where, inputs=("text",), target="label", unit="who", max_tokens=24)


def recipe_of(folder: Path, **changes: object) -> Recipe:
    data = {key: value for key, value in vars(table(folder)).items() if value not in (None, ())}
    still = {f"model.config.{kind}_dropout_prob": 0.0 for kind in ("hidden", "attention_probs")}
    values = {key: list(value) if isinstance(value, tuple) else value for key, value in (data | changes).items()}
    return recipe_in(folder).with_changes(still | {f"data.{key}": value for key, value in values.items()})


def test_rows_know_whose_they_are(tmp_path: Path) -> None:
    data = load_data(table(tmp_path), byte_tokenizer(), "classification")
    assert [row.unit for row in data.train.rows] == ["ann", "ben", "ann", "cy"]
    assert [row.unit for row in data.validation.rows] == [None] * 4
    assert data.unit_of_privacy == "all items of the training split that have one value of 'who'"


@pytest.mark.parametrize(
    ("rows", "head", "message"),
    [
        (
            [("a", "x", "ann"), ("b", "y", "")],
            "text,label,who",
            "missing values of data.unit must be 0: one integer or string for each of the 2 rows, got 1",
        ),
        ([("a", "x", "ann"), ("b", "y", "ben")], "text,label,name", "data.unit must be one of the columns"),
    ],
)
def test_bad_columns_are_refused_in_a_sentence(tmp_path: Path, rows: list, head: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        load_data(table(tmp_path, rows, head), byte_tokenizer(), "classification")


def test_owners_are_integers_or_strings(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('[{"text": "a", "label": "x", "who": 1.5}]')
    where = {name: (str(tmp_path / "rows.json"),) for name in ("train", "validation")}
    recipe = DataRecipe("files", **where, inputs=("text",), target="label", unit="who")
    with pytest.raises(ParameterError, match=r"data\.unit must be integers or strings"):
        load_data(recipe, byte_tokenizer(), "classification")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"limit": 3}, "data.limit must be left out with data.unit"),
        ({"rows_per_unit": 0}, "data.rows_per_unit must be"),
        ({"unit_gradient": "median"}, "data.unit_gradient must be one of 'sum', 'mean'"),
        ({"unit": None, "rows_per_unit": 2}, "data.rows_per_unit must be left out without data.unit"),
        ({"source": "docstrings", "unit": "author"}, "data.unit must be 'module'"),
    ],
)
def test_what_a_recipe_cannot_say(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        DataRecipe(**({"source": "docstrings", "unit": "module"} | changes))


def test_at_most_so_many_rows_are_drawn_by_unit_and_step_alone() -> None:
    found = owners_of(["a", "b", "a", "a", "a", "b"], most=2, seed=1)
    assert found.items == ((0, 2, 3, 4), (1, 5))
    draws = [found.used(0, step) for step in range(200)]
    assert all(len(set(rows)) == 2 and set(rows) <= {0, 2, 3, 4} for rows in draws)
    assert found.used(1, 7) == [1, 5]
    counts = [sum(row in rows for rows in draws) for row in (0, 2, 3, 4)]  # 100 ± 7 each
    assert all(65 < count < 135 for count in counts)
    assert owners_of(["a"] * 4, most=2, seed=1).used(0, 3) != owners_of(["a"] * 4, most=2, seed=2).used(0, 3)


def test_a_mean_is_over_the_rows_that_are_used() -> None:
    found = owners_of(["a"] * 4 + ["b"], most=2, averages=True)
    parts = list(found.parts([0, 1], None, 0, None))
    weights = {(owner, weight) for part in parts for owner, weight in zip(part.owners, part.weights, strict=True)}
    assert weights == {("a", 1 / 2), ("b", 1.0)}


def test_pieces_hold_whole_units() -> None:
    found = Owners(("a", "b", "c", "d"), ((0, 1, 2), (3,), (4, 5), (6,)))

    def pieces(drawn: list[int], largest: int) -> list[list[int]]:
        return [part.positions for part in found.parts(drawn, largest, 0, None)]

    assert pieces([0, 1, 2, 3], 4) == [[3, 6], [4, 5], [0, 1, 2]]
    assert pieces([0, 1, 2, 3], 6) == [[3, 6, 4, 5], [0, 1, 2]]
    assert pieces([], 4) == []


def test_a_run_says_what_its_unit_is(tmp_path: Path) -> None:
    """One run in a folder: its record, its summary, and ε, which is that of three persons drawn at rate 2/3."""
    recipe = recipe_of(tmp_path, rows_per_unit=2).with_changes({"training.batch_size": 2, "training.steps": 2})
    planned = dry_run(recipe)
    assert planned.samples == 3
    assert planned.norms.startswith("units are")
    result = train(recipe, tmp_path / "run")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["unit_of_privacy"] == "all items of the training split that have one value of 'who'"
    assert record["samples"] == 3
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["epsilon"] == result.epsilon == planned.epsilon_after[2]
    table(tmp_path, [(*TEXTS[0][:2], "ben"), *TEXTS[1:]])  # the same texts, the same number of persons
    with pytest.raises(TrainingStateError, match="training items"):
        train(recipe, tmp_path / "run", resume=True)


@pytest.mark.slow
def test_every_docstring_is_of_one_module() -> None:
    recipe = load_recipe("minilm-docstrings-persons")
    for task in ("classification", "generation"):
        rows = load_data(recipe.data, byte_tokenizer(), task).train.rows
        modules = {row.unit for row in rows}
        assert 50 < len(modules) < len(rows) / 5
        assert "asyncio/events" in modules
