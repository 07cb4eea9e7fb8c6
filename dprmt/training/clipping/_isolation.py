"""Isolation check: a row's contribution to the sum must not depend on the other rows.

A row adds its clipped gradient. The check computes this gradient, as the step does, and the row's loss, from passes
over other batches, and compares them. In batches of one size, from one seed, a row's arithmetic does not depend on the
others. So passes come in groups of one size, with other neighbours:

- **Gradients**, of 5 rows: as they are; then the others have twice their size and the opposite sign, or half their
  length, and scores a thousand times as large. In the first pass the losses of the compared rows and of the others are
  differentiated apart: each must leave the other rows' gradients at zero, exactly.
- **Scores**, where the graph begins at the model's outputs, so that there is no backward pass through the model. Of up
  to 13 rows, one of them with an extreme score: the others as they are, or extreme copies of the row. Of the 5 rows,
  after all other passes: others with NaN as scores. That shows a kept state, too.
- **Alone**, without its padding, a row shows what depends on the batch's size or padded length. In batches of other
  shapes it gets other random numbers, because generators work by position. So dropout is off and other draws are
  constants, wherever torch draws, by means of a dispatch mode.

One check sees the following, with τ for `Tolerance.beside`:

- If the other rows change as above, a row moves by at most τ·max(C, its gradient's norm), so by about τC once clipped.
  The sum of B such rows moves by at most BτC: .005 C for 512 in float32.
- An effect of the batch's size or padding alone is seen if it changes a loss by more than `Tolerance.loss`, or a
  gradient by more than a tenth (16 bits: half) of itself and .001 C. A smaller effect moves a sum by up to BC/10.
- An effect of other kinds of rows, of more than 13 rows, or in a micro-batch that is not checked is not bounded.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from dprmt._validation import ParameterError, TrainingStateError
from dprmt.training.clipping._batch_rows import BatchRows, padding_number, two_rows
from dprmt.training.clipping._capture import Capture, check_losses
from dprmt.training.clipping._formed_layers import Layer, row_gradient
from dprmt.training.clipping._modules import changed_buffer
from dprmt.training.clipping._units import Use
from dprmt.training.norms._clipping import sum_of_squares
from dprmt.training.randomness import draws_from

Losses = Callable[[Any], torch.Tensor]
_FAILURES = (RuntimeError, ValueError, IndexError, TypeError)  # of code that does not take what it is given
_FEW = 5  # rows whose gradients are taken
_MOST = 13  # above ten, a score beyond three deviations can show; no length that batches often have
_LARGE = 1e3
_OWN = "a sample run alone must give what it gives in the batch"
_LOSSES = (
    f"{_OWN}, whenever it is run (no counter, no generator but torch's own and the model's); of a text, take the mean "
    "over its own tokens, not over padding or the batch's tokens"
)
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
    """Results of some rows in one pass.

    ``uses``: of layers, in the backward pass' order; none if the graph begins at the model's outputs. ``scores``:
    gradients of these. ``states``: of random generators after the pass.
    """

    losses: torch.Tensor
    uses: dict[Layer, list[Use]]
    scores: dict[int, torch.Tensor]
    states: list[Any]


@dataclass(frozen=True)
class _Neighbours:
    """Rows in an order, and the places of those that are compared; the first of these has no row after it."""

    order: list[int]
    own: list[int]

    @classmethod
    def of(cls, chosen: Sequence[int], others: Sequence[int], most: int) -> _Neighbours:
        """Put two of the chosen rows, one in a batch of three or fewer, among others."""
        size = min(len(chosen) + len(others), most)
        own = [size - 1, 1][: min(len(chosen), max(1, size // 2))]
        mine, rest = dict(zip(own, chosen, strict=False)), iter([*chosen[len(own) :], *others])
        return cls([mine[place] if place in mine else next(rest) for place in range(size)], own)

    @property
    def copies(self) -> list[int]:
        """Replace the others by the first row that is compared."""
        return [row if place in self.own else self.order[self.own[0]] for place, row in enumerate(self.order)]

    def factors(self, others: float, first: float = 1.0) -> list[float]:
        """Return factors of scores; NaN not right after a compared row, because products in bfloat16 may read on."""
        kept = {*self.own, *(place + 1 for place in self.own if math.isnan(others))}
        found = [1.0 if place in kept else others for place in range(len(self.order))]
        return [*found[:-1], first]


class Isolation:
    """Checks the first micro-batch, and random later ones.

    ``rate``: probability of a later micro-batch. The operating system's generator makes the choice, not the streams of
    noise, Poisson sampling or probes, and global generators are restored. ``count``: micro-batches that were checked.
    ``apart``: whether finite gradients of rows of one
    micro-batch were zero where those of others were not. ``generators``: those that the model's modules have.
    """

    def __init__(self, capture: Capture, rate: float) -> None:
        self._capture, self._model, self._rate, self._clipping_norm = capture, capture.model, rate, 1.0
        self._chance = secrets.SystemRandom()
        modules = list(self._model.modules())
        self._padding = {part.padding_idx for part in modules if getattr(part, "padding_idx", None) is not None}
        self._translates = any(getattr(getattr(part, "config", None), "is_encoder_decoder", False) for part in modules)
        self._dtypes = {value.dtype for value in self._model.parameters()}  # of adapters see what 16 bits rounded
        self._devices = sorted({value.device for value in self._model.parameters()}, key=str)
        self._only_widths: object = None
        self._is_due = False  # whether the next micro-batch will be checked
        self._other: Any = None  # a row of this one then, for a micro-batch of one
        self._width: int | None = None
        self._may_be_padded = True  # whether there are texts, and nothing names their padding
        self.count, self.apart = 0, False
        self.generators: list[torch.Generator] = []

    def check(self, losses: Losses, batch: Any, size: int, clipping_norm: float) -> None:
        """Raise an error unless results of some of ``size`` rows are independent of the others."""
        self._clipping_norm = clipping_norm
        due, self._is_due = self.count == 0 or self._is_due, self._chance.random() < self._rate
        if size == 0 or not (due or self._is_due or self._may_be_padded):
            return
        rows = BatchRows(batch, size, self._padding, translates=self._translates)
        self._may_be_padded = bool(rows.words) and not rows.tells_padding
        number, width = (None, None) if rows.tells_padding else padding_number(rows.words)
        unknown = number if self._width not in (None, width) else None  # texts are filled up, and nothing says so
        self._width = width or self._width
        if due or unknown is not None:
            if size == 1:
                rows = BatchRows(two_rows(batch, batch if self._other is None else self._other), 2, self._padding)
            elif unknown is not None:
                rows = BatchRows(batch, size, {unknown})
            buffers = {name: value.detach().clone() for name, value in self._model.named_buffers()}
            try:
                finite = self._check(losses, rows, buffers, [0] if size == 1 else self._chosen(rows))
            except TrainingStateError as error:
                if unknown is None:
                    raise
                raise TrainingStateError(_ON_PADDING) from error
            finally:
                self._restored(buffers)
            self.count += 1
            self.apart = self.apart or (finite and size > 1)
        self._other = rows.picked([0]) if self._is_due else None

    def _check(
        self, losses: Losses, rows: BatchRows, buffers: Mapping[str, torch.Tensor], chosen: Sequence[int]
    ) -> bool:
        """Check, and return whether all gradients that were compared first are finite."""
        others = [row for row in range(rows.size) if row not in chosen]
        if self.count:
            self._chance.shuffle(others)
        few, many = (_Neighbours.of(chosen, others, most) for most in (_FEW, _MOST))
        numbers = RandomNumbers(self._model, self._devices)
        self.generators = [*numbers.own]
        passes = _Passes(self._capture, losses, numbers)
        with numbers.again():
            first = numbers.states()
        with torch.autograd.set_multithreading_enabled(False):  # else a checkpoint's second run is not calm
            with passes.changed(len(few.order)):
                together = passes.run(rows.picked(few.order), len(few.order), few.own, apart=True)
            if changed := self._restored(buffers):
                raise TrainingStateError(changed_buffer(changed[0]))
            used = {value.dtype for uses in together.uses.values() for inputs, g in uses for value in (*inputs, g)}
            limits = tolerance_of(used | self._dtypes | {together.losses.dtype}, together.losses.device)
            has_draws = together.states != first
            other = passes.beside(rows.opposite(few.order, few.own), few, few.factors(_LARGE), cut=False)
            self._compare_beside(together, other, limits)
            del other  # which may be large
            finite = all(bool(g.isfinite().all()) for uses in together.uses.values() for _, g in uses)
            is_calm = not has_draws and len(chosen) == len(few.own)
            calm, together = together if is_calm else None, replace(together, uses={})
            beside = passes.beside(rows.picked(many.order), many, many.factors(1.0, first=_LARGE))
            copies = passes.beside(rows.picked(many.copies), many, many.factors(_LARGE, first=_LARGE))
            self._compare_beside(beside, copies, limits)
            draws = ConstantDraws() if has_draws else None
            if calm is None:
                calm = passes.run(rows.picked(chosen), len(chosen), [*range(len(chosen))], draws=draws)
            for place, row in enumerate(chosen):
                apart = (limits.loss, limits.gradient, 1e-3)
                self._compare(self._alone(passes, rows, row, draws), 0, calm, place, apart)
            del calm
            again = passes.beside(rows.picked(few.order), few, few.factors(math.nan))
            again = again or passes.beside(rows.picked(few.order), few, few.factors(1.0))
            if again is None or again.states != together.states:
                raise TrainingStateError(f"what is drawn for a sample depends on earlier passes: {_OWN}")
            self._compare_beside(together, again, limits)
        return finite

    def _chosen(self, rows: BatchRows) -> list[int]:
        """Choose two: at first of the row with most padding and the ends; later that row, or any, and another."""
        size = rows.size
        if self.count == 0:
            return list(dict.fromkeys([rows.most_padded, 0, size - 1]))[:2]
        first = rows.most_padded if rows.tells_padding else self._chance.randrange(size)
        return [first, (first + 1 + self._chance.randrange(size - 1)) % size]

    def _alone(self, passes: _Passes, rows: BatchRows, row: int, draws: Any, *, cut: bool = True) -> _Pass:
        try:
            return passes.run(rows.alone(row, cut=cut), 1, [0], draws=draws)
        except (ParameterError, TrainingStateError):
            raise
        except _FAILURES as error:
            widths, todo = rows.widths_cut(row) if cut else (), "it must take any number of samples"
            if widths and self._only_widths in (None, widths):
                # A model of one fixed length: its padding is not other samples'. In a batch of another width it is.
                self._only_widths = widths
                return self._alone(passes, rows, row, draws, cut=False)
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

    def _compare_beside(self, one: _Pass | None, other: _Pass | None, limits: Tolerance) -> None:
        """Compare rows with other neighbours."""
        if one is None or other is None or other.states != one.states:
            return  # nothing is shown, or rows got other numbers
        for place in range(len(one.losses)):
            self._compare(one, place, other, place, (limits.beside,) * 3)

    def _compare(self, one: _Pass, row: int, other: _Pass, same: int, limits: tuple[float, float, float]) -> None:
        """Raise unless rows of two passes are one; ``limits``: of a loss, of a gradient, of a gradient over C."""
        loss, gradient, floor = limits
        mine, its = float(one.losses[row]), float(other.losses[same])
        both_finite = math.isfinite(mine) and math.isfinite(its)
        allowed = loss * max(abs(mine), abs(its), 0.1)  # where a loss is smaller, rounding of its logits is not
        if not (within(abs(mine - its), allowed) if both_finite else str(mine) == str(its)):
            _refuse(one, row, other, same, loss, f"a loss depends on other samples: {_LOSSES}")
        # Nor is that of a small gradient of logits.
        floor = gradient * 1e-3 if one.scores and other.scores else floor * self._clipping_norm
        apart, lengths, worst = 0.0, [0.0, 0.0], (-1.0, "")  # squares
        for name, first, second in _gradients(one, row, other, same):
            lengths = [lengths[0] + _square(first), lengths[1] + _square(second)]
            for key, value in second.items():  # in place: it may be as large as the model
                first[key] = first[key].sub_(value) if key in first else value
            apart, worst = apart + _square(first), max(worst, (_square(first), name))
        finite, allowed = [*map(math.isfinite, lengths)], max(gradient * max(lengths) ** 0.5, floor)
        if any(finite) and not (all(finite) and within(apart**0.5, allowed)):  # else left out of the sum, both
            _refuse(one, row, other, same, loss, f"gradients at {worst[1]} depend on other samples: {_OWN}")


def _gradients(one: _Pass, row: int, other: _Pass, same: int) -> Iterator[tuple[str, Any, Any]]:
    """Yield both rows' gradients of outputs, or by layers; none if all that they are formed from is the same."""
    rows = ((one, row), (other, same))
    if one.scores and other.scores:
        mine, its = ({place: value[at].double().clone() for place, value in a.scores.items()} for a, at in rows)
        yield "the model's outputs", mine, its
    elif not _is_same(one, row, other, same):
        for layer in one.uses | other.uses:
            mine, its = (row_gradient(layer, a.uses.get(layer), at) for a, at in rows)
            yield layer.name, mine, its


