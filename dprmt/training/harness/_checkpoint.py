"""Checkpoints: tensors in safetensors, all else in JSON, replaced as a whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from dprmt._files import sync
from dprmt._validation import ParameterError

_TENSORS, _DOCUMENT = "tensors.safetensors", "document.json"
_FOLDERS = ("checkpoint", "checkpoint.previous")


def save_checkpoint(run: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint beside the last one, then put it in its place."""
    tensors: dict[str, torch.Tensor] = {}
    document = _encode(state, "state", tensors)
    current, previous = (run / name for name in _FOLDERS)
    fresh = run / "checkpoint.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    try:
        save_file(tensors, fresh / _TENSORS)
    except SafetensorError as error:
        raise OSError(f"{fresh / _TENSORS}: {error}") from None
    whole = {"state": document, "digest": _digest(fresh / _TENSORS, document)}
    (fresh / _DOCUMENT).write_text(json.dumps(whole), encoding="utf-8")
    for name in (_TENSORS, _DOCUMENT):
        sync(fresh / name)
    sync(fresh)
    # At every instant one of `checkpoint` and `checkpoint.previous` is whole.
    shutil.rmtree(previous, ignore_errors=True)
    if current.exists():
        current.rename(previous)
    fresh.rename(current)
    sync(run)


def load_checkpoint(run: Path, device: torch.device | str = "cpu") -> dict[str, Any] | None:
    """The last whole checkpoint of a run."""
    damage = None
    for folder in (run / name for name in _FOLDERS):
        if folder.exists():
            try:
                return _read(folder, device)
            except (OSError, ValueError, KeyError, SafetensorError) as error:
                damage = damage or error
    if damage is not None:
        raise ParameterError("resume", str(run), f"given for a run with a checkpoint that can be read ({damage})")
    return None


def load_parameters(run: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """The trained parameters in the last checkpoint of a run.

    Parameters
    ----------
    run : path
        A run folder, finished or not.

    Returns
    -------
    dict of Tensor
        By name, on the CPU.

    Raises
    ------
    ParameterError
        If there is no checkpoint.

    Formal guarantees
    -----------------
    Private to what ``privacy.jsonl`` says at its end, as `dprmt.training.harness.train` guarantees.

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


def _read(folder: Path, device: torch.device | str) -> dict[str, Any]:
    document = json.loads((folder / _DOCUMENT).read_text(encoding="utf-8"))
    if not isinstance(document, dict) or document.keys() != {"state", "digest"}:
        raise ValueError(f"{_DOCUMENT}: not that of a checkpoint")
    if document["digest"] != _digest(folder / _TENSORS, document["state"]):
        raise ValueError("its content and its checksum differ")
    state: dict[str, Any] = _decode(document["state"], load_file(folder / _TENSORS, device=str(device)))
    return state


def _digest(tensors: Path, document: Any) -> str:
    # Against a disk that errs and a hand that slips, not against whoever writes checkpoints on purpose.
    with tensors.open("rb") as file:
        digest = hashlib.file_digest(file, "blake2b")
    digest.update(json.dumps(document).encode())
    return digest.hexdigest()


def _encode(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    # Dicts become lists of pairs (JSON would turn integer keys into strings), tensors their name.
    if isinstance(value, torch.Tensor):
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, dict):
        wrong = [key for key in value if not isinstance(key, str | int) or isinstance(key, bool)]
        if wrong:
            raise ParameterError(name, wrong[0], "a dict with strings and integers for keys")
        return {"dict": [[key, _encode(item, f"{name}.{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        items = [_encode(item, f"{name}.{place}", tensors) for place, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ParameterError(
        name, type(value).__name__, "a tensor, number, string, boolean, None, or a dict or list of such"
    )


def _decode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _decode(item, tensors) for key, item in content}
    items = [_decode(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items
