"""Every option is refused before anything runs, in one line, also where only a plan is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dprmt import ParameterError
from dprmt.cli import main
from tests.training.tiny_recipe import recipe_in

NUMBERS = ["data.limit", "model.lora.alpha", "optimizer.learning_rate", "privacy.noise_multiplier", "training.steps"]


@pytest.fixture
def recipe(folder: Path) -> str:
    (folder / "recipe.toml").write_text(recipe_in(folder).to_toml())
    return str(folder / "recipe.toml")


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("digits", [400, 5000])  # too many for a float, too many for Python to read
def test_numbers_of_any_length_are_refused(recipe: str, capsys, key: str, digits: int) -> None:
    text = refused(capsys, "train", recipe, "--dry-run", "--set", f"{key}=1{'0' * digits}")
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
        (["--noise-seed", "-1"], "--noise-seed must be None or an integer"),
        (["--out", "FILE"], "--out must be"),
        (["--out", "FILE/run"], "--out must be"),
        (["--out", ""], "--out must be the name of a folder"),
        (["--out", "NEW", "--resume"], "--resume must be given only for"),
        (["--resume"], "--resume must be"),
    ],
)
@pytest.mark.parametrize("plan", [True, False])
def test_a_plan_refuses_what_a_run_would(
    recipe: str, tmp_path: Path, capsys, monkeypatch, options: list[str], message: str, plan: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("mine")
    words = ["train", recipe, *options, *(["--dry-run"] if plan else [])]
    assert message in refused(capsys, *words)
    assert [path.name for path in tmp_path.iterdir()] == ["FILE"]


def test_a_plan_leaves_no_folder_behind(recipe: str, tmp_path: Path, capsys) -> None:
    words = ["train", recipe, "--dry-run", "--json", "--device", "cpu", "--noise-seed", "3"]
    assert main([*words, "--out", str(tmp_path / "runs" / "new")]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 60
    assert list(tmp_path.iterdir()) == []
