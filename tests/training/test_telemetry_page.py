"""The page of a run: two questions from released values, and the truth measured on public data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dprmt import ParameterError
from dprmt.cli import main
from dprmt.report import write_run_report

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from dprmt.report.measurements import _run, private_gradients  # noqa: E402
from dprmt.training.harness import ItemTask, train_task  # noqa: E402
from dprmt.training.recipes import Settings  # noqa: E402


def losses(model: Any, labels: Any) -> Any:
    return torch.nn.functional.cross_entropy(model(torch.eye(8)[labels]), labels, reduction="none")


TASK = ItemTask([0, 1, 2, 3] * 50, torch.tensor, losses)


def settings(optimizer: str = "gdm", **changes: Any) -> Settings:
    sections: dict[str, Any] = {
        "privacy": {"noise_multiplier": 1.0, "delta": 1e-5},
        "optimizer": {"name": optimizer, "learning_rate": 0.05},
        "training": {"batch_size": 50, "steps": 40},
        "telemetry": {"every": 5, "window": 10},
    }
    return Settings(**sections).with_changes({key.replace("__", "."): value for key, value in changes.items()})


def model(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.ReLU(), torch.nn.Linear(12, 4))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    train_task(model(), TASK, settings(), folder, noise_seed=0)
    return folder


def test_the_page_of_a_run_asks_two_questions(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command line; nothing that is private in the metrics is in it, and nothing of it needs truth."""
    assert main(["report", "--run", str(run), "--out", str(tmp_path / "page")]) == 0
    printed = capsys.readouterr().out
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    numbers = json.loads((tmp_path / "page" / "numbers.json").read_text(encoding="utf-8"))
    questions = list(numbers["sections"])
    assert [question.endswith("?") and question in page and question in printed for question in questions] == [True] * 2
    assert page.count("<figure>") == 2
    assert "it costs no privacy" in page.replace("&nbsp;", " ")
    assert "clean gradients" not in page
    private = [json.loads(line)["private"]["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert not any(f"{loss:.4f}" in page for loss in private)
    assert main(["report", "--run", str(run), "--out", str(tmp_path / "page"), "--json"]) == 0
    assert [section["title"] for section in json.loads(capsys.readouterr().out)["sections"]] == questions


@pytest.mark.parametrize("optimizer", ["gdm", "adam"])
def test_the_truth_is_that_of_the_clean_gradients(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held against a literal sum over the run, of the sums that the optimizer was about to add noise to."""
    network, clean = model(), list[float]()
    experiment = _run.Experiment("toy", network, TASK, settings(optimizer, telemetry={"every": 1, "window": 12}))
    made = _run.run_in_memory

    @contextmanager
    def watched(*given: Any, **options: Any) -> Iterator[Any]:
        with made(*given, **options) as run:
            weight = network[0].weight
            hook = lambda *_: clean.append(float(weight.summed_grad.double().square().sum()))  # noqa: E731
            run.prepared.optimizer.register_step_pre_hook(hook)
            yield run

    monkeypatch.setattr(_run, "run_in_memory", watched)
    steps = list(private_gradients(experiment, steps=12))
    truth = _run.signal_shares(steps)
    assert len(steps) == len(clean) == 12
    assert truth["0.weight"] == pytest.approx(sum(clean) / (sum(clean) + 12 * 96), rel=1e-5)
    read = (steps[-1].telemetry or {})["signal"]["0.weight"]
    assert read["low"] <= truth["0.weight"] <= read["high"]


def test_where_little_is_read_the_page_says_so(tmp_path: Path) -> None:
    """Of projections there is no slope; without telemetry there is no page."""
    train_task(
        model(), TASK, settings("grape", optimizer__rank=2, training__steps=10), tmp_path / "grape", noise_seed=0
    )
    learning, layers = write_run_report(tmp_path / "page", tmp_path / "grape").sections
    assert learning.sentences
    assert layers.sentences[0].startswith("In ")
    train_task(model(), TASK, settings(telemetry={"on": False}, training__steps=2), tmp_path / "silent", noise_seed=0)
    with pytest.raises(ParameterError, match=r"run must be one with telemetry, and some .*, got 0"):
        write_run_report(tmp_path / "page", tmp_path / "silent")


@pytest.mark.parametrize(
    "arguments", [["--recipe", "minilm-sst2"], ["--steps", "3"], ["--set", "training.steps=3"], ["--run", "nowhere"]]
)
def test_the_command_refuses_what_does_not_go_together(
    run: Path, tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--run", str(run), "--out", str(tmp_path), *arguments]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
