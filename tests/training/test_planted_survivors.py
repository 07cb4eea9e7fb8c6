"""Bugs that `python -m audits mutations` planted and that no test saw; each of these fails under one of them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opacus")

import torch

from dprmt import ParameterError
from dprmt.training.clipping import NoisySumOptimizer
from dprmt.training.clipping._optimizer import sum_of
from dprmt.training.harness import ItemTask, Observer, train_task
from dprmt.training.randomness import SecureRandom, _secure
from dprmt.training.recipes import Settings
from dprmt.training.subspaces import Subspaces

PRIVACY = {"noise_multiplier": 1.0, "delta": 1e-5}
SETTINGS = Settings(
    privacy=PRIVACY,
    optimizer={"name": "adam", "learning_rate": 0.1},
    training={"batch_size": 10, "steps": 4, "checkpoint_every": 1},
)


def losses(model: torch.nn.Module, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(torch.eye(4)[labels]), labels, reduction="none")


def start(out: Path, settings: Settings = SETTINGS, **options: Any) -> Any:
    torch.manual_seed(0)
    task = ItemTask([0, 1, 2] * 10, torch.tensor, losses)
    return train_task(torch.nn.Linear(4, 3), task, settings, out, **options)


class StopAfter(Observer):
    """Ends a run early."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def after_step(self, run: Any, record: Any) -> None:
        if record.step == self._steps:
            run.stop()


def noisy(parameters: Sequence[torch.nn.Parameter], kind: Any = NoisySumOptimizer, **options: Any) -> Any:
    inner = torch.optim.SGD(parameters, lr=1.0)
    return kind(inner, noise_multiplier=3.0, max_grad_norm=2.0, expected_batch_size=4, **options)


