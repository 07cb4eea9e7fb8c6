"""Result of `train`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dprmt import _html
from dprmt.statements import round_up


@dataclass(frozen=True)
class TrainingResult:
    """Outcome of a call of :func:`train`.

    Attributes
    ----------
    folder : Path
        The run folder.
    finished : bool
        False if the run was interrupted; ``resume=True`` continues it.
    steps : int
        Steps that the parameters have seen.
    charged : int
        Steps that the accountant was charged, over all starts; at least ``steps``.
    epsilon : float
        Upper bound of ε for all charged steps; infinite with ``privacy.clip_only``.
    evaluation : dict
        Scores after the last step; empty if there is nothing to evaluate on. With ``evaluation.private_noise`` the
        accuracy as it was released, empty where a crash took it.
    norms : str
        How norms were obtained: by what was asked for, or exactly where that costs less.
    epsilon_of_exact_norms : float or None
        What ``epsilon`` would be with the same noise and exact norms; None with ``privacy.clip_only``.
    neighbours : str or None
        Against which both are: "zero-out"; None with ``privacy.clip_only``.
    """

    folder: Path
    finished: bool
    steps: int
    charged: int
    epsilon: float
    evaluation: dict[str, Any]
    norms: str
    epsilon_of_exact_norms: float | None
    neighbours: str | None

    def __str__(self) -> str:
        state = "finished" if self.finished else "stopped"
        spent = "no privacy" if self.neighbours is None else f"epsilon <= {round_up(self.epsilon)} ({self.neighbours})"
        return f"{self.folder}: {state} after {self.steps} steps, {self.charged} charged; {spent}; norms: {self.norms}"

    def _repr_html_(self) -> str:
        rows = [[name.replace("_", " "), str(value)] for name, value in vars(self).items() if name != "evaluation"]
        rows += [[name, f"{value}"] for name, value in self.evaluation.items()]
        return _html.block(_html.table(["run", ""], rows))
