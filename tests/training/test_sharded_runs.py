"""Runs in a folder whose model no process holds: charged by one, resumed by another number of them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from dprmt import ParameterError
from dprmt.training.harness import ItemTask, Observer, load_parameters, train_task
from dprmt.training.recipes import Settings
from tests.training.sharded import in_processes, losses, network

TEXTS = torch.randint(11, (40, 4), generator=torch.Generator().manual_seed(5))


class StopsAfter(Observer):
    """Ends a start."""

    def __init__(self, step: int) -> None:
        self._step = step

    def after_step(self, run: Any, record: Any) -> None:
        if record.step == self._step:
            run.stop()


class Scored(ItemTask):
    """With a score, whose forward pass is everybody's work."""

    model: torch.nn.Module

    def score(self) -> dict[str, float]:
        with torch.no_grad():
            return {"loss": float(losses(self.model, TEXTS[:8]).mean())}


def settings(strategy: str = "fsdp", *, noise: float | None = None, **changes: Any) -> Settings:
    privacy: dict[str, Any] = {"clip_only": True} if noise is None else {"noise_multiplier": noise}
    values: dict[str, Any] = {
        "privacy": privacy | {"delta": 1e-5, "clipping_norm": 0.05, "norms": {"kind": "ghost"}},
        "optimizer": {"name": "adam", "learning_rate": 0.1},
        "training": {"batch_size": 4, "micro_batch_size": 2, "steps": 6},
        "evaluation": {"every": 1},
        "denoising": {},
        "distributed": {"strategy": strategy},
    }
    return Settings(**{name: value | changes.get(name, {}) for name, value in values.items()})


def start(
    rank: int, size: int, folder: str, config: Settings, *, stop: int | None = None, resume: bool = False
) -> dict[str, Any]:
    model = network()
    task = Scored(list(TEXTS), torch.stack, losses)
    task.model = model
    observers = [] if stop is None else [StopsAfter(stop)]
    seed = 3 if config.privacy.clip_only else None
    try:
        result = train_task(model, task, config, folder, resume=resume, noise_seed=seed, observers=observers)
    except ParameterError as error:
        return {"refused": str(error)}
    return {"steps": result.steps, "charged": result.charged, "epsilon": result.epsilon}


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_a_run_is_that_of_one_process_and_goes_on_in_another_number(tmp_path: Path) -> None:
    one, several = tmp_path / "one", tmp_path / "several"
    start(0, 1, str(one), settings("replicated"), stop=3)
    start(0, 1, str(one), settings("replicated"), resume=True)
    first = in_processes(2, partial(start, folder=str(several), config=settings(), stop=3), tmp_path)
    assert [found["steps"] for found in first] == [3, 3]
    second = in_processes(3, partial(start, folder=str(several), config=settings(), resume=True), tmp_path)
    assert [found["steps"] for found in second] == [6, 6, 6]
    wanted, found = load_parameters(one), load_parameters(several)
    assert wanted.keys() == found.keys()
    for name, value in wanted.items():
        assert value.shape == found[name].shape
        assert torch.allclose(value, found[name], rtol=1e-6, atol=1e-7), name
    for own, other in zip(lines(one, "metrics.jsonl"), lines(several, "metrics.jsonl"), strict=True):
        assert own["noisy_gradient_norm"] == pytest.approx(other["noisy_gradient_norm"], rel=1e-6)
        if own["private"]["loss"] is None:  # nobody was drawn
            assert other["private"]["loss"] is None
        else:
            assert own["private"]["loss"] == pytest.approx(other["private"]["loss"], rel=1e-6)


def test_steps_are_charged_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    found = in_processes(2, partial(start, folder=str(folder), config=settings(noise=1.0)), tmp_path)
    charged = lines(folder, "privacy.jsonl")
    assert found[0] == found[1]
    assert found[0]["charged"] == found[0]["steps"] == len(charged) == 6
    assert json.loads((folder / "run.json").read_text())["processes"] == 2


REFUSED = {
    "training.spectra_every must be None": {"training": {"spectra_every": 1}},
    "denoising.method must be 'none'": {"denoising": {"method": "paper"}},
    "subspaces must be left out": {"optimizer": {"name": "grape", "rank": 2}},
}


def refused(rank: int, size: int, folder: str) -> list[str]:
    return [
        start(rank, size, f"{folder}-{place}", settings(noise=1.0, **changes)).get("refused", "taken")
        for place, changes in enumerate(REFUSED.values())
    ]


def test_what_needs_a_whole_gradient_is_refused(tmp_path: Path) -> None:
    for found in in_processes(2, partial(refused, folder=str(tmp_path / "run")), tmp_path):
        for words, said in zip(REFUSED, found, strict=True):
            assert said.startswith(words), said


def test_one_process_has_nothing_to_share(tmp_path: Path) -> None:
    assert "distributed.strategy" in start(0, 1, str(tmp_path / "run"), settings(noise=1.0))["refused"]
