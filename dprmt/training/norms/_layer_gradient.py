"""The per-sample gradient of a linear-like layer, as products of its two factors that never form it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, SupportsIndex

import torch
from torch import nn

from dprmt._validation import ParameterError, check_count

Side = Literal["gradients", "activations"]
_BLOCK = {"cpu": 1 << 15}  # entries squared together: as many as caches hold, elsewhere 32 MiB
_LARGEST_BLOCK = 1 << 22


@dataclass(frozen=True)
class LayerGradient:
    """Per-sample matrices M_i = LᵀR from factors L (B, T, m) and R (B, T, n); M itself is never formed.

    For a linear layer L holds activations and R output gradients. A bias is one more activation that is
    always 1: its gradient is one more row of M, so whatever is true of M's norm is true of both together.

    ``left``, ``right``: the factors, of shapes (B, T, m) and (B, T, n), in the dtype of the products.
    ``rows``, ``columns``: of M; one more than the factor has where its last column, of ones, is not stored.
    """

    left: torch.Tensor
    right: torch.Tensor
    rows: int
    columns: int

    def transposed(self) -> LayerGradient:
        """Return the layer with Mᵀ instead of M: the same singular values."""
        return LayerGradient(self.right, self.left, self.columns, self.rows)

    def times(self, matrix: torch.Tensor) -> torch.Tensor:
        """Compute M @ matrix as Lᵀ(R @ matrix), with memory O(k(T + m)) per sample."""
        matrix, stored = matrix.to(self.left.dtype), self.right.shape[-1]
        with full_precision(self.left.device):
            product = self.right @ matrix[..., :stored, :]
            if self.columns > stored:
                product = product + matrix[..., stored:, :]
            rows = self.left.transpose(1, 2) @ product
            return torch.cat([rows, product.sum(1, keepdim=True)], 1) if self.rows > self.left.shape[-1] else rows


def layer_gradient(
    activations: torch.Tensor, gradients: torch.Tensor, bias: bool = False, side: Side | None = "gradients"
) -> LayerGradient:
    """Check both factors, bring them to (B, T, ·) and at least float32, and put the probes' side to the right.

    Returns
    -------
    LayerGradient
        M = AᵀG for ``side="gradients"``, GᵀA for ``"activations"``, and the `cheaper_side` for None.

    Raises
    ------
    ParameterError
        If the factors are not real floating tensors whose leading axes agree, or ``side`` is unknown.

    Examples
    --------
    >>> layer_gradient(torch.ones(2, 5, 3), torch.ones(2, 5, 4)).times(torch.ones(4, 1)).shape
    torch.Size([2, 3, 1])
    """
    a, g = token_factors(activations=activations, gradients=gradients)
    check_same_tokens(activations, gradients)
    d, p = a.shape[-1] + bias, g.shape[-1]
    if side not in ("gradients", "activations", None):
        raise ParameterError("side", side, "one of 'gradients', 'activations'")
    on_gradients = p <= d if side is None else side == "gradients"
    return LayerGradient(a, g, d, p) if on_gradients else LayerGradient(g, a, p, d)


def check_same_tokens(activations: torch.Tensor, gradients: torch.Tensor) -> None:
    """Raise unless two factors have the same samples and tokens, in one place."""
    if activations.shape[:-1] != gradients.shape[:-1]:
        allowed = f"of shape {(*activations.shape[:-1], 'p')}, as the activations"
        raise ParameterError("gradients", tuple(gradients.shape), allowed)
    if activations.device != gradients.device:
        raise ParameterError("gradients", gradients.device, f"on the device of the activations, {activations.device}")


def cheaper_side(in_features: SupportsIndex, out_features: SupportsIndex, *, bias: bool = False) -> Side:
    """Return the side on which fewer random numbers are needed; products cost the same on both.

    Parameters
    ----------
    in_features, out_features : int
        d and p, >= 1.
    bias : bool
        Whether the layer has a bias, which counts as one more input.

    Returns
    -------
    {"gradients", "activations"}
        The factor to multiply by the probes, chosen by the layer's shape alone.

    Raises
    ------
    ParameterError
        If a size is not an integer >= 1.

    Examples
    --------
    >>> cheaper_side(8, 768), cheaper_side(768, 8)
    ('activations', 'gradients')
    """
    rows = check_count("in_features", in_features) + bool(bias)
    return "gradients" if check_count("out_features", out_features) <= rows else "activations"


def token_factors(**factors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return factors with all axes between the first and the last taken as tokens, in one dtype.

    Parameters
    ----------
    **factors : Tensor, shape (B, ..., features)
        By the names under which errors speak of them.

    Returns
    -------
    tuple of Tensor, shape (B, T, features)
        Detached; in the widest of their dtypes, float32 at least. (B, features) becomes (B, 1, features).

    Raises
    ------
    ParameterError
        If one is not a real floating tensor with a batch axis and a feature axis.

    Examples
    --------
    >>> (factor,) = token_factors(gradients=torch.ones(2, 3, 4, 5, dtype=torch.bfloat16))
    >>> factor.shape, factor.dtype
    (torch.Size([2, 12, 5]), torch.float32)
    """
    dtype = check_factors(**factors)
    return tuple(
        value.detach().to(dtype).reshape(len(value), math.prod(value.shape[1:-1]), value.shape[-1])
        for value in factors.values()
    )


