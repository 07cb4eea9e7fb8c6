"""Squared per-sample gradient norms by Hutch++: the head exactly, the tail by Hutchinson."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import SupportsIndex

import torch

from dprmt._validation import ParameterError, check_count
from dprmt.accounting import Hutchinson, HutchPlusPlus
from dprmt.training.norms._hutchinson import check_probes
from dprmt.training.norms._layer_gradient import LayerGradient, Side, full_precision, layer_gradient, sum_of_squares
from dprmt.training.norms._probes import ProbeGenerator, SampleId, draw_probes

_NARROWEST = 3  # columns of a sketch that the accountant credits
_SHARE_WITH_POWER_ITERATION, _SHARE_IN_ONE_PASS = 0.36, 0.45
_COMPARED, _SAME = 6, 1e-9  # two times six independent normals are that nearly parallel with probability below 1e-20


def hutchpp_squared_norms(
    activations: torch.Tensor,
    gradients: torch.Tensor,
    sketch: torch.Tensor,
    probes: torch.Tensor,
    *,
    side: Side = "gradients",
    bias: bool = False,
    power_iteration: bool = True,
) -> torch.Tensor:
    """Estimate ‖M‖²_F, M = AᵀG, by ‖MQ‖²_F + ‖M(I - QQᵀ)P‖²_F for every sample, with O((s + k)(T + d + p)) memory.

    Q is an orthonormal basis of the columns of MᵀMS, with S the sketch. This takes 3s + k products with M or Mᵀ: MS,
    Mᵀ(MS), MQ, and MP' with P' = P - Q(QᵀP). With ``power_iteration=False`` Q is a basis of MᵀS, with S on the other
    side: 2s + k products. Given S, the estimate is ‖M‖² times X = h + (1-h) Σ_i λ_i χ²_i(k)/k, with h the head's share
    and λ the tail's normalised squared singular values. The estimate is exact if the rank of M is at most the width of
    S.

    Parameters
    ----------
    activations : Tensor, shape (B, d) or (B, T, d)
        Inputs A of the layer; several uses of it concatenated along T.
    gradients : Tensor, shape (B, p) or (B, T, p)
        Gradients G of each sample's own loss with respect to the layer's outputs.
    sketch : Tensor, shape (r, s) or (B, r, s)
        S, Gaussian of any scale, because only its column space matters. Without power iteration r is the other of d
        and p.
    probes : Tensor, shape (r, k) or (B, r, k)
        P, of independent N(0, 1/k) entries, *independent of the sketch*.
    side : {"gradients", "activations"}
        "activations" exchanges A and G. r is p or d, plus one on the activations' side if there is a bias.
    bias : bool
        Whether the layer has a bias, then treated as the weight of one more activation that is always 1.
    power_iteration : bool
        Whether the sketch is multiplied by MᵀM, or by Mᵀ alone.

    Returns
    -------
    Tensor, shape (B,)
        float64; the products are formed in float32, or in float64 if an input is, under autocast too.

    Raises
    ------
    ParameterError
        If an input is not a real floating tensor, shapes do not fit, or the sketch was drawn from the probes' seed.

    References
    ----------
    Meyer, Musco, Musco & Woodruff (2021), arXiv:2010.09649, Algorithm 1. DP-SGD-RC: arXiv:2605.24879. The law:
    ``docs/theory/randomized_clipping.md``, §9.

    Examples
    --------
    >>> draw = ProbeGenerator(seed=0).shared
    >>> sketch = draw(step=0, layer="head", rows=3, probes=1, purpose="sketch")
    >>> probes = draw(step=0, layer="head", rows=3, probes=2)
    >>> hutchpp_squared_norms(torch.ones(1, 5, 2), torch.ones(1, 5, 3), sketch, probes).round(decimals=3)
    tensor([150.], dtype=torch.float64)
    """
    layer = layer_gradient(activations, gradients, bias, side)
    check_probes("sketch", sketch, layer if power_iteration else layer.transposed())
    check_probes("probes", probes, layer)
    _check_independence(sketch, probes)
    return _estimate(layer, sketch, probes, power_iteration)


def _estimate(layer: LayerGradient, sketch: torch.Tensor, probes: torch.Tensor, power_iteration: bool) -> torch.Tensor:
    with full_precision(layer.left.device):
        basis = _head_basis(layer, sketch.to(layer.left.dtype), power_iteration)
        matrix = probes.to(layer.left.dtype)
        residual = matrix - basis @ (basis.transpose(1, 2) @ matrix)
        return sum_of_squares(layer.times(basis)) + sum_of_squares(layer.times(residual))


def _check_independence(sketch: torch.Tensor, probes: torch.Tensor) -> None:
    """Refuse a sketch drawn from the probes' seed: the same numbers in the same order, up to one factor."""
    count = min(_COMPARED, sketch.shape[-2] * sketch.shape[-1], probes.shape[-2] * probes.shape[-1])
    first, second = (
        matrix.reshape(-1, matrix.shape[-2] * matrix.shape[-1])[:, :count].double() for matrix in (sketch, probes)
    )
    cosine = torch.nn.functional.cosine_similarity(first, second).abs()
    if count == _COMPARED and bool((cosine > 1 - _SAME).any()):
        allowed = "independent of the probes: of another seed or purpose"
        raise ParameterError("sketch", tuple(sketch.shape), allowed)


