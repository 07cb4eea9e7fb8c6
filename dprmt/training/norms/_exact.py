"""Exact squared per-sample gradient norms, by forming each sample's gradient, a few rows at a time."""

from __future__ import annotations

from typing import SupportsIndex

import torch

from dprmt._validation import ParameterError, check_count
from dprmt.training.norms._layer_gradient import (
    check_factors,
    check_same_tokens,
    full_precision,
    layer_gradient,
    sum_of_squares,
    token_factors,
)

MEMORY_BUDGET = 64 << 20
"""Default number of bytes for a block of one layer's gradients."""
CACHED_BYTES = 4 << 20
"""Bytes of a product that a CPU's cache still holds when its squares are added."""
_ROWS = 128  # from which on a product of a row block is as fast as a whole one


def exact_squared_norms(
    activations: torch.Tensor,
    gradients: torch.Tensor,
    *,
    bias: bool = False,
    memory_budget: SupportsIndex = MEMORY_BUDGET,
) -> torch.Tensor:
    """Compute ‖AᵀG‖²_F for every sample of a linear-like layer, from blocks of rows of AᵀG.

    Parameters
    ----------
    activations : Tensor, shape (B, d) or (B, T, d)
        Inputs A of the layer. A layer that is used several times in one forward pass has *one* gradient:
        concatenate its uses along T.
    gradients : Tensor, shape (B, p) or (B, T, p)
        Gradients G of each sample's own loss (not of a mean) with respect to the layer's outputs.
    bias : bool
        Whether the layer has a bias, whose squared norm ‖Σ_t g_t‖² is then included.
    memory_budget : int
        Bytes >= 1 for a block of AᵀG; at least one row of one sample is formed. On a CPU the block is smaller: 4 MiB
        if that holds 128 rows. Factors of 16 bits also need copies in float32 of the samples in the block.

    Returns
    -------
    Tensor, shape (B,)
        float64; the products are formed in float32, or in float64 if an input is.

    Raises
    ------
    ParameterError
        If an input is not a real floating tensor, the leading axes differ or the budget is no count.

    Examples
    --------
    >>> exact_squared_norms(torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0]]))
    tensor([100.], dtype=torch.float64)
    """
    budget = check_count("memory_budget", memory_budget)
    dtype = check_factors(activations=activations, gradients=gradients)
    check_same_tokens(activations, gradients)
    d, p, size = activations.shape[-1], gradients.shape[-1], len(gradients)
    samples, rows = _block(
        d, p * dtype.itemsize, min(budget, CACHED_BYTES) if gradients.device.type == "cpu" else budget, budget
    )
    # One block for all, as the C library cuts up what is given back, so that the next one may need memory anew.
    block = torch.empty(min(samples, size), rows, p, dtype=dtype, device=gradients.device)
    parts = [
        _norms_by_rows(activations[first : first + samples], gradients[first : first + samples], block)
        for first in range(0, size, samples)
    ]
    norms = torch.cat(parts) if parts else sum_of_squares(gradients)
    del block  # before the bias takes its own
    if not bias:
        return norms
    (per_token,) = token_factors(gradients=gradients)
    return norms + sum_of_squares(per_token.sum(1))


def _block(rows: int, row: int, wanted: int, most: int) -> tuple[int, int]:
    """Return how many samples, and how many rows of each, fit into a block; whole samples where they fit."""
    fitting = max(wanted // row, min(_ROWS, most // row), 1)
    if fitting < rows:
        return 1, fitting
    return max(1, wanted // (row * rows)), rows


def _norms_by_rows(activations: torch.Tensor, gradients: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    layer = layer_gradient(activations, gradients)
    with full_precision(layer.left.device):
        squares = [
            sum_of_squares(torch.bmm(part.transpose(1, 2), layer.right, out=block[: len(part), : part.shape[2]]))
            for part in layer.left.split(block.shape[1], 2)
        ]
    return torch.stack(squares).sum(0)


def embedding_rows(
    tokens: torch.Tensor, gradients: torch.Tensor, *, padding_idx: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Find the rows of an embedding table in which samples have gradients, each sample's own.

    Row v of a sample's gradient is the sum of g_t over the positions t that hold token v.

    Parameters
    ----------
    tokens : Tensor of integers, shape (B, T)
        Token numbers, >= 0.
    gradients : Tensor, shape (B, T, p)
        Gradients with respect to the embeddings.
    padding_idx : int, optional
        The token whose row gets no gradient, as in ``torch.nn.Embedding``.

    Returns
    -------
    owners, words : Tensor of int64, shape (R,)
        Sample and token of each row; R is at most B·T.
    rows : Tensor, shape (R, p)
        Sums of the gradients at the sample's positions that hold the token, in at least float32.

    Raises
    ------
    ParameterError
        If ``tokens`` is not a tensor of non-negative integers with the leading axes of ``gradients``.

    Examples
    --------
    >>> owners, words, rows = embedding_rows(torch.tensor([[7, 7, 2]]), torch.ones(1, 3, 1))
    >>> owners.tolist(), words.tolist(), rows.tolist()
    ([0, 0], [2, 7], [[1.0], [2.0]])
    """
    (per_token,) = token_factors(gradients=gradients)
    _check_tokens(tokens, gradients)
    flat = tokens.flatten(1).long() if tokens.ndim > 1 else tokens[:, None].long()
    values = per_token.flatten(0, 1)
    owner = torch.arange(len(flat), device=flat.device)[:, None].expand_as(flat)
    found, row_of = torch.unique(torch.stack([owner, flat], -1).flatten(0, 1), dim=0, return_inverse=True)
    sums = torch.zeros(len(found), values.shape[-1], dtype=values.dtype, device=values.device)
    sums.index_add_(0, row_of, values)
    if padding_idx is not None:
        real = found[:, 1] != padding_idx
        found, sums = found[real], sums[real]
    return found[:, 0], found[:, 1], sums


def _check_tokens(tokens: torch.Tensor, gradients: torch.Tensor) -> None:
    if not isinstance(tokens, torch.Tensor) or tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise ParameterError("tokens", getattr(tokens, "dtype", type(tokens).__name__), "a tensor of integers")
    if tokens.shape != gradients.shape[:-1]:
        raise ParameterError("tokens", tuple(tokens.shape), f"of shape {tuple(gradients.shape[:-1])}")
    if tokens.numel() and int(tokens.min()) < 0:
        raise ParameterError("tokens", int(tokens.min()), "integers >= 0")
