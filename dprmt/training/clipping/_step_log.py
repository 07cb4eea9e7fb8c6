"""Which logical steps and samples were used, so that no probe and no sample is used twice."""

from __future__ import annotations

from dprmt._validation import ParameterError
from dprmt.training.clipping._policy import Samples
from dprmt.training.norms import sample_names


class StepLog:
    """Numbers of the steps of a run, and the samples of the present one."""

    def __init__(self) -> None:
        self._finished: set[int] = set()
        self._current: int | None = None
        self._names: set[bytes] = set()

    def enter(self, step: int, samples: Samples) -> None:
        """Note a micro-batch."""
        names = [] if samples is None else sample_names(samples)
        if step != self._current:
            if step in self._finished:
                raise ParameterError("step", step, "a number that no earlier step had: its probes would come again")
            self.finish()
            self._current = step
        repeated = self._names.intersection(names)
        if repeated:
            raise ParameterError("samples", len(repeated), "samples that are not in this logical step yet")
        self._names.update(names)

    def finish(self) -> None:
        """End the present step, if there is one: its number is used up."""
        if self._current is not None:
            self._finished.add(self._current)
        self._current, self._names = None, set()
