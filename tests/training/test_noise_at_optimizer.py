"""The noise where it counts: what the inner optimizer receives, minus the clipped sum, for all of them.

Nothing here looks at what the noise is made of. The clipped sum is read before the step, what the inner optimizer is
given when it moves; between the two lie noise, division, projection and denoising, of one process or of two.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from scipy import stats

from audits.processes import in_processes
from dprmt.training.denoising import _options
from dprmt.training.harness import ItemTask, Observer, Run
from dprmt.training.harness._run import Start
from dprmt.training.private_run._randomness import Randomness
from dprmt.training.recipes import DENOISERS, OPTIMIZERS, Settings

SIGMA, BOUND, SIZE, ITEMS, WIDTH = 1.7, 0.6, 5, 40, 90
STD = SIGMA * BOUND  # of the noise in one entry of the sum
MARK = 8.0  # what the denoiser below adds, so that its output is known from its input
LEVEL = 1e-7
BETA = 0.9
LITTLE = 1e-3  # the least σ of a recipe


class Way(NamedTuple):
    """One line of the table."""

    optimizer: str
    projector: str | None
    method: str
    secure: bool = False


def ways() -> list[Way]:
    """Every optimizer, projector and denoiser that a recipe has a word for; two of them with noise from a cipher."""
    found = []
    for name, method in itertools.product(OPTIMIZERS, DENOISERS):
        projectors = ("gaussian", "stiefel", "svd") if name == "grape" else (None,)
        found += [Way(name, projector, method) for projector in projectors]
    return [*found, Way("adam", None, "none", secure=True), Way("grape", "svd", "paper", secure=True)]


class Step(NamedTuple):
    """By parameter: the clipped sum, and what the inner optimizer received; what the denoiser was given, and its σ.

    ``values``: of parameters and buffers.
    """

    clean: dict[str, torch.Tensor]
    received: dict[str, torch.Tensor]
    seen: dict[str, torch.Tensor]
    stated: float | Mapping[str, float]
    values: Mapping[str, torch.Tensor] = {}


def marking(method: Callable[..., Any], steps: list[Any]) -> Callable[..., Any]:
    """A denoiser that looks as the method does, and gives back what it got with a mark on it."""

    def make(options: Any) -> Any:
        real = method(options)

        def denoise(layers: Mapping[str, torch.Tensor], sigma: Any) -> Any:
            steps.append(({name: value.detach().clone() for name, value in layers.items()}, sigma))
            return {name: value + MARK for name, value in layers.items()}, real(layers, sigma)[1]

        return denoise

    return make


class CleanSums(Observer):
    """Keeps the clipped sums, over all processes, before noise is added."""

    def __init__(self) -> None:
        self.sums: list[dict[str, torch.Tensor]] = []

    def measured(self, run: Any, step: int) -> None:
        clean = {}
        for name, p in run.parameters.items():
            total = getattr(p, "summed_grad", None)
            if total is None:
                total = torch.zeros(run.noised.released_shape(p))
            clean[name] = total.detach().clone()
            if run.start.processes > 1:
                torch.distributed.all_reduce(clean[name])
        self.sums.append(clean)


def network(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    first, last = torch.nn.Linear(ITEMS, WIDTH), torch.nn.Linear(WIDTH, ITEMS)
    model = torch.nn.Sequential(first, torch.nn.LayerNorm(WIDTH), last)
    model.register_buffer("scale", torch.randn(3))
    return model


def losses(model: torch.nn.Module, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(torch.eye(ITEMS)[labels]), labels, reduction="none")


def settings(way: Way, sigma: float) -> Settings:
    projected = {} if way.projector is None else {"projector": way.projector, "rank": 24, "refresh_every": 3}
    return Settings(
        privacy={"noise_multiplier": sigma, "delta": 1e-5, "clipping_norm": BOUND, "norms": "exact"}
        | {"secure": way.secure},
        optimizer={"name": way.optimizer, "learning_rate": 0.01, "betas": (BETA, 0.999), "momentum": BETA, **projected},
        training={"batch_size": SIZE, "steps": 4 if way.projector is None else 12, "micro_batch_size": 3, "seed": 4},
        denoising={"method": way.method, "exclude": []},
    )


def given(p: torch.nn.Parameter) -> torch.Tensor:
    """What an inner optimizer finds for a parameter."""
    projected = getattr(p, "projected_grad", None)
    value = p.grad if projected is None else projected
    assert value is not None
    return value.detach().clone()


def oriented(clean: torch.Tensor, received: torch.Tensor) -> torch.Tensor:
    """The sum of a weight in a subspace has its longer side first, whatever the weight's is."""
    return clean if clean.shape == received.shape else clean.T


def steps_of(
    way: Way, patch: pytest.MonkeyPatch, rank: int = 0, processes: int = 1, sigma: float = SIGMA
) -> list[Step]:
    """All steps of a run."""
    looked: list[Any] = []
    if way.method != "none":
        name = {"paper": "shrinkage", "shrink": "shrinkage", "none": "nothing"}[way.method]
        patch.setattr(_options, name, marking(getattr(_options, name), looked))
    randomness = Randomness(bytes([7]) * 32, False, way.secure)
    task = ItemTask(list(range(ITEMS)), torch.tensor, losses)
    run = Run(network(rank), task, settings(way, sigma), Start(randomness, processes=processes))
    sums, received, values = CleanSums(), [], []
    run.observers = [sums]

    def look(*_: object) -> None:  # registered last, hence what the optimizer moves by
        received.append({name: given(p) for name, p in run.parameters.items()})
        values.append({name: value.clone() for name, value in run.model.state_dict().items()})

    run.private.optimizer.register_step_pre_hook(look)
    for _ in run.steps():
        pass
    run.private.close()
    looked = looked or [({}, STD / SIZE)] * len(received)
    assert len(sums.sums) == len(received) == len(looked)
    parts = zip(sums.sums, received, looked, values, strict=True)
    return [Step(clean, got, *seen, at) for clean, got, seen, at in parts]


