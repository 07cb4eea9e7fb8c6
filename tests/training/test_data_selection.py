"""Which rows are kept: a row that leaves the table takes nothing but itself along."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprmt import ParameterError
from dprmt.training.data import TaskData, load_data
from dprmt.training.data._rows import Row
from dprmt.training.data._task_data import kept_rows
from dprmt.training.models import byte_tokenizer
from dprmt.training.recipes import DataRecipe

# Few different texts, so that tables hold the same row many times.
row = st.builds(lambda text, label: Row((text,), label, "a"), st.sampled_from("abcdefgh"), st.integers(0, 2))
tables = st.lists(row)
fractions = st.floats(0.01, 1.0)


def kept(rows: list[Row], fraction: float | None, limit: int | None) -> Counter[Row]:
    return Counter(rows[i] for i in kept_rows(rows, fraction=fraction, limit=limit))


@given(tables.filter(bool), st.data(), fractions)
def test_with_a_fraction_a_row_that_leaves_changes_nothing_else(
    rows: list[Row], data: st.DataObject, fraction: float
) -> None:
    """K(D - r) = K(D) - r, for every table D, duplicates included, and every r in it."""
    gone = data.draw(st.integers(0, len(rows) - 1))
    before, after = kept(rows, fraction, None), kept(rows[:gone] + rows[gone + 1 :], fraction, None)
    assert after == before - Counter({rows[gone]: 1} if before[rows[gone]] else {})


@given(tables.filter(bool), st.data(), st.none() | fractions, st.integers(1, 12))
def test_with_a_limit_at_most_one_other_row_enters(
    rows: list[Row], data: st.DataObject, fraction: float | None, limit: int
) -> None:
    """A removed row is a replaced one: what ε must be read for, as the unit of privacy says."""
    gone = data.draw(st.integers(0, len(rows) - 1))
    before, after = kept(rows, fraction, limit), kept(rows[:gone] + rows[gone + 1 :], fraction, limit)
    assert before - after in (Counter(), Counter({rows[gone]: 1}))
    assert (after - before).total() <= (before - after).total()


def distinct(count: int) -> list[Row]:
    return [Row((f"text number {i}",), i % 3, "a") for i in range(count)]


def test_the_choice_has_nothing_to_do_with_order_label_or_file() -> None:
    rows = distinct(600)
    forth = kept(rows, 0.3, None)
    assert kept(rows[::-1], 0.3, None) == forth
    moved = kept([row._replace(part="b") for row in rows], 0.3, None)
    assert {row.inputs for row in moved} == {row.inputs for row in forth}
    for label in range(3):
        assert 35 < sum(row.target == label for row in forth) < 85  # mean 60, deviation 6.5
    assert set(kept(rows, 0.2, None)) < set(forth)
    assert set(kept(rows, None, 100)) < set(kept(rows, None, 101))


def load(folder: Path, count: int, **keys: object) -> TaskData:
    lines = [f"text number {i},{'ab'[i % 2]}" for i in range(count)]
    (folder / "a.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    recipe = DataRecipe("files", train=["a.csv"], validation=["a.csv"], inputs=["text"], target="label", **keys)
    return load_data(recipe, byte_tokenizer(), "classification", base_folder=folder)


def test_load_data_keeps_the_order_of_rows_and_names_the_unit(tmp_path: Path) -> None:
    part, few, everything = load(tmp_path, 200, fraction=0.4), load(tmp_path, 200, limit=30), load(tmp_path, 200)
    for data in (part, few, everything):
        numbers = [int(row.inputs[0].split()[-1]) for row in data.train.rows]
        assert numbers == sorted(set(numbers))
        assert [item["labels"] for item in data.train] == [number % 2 for number in numbers]
        assert len(data.validation) == 200
    assert (len(few.train), len(everything.train)) == (30, 200)
    assert 50 < len(part.train) < 110
    assert "counts as two" in few.unit_of_privacy
    assert part.unit_of_privacy == everything.unit_of_privacy
    shorter = load(tmp_path, 199, fraction=0.4)
    assert {row.inputs for row in part.train.rows} - {row.inputs for row in shorter.train.rows} <= {
        ("text number 199",)
    }


def test_a_fraction_that_keeps_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"data\.fraction must be large enough to keep a row"):
        load(tmp_path, 4, fraction=1e-9)
    for bad in (0.0, -0.1, 1.5, float("nan")):
        with pytest.raises(ParameterError, match=r"data\.fraction must be"):
            DataRecipe("docstrings", fraction=bad)
