"""Every JSON object about a run is a complete record: fed back, it gives itself."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprmt import __version__
from dprmt.cli import main

RUN = ["--noise-multiplier", "1.3", "--sample-rate", "2000/67349", "--steps", "60"]
EPOCHS = ["--noise-multiplier", "2", "--sampling", "allocation", "--steps-per-epoch", "12", "--epochs", "2"]
SMALL = ["qwen3-tiny-docstrings", "--set", "data.limit=30", "--set", "training.batch_size=10"]
SMALL += ["--set", "training.steps=2", "--set", "model.tokenizer=bytes", "--set", "privacy.delta=1e-4"]
PHASES = """\
sample_rate = 0.02
[[phases]]
noise_multiplier = 2
steps = 5
[[phases]]
noise_multiplier = 1.5
steps = 9
probes = 16
public_probes = true
"""


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("epsilon", [*RUN, "--delta", "1e-6"]),
        ("epsilon", [*RUN, "--delta", "1e-6", "--probes", "32", "--sketch", "16", "--secret-probes"]),
        (
            "epsilon",
            [*RUN, "--delta", "1e-6", "--probes", "32", "--public-probes", "--analysis", "envelope", "--rank", "40"],
        ),
        ("epsilon", [*RUN, "--delta", "1e-6", "--also", "gaussian:3", "--also", "approximate:0.1:1e-9"]),
        ("epsilon", [*EPOCHS, "--delta", "1e-6"]),
        ("delta", [*RUN, "--epsilon", "2"]),
        ("tradeoff", [*RUN, "--points", "5"]),
        ("statement", [*RUN, "--delta", "1e-6", "--unit", "one patient"]),
        ("noise", ["--advantage", ".3", *RUN[2:], "--delta", "1e-5"]),
        ("steps", ["--epsilon", "2", *RUN[:4], "--delta", "1e-5"]),
        ("probes", [*RUN, "--delta", "1e-5", "--budget", "9", "--layers", "64x32x16,8x8x8"]),
        ("probes", [*EPOCHS, "--delta", "1e-5", "--budget", "3", "--neighbours", "add-remove"]),
        ("recipes", ["minilm-docstrings-hutchpp"]),
        ("train", [*SMALL, "--dry-run"]),
    ],
)
def test_a_record_fed_back_gives_itself(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, words: list[str]
) -> None:
    first = answer(capsys, command, *words)
    assert command == "recipes" or first["version"] == __version__
    (tmp_path / "answer.json").write_text(json.dumps(first), encoding="utf-8")
    again = [command, "--from-json", str(tmp_path / "answer.json"), *(["--dry-run"] if command == "train" else [])]
    assert answer(capsys, *again) == first


def test_a_plan_is_measured_again_for_the_same_recipe(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its times would differ, so here they are set."""
    from dprmt.training.clipping import StepCosts, WayCost

    asked = []
    made = [WayCost(way, 1.0, 2.0, 3, 0.5) for way in ("exact", "ghost", "hutchinson", "hutch++")]
    monkeypatch.setattr(
        "dprmt.training.harness.recipe_costs", lambda recipe, device: asked.append(recipe) or StepCosts(made, 0.5, 1)
    )
    first = answer(capsys, "plan", *SMALL)
    assert (first["ways"][1]["way"], first["ways"][1]["seconds"], first["plain_peak"]) == ("ghost", 1.0, 1)
    assert (first["recommended"], first["delta"]) == ("exact", 1e-4)
    (tmp_path / "answer.json").write_text(json.dumps(first), encoding="utf-8")
    assert answer(capsys, "plan", "--from-json", str(tmp_path / "answer.json")) == first
    assert asked[0] == asked[1]


