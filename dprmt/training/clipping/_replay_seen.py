"""What a pass shows: inputs of trainable layers, gradients of outputs, losses; whether they are a sample's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import keystr, tree_leaves, tree_leaves_with_path

from dprmt._validation import TrainingStateError
from dprmt.training.clipping._replay_rows import Window
from dprmt.training.clipping._sample_axes import follows_convention, output_axis

OWN = "a sample run alone must give what it gives in the batch"
_LOSSES = f"{OWN}; of a text, take the mean over its own tokens, not over padding or the batch's tokens"


@dataclass(frozen=True)
class Tolerance:
    """Largest differences that count as rounding.

    ``values``: of inputs and losses, relative to the larger norm; of a loss below ``_SMALL_LOSS``, relative to that.
    ``gradients``: relative to the larger norm; a unit that rounding switches on or off changes much of one.
    Both in batches of another size, where products are rounded otherwise. ``same_size``: of all three in batches of the
    same size, where a row's products are the same.
    """

    values: float
    gradients: float
    same_size: float


_SMALL_LOSS = 0.1  # rounding of logits is not smaller where the loss is
_TOLERANCES = {torch.float64: Tolerance(1e-7, 0.1, 1e-9), torch.float32: Tolerance(1e-4, 0.1, 1e-5)}
_SHORT_PRODUCTS, _LOW_PRECISION = Tolerance(1e-2, 0.1, 1e-4), Tolerance(0.05, 0.5, 1e-3)
_NEGLIGIBLE = 1e-3  # of C: what moves the sum by less is not looked at


def tolerance_of(dtypes: set[torch.dtype], device: torch.device) -> Tolerance:
    """By the shortest of the dtypes that a model computes in."""
    floating = [dtype for dtype in dtypes if dtype.is_floating_point]
    if torch.is_autocast_enabled(device.type) or any(dtype not in _TOLERANCES for dtype in floating):
        return _LOW_PRECISION
    if torch.float32 not in floating:
        return _TOLERANCES[torch.float64]
    tensor_cores = device.type == "cuda" and (torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32)
    if tensor_cores or torch.get_float32_matmul_precision() != "highest":
        return _SHORT_PRODUCTS
    return _TOLERANCES[torch.float32]


@dataclass
class Use:
    """One call of a trainable layer."""

    name: str
    axis: int  # of the samples, in its inputs and its first output
    strict: bool  # whether that is known
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    axes: list[int]  # of the samples, in its outputs
    gradients: list[torch.Tensor] = field(default_factory=list)
    places: list[str] = field(default_factory=list)  # of the inputs, among the arguments

    def wanted(self) -> list[str]:
        """What every call has: a module of parts may get no mask where nothing is padding."""
        return self.places if self.strict else self.places[:1]

    def inputs_in_both(self, alone: Use) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Of the sample alone, and of the batch."""
        mine = dict(zip(self.places, self.inputs, strict=True))
        return [(value, mine[place]) for place, value in zip(alone.places, alone.inputs, strict=True) if place in mine]


@dataclass
class Seen:
    """A pass of some samples."""

    losses: torch.Tensor
    uses: list[Use]
    parameters: frozenset[torch.dtype] = frozenset()  # of the whole model: adapters in float32 see what 16 bits rounded
    draws: Sequence[tuple[int, ...]] = ()  # shapes of what was drawn

    def dtypes(self) -> set[torch.dtype]:
        """Of all that was seen, and of what computed it."""
        seen = {value.dtype for use in self.uses for value in use.inputs}
        return {self.losses.dtype} | seen | self.parameters

    def by_layer(self) -> Mapping[str, list[Use]]:
        """In the order of the calls."""
        found: dict[str, list[Use]] = {}
        for use in self.uses:
            found.setdefault(use.name, []).append(use)
        return found


class Watch:
    """Hooks that see the uses of layers, by name."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._modules = modules

    @contextmanager
    def seeing(self) -> Iterator[list[Use]]:
        """Uses of the pass inside the ``with`` block."""
        uses: list[Use] = []
        handles = [
            module.register_forward_hook(self._keeper(name, uses), with_kwargs=True)
            for name, module in self._modules.items()
        ]
        try:
            yield uses
        finally:
            for handle in handles:
                handle.remove()

    def _keeper(self, name: str, uses: list[Use]) -> Any:
        def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            conventional = follows_convention(module)
            given = [
                (keystr(path), value.detach())
                for path, value in tree_leaves_with_path((args, kwargs))
                if isinstance(value, torch.Tensor)
            ]
            places, inputs = [place for place, _ in given], [value for _, value in given]
            leaves = [(place, value) for place, value in enumerate(tree_leaves(output)) if _has_graph(value)]
            axis = output_axis(module, 0) if conventional else 0
            outputs, axes = [value for _, value in leaves], [output_axis(module, place) for place, _ in leaves]
            uses.append(
                Use(name, axis, not conventional and not list(module.children()), inputs, outputs, axes, places=places)
            )

        return keep


def take_gradients(seen: Seen) -> None:
    """Put the gradients of the summed losses with respect to all outputs in the outputs' place."""
    outputs = [output for use in seen.uses for output in use.outputs]
    found: Sequence[torch.Tensor | None] = [None] * len(outputs)
    if outputs and seen.losses.requires_grad:
        found = torch.autograd.grad(seen.losses.sum(), outputs, allow_unused=True)
    gradients = iter(found)
    for use in seen.uses:
        use.gradients = [
            torch.zeros_like(output) if gradient is None else gradient.detach()
            for output, gradient in zip(use.outputs, gradients, strict=False)
        ]
        use.outputs = []
    seen.losses = seen.losses.detach()


