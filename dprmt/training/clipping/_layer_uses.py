"""What is seen of every trainable layer in one micro-batch: a layer's norm is that of the sum over its uses."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from opacus.layers.dp_rnn import DPRNNBase
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from dprmt._validation import ParameterError, TrainingStateError
from dprmt.training.clipping._policy import Contribution, Layer, Use


class LayerUses:
    """What a forward pass and its backward pass show of all layers, forgotten by :meth:`finish`.

    ``waiting``: uses with gradients, of layers that are not measured yet.
    ``squared``, ``contributions``: squared norms over the measured ones, and what they are of.
    ``sources``: the layers of the contributions.
    ``size``: how many samples there are, by whoever said so first.

    ``expected``: whether a backward pass may come now; always, unless it ``needs_step``.
    ``summing``: whether something of it may be in the sums already.
    ``watch``: is told of each use that the backward pass has come to, if there is one.

    Position embeddings get a batch axis. Some models look up those of one sample and let the sum broadcast them,
    (1, T, d) to (B, T, d): their gradient would arrive summed over samples. Integers with a first axis of length 1 are
    repeated to the batch size, the first axis of the model's first tensor; the model's output is the same.
    """

    waiting: dict[Layer, list[Use]]
    squared: torch.Tensor | None
    contributions: list[Contribution]
    sources: list[Layer]
    size: int | None
    expected: bool
    summing: bool
    watch: Callable[[nn.Module, Sequence[torch.Tensor], torch.Tensor], None] | None = None

    def __init__(self, model: nn.Module, layers: Sequence[Layer], *, needs_step: bool) -> None:
        self._trained = {layer: _trainable(layer.module) for layer in layers}
        self._parameters = dict(model.named_parameters())
        self._frozen = {name: parameter.requires_grad for name, parameter in self._parameters.items()}
        self._model, self._needs_step, self.batch_size = model, needs_step, 1
        self._buffers: dict[str, tuple[int, int]] = {}
        self.finish()
        self._handles = [model.register_forward_pre_hook(self._start, with_kwargs=True, prepend=True)]
        for layer in layers:
            self._handles.append(layer.module.register_forward_hook(self._counter(layer), prepend=True))
            if isinstance(layer.module, nn.Embedding):
                self._handles.append(layer.module.register_forward_pre_hook(self._expand))
        for part in model.modules():
            if isinstance(part, DPRNNBase):
                self._handles.append(part.register_forward_pre_hook(_refuse_packed))

    def check(self) -> None:
        """Raise unless a forward pass in training mode is waiting for its backward pass."""
        for name, parameter in self._model.named_parameters():
            if self._frozen.get(name) != parameter.requires_grad:
                raise ParameterError("model", name, "trainable or frozen as it was when it was made private")
        for layer in self._trained:
            if not layer.module.training:
                raise TrainingStateError(f"{layer.name} is in evaluation mode: call model.train()")
        if self._buffers and (changed := buffer_versions(self._model).items() ^ self._buffers.items()):
            buffer = min(changed)[0]
            raise TrainingStateError(f"a forward pass changes buffer {buffer}, which would hold other samples")
        if not self._forward:
            when = "before this call, or before `with samplers.at(...)`"
            raise TrainingStateError(f"no forward pass since the last micro-batch: call the model {when}")

    def add(self, layer: Layer, inputs: Sequence[torch.Tensor], gradients: torch.Tensor, first: torch.Tensor) -> bool:
        """Note a use that the backward pass has come to; whether it was the layer's last one.

        ``first``: has the samples as first axis, as the gradients have.
        """
        if not self.expected:
            raise TrainingStateError("a backward pass without its step: put it into `with samplers.at(step=...)`")
        size = len(gradients) if self.size is None else self.size
        if len(first) != size or len(gradients) != size:
            shapes = f"inputs {tuple(first.shape)} and outputs {tuple(gradients.shape)} of {layer.name}"
            if len(first) % size == 0:
                cause = "not samples and tokens in one axis"
            elif len(first) == len(gradients) == 1:
                cause = "not what all samples share"
            else:
                cause = "not rows that are sent to experts by index"
            todo = f"the first axis of a trainable layer is that of the {size} samples, {cause}"
            raise TrainingStateError(f"{shapes}: {todo}; or name a module around it in whole=[...]")
        self.size = size
        if self.watch is not None:
            self.watch(layer.module, inputs, gradients)
        self.waiting.setdefault(layer, []).append((inputs, gradients))
        return len(self.waiting[layer]) >= self._forward[layer]

    def finish(self) -> None:
        """Forget the micro-batch, and what Opacus' hooks stored of it."""
        for layer, parameters in self._trained.items():
            for stored in ("activations", "max_batch_len"):
                if hasattr(layer.module, stored):
                    delattr(layer.module, stored)
            for parameter in parameters:
                parameter._forward_counter = 0
                parameter.grad_sample = None
                parameter.__dict__.pop("_current_grad_sample", None)
                parameter.__dict__.pop("_norm_sample", None)
        self._forward: Counter[Layer] = Counter()
        self.waiting, self.squared, self.contributions, self.sources, self.size = {}, None, [], [], None
        self.expected, self.summing, self._buffers = not self._needs_step, False, {}

    def remove(self) -> None:
        """Take the hooks away."""
        while self._handles:
            self._handles.pop().remove()

    def _start(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = (value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor) and value.ndim)
        first = next(tensors, None)
        self.batch_size = 1 if first is None else len(first)
        self._buffers = buffer_versions(model)
        if model.training and torch.is_grad_enabled():
            for name, parameter in model.named_parameters():
                known = self._parameters.get(name)
                if known is not parameter and not _is_whole(parameter, known):
                    how = "replaced" if name in self._parameters else "added"
                    todo = "change parameters before that, or their .data alone"
                    raise TrainingStateError(f"{name} was {how} since the model was made private: {todo}")
        if model.training and torch.is_grad_enabled() and self._forward:
            todo = "use torch.no_grad() for what is not trained on, discard() after an error"
            raise TrainingStateError(f"a second forward pass in one micro-batch: {todo}")

    def _expand(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if args and isinstance(args[0], torch.Tensor) and args[0].ndim > 1 and len(args[0]) == 1:
            return (args[0].expand(self.batch_size, *args[0].shape[1:]), *args[1:])
        return None

    def _counter(self, layer: Layer) -> Callable[..., None]:
        def count(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if not (module.training and torch.is_grad_enabled()):
                return
            self._forward[layer] += 1
            for parameter in self._trained[layer]:
                parameter._forward_counter = 0  # Opacus' own hook, which runs next, would refuse a second use

        return count


@contextmanager
def without_hook_warning() -> Iterator[None]:
    """Torch warns that a layer whose inputs need no gradient, such as every embedding, fires its hook all the same."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing", category=UserWarning)
        yield


def buffer_versions(model: nn.Module) -> dict[str, tuple[int, int]]:
    return {name: (id(value), 0 if value.is_inference() else value._version) for name, value in model.named_buffers()}


def _is_whole(parameter: nn.Parameter, known: nn.Parameter | None) -> bool:
    """Whether it is what ``fully_shard`` gathers of a shard, which the model's own keeps after an evaluation."""
    if known is None or not hasattr(known, "device_mesh"):
        return False
    return not hasattr(parameter, "device_mesh") and known.shape == parameter.shape


def _refuse_packed(module: nn.Module, args: tuple[Any, ...]) -> None:
    if any(isinstance(value, PackedSequence) for value in args):
        found = f"{type(module).__name__} was given a PackedSequence"
        raise TrainingStateError(f"{found}, which is sorted, so that rows are not the samples: pad instead")


def _trainable(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
