"""Adapters on a transformer's last matrix alone: what goes into it is computed once per text.

The last layer's second dense matrix W is adapted. Its inputs h, the products Wh + b and the residual r do not change in
training, so that a run needs ``LayerNorm(Wh + b + r + αBAh/rank)``, the mean over tokens, and the output layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence


class Features(NamedTuple):
    """Of one text of T tokens, or of a batch of B texts with zeros after their ends."""

    hidden: torch.Tensor
    """h, shape (T, intermediate size)."""
    product: torch.Tensor
    """Wh + b, shape (T, width)."""
    residual: torch.Tensor
    """r, shape (T, width)."""


class LastLayer(torch.nn.Module):  # type: ignore[misc]
    """The end of a BERT with mean pooling and adapters in ``output.dense`` of its last layer.

    Parameters
    ----------
    model : Module
        All of it. It is changed: the last matrix takes its products from outside.

    Examples
    --------
    >>> from dprmt.training.models import load_model
    >>> from dprmt.training.recipes import LoraRecipe, ModelRecipe
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    >>> lora = LoraRecipe(rank=2, alpha=4.0, targets=("layer.1.output.dense",))
    >>> options = {"architecture": "bert", "tokenizer": "bytes", "config": sizes, "pooling": "mean", "lora": lora}
    >>> model = load_model(ModelRecipe("classification", **options), labels=3).model
    >>> texts = [[5, 6, 7], [8, 9, 10]]
    >>> ids = torch.tensor(texts)
    >>> whole = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    >>> batch = padded(list(features(model, texts)))
    >>> bool(torch.allclose(LastLayer(model)(*batch), whole, atol=1e-5))
    True
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.output = _last_output(model)
        self.output.dense.base_layer = _Given()
        self.classifier = next(module for name, module in model.named_modules() if name.endswith("classifier"))

    def forward(
        self, hidden: torch.Tensor, product: torch.Tensor, residual: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Logits of shape (B, labels)."""
        self.output.dense.base_layer.value = product
        states = self.output(hidden, residual)
        weights = mask.unsqueeze(-1).to(states)
        return self.classifier((states * weights).sum(dim=1) / weights.sum(dim=1))


class _Given(torch.nn.Module):  # type: ignore[misc]
    """In the place of W: the products are known."""

    value: torch.Tensor

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        return self.value


def features(model: torch.nn.Module, texts: Sequence[Sequence[int]]) -> Iterable[Features]:
    """What goes into the last matrix, in the order of the texts, which are numbers of tokens."""
    found: dict[int, Features] = {}
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    output = _last_output(model)
    handle = output.register_forward_pre_hook(lambda _, inputs: seen.append(inputs))
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    with torch.no_grad():
        for group in alike(order, texts, largest=32):
            ids = torch.tensor([list(texts[i]) for i in group])
            positions = torch.arange(ids.shape[1]).expand(ids.shape)
            model(input_ids=ids, attention_mask=torch.ones_like(ids), position_ids=positions)
            hidden, residual = seen.pop()
            product = output.dense.base_layer(hidden)
            found.update({i: Features(*rows) for i, *rows in zip(group, hidden, product, residual, strict=True)})
    handle.remove()
    return [found[i] for i in range(len(texts))]


def padded(items: Sequence[Features]) -> tuple[torch.Tensor, ...]:
    """A batch for `LastLayer`, with its mask."""
    mask = pad_sequence([torch.ones(len(item.hidden)) for item in items], batch_first=True)
    return (*(pad_sequence(list(part), batch_first=True) for part in zip(*items, strict=True)), mask)


def alike(order: Sequence[int], texts: Sequence[Sequence[int]], largest: int) -> Iterable[list[int]]:
    """Texts of one length, so that nothing is padded."""
    group: list[int] = []
    for i in order:
        if group and (len(texts[i]) != len(texts[group[0]]) or len(group) == largest):
            yield group
            group = []
        group.append(i)
    if group:
        yield group


def _last_output(model: torch.nn.Module) -> Any:
    layers: Mapping[str, Any] = {name: m for name, m in model.named_modules() if name.endswith("encoder.layer")}
    return next(iter(layers.values()))[-1].output