def interval(entries: int) -> tuple[float, float]:
    """Of a sum of that many squares of N(0, 1)."""
    law = stats.chi2(entries)
    return law.ppf(LEVEL / 2), law.isf(LEVEL / 2)


def assert_noise(noise: torch.Tensor, what: str) -> None:
    """Independent entries of N(0, 1), by their sum of squares and their sum."""
    low, high = interval(noise.numel())
    squares = float(noise.double().square().sum())
    assert low < squares < high, f"{what}: standard deviation {(squares / noise.numel()) ** 0.5}"
    assert abs(float(noise.double().sum())) < stats.norm.isf(LEVEL / 2) * noise.numel() ** 0.5, f"{what}: not centred"


def assert_received(way: Way, steps: list[Step]) -> None:
    """What the optimizer received less the clipped sum, or with a denoiser's mark where one was asked, is the noise."""
    kinds: dict[str, list[torch.Tensor]] = {"matrices": [], "vectors": []}
    for step in steps:
        for name, received in step.received.items():
            marked = name in step.seen
            clean = oriented(step.clean[name], received)
            noise = ((received - MARK if marked else received) * SIZE - clean) / STD
            kinds["vectors" if noise.ndim < 2 else "matrices"].append(noise)
    assert all(kinds.values()), way
    for kind, found in kinds.items():
        assert_noise(torch.cat([noise.flatten() for noise in found]), f"{way}, {kind}")
    whole = torch.cat([noise.flatten() for found in kinds.values() for noise in found])
    low, high = interval(len(whole))
    assert high / low < 1.05**2, "too few entries to tell a standard deviation from one 5 % away"
    for kind, found in kinds.items():  # nothing that was released is noise of before
        for one, other in itertools.pairwise([noise for noise in found if noise.shape == found[0].shape]):
            correlation = float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1])
            assert abs(correlation) < stats.norm.isf(LEVEL / 2) / one.numel() ** 0.5, f"{way}, {kind}: noise again"


def assert_denoiser(way: Way, steps: list[Step]) -> None:
    """The denoiser saw the noisy gradient, and was told how noisy."""
    if way.method == "none":
        return
    assert any(step.seen for step in steps), way
    for step in steps:
        for name, seen in step.seen.items():
            assert step.stated == pytest.approx(STD / SIZE, rel=1e-6), way
            noise = (seen * SIZE - oriented(step.clean[name], seen)) / STD
            assert_noise(noise, f"{way}, the denoiser's {name}")


def assert_sum(way: Way, steps: list[Step]) -> None:
    """With next to no noise: what is left of a sum that misses a sample would be a hundred times as large."""
    noise = [s.received[name] * SIZE - oriented(s.clean[name], s.received[name]) for s in steps for name in s.received]
    assert_noise(torch.cat([value.flatten() for value in noise]) / (LITTLE * BOUND), f"{way}, little noise")


WAYS = ways()


@pytest.mark.parametrize("way", WAYS, ids=["-".join(map(str, way)) for way in WAYS])
def test_the_inner_optimizer_receives_the_stated_noise(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = steps_of(way, monkeypatch)
    assert_received(way, steps)
    assert_denoiser(way, steps)
    if way.method == "none":
        assert_sum(way, steps_of(way, monkeypatch, sigma=LITTLE))


def test_a_wrong_scale_is_rejected() -> None:
    """5 % more or less noise in an entry, none in the vectors, or noise that comes again, fails what is asserted."""
    torch.manual_seed(1)
    clean = {"weight": torch.randn(150, 90), "bias": torch.randn(500)}
    way = Way("gd", None, "none")

    def step(scale: float, of_bias: float = 1.0) -> Step:
        scales = {"weight": scale, "bias": of_bias * scale}
        noisy = {n: (v + scales[n] * STD * torch.randn(v.shape)) / SIZE for n, v in clean.items()}
        return Step(clean, noisy, {}, STD / SIZE)

    assert_received(way, [step(1.0), step(1.0)])
    wrong = {
        "matrices: standard deviation 1.0": [step(1.05), step(1.05)],
        "matrices: standard deviation 0.9": [step(0.95), step(0.95)],
        "vectors: standard deviation": [step(1.0, 0.0), step(1.0, 0.0)],
        "noise again": [step(1.0)] * 2,
    }
    for complaint, steps in wrong.items():
        with pytest.raises(AssertionError, match=complaint):
            assert_received(way, steps)


def one_of_two(rank: int, size: int) -> dict[Way, Any]:
    """All ways that a process group knows; rank 1 starts from other parameters."""
    found = {}
    for way in WAYS:
        with pytest.MonkeyPatch.context() as patch:
            steps = steps_of(way, patch, rank, size)
            if way.method == "none":
                assert_sum(way, steps_of(way, patch, rank, size, sigma=LITTLE))
        assert_received(way, steps)
        assert_denoiser(way, steps)
        for name, value in network(0).state_dict().items():
            assert torch.equal(steps[0].values[name], value), f"{way}, {name}: not rank 0's"
        both = [{**step.values, **{f"{name}: given": value for name, value in step.received.items()}} for step in steps]
        found[way] = [{name: value.double().sum().item() for name, value in step.items()} for step in both]
    return found


def test_two_processes_receive_the_stated_noise_once(tmp_path: Path) -> None:
    """Noise of one process: that of both would be √2 too large; both start from rank 0's values, move alike."""
    first, second = in_processes(2, one_of_two, tmp_path, limit=300.0)
    assert isinstance(first, dict), first
    assert first == second
