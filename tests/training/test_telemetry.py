"""Telemetry: what it reads is right, is all that it reads, and survives a stop."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opacus.optimizers import DPOptimizer

from audits.steps import make_private
from dprmt import ParameterError
from dprmt.cli import main
from dprmt.report import write_run_report
from dprmt.report.measurements import _run, private_gradients
from dprmt.training.denoising import Denoising, DenoisingStep
from dprmt.training.harness import ItemTask, read_metrics, run_in_memory, train_task
from dprmt.training.optimizers import DPAdamBC
from dprmt.training.recipes import Settings
from dprmt.training.telemetry import Telemetry
from tests.training.tiny_recipe import StopAfter

S = 0.3
OPTIMIZERS = {
    "gd": partial(torch.optim.SGD, lr=0.1),
    "gd, decay": partial(torch.optim.SGD, lr=0.1, weight_decay=0.2),
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.1),
    "nesterov": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": partial(torch.optim.Adam, lr=0.05, weight_decay=0.1),
    "adamw": partial(torch.optim.AdamW, lr=0.05, weight_decay=0.1),
    "adambc": partial(DPAdamBC, lr=0.02, noise_variance=S**2, floor=1e-2, weight_decay=0.1),
}


def noisy_descent(name, seed, steps=30, d=400, every=30, **options):
    """A quadratic under an optimizer: telemetry, the places, the Hessian, the readings of z."""
    generator = torch.Generator().manual_seed(seed)
    H = torch.linspace(0.1, 1.0, d)
    x = torch.nn.Parameter(torch.ones(d))
    optimizer = OPTIMIZERS[name]([x])
    telemetry = Telemetry(optimizer, {"x": x}, S, every=every, window=10, **options)
    places, zs = [], []
    for _ in range(steps):
        places.append(x.detach().clone())
        x.grad = H * x.detach() + S * torch.randn(d, generator=generator)
        optimizer.step()
        zs.append(telemetry.last.get("z"))
    return telemetry, places, H, zs


@pytest.mark.parametrize("name", ["gd", "momentum", "adam", "adambc"])
def test_readings_hold_the_truth(name):
    """Of 40 runs: the interval of the signal holds it in at least 36, as a 95 % one nearly always does; each z is the
    true slope along the update plus a standard normal.
    """
    hits, errors = 0, []
    for seed in range(40):
        telemetry, places, H, zs = noisy_descent(name, seed)
        window = [(H * x).square().sum() / S**2 for x in places[-10:]]
        share, found = float(sum(window) / (sum(window) + 10 * 400)), telemetry.last["signal"]
        assert found["x"] == found["*"]
        hits += found["*"]["low"] <= share <= found["*"]["high"]
        updates = [(x, y - x) for x, y in itertools.pairwise(places)]
        slopes = [-float((H * (x + u)) @ u / (S * u.norm())) for x, u in updates]
        errors += [z - slope for z, slope in zip(zs[1:], slopes, strict=True)]
        assert telemetry.last["z_window"] == pytest.approx(sum(zs[-10:]) / 10**0.5)
    assert hits >= 36
    assert abs(np.mean(errors)) < 3.5 / len(errors) ** 0.5
    assert 0.93 < np.std(errors) < 1.07


def test_whatever_moves_the_parameters_counts():
    """Between two steps, not the optimizer alone; and a state is of the parameters that it was read from."""
    telemetry, places, H, _ = noisy_descent("gd", 0, steps=3)
    x = torch.nn.Parameter(torch.ones(400))
    optimizer = torch.optim.RMSprop([x], lr=0.1)
    other = Telemetry(optimizer, {"x": x}, S, every=1)
    for place in places[:2]:
        x.data.copy_(place)
        x.grad = H * place
        optimizer.step()
        x.data.copy_(places[1])
    update = places[1] - places[0]
    assert other.last["z"] == pytest.approx(float(-(H * places[1]) @ update / (S * update.norm())), rel=1e-4)
    y = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(ParameterError, match="state"):
        Telemetry(torch.optim.SGD([y], lr=0.1), {"y": y}, S).load_state_dict(telemetry.state_dict())


class Clean(torch.Tensor):
    """A clean gradient: whatever uses it is detected."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"a clean gradient was used by {func}")


def clean(values):
    return torch.Tensor._make_subclass(Clean, values)


