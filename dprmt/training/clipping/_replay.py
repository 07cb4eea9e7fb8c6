"""Some samples run once more: whatever reaches a trainable layer, its gradient and its loss must be each sample's own.

Gradients of outputs, looked at in the first micro-batch, show no mixing that is detached, nor any before the first
trainable layer. A sample run alone shows both. Code that sends rows to places by what is in them may mix in any later
micro-batch: where it is found, all micro-batches are run in two orders.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dprmt._validation import ParameterError, TrainingStateError
from dprmt.training.clipping._capture import Capture
from dprmt.training.clipping._replay_draws import Draws, Undropped, devices_of, same_draws
from dprmt.training.clipping._replay_rows import BatchRows, Window
from dprmt.training.clipping._replay_seen import OWN, Seen, Watch, check_alone, check_order, take_gradients

Losses = Callable[[Any], torch.Tensor]
_FAILURES = (RuntimeError, ValueError, IndexError, TypeError)


class Replay:
    """Runs samples alone, in the first micro-batch of several and at random later ones.

    ``rate``: probability of a later micro-batch. The choice is from the operating system's generator, not from the
    streams of noise, coins or probes, and global generators are as they were afterwards.
    ``possible``: whether all losses so far could be run again.
    ``routes``: what the model was seen to choose rows by; then every micro-batch is run in another order too.
    """

    def __init__(self, capture: Capture, rate: float, clipping_norm: float) -> None:
        self._capture, self._model = capture, capture.model
        self._rate, self._clipping_norm = rate, clipping_norm
        self._watch = Watch({layer.name: layer.module for layer in capture.layers})
        self._chance = secrets.SystemRandom()
        self._fixed = frozenset(_storages(self._model))
        self._padding = frozenset(_padding_numbers(self._model))
        self._dtypes = frozenset(value.dtype for value in self._model.parameters())
        self._translates = any(_has_decoder(module) for module in self._model.modules())
        self._only_widths: tuple[int | None, ...] | None = None
        self.count, self.possible = 0, True
        self.routes: str | None = None

    def look(self, losses: Losses, batch: Any, size: int) -> None:
        """Raise unless some samples' losses, and what is captured of them, are their own.

        ``size``: number of samples; one alone shows nothing, and the next micro-batch is looked at as the first.
        """
        if size < 2:
            return
        due = self.count == 0 or self._chance.random() < self._rate
        if not due and self.routes is None:
            return
        rows = BatchRows(batch, size, self._padding, translates=self._translates)
        with self._unchanged():
            try:
                if due:
                    self._run_alone(losses, rows, size)
                if self.count == 0 or self.routes is not None:
                    self._run_turned(losses, rows, size)
            except TrainingStateError as error:
                raise self._named(error) from error
        self.count += 1

    def _run_alone(self, losses: Losses, rows: BatchRows, size: int) -> None:
        """In another order, so that code which sorts its rows shows in a batch that is in order; then some alone."""
        order = list(range(size))[::-1]
        if self.count:
            self._chance.shuffle(order)
        before, batch = self._buffers(), rows.reordered(order)
        draws = Draws(size, self._fixed, batch=batch)
        together = self._run(losses, batch, draws, gradients=True)
        self._check_buffers(before)
        if len(together.losses) != size:
            raise ParameterError("losses", tuple(together.losses.shape), f"of shape ({size},): one for each sample")
        self.routes = self.routes or draws.routes
        device = together.losses.device
        for sample in self._samples(rows, size):
            alone, window = self._alone(losses, rows, sample, (size, order.index(sample), draws))
            check_alone(alone, together, order.index(sample), window, self._clipping_norm, device)

    def _run_turned(self, losses: Losses, rows: BatchRows, size: int) -> None:
        order = list(range(size))
        given = self._run(losses, rows.reordered(order), Draws(size, calm=True))
        turned = self._run(losses, rows.reordered(order[::-1]), Draws(size, calm=True))
        check_order(given, turned, order[::-1], given.losses.device)

    def _samples(self, rows: BatchRows, size: int) -> list[int]:
        """At first the ends and the one with most padding; later two at random, or that one and another."""
        most_padded = min(range(size), key=lambda sample: rows.window(sample).columns)
        if self.count == 0:
            return sorted({0, size - 1, most_padded})
        first = most_padded if rows.tells_padding else self._chance.randrange(size)
        return [first, (first + 1 + self._chance.randrange(size - 1)) % size]

    def _alone(
        self, losses: Losses, rows: BatchRows, sample: int, batch: tuple[int, int, Draws]
    ) -> tuple[Seen, Window]:
        size, place, draws = batch
        for window in (rows.window(sample), Window(0, 0, None)):
            own = Draws(size, kept=draws.kept, sample=(place, window))
            try:
                return self._run(losses, rows.alone(sample, window), own, gradients=True), window
            except (ParameterError, TrainingStateError):
                raise
            except _FAILURES as error:
                if not window.widths:
                    found = f"the function of losses fails for a sample alone ({type(error).__name__}: {error})"
                    raise TrainingStateError(f"{found[:200]}: it must take any number of samples") from error
                self._takes_one_width(window.widths, error)
        raise AssertionError

    def _takes_one_width(self, widths: tuple[int | None, ...], error: Exception) -> None:
        # A model of one fixed length: its padding is not other samples'. In a batch of another width it is.
        if self._only_widths not in (None, widths):
            found = f"the function of losses fails for a sample without its padding ({type(error).__name__}: {error})"
            raise TrainingStateError(f"{found[:200]}: it must take texts of any length up to the longest")
        self._only_widths = widths

    def _run(self, losses: Losses, batch: Any, draws: Draws, *, gradients: bool = False) -> Seen:
        devices = devices_of(self._model)
        try:
            with (
                same_draws(devices),
                Undropped(),
                draws,
                self._watch.seeing() as uses,
                torch.set_grad_enabled(gradients),
            ):
                found = losses(batch)
                if not isinstance(found, torch.Tensor) or found.ndim != 1:
                    shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
                    raise ParameterError("losses", shape, "a function that gives one loss for each sample, shape (B,)")
                seen = Seen(found, uses, self._dtypes)
                if gradients:
                    take_gradients(seen)
                return seen
        finally:
            draws.restore()
            self._capture.finish()

    def _named(self, error: TrainingStateError) -> TrainingStateError:
        if self.routes is None:
            return error
        found, _, todo = str(error).partition(": ")
        return TrainingStateError(f"{found}, where rows are chosen by index ({self.routes}): {todo}")

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        before = self._buffers()
        try:
            with self._capture.paused():
                yield
        finally:
            with torch.no_grad():
                for name, value in self._model.named_buffers():
                    if name in before and value.shape == before[name].shape and not _equal(value, before[name]):
                        value.copy_(before[name])

    def _buffers(self) -> Mapping[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in self._model.named_buffers()}

    def _check_buffers(self, before: Mapping[str, torch.Tensor]) -> None:
        for name, value in self._model.named_buffers():
            if name not in before or not _equal(value, before[name]):
                raise TrainingStateError(f"a forward pass changes buffer {name}, a state of many samples: {OWN}")


def _storages(model: nn.Module) -> Iterator[int]:
    for value in (*model.parameters(), *model.buffers()):
        if not hasattr(value, "device_mesh"):  # a shard, of a model whose samples nobody runs alone
            yield value.untyped_storage().data_ptr()


def _padding_numbers(model: nn.Module) -> Iterator[int]:
    for module in model.modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.padding_idx is not None:
            yield module.padding_idx


def _has_decoder(module: nn.Module) -> bool:
    return bool(getattr(getattr(module, "config", None), "is_encoder_decoder", False))


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())
