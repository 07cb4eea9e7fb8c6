"""The guard against silent failures: parameters that are trained in name only."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from dprmt._validation import ParameterError
from dprmt.training.harness._shards import local, sharded_parameters


class SilentParameterError(RuntimeError):
    """A trainable parameter that gets no gradient, or does not move, or a frozen one that does.

    Parameters
    ----------
    names : list of str
        The parameters.
    what : str
        What is wrong with them.
    """

    def __init__(self, names: list[str], what: str) -> None:
        shown = ", ".join(names[:5]) + (f", … ({len(names)} in all)" if len(names) > 5 else "")
        super().__init__(f"{what}: {shown}")
        self.names, self.what = names, what

    def __reduce__(self) -> tuple[type, tuple[list[str], str]]:  # for the processes of a sweep
        return type(self), (self.names, self.what)


def check_gradients_arrive(model: torch.nn.Module, losses: Callable[[], torch.Tensor]) -> None:
    """Raise unless every trainable parameter has a gradient that is not 0, on made-up input.

    With noise every parameter moves, also one that is not connected to the loss: the noise hides it. So this is
    checked beforehand, on random input, which costs no privacy. Parameters that are all 0 (LoRA's B, whose zeros stop
    the gradient of A) are replaced for the check.

    ``model``: without per-sample hooks. Its parameters and gradients are as before afterwards.
    """
    trainable = {name: value for name, value in model.named_parameters() if value.requires_grad}
    if not trainable:
        raise ParameterError("model", type(model).__name__, "a model with trainable parameters")
    kept = {name: value.detach().clone() for name, value in trainable.items()}
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for value in trainable.values():
                if not value.any():
                    value.copy_(0.02 * torch.randn(value.shape, generator=generator).to(value))
        model.zero_grad(set_to_none=True)
        losses().sum().backward()
        silent = [name for name, value in trainable.items() if value.grad is None or not value.grad.any()]
    finally:
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, value in trainable.items():
                value.copy_(kept[name])
    if silent:
        raise SilentParameterError(silent, "trainable parameters get no gradient")


def snapshot(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copy the trainable parameters."""
    return {name: value.detach().clone() for name, value in model.named_parameters() if value.requires_grad}


def check_parameters_moved(model: torch.nn.Module, before: Mapping[str, torch.Tensor]) -> None:
    """Raise unless every parameter differs from its snapshot."""
    now = sharded_parameters(model)
    pairs = {name: (local(now[name].detach()), local(value)) for name, value in before.items()}
    still = [name for name, (one, other) in pairs.items() if len(one.flatten()) and torch.equal(one, other)]
    if still:
        raise SilentParameterError(still, "trainable parameters did not change")
