"""Estimators of squared per-sample gradient norms: the interface, Hutchinson's with Gaussian probes, and Hutch++."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, SupportsIndex, runtime_checkable

import torch

from dprmt._validation import ParameterError, check_count
from dprmt.accounting import Hutchinson, HutchPlusPlus, Norms
from dprmt.training.norms._clipping import (
    LayerGradient,
    Side,
    check_factors,
    full_precision,
    layer_gradient,
    sum_of_squares,
)
from dprmt.training.norms._probes import ProbeGenerator, SampleId
from dprmt.training.norms._record import LayerRecord


@runtime_checkable
class NormEstimator(Protocol):
    """Estimates ‖M_i‖²_F of per-sample gradients M_i = A_iᵀG_i; any object with these four members is one.

    `dprmt.make_private` takes one as ``norms``, and gives it the factors of every layer whose norm it wants to
    estimate. The matrices need not belong to a linear layer: a projected weight's gradient is a product of two factors
    too.

    Formal guarantees
    -----------------
    The accountant relies on :attr:`norms` without checking it. If `dprmt.accounting` has no law for your estimator,
    return None. Then there is no ε, and ``NormRecord.mechanism`` raises an error.

    Examples
    --------
    >>> from dprmt.training.norms import HutchinsonEstimator
    >>> isinstance(HutchinsonEstimator(probes=8), NormEstimator)
    True
    """

    @property
    def norms(self) -> Norms | None:
        """Law of the estimates, for example ``Hutchinson(32, secret=False)``; None if it is unknown.

        With ``secret=True`` samples have separate randomness, and :meth:`squared_norms` receives their identities.
        """

    def is_cheaper(self, in_features: int, out_features: int) -> bool:
        """True if a layer of this shape is to be estimated rather than its exact norm taken; by the shape alone."""

    def terms(self, tokens: int, in_features: int, out_features: int) -> int:
        """Return the longest chain of additions at T tokens: what ``rounding_margin`` asks for."""

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
        """Return estimates of shape (B,), float64, from factors of shapes (B, T, d) and (B, T, p).

        ``layer`` and ``step`` name what randomness is for, ``samples`` are identities in the data set.
        """


def hutchinson_squared_norms(
    activations: torch.Tensor,
    gradients: torch.Tensor,
    probes: torch.Tensor,
    *,
    side: Side = "gradients",
    bias: bool = False,
) -> torch.Tensor:
    """Estimate ‖AᵀG‖²_F by ‖Aᵀ(GP)‖²_F for every sample: O(k(T + d + p)) memory per sample.

    With N(0, 1/k) entries the estimate is the true value times X = Σ_i λ_i χ²_i(k)/k, λ_i the squared singular
    values of AᵀG over their sum: unbiased, with variance (2/k) Σ_i s_i⁴. Multiplying the activations by the
    probes instead estimates ‖GᵀA‖²_F = ‖AᵀG‖²_F by ‖Gᵀ(AP)‖²_F. GᵀA has the same singular values, and
    these alone determine the law of X: it is the same on either side.

    Parameters
    ----------
    activations : Tensor, shape (B, d) or (B, T, d)
        Inputs A of the layer; several uses of it concatenated along T.
    gradients : Tensor, shape (B, p) or (B, T, p)
        Gradients G of each sample's own loss with respect to the layer's outputs.
    probes : Tensor, shape (r, k) or (B, r, k)
        P, of independent N(0, 1/k) entries, see :class:`ProbeGenerator`: one for all samples or one for each.
        r is p for ``side="gradients"``, d for ``"activations"``, where a bias adds one.
    side : {"gradients", "activations"}
        What is multiplied by the probes; must not depend on the data (:func:`cheaper_side` does not).
    bias : bool
        Whether the layer has a bias. It is estimated together with the weight, as the weight of one more
        activation that is always 1, so that it adds no exact part.

    Returns
    -------
    Tensor, shape (B,)
        float64; the products are formed in float32, or in float64 if an input is, under autocast too.

    Raises
    ------
    ParameterError
        If an input is not a real floating tensor or shapes do not fit.

    References
    ----------
    arXiv:2605.24879 (DP-SGD-RC); the law: ``docs/theory/randomized_clipping.md``, §1.

    Examples
    --------
    >>> probes = ProbeGenerator(seed=0).shared(step=0, layer="head", rows=3, probes=1000)
    >>> estimate = hutchinson_squared_norms(torch.ones(1, 5, 2), torch.ones(1, 5, 3), probes)  # true value: 150
    >>> bool(135 < estimate < 165)
    True
    """
    layer = layer_gradient(activations, gradients, bias, side)
    check_probes("probes", probes, layer)
    return sum_of_squares(layer.times(probes))


def check_probes(name: str, probes: torch.Tensor, layer: LayerGradient) -> None:
    """Raise unless there is one matrix of the right height for all samples, or one for each."""
    check_factors(**{name: probes})
    if probes.shape[-2] != layer.columns or probes.shape[:-2] not in ((), layer.left.shape[:1]):
        rows, size = layer.columns, len(layer.left)
        raise ParameterError(name, tuple(probes.shape), f"of shape ({rows}, k) or ({size}, {rows}, k)")


class _Probed:
    """What estimators share that draw from a `ProbeGenerator`."""

    secret: bool
    generator: ProbeGenerator

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
        """Return estimates for one layer and one micro-batch.

        Parameters
        ----------
        activations, gradients, bias
            As in :func:`hutchinson_squared_norms`.
        layer : str
            The layer's own name.
        step : int
            Number of the logical step, the same for all its micro-batches.
        samples : sequence of int or str, or tensor of integers, shape (B,)
            Identities of the samples in the data set; needed for secret probes.

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
        request = {"layer": layer, "step": step, "dtype": factors.left.dtype, "device": factors.left.device}
        return self._estimates(factors, partial(self._draw, len(factors.left), samples, **request))

    def _estimates(self, factors: LayerGradient, draw: Callable[..., torch.Tensor]) -> torch.Tensor:
        raise NotImplementedError

    def _draw(self, size: int, samples: Sequence[SampleId] | torch.Tensor | None, **request: Any) -> torch.Tensor:
        """Return the matrix of a micro-batch, or if secret the matrices of its samples."""
        if not self.secret:
            return self.generator.shared(**request)
        if samples is None or len(samples) != size:
            raise ParameterError("samples", samples, f"the identities of all {size} samples of the micro-batch")
        return self.generator.per_sample(samples, **request)


