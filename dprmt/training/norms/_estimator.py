"""Interface that clipping and the accountant need from an estimator of squared per-sample gradient norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, SupportsIndex, runtime_checkable

import torch

from dprmt._validation import check_count
from dprmt.accounting import Hutchinson, Norms
from dprmt.training.norms._probes import SampleId
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


@runtime_checkable
class EmbeddingNormEstimator(NormEstimator, Protocol):
    """An estimator of whole norms, with embedding tables, so that it may estimate every parameter.

    If its ``norms`` are ``Hutchinson(…)``, the largest ranks of the layers' gradients are claimed from their shapes. A
    finite total rank is claimed if ``everything`` is estimated.

    Examples
    --------
    >>> from dprmt.training.norms import HutchinsonEstimator, HutchPlusPlusEstimator
    >>> isinstance(HutchinsonEstimator(), EmbeddingNormEstimator)
    True
    >>> isinstance(HutchPlusPlusEstimator(), EmbeddingNormEstimator)
    False
    """

    @property
    def everything(self) -> bool:
        """True if layers whose exact norm is cheaper are estimated too."""

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
        """Return estimates of shape (B,), float64, from tokens (B, T) and gradients of what was looked up (B, T, p)."""


def layer_record(
    estimator: NormEstimator,
    layer: str,
    in_features: int,
    out_features: int,
    *,
    bias: bool = False,
    tokens: int | None = None,
) -> LayerRecord:
    """Record of what the accountant must know of a layer that is estimated.

    Parameters
    ----------
    estimator : NormEstimator
        By which.
    layer : str
        The layer's name.
    in_features, out_features : int
        d and p.
    bias : bool
        Whether the layer has a bias.
    tokens : int, optional
        The largest possible T, known without looking at the data; a gradient has at most rank T.

    Returns
    -------
    LayerRecord
        With the largest rank that this layer's gradient can have, if its whole norm is Hutchinson's.

    Raises
    ------
    ParameterError
        If a size is not an integer >= 1.

    Examples
    --------
    >>> from dprmt.training.norms import HutchinsonEstimator
    >>> layer_record(HutchinsonEstimator(8), "head", in_features=4, out_features=3)
    LayerRecord(layer='head', norms=Hutchinson(8, secret=True, rank=3))
    """
    rank = min(check_count("in_features", in_features) + bool(bias), check_count("out_features", out_features))
    if tokens is not None:
        rank = min(rank, check_count("tokens", tokens))
    norms = estimator.norms
    if isinstance(norms, Hutchinson) and isinstance(estimator, EmbeddingNormEstimator):
        norms = replace(norms, rank=rank)
    return LayerRecord(layer, norms)
