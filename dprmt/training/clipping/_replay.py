"""Isolation check: some samples run again, beside others and alone, must give what they gave.

**Beside others.** In batches of the same size, from the same seed, a row's arithmetic is the same whatever the others
are. So a row is compared to 1e-5 (in float32) where the others are copies of it with extreme scores, where one of them
is NaN, where it is the extreme one, and after all of this once more: a state that was kept shows there. **Alone**, with
dropout off, it shows what depends on the size of the batch, on its padding and on its order, up to rounding.

Code that sends rows to places by what is in them may mix in any later micro-batch: where it is found, all micro-batches
are run in two orders.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dprmt._validation import ParameterError, TrainingStateError
from dprmt.training.clipping._capture import Capture
from dprmt.training.clipping._replay_draws import Draws, ScaledRows
from dprmt.training.clipping._replay_rows import BatchRows, Window, padding_number, two_rows
from dprmt.training.clipping._replay_seen import (
    OWN,
    Seen,
    Watch,
    check_alone,
    check_beside,
    check_order,
    take_gradients,
)
from dprmt.training.randomness import draws_from

Losses = Callable[[Any], torch.Tensor]
_FAILURES = (RuntimeError, ValueError, IndexError, TypeError)
_MOST = 16  # rows of a batch in which some are compared: more than ten show a score beyond three deviations
_LARGE = 1e3
_SPECTRAL = (
    "spectral norm iterates once in each forward pass, and how many there are is private; call "
    "layer.parametrizations.weight[0].eval() after model.train()"
)
_NO_PADDING = (
    "columns at the end that only padding fills reach it, and how many there are depends on the longest text: "
    "give an attention_mask that the model uses, or an embedding with padding_idx and losses over a sample's own tokens"
)


class Replay:
    """Looks at samples of the first micro-batch, and of random later ones.

    ``rate``: probability of a later micro-batch. The choice is from the operating system's generator, not from the
    streams of noise, Poisson sampling or probes, and global generators are as they were afterwards.
    ``count``: micro-batches that were looked at.
    ``possible``: whether all losses so far could be run again.
    ``routes``: what the model was seen to choose rows by; then every micro-batch is run in another order too.
    ``generators``: which the model has of its own.
    """

    def __init__(self, capture: Capture, rate: float, clipping_norm: float) -> None:
        self._capture, self._model = capture, capture.model
        self._rate, self._clipping_norm = rate, clipping_norm
        self._watch = Watch({layer.name: layer.module for layer in capture.layers})
        self._chance = secrets.SystemRandom()
        self._fixed = frozenset(_storages(self._model))
        self._padding = frozenset(_padding_numbers(self._model))
        self._dtypes = frozenset(value.dtype for value in self._model.parameters())
        self._devices = sorted({value.device for value in self._model.parameters()}, key=str)
        self._translates = any(_has_decoder(module) for module in self._model.modules())
        self._only_widths: tuple[int | None, ...] | None = None
        self._other: Any = None  # a row of an earlier micro-batch
        self._width: int | None = None
        self.count, self.possible = 0, True
        self.routes: str | None = None
        self.generators: set[torch.Generator] = set()

    def look(self, losses: Losses, batch: Any, size: int) -> None:
        """Raise unless some samples' losses, and what is captured of them, are their own.

        ``size``: number of samples; one alone is looked at beside one of an earlier micro-batch, or its copy.
        """
        if size == 0:
            return
        rows = BatchRows(batch, size, self._padding, translates=self._translates)
        unknown = self._unknown_padding(rows)
        due = self.count == 0 or unknown is not None or self._chance.random() < self._rate
        if due or self.routes is not None:
            with self._unchanged():
                try:
                    if due:
                        self._compare(losses, *self._several(rows, batch, size))
                    if unknown is not None:
                        self._look_at_padding(losses, BatchRows(batch, size, {unknown}), size)
                    if size > 1 and (self.count == 0 or self.routes is not None):
                        self._run_turned(losses, rows, size)
                except TrainingStateError as error:
                    raise self._named(error) from error
            self.count += 1
        if size == 1 or self._other is None:
            self._other = rows.reordered([self._chance.randrange(size)])

    def _several(self, rows: BatchRows, batch: Any, size: int) -> tuple[BatchRows, int]:
        if size > 1:
            return rows, size
        pair = two_rows(batch, batch if self._other is None else self._other)
        pair = two_rows(batch, batch) if pair is None else pair
        return BatchRows(pair, 2, self._padding, translates=self._translates), 2

    def _compare(self, losses: Losses, rows: BatchRows, size: int) -> None:
        chosen = self._samples(rows, size)
        others = [row for row in range(size) if row not in chosen]
        if self.count:
            self._chance.shuffle(others)
        order = [*chosen, *others][: max(_MOST, len(chosen))][::-1]
        batch, looked = rows.reordered(order), [order.index(sample) for sample in chosen]
        before = self._buffers()
        seed, scaled = secrets.token_bytes(32), ScaledRows(self._model)
        try:
            together = self._run(losses, batch, len(order), seed)
            self._check_buffers(before)
            self._check_size(together, len(order))
            for place in looked[:2]:
                self._look_beside(losses, rows, order, place, seed, together, scaled)
        finally:
            scaled.remove()
        self._check(together, lambda: self._run(losses, batch, len(order), seed), range(len(order)))
        calm = self._run(losses, batch, len(order), seed, calm=True)
        for sample, place in zip(chosen, looked, strict=True):
            alone, window = self._alone(losses, rows, sample, seed)
            check_alone(alone, calm, place, window, self._clipping_norm, alone.losses.device)

    def _check_size(self, together: Seen, size: int) -> None:
        if len(together.losses) != size:
            found, allowed = tuple(together.losses.shape), f"of shape ({size},): one for each sample"
            raise ParameterError("losses", found, allowed)

    def _look_beside(
        self,
        losses: Losses,
        rows: BatchRows,
        order: list[int],
        place: int,
        seed: bytes,
        together: Seen,
        scaled: ScaledRows,
    ) -> None:
        size = len(order)
        batch, copies = rows.reordered(order), rows.reordered([order[place]] * size)
        mine = [float(row == place) for row in range(size)]
        extreme = [_LARGE if row == place else 1.0 for row in range(size)]
        broken = [1.0 if row == place else torch.nan for row in range(size)]

        def run(given: Any, factors: Sequence[float] | None) -> Callable[[], Seen | None]:
            return lambda: self._scaled(losses, given, seed, scaled, factors, size)

        self._check(together, run(copies, None), [place])
        self._check(together, run(copies, [1.0 if own else _LARGE for own in mine]), [place])
        self._check(together, run(batch, broken), [place])
        alike = run(copies, [_LARGE] * size)()
        if alike is not None:
            self._check(alike, run(batch, extreme), [place])

    def _scaled(
        self,
        losses: Losses,
        batch: Any,
        seed: bytes,
        scaled: ScaledRows,
        factors: Sequence[float] | None,
        size: int,
    ) -> Seen | None:
        scaled.start(factors)
        try:
            return self._run(losses, batch, size, seed)
        except _FAILURES:  # code that takes no extreme scores shows nothing
            if factors is None:
                raise
            return None
        finally:
            scaled.start(None)

    def _check(self, one: Seen, run: Callable[[], Seen | None], places: Iterable[int]) -> None:
        other = run()
        if other is None or other.draws != one.draws:
            return  # rows got other numbers: what was drawn for them is not the same
        for place in places:
            check_beside(one, other, place, one.losses.device, self._clipping_norm)

    def _look_at_padding(self, losses: Losses, rows: BatchRows, size: int) -> None:
        calm = self._run(losses, rows.reordered(range(size)), size, bytes(32), calm=True)
        sample = min(range(size), key=lambda sample: rows.window(sample).columns)
        window = rows.window(sample)
        try:
            alone = self._run(losses, rows.alone(sample, window), 1, bytes(32), calm=True)
            check_alone(alone, calm, sample, window, self._clipping_norm, alone.losses.device)
        except (TrainingStateError, *_FAILURES) as error:
            raise TrainingStateError(f"a sample's result depends on its padding: {_NO_PADDING}") from error

    def _unknown_padding(self, rows: BatchRows) -> int | None:
        """Return the number that seems to fill up texts, in a batch of another width than the last, where nothing says
        so.
        """
        if rows.tells_padding:
            return None
        number, width = padding_number(rows.words)
        last, self._width = self._width, width if width is not None else self._width
        return number if last is not None and width != last else None

    def _run_turned(self, losses: Losses, rows: BatchRows, size: int) -> None:
        order = list(range(size))
        given = self._run(losses, rows.reordered(order), size, bytes(32), calm=True, gradients=False)
        turned = self._run(losses, rows.reordered(order[::-1]), size, bytes(32), calm=True, gradients=False)
        check_order(given, turned, order[::-1], given.losses.device)

    def _samples(self, rows: BatchRows, size: int) -> list[int]:
        """At first the ends and the one with most padding; later two at random, or that one and another."""
        most_padded = min(range(size), key=lambda sample: rows.window(sample).columns)
        if self.count == 0:
            return sorted({0, size - 1, most_padded})
        first = most_padded if rows.tells_padding else self._chance.randrange(size)
        return [first, (first + 1 + self._chance.randrange(size - 1)) % size]

    def _alone(self, losses: Losses, rows: BatchRows, sample: int, seed: bytes) -> tuple[Seen, Window]:
        for window in (rows.window(sample), Window(0, 0, None)):
            try:
                return self._run(losses, rows.alone(sample, window), 1, seed, calm=True), window
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

    def _run(
        self, losses: Losses, batch: Any, size: int, seed: bytes, *, calm: bool = False, gradients: bool = True
    ) -> Seen:
        draws = Draws(size, self._fixed, batch=batch, calm=calm)
        try:
            with (
                draws_from(seed, self._devices),
                torch.autograd.set_multithreading_enabled(False),  # else a checkpoint's second run is not calm
                draws,
                self._watch.seeing() as uses,
                torch.set_grad_enabled(gradients),
            ):
                found = losses(batch)
                if not isinstance(found, torch.Tensor) or found.ndim != 1:
                    shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
                    raise ParameterError("losses", shape, "a function that gives one loss for each sample, shape (B,)")
                seen = Seen(found, uses, self._dtypes, draws.shapes)
                if gradients:
                    take_gradients(seen)
                return seen
        finally:
            draws.restore()
            self.routes = self.routes or (draws.routes if size > 1 else None)
            self.generators.update(draws.generators)
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
                todo = _SPECTRAL if name.endswith(("_u", "_v")) and ".parametrizations." in f".{name}" else OWN
                raise TrainingStateError(f"a forward pass changes buffer {name}, a state of many samples: {todo}")


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
