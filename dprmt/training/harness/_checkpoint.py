"""Checkpoints: tensors in safetensors, all else in JSON, replaced as a whole or not at all.

For a sharded model each process writes its shards, and the first writes all else.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor

from dprmt._files import sync
from dprmt._validation import ParameterError
from dprmt.training.harness._shard_files import SavedRows, check_seen, check_shards, write_shards
from dprmt.training.private_run._processes import in_first

_TENSORS, _DOCUMENT = "tensors.safetensors", "document.json"
_FOLDERS = ("checkpoint", "checkpoint.previous")


def save_checkpoint(run: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint next to the last one, then replace it; in all processes, if there are shards."""
    tensors: dict[str, torch.Tensor] = {}
    shards: dict[str, torch.Tensor] = {}
    document = _encode(state, "state", tensors, shards)
    fresh = run / "checkpoint.new"
    if not shards:
        _make(fresh)
        _put_in_place(run, fresh, tensors, {"state": document}, document)
        return
    in_first(lambda: _make(fresh))
    written = write_shards(fresh, shards)
    in_first(lambda: check_seen(fresh, written))
    whole = {"state": document, "shards": written}
    in_first(lambda: _put_in_place(run, fresh, tensors, whole, [document, written]))


def load_checkpoint(run: Path, device: torch.device | str = "cpu", *, lazily: bool = False) -> dict[str, Any] | None:
    """Return the last whole checkpoint of a run; ``lazily``: with `SavedRows` in the place of tensors."""
    damage = None
    for folder in (run / name for name in _FOLDERS):
        if folder.exists():
            try:
                return _read(folder, device, lazily)
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
    state = load_checkpoint(Path(run), lazily=True)
    if state is None:
        raise ParameterError("run", str(run), "the folder of a run with a checkpoint")
    return {name: value.whole() for name, value in state["parameters"].items()}


def _make(fresh: Path) -> None:
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)


def _put_in_place(
    run: Path, fresh: Path, tensors: dict[str, torch.Tensor], document: dict[str, Any], signed: Any
) -> None:
    try:
        save_file(tensors, fresh / _TENSORS)
    except SafetensorError as error:
        raise OSError(f"{fresh / _TENSORS}: {error}") from None
    whole = document | {"digest": _digest(fresh / _TENSORS, signed)}
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


def _read(folder: Path, device: torch.device | str, lazily: bool) -> dict[str, Any]:
    document = json.loads((folder / _DOCUMENT).read_text(encoding="utf-8"))
    if not isinstance(document, dict) or document.keys() - {"shards"} != {"state", "digest"}:
        raise ValueError(f"{_DOCUMENT}: not a checkpoint")
    written = document.get("shards", [])
    signed = [document["state"], written] if written else document["state"]
    if document["digest"] != _digest(folder / _TENSORS, signed):
        raise ValueError("its content and its checksum differ")
    check_shards(folder, written)
    reader = _Reader(folder, [str(folder / name) for name, _ in written], device, lazily)
    state: dict[str, Any] = reader.decode(document["state"])
    return state


def _digest(tensors: Path, document: Any) -> str:
    # Protects against disk errors and accidents, not against a forged checkpoint.
    with tensors.open("rb") as file:
        digest = hashlib.file_digest(file, "blake2b")
    digest.update(json.dumps(document).encode())
    return digest.hexdigest()


def _encode(value: Any, name: str, tensors: dict[str, torch.Tensor], shards: dict[str, torch.Tensor]) -> Any:
    # Dicts become lists of pairs (JSON would turn integer keys into strings), tensors their name.
    if isinstance(value, DTensor):
        shards[name] = value.detach().to_local()
        return {"shards": [name, list(value.shape)]}
    if isinstance(value, torch.Tensor):
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, dict):
        wrong = [key for key in value if not isinstance(key, str | int) or isinstance(key, bool)]
        if wrong:
            raise ParameterError(name, wrong[0], "a dict with strings and integers for keys")
        return {"dict": [[key, _encode(item, f"{name}.{key}", tensors, shards)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        items = [_encode(item, f"{name}.{place}", tensors, shards) for place, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ParameterError(
        name, type(value).__name__, "a tensor, number, string, boolean, None, or a dict or list of such"
    )


class _Reader:
    """Tensors in the place of their names."""

    def __init__(self, folder: Path, shards: list[str], device: torch.device | str, lazily: bool) -> None:
        self._file, self._shards, self._device, self._lazily = str(folder / _TENSORS), tuple(shards), device, lazily
        if lazily:
            with safe_open(self._file, "pt") as file:
                self._shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        else:
            self._tensors = load_file(self._file, device=str(device))

    def decode(self, value: Any) -> Any:
        """Decode an encoded value."""
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind == "tensor":
            return SavedRows((self._file,), content, self._shapes[content]) if self._lazily else self._tensors[content]
        if kind == "shards":
            name, shape = content
            rows = SavedRows(self._shards, name, tuple(shape))
            return rows if self._lazily else rows.whole().to(self._device)
        if kind == "dict":
            return {key: self.decode(item) for key, item in content}
        items = [self.decode(item) for item in content]
        return tuple(items) if kind == "tuple" else items
