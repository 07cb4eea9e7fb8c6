"""From estimated norms to clip factors, with what rounding may have taken from the norms given back."""

from __future__ import annotations

import math
from typing import Literal, SupportsIndex

import torch

from dprmt._validation import ParameterError, check_choice, check_count, check_real
from dprmt.training.norms._layer_gradient import layer_gradient, sum_of_squares

FACTOR_ROUNDING = 2.0**-50  # of the square root, the products and the quotient, in float64
SUM_ROUNDING = 2.0**-30  # of sums of up to 4e6 squares in float64, in any order
DEFAULT_ROUNDING = 2.0**-13
_DEVIATIONS = 8.0
_LEAST_FACTOR = 2.0**-126  # the smallest normal number of float32
UNIT_ROUNDOFF = {"highest": 2.0**-24, "high": 2.0**-11, "medium": 2.0**-8}
"""Of products of float32, TF32 and bfloat16, by what torch calls their precision."""


def clip_factors(
    squared_norms: torch.Tensor, clipping_norm: float, *, rounding: float = DEFAULT_ROUNDING
) -> torch.Tensor:
    """min(1, (1 - ρ) C/√n̂) for every sample.

    Parameters
    ----------
    squared_norms : Tensor, shape (B,)
        n̂ over all layers: the sum of the layers' estimates, float64.
    clipping_norm : float
        C > 0. It should exceed 1e-15: products of float32 numbers below 1e-38 are lost.
    rounding : float
        ρ in [0, 1), a bound on the relative error of √n̂ by which it may be too small, see
        :func:`rounding_margin`. The default, 2⁻¹³, costs as much utility as 0.012% more noise, and is the
        margin for inner products of up to 65,000 terms in float32.

    Returns
    -------
    Tensor, shape (B,)
        float64, on the device of the norms. 1 where n̂ = 0. 0 where it would be below 2⁻¹²⁶, as float32 rounds such
        numbers coarsely, and where n̂ is infinite or NaN; such a sample's gradient must be left out of the sum by other
        means too, since 0·∞ is NaN.

    Raises
    ------
    ParameterError
        If a norm is negative, or an argument is out of its range.

    Formal guarantees
    -----------------
    Let n be a sample's exact squared norm, n̂ the exact estimate with the probes drawn (the law of X = n̂/n is
    the accountant's), and ñ the computed one. If √ñ >= (1 - ρ)√n̂, then factor·√n <= C·Z with Z = X^{-1/2}, the
    accountant's sensitivity. *Proof.* The factor is at most (1-ρ)C/√ñ <= C/√n̂, so factor·√n <= C√(n/n̂).
    This includes the factors that are 1: they need √ñ <= (1-ρ)C, hence √n̂ <= C. ∎ The roundings of the
    factor itself are covered by a further 1 - 2⁻⁵⁰.

    Not covered: rounding in the forward and the two backward passes, so that the gradient that is summed is
    not quite the one whose norm was estimated. It is relative to the model's dtype, and matters for
    bfloat16 unless the sum is formed from the same factors A and G ("book-keeping").

    Examples
    --------
    >>> clip_factors(torch.tensor([0.25, 4.0]), clipping_norm=1.0, rounding=0.01)
    tensor([1.0000, 0.4950], dtype=torch.float64)
    """
    if not isinstance(squared_norms, torch.Tensor) or not squared_norms.is_floating_point():
        kind = getattr(squared_norms, "dtype", type(squared_norms).__name__)
        raise ParameterError("squared_norms", kind, "a tensor of a real floating dtype")
    if squared_norms.ndim != 1:
        raise ParameterError("squared_norms", tuple(squared_norms.shape), "of shape (B,)")
    if bool((squared_norms < 0).any()):
        raise ParameterError("squared_norms", float(squared_norms[squared_norms < 0][0]), ">= 0")
    bound = check_real("clipping_norm", clipping_norm, low=0.0, low_open=True)
    margin = check_real("rounding", rounding, low=0.0, high=1.0, high_open=True)
    norms = squared_norms.detach().double().sqrt()
    factors = ((1 - margin) * (1 - FACTOR_ROUNDING) * bound / norms).clamp_max(1.0)
    return torch.where(torch.isfinite(norms) & (factors >= _LEAST_FACTOR), factors, 0.0)