def _head_basis(layer: LayerGradient, sketch: torch.Tensor, power_iteration: bool) -> torch.Tensor:
    """Return Q of shape (B, n, min(s, n)), with orthonormal columns whatever the rank of MᵀMS or MᵀS."""
    with _no_coarser_products():
        # The second product is of the order of M², and would underflow.
        image = _scaled(layer.times(sketch)) if power_iteration else sketch
        basis: torch.Tensor = torch.linalg.qr(_scaled(layer.transposed().times(image))).Q
    return basis


@contextmanager
def _no_coarser_products() -> Iterator[None]:
    """Disable TF32 and bfloat16 in float32 products, because the allowance for Q is float32's rounding (H5)."""
    allowed = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(allowed)


def _scaled(image: torch.Tensor) -> torch.Tensor:
    """Return each sample's matrix over its largest entry: the same column space at a safe scale."""
    largest = image.abs().amax((1, 2), keepdim=True)
    return image / torch.where(largest > 0, largest, 1.0)


@dataclass(frozen=True)
class HutchPlusPlusEstimator:
    """Hutch++ norms of a training run's layers, with sketch and probes by step, layer and, if secret, sample.

    Parameters
    ----------
    probes : int
        k >= 2, the number of probes of the tail, as in `dprmt.accounting.HutchPlusPlus`.
    sketch : int, optional
        s >= 1, width of the sketch. By default 0.36 k with a power iteration and 0.45 k without, at least 3, close to
        the best split found by `dprmt.accounting.choose_probes`. With a sketch below 3 the accountant uses the law of
        k Hutchinson probes.
    power_iteration : bool
        Whether the head is a basis of MᵀMS (3s + k products) instead of MᵀS (2s + k).
    secret : bool
        True: every sample has a separate secret sketch and separate secret probes. False: one sketch and one probe
        matrix per layer and step.
    generator : ProbeGenerator
        The source of both; a new secret by default.

    Formal guarantees
    -----------------
    As for :class:`HutchinsonEstimator`, with X = h + (1-h) Σ_i λ_i χ²_i(k)/k given the sketch, which is independent of
    the probes. :attr:`norms` covers it with k = ``probes``, s = ``sketch`` and the same power iteration. It claims
    *no* finite rank, because part of the norm is exact.

    Raises
    ------
    ParameterError
        If an option is out of its range.

    Examples
    --------
    >>> estimator = HutchPlusPlusEstimator(probes=4, secret=False)
    >>> estimator.squared_norms(torch.ones(2, 5, 4), torch.ones(2, 5, 3), layer="head", step=0).round(decimals=3)
    tensor([300., 300.], dtype=torch.float64)
    >>> estimator.norms
    HutchPlusPlus(4, 3, power_iteration=True, secret=False)
    """

    probes: int = 32
    sketch: int | None = None
    power_iteration: bool = field(default=True, kw_only=True)
    secret: bool = field(default=True, kw_only=True)
    generator: ProbeGenerator = field(default_factory=ProbeGenerator, kw_only=True)

    def __post_init__(self) -> None:
        if self.sketch is not None:
            check_count("sketch", self.sketch)
        HutchPlusPlus(self.probes, max(self.width, _NARROWEST), secret=self.secret)  # checked by it

    @property
    def norms(self) -> HutchPlusPlus | Hutchinson:
        """The law of the estimates: Hutchinson's if the sketch is too narrow to be credited."""
        if self.width < _NARROWEST:
            return Hutchinson(self.probes, secret=self.secret)
        return HutchPlusPlus(self.probes, self.width, power_iteration=self.power_iteration, secret=self.secret)

    @property
    def width(self) -> int:
        """s, given or chosen."""
        share = _SHARE_WITH_POWER_ITERATION if self.power_iteration else _SHARE_IN_ONE_PASS
        return self.sketch or max(_NARROWEST, round(share * self.probes))

    def is_cheaper(self, in_features: int, out_features: int) -> bool:
        """True if the layer is large enough to be estimated: min(d, p) > s + k, else its norm is exact.

        Parameters
        ----------
        in_features, out_features : int
            d and p: the gradient has dp numbers, an estimate needs about (s + k)(T + d + p).

        Returns
        -------
        bool
            By the shape alone.
        """
        return min(in_features, out_features) > self.width + self.probes

    def terms(self, tokens: int, in_features: int, out_features: int) -> int:
        """Return the longest chain of additions, see :func:`rounding_margin`.

        Parameters
        ----------
        tokens, in_features, out_features : int
            T, d and p.

        Returns
        -------
        int
            Twice the value of `HutchinsonEstimator`, because the head's basis is a product of products.
        """
        return 2 * (tokens + in_features + out_features + 1)

    def squared_norms(
        self,
        activations: torch.Tensor,
        gradients: torch.Tensor,
        *,
        layer: str,
        step: SupportsIndex,
        samples: Sequence[SampleId] | torch.Tensor | None = None,
        bias: bool = False,
    ) -> torch.Tensor:
        """Return estimates for one layer and one micro-batch. Arguments as in
        :meth:`HutchinsonEstimator.squared_norms`.

        Returns
        -------
        Tensor, shape (B,)
            float64.

        Raises
        ------
        ParameterError
            If an argument is out of its range or shapes do not fit.
        """
        factors = layer_gradient(activations, gradients, bias, side=None)
        height = factors.columns if self.power_iteration else factors.rows
        draw = partial(draw_probes, self.generator, self.secret, samples, factors.left, layer=layer, step=step)
        sketch = draw(purpose="sketch", rows=height, probes=self.width)
        probes = draw(purpose="probes", rows=factors.columns, probes=self.probes)
        return _estimate(factors, sketch, probes, self.power_iteration)
