"""Every JSON object about a run's privacy is a complete record: fed back, it gives itself."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from dprmt import __version__
from tests.conftest import Ask

BATCHES = "--sample-rate 2000/67349 --steps 60"
RUN = f"--noise-multiplier 1.3 {BATCHES}"
EPOCHS = "--noise-multiplier 2 --sampling allocation --steps-per-epoch 12 --epochs 2"
SMALL = "qwen3-tiny-docstrings --set data.limit=30 --set training.batch_size=10 --set training.steps=2"
SMALL += " --set model.tokenizer=bytes --set privacy.delta=1e-4"
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


@pytest.mark.parametrize(
    "words",
    [
        f"epsilon {RUN} --delta 1e-6",
        f"epsilon {RUN} --delta 1e-6 --probes 32 --sketch 16 --secret-probes",
        f"epsilon {RUN} --delta 1e-6 --probes 32 --public-probes --analysis envelope --rank 40",
        f"epsilon {RUN} --delta 1e-6 --also gaussian:3 --also approximate:0.1:1e-9",
        f"epsilon {EPOCHS} --delta 1e-6",
        f"delta {RUN} --epsilon 2",
        f"tradeoff {RUN} --points 5",
        f"statement {RUN} --delta 1e-6 --unit 'one patient'",
        f"noise --advantage .3 {BATCHES} --delta 1e-5",
        "steps --epsilon 2 --noise-multiplier 1.3 --sample-rate 2000/67349 --delta 1e-5",
        f"probes {RUN} --delta 1e-5 --budget 9 --layers 64x32x16,8x8x8",
        f"probes {EPOCHS} --delta 1e-5 --budget 3 --neighbours add-remove",
    ],
)
def test_a_record_fed_back_gives_itself(ask: Ask, tmp_path: Path, words: str) -> None:
    first = ask(words)
    assert first["version"] == __version__
    assert ("--layers" in words) == any(each["cost"] for each in first.get("choices", ()))
    (tmp_path / "answer.json").write_text(json.dumps(first), encoding="utf-8")
    assert ask(words.split()[0], "--from-json", tmp_path / "answer.json") == first


def test_phases_noise_and_standard_input(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.toml").write_text(PHASES)
    first = ask("epsilon --delta 1e-5 --phases", tmp_path / "run.toml")
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(first)))
    assert ask("epsilon --from-json -") == first
    calibrated = ask("noise --epsilon 3 --delta 1e-5", BATCHES)
    (tmp_path / "noise.json").write_text(json.dumps(calibrated))
    again = ask("noise --from-json", tmp_path / "noise.json")
    # A transform's last digit may depend on where its arrays lie in memory.
    σ = pytest.approx(calibrated["noise_multiplier"], rel=1e-12)
    assert again["mechanism"] == calibrated["mechanism"] | {"noise_multiplier": σ}
    numbers = ("noise_multiplier", "mechanism", "epsilon")
    assert {name: again[name] for name in again if name not in numbers} == {
        name: calibrated[name] for name in calibrated if name not in numbers
    }
    spent = ask("epsilon --from-json", tmp_path / "noise.json")
    assert spent["epsilon"] == calibrated["epsilon"]
    other = ask("epsilon --delta 1e-9 --from-json", tmp_path / "noise.json")
    assert other["epsilon"]["lower"] > spent["epsilon"]["upper"]


def test_a_run_that_was_planned_is_one_whose_privacy_can_be_asked_for(ask: Ask, tmp_path: Path) -> None:
    planned = ask("train --dry-run", SMALL)
    (tmp_path / "planned.json").write_text(json.dumps(planned))
    spent = ask("epsilon --from-json", tmp_path / "planned.json")
    assert (spent["steps"], spent["delta"], spent["neighbours"]) == (2, 1e-4, "zero-out")
    assert spent["epsilon"]["upper"] == pytest.approx(planned["epsilon_after"]["2"], rel=1e-9)
    trained = ask("train", SMALL, "--out", tmp_path / "run")
    assert trained["config"] == planned["config"]
    assert trained["phases"] == [{"mechanism": spent["mechanism"], "steps": 2}]
    (tmp_path / "trained.json").write_text(json.dumps(trained))
    charged = ask("epsilon --from-json", tmp_path / "trained.json")
    assert charged["epsilon"] == spent["epsilon"]
