"""Runs in a folder whose model no process holds: charged by one, resumed by another number of them."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch.distributed.tensor import DTensor

from dprmt import ParameterError
from dprmt.training.clipping._optimizer import NoisySumOptimizer
from dprmt.training.harness import ItemTask, _checkpoint, load_parameters, read_metrics, train_task
from dprmt.training.harness._checkpoint import load_checkpoint, save_checkpoint, whole_weights
from dprmt.training.private_run import _ledger, _run
from dprmt.training.private_run._ledger import charged_steps
from dprmt.training.recipes import Settings
from tests.training.sharded import in_processes, losses, network
from tests.training.tiny_recipe import StopAfter

TEXTS = torch.randint(11, (40, 4), generator=torch.Generator().manual_seed(5))


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
    observers = [] if stop is None else [StopAfter(stop)]
    seed = 3 if config.privacy.clip_only else None
    try:
        result = train_task(model, task, config, folder, resume=resume, noise_seed=seed, observers=observers)
    except ParameterError as error:
        return {"refused": str(error)}
    return {"steps": result.steps, "charged": result.charged, "epsilon": result.epsilon}


def refused(rank: int, size: int, folder: str) -> str:
    grape = settings(noise=1.0, optimizer={"name": "grape", "rank": 2})
    return str(start(rank, size, folder, grape).get("refused", "taken"))


def test_what_needs_a_whole_gradient_is_refused(tmp_path: Path) -> None:
    for said in in_processes(2, partial(refused, folder=str(tmp_path / "run")), tmp_path):
        assert said.startswith("subspaces must be left out"), said
    with pytest.raises(ParameterError, match=r"denoising.method must be .* with distributed.strategy = 'fsdp'"):
        settings(noise=1.0, denoising={"method": "paper"})


def test_one_process_has_nothing_to_share(tmp_path: Path) -> None:
    assert "distributed.strategy" in start(0, 1, str(tmp_path / "run"), settings(noise=1.0))["refused"]


WIDTH = 64


def _no_gathering(*arguments: Any, **options: Any) -> Any:
    raise AssertionError("a process gathers a whole tensor")


def a_start(rank: int, size: int, folder: str, **options: Any) -> dict[str, Any]:
    """Without any tensor gathered whole, unless the run ends and its model is written."""
    if options.get("stop") is not None:
        DTensor.full_tensor = _no_gathering
    return start(rank, size, folder, settings(), **options)


@pytest.mark.parametrize("sizes", [(2, 3), pytest.param((3, 1, 2, 1), marks=pytest.mark.slow)])
def test_a_run_goes_on_in_any_number_of_processes(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    one, several = tmp_path / "one", tmp_path / "several"
    for place, size in enumerate(sizes):
        stop = place + 1 if place + 1 < len(sizes) else None
        start(0, 1, str(one), settings("replicated"), stop=stop, resume=place > 0)
        meeting = tmp_path / str(place)
        meeting.mkdir()
        work = partial(a_start, folder=str(several), stop=stop, resume=place > 0)
        found = in_processes(size, work, meeting)
        assert [one["steps"] for one in found] == [6 if stop is None else stop] * size, found
        files = list((several / "checkpoint").glob("shard-*"))
        assert len(files) == (0 if size == 1 else size)
        whole = sum(value.numel() * 8 for value in network().parameters())
        for file in files:  # parameters and Adam's two moments; a row of 11, 7 and 5 over three processes
            kept = torch.load(file, weights_only=True).values()
            assert sum(value.untyped_storage().nbytes() for value in kept) < 3 * whole / size * 1.2
    wanted, found = load_parameters(one), load_parameters(several)
    assert wanted.keys() == found.keys()
    for name, value in wanted.items():
        assert torch.allclose(value, found[name], rtol=1e-6, atol=1e-7), name
    assert json.loads((several / "run.json").read_text())["processes"] == sizes[-1]
    for own, other in zip(read_metrics(one), read_metrics(several), strict=True):
        assert own["noisy_gradient_norm"] == pytest.approx(other["noisy_gradient_norm"], rel=1e-6)
        assert own["private"]["loss"] == pytest.approx(other["private"]["loss"], rel=1e-6)


def _is_noise(entries: torch.Tensor, std: float) -> bool:
    """Whether the mean square is within five standard deviations of the variance."""
    count = entries.numel()
    return bool(abs(float(entries.square().mean()) / std**2 - 1) < 5 * (2 / count) ** 0.5)


def _are_independent(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether no shift of one stream against the other correlates: shards of other sizes draw at other places."""
    size = 2 * one.numel()
    spectrum = torch.fft.rfft(one / one.norm(), size) * torch.fft.rfft(other / other.norm(), size).conj()
    return bool(torch.fft.irfft(spectrum, size).abs().max() < 7 / one.numel() ** 0.5)


