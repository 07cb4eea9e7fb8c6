"""Every random stream: a secret of 256 bits, a key of its own by purpose, and nothing that is public in it."""

from __future__ import annotations

import hashlib
import itertools
import random
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from audits.steps import Parts, private_sgd
from dprmt import ParameterError
from dprmt.accounting import Hutchinson
from dprmt.training.clipping import Units, plan_private
from dprmt.training.harness import ItemTask, Run
from dprmt.training.harness._run import Start
from dprmt.training.norms import HutchinsonEstimator, HutchPlusPlusEstimator, ProbeGenerator
from dprmt.training.private_run._batches import Draws
from dprmt.training.private_run._randomness import Randomness, fresh_randomness
from dprmt.training.randomness import SecureRandom, _secure, draws_from, secret_generator
from dprmt.training.recipes import Settings
from tests.training.projected import projected_step

BITS = 256
BASE = hashlib.sha256(b"a secret").digest()


def flipped(bit: int) -> bytes:
    """The base secret with one other bit."""
    return (int.from_bytes(BASE, "big") ^ 1 << bit).to_bytes(BITS // 8, "big")


def first_numbers(stream: Any) -> bytes:
    """What tells one stream from another."""
    if isinstance(stream, torch.Generator):
        drawn = torch.randint(2**62, (4,), generator=stream)
    elif isinstance(stream, ProbeGenerator):
        drawn = stream.shared(step=0, layer="layer", rows=2, probes=2, dtype=torch.float64)
    else:
        drawn = stream.integers(4, 2**62)
    return bytes(drawn.numpy().tobytes())


# ------------------------------------------------------------------------------------------------ by default


def linear() -> nn.Linear:
    return nn.Linear(3, 2)


def private(**options: Any) -> Any:
    model = linear()
    given = {"norms": "exact", "clipping_norm": 1.0, "noise_multiplier": 1.0, "expected_batch_size": 2.0} | options
    return private_sgd(model, 0.1, **given).optimizer.generator


def projected() -> Any:
    options = {"rank": 2, "clipping_norm": 1.0, "noise_multiplier": 1.0, "expected_batch_size": 2.0, "lr": 0.1}
    return projected_step(linear(), seed=0, **options).optimizer.generator  # type: ignore[arg-type]


def planned(**options: Any) -> Any:
    given = {"norms": Hutchinson(2, secret=False), "clipping_norm": 1.0, "expected_batch_size": 2.0} | options
    return plan_private(linear(), **given).policy.estimator.generator  # type: ignore[union-attr]


DEFAULTS: dict[str, Callable[[], Any]] = {
    "secret_generator": lambda: secret_generator("cpu"),
    "SecureRandom": SecureRandom,
    "ProbeGenerator": ProbeGenerator,
    "HutchinsonEstimator": lambda: HutchinsonEstimator(2).generator,
    "HutchPlusPlusEstimator": lambda: HutchPlusPlusEstimator(2, 2).generator,
    "make_private, noise": private,
    "make_private, secure noise": lambda: private(noise_generator=SecureRandom()),
    "DP-GRAPE, noise": projected,
    "plan_private, probes": planned,
    "plan_private, probes of Hutch++": lambda: planned(norms="hutch++"),
    "plan_private, probes of several processes": planned,
    "a run, noise": lambda: fresh_randomness(None, 1).generator("noise"),
    "a run, coins": lambda: fresh_randomness(None, 1).generator("sampling"),
    "a run, secure noise": lambda: fresh_randomness(None, 1, True).generator("noise"),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_default_is_a_function_of_256_bits_of_the_operating_system(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the operating system's bytes held still the stream is; any one of 256 bits of them changes it."""
    make = DEFAULTS[name]
    if "several processes" in name:
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda *_: 2)
        monkeypatch.setattr(torch.distributed, "broadcast_object_list", lambda box, src: None)
    assert first_numbers(make()) != first_numbers(make())
    asked: list[int] = []
    secret = BASE

    def token_bytes(count: int | None = None) -> bytes:
        asked.append(32 if count is None else count)
        return secret

    monkeypatch.setattr(secrets, "token_bytes", token_bytes)
    torch.manual_seed(0)
    still = first_numbers(make())
    torch.manual_seed(1)
    assert first_numbers(make()) == still
    assert min(asked) >= BITS // 8
    seen = {still}
    for bit in range(BITS):
        secret = flipped(bit)
        seen.add(first_numbers(make()))
    assert len(seen) == BITS + 1


# --------------------------------------------------------------------------------------- of a run, by purpose


@pytest.mark.parametrize("secure", [False, True])
def test_a_key_has_256_bits_of_the_secret_and_a_stream_all_of_its_key(secure: bool) -> None:
    """Every byte of a key takes most values over secrets: no step between holds fewer bits."""
    for purpose in ("noise", "sampling", "probes", "allocation of epoch 1"):
        keys = [Randomness(flipped(bit), True, secure).derive(purpose) for bit in range(BITS)]
        keys += [Randomness(hashlib.sha256(bytes([i])).digest(), True, secure).derive(purpose) for i in range(BITS)]
        assert {len(key) for key in keys} == {BITS // 8}
        assert len(set(keys)) == 2 * BITS
        assert all(len({key[place] for key in keys}) > 180 for place in range(BITS // 8))  # of 256: 221 on average
    streams = {
        first_numbers(SecureRandom(k) if secure else secret_generator("cpu", k)) for k in map(flipped, range(BITS))
    }
    assert len(streams) == BITS


def test_a_secret_of_fewer_bits_is_refused() -> None:
    for short in (b"", b"16 bits, written", bytes(31)):
        with pytest.raises(ParameterError, match="secret"):
            Randomness(short, True)


SEEDING = "torch's global generator, for what a model draws itself"


class Made(NamedTuple):
    """A stream that was made: of which kind, and from which key."""

    kind: str
    key: Any


@contextmanager
def recorded() -> Iterator[list[Made]]:
    """Whatever any module of the package makes a stream with."""
    made: list[Made] = []

    class Probes(ProbeGenerator):
        def __init__(self, seed: Any = None) -> None:
            super().__init__(seed)
            made.append(Made("probes", seed))

    class Secure(SecureRandom):
        def __init__(self, key: Any = None) -> None:
            super().__init__(key)
            made.append(Made("cipher", key))

    def generator(device: Any, secret: Any = None) -> torch.Generator:
        made.append(Made("torch", secret))
        return secret_generator(device, secret)

    def seeding(device: Any, secret: Any = None) -> torch.Generator:
        made.append(Made(SEEDING, secret))
        return secret_generator(device, secret)

    recording = {ProbeGenerator: Probes, SecureRandom: Secure, secret_generator: generator}
    with pytest.MonkeyPatch.context() as patch:
        for module in [value for name, value in sys.modules.items() if name.startswith("dprmt.training.")]:
            for real, mine in recording.items():
                if module.__dict__.get(real.__name__) is real:
                    patch.setattr(module, real.__name__, mine)
        patch.setattr(_secure, "secret_generator", seeding)  # which only `draws_from` calls there
        yield made


class Seen(NamedTuple):
    """What one run drew, and what its optimizer was given."""

    made: list[Made]
    batches: list[tuple[int, ...]]
    released: list[bytes]


ONE_HOT, SIZE = torch.eye(40), 10


def losses(model: nn.Module, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(ONE_HOT[labels]), labels, reduction="none")


def run(secret: bytes, *, seed: int = 4, world: int = 0, **privacy: Any) -> Seen:
    """Six steps at a learning rate of nothing: what differs between runs is what was drawn."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 40))
    torch.manual_seed(world)
    settings = Settings(
        privacy={"noise_multiplier": 1.0, "delta": 1e-5} | privacy,
        optimizer={"name": "gd", "learning_rate": 1e-30},
        training={"batch_size": SIZE, "steps": 6, "seed": seed},
    )
    batches, released, at = [], [], Draws.at

    def seen(draws: Draws, number: int) -> list[int]:
        batches.append(tuple(at(draws, number)))
        return list(batches[-1])

    def given(*_: Any) -> None:
        released.append(b"".join(value.grad.numpy().tobytes() for value in model.parameters()))

    with recorded() as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Draws, "at", seen)
        task = ItemTask(list(range(40)), torch.tensor, losses)
        going = Run(model, task, settings, Start(Randomness(secret, False, bool(privacy.get("secure")))))
        going.private.optimizer.register_step_pre_hook(given)
        assert len(list(going.steps())) == 6
        going.private.close()
    return Seen(made, batches, released)


WAYS = [
    {"sampling": sampling, "secure": secure, "norms": {"kind": kind, "probes": 2, "secret": secret}}
    for sampling, secure, (kind, secret) in itertools.product(
        ("poisson", "allocation"), (False, True), (("hutchinson", True), ("hutch++", False))
    )
]


@pytest.mark.parametrize("way", WAYS, ids=["-".join(map(str, way.values())) for way in WAYS])
def test_the_streams_of_a_run_have_keys_of_their_own_from_its_secret(way: dict[str, Any]) -> None:
    """Noise, coins or allocations, and probes: no key twice, none moved by a public seed, all by the secret."""
    one, again = run(BASE, **way), run(BASE, **way, seed=5, world=1)
    other = run(flipped(0), **way)
    made, made_again = ([stream for stream in seen.made if stream.kind != SEEDING] for seen in (one, again))
    of_models = {stream.key for stream in one.made if stream.kind == SEEDING}
    keys = [stream.key for stream in made]
    assert len(of_models) > 6
    assert of_models.isdisjoint(keys), "a model draws from a stream of the run"
    assert not [key for key in of_models for own in (BASE, *keys) if key.startswith(own)]
    assert {"probes", "cipher" if way["secure"] else "torch"} == {stream.kind for stream in made}
    assert len(keys) >= 3
    assert all(isinstance(key, bytes) and len(key) == BITS // 8 for key in keys)
    assert len(set(keys)) == len(keys), "two purposes have one key"
    assert {BASE, flipped(0)}.isdisjoint(keys)
    assert made == made_again, "a stream that depends on something public"
    assert set(keys).isdisjoint(stream.key for stream in other.made)
    # And so does what was drawn, and what the optimizer was given.
    assert (one.batches, one.released) == (again.batches, again.released)
    assert one.batches != other.batches
    assert len({*one.released, *other.released}) == 12


# ------------------------------------------------------------------------- probes, by layer, step and sample


class Drawn(ProbeGenerator):
    """Keeps every matrix that somebody was given."""

    __slots__ = ("matrices",)

    def __init__(self, seed: bytes) -> None:
        super().__init__(seed)
        self.matrices: list[torch.Tensor] = []

    def _matrices(self, *args: Any) -> torch.Tensor:
        drawn = super()._matrices(*args)
        self.matrices += list(drawn)
        return drawn


def twice() -> nn.Module:
    """Two of every kind whose norms are estimated, of the same sizes, so that equal keys give equal probes."""
    return Parts(
        lambda model, tokens: model.last(model.first(model.words(tokens) + model.types(tokens.flip(1))).mT),
        words=nn.Embedding(9, 8),
        types=nn.Embedding(9, 8),
        first=nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8)),
        last=nn.Sequential(nn.Conv1d(8, 8, 1), nn.Tanh(), nn.Conv1d(8, 8, 1)),
    )


@pytest.mark.parametrize("sharing", ["sample", "batch"])
@pytest.mark.parametrize("clipping", ["hutchinson", "hutch++"])
def test_every_layer_step_and_sample_has_probes_of_its_own(clipping: str, sharing: str) -> None:
    """As many different matrices as there are layers, steps and samples; the same for all micro-batches of a step."""
    torch.manual_seed(0)
    model, generator = twice(), Drawn(BASE)
    options: dict[str, Any] = {"secret": sharing == "sample", "generator": generator}
    hutchinson = HutchinsonEstimator(2, everything=True, **options)
    norms = HutchPlusPlusEstimator(2, 2, **options) if clipping == "hutch++" else hutchinson
    step = private_sgd(model, 0.0, norms=norms, noise_multiplier=1.0, expected_batch_size=4.0)
    steps, pieces = 3, ([0, 1, 2], [3, 4])
    tokens = torch.randint(9, (5, 4), generator=torch.Generator().manual_seed(1))
    for number in range(steps):
        for piece in pieces:
            losses = step.model(tokens[piece]).square().mean((1, 2))
            step.accumulate(losses, samples=piece, step=number)
        step.step()
    estimated = step.record.estimated
    assert len(estimated) == (2 if clipping == "hutch++" else 12)
    purposes = 2 if clipping == "hutch++" else 1
    keys = len(estimated) * steps * purposes * (5 if sharing == "sample" else 1)
    # Equal matrices are one draw; widths differ between purposes, never the first row's first entries.
    different = {tuple(matrix[:4, :2].double().flatten().tolist()) for matrix in generator.matrices}
    assert len(different) == keys
    uses = keys if sharing == "sample" else keys * len(pieces)
    assert len(generator.matrices) == uses


# ---------------------------------------------------------------------------------- dropout, and the rest of a model


@pytest.mark.parametrize("units", [None, Units(2, regime="alone")])
def test_dropout_does_not_follow_the_seed_that_is_known(units: Units | None) -> None:
    """With a public seed masks go by place in the batch: removing the first of 60 samples moved the sum by 2.6 C."""
    seen = set()
    for _ in range(2):
        torch.manual_seed(42)
        parts = {"head": nn.Linear(64, 1, bias=False), "dropout": nn.Dropout(0.5)}
        model = Parts(lambda model, x: 100 * model.head(model.dropout(x)).square().flatten(), **parts)
        step, x = private_sgd(model, norms="exact", units=units), torch.ones(2, 64)
        named = {} if units is None else {"units": [0, 1]}
        for number in range(2):
            torch.manual_seed(42)
            step.accumulate(step.model, batch=x, samples=[0, 1], step=number, **named)
            assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(42)))
            before = model.head.weight.detach().clone()
            step.step()
            seen.add(tuple((model.head.weight == before).flatten().tolist()))  # what both rows dropped
    assert len(seen) == 4


def test_draws_from_a_secret_come_again_and_leave_no_trace() -> None:
    """All default generators; 32 bytes that differ anywhere give other draws."""

    def draws(secret: bytes) -> tuple[Any, ...]:
        with draws_from(secret, []):
            return tuple(torch.rand(4).tolist()), random.random(), float(np.random.rand())  # noqa: NPY002

    before = torch.get_rng_state(), random.getstate()
    one, again, other = draws(BASE), draws(BASE), draws(flipped(0))
    assert one == again
    assert all(a != b for a, b in zip(one, other, strict=True))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