def _is_same(one: _Pass, row: int, other: _Pass, same: int) -> bool:
    """Return whether all that a row's gradients are formed from is the same, but for rounding."""
    if one.uses.keys() != other.uses.keys():
        return False
    for layer, mine in one.uses.items():
        its = other.uses[layer]
        if len(mine) != len(its):
            return False
        for (inputs, g), (others, h) in zip(mine, its, strict=True):
            for value, twin in ((g, h), *zip(inputs, others, strict=True)):
                if isinstance(value, nn.Parameter):
                    continue
                a, b = (x[at] if x.ndim and len(x) == len(y) else x for x, y, at in ((value, g, row), (twin, h, same)))
                if a.ndim == b.ndim > 0 and h.ndim > 1 and len(a) < len(b) == len(h[same]):  # without padding
                    b = next((b[part] for part, rest in _ends(len(a), len(b)) if not bool(h[same][rest].any())), b)
                if a.shape != b.shape or a.dtype != b.dtype:
                    return False
                if not torch.equal(a, b):
                    a, b = a.double(), b.double()
                    if not float((a - b).norm()) <= 1e-5 * float(b.norm()):
                        return False
    return True


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


def _square(gradient: Mapping[Any, torch.Tensor]) -> float:
    return sum(float(sum_of_squares(value[None])) for value in gradient.values())


