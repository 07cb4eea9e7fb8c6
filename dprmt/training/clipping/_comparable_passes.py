"""What makes passes comparable: outputs by factors, generators that begin again, and draws that are constants."""

from __future__ import annotations

import functools
import itertools
import random
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from dprmt.training.randomness import draws_from


class Outputs:
    """What the model returns: its gradients are noted, or rows are multiplied by factors and a graph may begin there.

    Rows are multiplied, but of those in [0, 1] in the first pass: they may be probabilities.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model, self._scales = model, list[bool]()
        self._leaves: dict[int, torch.Tensor] = {}
        self._gradients: dict[int, torch.Tensor] = {}

    def gradients(self, losses: torch.Tensor, own: list[int]) -> dict[int, torch.Tensor]:
        """Return those of own rows, by outputs' places: of the backward pass before, or from where graphs begin."""
        found, leaves, places = self._gradients, list(self._leaves.values()), [*self._leaves]
        if leaves and losses.requires_grad:
            grown = torch.autograd.grad(losses.sum(), leaves, materialize_grads=True)
            found = dict(zip(places, grown, strict=True))
        return {place: value[own] for place, value in found.items()}

    def noted(self, size: int) -> AbstractContextManager[None]:
        """Leave outputs of so many rows as they are inside, and note their gradients."""

        def note(value: torch.Tensor, place: int) -> torch.Tensor:
            def add(gradient: torch.Tensor) -> None:
                self._gradients[place] = self._gradients.get(place, 0.0) + gradient

            inside = bool(((value >= 0) & (value <= 1)).all())
            self._scales.append(value.is_floating_point() and _has_rows(value, size) and not inside)
            if value.requires_grad and _has_rows(value, size):
                value = value.clone()  # of the losses alone, not of what else the model computes from it
                value.register_hook(add)
            return value

        return self._changed(note, graph=True)

    def scaled(self, factors: Sequence[float], *, cut: bool, graph: bool) -> AbstractContextManager[None]:
        """Multiply rows inside; ``cut``: the graph begins there. ``graph``: whether the model itself has one.

        Without, torch may choose another kernel, which draws otherwise.
        """

        def scale(value: torch.Tensor, place: int) -> torch.Tensor:
            has_rows = _has_rows(value, len(factors))
            if cut and value.is_floating_point() and torch.is_grad_enabled():
                value = value.detach().requires_grad_()
                if has_rows:
                    self._leaves[place] = value
                value = value.clone()  # which may be changed in place
            if not has_rows or place >= len(self._scales) or not self._scales[place]:
                return value
            return value * torch.tensor(factors).to(value).view(-1, *[1] * (value.ndim - 1))

        return self._changed(scale, graph=graph)

    @contextmanager
    def _changed(self, change: Callable[[torch.Tensor, int], torch.Tensor], *, graph: bool) -> Iterator[None]:
        places, modes = itertools.count(), list[bool]()
        self._leaves, self._gradients = {}, {}

        def begin(*_: Any) -> None:
            modes.append(torch.is_grad_enabled())
            torch.set_grad_enabled(modes[-1] and graph)

        def end(_: nn.Module, args: Any, output: Any) -> Any:
            torch.set_grad_enabled(modes.pop())
            return tree_map_only(torch.Tensor, lambda value: change(value, next(places)), output)

        # First, so that hooks of layers see no graph where there is none.
        handles = [
            self._model.register_forward_pre_hook(torch.compiler.disable(begin), prepend=True),
            self._model.register_forward_hook(torch.compiler.disable(end)),
        ]
        try:
            with torch.enable_grad():  # and as before, if the model fails
                yield
        finally:
            for handle in handles:
                handle.remove()


def _has_rows(value: torch.Tensor, size: int) -> bool:
    return value.ndim > 0 and len(value) == size


class RandomNumbers:
    """Generators of a model, which begin every pass in one state and have their own states again afterwards.

    ``own``: those of no library, with their states before the first draw. ``first``: see :meth:`states`.
    """

    def __init__(self, devices: Sequence[torch.device], own: Iterable[torch.Generator]) -> None:
        self._devices, self._cuda = devices, [device for device in devices if device.type == "cuda"]
        self.own = {generator: generator.get_state() for generator in own}

    @contextmanager
    def from_one_seed(self) -> Iterator[None]:
        """Rewind to a new seed inside."""
        with draws_from(secrets.token_bytes(32), self._devices):
            self._torch, self._others = torch.get_rng_state(), (random.getstate(), np.random.get_state())  # noqa: NPY002
            self._gpu = [torch.cuda.get_rng_state(device) for device in self._cuda]
            self.first = self.states()
            try:
                yield
            finally:
                self.rewind()

    def rewind(self) -> None:
        """Begin again."""
        torch.set_rng_state(self._torch)
        random.setstate(self._others[0])
        np.random.set_state(self._others[1])  # noqa: NPY002
        for device, state in zip(self._cuda, self._gpu, strict=True):
            torch.cuda.set_rng_state(state, device)
        for generator, state in self.own.items():
            generator.set_state(state)

    def states(self) -> list[Any]:
        """Return states of all generators that are known, to be compared."""
        gpu = [torch.cuda.get_rng_state(device) for device in self._cuda]
        own = [generator.get_state() for generator in self.own]
        torches = [value.numpy().tobytes() for value in (torch.get_rng_state(), *gpu, *own)]
        numpy: Any = np.random.get_state()  # noqa: NPY002  (a model may draw from it)
        return [*torches, random.getstate(), numpy[1].tobytes(), numpy[2:]]


@functools.cache
def _draws(operation: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in operation.tags


class Draws(TorchDispatchMode):  # type: ignore[misc]  # torch is skipped by mypy
    """Notes generators with their states; ``calm``: dropout passes everything on, other draws are constants."""

    def __init__(self, random_numbers: RandomNumbers, *, calm: bool) -> None:
        super().__init__()
        self._own, self.calm = random_numbers.own, calm

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else every operation costs two calls more

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _draws(func):
            return func(*args, **kwargs)
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Generator) and value not in self._own:
                self._own[value] = value.get_state()
        if not self.calm:
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name == "native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        # Fused attention and recurrent kernels have dropout as an option.
        options = [option.name in ("dropout_p", "dropout") for option in func._schema.arguments]
        found = func(*(0.0 if off else value for off, value in zip(options, args, strict=False)), **kwargs)
        if isinstance(found, torch.Tensor) and name != "randperm":
            found.fill_(0.5 if found.is_floating_point() else 0)
        return found
