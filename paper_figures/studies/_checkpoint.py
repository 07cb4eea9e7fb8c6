"""State of a run in one safetensors file, replaced whole: tensors, and everything else as JSON in its header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from dprmt._files import replacing


def save_checkpoint(path: Path, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
    """Write the file next to its place, then put it there in one move: a crash leaves the old one.

    Parameters
    ----------
    path : Path
        Where it belongs.
    tensors : mapping of str to Tensor
        Any dtype and device.
    facts : mapping of str to JSON values
        The rest.
    """
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as fresh:
        save_file(contiguous, fresh, metadata={"facts": json.dumps(dict(facts))})


def load_checkpoint(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """What `save_checkpoint` wrote.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    tensors : dict of Tensor
        On the CPU.
    facts : dict
        As saved, with lists in place of tuples.
    """
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["facts"])  # noqa: SIM118


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The state of an optimizer, apart into tensors and JSON values.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Whose state per parameter holds tensors and numbers, as that of all optimizers in use here does.

    Returns
    -------
    tensors : dict of Tensor
        By "optimizer/parameter/entry".
    facts : dict
        Numbers by the same names.
    """
    tensors: dict[str, torch.Tensor] = {}
    facts: dict[str, Any] = {}
    for number, state in optimizer.state_dict()["state"].items():
        for entry, value in state.items():
            kind: dict[str, Any] = tensors if isinstance(value, torch.Tensor) else facts
            kind[f"optimizer/{number}/{entry}"] = value
    return tensors, facts


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]
) -> None:
    """Give a fresh optimizer the state that `optimizer_tensors` took; its options stay as they are.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Of the same class and parameters.
    tensors : mapping of str to Tensor
        Others are ignored.
    facts : mapping of str to JSON values
        Others are ignored.
    """
    state: dict[int, dict[str, Any]] = {}
    for name, value in [*tensors.items(), *facts.items()]:
        kind, _, rest = name.partition("/")
        if kind == "optimizer":
            number, _, entry = rest.partition("/")
            state.setdefault(int(number), {})[entry] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