def check_factors(**factors: torch.Tensor) -> torch.dtype:
    """Return the widest of the factors' dtypes, float32 at least; raises as `token_factors` does."""
    dtype = torch.float32
    for name, value in factors.items():
        if not isinstance(value, torch.Tensor):
            raise ParameterError(name, type(value).__name__, "a torch tensor")
        if not value.is_floating_point():
            raise ParameterError(name, value.dtype, "of a real floating dtype")
        if value.ndim < 2 or value.shape[-1] == 0:
            raise ParameterError(name, tuple(value.shape), "of shape (B, ..., features) with at least one feature")
        dtype = torch.promote_types(dtype, value.dtype)
    return dtype


def sum_of_squares(values: torch.Tensor) -> torch.Tensor:
    """Return Σ v² over all but the first axis, in float64, where no square of a float32 under- or overflows.

    Blocks of 2¹⁵ entries are squared at a time (2²² on a device), so that no copy of the values is made.

    Returns
    -------
    Tensor, shape (B,)
        float64.

    Examples
    --------
    >>> sum_of_squares(torch.tensor([[3.0, 4.0]]))
    tensor([25.], dtype=torch.float64)
    """
    flat = values[..., None].flatten(1)
    block, width = _BLOCK.get(values.device.type, _LARGEST_BLOCK), flat.shape[1]
    if width <= block:
        return torch.cat([_squared_lengths(rows) for rows in flat.split(max(1, block // max(width, 1)))])
    each = [torch.stack([_squared_lengths(part) for part in row.split(block, 1)]).sum(0) for row in flat.split(1)]
    return torch.cat(each) if each else flat.new_zeros(0, dtype=torch.float64)


def _squared_lengths(rows: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).square()


def full_precision(device: torch.device) -> torch.autocast:
    """Switch autocasting off, since it would round a product of float32 factors to bfloat16.

    Returns
    -------
    torch.autocast
        A context manager.

    Examples
    --------
    >>> with torch.autocast("cpu", torch.bfloat16), full_precision(torch.device("cpu")):
    ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
    torch.float32
    """
    return torch.autocast(device.type, enabled=False)


def is_conv1d(module: nn.Module) -> bool:
    """Recognize by name the Conv1D of Transformers, a linear layer with weight (in, out) and gradient AᵀG.

    Parameters
    ----------
    module : Module
        Any module.

    Returns
    -------
    bool
        True if it is; subclasses are not. Transformers need not be installed.

    Examples
    --------
    >>> is_conv1d(nn.Linear(2, 3))
    False
    """
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"
