"""Projected per-sample gradients of linear-like layers from their two factors: the m × n gradient is never formed.

With output gradients G (B, T, p) and activations A (B, T, d), the gradient of a Linear's weight is GᵀA, p × d. If p is
the longer side, Pᵀ(GᵀA) = (GP)ᵀA; if d is, Pᵀ(AᵀG) = (AP)ᵀG. So a projected gradient has factors, too: the projected
one, (B, T, r), and the other one, (B, T, n). An embedding table's gradient is kept as tokens and output gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import nn

from dprmt._validation import ParameterError
from dprmt.training.norms import embedding_squared_norms, exact_squared_norms, ghost_squared_norms
from dprmt.training.norms._layer_gradient import (
    check_factor,
    full_precision,
    sum_of_squares,
    tokens_in_the_middle,
    working_dtype,
)
from dprmt.training.projection._layers import is_linear

_SCRATCH = 2**16  # entries, 512 KiB in float64

Norms: TypeAlias = Literal["materialize", "ghost", "auto"]


@dataclass
class Factors:
    """A micro-batch of per-sample matrices R_i = LᵢᵀS_i (r × n) that are not formed.

    Parameters
    ----------
    left : Tensor, shape (B, T, r)
        The longer side, projected; (B, T, m) if there is no projector.
    right : Tensor, shape (B, T, n)
        The shorter side.
    """

    left: torch.Tensor
    right: torch.Tensor

    def materialize(self) -> torch.Tensor:
        """All R_i.

        Returns
        -------
        Tensor, shape (B, r, n)
            Per-sample gradients.
        """
        with full_precision(self.left.device):
            return self.left.mT @ self.right

    def squared_norms(self) -> torch.Tensor:
        """‖R_i‖²_F from the tokens' Gram matrices, or one R_i at a time, whichever is smaller.

        Gram matrices are formed in float64, since their inner product cancels; a few samples at a time, so that this
        costs no memory that grows with B.

        Returns
        -------
        Tensor, shape (B,)
            float64.
        """
        tokens, r, n = self.left.shape[1], self.left.shape[2], self.right.shape[2]
        norms = torch.zeros(len(self.left), dtype=torch.float64, device=self.left.device)
        gram = 2 * tokens**2 < r * n
        for part in _parts(len(norms), tokens * (r + n) + 2 * tokens**2 if gram else 2 * r * n):
            left, right = self.left[part], self.right[part]
            if gram:
                norms[part] = ghost_squared_norms(left.double(), right.double())
            else:
                norms[part] = exact_squared_norms(left, right)
        return norms

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """Σ_i w_i R_i in one product ("book-keeping").

        Parameters
        ----------
        weights : Tensor, shape (B,)
            0 leaves a sample out, also one that is not finite.

        Returns
        -------
        Tensor, shape (r, n)
            The sum.
        """
        used = (weights > 0)[:, None, None]
        left = torch.where(used, self.left * weights.to(self.left.dtype)[:, None, None], 0.0)
        right = torch.where(used, self.right, 0.0) if not bool(used.all()) else self.right
        with full_precision(left.device):
            return left.flatten(0, 1).mT @ right.flatten(0, 1)

    def joined(self, other: Factors) -> Factors:
        """The factors of the sum of both gradients: a layer that was used twice.

        Parameters
        ----------
        other : Factors
            Of the same samples.

        Returns
        -------
        Factors
            Concatenated along T.
        """
        return Factors(torch.cat([self.left, other.left], 1), torch.cat([self.right, other.right], 1))


@dataclass
class Lookups:
    """A micro-batch of per-sample gradients of an embedding table, kept as what was looked up: rows are not formed.

    Parameters
    ----------
    tokens : Tensor of int64, shape (B, T)
        Rows of the table.
    gradients : Tensor, shape (B, T, p)
        With respect to what was looked up, at least float32.
    rows : int
        V, rows of the table.
    padding_idx : int or None
        The row without gradient.
    """

    tokens: torch.Tensor
    gradients: torch.Tensor
    rows: int
    padding_idx: int | None

    def squared_norms(self) -> torch.Tensor:
        """‖g_i‖² in memory O(BTp), whatever V.

        Returns
        -------
        Tensor, shape (B,)
            float64.
        """
        return embedding_squared_norms(self.tokens, self.gradients, padding_idx=self.padding_idx)

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """Σ_i w_i g_i.

        Parameters
        ----------
        weights : Tensor, shape (B,)
            0 leaves a sample out, also one that is not finite.

        Returns
        -------
        Tensor, shape (V, p)
            The sum.
        """
        scaled = self.gradients * weights.to(self.gradients.dtype)[:, None, None]
        scaled = torch.where((weights > 0)[:, None, None], scaled, 0.0).flatten(0, 1)
        total = scaled.new_zeros(self.rows, scaled.shape[-1]).index_add_(0, self.tokens.flatten(), scaled)
        if self.padding_idx is not None:
            total[self.padding_idx] = 0.0
        return total

    def joined(self, other: Lookups) -> Lookups:
        """The sum of both gradients: a table that was used twice.

        Parameters
        ----------
        other : Lookups
            Of the same samples and table.

        Returns
        -------
        Lookups
            Concatenated along T.
        """
        tokens, gradients = torch.cat([self.tokens, other.tokens], 1), torch.cat([self.gradients, other.gradients], 1)
        return Lookups(tokens, gradients, self.rows, self.padding_idx)


def table_lookups(module: nn.Embedding, tokens: torch.Tensor, gradients: torch.Tensor) -> Lookups:
    """Per-sample gradients of an embedding table from what the hooks caught.

    Parameters
    ----------
    module : torch.nn.Embedding
        The table.
    tokens, gradients : Tensor, shapes (B, ...) and (B, ..., p)
        Its input and the gradients of its output.

    Returns
    -------
    Lookups
        In at least float32.
    """
    values = tokens_in_the_middle(gradients, working_dtype(gradients))
    return Lookups(tokens.reshape(values.shape[:2]).long(), values, module.num_embeddings, module.padding_idx)


def weight_factors(
    module: nn.Module, activations: torch.Tensor, gradients: torch.Tensor, axis: int, projector: torch.Tensor | None
) -> Factors:
    """Factors of the projected gradient of a Linear's or Conv1D's weight.

    Parameters
    ----------
    module : torch.nn.Module
        Says how the weight lies.
    activations, gradients : Tensor, shapes (B, ..., d) and (B, ..., p)
        What the hooks caught.
    axis : int
        The projected axis of the weight.
    projector : Tensor, shape (m, r), or None
        P; None for the whole gradient.

    Returns
    -------
    Factors
        In at least float32.
    """
    dtype = working_dtype(activations, gradients)
    a, g = tokens_in_the_middle(activations, dtype), tokens_in_the_middle(gradients, dtype)
    rows, columns = (g, a) if is_linear(module) else (a, g)
    long, short = (rows, columns) if axis == 0 else (columns, rows)
    if projector is None:
        return Factors(long, short)
    with full_precision(long.device):
        return Factors(long @ projector.to(dtype), short)


def is_cheaper_as_factors(factors: Factors) -> bool:
    """Whether both factors together hold fewer numbers than the products.

    Returns
    -------
    bool
        T(r + n) < rn, by shapes alone.
    """
    tokens, r, n = factors.left.shape[1], factors.left.shape[2], factors.right.shape[2]
    return tokens * (r + n) < r * n


def projected_grad_samples(activations: torch.Tensor, gradients: torch.Tensor, projector: torch.Tensor) -> torch.Tensor:
    """Pᵀ(GᵀA) for every sample, as (GP)ᵀA: memory O(rn + T(r + n)) per sample, never O(mn).

    Parameters
    ----------
    activations : Tensor, shape (B, d) or (B, T, d)
        Inputs A of a linear layer; or, to project the input side, the output gradients.
    gradients : Tensor, shape (B, p) or (B, T, p)
        Gradients G of each sample's own loss with respect to the outputs; or the inputs.
    projector : Tensor, shape (p, r)
        P.

    Returns
    -------
    Tensor, shape (B, r, d)
        In float32, or float64 if an input is.

    Raises
    ------
    ParameterError
        If shapes do not fit.

    References
    ----------
    arXiv:2506.15588, section 3.

    Examples
    --------
    >>> a, g, p = torch.ones(1, 5, 2), torch.ones(1, 5, 3), torch.eye(3)[:, :1]
    >>> projected_grad_samples(a, g, p)
    tensor([[[5., 5.]]])
    """
    return _factors(activations, gradients, projector).materialize()


def projected_squared_norms(
    activations: torch.Tensor, gradients: torch.Tensor, projector: torch.Tensor
) -> torch.Tensor:
    """‖Pᵀ(GᵀA)‖²_F for every sample without all samples' r × n gradients: ghost norms in the projected space.

    Parameters
    ----------
    activations, gradients, projector
        As in :func:`projected_grad_samples`.

    Returns
    -------
    Tensor, shape (B,)
        float64; exact up to rounding. ⟨(GP)(GP)ᵀ, AAᵀ⟩ where 2T² < rd.

    Raises
    ------
    ParameterError
        If shapes do not fit.

    References
    ----------
    Open question 1 of arXiv:2506.15588; ghost norms: arXiv:2110.05679, section 4.

    Examples
    --------
    >>> a, g, p = torch.ones(1, 5, 2), torch.ones(1, 5, 3), torch.eye(3)[:, :1]
    >>> projected_squared_norms(a, g, p)
    tensor([50.], dtype=torch.float64)
    """
    return _factors(activations, gradients, projector).squared_norms()


def weighted_sum(grad_samples: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Σ_i w_i g_i of formed per-sample gradients; samples of weight 0 are left out, also if not finite.

    Parameters
    ----------
    grad_samples : Tensor, shape (B, ...)
        g, at least float32.
    weights : Tensor, shape (B,)
        w >= 0.

    Returns
    -------
    Tensor, shape (...)
        The sum.
    """
    if not bool((weights > 0).all()):
        grad_samples, weights = grad_samples[weights > 0], weights[weights > 0]
    return torch.einsum("i,i...->...", weights.to(grad_samples.dtype), grad_samples)


