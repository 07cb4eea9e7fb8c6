"""An adapter in a frozen encoder's last matrix, and a head: texts as what does not change in training.

The last layer's output is ``LayerNorm(c_t + BA h_t)`` for every token t, c_t the frozen part. A is drawn once and
stays, as in FFA-LoRA (arXiv:2403.12313), so that c_t and ``a_t = A h_t`` are all that B and the head need of a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from paper_figures.digits._networks import Weights, start
from paper_figures.digits._samples import Part

LENGTH, WEIGHT = 5.0, 32.0
"""What means over tokens are divided by; what gradients of B are multiplied by before they are clipped. Round numbers
that make the per-sample gradients of head and of B about as long, so that neither is lost in the other's clipping and
noise; Adam, Muon and gates do not see a factor that is the same in every step. α/rank is 1."""
_ROUND = 4  # tokens, to which a text's number of them is rounded up


@dataclass(frozen=True)
class Norm:
    """The layer's own normalization: γ, β and ε."""

    weight: torch.Tensor
    bias: torch.Tensor
    epsilon: float


@dataclass(frozen=True)
class Block:
    """Texts of about one length.

    Attributes
    ----------
    fixed : Tensor
        c, shape (texts, T, width).
    inputs : Tensor
        a, shape (texts, T, rank).
    share : Tensor
        Of each token in its text's mean, 0 where there is none, shape (texts, T).
    labels, places : Tensor
        Of the texts, and where these are among all.
    """

    fixed: torch.Tensor
    inputs: torch.Tensor
    share: torch.Tensor
    labels: torch.Tensor
    places: torch.Tensor

    def of(self, rows: torch.Tensor) -> Block:
        """Some of the texts, by their row here."""
        return Block(*(value[rows] for value in (self.fixed, self.inputs, self.share, self.labels, self.places)))


class Texts:
    """Texts by length.

    Parameters
    ----------
    fixed, inputs : sequence of Tensor
        c and a of each text, shapes (T, width) and (T, rank).
    labels : Tensor
    """

    def __init__(self, fixed: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], labels: torch.Tensor) -> None:
        self.size = len(labels)
        lengths = torch.tensor([-(-len(rows) // _ROUND) * _ROUND for rows in fixed])
        self.blocks = [
            _block(fixed, inputs, labels, torch.nonzero(lengths == length)[:, 0], int(length))
            for length in lengths.unique()
        ]
        self._block = torch.empty(self.size, dtype=torch.long)
        self._row = torch.empty(self.size, dtype=torch.long)
        for number, block in enumerate(self.blocks):
            self._block[block.places], self._row[block.places] = number, torch.arange(len(block.places))

    def drawn(self, places: torch.Tensor) -> Iterator[Block]:
        """The texts at these places."""
        for number, block in enumerate(self.blocks):
            rows = self._row[places[self._block[places] == number]]
            if len(rows):
                yield block.of(rows)


def _block(
    fixed: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    labels: torch.Tensor,
    places: torch.Tensor,
    length: int,
) -> Block:
    def filled(rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(rows, (0, 0, 0, length - len(rows)))

    of = places.tolist()
    share = torch.stack([filled(torch.full((len(fixed[i]), 1), 1 / len(fixed[i])))[:, 0] for i in of])
    states, products = (torch.stack([filled(values[i]) for i in of]) for values in (fixed, inputs))
    return Block(states, products, share, labels[places], places)


class AdaptedEncoder:
    """`Samples` of texts, for an adapter's B and a head."""

    def __init__(self, norm: Norm, train: Texts, tune: Texts, test: Texts) -> None:
        self._norm, self._train, self._parts = norm, train, {"tune": tune, "test": test}
        labels = torch.cat([block.labels for texts in (train, tune, test) for block in texts.blocks])
        self._classes = int(labels.max()) + 1

    @property
    def size(self) -> int:
        """See `Samples`."""
        return self._train.size

    @property
    def sizes(self) -> list[int]:
        """See `Samples`."""
        return [texts.size for texts in (self._train, *self._parts.values())]

    def start(self, hidden: int, seeds: Sequence[int]) -> Weights:
        """See `Samples`: B starts at 0, as in LoRA."""
        block = self._train.blocks[0]
        head = start(block.fixed.shape[-1], 0, seeds, self._classes)
        return {"adapter": torch.zeros(len(seeds), block.fixed.shape[-1], block.inputs.shape[-1]), **head}

    def clipped_sum(self, weights: Weights, drawn: torch.Tensor, clip: float) -> Weights:
        """See `Samples`."""
        sums = {name: torch.zeros_like(value) for name, value in weights.items()}
        for block in self._train.drawn(drawn):
            for name, value in self._clipped(weights, block, clip).items():
                sums[name] += value
        return sums

    def _clipped(self, weights: Weights, block: Block, clip: float) -> Weights:
        # A text's gradient of B is Σ_t δ_t a_tᵀ, that of the head an outer product.
        states = self._states(weights, block).requires_grad_()
        means = self._means(states, block)
        out = means @ weights["head"][0] + weights["head bias"][0]
        loss = torch.nn.functional.cross_entropy(out, block.labels, reduction="sum")
        moved, error = torch.autograd.grad(loss, (states, out))
        means, adapter = means.detach(), WEIGHT * (moved.mT @ block.inputs)
        square = adapter.square().sum((1, 2)) + error.square().sum(1) * (means.square().sum(1) + 1)
        factor = (clip / square.sqrt().clamp_min(1e-12)).clamp_max(1.0)
        error = error * factor[:, None]
        summed = (factor @ adapter.flatten(1)).view(adapter.shape[1:])
        return {"adapter": summed[None], "head": (means.mT @ error)[None], "head bias": error.sum(0)[None]}

    def _states(self, weights: Weights, block: Block) -> torch.Tensor:
        return block.fixed + block.inputs @ weights["adapter"][0].mT

    def _means(self, states: torch.Tensor, block: Block) -> torch.Tensor:
        norm = self._norm
        normed = torch.nn.functional.layer_norm(states, states.shape[-1:], norm.weight, norm.bias, norm.epsilon)
        return (normed * block.share[..., None]).sum(1) / LENGTH

    def accuracy(self, weights: Weights, part: Part) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Samples`."""
        texts, right, loss = self._parts[part], [], []
        for run in range(len(weights["adapter"])):
            one = {name: value[run : run + 1] for name, value in weights.items()}
            pairs = [self._answers(one, block) for block in texts.blocks]
            right.append(sum(hits for hits, _ in pairs) / texts.size)
            loss.append(sum(losses for _, losses in pairs) / texts.size)
        return torch.tensor(right, dtype=torch.float64), torch.tensor(loss, dtype=torch.float64)

    def _answers(self, weights: Weights, block: Block) -> tuple[int, float]:
        out = self._means(self._states(weights, block), block) @ weights["head"][0] + weights["head bias"][0]
        losses = torch.nn.functional.cross_entropy(out.double(), block.labels, reduction="sum")
        return int((out.argmax(-1) == block.labels).sum()), float(losses)
