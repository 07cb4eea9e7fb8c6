"""Checkpoints: tensors in safetensors, all else in JSON, replaced as a whole or not at all.

For a sharded model each process writes the rows that it keeps, and the first writes all else. Any number of processes
read the rows that they need.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_flatten_with_path, tree_unflatten, treespec_dumps, treespec_loads

from dprmt._files import sync
from dprmt._validation import ParameterError
from dprmt.training.harness._shards import own_rows
from dprmt.training.private_run._randomness import in_first

_TENSORS, _DOCUMENT = "tensors.safetensors", "document.json"
_FOLDERS = ("checkpoint", "checkpoint.previous")


@dataclass(frozen=True)
class SavedRows:
    """A tensor on disk, in files with consecutive rows; it is read when used.

    Attributes
    ----------
    files : tuple of str
        Files in the order of their rows.
    name : str
        Name of the tensor in each file.
    shape : tuple of int
        Shape of all rows together.
    """

    files: tuple[str, ...]
    name: str
    shape: tuple[int, ...]

    def whole(self) -> torch.Tensor:
        """Return all of it."""
        if not self.shape:
            with safe_open(self.files[0], "pt") as file:
                return file.get_tensor(self.name)
        return self.rows(0, self.shape[0])

    def rows(self, first: int, end: int) -> torch.Tensor:
        """Return rows from ``first`` to before ``end``."""
        pieces, start = [], 0
        for path in self.files:
            with safe_open(path, "pt") as file:
                stored = file.get_slice(self.name)
                count = stored.get_shape()[0]
                low, high = max(first - start, 0), min(end - start, count)
                pieces.append(stored[low:high] if low < high else stored[:0])
            start += count
        kept = [piece for piece in pieces if len(piece)] or pieces[:1]
        return kept[0] if len(kept) == 1 else torch.cat(kept)


def save_checkpoint(run: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint next to the last one, then replace it; in all processes, if there are shards."""
    found, structure = tree_flatten_with_path(state)
    tensors: dict[str, torch.Tensor] = {}
    shards: dict[str, torch.Tensor] = {}
    leaves: list[Any] = []
    for path, leaf in found:
        name = ".".join(["state", *(str(getattr(part, "key", getattr(part, "idx", ""))) for part in path)])
        if isinstance(leaf, DTensor):
            shards[name] = leaf.detach().to_local().cpu().contiguous()
            leaves.append({"shards": [name, list(leaf.shape)]})
        elif isinstance(leaf, torch.Tensor):
            tensors[name] = leaf.detach().cpu().contiguous().clone()
            leaves.append({"tensor": name})
        elif leaf is None or isinstance(leaf, bool | int | float | str):
            leaves.append(leaf)
        else:
            raise ParameterError(name, type(leaf).__name__, "a tensor, number, string, boolean, None, dict or list")
    document = {"structure": treespec_dumps(structure), "leaves": leaves}
    fresh = run / "checkpoint.new"
    if not shards:
        _make(fresh)
        _put_in_place(run, fresh, tensors, document, [])
        return
    in_first(lambda: _make(fresh))
    written = _write_shards(fresh, shards)
    in_first(lambda: _put_in_place(run, fresh, tensors, document, written))


def load_checkpoint(run: Path, *, lazily: bool = False) -> dict[str, Any] | None:
    """Return the last whole checkpoint of a run; ``lazily``: with `SavedRows` in the place of shards."""
    damage = None
    for folder in (run / name for name in _FOLDERS):
        if folder.exists():
            try:
                return _read(folder, lazily)
            except (OSError, ValueError, KeyError, RecursionError, SafetensorError) as error:
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
    parameters: dict[str, torch.Tensor] = state["parameters"]
    return parameters


