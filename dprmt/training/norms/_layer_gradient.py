"""The per-sample gradient of a linear-like layer, as products of its two factors that never form it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, SupportsIndex

import torch

from dprmt._validation import ParameterError, check_count

Side = Literal["gradients", "activations"]


@dataclass(frozen=True)
class LayerGradient:
    """Per-sample matrices M_i = LᵀR from factors L (B, T, m) and R (B, T, n); M itself is never formed.

    For a linear layer L holds activations and R output gradients. A bias is one more activation that is
    always 1: its gradient is one more row of M, so whatever is true of M's norm is true of both together.

    ``left``, ``right``: the factors, of shapes (B, T, m) and (B, T, n), in the dtype of the products.
    ``left_one``, ``right_one``: whether the factor has, after its last column, one more that is constantly 1 and not
    stored.
    """

    left: torch.Tensor
    right: torch.Tensor
    left_one: bool = False
    right_one: bool = False

    @property
    def columns(self) -> int:
        """Number of columns of M, the rows of what :meth:`times` accepts."""
        return self.right.shape[-1] + self.right_one

    def transposed(self) -> LayerGradient:
        """The layer with Mᵀ in place of M: the same singular values."""
        return replace(self, left=self.right, right=self.left, left_one=self.right_one, right_one=self.left_one)

    def times(self, matrix: torch.Tensor) -> torch.Tensor:
        """M @ matrix as Lᵀ(R @ matrix): memory O(k(T + m)) per sample."""
        stored = self.right.shape[-1]
        product = self.right @ matrix[..., :stored, :]
        if self.right_one:
            product = product + matrix[..., stored:, :]
        rows = self.left.transpose(1, 2) @ product
        return torch.cat([rows, product.sum(1, keepdim=True)], 1) if self.left_one else rows


def layer_gradient(
    activations: torch.Tensor, gradients: torch.Tensor, bias: bool = False, side: Side | None = "gradients"
) -> LayerGradient:
    """Check both factors, bring them to (B, T, ·) and at least float32, and put the probes' side to the right.

    Returns
    -------
    LayerGradient
        M = AᵀG for ``side="gradients"``, GᵀA for ``"activations"``; for None that of the `cheaper_side`.

    Raises
    ------
    ParameterError
        If the factors are not real floating tensors whose leading axes agree, or ``side`` is unknown.

    Examples
    --------
    >>> layer_gradient(torch.ones(2, 5, 3), torch.ones(2, 5, 4)).times(torch.ones(4, 1)).shape
    torch.Size([2, 3, 1])
    """
    check_factor("activations", activations)
    check_factor("gradients", gradients)
    if activations.shape[:-1] != gradients.shape[:-1]:
        allowed = f"of shape {(*activations.shape[:-1], 'p')}, as the activations"
        raise ParameterError("gradients", tuple(gradients.shape), allowed)
    if activations.device != gradients.device:
        raise ParameterError("gradients", gradients.device, f"on the device of the activations, {activations.device}")
    side = cheaper_side(activations.shape[-1], gradients.shape[-1], bias=bias) if side is None else side
    if side not in ("gradients", "activations"):
        raise ParameterError("side", side, "one of 'gradients', 'activations'")
    dtype = working_dtype(activations, gradients)
    left, right = tokens_in_the_middle(activations, dtype), tokens_in_the_middle(gradients, dtype)
    return LayerGradient(left, right, left_one=bias) if side == "gradients" else LayerGradient(right, left, False, bias)


def cheaper_side(in_features: SupportsIndex, out_features: SupportsIndex, *, bias: bool = False) -> Side:
    """The side on which fewer random numbers are needed; products cost the same on both.

    Parameters
    ----------
    in_features, out_features : int
        d and p, >= 1.
    bias : bool
        Whether the layer has a bias, which counts as one more input.

    Returns
    -------
    {"gradients", "activations"}
        What to multiply by the probes, by the layer's shape alone.

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


def check_factor(name: str, value: torch.Tensor) -> None:
    """Raise unless ``value`` is a real floating tensor with a batch axis and a feature axis."""
    if not isinstance(value, torch.Tensor):
        raise ParameterError(name, type(value).__name__, "a torch tensor")
    if not value.is_floating_point():
        raise ParameterError(name, value.dtype, "of a real floating dtype")
    if value.ndim < 2 or value.shape[-1] == 0:
        raise ParameterError(name, tuple(value.shape), "of shape (B, ..., features) with at least one feature")


def working_dtype(*tensors: torch.Tensor) -> torch.dtype:
    """The widest dtype of the tensors, and never narrower than float32.

    Returns
    -------
    torch.dtype
        float32 or float64.

    Examples
    --------
    >>> working_dtype(torch.ones(1, dtype=torch.bfloat16))
    torch.float32
    """
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32


def tokens_in_the_middle(factor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The factor with shape (B, T, features), all axes between the first and the last taken as tokens.

    Returns
    -------
    Tensor
        Detached; (B, features) becomes (B, 1, features).

    Examples
    --------
    >>> tokens_in_the_middle(torch.ones(2, 3, 4, 5), torch.float32).shape
    torch.Size([2, 12, 5])
    """
    detached = factor.detach().to(dtype)
    tokens = 1
    for size in detached.shape[1:-1]:
        tokens *= size
    return detached.reshape(detached.shape[0], tokens, detached.shape[-1])


def sum_of_squares(values: torch.Tensor) -> torch.Tensor:
    """Σ v² over all but the first axis, in float64, where no square of a float32 under- or overflows.

    Returns
    -------
    Tensor, shape (B,)
        float64.

    Examples
    --------
    >>> sum_of_squares(torch.tensor([[3.0, 4.0]]))
    tensor([25.], dtype=torch.float64)
    """
    return values[..., None].flatten(1).double().square().sum(1)


def full_precision(device: torch.device) -> torch.autocast:
    """Autocasting switched off: under it a product of float32 factors would be rounded to bfloat16.

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
