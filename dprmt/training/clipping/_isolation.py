"""Isolation check: a row's contribution to the sum must not depend on the other rows.

A row adds its clipped gradient. The check computes this gradient, as the step does, and the row's loss, from passes
over other batches, and compares them.

**With other rows.** Up to 13 rows of a micro-batch are run together. In batches of one size, from one seed, a row's
arithmetic does not depend on the others. Then the other rows are replaced: by copies of the row, by contents of
opposite sign or half the length, by scores a thousand times as large, or by NaN. The row itself gets the extreme
score, with calm and with extreme other rows. Last, the batch is repeated, which shows a kept state.

**Alone**, without its padding, shows what depends on the batch's size or padded length. In batches of other shapes a
row gets other random numbers, because generators work by position. So dropout is off and other draws are constants,
wherever torch draws, by means of a dispatch mode.

One check sees the following, with τ for `Tolerance.beside`:

- If the other rows change as above, a row moves by at most τ·max(C, its gradient's norm), so by about τC once clipped.
  The sum of B such rows moves by at most BτC: .005 C for 512 in float32.
- An effect of the batch's size or padding alone is seen if it changes a loss by more than `Tolerance.loss`, or a
  gradient by more than a tenth (16 bits: half) of itself and .001 C. A smaller effect moves a sum by up to BC/10.
- An effect of other kinds of rows, of more than 13 rows, or in a micro-batch that is not checked is not bounded.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from dprmt._validation import ParameterError, TrainingStateError
from dprmt.training.clipping._batch_rows import BatchRows, padding_number, two_rows
from dprmt.training.clipping._capture import Capture
from dprmt.training.clipping._policy import Layer, Use, row_gradient
from dprmt.training.clipping._refusals import changed_buffer
from dprmt.training.randomness import draws_from

Losses = Callable[[Any], torch.Tensor]
_FAILURES = (RuntimeError, ValueError, IndexError, TypeError)  # of code that does not take what it is given
_MOST = 13  # above ten, a score beyond three deviations can show; no length that batches often have
_LARGE = 1e3
_NEGLIGIBLE = 1e-3  # negligible change of a gradient, as a share of C
_SMALL_LOSS = 0.1  # rounding of logits is not smaller where the loss is
_OWN = "a sample run alone must give what it gives in the batch"
_LOSSES = f"{_OWN}; of a text, take the mean over its own tokens, not over padding or the batch's tokens"
_ON_PADDING = (
    "a sample's result depends on its padding: its length is that of the longest text; give an attention_mask that the "
    "model uses, or an embedding with padding_idx and losses over a sample's own tokens"
)


@dataclass(frozen=True)
class Tolerance:
    """Largest relative differences that count as rounding, by the shortest numbers that a model computes in.

    ``beside``: in batches of one size, where a row's products are the same operations. ``loss`` and ``gradient``: in
    others, where sums are taken in another order, and rounding may switch a unit off that has a tenth of a gradient.
    """

    beside: float
    loss: float
    gradient: float


def tolerance_of(dtypes: Iterable[torch.dtype], device: torch.device) -> Tolerance:
    """Choose tolerances by the shortest of the dtypes, and by the rounding of products."""
    floating = {dtype for dtype in dtypes if dtype.is_floating_point}
    if torch.is_autocast_enabled(device.type) or floating - {torch.float32, torch.float64}:
        return Tolerance(1e-2, 0.05, 0.5)  # attention takes another kernel where no row has padding: 3e-3
    if torch.float32 not in floating:
        return Tolerance(1e-9, 1e-7, 0.1)
    tensor_cores = device.type == "cuda" and (torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32)
    if tensor_cores or torch.get_float32_matmul_precision() != "highest":
        return Tolerance(1e-4, 1e-2, 0.1)
    return Tolerance(1e-5, 1e-4, 0.1)


@dataclass
class _Pass:
    """Results of some rows in one pass: losses, uses of layers in the backward pass' order, and shapes of draws."""

    losses: torch.Tensor
    uses: dict[Layer, list[Use]]
    draws: list[tuple[int, ...]]


