"""An adapter on the values of a frozen decoder's last layer: what goes into that layer is all there is to a text.

The values are ``v_t + BA x_t`` for every token t. A is drawn once and stays, and queries and keys stay, so that a run
needs the layer's attention and MLP, and the softmax over all words at the tokens that are learnt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from paper_figures.denoising._last_decoder import IGNORED, LastDecoder, padded
from paper_figures.digits._networks import Weights
from paper_figures.digits._samples import Part

_AT_ONCE = 16  # texts
_Text = tuple[torch.Tensor, Sequence[int]]
"""What goes into the last layer, shape (T, width), and the tokens, -100 where none is learnt."""


class AdaptedDecoder:
    """`Samples` of texts, for an adapter's B; right answers are next tokens.

    Parameters
    ----------
    end : LastDecoder
        With an adapter on its values, of which A is used and B is not.
    train, tune, test : sequence of pair
    """

    def __init__(self, end: LastDecoder, train: Sequence[_Text], tune: Sequence[_Text], test: Sequence[_Text]) -> None:
        values = end.layer.self_attn.v_proj
        (self._drawn,) = (module.weight.detach() for module in values.lora_A.values())
        (self._scale,) = values.scaling.values()
        self._end, self._train, self._parts = end, train, {"tune": tune, "test": test}
        self._values = _Shifted(values.base_layer)
        end.layer.self_attn.v_proj = self._values

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
        shape = (self._values.base.weight.shape[0], len(self._drawn))
        return {"adapter": torch.zeros(len(seeds), *shape)}

    def clipped_sum(self, weights: Weights, drawn: torch.Tensor, clip: float) -> Weights:
        """See `Samples`."""
        total = torch.zeros_like(weights["adapter"])
        for hidden, targets in _batches([self._train[place] for place in drawn.tolist()]):
            inputs = self._inputs(hidden)
            shift = (inputs @ weights["adapter"][0].mT).requires_grad_()
            self._values.shift = shift
            (moved,) = torch.autograd.grad(self._end(hidden, targets).sum(), shift)
            own = moved.mT @ inputs
            factor = (clip / own.square().sum((1, 2)).sqrt().clamp_min(1e-12)).clamp_max(1.0)
            total[0] += (factor @ own.flatten(1)).view(own.shape[1:])
        return {"adapter": total}

    def accuracy(self, weights: Weights, part: Part) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Samples`."""
        found = [self._answers(adapter, part) for adapter in weights["adapter"]]
        right, loss = torch.tensor(found, dtype=torch.float64).T
        return right, loss

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _answers(self, adapter: torch.Tensor, part: Part) -> tuple[float, float]:
        hits = tokens = loss = 0.0
        for hidden, targets in _batches(self._parts[part]):
            self._values.shift = self._inputs(hidden) @ adapter.mT
            learnt = targets != IGNORED
            logits = self._end.output(self._end.last_states(hidden, learnt))
            hits += float((logits.argmax(-1) == targets[learnt]).sum())
            loss += float(torch.nn.functional.cross_entropy(logits, targets[learnt], reduction="sum"))
            tokens += float(learnt.sum())
        return hits / tokens, loss / tokens

    def _inputs(self, hidden: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            normed: torch.Tensor = self._end.layer.input_layernorm(hidden)
            return self._scale * normed @ self._drawn.T


class _Shifted(torch.nn.Module):  # type: ignore[misc]
    """A layer whose products are moved by what is known."""

    shift: torch.Tensor

    def __init__(self, base: torch.nn.Module) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.shift


def _batches(texts: Sequence[_Text]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for first in range(0, len(texts), _AT_ONCE):
        states, labels = zip(*texts[first : first + _AT_ONCE], strict=True)
        yield padded(states, labels)
