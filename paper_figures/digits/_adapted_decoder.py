"""An adapter on the values of a frozen decoder's last layer: what a text's learnt tokens are before the adapter.

Queries, keys and A stay, A drawn once, so that attention is a fixed average: at a token its head h puts out the frozen
part and ``B_h u_h``, where u_h, of rank numbers, is the head's average of ``A x``. Only the MLP, the norms and the
output matrix are left for a step, at the tokens that are learnt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence

from paper_figures.denoising._last_decoder import IGNORED, LastDecoder, output_loss, padded
from paper_figures.digits._networks import Weights
from paper_figures.digits._samples import Part

_AT_ONCE = 64  # texts, few enough for the processor's cache
Text = tuple[torch.Tensor, Sequence[int]]
"""What goes into the last layer, shape (T, width), and the tokens, -100 where none is learnt."""


@dataclass(frozen=True)
class Learnt:
    """The learnt tokens of a text.

    Attributes
    ----------
    fixed : Tensor
        The layer's states after its attention without an adapter, shape (n, width), float32.
    averages : Tensor
        u of every head, shape (n, heads, rank), float32.
    words : Tensor
        The tokens, as places among the words of the output.
    """

    fixed: torch.Tensor
    averages: torch.Tensor
    words: torch.Tensor


class AdaptedDecoder:
    """`Samples` of texts, for an adapter's B; right answers are next tokens.

    Parameters
    ----------
    end : LastDecoder
        With an adapter on its values, of which A is used and B is not.
    train, tune, test : sequence of pair
        The softmax is over the words that are learnt in one of them at least: the others are left out.
    """

    def __init__(self, end: LastDecoder, train: Sequence[Text], tune: Sequence[Text], test: Sequence[Text]) -> None:
        learnt = {word for part in (train, tune, test) for _, labels in part for word in labels[1:]} - {IGNORED}
        self.words = torch.tensor(sorted(learnt))
        self._end, self._output = end, end.output.weight[self.words]
        self._groups = end.layer.self_attn.v_proj.base_layer.weight.shape[0] // end.layer.self_attn.head_dim
        self._out = end.layer.self_attn.o_proj.weight
        averages = _Averages(end)
        parts = [
            [one for batch in _batches(part) for one in averages.of(*batch, self.words)] for part in (train, tune, test)
        ]
        self._train, self._parts = parts[0], {"tune": parts[1], "test": parts[2]}

    @property
    def size(self) -> int:
        """See `Samples`."""
        return len(self._train)

    @property
    def sizes(self) -> list[int]:
        """See `Samples`."""
        return [len(texts) for texts in (self._train, *self._parts.values())]

    def start(self, hidden: int, seeds: Sequence[int]) -> Weights:
        """See `Samples`: B starts at 0, as in LoRA."""
        heads, rank = self._train[0].averages.shape[1:]
        return {"adapter": torch.zeros(len(seeds), self._groups * (len(self._out) // heads), rank)}

    def clipped_sum(self, weights: Weights, drawn: torch.Tensor, clip: float) -> Weights:
        """See `Samples`."""
        total = torch.zeros_like(weights["adapter"])
        for first in range(0, len(drawn), _AT_ONCE):
            texts = [self._train[place] for place in drawn[first : first + _AT_ONCE].tolist()]
            total[0] += self._clipped(weights["adapter"][0], texts, clip)
        return {"adapter": total}

    def _clipped(self, adapter: torch.Tensor, texts: Sequence[Learnt], clip: float) -> torch.Tensor:
        averages = torch.cat([text.averages for text in texts])
        shift = self._shift(adapter, averages).requires_grad_()
        lengths = [len(text.words) for text in texts]
        share = torch.cat([torch.full((length,), 1 / length) for length in lengths])
        loss = output_loss(self._last(texts, shift), self._output, torch.cat([text.words for text in texts]))
        (moved,) = torch.autograd.grad((share * loss).sum(), shift)
        own = self._of_texts(moved, averages, lengths)
        factor = (clip / own.square().sum((1, 2)).sqrt().clamp_min(1e-12)).clamp_max(1.0)
        return (factor @ own.flatten(1)).view(own.shape[1:])

    def accuracy(self, weights: Weights, part: Part) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Samples`."""
        found = [self._answers(adapter, part) for adapter in weights["adapter"]]
        right, loss = torch.tensor(found, dtype=torch.float64).T
        return right, loss

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _answers(self, adapter: torch.Tensor, part: Part) -> tuple[float, float]:
        hits = tokens = loss = 0.0
        for first in range(0, len(self._parts[part]), _AT_ONCE):
            texts = self._parts[part][first : first + _AT_ONCE]
            shift = self._shift(adapter, torch.cat([text.averages for text in texts]))
            logits, right = self._last(texts, shift) @ self._output.float().T, torch.cat([text.words for text in texts])
            hits += float((logits.argmax(-1) == right).sum())
            loss += float(torch.nn.functional.cross_entropy(logits, right, reduction="sum"))
            tokens += len(right)
        return hits / tokens, loss / tokens

    def _shift(self, adapter: torch.Tensor, averages: torch.Tensor) -> torch.Tensor:
        """What B adds to each head's output, shape (n, heads · head size)."""
        group = adapter.view(self._groups, -1, adapter.shape[1])
        by_group = averages.view(len(averages), self._groups, -1, adapter.shape[1])
        return torch.einsum("ngqr,gdr->ngqd", by_group, group).flatten(1)

    def _of_texts(self, moved: torch.Tensor, averages: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        # A text's gradient of B_h is Σ_t δ_h uᵀ_h, over its tokens and the heads that share these values.
        errors = pad_sequence(
            moved.unflatten(1, (self._groups, averages.shape[1] // self._groups, -1)).split(lengths), True
        )
        inputs = pad_sequence(averages.unflatten(1, (self._groups, -1)).split(lengths), True)
        return torch.einsum("btgqd,btgqr->bgdr", errors, inputs).flatten(1, 2)

    def _last(self, texts: Sequence[Learnt], shift: torch.Tensor) -> torch.Tensor:
        """What the output matrix is multiplied with, shape (n, width); sums in float32."""
        layer, end = self._end.layer, self._end
        states = torch.cat([text.fixed for text in texts]) + (shift.to(self._out.dtype) @ self._out.T).float()
        normed = layer.post_attention_layernorm(states).to(self._output.dtype)
        last: torch.Tensor = end.norm(states + layer.mlp(normed).float()).float()
        return last


class _Averages:
    """The layer's attention, once as it is and once with ``A x`` for values and nothing behind it."""

    def __init__(self, end: LastDecoder) -> None:
        attention = end.layer.self_attn
        (drawn,) = (module.weight.detach() for module in attention.v_proj.lora_A.values())
        (scale,) = attention.v_proj.scaling.values()
        self._end, self._rank, self._size = end, len(drawn), attention.head_dim
        if self._rank > self._size:
            raise ValueError(f"rank must be at most a head's size, {self._size}, not {self._rank}")
        groups = attention.v_proj.base_layer.weight.shape[0] // self._size
        self._inputs = _SameForAll(scale * drawn.float(), groups, self._size)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def of(self, hidden: torch.Tensor, targets: torch.Tensor, words: torch.Tensor) -> list[Learnt]:
        end, attention = self._end, self._end.layer.self_attn
        adapted, out = attention.v_proj, attention.o_proj
        learnt = targets != IGNORED
        try:
            attention.v_proj = adapted.base_layer
            fixed = (hidden + end.attended(hidden)).float()
            attention.v_proj, attention.o_proj = self._inputs, torch.nn.Identity()
            averages = end.attended(hidden).unflatten(-1, (-1, self._size))[..., : self._rank].float()
        finally:
            attention.v_proj, attention.o_proj = adapted, out
        return [
            Learnt(fixed[row][where].clone(), averages[row][where].clone(), torch.searchsorted(words, right[where]))
            for row, (where, right) in enumerate(zip(learnt, targets, strict=True))
        ]


class _SameForAll(torch.nn.Module):  # type: ignore[misc]
    """Ax for each group of heads, filled up to a head's size."""

    def __init__(self, drawn: torch.Tensor, groups: int, size: int) -> None:
        super().__init__()
        self._drawn, self._groups, self._fill = drawn, groups, size - len(drawn)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = torch.nn.functional.pad(x.float() @ self._drawn.T, (0, self._fill))
        return values.to(x.dtype).repeat(1, 1, self._groups)


def _batches(texts: Sequence[Text]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for first in range(0, len(texts), _AT_ONCE):
        states, labels = zip(*texts[first : first + _AT_ONCE], strict=True)
        yield padded(states, labels)