def cancellation_allowance(
    activations: torch.Tensor,
    gradients: torch.Tensor,
    *,
    terms: SupportsIndex,
    bias: bool = False,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Compute what to add to squared norms ‖AᵀG‖²_F so that tokens which cancel cannot spoil norm or sum.

    Parameters
    ----------
    activations : Tensor, shape (B, d) or (B, T, d)
        Inputs A of the layer, as for the norm.
    gradients : Tensor, shape (B, p) or (B, T, p)
        Gradients G with respect to the layer's outputs.
    terms : int
        m >= 1, the longest chain of additions in an entry: ρ = 8 √(m+2) u, as in :func:`rounding_margin`.
    bias : bool
        Whether the layer has a bias, one more activation that is always 1.
    dtype : torch.dtype, optional
        In which norm or sum are formed, float32 or float64: by default that of the factors, float32 at least.

    Returns
    -------
    Tensor, shape (B,)
        √2 ρ Σ_t ‖a_t‖²‖g_t‖², and the square of what numbers too small for the dtype may hide; float64. Infinite where
        rows are so long (2⁹⁶ in float32) that the other factor's clipped ones would be too small.

    Raises
    ------
    ParameterError
        If a factor is not a real floating tensor, the leading axes differ, or an option is out of its range.

    Privacy
    -------
    Holds if: the allowance is part of n̂ in :func:`clip_factors`, and the sum is formed from the same A and G.
    Covers: tokens whose products a_t g_tᵀ are long and cancel in AᵀG. Whatever the order of additions, no partial sum
    of a sample's clipped products is longer than C √(T/(√2 ρ)), so in passing they cannot wipe out others' products.
    The factor of a sample with norm n is lowered by a share of at most ρ Σ_t ‖a_t‖²‖g_t‖²/(√2 n²).
    Does not cover: gradients that were formed, whose norms are of what is summed; they need no allowance.
    Proof: ``docs/theory/randomized_clipping.md``, (R1) to (R3).

    Examples
    --------
    >>> activations, gradients = torch.ones(1, 2, 1), torch.tensor([[[1e8], [-1e8]]])  # AᵀG = 0
    >>> allowance = cancellation_allowance(activations, gradients, terms=65_000)
    >>> clip_factors(allowance, clipping_norm=1.0) < 1e-6
    tensor([True])
    """
    layer = layer_gradient(activations, gradients, bias)
    numbers, squares, longest = torch.finfo(layer.left.dtype), [], []
    for factor in (layer.left, layer.right):
        lengths = torch.linalg.vector_norm(factor, dim=2).double()
        if not bool(lengths.isfinite().all()):  # squares may overflow in the factor's dtype
            lengths = sum_of_squares(factor.flatten(0, 1)).sqrt().view(factor.shape[:2])
        longest.append(lengths.sum(1))
        squares.append(lengths.square() + factor.shape[2] * numbers.smallest_normal)  # or underflow
    a, g = squares[0] + bias, squares[1]
    hidden = numbers.smallest_normal * (layer.rows * g.sqrt().sum(1) + layer.columns * a.sqrt().sum(1))
    margin = _DEVIATIONS * math.sqrt(check_count("terms", terms) + 2) * _unit_roundoff(dtype or layer.left.dtype)
    allowance = math.sqrt(2) * margin * (a * g).sum(1) + hidden.square()
    return torch.where(torch.maximum(*longest) > numbers.max**0.75, math.inf, allowance)


def rounding_margin(
    terms: SupportsIndex,
    *,
    dtype: torch.dtype = torch.float32,
    condition: float = 1.0,
    model: Literal["statistical", "worst"] = "statistical",
    precision: str | None = None,
) -> float:
    """The most by which rounding may lower √n̂, relatively: the ρ of :func:`clip_factors`.

    Parameters
    ----------
    terms : int
        m, the longest chain of additions in one entry of Aᵀ(GP): T + p or T + d, whichever was the probes'
        side; for Hutch++ twice the sum T + d + p. The largest over layers.
    dtype : torch.dtype
        Of the products: float32 (half precision inputs too) or float64.
    condition : float
        κ >= 1, how much cancels; see below for what it is in either model.
    model : {"statistical", "worst"}
        See below.
    precision : {"highest", "high", "medium"}, optional
        Of products of float32: "high" allows TF32's unit roundoff, "medium" bfloat16's. By default what
        ``torch.get_float32_matmul_precision()`` says now.

    Returns
    -------
    float
        ρ, at most 1; :func:`clip_factors` refuses 1.

    Raises
    ------
    ParameterError
        If an argument is out of its range.

    Notes
    -----
    Let u be the unit roundoff. Each entry of the computed Y = Aᵀ(GP) is off by at most γ (|A|ᵀ|G||P|), where
    γ = (m+2)u/(1 - (m+2)u) covers any order of summation; one of the two extra roundings is that of P to
    dtype (Higham 2002, Accuracy and Stability, sections 3.1 and 3.5). Summing squares in float64 adds less than
    2⁻³⁰, which is included.

    "worst": |√ñ - √n̂| <= γκ √n̂ with κ = ‖|A|ᵀ|G||P|‖_F / ‖Aᵀ(GP)‖_F over all layers. A theorem for Hutchinson;
    in float64 negligible for κ < 1e6, in float32 useful for short sums only: κ of random data grows like √(Tp).

    "statistical": ρ = 8 √(m+2) u κ, with κ the largest norm of a partial sum of Y over √n̂. If roundings were
    independent with mean 0, the error would have mean square at most (m+2) u² κ² n̂ (each of the chain's
    roundings contributes at most u² times the square of a partial sum); 8 is the number of standard deviations
    allowed. A model, not a theorem (Higham & Mary 2019, SIAM J. Sci. Comput. 41, A2815). Measured with κ = 1 on
    gaussian data: errors below a tenth of the margin.

    Examples
    --------
    >>> f"{rounding_margin(4096 + 2048):.1e}, {rounding_margin(4096 + 2048, dtype=torch.float64):.1e}"
    '3.7e-05, 9.3e-10'
    """
    length = check_count("terms", terms) + 2
    κ = check_real("condition", condition, low=1.0)
    check_choice("model", model, ("statistical", "worst"))
    u = _unit_roundoff(dtype, precision)
    if model == "statistical":
        return min(1.0, _DEVIATIONS * math.sqrt(length) * u * κ + SUM_ROUNDING)
    return min(1.0, length * u * κ / (1 - length * u) + SUM_ROUNDING) if length * u < 1 else 1.0


def _unit_roundoff(dtype: torch.dtype, precision: str | None = None) -> float:
    if dtype not in (torch.float32, torch.float64):
        raise ParameterError("dtype", dtype, "torch.float32 or torch.float64")
    products = check_choice("precision", precision or torch.get_float32_matmul_precision(), tuple(UNIT_ROUNDOFF))
    return 2.0**-53 if dtype == torch.float64 else UNIT_ROUNDOFF[products]