def test_phases_noise_and_standard_input(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.toml").write_text(PHASES)
    first = answer(capsys, "epsilon", "--phases", str(tmp_path / "run.toml"), "--delta", "1e-5")
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(first)))
    assert answer(capsys, "epsilon", "--from-json", "-") == first
    calibrated = answer(capsys, "noise", "--epsilon", "3", *RUN[2:], "--delta", "1e-5")
    (tmp_path / "noise.json").write_text(json.dumps(calibrated))
    again = answer(capsys, "noise", "--from-json", str(tmp_path / "noise.json"))
    # A transform's last digit may depend on where its arrays lie in memory.
    σ = pytest.approx(calibrated["noise_multiplier"], rel=1e-12)
    assert again["mechanism"] == calibrated["mechanism"] | {"noise_multiplier": σ}
    numbers = ("noise_multiplier", "mechanism", "epsilon")
    assert {name: again[name] for name in again if name not in numbers} == {
        name: calibrated[name] for name in calibrated if name not in numbers
    }
    spent = answer(capsys, "epsilon", "--from-json", str(tmp_path / "noise.json"))
    assert spent["epsilon"] == calibrated["epsilon"]
    other = answer(capsys, "epsilon", "--from-json", str(tmp_path / "noise.json"), "--delta", "1e-9")
    assert other["epsilon"]["lower"] > spent["epsilon"]["upper"]


