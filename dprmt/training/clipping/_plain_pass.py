"""A step without privacy on made-up samples, watched: shapes, products, and when tensors come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from dprmt._validation import ParameterError
from dprmt.training.clipping._lives import Life, TensorLives, unique
from dprmt.training.clipping._memory import saved_for_backward


@dataclass(frozen=True)
class Seen:
    """Of one layer in a forward pass: samples, tokens, bytes of inputs and of outputs, over all its uses."""

    samples: int
    tokens: int
    inputs: int
    outputs: int


@dataclass(frozen=True)
class Use:
    """A layer's, as the backward pass comes to it, at which operation; inputs and output gradient that live then.

    ``returned``: bytes of the inputs' gradients, which are there when a hook is called.
    """

    layer: str
    at: int
    inputs: Sequence[Life]
    gradient: Life | None
    returned: int


@dataclass(frozen=True)
class PlainPass:
    """What one shows.

    ``flops``: of the products of its forward pass; ``saved``: bytes that autograd keeps beside the parameters.
    ``lives``: of all tensors; ``gradients``: those of the parameters' gradients, which are there up to the ``end``.
    """

    layers: Mapping[str, Seen]
    flops: int
    saved: int
    lives: Sequence[Life]
    gradients: Sequence[Life]
    uses: Sequence[Use]
    end: int


def plain_pass(model: nn.Module, modules: Mapping[str, nn.Module], losses: Callable[[], torch.Tensor]) -> PlainPass:
    """A pass over made-up samples, whose gradients go nowhere; ``modules``: those that are trained."""
    memory = TensorLives()
    watched = _Watched(memory)
    handles = [module.register_forward_hook(watched.noting(name)) for name, module in modules.items()]
    try:
        # Frozen weights are saved, too, but are no copies.
        with memory, FlopCounterMode(display=False) as counter, saved_for_backward(model.parameters()) as saved:
            found = losses()
        _check_losses(found)
        flops, watched.is_forward = counter.get_total_flops(), False
        parameters = [value for value in model.parameters() if value.requires_grad]
        with _without_gradients({*parameters, *_leaves(found)}), memory:
            found.sum().backward()
            gradients = unique(memory.of(value.grad) for value in parameters if value.grad is not None)
            end, lives = memory.now, list(memory.lives)
            died = {life: life.died for life in lives}  # before gradients are freed
    finally:
        for handle in handles:
            handle.remove()
    for life in lives:
        life.died = died[life]
    return PlainPass(watched.seen, flops, sum(saved.values()), lives, gradients, watched.uses, end)


def _check_losses(found: Any) -> None:
    if not isinstance(found, torch.Tensor) or found.ndim != 1 or not found.requires_grad:
        shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise ParameterError("losses", shape, "a function of nothing that gives losses of shape (B,) with their graph")


def _leaves(losses: torch.Tensor) -> Iterator[torch.Tensor]:
    """Whatever a backward pass leaves a gradient at."""
    waiting, seen = [losses.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [other for other, _ in node.next_functions]
            if (variable := getattr(node, "variable", None)) is not None:
                yield variable


@contextmanager
def _without_gradients(leaves: Iterable[torch.Tensor]) -> Iterator[None]:
    """What they have they have again afterwards."""
    before = [(value, value.grad) for value in leaves]
    try:
        for value, _ in before:
            value.grad = None
        yield
    finally:
        for value, gradient in before:
            value.grad = gradient


class _Watched:
    """Notes what hooks see of layers: shapes in the forward pass, and lives as the backward pass comes to them."""

    def __init__(self, memory: TensorLives) -> None:
        self.seen: dict[str, Seen] = {}
        self.uses: list[Use] = []
        self.is_forward = True  # checkpoints run modules again
        self._memory = memory

    def noting(self, name: str) -> Callable[..., None]:
        """A forward hook."""

        def note(module: nn.Module, args: Any, output: Any) -> None:
            tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
            out = next((leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)), None)
            if not tensors or out is None or not out.ndim:
                return
            now = Seen(len(out), max(prod(out.shape[1:-1]), 1), tensors[0].nbytes, out.nbytes)
            if self.is_forward:
                self.seen[name] = _together(self.seen.get(name), now)
            if out.requires_grad:
                inputs = unique(map(self._memory.of, tensors))
                returned = sum(value.nbytes for value in tensors if value.requires_grad)
                out.register_hook(partial(self._use, name, inputs, returned))

        return note

    def _use(self, name: str, inputs: Sequence[Life], returned: int, gradient: torch.Tensor) -> None:
        memory = self._memory
        memory.now += 1  # after all that the operation before has freed
        self.uses.append(Use(name, memory.now, inputs, memory.of(gradient), returned))


def _together(before: Seen | None, now: Seen) -> Seen:
    if before is None:
        return now
    tokens, inputs, outputs = (getattr(before, of) + getattr(now, of) for of in ("tokens", "inputs", "outputs"))
    return replace(before, tokens=tokens, inputs=inputs, outputs=outputs)