@dataclass(frozen=True)
class HutchinsonEstimator(_Probed):
    """Hutchinson norms of a training run's layers, with probes by step, layer and, if they are secret, sample.

    Parameters
    ----------
    probes : int
        k >= 2.
    secret : bool
        True: every sample has separate secret probes. False: one matrix per layer and step, which may be public.
    everything : bool
        By default layers with min(d, p) <= k, embeddings, normalizations and lone biases are exact, which costs less,
        and no finite rank is claimed. True estimates all of them.
    generator : ProbeGenerator
        The source of probes; a new secret by default.

    Formal guarantees
    -----------------
    The estimate of layer l for sample i is ‖M_{li} P‖²_F, with M_{li} the gradient of the layer's weight (and bias)
    and P from the generator, under its conditions. Up to rounding (see :func:`rounding_margin`) it equals ‖M_{li}‖²
    times the X of ``docs/theory/randomized_clipping.md``, §1, as :attr:`norms` requires. If probes are secret, you
    must not release norms or clip factors.

    Raises
    ------
    ParameterError
        If an option is out of its range.

    Examples
    --------
    >>> estimator = HutchinsonEstimator(probes=8)
    >>> activations, gradients = torch.ones(2, 5, 4), torch.ones(2, 5, 3)
    >>> estimator.squared_norms(activations, gradients, layer="head", step=0, samples=[17, 4]).shape
    torch.Size([2])
    >>> estimator.norms
    Hutchinson(8, secret=True)
    """

    probes: int = 32
    secret: bool = field(default=True, kw_only=True)
    everything: bool = field(default=False, kw_only=True)
    generator: ProbeGenerator = field(default_factory=ProbeGenerator, kw_only=True)

    def __post_init__(self) -> None:
        Hutchinson(self.probes, secret=self.secret)  # checked by it

    @property
    def norms(self) -> Hutchinson:
        """The law of the estimates."""
        return Hutchinson(self.probes, secret=self.secret)

    def is_cheaper(self, in_features: int, out_features: int) -> bool:
        """True if an estimate needs less memory and fewer operations than the exact norm: min(d, p) > k.

        Parameters
        ----------
        in_features, out_features : int
            d and p: the gradient has dp numbers, an estimate needs k(T + d + p).

        Returns
        -------
        bool
            By the shape alone.
        """
        return min(in_features, out_features) > self.probes

    def terms(self, tokens: int, in_features: int, out_features: int) -> int:
        """Return the longest chain of additions, see :func:`rounding_margin`.

        Parameters
        ----------
        tokens, in_features, out_features : int
            T, d and p.

        Returns
        -------
        int
            T + d + p + 1.
        """
        return tokens + in_features + out_features + 1

    def _estimates(self, factors: LayerGradient, draw: Callable[..., torch.Tensor]) -> torch.Tensor:
        return sum_of_squares(factors.times(draw(rows=factors.columns, probes=self.probes)))

    def embedding_squared_norms(
        self,
        owners: torch.Tensor,
        rows: torch.Tensor,
        size: int,
        *,
        layer: str,
        step: SupportsIndex,
        samples: Sequence[SampleId] | torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return estimates for an embedding table: ‖(AᵀG)P‖²_F with A the tokens' indicators, from the rows that are
        summed.

        Parameters
        ----------
        owners, rows : Tensor, shapes (R,) and (R, p)
            As found by `dprmt.training.norms._exact.embedding_rows`.
        size : int
            Number B of samples.
        layer, step, samples
            As in :meth:`squared_norms`.

        Returns
        -------
        Tensor, shape (B,)
            float64.

        Raises
        ------
        ParameterError
            If an argument is out of its range or shapes do not fit.
        """
        request = {"rows": rows.shape[-1], "probes": self.probes, "dtype": rows.dtype, "device": rows.device}
        probes = self._draw(size, samples, layer=layer, step=step, **request).expand(size, -1, -1)
        each = rows.split(torch.bincount(owners, minlength=size).tolist())  # rows are sorted by their owner
        with full_precision(rows.device):
            products = [part @ own for part, own in zip(each, probes, strict=True)]
        squares = torch.zeros(size, dtype=torch.float64, device=rows.device)
        return squares.index_add_(0, owners, sum_of_squares(torch.cat([rows.new_empty(0, self.probes), *products])))


# Hutch++.

_NARROWEST = 3  # columns of a sketch that the accountant credits


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
    # Two times six independent normals are that nearly parallel with probability below 1e-20.
    first, second = (matrix.flatten(-2)[..., :6].double() for matrix in (sketch, probes))
    if first.shape[-1] < 6 or second.shape[-1] < 6:
        return
    if bool((torch.nn.functional.cosine_similarity(first, second, dim=-1).abs() > 1 - 1e-9).any()):
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
class HutchPlusPlusEstimator(_Probed):
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
        share = 0.36 if self.power_iteration else 0.45
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

    def _estimates(self, factors: LayerGradient, draw: Callable[..., torch.Tensor]) -> torch.Tensor:
        height = factors.columns if self.power_iteration else factors.rows
        sketch = draw(purpose="sketch", rows=height, probes=self.width)
        probes = draw(purpose="probes", rows=factors.columns, probes=self.probes)
        return _estimate(factors, sketch, probes, self.power_iteration)


def layer_record(
    estimator: NormEstimator,
    layer: str,
    in_features: int,
    out_features: int,
    *,
    bias: bool = False,
    tokens: int | None = None,
) -> LayerRecord:
    """Record what the accountant must know of an estimated layer: of Hutchinson's norms, the largest possible rank.

    A gradient of d inputs (and a bias), p outputs and at most T tokens has at most rank min(d, p, T).

    Examples
    --------
    >>> layer_record(HutchinsonEstimator(8), "head", in_features=4, out_features=3)
    LayerRecord(layer='head', norms=Hutchinson(8, secret=True, rank=3))
    """
    norms = estimator.norms
    if isinstance(estimator, HutchinsonEstimator):
        rank = min(in_features + bias, out_features, out_features if tokens is None else tokens)
        norms = replace(estimator.norms, rank=rank)
    return LayerRecord(layer, norms)