def test_everything_released_is_noisy() -> None:
    """σC/L = 1.5 on matrices, vectors and single numbers alike."""
    shapes = [(40, 50), (2000,), (1,)]
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    optimizer = noisy(parameters, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    for parameter in parameters[:2]:
        assert abs(float(parameter.detach().std()) / 1.5 - 1) < 0.1
    assert float(parameters[2].detach()) != 0.0


GENERATORS = {
    "default": lambda: None,
    "torch": lambda: torch.Generator().manual_seed(0),
    "secure": lambda: SecureRandom(bytes(32)),
}


def with_generator(source: str, keeps_sums: bool, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    parameter = torch.nn.Parameter(torch.zeros(200, 100, dtype=dtype))
    optimizer = noisy([parameter], generator=GENERATORS[source]())
    optimizer.keeps_sums = keeps_sums
    return parameter, optimizer


@pytest.mark.parametrize("keeps_sums", [True, False])
@pytest.mark.parametrize("source", GENERATORS)
def test_noise_of_a_bfloat16_parameter_has_all_digits_of_its_sum(source: str, keeps_sums: bool) -> None:
    """Of noise that is itself of 8 bits, sums of small numbers show the bits of what is added."""
    parameter, optimizer = with_generator(source, keeps_sums, torch.bfloat16)
    total = sum_of(parameter)
    assert total.dtype == torch.float32
    noise = optimizer._noisy_sum(total.clone())
    assert noise.dtype == torch.float32
    short = noise.to(torch.bfloat16).float() == noise
    assert float(short.float().mean()) < 0.01
    assert abs(float(noise.std()) / 6.0 - 1) < 0.03


@pytest.mark.parametrize("keeps_sums", [True, False])
@pytest.mark.parametrize("source", GENERATORS)
def test_noise_follows_schedules_of_sigma_and_of_the_clipping_norm(source: str, keeps_sums: bool) -> None:
    parameter, optimizer = with_generator(source, keeps_sums)
    for sigma, bound in ((3.0, 2.0), (1.0, 2.0), (1.0, 5.0), (0.25, 0.5), (3.0, 2.0)):
        optimizer.noise_multiplier, optimizer.max_grad_norm = sigma, bound
        optimizer.add_noise()
        assert abs(float(parameter.grad.std()) / (sigma * bound) - 1) < 0.03, (sigma, bound)
        optimizer.forget()


class Known(SecureRandom):
    """Always the same noise."""

    noise = 2.0**-24 + 2.0**-50

    def normal(self, shape: Sequence[int], *, std: float = 1.0, device: torch.device | str = "cpu") -> torch.Tensor:
        return torch.full(tuple(shape), self.noise, dtype=torch.float64)


@pytest.mark.parametrize("keeps_sums", [True, False])
def test_secure_noise_is_rounded_once_together_with_the_sum(keeps_sums: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 + 2⁻²⁴ + 2⁻⁵⁰ lies above the middle of two floats; noise that is rounded first lies on it, and goes to 1."""
    monkeypatch.setattr(_secure._Workspace, "put_sums", lambda self, out, scale: out.fill_(Known.noise))
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = noisy([parameter], generator=Known())
    optimizer.keeps_sums = keeps_sums
    sum_of(parameter).add_(1.0)
    optimizer.add_noise()
    assert parameter.grad is not None
    assert torch.equal(parameter.grad, torch.full((3,), 1 + 2.0**-23))


def test_one_process_adds_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor, op: None)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = noisy([parameter], shared=True)
    total = torch.arange(3.0)
    assert torch.equal(optimizer._noisy_sum(total), total)
    optimizer.rank = 0
    assert not torch.equal(optimizer._noisy_sum(total), total)


def test_a_seed_that_somebody_knows_is_no_secret(tmp_path: Path) -> None:
    for name, seed in (("known", 5), ("secret", None)):
        start(tmp_path / name, noise_seed=seed)
        assert json.loads((tmp_path / name / "summary.json").read_text())["noise_is_secret"] is (seed is None)


def test_a_run_with_a_known_seed_once_never_becomes_secret(tmp_path: Path) -> None:
    start(tmp_path / "run", noise_seed=5, observers=[StopAfter(2)])
    assert start(tmp_path / "run", resume=True).finished
    for name in ("run.json", "summary.json"):
        assert not json.loads((tmp_path / "run" / name).read_text())["noise_is_secret"]


def test_another_noise_multiplier_in_run_json_is_refused_before_anything_is_charged(tmp_path: Path) -> None:
    """No ledger and no checkpoint yet: nothing else contradicts it."""
    start(tmp_path / "whole", observers=[StopAfter(1)])
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text((tmp_path / "whole" / "config.toml").read_text())
    document = json.loads((tmp_path / "whole" / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(document))
    assert start(run, resume=True).finished  # as it was it goes on
    for file in run.iterdir():
        if file.name not in ("config.toml", "run.json"):
            file.unlink() if file.is_file() else [inner.unlink() for inner in file.iterdir()] and file.rmdir()
    document["noise_multiplier"] = 10.0
    document["step"]["noise_multiplier"] = 10.0
    (run / "run.json").write_text(json.dumps(document))
    with pytest.raises(ParameterError, match=r"privacy\.noise_multiplier"):
        start(run, resume=True)


def test_orthonormal_frames_have_no_preferred_side() -> None:
    """The factor Q as LAPACK returns it has a first entry of one sign."""
    layer, frames = torch.nn.Linear(5, 3), []
    for seed in range(400):
        frames.append(Subspaces(layer, rank=3, projector="stiefel", seed=seed).projector(layer.weight))
    signs = torch.stack(frames).sign().mean(0)
    assert float(signs.abs().max()) < 5 / math.sqrt(400)


def test_every_layer_has_a_projector_of_its_own() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(9, 6), torch.nn.Linear(6, 9))
    for kind in ("gaussian", "stiefel"):
        subspaces = Subspaces(model, rank=2, projector=kind, seed=0)
        assert not torch.equal(subspaces.projector(model[0].weight), subspaces.projector(model[1].weight))


def test_another_delta_or_noise_is_another_ledger(tmp_path: Path) -> None:
    digests = set()
    for number, changes in enumerate(({}, {"delta": 1e-6}, {"noise_multiplier": 1.1})):
        start(tmp_path / str(number), settings=replace(SETTINGS, privacy={**PRIVACY, **changes}))
        lines = (tmp_path / str(number) / "privacy.jsonl").read_text().splitlines()
        digests |= {json.loads(line)["mechanism"] for line in lines}
    assert len(digests) == 3