class Isolation:
    """Checks the first micro-batch, and random later ones.

    ``rate``: probability of a later micro-batch. The operating system's generator makes the choice, not the streams of
    noise, Poisson sampling or probes, and global generators are restored. ``count``: micro-batches that were checked.
    ``possible``: whether all losses so far could be run again. ``generators``: the generators that the model has.
    """

    def __init__(self, capture: Capture, rate: float, clipping_norm: float) -> None:
        self._capture, self._model, self._rate, self.clipping_norm = capture, capture.model, rate, clipping_norm
        self._chance = secrets.SystemRandom()
        modules = list(self._model.modules())
        self._padding = {part.padding_idx for part in modules if getattr(part, "padding_idx", None) is not None}
        self._translates = any(getattr(getattr(part, "config", None), "is_encoder_decoder", False) for part in modules)
        self._dtypes = {value.dtype for value in self._model.parameters()}  # of adapters see what 16 bits rounded
        self._devices = sorted({value.device for value in self._model.parameters()}, key=str)
        self._only_widths: object = None
        self._other: Any = None  # a row of an earlier micro-batch
        self._width: int | None = None
        self.count, self.possible = 0, True
        self.generators: set[torch.Generator] = set()

    def check(self, losses: Losses, batch: Any, size: int) -> None:
        """Raise an error unless results of some of ``size`` rows are independent of the others."""
        if size == 0:
            return
        rows = BatchRows(batch, size, self._padding, translates=self._translates)
        number, width = (None, None) if rows.tells_padding else padding_number(rows.words)
        unknown = number if self._width not in (None, width) else None  # texts are filled up, and nothing says so
        self._width = width or self._width
        if self.count == 0 or unknown is not None or self._chance.random() < self._rate:
            if size == 1:
                pair = None if self._other is None else two_rows(batch, self._other)  # one of an earlier micro-batch
                rows = BatchRows(two_rows(batch, batch) if pair is None else pair, 2, self._padding)
            elif unknown is not None:
                rows = BatchRows(batch, size, {unknown})
            buffers = {name: value.detach().clone() for name, value in self._model.named_buffers()}
            try:
                self._check(losses, rows, buffers)
            except TrainingStateError as error:
                if unknown is None:
                    raise
                raise TrainingStateError(_ON_PADDING) from error
            finally:
                self._restored(buffers)
            self.count += 1
        if size == 1 or self._other is None:
            self._other = rows.picked([self._chance.randrange(size)])

    def _check(self, losses: Losses, rows: BatchRows, buffers: Mapping[str, torch.Tensor]) -> None:
        chosen = self._chosen(rows)
        others = [row for row in range(rows.size) if row not in chosen]
        if self.count:
            self._chance.shuffle(others)
        order = [*chosen[1:], *others[: _MOST - len(chosen)], chosen[0]]
        size, mine, seed = len(order), chosen[0], secrets.token_bytes(32)
        own = [size - 1, *range(size // 2 - 1)][: len(chosen)]  # positions of unchanged rows
        batch, plain = rows.picked(order), [1.0] * size
        copies = rows.picked([row if place in own else mine for place, row in enumerate(order)])
        scales: list[bool] = []

        def run(given: Any, factors: Sequence[float] = plain) -> _Pass | None:
            try:
                with _scaled(self._model, factors, scales):
                    return self._run(losses, given, size, own, seed)
            except _FAILURES as error:
                if isinstance(error, (ParameterError, TrainingStateError)):
                    raise
                return None  # code that takes no such rows shows nothing

        def beside(factor: float) -> list[float]:
            return [1.0 if place in own else factor for place in range(size)]

        with _scaled(self._model, plain, scales):
            together = self._run(losses, batch, size, own, seed)
        if changed := self._restored(buffers):
            raise TrainingStateError(changed_buffer(changed[0]))
        self._compare_beside(together, run(copies))
        self._compare_beside(together, run(rows.opposite(order, own)))
        self._compare_beside(together, run(batch, beside(_LARGE)))
        self._compare_beside(together, run(batch, beside(math.nan)), first=True)
        self._compare_beside(run(batch, [*plain[1:], _LARGE]), run(copies, [_LARGE] * size), first=True)
        again = run(batch)
        if again is None or again.draws != together.draws:
            raise TrainingStateError(f"what is drawn for a sample depends on earlier passes: {_OWN}")
        self._compare_beside(together, again)
        calm = self._run(losses, batch, size, [order.index(row) for row in chosen], seed, calm=True)
        limits = self._tolerance(calm)
        for place, row in enumerate(chosen):
            alone = self._alone(losses, rows, row, seed)
            self._compare(alone, 0, calm, place, (limits.loss, limits.gradient, _NEGLIGIBLE))

    def _chosen(self, rows: BatchRows) -> list[int]:
        """Choose at first the ends and the row with most padding; later that one, or any, and another."""
        size = rows.size
        most_padded = min(range(size), key=rows.columns)
        if self.count == 0:
            return list(dict.fromkeys([0, size - 1, most_padded]))
        first = most_padded if rows.tells_padding else self._chance.randrange(size)
        return [first, (first + 1 + self._chance.randrange(size - 1)) % size]

    def _run(self, losses: Losses, batch: Any, size: int, looked: list[int], seed: bytes, calm: bool = False) -> _Pass:
        draws = _Draws(calm=calm)
        self._capture.finish()
        try:
            # In one thread, else a checkpoint's second run is not calm.
            with draws_from(seed, self._devices), torch.autograd.set_multithreading_enabled(False), draws:
                found = losses(batch)
                if not isinstance(found, torch.Tensor) or found.shape != (size,):
                    shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
                    raise ParameterError("losses", shape, f"of shape ({size},): one for each sample")
                uses = self._capture.uses_of(found, looked)
                return _Pass(found.detach()[list(looked)], uses, draws.shapes)
        finally:
            for generator, state in draws.generators.items():  # of the model's own
                generator.set_state(state)
            self.generators.update(draws.generators)
            self._capture.finish()

    def _alone(self, losses: Losses, rows: BatchRows, row: int, seed: bytes, *, cut: bool = True) -> _Pass:
        try:
            return self._run(losses, rows.alone(row, cut=cut), 1, [0], seed, calm=True)
        except (ParameterError, TrainingStateError):
            raise
        except _FAILURES as error:
            widths, todo = rows.widths_cut(row) if cut else (), "it must take any number of samples"
            if widths and self._only_widths in (None, widths):
                # A model of one fixed length: its padding is not other samples'. In a batch of another width it is.
                self._only_widths = widths
                return self._alone(losses, rows, row, seed, cut=False)
            if widths:
                todo = "it must take texts without padding, of any length up to the longest"
            found = f"the function of losses fails for a sample alone ({type(error).__name__}: {error})"
            raise TrainingStateError(f"{found[:200]}: {todo}") from error

    def _restored(self, buffers: Mapping[str, torch.Tensor]) -> list[str]:
        """Restore buffers, and return the names of those that had changed."""
        changed = []
        for name, value in self._model.named_buffers():
            before = buffers.get(name)
            if before is None or before.shape != value.shape:
                changed.append(name)
            elif not torch.allclose(value, before, rtol=0.0, atol=0.0, equal_nan=True):
                changed.append(name)
                value.data.copy_(before)
        return changed

    def _compare_beside(self, one: _Pass | None, other: _Pass | None, *, first: bool = False) -> None:
        """Compare rows with other neighbours. ``first``: compare only the first row."""
        if one is None or other is None or other.draws != one.draws:
            return  # nothing is shown, or rows got other numbers
        limit = self._tolerance(one).beside
        for place in range(1 if first else len(one.losses)):
            self._compare(one, place, other, place, (limit, limit, limit))

    def _tolerance(self, seen: _Pass) -> Tolerance:
        used = {value.dtype for uses in seen.uses.values() for inputs, g in uses for value in (*inputs, g)}
        return tolerance_of(used | self._dtypes | {seen.losses.dtype}, seen.losses.device)

    def _compare(self, one: _Pass, row: int, other: _Pass, same: int, limits: tuple[float, float, float]) -> None:
        """Raise unless rows of two passes are one; ``limits``: of a loss, of a gradient, of a gradient over C."""
        loss, gradient, floor = limits
        mine, its = float(one.losses[row]), float(other.losses[same])
        both_finite = math.isfinite(mine) and math.isfinite(its)
        allowed = loss * max(abs(mine), abs(its), _SMALL_LOSS)
        if not (within(abs(mine - its), allowed) if both_finite else str(mine) == str(its)):
            _refuse(one, row, other, same, loss, f"a loss depends on other samples: {_LOSSES}")
        apart, lengths, worst = 0.0, [0.0, 0.0], (-1.0, "")  # squares
        for layer in one.uses | other.uses:
            first, second = (row_gradient(layer, a.uses.get(layer), at) for a, at in ((one, row), (other, same)))
            squared = _square({key: first.get(key, 0.0) - second.get(key, 0.0) for key in first | second})
            apart, worst = apart + squared, max(worst, (squared, layer.name))
            lengths = [lengths[0] + _square(first), lengths[1] + _square(second)]
        finite, allowed = (
            [*map(math.isfinite, lengths)],
            max(gradient * max(lengths) ** 0.5, floor * self.clipping_norm),
        )
        if any(finite) and not (all(finite) and within(apart**0.5, allowed)):  # else left out of the sum, both
            _refuse(one, row, other, same, loss, f"gradients at {worst[1]} depend on other samples: {_OWN}")


def within(difference: float, allowed: float) -> bool:
    """Return whether it counts as rounding."""
    return difference <= allowed


def _refuse(one: _Pass, row: int, other: _Pass, same: int, limit: float, said: str) -> NoReturn:
    """Raise the error for the first layer whose inputs differ, if there is one."""
    for layer in reversed(one.uses):
        mine, its = one.uses[layer], other.uses.get(layer, [])
        if len(mine) != len(its):
            raise TrainingStateError(f"{layer.name} is reached by some samples only: {_OWN}")
        for (inputs, _), (others, _) in zip(mine, its, strict=True):
            a, b = inputs[0], others[0]
            if isinstance(a, nn.Parameter) or a.shape[1:] != b.shape[1:]:  # of a module run whole, or of padding
                continue
            a, b = a[row].double(), b[same].double()
            if not within(float((a - b).norm()), limit * float(b.norm())):
                raise TrainingStateError(f"inputs of {layer.name} depend on other samples: {_OWN}")
    raise TrainingStateError(said)


def _square(gradient: Mapping[nn.Parameter, Any]) -> float:
    return sum(float(value.square().sum()) for value in gradient.values())


@contextmanager
def _scaled(model: nn.Module, factors: Sequence[float], scales: list[bool]) -> Iterator[None]:
    """Multiply rows of outputs, but (``scales``, noted in the first pass) of those in [0, 1]: maybe probabilities."""
    places = itertools.count()

    def scale(value: torch.Tensor) -> torch.Tensor:
        if (place := next(places)) == len(scales):
            inside = bool(((value >= 0) & (value <= 1)).all())
            scales.append(value.is_floating_point() and value.ndim > 0 and len(value) == len(factors) and not inside)
        if not scales[place] or len(value) != len(factors):
            return value
        return value * torch.tensor(factors).to(value).view(-1, *[1] * (value.ndim - 1))

    handle = model.register_forward_hook(lambda _, args, output: tree_map_only(torch.Tensor, scale, output))
    try:
        yield
    finally:
        handle.remove()


class _Draws(TorchDispatchMode):  # type: ignore[misc]  # torch is skipped by mypy
    """Notes what a pass draws; ``calm``: dropout passes everything on, and other draws are constants."""

    def __init__(self, *, calm: bool) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []
        self.generators: dict[torch.Generator, torch.Tensor] = {}
        self._calm = calm

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Generator):
                self.generators.setdefault(value, value.get_state())
        name = func.overloadpacket.__name__
        if self._calm and name == "native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        # Fused attention and recurrent kernels have dropout as an option, and draw nothing where it is 0.
        options = [option.name in ("dropout_p", "dropout") for option in func._schema.arguments]
        chances = [value for off, value in zip(options, args, strict=False) if off]
        if self._calm:
            args = tuple(0.0 if off else value for off, value in zip(options, args, strict=False))
        found = func(*args, **kwargs)
        if not any(options) or any(chances):
            self.shapes += [tuple(value.shape) for value in tree_leaves(found) if isinstance(value, torch.Tensor)]
        if self._calm and isinstance(found, torch.Tensor) and name != "randperm":
            found.fill_(0.5 if found.is_floating_point() else 0)
        return found
