"""The files of a run agree with one another, or the run is refused; a damaged one costs what it must and no more."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dprmt import ParameterError, TrainingStateError
from dprmt.training.harness import _train, read_metrics, read_summary, train
from dprmt.training.harness._checkpoint import load_checkpoint, save_checkpoint
from dprmt.training.harness._run_folder import RunFolder
from dprmt.training.private_run._ledger import charged_steps
from tests.training.tiny_recipe import STEPS, killed_before_step, recipe_in, write_data, write_rows


@pytest.fixture(scope="module")
def halfway(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that died before step 4 of 6."""
    path = tmp_path_factory.mktemp("halfway") / "run"
    killed_before_step(4, recipe_in(folder), path)
    return path


def edit(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def sigma_ten(run: Path) -> None:
    edit(run / "run.json", lambda d: d.update(noise_multiplier=10.0))


def sigma_ten_everywhere_but_in_the_ledger(run: Path) -> None:
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("noise_multiplier = 1.0", "noise_multiplier = 10.0"))
    edit(run / "run.json", lambda d: (d.update(noise_multiplier=10.0), d["step"].update(noise_multiplier=10.0)))


def no_ledger_and_no_checkpoint(run: Path) -> None:
    (run / "privacy.jsonl").unlink()
    for name in ("checkpoint", "checkpoint.previous"):
        shutil.rmtree(run / name)


def short_ledger(run: Path) -> None:
    lines = (run / "privacy.jsonl").read_text().splitlines(keepends=True)
    (run / "privacy.jsonl").write_text(lines[0])


def no_checkpoint(run: Path) -> None:
    for name in ("checkpoint", "checkpoint.previous"):
        (run / name / "state.pt").write_bytes(b"\0" * 5)


def holding(name: str, content: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_text(content)


@pytest.mark.parametrize(
    ("damage", "changes", "message"),
    [
        (sigma_ten, {}, "data, model and version of dprmt|noise_multiplier must be the recipe's"),
        (sigma_ten_everywhere_but_in_the_ledger, {"privacy.noise_multiplier": 10.0}, r"another .*: 1.0 then, 10.0 now"),
        (no_ledger_and_no_checkpoint, {}, "0 steps charged, 3 done"),
        (lambda run: (run / "privacy.jsonl").unlink(), {}, "0 steps charged, 3 done, so that what"),
        (short_ledger, {}, "1 steps charged, 3 done"),
        (no_checkpoint, {}, "a checkpoint that can be read"),
        (lambda run: (run / "run.json").unlink(), {}, "no run.json, so that what was charged is unknown"),
        (holding("run.json", '{"starts": 1, "noi'), {}, "record can be read"),
        (holding("run.json", "[]"), {}, "record can be read"),
        (holding("run.json", '{"starts": "two"}'), {}, "record can be read"),
    ],
)
def test_files_that_contradict_one_another_are_refused(
    folder: Path, halfway: Path, tmp_path: Path, damage: Callable[[Path], None], changes: dict[str, Any], message: str
) -> None:
    run = Path(shutil.copytree(halfway, tmp_path / "run"))
    damage(run)
    with pytest.raises((ParameterError, TrainingStateError), match=message):
        train(recipe_in(folder).with_changes(changes), run, resume=True)
    assert charged_steps(run) <= 3
    assert not (run / "summary.json").exists()


def permuted(lines: list[str]) -> list[str]:
    return [lines[0], lines[2], lines[1], *lines[3:]]


def edited(lines: list[str]) -> list[str]:
    return [*lines[:-1], "ruby ruby ruby,red"]


@pytest.mark.parametrize("change", [permuted, edited])
def test_other_items_of_the_same_number_are_refused(
    folder: Path, halfway: Path, tmp_path: Path, change: Callable[[list[str]], list[str]]
) -> None:
    table = folder / "train.csv"
    before = table.read_text()
    try:
        table.write_text("\n".join(change(before.splitlines())) + "\n")
        assert table.read_text() != before
        with pytest.raises(TrainingStateError, match="training items or their order have changed"):
            train(recipe_in(folder), shutil.copytree(halfway, tmp_path / "run"), resume=True)
    finally:
        table.write_text(before)


def test_more_items_under_the_same_name_are_refused(tmp_path: Path) -> None:
    """With more rows the sampling rate is lower: the steps taken at the higher one would be told too cheap."""
    write_data(tmp_path)
    killed_before_step(2, recipe_in(tmp_path), tmp_path / "run")
    write_rows(tmp_path / "train.csv", 120, 1)
    with pytest.raises(ParameterError, match=r"first start \(step.sampling.rate: 0\.2\d* then, 0\.1\d* now\)"):
        train(recipe_in(tmp_path), tmp_path / "run", resume=True)


def test_a_ledger_whose_summary_knows_better_is_refused(folder: Path, tmp_path: Path) -> None:
    train(recipe_in(folder), tmp_path / "run")
    short_ledger(tmp_path / "run")
    for name in ("metrics.jsonl", "checkpoint", "checkpoint.previous"):
        path = tmp_path / "run" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(TrainingStateError, match=f"1 steps charged, {STEPS} done"):
        train(recipe_in(folder), tmp_path / "run", resume=True)


def flipped_byte(folder: Path) -> None:
    content = bytearray((folder / "state.pt").read_bytes())
    content[len(content) // 2] ^= 16
    (folder / "state.pt").write_bytes(content)


@pytest.mark.parametrize(
    "damage", [*(holding("checksums.json", text) for text in ("[1]", '{"a":' * 100_000)), flipped_byte]
)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    folder: Path, halfway: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    run = Path(shutil.copytree(halfway, tmp_path / "run"))
    damage(run / "checkpoint")
    state = load_checkpoint(run)
    assert state is not None
    assert state["steps_taken"] == 2
    assert train(recipe_in(folder), run, resume=True).charged == STEPS + 1
    damage_both = Path(shutil.copytree(halfway, tmp_path / "both"))
    holding("checksums.json", "[1]")(damage_both / "checkpoint")
    flipped_byte(damage_both / "checkpoint.previous")
    with pytest.raises(ParameterError, match="a checkpoint that can be read"):
        load_checkpoint(damage_both)


@pytest.mark.parametrize(
    "content", ["[1]", "[" * 100_000, "3", "{}", '{"state.pt": 1}', '{"state.pt": "", "/": 1}', "\x00"]
)
def test_no_document_makes_reading_a_checkpoint_fail_with_another_error(tmp_path: Path, content: str) -> None:
    import torch

    save_checkpoint(tmp_path, {"step": 1, "x": torch.ones(2)})
    (tmp_path / "checkpoint" / "checksums.json").write_text(content)
    with pytest.raises(ParameterError, match="a checkpoint that can be read"):
        load_checkpoint(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="modes and links are those of POSIX")
def test_a_link_in_a_run_folder_is_refused_and_not_followed(folder: Path, halfway: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("kept")
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "lock").symlink_to(tmp_path / "victim")
    run = Path(shutil.copytree(halfway, tmp_path / "run"))
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to(tmp_path / "victim")
    for path, resume in ((tmp_path / "prepared", False), (run, True)):
        with pytest.raises(ParameterError, match="a folder without links in it"):
            train(recipe_in(folder), path, resume=resume)
    assert (tmp_path / "victim").read_text() == "kept"


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_what_a_run_writes_down_is_for_its_owner_and_what_it_releases_for_all(halfway: Path) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) & 0o077 for path in halfway.iterdir()}
    assert modes.keys() >= {"config.toml", "run.json", "privacy.jsonl", "metrics.jsonl", "checkpoint"}
    assert set(modes.values()) == {0}