@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_readings_follow_from_what_was_released_alone(name):
    """A private run's noisy gradients, given to an optimizer that has never seen model or data, give the same readings:
    so nothing, a distinguishing game least of all, finds more in telemetry than in the gradients.
    """
    torch.manual_seed(1)
    model = torch.nn.Linear(6, 4)
    start = {key: p.detach().clone() for key, p in model.named_parameters()}
    sizes = {"clipping_norm": 1.0, "noise_multiplier": 2.0, "expected_batch_size": 10.0}
    step = make_private(model, OPTIMIZERS[name](model.parameters()), norms="exact", **sizes)
    options = {"every": 5, "window": 5}
    telemetry = Telemetry.attach(step.optimizer, model.named_parameters(), **options)
    released, read = [], []
    step.optimizer.original_optimizer.register_step_pre_hook(
        lambda *_: released.append({key: p.grad.clone() for key, p in model.named_parameters()})
    )
    for number in range(25):
        step.accumulate(step.model(torch.randn(8, 6)).square().sum(1), samples=range(8), step=number)
        step.step()
        read.append(telemetry.last)
    alone = {key: torch.nn.Parameter(value) for key, value in start.items()}
    optimizer = OPTIMIZERS[name](alone.values())
    outside = Telemetry(optimizer, alone, 0.2, **options)
    for gradients_, expected in zip(released, read, strict=True):
        for key, p in alone.items():
            p.grad = gradients_[key]
        optimizer.step()
        assert outside.last == expected
    assert {"z", "z_window", "signal"} == read[-1].keys()


def test_before_a_denoiser_it_reads_what_was_released():
    """Energies are those of the noisy gradient."""
    W = torch.nn.Parameter(torch.zeros(40, 60))
    inner = torch.optim.SGD([W], lr=0.1)
    private = DPOptimizer(inner, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=10)
    telemetry = Telemetry.attach(private, {"W": W}, every=1, window=2)
    denoiser = DenoisingStep(private, {"W": W}, Denoising())
    noisy = []
    denoiser.observers["test"] = lambda before, after, sigma: noisy.append((before["W"].clone(), after["W"].clone()))
    for _ in range(3):
        W.grad_sample = 5 * torch.ones(30, 40, 60)
        private.step()
        private.zero_grad()
    assert not torch.equal(*noisy[-1])
    energy = sum(float(before.square().sum()) for before, _ in noisy[-2:]) / 0.01
    share = 1 - 2 * 2400 / energy
    assert telemetry.last["signal"]["W"]["value"] == pytest.approx(share, rel=1e-4)
    assert telemetry.last["z"] > 3


def settings(optimizer: str = "adam", **changes: Any) -> Settings:
    return Settings(
        privacy={"noise_multiplier": 1.0, "delta": 1e-5},
        optimizer={"name": optimizer, "learning_rate": 0.1, "rank": 2},
        **{"training": {"batch_size": 10, "steps": 12}} | changes,
    )


def losses(model: Any, labels: Any) -> Any:
    return torch.nn.functional.cross_entropy(model(torch.eye(8)[labels]), labels, reduction="none")


def task(times: int = 10) -> ItemTask:
    return ItemTask([0, 1, 2, 3] * times, torch.tensor, losses)


def test_a_resumed_run_folder_reads_like_one_that_was_not_stopped(tmp_path):
    """In the metrics, and not under "private"."""
    entries = []
    for folder, stops in (("one", []), ("pieces", [1, 6])):
        for number, stop in enumerate([*stops, None]):
            torch.manual_seed(0)
            result = train_task(
                torch.nn.Linear(8, 4),
                task(),
                settings(telemetry={"every": 3, "window": 3}),
                tmp_path / folder,
                noise_seed=3,
                resume=number > 0,
                observers=[] if stop is None else [StopAfter(stop)],
            )
        assert result.finished
        entries.append([entry["telemetry"] for entry in read_metrics(tmp_path / folder) if "telemetry" in entry])
    assert entries[0] == entries[1]
    assert len(entries[0]) == 11
    assert {"signal", "z", "z_window"} <= entries[0][-1].keys()


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({}, {"z", "signal", "z_window"}),
        ({"optimizer.name": "grape"}, {"signal"}),
        ({"denoising.method": "paper"}, {"z", "signal", "z_window"}),
        ({"optimizer.name": "grape", "denoising.method": "paper"}, {"signal"}),
        ({"telemetry.on": False}, None),
        ({"privacy.noise_multiplier": None, "privacy.clip_only": True}, None),
    ],
)
def test_what_a_run_says_of_itself(changes, keys):
    with run_in_memory(torch.nn.Linear(8, 4), task(), settings().with_changes(changes)) as run:
        last = [record.entry() for record in run.steps()][-1]
    assert last.get("telemetry", {}).keys() == (keys or set())