def like(value: Any, parameter: torch.Tensor | None) -> Any:
    """Return this process' part of a saved tensor, if the parameter is a shard with its shape."""
    if not isinstance(parameter, DTensor) or getattr(value, "shape", None) != tuple(parameter.shape):
        return value.whole() if isinstance(value, SavedRows) else value
    first, end = own_rows(parameter)
    own = value.rows(first, end) if isinstance(value, SavedRows) else value[first:end]
    shape = {"shape": parameter.shape, "stride": parameter.stride()}
    own = own.to(parameter.to_local().device)
    return DTensor.from_local(own, parameter.device_mesh, parameter.placements, run_check=False, **shape)


def optimizer_state_like(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return a saved optimizer state whose tensors are cut as the parameters are."""
    moved = [value for group in optimizer.param_groups for value in group["params"]]
    rows = state["state"].items()
    own = {key: {name: like(value, moved[key]) for name, value in row.items()} for key, row in rows}
    return state | {"state": own}


def _make(fresh: Path) -> None:
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)


def _put_in_place(
    run: Path, fresh: Path, tensors: dict[str, torch.Tensor], state: dict[str, Any], shards: list[list[str]]
) -> None:
    try:
        save_file(tensors, fresh / _TENSORS)
    except SafetensorError as error:
        raise OSError(f"{fresh / _TENSORS}: {error}") from None
    for name, _ in shards:
        if not (fresh / name).exists():
            raise ParameterError("out", str(run), f"a folder that all processes see; {name} is not there")
    document = {"state": state, "shards": shards}
    whole = document | {"digest": _digest(fresh / _TENSORS, document)}
    (fresh / _DOCUMENT).write_text(json.dumps(whole), encoding="utf-8")
    for name in (_TENSORS, _DOCUMENT):
        sync(fresh / name)
    sync(fresh)
    # At every instant one of `checkpoint` and `checkpoint.previous` is whole.
    current, previous = (run / name for name in _FOLDERS)
    shutil.rmtree(previous, ignore_errors=True)
    if current.exists():
        current.rename(previous)
    fresh.rename(current)
    sync(run)


def _write_shards(folder: Path, shards: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Write this process' rows, in all processes, and return every file's name and digest, in the order of the rows.

    If one process cannot write, all raise an error.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    path, digest, problem = folder / f"shard-{rank:05}-of-{size:05}.safetensors", "", ""
    try:
        save_file(shards, path)
        sync(path)
        digest = _digest(path)
    except (OSError, SafetensorError) as error:
        problem = f"{path}: {error}"
    said: list[Any] = [None] * size
    dist.all_gather_object(said, (path.name, digest, problem))
    for _, _, what in said:
        if what:
            raise OSError(what)
    return [[name, digest] for name, digest, _ in said]


def _read(folder: Path, lazily: bool) -> dict[str, Any]:
    document = json.loads((folder / _DOCUMENT).read_text(encoding="utf-8"))
    if not isinstance(document, dict) or document.keys() != {"state", "shards", "digest"}:
        raise ValueError(f"{_DOCUMENT}: not a checkpoint")
    digest = document.pop("digest")
    if digest != _digest(folder / _TENSORS, document):
        raise ValueError("its content and its checksum differ")
    for name, digest in document["shards"]:
        if digest != _digest(folder / name):
            raise ValueError(f"{name}: its content and its checksum differ")
    files = tuple(str(folder / name) for name, _ in document["shards"])
    tensors = load_file(folder / _TENSORS)

    def decode(leaf: Any) -> Any:
        if not isinstance(leaf, dict):
            return leaf
        if "tensor" in leaf:
            return tensors[leaf["tensor"]]
        name, shape = leaf["shards"]
        rows = SavedRows(files, name, tuple(shape))
        return rows if lazily else rows.whole()

    state = document["state"]
    found: dict[str, Any] = tree_unflatten(
        [decode(leaf) for leaf in state["leaves"]], treespec_loads(state["structure"])
    )
    return found


def _digest(path: Path, document: Any = None) -> str:
    # Protects against disk errors and accidents, not against a forged checkpoint.
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "blake2b")
    if document is not None:
        digest.update(json.dumps(document).encode())
    return digest.hexdigest()
