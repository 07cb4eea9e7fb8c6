"""Shards, on disk too: every process writes the rows that it keeps, and any number of them read what they need.

A model is spread over the processes of a ``torchrun`` by ``fully_shard`` (FSDP2).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from dprmt._files import sync
from dprmt._validation import ParameterError, TrainingStateError

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


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


def in_memory(value: Any) -> Any:
    """Replace tensors on disk by tensors in memory, in dicts and lists."""
    if isinstance(value, SavedRows):
        return value.whole()
    if isinstance(value, Mapping):
        return {key: in_memory(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(in_memory(item) for item in value)
    return value


def write_shards(folder: Path, shards: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Write this process' rows, in all processes together, and return every file's name and digest, in the order of
    the rows.

    If one process cannot write, all raise an error.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    path, digest, problem = folder / f"shard-{rank:05}-of-{size:05}.safetensors", "", ""
    try:
        save_file({name: value.detach().cpu().contiguous() for name, value in shards.items()}, path)
        sync(path)
        digest = digest_of(path)
    except (OSError, SafetensorError) as error:
        problem = f"{path}: {error}"
    said: list[Any] = [None] * size
    dist.all_gather_object(said, (path.name, digest, problem))
    for _, _, what in said:
        if what:
            raise OSError(what)
    return [[name, digest] for name, digest, _ in said]


def write_whole_tensors(path: Path, state: Mapping[str, torch.Tensor]) -> None:
    """Write shards and other values as whole tensors from the first process; call it in each process.

    No process has more than one whole tensor in memory. If the first process cannot write, all raise an error.
    """
    is_first, problem = dist.get_rank() == 0, ""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("wb")) if is_first else None
            _put(file, _header(state))
        except OSError as error:
            problem = f"{path}: {error}"
        for value in state.values():
            whole = value.detach().full_tensor() if isinstance(value, DTensor) else value.detach()
            try:
                if is_first and not problem:  # the others go on gathering
                    _put(file, whole.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
            except OSError as error:
                problem = f"{path}: {error}"
    try:
        if is_first and not problem:
            sync(path)
    except OSError as error:
        problem = f"{path}: {error}"
    said = [problem]
    dist.broadcast_object_list(said, 0)
    if said[0]:
        raise OSError(said[0])


def _put(file: IO[bytes] | None, content: bytes | memoryview) -> None:
    if file is not None:
        file.write(content)


def _header(state: Mapping[str, torch.Tensor]) -> bytes:
    """Build the header of a safetensors file with the tensors in order."""
    places: dict[str, Any] = {}
    end = 0
    for name, value in state.items():
        start, end = end, end + value.numel() * value.element_size()
        places[name] = {"dtype": _DTYPES[value.dtype], "shape": list(value.shape), "data_offsets": [start, end]}
    text = json.dumps(places).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def check_shards(folder: Path, written: list[list[str]]) -> None:
    """Raise unless the files are there and as they were written."""
    for name, digest in written:
        if digest_of(folder / name) != digest:
            raise ValueError(f"{name}: its content and its checksum differ")


def check_shared(folder: Path) -> None:
    """Raise, in all processes, unless the folder is there for each of them."""
    seen: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seen, folder.exists())
    if not all(seen):
        raise ParameterError(
            "out", str(folder), f"a folder that all processes see; process {seen.index(False)} does not"
        )


def check_seen(folder: Path, written: list[list[str]]) -> None:
    """Raise if other processes wrote where this one does not see it."""
    for name, _ in written:
        if not (folder / name).exists():
            raise ParameterError("out", str(folder.parent), f"a folder that all processes see; {name} is not there")


def digest_of(path: Path) -> str:
    """Digest a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def local(value: torch.Tensor) -> torch.Tensor:
    """Return this process' part of a tensor."""
    return value.to_local() if isinstance(value, DTensor) else value


def squared_norm(value: torch.Tensor) -> torch.Tensor:
    """Compute the squared norm of a tensor over all processes that have a part of it; call it in each of them."""
    total = local(value).double().square().sum()
    if isinstance(value, DTensor):
        total = total.cpu()
        dist.all_reduce(total)
    return total


def sharded_parameters(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Map sharded parameters by name, without any that an evaluation has gathered."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    return dict(model.named_parameters())


def like(value: torch.Tensor | SavedRows, parameter: torch.Tensor) -> torch.Tensor:
    """Return this process' part of a saved tensor, if the parameter is a shard with its shape."""
    if isinstance(parameter, DTensor) and tuple(value.shape) == tuple(parameter.shape):
        first, end = own_rows(parameter)
        own = value.rows(first, end) if isinstance(value, SavedRows) else value[first:end].clone()
        own, shape = own.to(parameter.to_local().device), {"shape": parameter.shape, "stride": parameter.stride()}
        return DTensor.from_local(own, parameter.device_mesh, parameter.placements, run_check=False, **shape)
    return value.whole() if isinstance(value, SavedRows) else value


def own_rows(parameter: DTensor) -> tuple[int, int]:
    """Return the first row that this process keeps, and the one after its last: ``fully_shard`` cuts as
    ``torch.chunk``.
    """
    rows, mesh = parameter.shape[0], parameter.device_mesh
    most = -(-rows // mesh.size())
    first, end = (min(rows, place * most) for place in (mesh.get_local_rank(), mesh.get_local_rank() + 1))
    if end - first != len(parameter.to_local()):
        raise TrainingStateError(f"{len(parameter.to_local())} of {rows} rows are here: not a chunk of equal ones")
    return first, end


def optimizer_state_like(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return a saved optimizer state whose tensors are cut as the parameters are."""
    moved = [value for group in optimizer.param_groups for value in group["params"]]
    own = {
        key: {
            name: like(value, moved[key]) if isinstance(value, torch.Tensor | SavedRows) else value
            for name, value in row.items()
        }
        for key, row in state["state"].items()
    }
    return state | {"state": own}
