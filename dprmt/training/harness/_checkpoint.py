"""Checkpoints: the state by ``torch.save``, read back without running code, replaced as a whole or not at all.

For a model that ``fully_shard`` (FSDP2) spreads over the processes of a ``torchrun``, each process writes the rows that
it keeps, and the first writes all else. Any number of processes read the rows that they need.
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
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map_with_path

from dprmt._files import sync
from dprmt._validation import ParameterError
from dprmt.training.private_run._randomness import in_first

_STATE, _CHECKSUMS = "state.pt", "checksums.json"
_FOLDERS = ("checkpoint", "checkpoint.previous")


def save_checkpoint(run: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint next to the last one, then replace it; in all processes, if there are shards."""
    shards: dict[tuple[Any, ...], torch.Tensor] = {}

    def kept(path: tuple[Any, ...], leaf: Any) -> Any:
        if not isinstance(leaf, DTensor):
            return leaf
        keys = tuple(getattr(part, "key", getattr(part, "idx", None)) for part in path)
        shards[keys] = leaf.detach().to_local().cpu()
        return None

    whole, fresh = tree_map_with_path(kept, state), run / "checkpoint.new"
    if not shards:
        _make(fresh)
        _put_in_place(run, fresh, whole, {})
        return
    in_first(lambda: _make(fresh))
    size, problem, checksum = dist.get_world_size(), "", ""
    name = f"shard-{dist.get_rank():05}-of-{size:05}.pt"
    try:
        checksum = _written(fresh / name, shards)
    except OSError as error:
        problem = f"a process cannot write to the folder of all: {fresh / name}: {error}"
    written: list[Any] = [None] * size
    dist.all_gather_object(written, (name, checksum, problem))
    for _, _, what in written:
        if what:
            raise OSError(what)
    in_first(lambda: _put_in_place(run, fresh, whole, {name: checksum for name, checksum, _ in written}))


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
    own = value.to(parameter.device, copy=True)
    return distribute_tensor(own, parameter.device_mesh, parameter.placements, src_data_rank=None)


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


def _written(path: Path, content: Any) -> str:
    try:
        torch.save(content, path)
        torch.load(path, "cpu", weights_only=True, mmap=True)
    except UnpicklingError:
        raise ParameterError("state", path.name, "of tensors, numbers, strings, dicts, lists and None alone") from None
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


def spread(model: torch.nn.Module) -> None:
    """Shard every block of a list of blocks, and the model around them, unless they are sharded."""
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        return
    for module in list(model.modules()):
        if isinstance(module, torch.nn.ModuleList):
            for block in module:
                if list(block.children()):  # a layer by itself stays with what is around it
                    fully_shard(block)
    fully_shard(model)


def squared_norm(value: torch.Tensor) -> torch.Tensor:
    """Compute the squared norm of a tensor over all processes that have a part of it; call it in each of them."""
    total = (value.to_local() if isinstance(value, DTensor) else value).double().square().sum()
    if isinstance(value, DTensor):
        total = total.cpu()
        dist.all_reduce(total)
    return total


def whole_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Gather the weights in the first process' memory, one tensor after the other; call it in each process."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole: dict[str, torch.Tensor] = get_model_state_dict(model, options=options)
    return whole
