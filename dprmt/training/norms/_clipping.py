"""From estimated norms to clip factors, with what rounding may have taken from the norms given back."""

from __future__ import annotations

import math
from typing import Literal, SupportsIndex

import torch

from dprmt._validation import ParameterError, check_choice, check_count, check_real
from dprmt.training.norms._layer_gradient import layer_gradient, sum_of_squares

FACTOR_ROUNDING = 2.0**-50  # relative rounding of square root, products and quotient, in float64
SUM_ROUNDING = 2.0**-30  # relative rounding of sums of up to 4e6 squares in float64, in any order
DEFAULT_ROUNDING = 2.0**-13
_DEVIATIONS = 8.0
_LEAST_FACTOR = 2.0**-126  # the smallest normal number of float32
UNIT_ROUNDOFF = {"highest": 2.0**-24, "high": 2.0**-11, "medium": 2.0**-8}
"""Unit roundoff of products of float32, TF32 and bfloat16, by torch's name of their precision."""


def clip_factors(
    squared_norms: torch.Tensor,
    clipping_norm: float,
    *,
    rounding: float = DEFAULT_ROUNDING,
    stability: float | None = None,
) -> torch.Tensor:
    """Compute the clip factor min(1, (1 - ρ) C/√n̂) of every sample.

    Parameters
    ----------
    squared_norms : Tensor, shape (B,)
        n̂ over all layers: the sum of the layers' estimates, float64.
    clipping_norm : float
        Clipping norm C > 0. It should exceed 1e-15: products of float32 numbers below 1e-38 are lost.
    rounding : float
        ρ in [0, 1), a bound on the relative error by which √n̂ may be too small, see :func:`rounding_margin`. The
        default, 2⁻¹³, costs as much utility as 0.012% more noise. It suffices for inner products of up to 65,000 terms
        in float32.
    stability : float, optional
        γ > 0 of automatic clipping (AUTO-S, Bu et al. 2022): the factor is (1 - ρ) C/(√n̂ + γ) for every sample.

    Returns
    -------
    Tensor, shape (B,)
        The factors in float64, on the device of the norms. A factor is 1 (or about C/γ) where n̂ = 0. It is 0 where n̂
        is infinite or NaN, and where it would be below 2⁻¹²⁶, because float32 rounds such numbers coarsely. Leave such
        a sample's gradient out of the sum, since 0·∞ is NaN.

    Raises
    ------
    ParameterError
        If a norm is negative, or an argument is out of its range.

    Privacy
    -------
    Holds if: the computed norm ñ satisfies √ñ >= (1 - ρ)√n̂, with n̂ the exact estimate for the drawn probes. Covers:
    factor·√n <= C·Z with Z = (n̂/n)^{-1/2}, the accountant's sensitivity, rounding of the factor included. Does not
    cover: rounding in the forward and backward passes, relative to the model's dtype. It matters for bfloat16 unless
    the sum is formed from the same factors A and G ("book-keeping"). Proof: (1-ρ)C/√ñ <= C/√n̂, and γ
    only lowers a factor's bound.

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
    scaled = (1 - margin) * (1 - FACTOR_ROUNDING) * bound
    if stability is None:
        factors = (scaled / norms).clamp_max(1.0)
    else:
        factors = scaled / (norms + check_real("stability", stability, low=0.0, low_open=True))
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
        Dtype of the norm or sum, float32 or float64. By default the dtype of the factors, at least float32.

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
    Holds if: the allowance is part of n̂ in :func:`clip_factors`, and the sum is formed from the same A and G. Covers:
    tokens whose products a_t g_tᵀ are long and cancel in AᵀG. Partial sums of a sample's clipped products are at most
    C √(T/(√2 ρ)) long in any order of additions, so they cannot absorb the products of others. The factor of a sample
    with norm n decreases by a share of at most ρ Σ_t ‖a_t‖²‖g_t‖²/(√2 n²). Does not cover: formed gradients, which
    need no allowance because the norm is of what is summed. Proof: ``docs/theory/randomized_clipping.md``, (R1) to
    (R3).

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
    """Bound the relative amount by which rounding may lower √n̂: the ρ of :func:`clip_factors`.

    Parameters
    ----------
    terms : int
        m, the longest chain of additions in one entry of Aᵀ(GP): T + p or T + d, depending on the side of the probes;
        for Hutch++ twice the sum T + d + p. Pass the largest over all layers.
    dtype : torch.dtype
        Dtype of the products: float32 (for half precision inputs too) or float64.
    condition : float
        κ >= 1, the amount of cancellation; see below for its meaning in either model.
    model : {"statistical", "worst"}
        Model of rounding errors, see below.
    precision : {"highest", "high", "medium"}, optional
        Precision of float32 products: "high" allows the unit roundoff of TF32, "medium" of bfloat16. The default is
        the present value of ``torch.get_float32_matmul_precision()``.

    Returns
    -------
    float
        ρ, at most 1; :func:`clip_factors` rejects 1.

    Raises
    ------
    ParameterError
        If an argument is out of its range.

    Notes
    -----
    Let u be the unit roundoff and γ = (m+2)u/(1 - (m+2)u). Each entry of the computed Y = Aᵀ(GP) has an error of at
    most γ (|A|ᵀ|G||P|), in any order of summation (Higham 2002, sections 3.1 and 3.5). Summing squares in float64 adds
    less than 2⁻³⁰, which is included.

    "worst": |√ñ - √n̂| <= γκ √n̂ with κ = ‖|A|ᵀ|G||P|‖_F / ‖Aᵀ(GP)‖_F over all layers. This is a theorem for
    Hutchinson. It is negligible in float64 for κ < 1e6. In float32 it is useful for short sums only, because κ of
    random data grows like √(Tp).

    "statistical": ρ = 8 √(m+2) u κ, with κ the largest norm of a partial sum of Y over √n̂. Independent roundings with
    mean 0 give a mean square error of at most (m+2) u² κ² n̂, and 8 is the number of standard deviations allowed. This
    is a model, not a theorem (Higham & Mary 2019, SIAM J. Sci. Comput. 41, A2815). We measured errors below a tenth of
    the margin, with κ = 1 on Gaussian data.

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
