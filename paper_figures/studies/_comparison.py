"""Several optimizers on one task: learning rates chosen on one seed, then all seeds at the chosen rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dprmt._validation import ParameterError, check_count
from studies._task import GroupRecord

Train: TypeAlias = Callable[[str, float, int, Path], list[GroupRecord]]
"""From optimizer, learning rate, seed and a folder of its own to the records of the run."""


@dataclass(frozen=True)
class TunedRuns:
    """One optimizer at its best learning rate. Not private, but for ε: losses and accuracies of training samples.

    Attributes
    ----------
    optimizer : str
        As in `dprmt.training.optimizers.make_optimizer`.
    learning_rate : float
        The chosen one.
    final_losses : dict of float
        Mean loss at the end by learning rate, on the seed of the choice; NaN or infinite if the run diverged.
    runs : tuple of tuple of GroupRecord
        The records at the chosen rate, by seed.
    """

    optimizer: str
    learning_rate: float
    final_losses: Mapping[float, float]
    runs: tuple[tuple[GroupRecord, ...], ...]

    @property
    def at_edge(self) -> bool:
        """Whether the chosen rate is the lowest or highest of several: the best one may lie beyond."""
        rates = sorted(self.final_losses)
        return len(rates) > 1 and self.learning_rate in (rates[0], rates[-1])

    def final(self, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and spread over seeds of a number at the end.

        Parameters
        ----------
        name : {"loss", "accuracy", "group_loss", "group_accuracy"}
            A field of `GroupRecord`.

        Returns
        -------
        mean, spread : array, shape () or (groups,)
            The spread is the standard deviation of a single run (ddof 1), NaN for one seed.
        """
        values = np.array([getattr(run[-1], name) for run in self.runs], dtype=np.float64)
        spread = values.std(0, ddof=1) if len(values) > 1 else np.full(values.shape[1:], np.nan)
        return values.mean(0), spread

    def curve(self, name: str, group: int | None = None) -> tuple[list[float], list[float]]:
        """A number against ε, as mean over the seeds.

        Parameters
        ----------
        name : {"loss", "accuracy", "group_loss", "group_accuracy"}
            A field of `GroupRecord`.
        group : int, optional
            Which group, for the latter two.

        Returns
        -------
        epsilon, values : list of float
            By record.
        """
        values = np.array([[getattr(record, name) for record in run] for run in self.runs], dtype=np.float64).mean(0)
        chosen = values if group is None else values[:, group]
        return [record.epsilon for record in self.runs[0]], [float(value) for value in chosen]


def compare_optimizers(
    train: Train, rates: Mapping[str, Sequence[float]], seeds: Iterable[int], folder: str | Path
) -> dict[str, TunedRuns]:
    """Choose each optimizer's learning rate by the lowest final loss on the first seed, then run the other seeds.

    Parameters
    ----------
    train : callable
        Trains once; called with a folder of its own, the same in every call with the same arguments, so that a
        resumable ``train`` makes the whole comparison resumable.
    rates : mapping of str to sequence of float
        Learning rates to try, by optimizer.
    seeds : iterable of int
        At least one.
    folder : str or Path
        Under which all runs are kept.

    Returns
    -------
    dict of TunedRuns
        By optimizer, in the order of ``rates``.

    Raises
    ------
    ParameterError
        If there is no seed, no rate, or all runs of an optimizer diverged.

    Formal guarantees
    -----------------
    None: the choice reads losses of training samples, and no accountant has counted it. This is how the papers
    compare.

    References
    ----------
    Section 3 of the heavy-tail class imbalance paper on DP-AdamBC: the lowest overall training loss.

    Examples
    --------
    >>> def train(optimizer, rate, seed, folder):
    ...     loss = (rate - 0.3) ** 2 + seed
    ...     return [GroupRecord(0, 0.0, 1.0, 0.0, (), ()), GroupRecord(1, 2.5, loss, 0.0, (), ())]
    >>> runs = compare_optimizers(train, {"adam": [0.1, 0.25, 1.0]}, seeds=range(2), folder="unused")["adam"]
    >>> runs.learning_rate, runs.at_edge, len(runs.runs), round(float(runs.final("loss")[0]), 4)
    (0.25, False, 2, 0.5025)
    """
    numbers = [check_count("seeds", seed, low=0) for seed in seeds]
    if not numbers:
        raise ParameterError("seeds", [], "at least one")
    first, *others = numbers
    return {
        optimizer: _tuned(train, optimizer, chosen, first, others, Path(folder)) for optimizer, chosen in rates.items()
    }


def _tuned(
    train: Train, optimizer: str, rates: Sequence[float], first: int, others: Sequence[int], folder: Path
) -> TunedRuns:
    def run(rate: float, seed: int) -> tuple[GroupRecord, ...]:
        return tuple(train(optimizer, rate, seed, folder / f"{optimizer}-lr{rate:g}-seed{seed}"))

    tried = {rate: run(rate, first) for rate in rates}
    losses = {rate: records[-1].loss for rate, records in tried.items()}
    finite = {rate: loss for rate, loss in losses.items() if math.isfinite(loss)}
    if not finite:
        raise ParameterError(f"rates[{optimizer!r}]", list(rates), "such that at least one run does not diverge")
    best = min(finite, key=lambda rate: finite[rate])
    return TunedRuns(optimizer, best, losses, (tried[best], *(run(best, seed) for seed in others)))
