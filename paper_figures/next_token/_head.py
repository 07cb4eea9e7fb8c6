r"""Training the output head alone: per-sample gradients in closed form, never materialised.

A sequence with hidden states h_t, residuals r_t = p_t - y_t and weights w_t has the gradient ``Σ_t w_t r_t h_tᵀ`` in
the head. Its squared norm needs inner products of tokens only (`dprmt.training.norms.ghost_squared_norms`), and the
sum of clipped gradients is one matrix product over all tokens. The per-sample gradients would take B·V·h numbers:
154 MB for one sequence at GPT-2's size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dprmt._validation import ParameterError
from dprmt.training.norms import clip_factors, ghost_squared_norms
from paper_figures.next_token._tokens import TokenData, measured_tokens
from paper_figures.studies import ClosedFormTask, Measured


@dataclass(frozen=True)
class HeadData(ClosedFormTask):
    """Sequences as their hidden states; a task for `studies.train_privately` with a ``Linear`` model.

    Attributes
    ----------
    features : Tensor, shape (n, T, h)
        Hidden states, as from `head_and_features`.
    tokens : TokenData
        The sequences.
    """

    features: torch.Tensor
    tokens: TokenData

    @property
    def size(self) -> int:  # type: ignore[override]  # what is an attribute may be computed
        """Number of sequences."""
        return self.tokens.size

    @property
    def group_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """Those of the tokens."""
        return self.tokens.group_names

    def measure(self, model: torch.nn.Module, indices: torch.Tensor) -> Measured:
        """Cross entropy of the counted tokens, in nats; a sequence's loss is their mean.

        Parameters
        ----------
        model : Module
            The head.
        indices : Tensor of int64, shape (B,)
            Which sequences.

        Returns
        -------
        Measured
            With the graph of each sequence's loss; its items are the counted tokens.
        """
        ids, counted = self.tokens.ids[indices, 1:], self.tokens.counted[indices, 1:]
        return measured_tokens(model(self.features[indices, :-1]), ids, counted, self.tokens.token_groups)

    def clipped_gradients(
        self, model: torch.nn.Module, indices: torch.Tensor, clipping_norm: float
    ) -> tuple[Measured, dict[str, torch.Tensor]]:
        """The sum of exactly clipped gradients of some sequences, by parameter, without per-sample gradients.

        Parameters
        ----------
        model : Linear
            The head, without bias.
        indices : Tensor of int64, shape (B,)
            Which sequences.
        clipping_norm : float
            C > 0.

        Returns
        -------
        measured : Measured
            Without graph.
        sums : dict of Tensor
            "weight", shape (V, h).

        Raises
        ------
        ParameterError
            If the model is no linear layer without bias.

        Formal guarantees
        -----------------
        Adding or removing a sequence changes the sum by at most C in norm, up to the rounding of the sum: norms
        are exact, and their rounding is taken off the clip factors.
        """
        if not isinstance(model, torch.nn.Linear) or model.bias is not None:
            raise ParameterError("model", type(model).__name__, "a Linear layer without bias")
        ids, counted = self.tokens.ids[indices, 1:], self.tokens.counted[indices, 1:]
        states = self.features[indices, :-1]
        with torch.no_grad():
            logits = model(states)
            measured = measured_tokens(logits, ids, counted, self.tokens.token_groups)
            rows = logits.softmax(2)
            rows.scatter_add_(2, ids[..., None], -torch.ones_like(rows[..., :1]))
            rows.mul_((counted / counted.sum(1, keepdim=True).clamp_min(1))[..., None])
            factors = clip_factors(ghost_squared_norms(states, rows), clipping_norm)
            rows.mul_(factors.to(rows.dtype)[:, None, None])
            return measured, {"weight": rows.flatten(0, 1).T @ states.flatten(0, 1)}
