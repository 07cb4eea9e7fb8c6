"""The page of a run: four questions from released values, and predicted against measured on public data."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dprmt.cli import main
from dprmt.report import write_run_report

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from dprmt.report.measurements import TelemetryTruth  # noqa: E402
from dprmt.training.harness import ItemTask, run_in_memory, train_task  # noqa: E402
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
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TelemetryTruth]:
    folder, look = tmp_path_factory.mktemp("runs") / "run", TelemetryTruth()
    train_task(model(), TASK, settings(), folder, noise_seed=0, observers=[look])
    return folder, look


def test_predicted_stands_beside_measured(run: tuple[Path, TelemetryTruth], tmp_path: Path) -> None:
    report = write_run_report(tmp_path / "page", run[0], truth=run[1].private_steps)
    page = report.page.read_text(encoding="utf-8")
    assert "no ε covers this page" in page
    assert [any("Measured on clean gradients" in s for s in section.sentences) for section in report.sections[:3]] == [
        True
    ] * 3
    (table,) = report.sections[3].tables
    assert {row[3] for row in table.rows} != {"–"}


@pytest.mark.parametrize("optimizer", ["gd", "gdm", "adam"])
def test_the_truth_is_that_of_the_clean_gradients(optimizer: str) -> None:
    """Held against a literal sum over the run, from per-sample gradients of the batches that were drawn."""
    look, network = TelemetryTruth(), model()
    clean: list[dict[str, Any]] = []
    with run_in_memory(network, TASK, settings(optimizer, training__steps=12), noise_seed=3, observers=[look]) as made:
        inner = made.prepared.optimizer
        places: list[dict[str, Any]] = []

        def before(*_: object) -> None:
            clean.append({name: p.summed_grad.clone() / 50 for name, p in network.named_parameters()})
            places.append({name: p.detach().clone() for name, p in network.named_parameters()})

        inner.register_step_pre_hook(before)
        list(made.steps())

    def inner_product(a: dict[str, Any], b: dict[str, Any]) -> float:
        return float(sum((a[name].double() * b[name].double()).sum() for name in a))

    steps = [{name: b[name] - a[name] for name in a} for a, b in pairwise(places)]
    change = sum(
        (inner_product(clean[k], steps[k]) + inner_product(clean[k + 1], steps[k])) / 2 for k in range(3, 9)
    )  # the updates of steps 4 to 9, read at step 10
    truth = look.private_steps[9]["truth"]
    assert truth["change"] == pytest.approx(change, rel=1e-4)
    share = [inner_product(g, g) / (1 / 50) ** 2 for g in clean[:10]]
    size = sum(p.numel() for p in network.parameters())
    assert truth["signal"]["*"] == pytest.approx(sum(share) / (sum(share) + 10 * size), rel=1e-5)
    z = -inner_product(clean[9], steps[8]) * 50 / math.sqrt(inner_product(steps[8], steps[8]))
    assert truth["z"] == pytest.approx(z, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(
    "arguments", [["--recipe", "minilm-sst2"], ["--steps", "3"], ["--set", "training.steps=3"], ["--run", "nowhere"]]
)
def test_the_command_refuses_what_does_not_go_together(
    run: tuple[Path, TelemetryTruth], tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--run", str(run[0]), "--out", str(tmp_path), *arguments]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