@pytest.mark.parametrize("projector", ["gaussian", "svd"])
def test_signal_of_projected_weights_is_that_of_the_entries_released(projector):
    """In pure noise intervals cover 0 and estimates are near it."""
    values = settings(telemetry={"every": 1, "window": 8}).to_dict()
    values["optimizer"] |= {"name": "grape", "rank": 2, "projector": projector, "refresh_every": 4}
    values["privacy"] |= {"noise_multiplier": 1e6}
    shares = []
    for seed in range(4):  # one run's mean has a standard deviation of 0.2
        with run_in_memory(torch.nn.Linear(8, 4), task(), Settings(**values), noise_seed=seed) as run:
            read = [record.telemetry for record in run.steps()]
        shares += [reading["signal"]["weight"] for reading in read if "signal" in reading]
    assert len(shares) > 16
    assert all(share["low"] == 0 < share["high"] for share in shares)
    assert abs(np.mean([share["value"] for share in shares])) < 0.3


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"every": 0}, "every"),
        ({"window": 1}, "window"),
        ({"sigma": -1.0}, "sigma"),
        ({"named_parameters": {}}, "named_parameters"),
    ],
)
def test_bad_input(options, name):
    x = torch.nn.Parameter(torch.ones(3))
    given = {"named_parameters": {"x": x}, "sigma": 1.0, **options}
    with pytest.raises(ParameterError, match=name):
        Telemetry(torch.optim.SGD([x], lr=0.1), **given)


def of_a_page(optimizer: str = "gdm", steps: int = 40, **telemetry: Any) -> Settings:
    read = {"every": 5, "window": 10} | telemetry
    longer = settings(optimizer, training={"batch_size": 50, "steps": steps}, telemetry=read)
    return longer.with_changes({"optimizer.learning_rate": 0.05})


def model(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.ReLU(), torch.nn.Linear(12, 4))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    train_task(model(), task(50), of_a_page(), folder, noise_seed=0)
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


def test_where_little_is_read_the_page_says_so(tmp_path: Path) -> None:
    """Of projections there is no slope; without telemetry there is no page."""
    train_task(model(), task(50), of_a_page("grape", 10), tmp_path / "grape", noise_seed=0)
    learning, layers = write_run_report(tmp_path / "page", tmp_path / "grape").sections
    assert learning.sentences
    assert layers.sentences[0].startswith("In ")
    train_task(model(), task(50), of_a_page(steps=2, on=False), tmp_path / "silent", noise_seed=0)
    with pytest.raises(ParameterError, match=r"run must be one with telemetry, and some .*, got 0"):
        write_run_report(tmp_path / "page", tmp_path / "silent")


@pytest.mark.parametrize(
    "words", [["--recipe", "minilm-sst2"], ["--steps", "3"], ["--set", "training.steps=3"], ["--run", "nowhere"]]
)
def test_the_command_refuses_what_does_not_go_together(run: Path, tmp_path: Path, words: list[str], capsys) -> None:
    assert main(["report", "--run", str(run), "--out", str(tmp_path / "page"), *words]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "page").exists()


@pytest.mark.parametrize("optimizer", ["gdm", "adam"])
def test_the_truth_is_that_of_the_clean_gradients(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held against a literal sum over the run, of the sums that the optimizer was about to add noise to."""
    network, clean = model(), list[float]()
    experiment = _run.Experiment("toy", network, task(50), of_a_page(optimizer, every=1, window=12))
    made = _run.run_in_memory

    @contextmanager
    def watched(*given: Any, **options: Any) -> Iterator[Any]:
        with made(*given, **options) as run:
            weight = network[0].weight
            hook = lambda *_: clean.append(float(weight.summed_grad.double().square().sum()))  # noqa: E731
            run.private.optimizer.register_step_pre_hook(hook)
            yield run

    monkeypatch.setattr(_run, "run_in_memory", watched)
    steps = list(private_gradients(experiment, steps=12))
    truth = _run.signal_shares(steps)
    assert len(steps) == len(clean) == 12
    assert truth["0.weight"] == pytest.approx(sum(clean) / (sum(clean) + 12 * 96), rel=1e-5)
    read = (steps[-1].telemetry or {})["signal"]["0.weight"]
    assert read["low"] <= truth["0.weight"] <= read["high"]
