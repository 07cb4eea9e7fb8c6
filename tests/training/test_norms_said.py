"""A plan says how norms are obtained."""

from __future__ import annotations

from pathlib import Path

from dprmt.training.harness import dry_run
from tests.training.tiny_recipe import recipe_in, write_data

WIDE = {
    "model.lora.also_train": ["value"],
    "model.lora.targets": ["query"],
    "model.config.hidden_size": 32,
}


def test_a_plan_counts_the_layers_whose_norms_are_estimated(tmp_path: Path) -> None:
    write_data(tmp_path)
    norms = {"privacy.norms": {"kind": "hutch++", "probes": 4, "sketch": 3}}
    planned = dry_run(recipe_in(tmp_path).with_changes(WIDE | norms)).norms
    assert planned.startswith("hutch++ (4 secret probes, a sketch of 3")
    assert planned.endswith(" in 1 of 4 layers, exact in the others, where that costs less")
    planned = dry_run(recipe_in(tmp_path).with_changes(norms)).norms
    assert planned.startswith("exact in all ")
    assert ", though hutch++ was asked for: " in planned