def check_alone(
    alone: Seen, batch: Seen, place: int, window: Window, clipping_norm: float, device: torch.device
) -> None:
    """Raise unless what a sample gives alone is what it gives at a place of the batch."""
    size, mine, everybody = len(batch.losses), alone.by_layer(), batch.by_layer()
    tolerance = tolerance_of(batch.dtypes(), device)
    pairs = []
    for name in dict.fromkeys([*everybody, *mine]):
        own, all_ = mine.get(name, []), everybody.get(name, [])
        if [use.wanted() for use in own] != [use.wanted() for use in all_]:
            raise TrainingStateError(f"{name} is reached by some samples only: {OWN}")
        pairs += list(zip(own, all_, strict=True))
    for one, all_uses in pairs:
        for value, row in all_uses.inputs_in_both(one):
            if one.strict and (row.ndim == 0 or len(row) != size):
                continue  # refused by shape
            if value.shape == row.shape and torch.equal(value, row):
                continue  # what all samples share, such as a mask that happens to be as long as the batch
            part = _own_part(row, value.shape, size, place, window, one.axis)
            if part is None or _differ(value, part, tolerance.values):
                raise TrainingStateError(f"inputs of {one.name} depend on other samples: {OWN}")
    if len(alone.losses) != 1 or _losses_differ(alone.losses, batch.losses[place : place + 1], tolerance.values):
        raise TrainingStateError(f"a loss depends on other samples: {_LOSSES}")
    for one, all_uses in pairs:
        bound = clipping_norm * _NEGLIGIBLE / max([1e-30, *(_norm(value) for value in one.inputs)])
        for value, row, axis in zip(one.gradients, all_uses.gradients, one.axes, strict=False):
            if row.ndim <= axis or row.shape[axis] != size:
                continue  # refused by shape
            part = _own_part(row, value.shape, size, place, window, axis)
            beside = 0.0 if part is None else _norm_beside(part, row, size, place, axis)
            allowed = max(bound, tolerance.gradients * _norm(value))
            if part is None or beside > allowed or _differ(value, part, tolerance.gradients, bound):
                raise TrainingStateError(f"gradients at {one.name} depend on other samples: {OWN}")


def check_beside(
    one: Seen, other: Seen, place: int, device: torch.device, clipping_norm: float, *, other_place: int | None = None
) -> None:
    """Raise unless a row is the same beside other rows, in a batch of the same size."""
    size, tolerance, elsewhere = len(one.losses), tolerance_of(one.dtypes(), device).same_size, place
    if other_place is not None:
        elsewhere = other_place
    counts, others = (Counter(use.name for use in seen.uses) for seen in (one, other))
    if different := [name for name in counts | others if counts[name] != others[name]]:
        raise TrainingStateError(f"{different[0]} is reached by some samples only: {OWN}")
    if [use.name for use in one.uses] != [use.name for use in other.uses]:
        raise TrainingStateError(f"the order of the layers depends on other samples: {OWN}")
    pairs = list(zip(one.uses, other.uses, strict=True))
    for first, second in pairs:
        if first.wanted() != second.wanted():
            raise TrainingStateError(f"{first.name} is reached by some samples only: {OWN}")
        for seen, value in first.inputs_in_both(second):
            if first.strict and (value.ndim == 0 or len(value) != size):
                continue  # refused by shape
            if _rows_differ(value, seen, size, place, elsewhere, first.axis, tolerance):
                raise TrainingStateError(f"inputs of {first.name} depend on other samples: {OWN}")
    mine, same = one.losses[place : place + 1], other.losses[elsewhere : elsewhere + 1]
    if len(other.losses) != size or _losses_differ(mine, same, tolerance):
        raise TrainingStateError(f"a loss depends on other samples: {_LOSSES}")
    for first, second in pairs:
        largest = max([1e-30, *(_norm(value) for value in first.inputs)])
        floor = clipping_norm * _NEGLIGIBLE / largest
        for value, seen, axis in zip(first.gradients, second.gradients, first.axes, strict=False):
            if value.ndim <= axis or value.shape[axis] != size:
                continue  # refused by shape
            if _rows_differ(value, seen, size, place, elsewhere, axis, 10 * tolerance, floor):
                raise TrainingStateError(f"gradients at {first.name} depend on other samples: {OWN}")


