"""What clipping and the accountant ask of an estimator of squared per-sample gradient norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, SupportsIndex, TypeAlias, runtime_checkable

import torch

from dprmt.training.norms._probes import SampleId
from dprmt.training.norms._record import LayerRecord

ProbeSharing: TypeAlias = Literal["batch", "sample"]


@runtime_checkable
class NormEstimator(Protocol):
    """Estimates ‖M_i‖²_F of per-sample gradients M_i = A_iᵀG_i; any object with these five members is one.

    `dprmt.training.clipping.make_private` takes one as ``clipping``, and gives it the factors of every layer whose norm
    it wants to estimate. The matrices need not be those of a linear layer: a projected weight's are as well
    products of two factors.

    Formal guarantees
    -----------------
    The accountant believes :meth:`layer_record`. An estimator whose law is none of those that ``LayerRecord`` knows
    says ``method="unknown"``: then there is no ε, and ``NormRecord.mechanism`` says so with an error.

    Examples
    --------
    >>> from dprmt.training.norms import Hutchinson
    >>> isinstance(Hutchinson(probes=8), NormEstimator)
    True
    """

    @property
    def probe_sharing(self) -> ProbeSharing:
        """Whether randomness is shared by the samples of a step ("batch", it may become known) or not ("sample")."""

    def is_cheaper(self, in_features: int, out_features: int) -> bool:
        """Whether to estimate a layer of this shape rather than take its exact norm; by the shape alone."""

    def terms(self, tokens: int, in_features: int, out_features: int) -> int:
        """The longest chain of additions at T tokens: what ``rounding_margin`` asks for."""

    def layer_record(
        self, layer: str, in_features: int, out_features: int, *, bias: bool = False, tokens: int | None = None
    ) -> LayerRecord:
        """What the accountant must know of a layer treated this way."""

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
        """Estimates of shape (B,), float64, from factors of shapes (B, T, d) and (B, T, p).

        ``layer`` and ``step`` name what randomness is for, ``samples`` are identities in the data set.
        """


@runtime_checkable
class EmbeddingNormEstimator(NormEstimator, Protocol):
    """One that also estimates embedding tables, and so every parameter: what a finite rank needs.

    Examples
    --------
    >>> from dprmt.training.norms import Hutchinson, HutchPlusPlus
    >>> isinstance(Hutchinson(), EmbeddingNormEstimator), isinstance(HutchPlusPlus(), EmbeddingNormEstimator)
    (True, False)
    """

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
        """Estimates of shape (B,), float64, from tokens (B, T) and gradients of what was looked up (B, T, p)."""
