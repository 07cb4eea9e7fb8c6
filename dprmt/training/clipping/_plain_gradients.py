"""Forward passes after which autograd forms no gradient of a layer's parameters: the hooks have all that is summed.

The sum over samples that autograd would form, one of a layer's three products, is private and thrown away. What the
hooks capture are inputs and output gradients; they do not change where parameters are constants of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from dprmt.training.clipping._trainable_modules import embedding_scale, is_matrix

_KINDS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class WithoutPlainGradients:
    """Takes the place of ``module.forward``, with the same output.

    ``is_on``: says at each pass whether autograd may leave the parameters' gradients out.
    ``note``: is told of the module, its inputs and its output when it does.
    """

    def __init__(
        self,
        module: nn.Module,
        is_on: Callable[[], bool],
        note: Callable[[nn.Module, Sequence[Any], torch.Tensor], None],
    ) -> None:
        self._module, self._forward, self._is_on, self._note = module, module.forward, is_on, note
        module.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns."""
        module = self._module
        if not (self._is_on() and module.training and torch.is_grad_enabled()) or torch.compiler.is_compiling():
            return self._forward(*args, **kwargs)
        own: dict[str, Any] = module._parameters
        module.__dict__["_parameters"] = {n: None if value is None else value.detach() for n, value in own.items()}
        try:
            output = self._forward(*args, **kwargs)
        finally:
            module.__dict__["_parameters"] = own
        if not output.requires_grad:
            # Without a graph behind its inputs the layer would have none, and its hooks would not be called.
            output = _WithGraph.apply(output, *filter(_is_trained, own.values()))
        self._note(module, args, output)
        return output

    def remove(self) -> None:
        """Give the module its own forward pass back."""
        if vars(self._module).get("forward") is self:
            vars(self._module).pop("forward")


def spares_plain_gradients(module: nn.Module) -> bool:
    """Whether the module's class, and no patch of somebody else's, says what its forward pass is."""
    kind = type(module)
    own = getattr(kind.forward, "__module__", None) == kind.__module__
    known = is_matrix(module) or kind in _KINDS or embedding_scale(module) is not None
    return known and own and "forward" not in vars(module)


class _WithGraph(torch.autograd.Function):  # type: ignore[misc]  # torch is skipped by mypy
    """A tensor as a function of parameters, which get no gradient from it."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.parameters = len(parameters)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, ...]:
        return (None,) * (1 + ctx.parameters)


def _is_trained(parameter: torch.Tensor | None) -> bool:
    return parameter is not None and parameter.requires_grad
