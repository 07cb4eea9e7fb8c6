"""Checkpoints of a model that no process holds: written shard by shard, resumed by another number of processes."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.distributed.tensor import DTensor

from dprmt import ParameterError
from dprmt.training.harness import ItemTask, _checkpoint, load_parameters, train_task
from dprmt.training.harness._checkpoint import load_checkpoint, save_checkpoint
from dprmt.training.harness._shards import whole_weights
from dprmt.training.private_run import _run
from tests.training.sharded import in_processes, losses, network
from tests.training.test_sharded import _are_independent, _is_noise
from tests.training.test_sharded_runs import TEXTS, StopsAfter, settings, start

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
            assert file.stat().st_size < 3 * whole / size * 1.2 + 8000
    wanted, found = load_parameters(one), load_parameters(several)
    assert wanted.keys() == found.keys()
    for name, value in wanted.items():
        assert torch.allclose(value, found[name], rtol=1e-6, atol=1e-7), name


def noisy_start(rank: int, size: int, folder: str, stop: int, reused: bool) -> Any:
    """One step of noise of standard deviation 1 an entry; ``reused``: with the key of the first start's noise."""
    if reused:
        real = _run.secret_generator
        _run.secret_generator = lambda device, secret: real(device, bytes([rank]) * 32)
    model = network(WIDTH, dtype=torch.float32)
    task = ItemTask(list(TEXTS), torch.stack, losses)
    config = settings(noise=80.0, optimizer={"name": "gd", "learning_rate": 1.0}, evaluation={"every": None})
    return train_task(model, task, config, folder, resume=stop > 1, observers=[StopsAfter(stop)]).steps


@pytest.mark.parametrize("reused", [False, True])
def test_noise_after_another_number_goes_on_is_new(tmp_path: Path, reused: bool) -> None:
    """A reuse of the first start's streams, planted, shows as a correlation of the two steps' noise."""
    weights = [torch.cat([value.detach().flatten().double() for value in network(WIDTH).parameters()])]
    for step, size in enumerate((2, 3), 1):
        meeting = tmp_path / str(step)
        meeting.mkdir()
        work = partial(noisy_start, folder=str(tmp_path / "run"), stop=step, reused=reused)
        assert in_processes(size, work, meeting) == [step] * size
        found = load_parameters(tmp_path / "run")
        weights.append(torch.cat([found[name].flatten().double() for name, _ in network(WIDTH).named_parameters()]))
    first, second = (after - before for before, after in itertools.pairwise(weights))
    for noise in (first, second):
        assert _is_noise(noise, 1.0)
        assert not _is_noise(noise, 2.0**0.5)
    assert _are_independent(first, second) is not reused


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


def apart(rank: int, size: int, folder: str) -> list[str]:
    """What is said where every process has a folder of its own: at the start, and if both have begun a checkpoint."""
    own = Path(f"{folder}-{rank}")
    found = [start(rank, size, str(own), settings()).get("refused", "taken")]
    (own / "checkpoint.new").mkdir(parents=True, exist_ok=True)
    try:
        save_checkpoint(own, {"step": 1, "parameters": dict(network(sharded=True).named_parameters())})
    except ParameterError as error:
        return [*found, str(error)]
    return [*found, "written"]


def test_folders_that_are_not_shared_are_refused(tmp_path: Path) -> None:
    for said in in_processes(2, partial(apart, folder=str(tmp_path / "run")), tmp_path):
        assert "out must be a folder that all processes see; process 1 does not" in said[0], said
        assert "a folder that all processes see; shard-00001-of-00002.pt is not there" in said[1], said
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
