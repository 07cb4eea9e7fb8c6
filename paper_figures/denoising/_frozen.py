"""The first layers of a transformer, in which nothing is trained, computed once per text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

_States: TypeAlias = dict[tuple[int, ...], torch.Tensor]


class FrozenPrefix:
    """Puts what comes out of a model's first layers in the place of its embeddings; the model is changed in place.

    Parameters
    ----------
    model : Module
        Of the BERT or Llama family, with or without adapters.
    layers : int
        k >= 1: how many layers are computed once. Nothing in them or before them may be trained.
    known : dict, optional
        Where the states are kept by text, for models that share these layers.

    Examples
    --------
    >>> from dprmt.training.recipes import LoraRecipe, ModelRecipe
    >>> from dprmt.training.models import load_model
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    >>> lora = LoraRecipe(rank=2, alpha=4.0, targets=("layer.1.attention.self.query",))
    >>> recipe = ModelRecipe("classification", architecture="bert", tokenizer="bytes", config=sizes, lora=lora)
    >>> model = load_model(recipe, labels=3).model
    >>> ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    >>> before = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    >>> FrozenPrefix(model, 1).remember([{"input_ids": row} for row in ids.tolist()])
    >>> bool(torch.allclose(model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits, before, atol=1e-5))
    True
    """

    def __init__(self, model: torch.nn.Module, layers: int, known: _States | None = None) -> None:
        self._owner, self._layers = _place(model, ("layer", "layers"), torch.nn.ModuleList)
        self._home, self._embedding = _place(model, ("embeddings", "embed_tokens"), torch.nn.Module)
        self._model, self._first = model, layers
        self._all: torch.nn.ModuleList = getattr(self._owner, self._layers)
        self._embed: torch.nn.Module = getattr(self._home, self._embedding)
        self._states = _Remembered({} if known is None else known)
        trained = [p for part in (self._embed, *self._all[:layers]) for p in part.parameters() if p.requires_grad]
        assert not trained, "something in the first layers is trained"
        self._replace()

    def remember(self, items: Iterable[Mapping[str, Any]]) -> None:
        """Compute what is not known yet; needed before a text goes through the model."""
        unknown = {tuple(item["input_ids"]) for item in items} - self._states.known.keys()
        by_length: dict[int, list[tuple[int, ...]]] = {}
        for ids in unknown:
            by_length.setdefault(len(ids), []).append(ids)
        if by_length:
            self._restore()
            for alike in by_length.values():
                for start in range(0, len(alike), 16):
                    self._compute(alike[start : start + 16])
            self._replace()

    def _compute(self, texts: Sequence[tuple[int, ...]]) -> None:
        # Texts of the same length: nothing is padded. The model stops where the layers that are trained begin.
        ids = torch.tensor(texts)
        handle = self._all[self._first].register_forward_pre_hook(_stop)
        positions = torch.arange(ids.shape[1]).expand(ids.shape)
        try:
            with torch.no_grad():
                self._model(input_ids=ids, attention_mask=torch.ones_like(ids), position_ids=positions)
        except _ReachedError as reached:
            self._states.known.update(zip(texts, reached.states.detach().unbind(), strict=True))
        finally:
            handle.remove()

    def _replace(self) -> None:
        setattr(self._owner, self._layers, self._all[self._first :])
        setattr(self._home, self._embedding, self._states)

    def _restore(self) -> None:
        setattr(self._owner, self._layers, self._all)
        setattr(self._home, self._embedding, self._embed)


class _Remembered(torch.nn.Module):
    """In the place of an embedding: the states of texts, padded with zeros, which the attention mask hides."""

    def __init__(self, known: _States) -> None:
        super().__init__()
        self.known = known

    def forward(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence([self._find(row) for row in input_ids.tolist()], batch_first=True)

    def _find(self, row: list[int]) -> torch.Tensor:
        # The longest beginning that is a text: what follows is padding.
        for end in range(len(row), 0, -1):
            states = self.known.get(tuple(row[:end]))
            if states is not None:
                return torch.nn.functional.pad(states, (0, 0, 0, len(row) - end))
        raise KeyError("a text that was not remembered")


class _ReachedError(Exception):
    """The first layer that is trained, with the states that go into it."""

    def __init__(self, states: torch.Tensor) -> None:
        super().__init__()
        self.states = states


def _stop(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    raise _ReachedError(inputs[0])


def _place(model: torch.nn.Module, names: Sequence[str], kind: type) -> tuple[torch.nn.Module, str]:
    for module in model.modules():
        for name in names:
            if isinstance(getattr(module, name, None), kind):
                return module, name
    raise ValueError(f"no {' or '.join(names)} in {type(model).__name__}")