def _rows_differ(
    one: torch.Tensor,
    other: torch.Tensor,
    size: int,
    place: int,
    elsewhere: int,
    axis: int,
    tolerance: float,
    floor: float = 0.0,
) -> bool:
    """Return whether a sample's rows differ; of what has no axis of the samples, whether anything does."""
    if one.shape == other.shape and torch.equal(one, other):
        return False
    along = [place_ for place_ in (axis, *range(one.ndim)) if place_ < one.ndim]
    several = [place_ for place_ in along if one.shape[place_] == size]
    several += [place_ for place_ in along if one.shape[place_] > size and one.shape[place_] % size == 0]
    if not several or one.ndim != other.ndim or other.shape[several[0]] != one.shape[several[0]]:
        return one.shape != other.shape or _differ(one, other, tolerance, floor)
    each = one.shape[several[0]] // size
    mine = one.narrow(several[0], place * each, each)
    same = other.narrow(several[0], elsewhere * each, each)
    return mine.shape != same.shape or _differ(mine, same, tolerance, floor)


def check_order(given: Seen, turned: Seen, order: Sequence[int], device: torch.device) -> None:
    """Raise unless a batch in another order gives the same rows in that order."""
    tolerance, size = tolerance_of(given.dtypes(), device), len(given.losses)
    if [use.name for use in given.uses] != [use.name for use in turned.uses]:
        raise TrainingStateError(f"the order of the layers depends on that of the samples: {OWN}")
    for one, other in zip(given.uses, turned.uses, strict=True):
        for value, seen in zip(one.inputs, other.inputs, strict=True):
            if value.shape != seen.shape:
                raise TrainingStateError(f"inputs of {one.name} depend on the samples' order: {OWN}")
            if value.ndim <= one.axis or value.shape[one.axis] != size:
                continue  # refused by shape, or of all samples
            moved = value.index_select(one.axis, torch.tensor(list(order), device=value.device))
            same = not _differ(moved, seen, tolerance.values)
            if not same and (one.strict or _differ(value, seen, tolerance.values)):
                raise TrainingStateError(f"inputs of {one.name} depend on the samples' order: {OWN}")
    for place, sample in enumerate(order):
        if _losses_differ(turned.losses[place : place + 1], given.losses[sample : sample + 1], tolerance.values):
            raise TrainingStateError(f"a loss depends on the samples' order: {_LOSSES}")


def _own_part(
    value: torch.Tensor, shape: Sequence[int], size: int, place: int, window: Window, axis: int = 0
) -> torch.Tensor | None:
    """Return a sample's part, of a shape, of what a batch has; None if it has no such part.

    ``axis``: looked at first as the one of the samples, which may also hold several rows of each, such as heads.
    """
    if value.ndim != len(shape):
        return None
    places = [axis, *(other for other in range(value.ndim) if other != axis)]
    every = range(value.ndim)
    for rows in (1, None):
        for along in places:
            each = shape[along] if along < value.ndim and rows is None else 1
            if along >= value.ndim or not each or value.shape[along] != size * each or shape[along] != each:
                continue
            part = window.narrowed(value.narrow(along, place * each, each), shape, [a for a in every if a != along])
            if part is not None:
                return part
    for along in places:  # samples and tokens in one axis
        own = window.flattened(value.shape[along], size, place, shape[along]) if along < value.ndim else None
        if own is not None and (part := value.narrow(along, *own)).shape == tuple(shape):
            return part
    return window.narrowed(value, shape, every)


def _has_graph(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _norm(value: torch.Tensor) -> float:
    return float(value.double().norm()) if value.is_floating_point() else float(value.numel() ** 0.5)


def _norm_beside(part: torch.Tensor, everybody: torch.Tensor, size: int, place: int, axis: int) -> float:
    """Of what a sample has in the columns of its padding."""
    if everybody.shape[axis] != size or part.shape[axis] != 1:
        return 0.0
    whole = _norm(everybody.narrow(axis, place, 1))
    return float(max(whole**2 - _norm(part) ** 2, 0.0) ** 0.5)


def _losses_differ(one: torch.Tensor, other: torch.Tensor, tolerance: float) -> bool:
    return _differ(one, other, tolerance, tolerance * _SMALL_LOSS)


def _differ(mine: torch.Tensor, row: torch.Tensor, tolerance: float, floor: float = 0.0) -> bool:
    if not mine.is_floating_point():
        return not torch.equal(mine, row)
    mine, row = mine.double(), row.double()
    finite = torch.isfinite(mine) & torch.isfinite(row)
    if not torch.equal(mine[~finite].nan_to_num(1.0, 2.0, 3.0), row[~finite].nan_to_num(1.0, 2.0, 3.0)):
        return True
    mine, row = mine[finite], row[finite]
    return float((mine - row).norm()) > max(floor, tolerance * max(float(mine.norm()), float(row.norm())))
