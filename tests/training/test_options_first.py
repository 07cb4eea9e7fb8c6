"""Every option is refused before anything runs, in one line, also where only a plan is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from dprmt import ParameterError
from dprmt.cli import main
from tests.training.tiny_recipe import recipe_in, write_data

NUMBERS = [
    "data.limit", "data.max_tokens", "evaluation.length_penalty", "model.lora.alpha", "model.lora.rank",
    "optimizer.eps", "optimizer.floor", "optimizer.learning_rate", "optimizer.weight_decay", "privacy.clipping_norm",
    "privacy.noise_multiplier", "privacy.norms.probes", "denoising.kappa", "training.batch_size", "training.steps",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    write_data(path)
    (path / "recipe.toml").write_text(recipe_in(path).to_toml())
    return path


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("digits", [400, 5000])  # too many for a float, too many for Python to read
def test_numbers_of_any_length_are_refused(folder: Path, capsys, key: str, digits: int) -> None:
    text = refused(capsys, "train", str(folder / "recipe.toml"), "--dry-run", "--set", f"{key}=1{'0' * digits}")
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
    folder: Path, tmp_path: Path, capsys, monkeypatch, options: list[str], message: str, plan: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("mine")
    words = ["train", str(folder / "recipe.toml"), *options, *(["--dry-run"] if plan else [])]
    assert message in refused(capsys, *words)
    assert [path.name for path in tmp_path.iterdir()] == ["FILE"]


def test_a_plan_leaves_no_folder_behind(folder: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "runs" / "new"
    words = ["train", str(folder / "recipe.toml"), "--dry-run", "--json", "--device", "cpu", "--noise-seed", "3"]
    assert main([*words, "--out", str(out)]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 60
    assert list(tmp_path.iterdir()) == []


def test_a_report_goes_into_a_folder_with_a_name(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "--out must be the name of a folder" in refused(capsys, "report", "--out", "")
    assert list(tmp_path.iterdir()) == []
