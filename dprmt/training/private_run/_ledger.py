"""The privacy ledger of a run: every step is charged, durably, before its noisy gradient is used."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from dprmt._files import append_line, parse_json, read_lines
from dprmt._validation import TrainingStateError, differences
from dprmt.accounting import DPSGD, GaussianRelease, Poisson, RandomAllocation, calibrate, compose
from dprmt.statements._sentences import relation_label

SENTENCE = "clip only, no privacy: no noise is added, and no ε is stated"
FILE = "privacy.jsonl"
_EXACT_FOR = 0.5  # seconds an answer may take before it is no longer asked for at every step


@dataclass(frozen=True)
class ClippingOnly:
    """One step without noise, in the place of a mechanism; ``sampling`` is the scheme of its batches."""

    sampling: Poisson | RandomAllocation
    noise_multiplier: float = 0.0

    @property
    def sample_rate(self) -> float:
        """Expected share of the samples in a batch."""
        return self.sampling.rate

    @property
    def steps_per_epoch(self) -> int | None:
        """Steps in which every sample takes part once; None with Poisson sampling."""
        return None if isinstance(self.sampling, Poisson) else self.sampling.steps_per_epoch


def named_relation(mechanism: Any) -> str | None:
    """Name the neighbouring relation of every ε of a run; empty without ε."""
    return None if isinstance(mechanism, ClippingOnly) else relation_label(mechanism.neighbours)


def no_privacy(mechanism: object) -> dict[str, Any]:
    """Return the statement that a run has no privacy, for its records; empty for other runs."""
    return {"privacy": SENTENCE} if isinstance(mechanism, ClippingOnly) else {}


def said_of_every_step(mechanism: Any) -> dict[str, Any]:
    """Return the text for the ε of each line: its neighbours, or that there is no ε."""
    relation = named_relation(mechanism)
    return no_privacy(mechanism) if relation is None else {"neighbours": relation}


Mechanism: TypeAlias = DPSGD | ClippingOnly


class PrivacyLedger:
    """Append-only file with one line per charged step.

    Formal guarantees
    -----------------
    :meth:`charge` returns only after the line is on the disk (fsync of the file, and of its folder when it is new). So
    you can be stopped at any instant after it returned: the file then names at least as many steps as noisy gradients
    were used. A line that was cut short by a crash counts as a step.
    """

    def __init__(self, folder: Path, mechanism: Any, relation: str | None = None) -> None:
        self._path, self._mechanism = folder / FILE, mechanism
        self._whose = {} if relation is None else {"neighbours": relation}
        self.charged = charged_steps(folder)
        self._size = self._length()
        for line in read_lines(self._path):
            if other := differences(line.get("mechanism", mechanism), mechanism, "mechanism"):
                raise TrainingStateError(f"{self._path} cannot go on: it was charged for another mechanism ({other})")

    def charge(self, attempt: int, step: int, epsilon: float, charged: int | None = None) -> None:
        """Record one more step, durably."""
        # More than one more where the rest of an epoch was given up.
        self.charged = max(self.charged + 1, charged or 0)
        entry: dict[str, Any] = {"charged": self.charged, "attempt": attempt, "step": step, "epsilon": epsilon}
        entry |= {"mechanism": self._mechanism, **self._whose}
        if math.isinf(epsilon):
            entry["privacy"] = SENTENCE
        if self._length() != self._size:
            raise TrainingStateError(f"another run records its steps in {self._path}.\nFix: a ledger for each run.")
        try:
            append_line(self._path, entry, durably=True)
        finally:
            self._size = self._length()

    def _length(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0


def charged_steps(folder: Path) -> int:
    """Return the number of steps charged in a run folder, over all its starts."""
    # A line that was cut short counts, and so do lines that are gone but that a later line has counted.
    path, count = folder / FILE, 0
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        if line:
            count = max(count + 1, _stated(line))
    return count


def _stated(line: bytes) -> int:
    try:
        stated = parse_json(line)["charged"]
    except (ValueError, TypeError, KeyError):  # cut short
        return 0
    return stated if isinstance(stated, int) else 0


def whole_epochs(steps: int, steps_per_epoch: int | None) -> int:
    """Return the least number of steps, not below ``steps``, that can be charged: (R1'') of random_allocation.md."""
    return steps if steps_per_epoch is None else -(-steps // steps_per_epoch) * steps_per_epoch


def calibrated(
    mechanism: DPSGD, steps: int, target: float, delta: float, releases: tuple[GaussianRelease, ...] = ()
) -> DPSGD:
    """Return the mechanism with the least noise multiplier at which these steps, and the releases, cost at most ε."""
    length = whole_epochs(steps, mechanism.steps_per_epoch)
    if not releases:
        return calibrate(mechanism, steps=length, target_epsilon=target, delta=delta)
    found = calibrate(compose([(mechanism, length), *releases]), target_epsilon=target, delta=delta)
    return next(one for one, _ in found.phases if isinstance(one, DPSGD))


class SpentEpsilon:
    """Upper bounds of ε after any number of steps, each computed once.

    If a bound takes longer than half a second, it is computed for up to a quarter more steps (1, 2, …, 8, 10, 12, 14,
    16, 20, …, at most the planned number). This is safe, because ε grows with the number of steps. Random allocation
    counts whole epochs, including a partial last one.

    For a long run, bounds are computed in blocks of 64 numbers of steps from one curve: each is an upper bound.
    The last one is always computed separately. ``releases``: other releases.
    """

    def __init__(
        self, mechanism: Mechanism, delta: float, planned: int = 0, releases: tuple[GaussianRelease, ...] = ()
    ) -> None:
        self._mechanism, self._delta, self._planned, self._releases = mechanism, delta, planned, releases
        self._known: dict[int, float] = {}
        self._of_curve: dict[int, float] = {}
        self._slow = False

    def after(self, steps: int, *, exactly: bool = False) -> float:
        """Return the bound; infinite where no noise is added."""
        if isinstance(self._mechanism, ClippingOnly):
            return math.inf
        per_epoch = self._mechanism.steps_per_epoch
        steps = whole_epochs(steps, per_epoch)
        if not (exactly or self._releases or per_epoch) and 0 < steps < self._planned >= 32:
            self.after(self._planned, exactly=True)  # asked for at the end anyway; how long it takes decides
            if not self._slow:
                return self._of_block(self._mechanism, steps)
        if self._slow and not exactly and steps not in self._known:
            unit = 1 << max(0, (steps - 1).bit_length() - 3)
            rounded = -(-steps // unit) * unit
            steps = min(rounded, self._planned) if steps <= self._planned else rounded
            steps = whole_epochs(steps, per_epoch)
        if steps not in self._known:
            started = time.process_time()
            phases: list[Any] = [*([(self._mechanism, steps)] if steps else []), *self._releases]
            self._known[steps] = compose(phases).epsilon(self._delta).upper if phases else 0.0
            self._slow = self._slow or time.process_time() - started > _EXACT_FOR
        return self._known[steps]

    def _of_block(self, mechanism: DPSGD, steps: int) -> float:
        if steps not in self._of_curve:
            first = steps - (steps - 1) % 64  # the same block whatever the step that a run goes on from
            block = range(first, min(first + 64, self._planned))
            upper = mechanism.epsilon(steps=list(block), delta=self._delta).upper
            self._of_curve |= dict(zip(block, map(float, upper), strict=True))
        return self._of_curve[steps]


spent_epsilon = lru_cache(maxsize=64)(SpentEpsilon)
"""The bounds that all runs with the same mechanism share, such as the runs of a sweep."""


def charged_mechanism(mechanism: Mechanism, delta: float) -> dict[str, Any]:
    """Return the mechanism and δ of a charge, for the ledger."""
    return {**describe_mechanism(mechanism), "delta": delta}


def describe_mechanism(mechanism: Mechanism) -> dict[str, Any]:
    """Return the mechanism as a document, for the run's record."""
    if isinstance(mechanism, ClippingOnly):
        return {"mechanism": f"none ({SENTENCE})", "sample_rate": mechanism.sample_rate}
    document = mechanism.as_dict()
    return {"mechanism": type(mechanism).__name__, **{key: document[key] for key in document if key != "kind"}}
