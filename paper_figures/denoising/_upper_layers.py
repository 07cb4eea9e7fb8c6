"""Private training of adapters in a BERT's upper layers: what lies below them is computed once per text.

Adapters sit on queries and values of the layers from some layer on. The states that go into that layer, and their
products with its frozen queries, keys and values, do not change in training. Sums of clipped gradients are in closed
form from the gradients of the adapted products: one backward pass, through the upper layers alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import cross_entropy, gelu, layer_norm, linear, pad, scaled_dot_product_attention

from dprmt.training.harness import Task
from paper_figures.denoising._last_layer import alike
from paper_figures.studies import SummedPlan, plan_sums

_ROUND = 4  # tokens, to which a text's number of them is rounded up


@dataclass(frozen=True)
class Texts:
    """Texts of about one length, n of them, T tokens with zeros after their ends.

    Attributes
    ----------
    states : Tensor, shape (n, T, width)
        What goes into the first adapted layer.
    products : Tensor, shape (n, T, 3 · width)
        Its frozen queries, keys and values of them.
    share : Tensor, shape (n, T)
        Of each token in its text's mean; 0 where there is none.
    labels : Tensor, shape (n,)
    """

    states: torch.Tensor
    products: torch.Tensor
    share: torch.Tensor
    labels: torch.Tensor

    def of(self, rows: torch.Tensor) -> Texts:
        """Some of them, by their row here."""
        return Texts(*(value[rows] for value in (self.states, self.products, self.share, self.labels)))


class Corpus:
    """Texts in blocks of about one length, each known by its place among all."""

    def __init__(self, blocks: Mapping[int, tuple[Texts, Sequence[int]]]) -> None:
        self.blocks = [texts for texts, _ in blocks.values()]
        self.size = sum(len(places) for _, places in blocks.values())
        self._block, self._row = (torch.empty(self.size, dtype=torch.long) for _ in range(2))
        for number, (_, places) in enumerate(blocks.values()):
            at = torch.tensor(places)
            self._block[at], self._row[at] = number, torch.arange(len(places))

    def at(self, places: Sequence[int]) -> list[Texts]:
        """The texts at these places, by block."""
        wanted = torch.as_tensor(places)
        rows = [self._row[wanted[self._block[wanted] == number]] for number in range(len(self.blocks))]
        return [texts.of(own) for texts, own in zip(self.blocks, rows, strict=True) if len(own)]


class UpperLayers(Task):
    """Texts of a split for `run_in_memory`, and the frozen upper layers that read them.

    Parameters
    ----------
    model : Module
        A mean-pooled classifier with adapters, as of the recipe ``minilm-docstrings``. Only what is frozen is kept of
        it: what the runs train are other copies, that differ in adapters and head.
    first : int
        The lowest layer with an adapter.
    items : mapping of str to sequence of dict
        ``input_ids`` and ``labels`` of each text, by split; those of "train" are trained on.
    precision : dtype
        Of products with frozen matrices of the upper layers. The rest is in the model's own.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        first: int,
        items: Mapping[str, Sequence[Mapping[str, Any]]],
        precision: torch.dtype = torch.float32,
    ) -> None:
        stack = _layers(model)
        self._heads = int(_encoder(model).config.num_attention_heads)
        self._first = first
        self._frozen = [_Frozen(layer, precision) for layer in stack[first:]]
        self.splits = {name: _corpus(model, stack[first], texts) for name, texts in items.items()}
        self.size = self.splits["train"].size

    def clipping_plan(self, model: torch.nn.Module, **options: Any) -> SummedPlan:
        """No hooks: the sums are this task's."""
        return plan_sums(
            model, clipping_norm=options["clipping_norm"], expected_batch_size=options["expected_batch_size"]
        )

    def accumulate(self, private: Any, positions: Sequence[int], step: int) -> torch.Tensor:
        """See `Task`; a mini-batch's losses come in the order of its blocks."""
        losses = []
        for texts in self.splits["train"].at(positions):
            found, sums = self.clipped_gradients(private.model, texts, private.optimizer.max_grad_norm)
            private.add(sums)
            losses.append(found)
        return torch.cat(losses)

    def clipped_gradients(
        self, model: torch.nn.Module, texts: Texts, clip: float
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Losses, shape (n,), and the sum of the gradients cut to norm ``clip``, by trained parameter."""
        trained = _Trained(model, self._first)
        passed = self._forward(trained, texts)
        losses = cross_entropy(passed.logits, texts.labels, reduction="none")
        *moved, error = torch.autograd.grad(losses.sum(), [*passed.outputs, passed.logits])
        pooled = passed.pooled.detach()
        gradients = {
            trained.head + "weight": error[:, :, None] * pooled[:, None, :],
            trained.head + "bias": error,
        }
        for adapter, states, change in zip(trained.adapters, passed.inputs, moved, strict=True):
            gradients |= adapter.gradients(states.detach(), change)
        norms = torch.stack([torch.linalg.vector_norm(value.flatten(1), dim=1) for value in gradients.values()])
        factor = (clip / torch.linalg.vector_norm(norms, dim=0).clamp_min(1e-12)).clamp_max(1.0)
        sums = {name: (factor @ value.flatten(1)).view(value.shape[1:]) for name, value in gradients.items()}
        return losses.detach(), sums

    def logits(self, model: torch.nn.Module, texts: Texts) -> torch.Tensor:
        """Shape (n, labels)."""
        with torch.no_grad():
            return self._forward(_Trained(model, self._first), texts).logits

    def scores(self, model: torch.nn.Module, split: str) -> dict[str, float]:
        """Accuracy and mean loss on a split."""
        right, loss = 0, 0.0
        for texts in self.splits[split].blocks:
            found = self.logits(model, texts)
            right += int((found.argmax(-1) == texts.labels).sum())
            loss += float(cross_entropy(found.double(), texts.labels, reduction="sum"))
        size = self.splits[split].size
        return {"accuracy": right / size, "loss": loss / size}

    def _forward(self, trained: _Trained, texts: Texts) -> _Passed:
        states, inputs, outputs = texts.states, [], []
        query, key, value = texts.products.chunk(3, dim=-1)
        seen = (texts.share > 0)[:, None, None, :]
        for number, frozen in enumerate(self._frozen):
            if number:
                query, key, value = frozen.product("in", states).chunk(3, dim=-1)
            adapted = []
            for frozen_part, adapter in zip((query, value), trained.of_layer(number), strict=True):
                output = frozen_part + adapter(states)
                inputs.append(states)
                outputs.append(output if output.requires_grad else output.detach().requires_grad_())
                adapted.append(outputs[-1])
            states = frozen.after(states, self._attended(adapted[0], key, adapted[1], seen))
        pooled = (states * texts.share[..., None]).sum(1)
        return _Passed(inputs, outputs, pooled, linear(pooled, *trained.output))

    def _attended(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor
    ) -> torch.Tensor:
        query, key, value = (part.unflatten(-1, (self._heads, -1)).transpose(1, 2) for part in (query, key, value))
        return scaled_dot_product_attention(query, key, value, attn_mask=seen).transpose(1, 2).flatten(2)


@dataclass(frozen=True)
class _Passed:
    """Of a forward pass: inputs and outputs of the adapted matrices, the mean over tokens, logits."""

    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    pooled: torch.Tensor
    logits: torch.Tensor


class _Frozen:
    """A layer of BERT without its adapters."""

    def __init__(self, layer: Any, precision: torch.dtype) -> None:
        parts = {
            "in": _into_attention(layer),
            "attended": layer.attention.output.dense.parameters(),
            "wide": layer.intermediate.dense.parameters(),
            "narrow": layer.output.dense.parameters(),
        }
        self._precision = precision
        self._parts = {name: [value.detach().to(precision) for value in part] for name, part in parts.items()}
        self._norms = [
            (norm.weight.detach(), norm.bias.detach(), norm.eps)
            for norm in (layer.attention.output.LayerNorm, layer.output.LayerNorm)
        ]

    def product(self, name: str, states: torch.Tensor) -> torch.Tensor:
        """W x + b in the frozen matrices' precision."""
        return linear(states.to(self._precision), *self._parts[name]).to(states)

    def after(self, states: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """What the layer gives, from its input and what its attention says."""
        between = self._normed(0, self.product("attended", attended) + states)
        wide = gelu(linear(between.to(self._precision), *self._parts["wide"]))
        return self._normed(1, linear(wide, *self._parts["narrow"]).to(states) + between)

    def _normed(self, which: int, states: torch.Tensor) -> torch.Tensor:
        weight, bias, epsilon = self._norms[which]
        return layer_norm(states, states.shape[-1:], weight, bias, epsilon)


class _Adapter:
    """An adapter s·BA with its names."""

    def __init__(self, names: Mapping[int, str], module: Any) -> None:
        (adapter,) = module.lora_A
        pair = (part[adapter].weight for part in (module.lora_A, module.lora_B))
        self._down, self._up = (weight.detach() for weight in pair)
        self._names = [names[id(part[adapter].weight)] for part in (module.lora_A, module.lora_B)]
        self._scale = float(module.scaling[adapter])

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        return self._scale * (states @ self._down.T @ self._up.T)

    def gradients(self, states: torch.Tensor, moved: torch.Tensor) -> dict[str, torch.Tensor]:
        """Of every text, Σ_t s·(Bᵀδ_t) x_tᵀ and Σ_t s·δ_t (A x_t)ᵀ: shapes (n, rank, width) and (n, width, rank)."""
        down = self._scale * ((moved @ self._up).mT @ states)
        up = self._scale * (moved.mT @ (states @ self._down.T))
        return dict(zip(self._names, (down, up), strict=True))


class _Trained:
    """What a run trains: adapters of queries and values by layer, and the head."""

    def __init__(self, model: torch.nn.Module, first: int) -> None:
        names = {id(value): name for name, value in model.named_parameters()}
        parts = [
            part
            for layer in _layers(model)[first:]
            for part in (layer.attention.self.query, layer.attention.self.value)
        ]
        self.adapters = [_Adapter(names, part) for part in parts]
        (head,) = (
            name
            for name, value in model.named_parameters()
            if value.requires_grad and "classifier" in name and name.endswith("weight")
        )
        self.head = head.removesuffix("weight")
        values = dict(model.named_parameters())
        self.output = [values[self.head + part].detach().requires_grad_() for part in ("weight", "bias")]

    def of_layer(self, number: int) -> list[_Adapter]:
        """Of queries and of values, counted from the first adapted layer."""
        return self.adapters[2 * number : 2 * number + 2]


def _encoder(model: torch.nn.Module) -> Any:
    return next(module for module in model.modules() if hasattr(module, "encoder") and hasattr(module, "embeddings"))


def _layers(model: torch.nn.Module) -> Any:
    return _encoder(model).encoder.layer


def _into_attention(layer: Any) -> list[torch.Tensor]:
    """Weight and bias of the frozen queries, keys and values together."""
    own = layer.attention.self
    parts = (own.query.base_layer, own.key, own.value.base_layer)
    return [torch.cat([part.weight for part in parts]).detach(), torch.cat([part.bias for part in parts]).detach()]


def _corpus(model: torch.nn.Module, layer: Any, items: Sequence[Mapping[str, Any]]) -> Corpus:
    """The texts as states before ``layer`` and its frozen products, by length rounded up."""
    texts = [list(item["input_ids"]) for item in items]
    states = _states(model, layer, texts)
    by_length: dict[int, list[int]] = {}
    for place, text in enumerate(texts):
        by_length.setdefault(-(-len(text) // _ROUND) * _ROUND, []).append(place)
    blocks = {}
    for length, places in sorted(by_length.items()):
        stacked = torch.stack([pad(states[i], (0, 0, 0, length - len(texts[i]))) for i in places])
        products = linear(stacked, *_into_attention(layer))
        share = torch.stack(
            [pad(torch.full((len(texts[i]),), 1 / len(texts[i])), (0, length - len(texts[i]))) for i in places]
        )
        labels = torch.tensor([int(items[i]["labels"]) for i in places])
        blocks[length] = Texts(stacked, products, share, labels), places
    return Corpus(blocks)


def _states(model: torch.nn.Module, layer: Any, texts: Sequence[Sequence[int]]) -> dict[int, torch.Tensor]:
    """What goes into ``layer``, shape (T, width) for each text; the pass ends there."""
    found: dict[int, torch.Tensor] = {}

    def stop(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        raise _Reached(inputs[0])

    was, handle = model.training, layer.register_forward_pre_hook(stop)
    model.eval()
    try:
        for group in alike(sorted(range(len(texts)), key=lambda i: len(texts[i])), texts, largest=64):
            ids = torch.tensor([list(texts[i]) for i in group])
            try:
                with torch.no_grad():
                    model(input_ids=ids, attention_mask=torch.ones_like(ids))
            except _Reached as reached:
                found.update(zip(group, reached.states, strict=True))
    finally:
        handle.remove()
        model.train(was)
    return found


class _Reached(Exception):  # noqa: N818  # no error: it ends a forward pass where it is known
    def __init__(self, states: torch.Tensor) -> None:
        super().__init__()
        self.states = states
