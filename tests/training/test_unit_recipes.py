"""Recipes whose unit of privacy is a person with several rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dprmt import ParameterError, TrainingStateError
from dprmt.training.data import load_data
from dprmt.training.harness import dry_run, train
from dprmt.training.models import byte_tokenizer
from dprmt.training.private_run._batches import Owners, owners_of
from dprmt.training.recipes import DataRecipe, Recipe, builtin_recipes, load_recipe
from tests.training.tiny_recipe import recipe_in

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


@pytest.mark.slow
def test_every_docstring_is_of_one_module() -> None:
    recipe = load_recipe("minilm-docstrings-persons")
    assert "minilm-docstrings-persons" in builtin_recipes()
    for task in ("classification", "generation"):
        rows = load_data(recipe.data, byte_tokenizer(), task).train.rows
        modules = {row.unit for row in rows}
        assert 50 < len(modules) < len(rows) / 5
        assert "asyncio/events" in modules


@pytest.mark.parametrize(
    ("rows", "head", "message"),
    [
        (
            [("a", "x", "ann"), ("b", "y", "")],
            "text,label,who",
            "data.unit must be a column without holes: 1 of 2 rows",
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
    with pytest.raises(ParameterError, match="integers or strings, not of float, got 'who'"):
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
