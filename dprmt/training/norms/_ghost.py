"""Exact squared per-sample gradient norms, by the tokens' Gram matrices ("ghost clipping")."""

from __future__ import annotations

import math

import torch

from dprmt.training.norms._layer_gradient import full_precision, layer_gradient

_EXPONENT_OF_ZERO = -4096  # exponent below all products of two float64 numbers
_LARGE = (
    2.0**24
)  # sum of rows' lengths up to which Gram matrices do not overflow, and what underflows is next to nothing
_ROWS = 128  # rows of a block of Gram matrices, which are symmetric


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
    an error of at most (d+p+3)u‖a_t‖‖a_s‖‖g_t‖‖g_s‖. Under the "statistical" model of :func:`rounding_margin`, eight
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
        if bool((torch.maximum(*lengths) <= _LARGE).all()):
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
    products = torch.where(counts, of_a + of_g, _EXPONENT_OF_ZERO)
    largest = products.amax(1, keepdim=True) if a.shape[1] else products.new_zeros(len(a), 1, 1)
    g = _times_power(g, torch.where(counts, of_a - largest, _EXPONENT_OF_ZERO))
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