@pytest.mark.parametrize(
    ("record", "words", "message"),
    [
        ("{", [], "--from-json must be a file with what --json printed"),
        ("[1]", [], "--from-json must be"),
        ('{"mechanism": {"kind": "dpsgd"}, "steps": 3}', ["--delta", "1e-5"], "without 'noise_multiplier'"),
        ('{"mechanism": {"kind": "pate"}, "steps": 3}', ["--delta", "1e-5"], "whose mechanism is 'dpsgd'"),
        ('{"mechanism": {}, "steps": 3, "delta": 5}', [], "--delta must be a finite number in [1e-290, 1), got 5"),
        ('{"phases": 3}', [], "of a run: one with a mechanism and steps, or with phases"),
        ('{"mechanism": {}, "steps": 3}', [], "--delta must be given: the record of --from-json does not state it"),
        ('{"mechanism": {}, "steps": 3}', ["--steps", "3"], "--steps must be left out where --from-json is given"),
    ],
)
def test_what_is_no_record_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, record: str, words: list[str], message: str
) -> None:
    (tmp_path / "x.json").write_text(record)
    assert main(["epsilon", "--from-json", str(tmp_path / "x.json"), *words]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert message in captured.err


def test_probes_state_a_run_that_other_commands_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    probes = answer(capsys, "probes", *RUN, "--delta", "1e-5", "--budget", "9", "--neighbours", "add-remove")
    assert (probes["version"], probes["noise_multiplier"], probes["delta"]) == (__version__, 1.3, 1e-5)
    assert (probes["sampling"]["kind"], probes["neighbours"]) == ("poisson", "add-remove")
    (tmp_path / "probes.json").write_text(json.dumps(probes))
    spent = answer(capsys, "epsilon", "--from-json", str(tmp_path / "probes.json"))
    assert spent["epsilon"] == probes["choices"][0]["epsilon"]
    (tmp_path / "epsilon.json").write_text(json.dumps(spent))
    assert answer(capsys, "probes", "--from-json", str(tmp_path / "epsilon.json"), "--budget", "9") == probes


def test_a_spectrum_is_gated_anew_without_its_matrices(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    np.savez(tmp_path / "x.npz", a=rng.standard_normal((40, 60)), b=15.5 * np.eye(8, 9), c=np.zeros(3))
    first = answer(capsys, "spectrum", str(tmp_path / "x.npz"), "--sigma", "1", "--false-alarm", "0.05")
    assert (first["version"], first["sigma"], first["false_alarm"]) == (__version__, 1.0, 0.05)
    (tmp_path / "x.json").write_text(json.dumps(first))
    (tmp_path / "x.npz").rename(tmp_path / "y.npz")
    again = ["spectrum", "--from-json", str(tmp_path / "x.json")]
    assert answer(capsys, *again) == first
    strict = answer(capsys, *again, "--false-alarm", "1e-6")
    assert strict == answer(capsys, "spectrum", str(tmp_path / "y.npz"), "--sigma", "1", "--false-alarm", "1e-6")
    assert [matrix["name"] for matrix in answer(capsys, *again, "--param", "b")["matrices"]] == ["b"]
    for words, message in [
        ([*again, "--sigma", "2"], "--sigma must be left out where --from-json is given"),
        ([*again, str(tmp_path / "y.npz")], "FILE must be left out where --from-json is given"),
        ([*again, "--param", "z"], "--param must be one of 'a', 'b'"),
        (["spectrum", "--sigma", "1"], "FILE must be given, or --from-json"),
    ]:
        assert main(words) == 2
        assert message in capsys.readouterr().err
    one = first["matrices"][0]
    values = one["singular_values"]
    for damaged in (
        {"shape": [40]},
        {"shape": [3, 2]},
        {"sigma": -1},
        {"singular_values": values[:-1]},
        {"singular_values": [values[1], values[0], *values[2:]]},  # as many as there should be, but they rise once
        {"singular_values": [*values[:-1], -values[-1]]},
    ):
        (tmp_path / "x.json").write_text(json.dumps(first | {"matrices": [one | damaged, *first["matrices"][1:]]}))
        assert main(again) == 2, damaged
        assert capsys.readouterr().err.startswith("dprmt spectrum: --from-json must be what --json")


def test_verdicts_are_found_again_without_the_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    card = answer(capsys, "statement", *RUN, "--delta", "1e-5")
    (tmp_path / "card.json").write_text(json.dumps(card))
    first = answer(capsys, "verify", str(tmp_path / "card.json"), "--seconds", "20")
    assert (first["version"], first["seconds"]) == (__version__, 20.0)
    (tmp_path / "card.json").unlink()
    (tmp_path / "verdicts.json").write_text(json.dumps(first))
    assert answer(capsys, "verify", "--from-json", str(tmp_path / "verdicts.json")) == first


def test_a_run_that_was_planned_is_one_whose_privacy_can_be_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    planned = answer(capsys, "train", *SMALL, "--dry-run")
    (tmp_path / "planned.json").write_text(json.dumps(planned))
    spent = answer(capsys, "epsilon", "--from-json", str(tmp_path / "planned.json"))
    assert (spent["steps"], spent["delta"], spent["neighbours"]) == (2, 1e-4, "zero-out")
    assert spent["epsilon"]["upper"] == pytest.approx(planned["epsilon_after"]["2"], rel=1e-9)
    trained = answer(capsys, "train", "--from-json", str(tmp_path / "planned.json"), "--out", str(tmp_path / "run"))
    assert trained["config"] == planned["config"]
    assert trained["phases"] == [{"mechanism": spent["mechanism"], "steps": 2}]
    (tmp_path / "trained.json").write_text(json.dumps(trained))
    charged = answer(capsys, "epsilon", "--from-json", str(tmp_path / "trained.json"))
    assert charged["epsilon"] == spent["epsilon"]
    assert answer(capsys, "recipes", "--from-json", str(tmp_path / "trained.json")) == planned["config"]
    for words, message in [
        (["plan"], "RECIPE must be given, or --from-json"),
        (["plan", "minilm-docstrings", "--from-json", str(tmp_path / "planned.json")], "RECIPE must be left out"),
        (["train", "--from-json", "nowhere.json"], "--from-json must be a file with what --json printed"),
        (["train", "--resume", "x", "--from-json", str(tmp_path / "planned.json")], "--resume must be given without"),
    ]:
        assert main(words) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_report_is_written_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    small = ["--recipe", "minilm-docstrings", "--steps", "1", "--set", "training.batch_size=32"]
    first = answer(capsys, "report", "--out", str(tmp_path / "a"), *small)
    assert first["version"] == __version__
    (tmp_path / "report.json").write_text(json.dumps(first))
    again = answer(capsys, "report", "--out", str(tmp_path / "b"), "--from-json", str(tmp_path / "report.json"))
    assert again["asked"] == first["asked"]
    assert [one["title"] for one in again["sections"]] == [one["title"] for one in first["sections"]]
