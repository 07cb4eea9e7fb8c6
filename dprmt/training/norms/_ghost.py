"""Exact squared per-sample gradient norms, by the tokens' Gram matrices ("ghost clipping")."""

from __future__ import annotations

import math

import torch

from dprmt.training.norms._layer_gradient import LayerGradient, full_precision, layer_gradient

_ROWS = 128  # of Gram matrices at once: they are symmetric, and what is left of a block was in an earlier one


def ghost_squared_norms(
    activations: torch.Tensor, gradients: torch.Tensor, *, bias: bool = False, margin: float = 0.0
) -> torch.Tensor:
    """‖AᵀG‖²_F = ⟨AAᵀ, GGᵀ⟩ for every sample of a linear-like layer: in the memory of 128 rows of T numbers per sample.

    Gram matrices are symmetric: of more than 128 tokens only what is right of the diagonal is formed. Cheaper than
    :func:`exact_squared_norms` where these :func:`gram_entries` times (d + p) are fewer than T·d·p. Less accurate: the
    result is a difference of squares and loses twice the digits that cancel in AᵀG. It is never negative.

    Parameters
    ----------
    activations : Tensor, shape (B, d) or (B, T, d)
        Inputs A of the layer; several uses of it concatenated along T.
    gradients : Tensor, shape (B, p) or (B, T, p)
        Gradients G of each sample's own loss with respect to the layer's outputs.
    bias : bool
        Whether the layer has a bias, whose squared norm is then included (AAᵀ gains 1 everywhere).
    margin : float
        ρ >= 0, the :func:`rounding_margin` of d + p + 1 terms: √2 ρ Σ_t (‖a_t‖² + bias)‖g_t‖² is added, what rounding
        may have taken. By default nothing is.

    Returns
    -------
    Tensor, shape (B,)
        float64; the Gram matrices are formed in float32, or in float64 if an input is.

    Raises
    ------
    ParameterError
        If an input is not a real floating tensor or the leading axes differ.

    Notes
    -----
    With u the unit roundoff, an entry of AAᵀ∘GGᵀ is off by at most (d+p+3)u‖a_t‖‖a_s‖‖g_t‖‖g_s‖. As in the
    "statistical" model of :func:`rounding_margin` with independent errors, the sum over all t and s, every pair counted
    twice, is off by 8√2 √(d+p+3) u Σ_t ‖a_t‖²‖g_t‖² at eight standard deviations.

    References
    ----------
    Li, Tramèr, Liang & Hashimoto (2022), arXiv:2110.05679, section 4.

    Examples
    --------
    >>> ghost_squared_norms(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0]]))
    tensor([45.], dtype=torch.float64)
    """
    layer = layer_gradient(activations, gradients, bias)
    with full_precision(layer.left.device):
        norms = _products(layer, float(bias)).clamp_min(0.0)
    if margin == 0.0:
        return norms
    a, g = (factor.square().sum(2, dtype=torch.float64) for factor in (layer.left, layer.right))
    return norms + math.sqrt(2) * margin * ((a + bias) * g).sum(1)


def gram_entries(tokens: int) -> int:
    """Number of entries of a Gram matrix that are formed: all T² up to 128 tokens, hardly more than half of many.

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


def _products(layer: LayerGradient, bias: float) -> torch.Tensor:
    """⟨AAᵀ + bias, GGᵀ⟩, from the diagonal's blocks and twice what is right of them."""
    left, right, total = layer.left, layer.right, layer.left.new_zeros(len(layer.left), dtype=torch.float64)
    for first in range(0, left.shape[1], _ROWS):
        rows = slice(first, first + _ROWS)
        product = left[:, rows] @ left[:, first:].transpose(1, 2) + bias
        product *= right[:, rows] @ right[:, first:].transpose(1, 2)
        wide = product.shape[1]
        total += product[:, :, :wide].sum((1, 2), dtype=torch.float64)
        total += 2.0 * product[:, :, wide:].sum((1, 2), dtype=torch.float64)
    return total
