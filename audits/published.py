"""A game of what a run says of itself: whether the canary took part is told from ``metrics.jsonl`` alone, telemetry on.

A trial is a run of the package's loop. All numbers of its lines that do not stand under ``private`` are the
adversary's; which of them matter it learns from runs of its own, in both worlds. Whatever it finds, they are functions
of what was released, and the run's claim covers them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray

from audits.bounds import Scores
from dprmt.accounting import DPSGD
from dprmt.training import telemetry
from dprmt.training.harness import Run, Task, run_in_memory
from dprmt.training.recipes import Settings

_LENGTH = 50.0  # of the canary's gradient, before it is clipped
_RIDGE = 1.0  # of the discriminant, in units of the variances' mean
_FURTHEST = 1e6  # what is infinite is far


@dataclass(frozen=True)
class PublishedGame:
    """What is played.

    Attributes
    ----------
    name : str
        For the report.
    steps : int
        Of a run.
    noise_multiplier : float
        σ; every sample is in every batch.
    optimizer : str
        A recipe's word.
    reads_clean : bool
        The planted bug: telemetry gets the sums as they are before the noise.
    """

    name: str
    steps: int = 4
    noise_multiplier: float = 1.0
    optimizer: str = "gd"
    reads_clean: bool = False
    sample_rate: float = 1.0

    def claim(self) -> DPSGD:
        """What the run says one step is."""
        with run_in_memory(_model(), _Canary(1.0), self._settings()) as run:
            mechanism = run.private.mechanism
        assert isinstance(mechanism, DPSGD)
        return mechanism

    def play(self, trials: int, seed: int = 0) -> tuple[Scores, Scores]:
        """Scores of so many runs without and with the canary, by a rule that was learnt on as many others."""
        del seed  # the noise is fresh
        rule = _discriminant(*([self._published(there) for _ in range(trials)] for there in (0.0, 1.0)))
        without, inside = (np.array([rule(self._published(there)) for _ in range(trials)]) for there in (0.0, 1.0))
        return without, inside

    def _published(self, there: float) -> dict[str, float]:
        # All numbers of a run's lines but the private ones.
        numbers: dict[str, float] = {}
        with run_in_memory(_model(), _Canary(there), self._settings()) as run, self._fault(run):
            for record in run.steps():
                said = {key: value for key, value in record.entry().items() if key != "private"}
                numbers |= _numbers(said, f"{record.step}")
        return numbers

    def _fault(self, run: Run) -> AbstractContextManager[None]:
        return _clean_sums(run.noised) if self.reads_clean else nullcontext()

    def _settings(self) -> Settings:
        return Settings(
            privacy={"noise_multiplier": self.noise_multiplier, "delta": 0.01, "norms": "exact"},  # type: ignore[arg-type]
            optimizer={"name": self.optimizer, "learning_rate": 0.05},  # type: ignore[arg-type]
            training={"batch_size": 2, "steps": self.steps},  # type: ignore[arg-type]
            telemetry={"every": 1, "window": 2},  # type: ignore[arg-type]
        )


def published_games() -> list[PublishedGame]:
    """Of telemetry as it is."""
    return [PublishedGame("what metrics.jsonl says"), PublishedGame("what metrics.jsonl says, Adam", optimizer="adam")]


def planted_in_telemetry() -> dict[str, PublishedGame]:
    """Telemetry that reads what was not released."""
    return {"telemetry of sums before their noise": PublishedGame("clean telemetry", reads_clean=True)}


class _Canary(Task):
    """Two samples, one of which is there with weight 1 or without a gradient."""

    size = 2

    def __init__(self, there: float) -> None:
        self._weights = torch.tensor([0.0, there])

    def losses_of(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        outputs = model(self._weights[batch][:, None] * torch.tensor([1.0, 0.0]))
        return _LENGTH * outputs[:, 0]


def _model() -> torch.nn.Module:
    model = torch.nn.Linear(2, 2, bias=False)
    torch.nn.init.zeros_(model.weight)
    return model


def _numbers(value: Any, name: str) -> dict[str, float]:
    if isinstance(value, dict):
        return {key: one for part in value for key, one in _numbers(value[part], f"{name} {part}").items()}
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {name: float(np.clip(np.nan_to_num(value, nan=0.0), -_FURTHEST, _FURTHEST))}
    return {}


def _discriminant(
    without: Sequence[dict[str, float]], inside: Sequence[dict[str, float]]
) -> Callable[[dict[str, float]], float]:
    """Fisher's linear discriminant of ranks, which nothing infinite throws off; what is not said ranks below all."""
    names = sorted({name for run in [*without, *inside] for name in run})

    def row(run: dict[str, float]) -> list[float]:
        return [run.get(name, -2 * _FURTHEST) for name in names]

    out, there = (np.array([row(run) for run in runs]) for runs in (without, inside))
    both = np.sort(np.concatenate([out, there]), axis=0)

    def ranks(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.stack([np.searchsorted(column, row) for column, row in zip(both.T, rows.T, strict=True)], axis=-1)

    first, second = (ranks(rows) / len(both) for rows in (out, there))
    within = np.cov(first.T) + np.cov(second.T)
    within += _RIDGE * np.trace(within) / len(within) * np.eye(len(within))
    direction = np.linalg.solve(within, second.mean(0) - first.mean(0))
    return lambda run: float((ranks(np.array([row(run)])) / len(both) @ direction)[0])


@contextmanager
def _clean_sums(optimizer: Any) -> Iterator[None]:
    noisy, sums = optimizer.add_noise, dict[int, torch.Tensor]()

    def add_noise() -> None:
        for p in optimizer.params:
            sums[id(p)] = p.summed_grad.clone().view_as(p) / optimizer.expected_batch_size
        noisy()

    optimizer.add_noise = add_noise
    with (
        mock.patch.object(telemetry, "released_gradient", lambda p: sums[id(p)].to(p.dtype)),
        np.errstate(divide="ignore"),
    ):
        yield