def test_checkpoints_hold_no_generator_s_state(halfway: Path) -> None:
    """It gives away the noise of the steps before and after it; a run that is to be repeated is another matter."""
    state = load_checkpoint(halfway)
    assert state is not None
    assert state["charged"] == state["steps_taken"] == 3
    assert not [key for key in state if "secret" in key or "generator" in key or "noise" in key]


@pytest.mark.parametrize("noise", [None, 3.0])
def test_a_stopped_run_returns_no_score_that_is_to_be_released_with_noise(
    folder: Path, tmp_path: Path, noise: float | None
) -> None:
    wanted = recipe_in(folder, **{"evaluation.every": 1, "evaluation.private_noise": noise})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_train, "interrupts", lambda: contextlib.nullcontext([signal.SIGINT]))
        result = train(wanted, tmp_path / "run")
    assert (result.finished, result.steps) == (False, 1)
    assert ("accuracy" in result.evaluation) == (noise is None)


def test_a_score_that_is_to_be_released_otherwise_is_refused(folder: Path, tmp_path: Path) -> None:
    """Its noise is charged with the steps: in each start the same."""
    first = recipe_in(folder, **{"evaluation.private_noise": 30.0})
    killed_before_step(3, first, tmp_path / "run")
    for noise in (3.0, None):
        other = recipe_in(folder, **{"evaluation.private_noise": noise})
        with pytest.raises(ParameterError, match="recipe must be the recipe the run was started with"):
            train(other, tmp_path / "run", resume=True)
        (tmp_path / "run" / "config.toml").write_text(other.to_toml())
        with pytest.raises(ParameterError, match=r"first start \(score_release"):
            train(other, tmp_path / "run", resume=True)
        (tmp_path / "run" / "config.toml").write_text(first.to_toml())


def test_metrics_that_are_no_text_and_a_summary_that_is_none(folder: Path, halfway: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(halfway, tmp_path / "run"))
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b"\xff\xfe\n[1]\n{}\n")
    assert [entry["step"] for entry in read_metrics(run)] == [1, 2, 3]
    (run / "summary.json").write_text("[")
    with pytest.raises(ParameterError, match=r"summary\.json can be read"):
        read_summary(run)


def test_settings_of_a_version_without_an_option_are_those_with_its_default(tmp_path: Path) -> None:
    settings = recipe_in(tmp_path)
    with contextlib.closing(RunFolder(tmp_path / "run", resume=False, config=settings)) as folder:
        folder.begin({})
    config = tmp_path / "run" / "config.toml"
    config.write_text("\n".join(line for line in config.read_text().splitlines() if "kappa" not in line))
    RunFolder(tmp_path / "run", resume=True, config=settings).close()
    for other in ({"privacy.clipping_norm": 7.0}, {"denoising.kappa": 1.5}):
        with pytest.raises(ParameterError, match="recipe must be the recipe the run was started with"):
            RunFolder(tmp_path / "run", resume=True, config=settings.with_changes(other))
