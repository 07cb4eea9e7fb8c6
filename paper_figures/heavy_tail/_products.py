r"""The two matrix products of a step, Wx for all samples and Σ rᵢxᵢᵀ: with floating-point inputs or 8-bit ones.

A processor multiplies 8-bit integers about four times as fast as float32 numbers. With inputs ``x = (q + 128)/255``
for q in -128 … 127, and the other factor as ``unit·(256 h + l)`` for h and l in -128 … 127, a product with x is two
products of 8-bit integers, exact in 32 bits, and a sum. So the other factor keeps 16 bits, of which bfloat16 has 8.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch

from dprmt._validation import ParameterError
from dprmt.training.norms import DEFAULT_ROUNDING

_LEVELS = 32512  # the largest whole number that 256 h + l can be either sign of
_LONGEST = 2**17 - 1  # terms of a sum of products of two 8-bit numbers that surely fit into 32 bits


class Inputs(Protocol):
    """Samples that a linear model is trained on, with the products of a step."""

    @property
    def shape(self) -> torch.Size:
        """(n, d)."""

    def rounding(self, classes: int) -> float:
        """By how much more than the clipping norm a clipped row can count, relative to it (ρ of `clip_factors`)."""

    def squared_norms(self) -> torch.Tensor:
        """‖x‖² in float64, shape (n,)."""

    def logits(self, weight: torch.Tensor) -> torch.Tensor:
        """Wx, shape (n, c), for W of shape (c, d) and in its dtype."""

    def weighted_sum(self, rows: torch.Tensor, clipping_norm: float) -> torch.Tensor:
        """Σ rᵢxᵢᵀ, shape (c, d), for rows of shape (n, c) with ``‖rᵢ‖‖xᵢ‖ <= C`` and in their dtype."""


class FloatInputs:
    """Samples as they are; the products run in their dtype.

    Parameters
    ----------
    values : Tensor, shape (n, d)
        float64, float32 or bfloat16.

    Examples
    --------
    >>> FloatInputs(torch.eye(2)).logits(torch.tensor([[3.0, 4.0]]))
    tensor([[3.],
            [4.]])
    """

    def __init__(self, values: torch.Tensor) -> None:
        if values.ndim != 2:
            raise ParameterError("inputs", tuple(values.shape), "of shape (n, d)")
        self.values = values

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    def rounding(self, classes: int) -> float:
        del classes
        return 2.0**-8 if self.values.dtype == torch.bfloat16 else DEFAULT_ROUNDING  # 2⁻⁹ per entry of the rows

    def squared_norms(self) -> torch.Tensor:
        return self.values.double().square().sum(1)

    def logits(self, weight: torch.Tensor) -> torch.Tensor:
        return (self.values @ weight.to(self.values.dtype).T).to(weight.dtype)

    def weighted_sum(self, rows: torch.Tensor, clipping_norm: float) -> torch.Tensor:
        del clipping_norm
        return (rows.to(self.values.dtype).T @ self.values).to(rows.dtype)


class EightBitInputs:
    """Samples in [0, 1], rounded to whole multiples of 1/255; the products are sums of 8-bit ones.

    Parameters
    ----------
    values : Tensor, shape (n, d)
        Entries in [0, 1]; n and d up to 131,071.

    Raises
    ------
    ParameterError
        If shape or range is another, or they are not on the CPU.

    Formal guarantees
    -----------------
    `weighted_sum` rounds every row on its own, to a lattice that depends on C and d alone, so a sample moves the sum by
    what it adds itself. A row beyond the lattice, which takes ``‖x‖ < √d/2``, is cut, never wrapped around. Rounding
    moves a row by at most ``√c C/(32512 √d)``, which times ``‖x‖ <= √d`` is ``√c C/32512`` of the sum: `rounding`.

    Examples
    --------
    >>> inputs = EightBitInputs(torch.tensor([[1.0, 0.2]]))
    >>> inputs.logits(torch.tensor([[3.0, 5.0]]))
    tensor([[4.0000]])
    """

    def __init__(self, values: torch.Tensor) -> None:
        if values.device.type != "cpu":
            raise ParameterError("precision", "int8", f"float32 or bfloat16 on a {values.device.type} device")
        if values.ndim != 2 or max(values.shape) > _LONGEST:
            raise ParameterError("inputs", tuple(values.shape), f"of shape (n, d), both at most {_LONGEST}")
        if not bool(((values >= 0) & (values <= 1)).all()):
            raise ParameterError("inputs", [float(values.min()), float(values.max())], "entries in [0, 1]")
        self._steps = (255 * values).round().sub_(128).to(torch.int8)

    @property
    def shape(self) -> torch.Size:
        return self._steps.shape

    def rounding(self, classes: int) -> float:
        return DEFAULT_ROUNDING + math.sqrt(classes) / _LEVELS

    def values(self) -> torch.Tensor:
        """The samples after rounding, float64, shape (n, d)."""
        return (self._steps.double() + 128) / 255

    def squared_norms(self) -> torch.Tensor:
        return torch.cat([((part.double() + 128) / 255).square().sum(1) for part in self._steps.split(1024)])

    def logits(self, weight: torch.Tensor) -> torch.Tensor:
        units = weight.abs().amax(1) / _LEVELS
        units = torch.where(units > 0, units, 1.0)
        return self._times(self._steps, (weight / units[:, None]).T, units)

    def weighted_sum(self, rows: torch.Tensor, clipping_norm: float) -> torch.Tensor:
        unit = 2 * clipping_norm / (math.sqrt(self.shape[1]) * _LEVELS)
        return self._times(self._steps.T, rows / unit, unit).T.contiguous()

    @staticmethod
    def _times(steps: torch.Tensor, factor: torch.Tensor, unit: Any) -> torch.Tensor:
        # (steps + 128)/255 @ factor·unit, the factor rounded to whole numbers of 16 bits
        whole = factor.round().clamp_(-_LEVELS, _LEVELS)
        high = (whole + 128).mul_(2.0**-8).floor_()
        columns = whole.shape[1]
        planes = torch.zeros(len(whole), -(-2 * columns // 16) * 16, dtype=torch.int8, device=whole.device)
        planes[:, :columns] = high
        planes[:, columns : 2 * columns] = whole.sub(high, alpha=256)
        products = torch._int_mm(steps, planes)
        result = products[:, columns : 2 * columns].to(factor.dtype).add_(products[:, :columns], alpha=256)
        shift = 128 * whole.sum(0, dtype=torch.float64)
        return result.add_(shift.to(factor.dtype)).mul_(unit / 255)
