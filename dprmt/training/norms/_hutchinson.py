"""Squared per-sample gradient norms by Hutchinson's estimator with Gaussian probes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import SupportsIndex

import torch

from dprmt._validation import ParameterError
from dprmt.accounting import Hutchinson
from dprmt.training.norms._exact import embedding_rows
from dprmt.training.norms._layer_gradient import (
    LayerGradient,
    Side,
    full_precision,
    layer_gradient,
    sum_of_squares,
    token_factors,
)
from dprmt.training.norms._probes import ProbeGenerator, SampleId, draw_probes


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
    token_factors(**{name: probes})
    if probes.shape[-2] != layer.columns or probes.shape[:-2] not in ((), layer.left.shape[:1]):
        rows, size = layer.columns, len(layer.left)
        raise ParameterError(name, tuple(probes.shape), f"of shape ({rows}, k) or ({size}, {rows}, k)")


@dataclass(frozen=True)
class HutchinsonEstimator:
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
        request = {"layer": layer, "step": step, "rows": factors.columns, "probes": self.probes}
        probes = draw_probes(self.generator, self.secret, samples, factors.left, **request)
        return sum_of_squares(factors.times(probes))

    def embedding_squared_norms(
        self,
        tokens: torch.Tensor,
        gradients: torch.Tensor,
        *,
        layer: str,
        step: SupportsIndex,
        samples: Sequence[SampleId] | torch.Tensor | None = None,
        padding_idx: int | None = None,
    ) -> torch.Tensor:
        """Return estimates for an embedding table: ‖(AᵀG)P‖²_F with A the tokens' indicators, from the rows that are
        summed.

        Parameters
        ----------
        tokens, gradients, padding_idx
            As in :func:`dprmt.training.norms.embedding_rows`, whose exact norms are seldom more expensive.
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
        (values,) = token_factors(gradients=gradients)
        request = {"layer": layer, "step": step, "rows": values.shape[-1], "probes": self.probes}
        probes = draw_probes(self.generator, self.secret, samples, values, **request)
        owners, _, rows = embedding_rows(tokens.reshape(len(values), -1), values, padding_idx=padding_idx)
        each = rows.split(torch.bincount(owners, minlength=len(values)).tolist())  # rows are sorted by their owner
        with full_precision(values.device):
            products = [part @ own for part, own in zip(each, probes.expand(len(values), -1, -1), strict=True)]
        squares = torch.zeros(len(values), dtype=torch.float64, device=values.device)
        return squares.index_add_(0, owners, sum_of_squares(torch.cat([values.new_empty(0, self.probes), *products])))
