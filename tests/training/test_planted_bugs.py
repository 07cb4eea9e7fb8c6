"""Bugs that were planted once and that no test saw; each of these fails under one of them."""

from __future__ import annotations

import base64
import copy
import json
import secrets
from pathlib import Path
from typing import Any

import pytest
import torch

from audits.steps import private_sgd
from dprmt.accounting import Hutchinson, Poisson
from dprmt.training.harness import ItemTask, Observer, read_metrics, run_in_memory, train_task
from dprmt.training.norms import HutchinsonEstimator, ProbeGenerator
from dprmt.training.recipes import Settings
from tests.training.literal import literal_sum

ONE_HOT = torch.eye(4)


def losses(model: torch.nn.Module, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(ONE_HOT[labels]), labels, reduction="none")


def task() -> ItemTask:
    return ItemTask([0, 1, 2] * 10, torch.tensor, losses)


def settings(**changes: Any) -> Settings:
    return Settings(
        privacy={"noise_multiplier": 1.0, "delta": 1e-5, **changes.pop("privacy", {})},
        optimizer={"name": "adam", "learning_rate": 0.1},
        training={"batch_size": 10, "steps": 4, **changes.pop("training", {})},
        **changes,
    )


def network(outputs: int = 3) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(4, outputs)


@pytest.mark.parametrize("clipping", ["exact", "ghost"])
@pytest.mark.parametrize("padding", [None, 0])
def test_a_padding_token_counts_in_the_sum_as_it_does_in_the_norm(clipping: str, padding: int | None) -> None:
    """Norms and sums are of the same gradient, whose padding row is 0 if there is a padding row."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(7, 5, padding_idx=padding), torch.nn.Linear(5, 2)).double()
    with torch.no_grad():
        model[0].weight[0] = 1.0  # the row of the padding token need not be 0
    tokens = torch.tensor([[3, 0, 0, 0], [0, 0, 0, 0], [5, 3, 0, 6]])
    alone = copy.deepcopy(model)
    expected = literal_sum(alone, [alone(row[None]).square().sum() * 20 for row in tokens], 1.0)
    private = private_sgd(model, norms=clipping)
    before = [value.detach().clone() for value in model.parameters()]
    private.accumulate(private.model(tokens).square().sum((1, 2)) * 20, samples=[0, 1, 2], step=0)
    private.step()
    for value, old, total in zip(model.parameters(), before, expected, strict=True):
        torch.testing.assert_close(old - value.detach(), total, rtol=1e-6, atol=1e-9)


class Batches(Observer):
    """Sizes of the batches, which are private."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def after_step(self, run: Any, record: Any) -> None:
        self.sizes.append(record.batch_size)


def test_coins_do_not_come_from_a_seed_that_is_public() -> None:
    seen = []
    for _ in range(2):
        torch.manual_seed(0)
        watcher = Batches()
        with run_in_memory(network(), task(), settings(training={"steps": 40}), observers=[watcher]) as run:
            list(run.steps())
        seen.append(watcher.sizes)
    # Equal with probability about (1/(2√(π·6.7)))⁴⁰.
    assert seen[0] != seen[1]


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
        assert set(entry) == {
            "private",
            "step",
            "attempt",
            "epsilon",
            "neighbours",
            "learning_rate",
            "noisy_gradient_norm",
            "telemetry",
        }


def test_processes_of_one_batch_share_the_probes_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a second process gets from rank 0 decides its probes, and with them its clip factors."""

    def clipped(seed: bytes | None) -> torch.Tensor:
        model = torch.nn.Linear(40, 40, bias=False)
        torch.nn.init.zeros_(model.weight)
        options: dict[str, Any] = {"norms": Hutchinson(2, secret=False), "distributed": True}
        if seed is not None:
            options = {"norms": HutchinsonEstimator(2, secret=False, generator=ProbeGenerator(seed))}
        private = private_sgd(model, **options)
        private.accumulate(private.model(torch.ones(1, 3, 40)).sum((1, 2)), samples=[0], step=0)
        private.step()
        return model.weight.detach().clone()

    def broadcast(objects: list[Any], src: int = 0, **_: Any) -> None:
        objects[:] = [b"of rank 0, thirty-two bytes long"] if isinstance(objects[0], bytes) else objects

    distributed = torch.distributed
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "broadcast_object_list", broadcast)
    for name in ("broadcast", "all_reduce"):
        monkeypatch.setattr(distributed, name, lambda *_, **__: None)
    monkeypatch.setattr(distributed, "get_rank", lambda *_: 1)
    monkeypatch.setattr(distributed, "get_world_size", lambda *_: 2)
    monkeypatch.setattr(distributed, "all_gather_object", lambda *_: None)
    here = clipped(None)
    monkeypatch.setattr(distributed, "is_initialized", lambda: False)
    assert torch.equal(here, clipped(b"of rank 0, thirty-two bytes long"))
    assert not torch.equal(here, clipped(b"of rank 1, thirty-two bytes long"))


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
        charged, sampling = run.prepared.mechanism.sample_rate, run.private._draws._sampling
    assert sampling == Poisson(charged)
    assert (charged * 2**24).is_integer()
    assert 1 / 3 < charged < 1 / 3 + 2**-24