def _ends(length: int, width: int) -> list[tuple[slice, slice]]:
    """Return the first and the last columns of this number, each with those that are left."""
    return [(slice(length), slice(length, width)), (slice(width - length, width), slice(width - length))]


# What makes passes comparable: outputs by factors, generators that begin again, and draws that are constants.


class _Passes:
    """Passes over batches of one check: each begins with the same random numbers, and shows results of some rows.

    The model's outputs are noted, or rows are multiplied by factors and a graph may begin there. Rows are multiplied,
    but of outputs in [0, 1] in the first pass: they may be probabilities.
    """

    def __init__(self, capture: Capture, losses: Losses, numbers: RandomNumbers) -> None:
        self._capture, self._losses, self._numbers, self._model = capture, losses, numbers, capture.model
        self._scales: list[bool] = []
        self._leaves: dict[int, torch.Tensor] = {}
        self._gradients: dict[int, torch.Tensor] = {}

    def run(
        self,
        batch: Any,
        size: int,
        own: list[int],
        *,
        draws: ConstantDraws | None = None,
        cut: bool = False,
        apart: bool = False,
    ) -> _Pass:
        """Return results of rows at the places ``own``.

        ``draws``: what becomes of draws. ``cut``: the graph begins at the outputs. ``apart``: see `Capture.uses_of`;
        gradients of outputs are noted, too.
        """
        self._capture.finish()
        try:
            with self._numbers.again(), draws or nullcontext():  # a checkpoint draws again in the backward pass
                found = self._losses(batch)
                check_losses(found, size, needs_graph=False)
                uses = {} if cut else self._capture.uses_of(found, own, apart=apart)
                states = self._numbers.states()
            gradients = self._gradients if apart else {}  # of that backward pass
            if cut and self._leaves and found.requires_grad:  # from where the graph begins
                grown = torch.autograd.grad(found.sum(), [*self._leaves.values()], materialize_grads=True)
                gradients = dict(zip(self._leaves, grown, strict=True))
            of_own = {place: value[own] for place, value in gradients.items()}
            return _Pass(found.detach()[own], uses, of_own, states)
        finally:
            self._capture.finish()

    def beside(self, batch: Any, where: _Neighbours, factors: list[float], *, cut: bool = True) -> _Pass | None:
        """Return results where outputs are multiplied by factors; None of code that takes no such rows."""
        try:
            with self.changed(len(factors), factors, cut=cut):
                return self.run(batch, len(factors), where.own, cut=cut)
        except (ParameterError, TrainingStateError):
            raise
        except _FAILURES:
            return None

    @contextmanager
    def changed(self, size: int, factors: Sequence[float] | None = None, *, cut: bool = False) -> Iterator[None]:
        """Note gradients of outputs of so many rows, or multiply rows by factors; ``cut``: the graph begins there."""
        places = itertools.count()
        self._leaves, self._gradients = {}, {}

        def end(_: nn.Module, args: Any, output: Any) -> Any:
            return tree_map_only(torch.Tensor, lambda value: change(value, next(places)), output)

        def change(value: torch.Tensor, place: int) -> torch.Tensor:
            has_rows = value.ndim > 0 and len(value) == size
            if factors is None:
                inside = bool(((value >= 0) & (value <= 1)).all())
                self._scales.append(value.is_floating_point() and has_rows and not inside)
                if value.requires_grad and has_rows:
                    value = value.clone()  # of the losses alone, not of what else the model computes from it
                    value.register_hook(partial(self._add, place))
                return value
            if cut and value.is_floating_point() and torch.is_grad_enabled():
                value = value.detach().requires_grad_()
                if has_rows:
                    self._leaves[place] = value
                value = value.clone()  # which may be changed in place
            if not has_rows or place >= len(self._scales) or not self._scales[place]:
                return value
            return value * torch.tensor(factors).to(value).view(-1, *[1] * (value.ndim - 1))

        handle = self._model.register_forward_hook(torch.compiler.disable(end))
        try:
            yield
        finally:
            handle.remove()

    def _add(self, place: int, gradient: torch.Tensor) -> None:
        self._gradients[place] = self._gradients.get(place, 0.0) + gradient


