"""Exact squared per-sample gradient norms: of gradients formed a few rows at a time, or by Gram matrices of tokens."""

from __future__ import annotations

import math
from typing import SupportsIndex

import torch

from dprmt._validation import check_count
from dprmt.training.norms._clipping import (
    as_tokens,
    check_factors,
    full_precision,
    layer_gradient,
    sum_of_squares,
)

MEMORY_BUDGET = 64 << 20
"""Default number of bytes for a block of one layer's gradients."""
_ROWS = 128  # of a block, from which on its product is as fast as a whole one


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
    check_factors(activations=activations, gradients=gradients)
    dtype = torch.promote_types(torch.promote_types(activations.dtype, gradients.dtype), torch.float32)
    d, p, size = activations.shape[-1], gradients.shape[-1], len(gradients)
    # A CPU's cache still holds a product of 4 MiB when its squares are added.
    row, wanted = p * dtype.itemsize, min(budget, 4 << 20) if gradients.device.type == "cpu" else budget
    rows = min(d, max(wanted // row, min(_ROWS, budget // row), 1))  # of each sample: all, where they fit
    samples = 1 if rows < d else max(1, wanted // (row * d))
    # One block for all, as the C library cuts up what is given back, so that the next one may need memory anew.
    block = torch.empty(min(samples, size), rows, p, dtype=dtype, device=gradients.device)
    parts = []
    for first in range(0, size, samples):
        a, g = as_tokens(activations[first : first + samples], gradients[first : first + samples])
        with full_precision(a.device):
            squares = [
                sum_of_squares(torch.bmm(part.transpose(1, 2), g, out=block[: len(part), : part.shape[2]]))
                for part in a.split(rows, 2)
            ]
        parts.append(torch.stack(squares).sum(0))
        del a, g  # before the next ones take their own
    norms = torch.cat(parts) if parts else sum_of_squares(gradients)
    del block  # before the bias takes its own
    if not bias:
        return norms
    (per_token,) = as_tokens(gradients)
    return norms + sum_of_squares(per_token.sum(1))


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

    Examples
    --------
    >>> owners, words, rows = embedding_rows(torch.tensor([[7, 7, 2]]), torch.ones(1, 3, 1))
    >>> owners.tolist(), words.tolist(), rows.tolist()
    ([0, 0], [2, 7], [[1.0], [2.0]])
    """
    (per_token,) = as_tokens(gradients)
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


# By the tokens' Gram matrices ("ghost clipping").


def ghost_squared_norms(activations: torch.Tensor, gradients: torch.Tensor, *, bias: bool = False) -> torch.Tensor:
    """Compute ‖AᵀG‖²_F = ⟨AAᵀ, GGᵀ⟩ for every sample of a linear-like layer, without forming AᵀG.

    Takes the memory of 128 rows of T numbers per sample. Gram matrices are symmetric: of more
    than 128 tokens only what is right of the diagonal is formed. Cheaper than :func:`exact_squared_norms` where these
    :func:`gram_entries` times (d + p) are fewer than T·d·p.

    Parameters
    ----------
    activations : Tensor, shape (B, d) or (B, T, d)
        Inputs A of the layer; several uses of it concatenated along T.
    gradients : Tensor, shape (B, p) or (B, T, p)
        Gradients G of each sample's own loss with respect to the layer's outputs.
    bias : bool
        Whether the layer has a bias, whose squared norm is then included (AAᵀ gains 1 everywhere).

    Returns
    -------
    Tensor, shape (B,)
        float64, >= 0; the Gram matrices are formed in float32, or in float64 if an input is.

    Raises
    ------
    ParameterError
        If an input is not a real floating tensor or the leading axes differ.

    Notes
    -----
    If row lengths add up to more than 2²⁴, rows are first scaled by powers of two, so that products neither underflow
    nor overflow. Otherwise the amount that may underflow is added. With u the unit roundoff, an entry of AAᵀ∘GGᵀ has
    an error of at most (d+p+3)u‖a_t‖‖a_s‖‖g_t‖‖g_s‖. Under the model of :func:`rounding_margin`, eight
    standard deviations of the sum are 8√2 √(d+p+3) u Σ_t ‖a_t‖²‖g_t‖², which :func:`cancellation_allowance` adds.

    References
    ----------
    Li, Tramèr, Liang & Hashimoto (2022), arXiv:2110.05679, section 4.

    Examples
    --------
    >>> ghost_squared_norms(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0]]))
    tensor([45.], dtype=torch.float64)
    """
    layer = layer_gradient(activations, gradients, bias)
    a, g = layer.left, layer.right
    lengths = [torch.linalg.vector_norm(factor, dim=2).double().sum(1) for factor in (a, g)]
    with full_precision(a.device):
        if bool((torch.maximum(*lengths) <= 2.0**24).all()):  # nothing overflows, and next to nothing underflows
            squares, pairs = [length.square() for length in lengths], a.shape[1] ** 2
            lost = layer.columns * (squares[0] + bias * pairs) + layer.rows * squares[1] + pairs
            return _products(a, g, float(bias)).clamp_min(0.0) + torch.finfo(a.dtype).smallest_normal * lost
        if bias:
            a = torch.cat([a, torch.ones_like(a[..., :1])], 2)
        a, g, exponents = _scaled(a, g)
        return _products(a, g, 0.0).clamp_min(0.0) * torch.exp2(2.0 * exponents)


def gram_entries(tokens: int) -> int:
    """Return the number of entries of a Gram matrix that are formed: all T² up to 128 tokens, hardly more than half of
    many.

    Parameters
    ----------
    tokens : int
        T >= 0.

    Returns
    -------
    int
        Their number.

    Examples
    --------
    >>> gram_entries(128) / 128**2, gram_entries(1024) / 1024**2
    (1.0, 0.5625)
    """
    return sum(min(_ROWS, tokens - first) * (tokens - first) for first in range(0, tokens, _ROWS))


def _scaled(a: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return factors by powers of two: no entry above 1, and every sample's largest product of two rows' entries above
    ¼.

    Returns: both, and for each sample the exponent e, float64, with AᵀG = 2ᵉ times the product of what is returned.
    """
    exponents = [torch.frexp(torch.linalg.vector_norm(factor, math.inf, 2, keepdim=True)) for factor in (a, g)]
    (in_a, of_a), (in_g, of_g) = exponents
    counts = (in_a != 0) & (in_g != 0)
    of_zero = -4096  # below the exponents of all products of two float64 numbers
    products = torch.where(counts, of_a + of_g, of_zero)
    largest = products.amax(1, keepdim=True) if a.shape[1] else products.new_zeros(len(a), 1, 1)
    g = _times_power(g, torch.where(counts, of_a - largest, of_zero))
    return _times_power(a, -of_a), g, largest.flatten().double()


def _times_power(values: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """Multiply by 2ᵉ in two steps, because 2ᵉ alone may exceed the dtype's range when the result does not."""
    half = exponents // 2
    first, second = (torch.exp2(part.double()).to(values.dtype) for part in (half, exponents - half))
    return (values * first).mul_(second)


def _products(left: torch.Tensor, right: torch.Tensor, bias: float) -> torch.Tensor:
    """Compute ⟨AAᵀ + bias, GGᵀ⟩ from the diagonal's blocks and twice the blocks to their right."""
    total = left.new_zeros(len(left), dtype=torch.float64)
    for first in range(0, left.shape[1], _ROWS):
        rows = slice(first, first + _ROWS)
        product = left[:, rows] @ left[:, first:].transpose(1, 2) + bias
        product *= right[:, rows] @ right[:, first:].transpose(1, 2)
        wide = product.shape[1]
        total += product[:, :, :wide].sum((1, 2), dtype=torch.float64)
        total += 2.0 * product[:, :, wide:].sum((1, 2), dtype=torch.float64)
    return total