def noisy_start(rank: int, size: int, folder: str, stop: int, reused: bool) -> Any:
    """One step of noise of standard deviation 1 an entry; ``reused``: with the key of the first start's noise."""
    if reused:
        real = _run.secret_generator
        _run.secret_generator = lambda device, secret: real(device, bytes([rank]) * 32)
    model = network(WIDTH, dtype=torch.float32)
    task = ItemTask(list(TEXTS), torch.stack, losses)
    config = settings(noise=80.0, optimizer={"name": "gd", "learning_rate": 1.0}, evaluation={"every": None})
    return train_task(model, task, config, folder, resume=stop > 1, observers=[StopAfter(stop)]).steps


@pytest.mark.parametrize("reused", [False, True])
def test_noise_after_another_number_goes_on_is_new(tmp_path: Path, reused: bool) -> None:
    """A reuse of the first start's streams, planted, shows as a correlation of the two steps' noise."""
    weights = [network(WIDTH, dtype=torch.float32).state_dict()]
    for step, size in enumerate((2, 3), 1):
        meeting = tmp_path / str(step)
        meeting.mkdir()
        work = partial(noisy_start, folder=str(tmp_path / "run"), stop=step, reused=reused)
        assert in_processes(size, work, meeting) == [step] * size
        weights.append(load_parameters(tmp_path / "run"))
    moved = [[after[name] - before[name] for name in weights[0]] for before, after in itertools.pairwise(weights)]
    first, second = (torch.cat([value.flatten().double() for value in values]) for values in moved)
    for noise in (first, second):
        assert _is_noise(noise, 1.0)
        assert not _is_noise(noise, 2.0**0.5)  # as of two draws an entry
        assert not _is_noise(noise, 0.5**0.5)
    assert _are_independent(first, second) is not reused
    shards = [value.double().chunk(2) for value in moved[0]]  # rows of the first process, and of the second
    top, rest = (torch.cat([shard[k].flatten()[: shard[1].numel()] for shard in shards]) for k in (0, 1))
    assert _are_independent(top, rest)
    assert not _are_independent(top, top + rest)


def saved_twice(rank: int, size: int, folder: str) -> str:
    """What the second writing of a checkpoint says, whose disk is full in the last process."""
    model = network(sharded=True)
    state = {"step": 1, "parameters": dict(model.named_parameters())}
    save_checkpoint(Path(folder), state)
    if rank == size - 1:
        _checkpoint._written = _full
    try:
        save_checkpoint(Path(folder), state | {"step": 2})
    except OSError as error:
        return str(error)
    return "written"


def _full(path: Path, content: Any) -> None:
    path.write_bytes(b"half")
    raise OSError("No space left on device")


def test_a_crash_leaves_the_former_checkpoint_and_a_missing_shard_is_said(tmp_path: Path) -> None:
    for said in in_processes(2, partial(saved_twice, folder=str(tmp_path)), tmp_path):
        assert said.endswith("shard-00001-of-00002.pt: No space left on device"), said
    state = load_checkpoint(tmp_path)
    assert state is not None
    assert state["step"] == 1
    for name, value in network().named_parameters():
        assert torch.equal(state["parameters"][name], value)
    lazy = load_checkpoint(tmp_path, lazily=True)
    assert lazy is not None
    rows = lazy["parameters"]["table.weight"]
    assert len(rows) == 2
    assert torch.equal(torch.cat(rows), network().table.weight)
    shard = tmp_path / "checkpoint" / "shard-00001-of-00002.pt"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ParameterError, match=r"can be read .*shard-00001-of-00002\.pt: its content"):
        load_checkpoint(tmp_path)
    shard.unlink()
    with pytest.raises(ParameterError, match=r"can be read .*No such file.*shard-00001-of-00002\.pt"):
        load_checkpoint(tmp_path)


def apart(rank: int, size: int, folder: str) -> str:
    """What is said where every process has a folder of its own."""
    try:
        start(rank, size, f"{folder}-{rank}", settings())
    except OSError as error:
        return str(error)
    return "written"


def test_folders_that_are_not_shared_are_refused(tmp_path: Path) -> None:
    for said in in_processes(2, partial(apart, folder=str(tmp_path / "run")), tmp_path):
        assert said.startswith("a process cannot write to the folder of all: "), said
        assert "run-1/checkpoint.new" in said, said
    assert not any((tmp_path / f"run-{rank}" / "checkpoint").exists() for rank in range(2))


