"""Bugs that were planted once and that no test saw; each of these fails under one of them."""

from __future__ import annotations

import base64
import json
import math
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from audits.steps import private_sgd
from dprmt import ParameterError
from dprmt.accounting import Poisson
from dprmt.training.clipping import NoisySumOptimizer
from dprmt.training.clipping._optimizer import sum_of
from dprmt.training.harness import ItemTask, read_metrics, run_in_memory, train_task
from dprmt.training.harness._checkpoint import load_checkpoint
from dprmt.training.randomness import SecureRandom, _secure
from dprmt.training.recipes import Settings
from dprmt.training.subspaces import Subspaces
from tests.training.tiny_recipe import StopAfter

ONE_HOT = torch.eye(4)


def losses(model: torch.nn.Module, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(ONE_HOT[labels]), labels, reduction="none")


def task() -> ItemTask:
    return ItemTask([0, 1, 2] * 10, torch.tensor, losses)


def settings(**changes: Any) -> Settings:
    return Settings(
        privacy={"noise_multiplier": 1.0, "delta": 1e-5, **changes.pop("privacy", {})},
        optimizer={"name": "adam", "learning_rate": 0.1, **changes.pop("optimizer", {})},
        training={"batch_size": 10, "steps": 4, **changes.pop("training", {})},
        **changes,
    )


def network(outputs: int = 3) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(4, outputs)


def spellings(secret: bytes) -> list[bytes]:
    numbers = [str(int.from_bytes(secret, order)).encode() for order in ("big", "little")]
    texts = [secret.hex().encode(), base64.b64encode(secret), base64.urlsafe_b64encode(secret), repr(secret).encode()]
    return [secret, *texts, texts[0].upper(), *numbers, json.dumps(list(secret)).encode(), str(list(secret)).encode()]


def test_no_file_of_a_run_holds_its_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, real = [], secrets.token_bytes

    def token_bytes(count: int | None = None) -> bytes:
        drawn.append(real(count))
        return drawn[-1]

    monkeypatch.setattr(secrets, "token_bytes", token_bytes)
    for resume in (False, True):
        train_task(network(), task(), settings(), tmp_path / "run", resume=resume)
    long = [secret for secret in drawn if len(secret) >= 16]
    assert len(long) >= 2  # one for each start
    content = b"\0".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert len(content) > 1000
    for secret in long:
        assert not any(spelling in content for spelling in spellings(secret))


def test_what_stands_at_the_top_of_the_metrics_is_known(tmp_path: Path) -> None:
    train_task(network(), task(), settings(), tmp_path / "run")
    for entry in read_metrics(tmp_path / "run"):
        known = {"private", "step", "attempt", "epsilon", "neighbours", "learning_rate", "noisy_gradient_norm"}
        assert set(entry) == known | {"telemetry"}


def test_the_sum_is_rounded_after_the_noise_only() -> None:
    """In bfloat16, sum and noise are added in float32."""
    model = torch.nn.Linear(64, 1, bias=False).to(torch.bfloat16)
    torch.nn.init.zeros_(model.weight)
    std = 1e-3
    private = private_sgd(model, norms="exact", noise_multiplier=std, noise_generator=torch.Generator().manual_seed(3))
    inputs = torch.linspace(0.1, 1.0, 64).to(torch.bfloat16)[None]
    private.accumulate(3.0 * private.model(inputs).float().flatten(), samples=[0], step=0)
    total = model.weight.summed_grad.clone()
    assert total.dtype == torch.float32
    private.step()
    noise = torch.normal(0.0, std, (1, 64), generator=torch.Generator().manual_seed(3))
    moved = -model.weight.detach()
    assert torch.equal(moved, (total + noise).to(torch.bfloat16))
    # Rounded before the noise it would be another number.
    assert not torch.equal(moved, (total.to(torch.bfloat16) + noise).to(torch.bfloat16))


def test_accountant_and_sampler_are_told_the_same_rate() -> None:
    """10 of 30 is no multiple of 2⁻²⁴: the sampler's own rate is the one charged, and never the smaller L/N."""
    with run_in_memory(network(), task(), settings()) as run:
        charged, sampling = run.private.mechanism.sample_rate, run.private._draws._sampling
    assert sampling == Poisson(charged)
    assert (charged * 2**24).is_integer()
    assert 1 / 3 < charged < 1 / 3 + 2**-24


