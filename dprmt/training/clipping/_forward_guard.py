"""Counts the uses of every trainable layer: a layer's norm is that of the sum over its uses."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from opacus.layers.dp_rnn import DPRNNBase
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from dprmt._validation import ParameterError


class ForwardGuard:
    """Counts uses of layers between two calls of :meth:`finish`, and gives position embeddings a batch axis.

    Some models look up position embeddings for one sample and let the sum broadcast them, (1, T, d) to (B, T, d):
    their gradient would arrive summed over samples. Integers with a first axis of length 1 are repeated to the
    batch size, the first axis of the model's first tensor; the model's output is the same.
    """

    def __init__(self, model: nn.Module, layers: Mapping[str, nn.Module]) -> None:
        self._layers = dict(layers)
        self._trained = {name: _trainable(module) for name, module in layers.items()}
        self.uses = dict.fromkeys(self._layers, 0)  # of a layer, since the last `finish`
        self.batch_size = 1
        self._frozen = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
        self._model = model
        self._handles = [model.register_forward_pre_hook(self._start, with_kwargs=True, prepend=True)]
        for name, module in self._layers.items():
            self._handles.append(module.register_forward_hook(self._counter(name), prepend=True))
            if isinstance(module, nn.Embedding):
                self._handles.append(module.register_forward_pre_hook(self._expand))
        for part in model.modules():
            if isinstance(part, DPRNNBase):
                self._handles.append(part.register_forward_pre_hook(_refuse_packed))

    def check(self) -> None:
        """Raise unless a forward pass in training mode is waiting for its backward pass."""
        for name, parameter in self._model.named_parameters():
            if self._frozen.get(name) != parameter.requires_grad:
                raise ParameterError("model", name, "trainable or frozen as it was when it was made private")
        for name, module in self._layers.items():
            if not module.training:
                raise ParameterError("model", f"{name} in evaluation mode", "in training mode: call model.train()")
        if not any(self.uses.values()):
            allowed = "computed by the model since the last micro-batch, before this call or `with samplers.at(...)`"
            raise ParameterError("losses", "no forward pass", allowed)

    def finish(self) -> None:
        """Forget the forward pass and what Opacus' hooks stored of it."""
        for name, module in self._layers.items():
            for stored in ("activations", "max_batch_len"):
                if hasattr(module, stored):
                    delattr(module, stored)
            for parameter in self._trained[name]:
                parameter._forward_counter = 0
                parameter.grad_sample = None
                parameter.__dict__.pop("_current_grad_sample", None)
                parameter.__dict__.pop("_norm_sample", None)
        self.uses = dict.fromkeys(self._layers, 0)

    def remove(self) -> None:
        """Take the hooks away."""
        while self._handles:
            self._handles.pop().remove()

    def _start(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = (value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor) and value.ndim)
        first = next(tensors, None)
        self.batch_size = 1 if first is None else len(first)
        if model.training and torch.is_grad_enabled() and any(self.uses.values()):
            raise ParameterError(
                "model",
                "a second forward pass",
                "called once per micro-batch: use torch.no_grad() for what is not trained on, discard() after an error",
            )

    def _expand(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if args and isinstance(args[0], torch.Tensor) and args[0].ndim > 1 and len(args[0]) == 1:
            return (args[0].expand(self.batch_size, *args[0].shape[1:]), *args[1:])
        return None

    def _counter(self, name: str) -> Callable[..., None]:
        def count(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if not (module.training and torch.is_grad_enabled()):
                return
            self.uses[name] += 1
            for parameter in self._trained[name]:
                parameter._forward_counter = 0  # Opacus' own hook, which runs next, would refuse a second use

        return count


@contextmanager
def without_hook_warning() -> Iterator[None]:
    """Torch warns that a layer whose inputs need no gradient, such as every embedding, fires its hook all the same."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing", category=UserWarning)
        yield


def _refuse_packed(module: nn.Module, args: tuple[Any, ...]) -> None:
    if any(isinstance(value, PackedSequence) for value in args):
        allowed = "given padded sequences: packed ones are sorted, so that rows are not the samples"
        raise ParameterError("model", f"{type(module).__name__} with a PackedSequence", allowed)


def _trainable(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
