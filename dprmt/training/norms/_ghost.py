"""Exact squared per-sample gradient norms, by the tokens' Gram matrices ("ghost clipping")."""

from __future__ import annotations

import math

import torch

from dprmt.training.norms._layer_gradient import full_precision, layer_gradient


def ghost_squared_norms(
    activations: torch.Tensor, gradients: torch.Tensor, *, bias: bool = False, margin: float = 0.0
) -> torch.Tensor:
    """‖AᵀG‖²_F = ⟨AAᵀ, GGᵀ⟩ for every sample of a linear-like layer: O(T²) memory per sample.

    Cheaper than :func:`exact_squared_norms` where T(d + p) < dp. Less accurate: the result is a difference of
    squares and loses twice the digits that cancel in AᵀG. It is never negative.

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
        of_activations = layer.left @ layer.left.transpose(1, 2) + float(bias)
        of_gradients = layer.right @ layer.right.transpose(1, 2)
        norms = (of_activations * of_gradients).sum((1, 2), dtype=torch.float64).clamp_min(0.0)
    if margin == 0.0:
        return norms
    a, g = (factor.square().sum(2, dtype=torch.float64) for factor in (layer.left, layer.right))
    return norms + math.sqrt(2) * margin * ((a + bias) * g).sum(1)
