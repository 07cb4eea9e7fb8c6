"""Uses of layers whose parameters are constants of the graph: whether each one is captured, as it was.

Autograd forms no gradient there that what was captured could be compared with. So the factors themselves are: what
went into the layer's own forward pass, and the gradient that came to what it gave, against what the hooks captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_SAME = 1e-3  # of the largest entry: what is run again may round otherwise


@dataclass(frozen=True)
class _Factors:
    """A fingerprint of a layer's inputs, and the gradient of its output."""

    inputs: torch.Tensor
    gradient: torch.Tensor


class ConstantUses:
    """Of one forward pass and its backward pass, forgotten by :meth:`forget`.

    ``notes``: whether forward passes are noted.
    ``asks``: whether a backward pass is one of which nothing is captured.
    """

    def __init__(self) -> None:
        self.notes, self.asks = True, False
        self.forget()

    @property
    def modules(self) -> frozenset[nn.Module]:
        """Of which a use was noted."""
        return frozenset(self._arrived)

    @property
    def unlike(self) -> list[nn.Module]:
        """Those of which something else was captured than was used, or nothing."""
        return [module for module in self._arrived if self._arrived[module] or self._captured[module]]

    def note(self, module: nn.Module, inputs: Sequence[Any], output: torch.Tensor) -> None:
        """Note a use in the forward pass."""
        if not (self.notes and inputs and isinstance(inputs[0], torch.Tensor)):
            return
        self._arrived.setdefault(module, [])
        self._captured.setdefault(module, [])
        of_inputs, arrived = fingerprint(inputs[0]), self._arrived

        def arrives(gradient: torch.Tensor) -> None:
            if not self.asks and self._arrived is arrived:
                self._meet(module, self._arrived, self._captured, _Factors(of_inputs, gradient))

        output.register_hook(arrives)

    def capture(self, module: nn.Module, inputs: Sequence[torch.Tensor], gradient: torch.Tensor) -> None:
        """Note what the hooks have of a use, before or after its gradient arrives."""
        if module in self._captured:
            self._meet(module, self._captured, self._arrived, _Factors(fingerprint(inputs[0]), gradient))

    def forget(self) -> None:
        """Discard a forward pass."""
        self._arrived: dict[nn.Module, list[_Factors]] = {}
        self._captured: dict[nn.Module, list[_Factors]] = {}

    def _meet(
        self,
        module: nn.Module,
        own: dict[nn.Module, list[_Factors]],
        others: dict[nn.Module, list[_Factors]],
        factors: _Factors,
    ) -> None:
        """Strike out the same factors on the other side, or leave them there for the other side."""
        for place, other in enumerate(others[module]):
            if _same_gradient(factors.gradient, other.gradient) and _close(factors.inputs, other.inputs):
                del others[module][place]
                return
        own[module].append(factors)


def fingerprint(values: torch.Tensor) -> torch.Tensor:
    """A number for every row of the last axis, of weights that no code of a model has."""
    dtype = torch.promote_types(values.dtype, torch.float32) if values.is_floating_point() else torch.float64
    rows = values.detach().reshape(-1, values.shape[-1] if values.ndim else 1).to(dtype)
    with torch.autocast(values.device.type, enabled=False):
        return rows @ torch.arange(1, rows.shape[1] + 1, dtype=dtype, device=values.device).cos_()


def _same_gradient(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.data_ptr() == other.data_ptr() and one.stride() == other.stride():
        return True
    return torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or not one.numel():
        return one.shape == other.shape
    largest = float(one.nan_to_num(0.0, 0.0, 0.0).abs().max())
    return torch.allclose(one, other.to(one.dtype), rtol=_SAME, atol=_SAME * largest, equal_nan=True)