def squared_norms(grad_samples: torch.Tensor) -> torch.Tensor:
    """‖g_i‖² in float64, a few samples at a time: no float64 copy of all of them.

    Parameters
    ----------
    grad_samples : Tensor, shape (B, ...)
        Per-sample gradients.

    Returns
    -------
    Tensor, shape (B,)
        float64.
    """
    norms = torch.zeros(len(grad_samples), dtype=torch.float64, device=grad_samples.device)
    for part in _parts(len(norms), 2 * grad_samples[:1].numel()):
        norms[part] = sum_of_squares(grad_samples[part])
    return norms


def _parts(size: int, entries: int) -> Iterator[slice]:
    # Slices of the batch whose float64 copies, of so many entries per sample, stay small; at least one sample each.
    length = max(1, _SCRATCH // max(1, entries))
    for start in range(0, size, length):
        yield slice(start, start + length)


def _factors(activations: torch.Tensor, gradients: torch.Tensor, projector: torch.Tensor) -> Factors:
    check_factor("activations", activations)
    check_factor("gradients", gradients)
    if activations.shape[:-1] != gradients.shape[:-1]:
        allowed = f"of shape {(*activations.shape[:-1], 'p')}, as the activations"
        raise ParameterError("gradients", tuple(gradients.shape), allowed)
    if projector.ndim != 2 or projector.shape[0] != gradients.shape[-1]:
        raise ParameterError("projector", tuple(projector.shape), f"of shape ({gradients.shape[-1]}, r)")
    dtype = working_dtype(activations, gradients)
    a, g = tokens_in_the_middle(activations, dtype), tokens_in_the_middle(gradients, dtype)
    with full_precision(a.device):
        return Factors(g @ projector.to(dtype), a)