def gathered(rank: int, size: int) -> dict[str, list[float]]:
    model = network(sharded=True)
    model.register_buffer("count", torch.tensor(7.0))
    return {name: value.flatten().tolist() for name, value in whole_weights(model).items()}


def test_the_first_process_gathers_the_weights(tmp_path: Path) -> None:
    first, second = in_processes(2, gathered, tmp_path)
    assert first.pop("count") == [7.0]
    assert first == {name: value.flatten().tolist() for name, value in network().state_dict().items()}
    assert second == {}


STEP = 3
NOISED = "noised-by-{}"


def _killed(times: int, work: Callable[..., Any], *, before: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Dies in place of the call of this number, after ``before``."""
    calls = iter(range(1, 10_000))

    def instead(*arguments: Any, **options: Any) -> Any:
        if next(calls) == times:
            if before is not None:
                before(*arguments, **options)
            os.kill(os.getpid(), signal.SIGKILL)
        return work(*arguments, **options)

    return instead


@contextmanager
def _noise_is_counted(folder: Path, rank: int) -> Iterator[None]:
    add_noise = NoisySumOptimizer.add_noise

    def counted(self: Any) -> None:
        with (folder / NOISED.format(rank)).open("ab") as file:
            file.write(b".")
        add_noise(self)

    with mock.patch.object(NoisySumOptimizer, "add_noise", counted):
        yield


def _half(path: Path, content: Any) -> None:
    path.write_bytes(b"half")


def _kill_at(point: str, rank: int) -> Any:
    if point == "charge":
        return mock.patch.object(_ledger, "append_line", _killed(STEP, _ledger.append_line))
    if point == "noise":
        real = NoisySumOptimizer.add_noise
        return mock.patch.object(NoisySumOptimizer, "add_noise", _killed(STEP, real, before=real))
    times = STEP if rank else 2 * STEP - 1  # the first process also writes what is no shard
    return mock.patch.object(_checkpoint, "_written", _killed(times, _checkpoint._written, before=_half))


def _start(
    rank: int, size: int, folder: Path, strategy: str = "fsdp", point: str = "", victim: int = -1
) -> dict[str, Any]:
    config = settings(strategy, noise=1.0, training={"checkpoint_every": 1})
    with _kill_at(point, rank) if rank == victim else mock.patch.object(os, "nice"), _noise_is_counted(folder, rank):
        return start(rank, size, str(folder / "run"), config, resume=victim < 0)


def _enter(rank: int, folder: Path, strategy: str, point: str, victim: int) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    meeting = f"file://{folder / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    _start(rank, 2, folder, strategy, point, victim)


@pytest.mark.parametrize(
    ("strategy", "point", "victim", "size"),
    [
        ("fsdp", "charge", 0, 1),
        ("replicated", "charge", 0, 2),
        pytest.param("fsdp", "noise", 0, 3, marks=pytest.mark.slow),
        ("fsdp", "noise", 1, 3),
        pytest.param("fsdp", "half a shard", 0, 2, marks=pytest.mark.slow),
        ("fsdp", "half a shard", 1, 3),
    ],
)
def test_a_killed_process_ends_the_others_and_any_number_goes_on(
    tmp_path: Path, strategy: str, point: str, victim: int, size: int
) -> None:
    context = multiprocessing.get_context("fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside idle threads
        group = [context.Process(target=_enter, args=(rank, tmp_path, strategy, point, victim)) for rank in range(2)]
        for process in group:
            process.start()
    for process in group:
        process.join(100)
    codes = [process.exitcode for process in group]
    assert codes[victim] == -signal.SIGKILL
    assert codes[1 - victim] not in (0, None)  # it neither went on alone nor waits
    noised = [len((tmp_path / NOISED.format(rank)).read_bytes()) for rank in range(2)]
    assert noised == [STEP - 1 if point == "charge" else STEP] * 2
    charged = charged_steps(tmp_path / "run")
    assert charged == max(noised)
    checkpoint = load_checkpoint(tmp_path / "run")
    assert checkpoint is not None
    assert checkpoint["steps_taken"] == STEP - 1
    found = in_processes(size, partial(_start, folder=tmp_path, strategy=strategy), tmp_path)
    assert [one["steps"] for one in found] == [6] * size, found
    again = 6 - (STEP - 1)
    assert [one["charged"] for one in found] == [charged + again] * size
    assert len((tmp_path / NOISED.format(0)).read_bytes()) == noised[0] + again