class RandomNumbers:
    """Draws of one check: the same in every pass, and generators have their own states again afterwards.

    ``own``: generators that are attributes of a model's modules, with their states.
    """

    def __init__(self, model: nn.Module, devices: Sequence[torch.device]) -> None:
        self._devices, self._secret = devices, secrets.token_bytes(32)
        values = [value for part in model.modules() for value in vars(part).values()]
        self.own = {value: value.get_state() for value in values if isinstance(value, torch.Generator)}

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draw the same numbers inside as in other passes."""
        with draws_from(self._secret, self._devices):
            try:
                yield
            finally:
                for generator, state in self.own.items():
                    generator.set_state(state)

    def states(self) -> list[Any]:
        """Return states of all generators that are known, to be compared."""
        gpu = [torch.cuda.get_rng_state(device) for device in self._devices if device.type == "cuda"]
        own = [generator.get_state() for generator in self.own]
        torches = [value.numpy().tobytes() for value in (torch.get_rng_state(), *gpu, *own)]
        numpy: Any = np.random.get_state()  # noqa: NPY002  (a model may draw from it)
        return [*torches, random.getstate(), numpy[1].tobytes(), numpy[2:]]


@functools.cache
def _draws(operation: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in operation.tags


class ConstantDraws(TorchDispatchMode):  # type: ignore[misc]  # torch is skipped by mypy
    """Dropout passes everything on, and other draws are constants."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else every operation costs two calls more

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _draws(func):
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
