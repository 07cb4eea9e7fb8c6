"""From estimated norms to clip factors, with what rounding may have taken from the norms given back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial, reduce
from typing import Literal, SupportsIndex

import torch
from torch import nn

from dprmt._validation import ParameterError, check_choice, check_count, check_real

DEFAULT_ROUNDING = 2.0**-13
_DEVIATIONS = 8.0
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
    scaled = (1 - margin) * (1 - 2.0**-50) * bound  # rounding of square root, products and quotient, in float64
    if stability is None:
        factors = (scaled / norms).clamp_max(1.0)
    else:
        factors = scaled / (norms + check_real("stability", stability, low=0.0, low_open=True))
    return torch.where(torch.isfinite(norms) & (factors >= torch.finfo(torch.float32).smallest_normal), factors, 0.0)


def cancellation_allowance(
    activations: torch.Tensor,
    gradients: torch.Tensor,
    *,
    terms: int,
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

    Privacy
    -------
    Holds if: the allowance is part of n̂ in :func:`clip_factors`, and the sum is formed from the same A and G. Covers:
    tokens whose products a_t g_tᵀ are long and cancel in AᵀG. Partial sums of a sample's clipped products are at most
    C √(T/(√2 ρ)) long in any order of additions, so they cannot absorb the products of others. The factor of a sample
    with norm n decreases by a share of at most ρ Σ_t ‖a_t‖²‖g_t‖²/(√2 n²). Does not cover: formed gradients, which
    need no allowance because the norm is of what is summed. Proof: ``docs/theory/randomized_clipping.md``, §1.

    Examples
    --------
    >>> activations, gradients = torch.ones(1, 2, 1), torch.tensor([[[1e8], [-1e8]]])  # AᵀG = 0
    >>> allowance = cancellation_allowance(activations, gradients, terms=65_000)
    >>> clip_factors(allowance, clipping_norm=1.0) < 1e-6
    tensor([True])
    """
    factors = as_tokens(activations, gradients)
    numbers, squares, longest = torch.finfo(factors[0].dtype), [], []
    for factor in factors:
        lengths = torch.linalg.vector_norm(factor, dim=2).double()
        if not bool(lengths.isfinite().all()):  # squares may overflow in the factor's dtype
            lengths = sum_of_squares(factor.flatten(0, 1)).sqrt().view(factor.shape[:2])
        longest.append(lengths.sum(1))
        squares.append(lengths.square() + factor.shape[2] * numbers.smallest_normal)  # or underflow
    a, g = squares[0] + bias, squares[1]
    d, p = activations.shape[-1] + bias, gradients.shape[-1]
    hidden = numbers.smallest_normal * (d * g.sqrt().sum(1) + p * a.sqrt().sum(1))
    margin = _margin(terms, dtype or factors[0].dtype, torch.get_float32_matmul_precision())
    allowance = math.sqrt(2) * margin * (a * g).sum(1) + hidden.square()
    return torch.where(torch.maximum(*longest) > numbers.max**0.75, math.inf, allowance)


def rounding_margin(
    terms: SupportsIndex,
    *,
    dtype: torch.dtype = torch.float32,
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
    ρ = 8 √(m+2) u, with u the unit roundoff. Each entry of the computed Y = Aᵀ(GP) is a sum in any order, and squares
    are summed in float64, which adds less than 2⁻³⁰. Independent roundings with mean 0 give a mean square error of at
    most (m+2) u² n̂ where no partial sum of Y is longer than √n̂, and 8 is the number of standard deviations allowed.
    This is a model, not a theorem (Higham & Mary 2019, SIAM J. Sci. Comput. 41, A2815). We measured errors below a
    tenth of the margin on Gaussian data. :func:`cancellation_allowance` adds what longer partial sums need.

    Examples
    --------
    >>> f"{rounding_margin(4096 + 2048):.1e}, {rounding_margin(4096 + 2048, dtype=torch.float64):.1e}"
    '3.7e-05, 9.3e-10'
    """
    if dtype not in (torch.float32, torch.float64):
        raise ParameterError("dtype", dtype, "torch.float32 or torch.float64")
    products = check_choice("precision", precision or torch.get_float32_matmul_precision(), tuple(UNIT_ROUNDOFF))
    of_terms = _margin(check_count("terms", terms), dtype, products)
    return min(1.0, of_terms + 2.0**-30)  # of sums of up to 4e6 squares in float64, in any order


def _margin(terms: int, dtype: torch.dtype, precision: str) -> float:
    return _DEVIATIONS * math.sqrt(terms + 2) * (2.0**-53 if dtype == torch.float64 else UNIT_ROUNDOFF[precision])


# The per-sample gradient of a linear-like layer, as products of its two factors that never form it.

Side = Literal["gradients", "activations"]


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
    check_factors(activations=activations, gradients=gradients)
    a, g = as_tokens(activations, gradients)
    d, p = a.shape[-1] + bias, g.shape[-1]
    if side not in ("gradients", "activations", None):
        raise ParameterError("side", side, "one of 'gradients', 'activations'")
    on_gradients = p <= d if side is None else side == "gradients"
    return LayerGradient(a, g, d, p) if on_gradients else LayerGradient(g, a, p, d)


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


def as_tokens(*factors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return factors with all axes between the first and the last taken as tokens, in one dtype.

    Parameters
    ----------
    *factors : Tensor, shape (B, ..., features)
        Of a real floating dtype.

    Returns
    -------
    tuple of Tensor, shape (B, T, features)
        Detached; in the widest of their dtypes, float32 at least. (B, features) becomes (B, 1, features).

    Examples
    --------
    >>> (factor,) = as_tokens(torch.ones(2, 3, 4, 5, dtype=torch.bfloat16))
    >>> factor.shape, factor.dtype
    (torch.Size([2, 12, 5]), torch.float32)
    """
    dtype = reduce(torch.promote_types, [value.dtype for value in factors], torch.float32)
    shapes = [(len(value), math.prod(value.shape[1:-1]), value.shape[-1]) for value in factors]
    return tuple(value.detach().to(dtype).reshape(shape) for value, shape in zip(factors, shapes, strict=True))


def check_factors(**factors: torch.Tensor) -> None:
    """Raise unless these are real floating tensors (B, ..., features), of the same samples and tokens, in one place."""
    for name, value in factors.items():
        if not isinstance(value, torch.Tensor):
            raise ParameterError(name, type(value).__name__, "a torch tensor")
        if not value.is_floating_point():
            raise ParameterError(name, value.dtype, "of a real floating dtype")
        if value.ndim < 2 or value.shape[-1] == 0:
            raise ParameterError(name, tuple(value.shape), "of shape (B, ..., features) with at least one feature")
    first, *others = factors.items()
    for name, value in others:
        if value.shape[:-1] != first[1].shape[:-1]:
            raise ParameterError(name, tuple(value.shape), f"of shape {(*first[1].shape[:-1], 'p')}, as the {first[0]}")
        if value.device != first[1].device:
            raise ParameterError(name, value.device, f"on the device of the {first[0]}, {first[1].device}")


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
    block, width = 1 << 15 if values.device.type == "cpu" else 1 << 22, flat.shape[1]
    lengths = partial(torch.linalg.vector_norm, dim=1, dtype=torch.float64)
    if width <= block:
        return torch.cat([lengths(rows).square() for rows in flat.split(max(1, block // max(width, 1)))])
    each = [torch.stack([lengths(part).square() for part in row.split(block, 1)]).sum(0) for row in flat.split(1)]
    return torch.cat(each) if each else flat.new_zeros(0, dtype=torch.float64)


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