def start(out: Path, privacy: dict[str, float] | None = None, **options: Any) -> Any:
    chosen = settings(privacy=privacy or {}, training={"checkpoint_every": 1})
    return train_task(network(), task(), chosen, out, **options)


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


GENERATORS = {"torch": lambda: torch.Generator().manual_seed(0), "secure": lambda: SecureRandom(bytes(32))}
GENERATORS["default"] = lambda: None


@pytest.mark.parametrize("keeps_sums", [True, False])
@pytest.mark.parametrize("source", GENERATORS)
def test_noise_follows_schedules_of_sigma_and_of_the_clipping_norm(source: str, keeps_sums: bool) -> None:
    parameter = torch.nn.Parameter(torch.zeros(200, 100))
    optimizer = noisy([parameter], generator=GENERATORS[source]())
    optimizer.keeps_sums = keeps_sums
    for sigma, bound in ((3.0, 2.0), (1.0, 2.0), (1.0, 5.0), (0.25, 0.5), (3.0, 2.0)):
        optimizer.noise_multiplier, optimizer.max_grad_norm = sigma, bound
        optimizer.add_noise()
        assert parameter.grad is not None
        noise = parameter.grad * 4
        assert abs(float(noise.std()) / (sigma * bound) - 1) < 0.03, (sigma, bound)
        assert float((noise.to(torch.bfloat16) == noise).float().mean()) < 0.01  # it has all digits of float32
        parameter.summed_grad = None  # type: ignore[attr-defined]


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
    assert torch.equal(parameter.grad * 4, torch.full((3,), 1 + 2.0**-23))


def test_one_process_adds_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor, op: None)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = noisy([parameter], shared=True)
    total = torch.arange(3.0)
    assert torch.equal(optimizer._noisy_sum(total, 1.0), total)
    optimizer.rank = 0
    assert not torch.equal(optimizer._noisy_sum(total, 1.0), total)


def test_a_run_with_a_known_seed_once_never_becomes_secret(tmp_path: Path) -> None:
    start(tmp_path / "run", noise_seed=5, observers=[StopAfter(2)])
    assert start(tmp_path / "run", resume=True).finished
    for name in ("run.json", "summary.json"):
        assert not json.loads((tmp_path / "run" / name).read_text())["noise_is_secret"]


def test_a_seed_that_somebody_knows_is_no_secret_and_gives_the_run_in_pieces(tmp_path: Path) -> None:
    for name, seed, stops in (("whole", 5, []), ("parts", 5, [StopAfter(2)]), ("unknown", None, [StopAfter(2)])):
        start(tmp_path / name, noise_seed=seed, observers=stops)
    found = ["secret" in load_checkpoint(tmp_path / name) for name in ("parts", "unknown")]
    assert found == [True, False]  # where nobody knows the seed, nor reads it there
    said = [json.loads((tmp_path / name / "run.json").read_text())["noise_is_secret"] for name in ("parts", "unknown")]
    assert said == [False, True]
    assert start(tmp_path / "parts", noise_seed=5, resume=True).charged == 4
    one, other = (load_checkpoint(tmp_path / name)["parameters"] for name in ("whole", "parts"))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


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
    with pytest.raises(ParameterError, match=r"first start \(noise_multiplier"):
        start(run, resume=True)


def test_orthonormal_frames_have_no_preferred_side() -> None:
    """The factor Q as LAPACK returns it has a first entry of one sign."""
    layer, frames = torch.nn.Linear(5, 3), []
    for seed in range(400):
        frames.append(Subspaces(layer, rank=3, projector="stiefel", seed=seed).projector(layer.weight))
    signs = torch.stack(frames).sign().mean(0)
    assert float(signs.abs().max()) < 5 / math.sqrt(400)


def test_another_delta_or_noise_is_another_ledger(tmp_path: Path) -> None:
    digests = set()
    for number, changes in enumerate(({}, {"delta": 1e-6}, {"noise_multiplier": 1.1})):
        start(tmp_path / str(number), changes)
        lines = (tmp_path / str(number) / "privacy.jsonl").read_text().splitlines()
        digests |= {json.dumps(json.loads(line)["mechanism"]) for line in lines}
    assert len(digests) == 3
