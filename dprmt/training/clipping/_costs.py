"""Measured cost of private steps by each norm method: time, memory and ε, on synthetic rows."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dprmt import _html
from dprmt._rounding import round_up
from dprmt._validation import ParameterError
from dprmt.accounting import ZeroOut


class TensorMemory(TorchDispatchMode):  # type: ignore[misc]  # torch is skipped by mypy
    """Count of the bytes of all tensor storages that operations allocate within the context, backward passes included.

    Storages count from the operation that returns them until nothing refers to them; views add nothing. Memory that
    kernels allocate and free inside one operation is not counted, and neither is earlier memory unless it is in
    ``known``.

    Parameters
    ----------
    known : iterable of Tensor
        Tensors to count from the start, such as the parameters.

    Attributes
    ----------
    live, peak : int
        Bytes now, and the most so far.
    largest : int
        Bytes of the largest storage allocated in the context.

    Examples
    --------
    >>> with TensorMemory() as memory:
    ...     x = torch.zeros(1000)
    ...     y = (x + 1)[:10]
    ...     del x
    >>> memory.peak, memory.live
    (8000, 4000)
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.live = self.peak = self.largest = 0
        self._sizes: dict[int, int] = {}
        for tensor in known:
            self._count(tensor)
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count what it returns."""
        inputs = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and id(leaf.untyped_storage()) not in inputs:
                self._count(leaf)
        return out

    def reset_peak(self) -> None:
        """Start the peak again from what is live."""
        self.peak, self.largest = self.live, 0

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._sizes:
            return
        size = storage.nbytes()
        self._sizes[key] = size
        self.live += size
        self.peak, self.largest = max(self.peak, self.live), max(self.largest, size)
        weakref.finalize(storage, self._forget, key).atexit = False

    def _forget(self, key: int) -> None:
        self.live -= self._sizes.pop(key, 0)


EXACT, ESTIMATED = ("exact", "ghost"), ("hutchinson", "hutch++")
_SECONDS = 0.1  # time for which steps of one method are repeated, at least two steps
_SLOWER, _MORE_EPSILON = 0.10, 0.05  # least saving of time by an estimate, and its largest cost in ε


@dataclass(frozen=True)
class WayCost:
    """Cost of a step by one norm method.

    Attributes
    ----------
    way : str
        The norm method, an argument of `plan_private`.
    seconds : float
        The fastest step on one micro-batch.
    time : float
        ``seconds`` divided by the seconds of a step without privacy.
    peak : int
        Peak memory in bytes, beyond the memory before the step.
    epsilon : float or None
        An upper bound on the run's ε; None if no noise was given.
    """

    way: str
    seconds: float
    time: float
    peak: int
    epsilon: float | None


@dataclass(frozen=True)
class StepCosts:
    """Cost of a step by every norm method, and a recommendation; from :meth:`ClippingPlan.costs`.

    Attributes
    ----------
    ways : sequence of WayCost
        Exact methods first.
    plain_seconds : float
        Seconds of a step without privacy.
    plain_peak : int
        Peak memory in bytes of this step.
    neighbours : str
        Neighbouring relation of every ε.
    """

    ways: Sequence[WayCost]
    plain_seconds: float
    plain_peak: int
    neighbours: str = ZeroOut.kind

    @property
    def recommended(self) -> WayCost:
        """The fastest exact one, unless an estimate that costs at most 5 % more ε takes 10 % less time of a step."""
        exact, estimated = self._exact(), self._estimated()
        slower = exact.time > (1 + _SLOWER) * estimated.time
        return estimated if slower and _costs_little(estimated, exact) else exact

    @property
    def sentence(self) -> str:
        """Recommended method, and how the best one of the other kind compares."""
        taken = self.recommended
        other = self._estimated() if taken is self._exact() else self._exact()
        share = round(100 * (taken.time / other.time - 1))
        pace = f"{abs(share)} % {'slower' if share > 0 else 'faster'} than" if share else "as fast as"
        pace = f"{pace} {other.way}"
        if taken.epsilon is None or other.epsilon is None:
            return f"{taken.way}: {pace}"
        return f"{taken.way}: {pace}, ε {round_up(taken.epsilon, 3)} against {round_up(other.epsilon, 3)}"

    def _exact(self) -> WayCost:
        return min((one for one in self.ways if one.way in EXACT), key=lambda one: one.time)

    def _estimated(self) -> WayCost:
        found = [one for one in self.ways if one.way in ESTIMATED]
        cheap = [one for one in found if _costs_little(one, self._exact())]
        return min(cheap or found, key=lambda one: one.time)

    def rows(self) -> list[list[str]]:
        """Return rows of a table: method, time over a plain step, seconds, MiB at the peak, ε."""
        return [
            [
                one.way,
                f"{one.time:.2f}",
                f"{one.seconds:.3g}",
                f"{one.peak / 2**20:.3g}",
                "–" if one.epsilon is None else round_up(one.epsilon, 3),
            ]
            for one in self.ways
        ]

    def __str__(self) -> str:
        return f"{self.sentence.replace('ε', 'epsilon')} ({self.neighbours})"

    def _repr_html_(self) -> str:
        return _html.block(
            _html.table(["norms", "time ×", "seconds", "MiB", "ε"], self.rows()),
            _html.sentence(f"{self.sentence} ({self.neighbours})"),
        )


def _costs_little(one: WayCost, exact: WayCost) -> bool:
    return one.epsilon is not None and exact.epsilon is not None and one.epsilon <= (1 + _MORE_EPSILON) * exact.epsilon


class StillOptimizer(torch.optim.Optimizer):  # type: ignore[misc]  # torch is skipped by mypy
    """Optimizer whose steps change no parameter."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__([value for value in model.parameters() if value.requires_grad], {})

    def step(self, closure: Any = None) -> None:
        """Do nothing."""


@contextmanager
def undisturbed(model: torch.nn.Module) -> Iterator[None]:
    """Give the gradients of the model and the states of torch's generators back at the end."""
    kept = [(value, value.grad) for value in model.parameters()]
    devices = sorted({value.device.index for value, _ in kept if value.is_cuda})
    try:
        with torch.random.fork_rng(devices):
            for value, _ in kept:
                value.grad = None
            yield
    finally:
        for value, gradient in kept:
            value.grad = gradient


def checked_losses(losses: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Return one forward pass; raises unless it gives one loss per sample, with its graph."""
    found: Any = losses()
    if not isinstance(found, torch.Tensor) or found.ndim != 1 or not found.requires_grad:
        shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise ParameterError("losses", shape, "a function of nothing that gives losses of shape (B,) with their graph")
    return found


def measured(step: Callable[[], None], device: torch.device) -> tuple[float, int]:
    """Measure seconds of the fastest step, and peak bytes; the first step, with its checks, does not count."""
    step()
    peak = _peak(step, device)
    seconds: list[float] = []
    until = time.perf_counter() + _SECONDS
    while len(seconds) < 2 or time.perf_counter() < until:
        _wait(device)
        started = time.perf_counter()
        step()
        _wait(device)
        seconds.append(time.perf_counter() - started)
    return min(seconds), peak


def _peak(step: Callable[[], None], device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        return int(torch.cuda.max_memory_allocated(device) - before)
    with TensorMemory() as memory:
        step()
    return memory.peak


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
