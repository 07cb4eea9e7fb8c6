"""Runs that clip and add no noise: nowhere an ε, everywhere a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dprmt import ParameterError
from dprmt.cli import main
from dprmt.training.harness import read_metrics, read_summary, train
from dprmt.training.recipes import Recipe
from tests.conftest import Say
from tests.training.tiny_recipe import recipe_in

NO_NOISE = {"privacy.noise_multiplier": None, "privacy.clip_only": True}
SAID = "clip only, no privacy"


@pytest.fixture
def recipe(folder: Path) -> Recipe:
    return recipe_in(folder, **NO_NOISE, **{"training.steps": 2})


def test_all_files_say_that_there_is_no_privacy(recipe: Recipe, tmp_path: Path) -> None:
    result = train(recipe, tmp_path / "run", noise_seed=1)
    assert result.epsilon == float("inf")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    ledger = [json.loads(line) for line in (tmp_path / "run" / "privacy.jsonl").read_text().splitlines()]
    assert SAID in record["step"]["mechanism"]
    for document in (record, read_summary(tmp_path / "run"), *read_metrics(tmp_path / "run"), *ledger):
        assert SAID in document["privacy"]
        assert document.get("epsilon") is None
    assert len(ledger) == 2


def test_the_command_says_it_before_and_after(recipe: Recipe, tmp_path: Path, capsys) -> None:
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    for more in (["--dry-run"], []):
        assert main(["train", str(tmp_path / "recipe.toml"), "--out", str(tmp_path / "run"), *more]) == 0
        shown = capsys.readouterr()
        assert SAID in shown.out
        assert "ε ≤" not in shown.out + shown.err
    assert SAID in shown.err


@pytest.mark.parametrize(
    "changes",
    [
        {"privacy.target_epsilon": 1.0},
        {"privacy.noise_multiplier": 1.0},
        {"privacy.secure": True},
        {"privacy.sampling": "allocation"},
        {"denoising.method": "paper"},
    ],
)
def test_it_does_not_go_with_what_needs_noise(recipe: Recipe, changes: dict[str, object]) -> None:
    with pytest.raises(ParameterError, match=r"clip_only"):
        recipe.with_changes(changes)


NUMBERS = ["data.limit", "model.lora.alpha", "optimizer.learning_rate", "privacy.noise_multiplier", "training.steps"]


@pytest.fixture
def written(folder: Path) -> str:
    (folder / "recipe.toml").write_text(recipe_in(folder).to_toml())
    return str(folder / "recipe.toml")


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("digits", [400, 5000])  # too many for a float, too many for Python to read
def test_numbers_of_any_length_are_refused(written: str, refusal: Say, key: str, digits: int) -> None:
    text = refusal("train", written, "--dry-run --set", f"{key}=1{'0' * digits}")
    assert text.startswith(f"dprmt train: {key} must be ")


@pytest.mark.parametrize("name", ["../../x", "a/b", "..", ".", "/etc", "a\\b", "c:x", "a\nb", "x" * 201])
def test_a_recipe_cannot_be_named_after_a_place_outside(folder: Path, name: str) -> None:
    with pytest.raises(ParameterError, match="name must be a name without path"):
        recipe_in(folder).with_changes({"name": name})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "tpu"], "--device must be a device that computes here"),
        (["--noise-seed", "x"], "--noise-seed must be an integer"),
        (["--noise-seed", "-1"], "--noise-seed must be an integer"),
        (["--out", "FILE"], "--out must be"),
        (["--out", "FILE/run"], "--out must be"),
        (["--out", ""], "--out must be the name of a folder"),
    ],
)
@pytest.mark.parametrize("plan", [True, False])
def test_a_plan_refuses_what_a_run_would(
    written: str, tmp_path: Path, refusal: Say, monkeypatch, options: list[str], message: str, plan: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("mine")
    assert message in refusal("train", written, options, "--dry-run" if plan else "")
    assert [path.name for path in tmp_path.iterdir()] == ["FILE"]


def test_a_plan_leaves_no_folder_behind(written: str, tmp_path: Path, capsys) -> None:
    words = ["train", written, "--dry-run", "--json", "--device", "cpu", "--noise-seed", "3"]
    assert main([*words, "--out", str(tmp_path / "runs" / "new")]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 60
    assert list(tmp_path.iterdir()) == []
