"""Checkpoints: the state by ``torch.save``, read back without running code, replaced as a whole or not at all.

For a sharded model each process writes the rows that it keeps, and the first writes all else. Any number of processes
read the rows that they need.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_with_path

from dprmt._files import sync
from dprmt._validation import ParameterError, TrainingStateError
from dprmt.training.private_run._randomness import in_first

_STATE, _CHECKSUMS = "state.pt", "checksums.json"
_FOLDERS = ("checkpoint", "checkpoint.previous")


def save_checkpoint(run: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint next to the last one, then replace it; in all processes, if there are shards."""
    shards: dict[tuple[Any, ...], torch.Tensor] = {}

    def kept(path: tuple[Any, ...], leaf: Any) -> Any:
        keys = tuple(getattr(part, "key", getattr(part, "idx", None)) for part in path)
        if isinstance(leaf, DTensor):
            shards[keys] = leaf.detach().to_local().to("cpu", copy=True)
            return None
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to("cpu", copy=True)
        if leaf is None or isinstance(leaf, bool | int | float | str):
            return leaf
        name = ".".join(map(str, ("state", *keys)))
        raise ParameterError(name, type(leaf).__name__, "a tensor, number, string, boolean, None, dict or list")

    whole, fresh = tree_map_with_path(kept, state), run / "checkpoint.new"
    if not shards:
        _make(fresh)
        _put_in_place(run, fresh, whole, {})
        return
    in_first(lambda: _make(fresh))
    written = _write_shards(fresh, shards)
    in_first(lambda: _put_in_place(run, fresh, whole, written))


def load_checkpoint(run: Path, *, lazily: bool = False) -> dict[str, Any] | None:
    """Return the last whole checkpoint of a run; ``lazily``: with lists of tensors on the disk, to be concatenated, in
    the place of shards.
    """
    damage = None
    for folder in (run / name for name in _FOLDERS):
        if folder.exists():
            try:
                return _read(folder, lazily)
            except (OSError, ValueError, KeyError, RecursionError, RuntimeError, UnpicklingError) as error:
                damage = damage or error
    if damage is not None:
        raise ParameterError("resume", str(run), f"given for a run with a checkpoint that can be read ({damage})")
    return None


def load_parameters(run: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Load the trained parameters in the last checkpoint of a run.

    Parameters
    ----------
    run : path
        A run folder, finished or not.

    Returns
    -------
    dict of Tensor
        Tensors by name, on the CPU.

    Raises
    ------
    ParameterError
        If there is no checkpoint.

    Formal guarantees
    -----------------
    The parameters have the ε of the last line of ``privacy.jsonl``, as `dprmt.training.harness.train` guarantees.

    Examples
    --------
    >>> load_parameters("nowhere")
    Traceback (most recent call last):
    ...
    dprmt._validation.ParameterError: run must be the folder of a run with a checkpoint, got 'nowhere'
    """
    state = load_checkpoint(Path(run))
    if state is None:
        raise ParameterError("run", str(run), "the folder of a run with a checkpoint")
    return state["parameters"]


def like(value: Any, parameter: torch.Tensor | None) -> Any:
    """Return this process' part of a saved tensor, if the parameter is a shard with its shape."""
    value = torch.cat(value) if isinstance(value, list) else value
    if not isinstance(parameter, DTensor) or getattr(value, "shape", None) != parameter.shape:
        return value
    mesh, local = parameter.device_mesh, parameter.to_local()
    chunks = value.chunk(mesh.size())  # as `fully_shard` cuts
    own = chunks[mesh.get_local_rank()] if mesh.get_local_rank() < len(chunks) else value[:0]
    if own.shape != local.shape:
        raise TrainingStateError(f"{len(local)} of {len(value)} rows are here: not a chunk of equal ones")
    shape = {"shape": parameter.shape, "stride": parameter.stride()}
    return DTensor.from_local(own.to(local.device, copy=True), mesh, parameter.placements, run_check=False, **shape)


def optimizer_state_like(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return a saved optimizer state whose tensors are cut as the parameters are."""
    moved = [value for group in optimizer.param_groups for value in group["params"]]
    rows = state["state"].items()
    return state | {"state": {key: {name: like(value, moved[key]) for name, value in row.items()} for key, row in rows}}


def _make(fresh: Path) -> None:
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)


def _put_in_place(run: Path, fresh: Path, state: dict[str, Any], shards: dict[str, str]) -> None:
    checksums = {_STATE: _written(fresh / _STATE, state)} | shards
    for name in shards:
        if not (fresh / name).exists():
            raise ParameterError("out", str(run), f"a folder that all processes see; {name} is not there")
    (fresh / _CHECKSUMS).write_text(json.dumps(checksums), encoding="utf-8")
    sync(fresh / _CHECKSUMS)
    sync(fresh)
    # At every instant one of `checkpoint` and `checkpoint.previous` is whole.
    current, previous = (run / name for name in _FOLDERS)
    shutil.rmtree(previous, ignore_errors=True)
    if current.exists():
        current.rename(previous)
    fresh.rename(current)
    sync(run)


def _write_shards(folder: Path, shards: dict[tuple[Any, ...], torch.Tensor]) -> dict[str, str]:
    """Write this process' rows, in all processes, and return every file's checksum, in the order of the rows.

    If one process cannot write, all raise an error.
    """
    size = dist.get_world_size()
    name, checksum, problem = f"shard-{dist.get_rank():05}-of-{size:05}.pt", "", ""
    try:
        checksum = _written(folder / name, shards)
    except OSError as error:
        problem = f"{folder / name}: {error}"
    said: list[Any] = [None] * size
    dist.all_gather_object(said, (name, checksum, problem))
    for _, _, what in said:
        if what:
            raise OSError(what)
    return {name: checksum for name, checksum, _ in said}


def _written(path: Path, content: Any) -> str:
    try:
        torch.save(content, path)
    except RuntimeError as error:  # a full disk
        raise OSError(f"{path}: {error}") from None
    sync(path)
    return _checksum(path)


def _read(folder: Path, lazily: bool) -> dict[str, Any]:
    checksums = json.loads((folder / _CHECKSUMS).read_text(encoding="utf-8"))
    if not isinstance(checksums, dict) or next(iter(checksums), None) != _STATE:
        raise ValueError(f"{_CHECKSUMS}: not of a checkpoint")
    for name, checksum in checksums.items():
        if checksum != _checksum(folder / name):
            raise ValueError(f"{name}: its content and its checksum differ")
    state, *shards = (torch.load(folder / name, "cpu", weights_only=True, mmap=name != _STATE) for name in checksums)
    for keys in shards[0] if shards else ():
        *path, last = keys
        place = state
        for key in path:
            place = place[key]
        rows = [shard[keys] for shard in shards]
        place[last] = rows if lazily else torch.cat(rows)
    found: dict[str, Any] = state
    return found


def _checksum(path: Path) -> str:
    # Protects against disk errors and accidents, not against a forged checkpoint.
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
