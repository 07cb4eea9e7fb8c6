"""True values of the telemetry, measured on the clean gradients, which its intervals should contain."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch

from dprmt.report.measurements._run import CleanGradients, RecipeExperiment, copies
from dprmt.spectra import Estimate, displacement_factor, steps_until_visible
from dprmt.training.harness import StepRecord, run_in_memory

_CURVE_FROM = 4  # the first update of telemetry's curve of the objective
_READINGS = 12  # approximate number of readings of a run in the report
_GATE = 0.01  # chance that noise alone passes for a spike


class TelemetryTruth(CleanGradients):
    """Observer that adds the true values to every reading of a run's telemetry. It **reads clean gradients**.

    It is for a run of the harness in one process, with whole gradients and telemetry on.

    Attributes
    ----------
    private_steps : list of dict
        One entry per step: ``step``, ``telemetry`` as in the run's record, and ``truth`` with the same keys for the
        clipped gradients of the batches. The keys are ``z``, and at full readings also ``signal`` by parameter and
        ``"*"``, ``rate_factor``, ``curvature``, ``change``, ``z_displacement``, and ``displacement_factor``.
        ``predicted`` has for each matrix the number of steps until its displacement should have a spike, if every
        step's signal were the mean of the clean gradients so far. **Private.**

    Formal guarantees
    -----------------
    None, because it reads clean gradients. Use it with public data.

    References
    ----------
    (T1) to (T5) of ``docs/theory/telemetry.md``.

    Examples
    --------
    >>> from dprmt.training.harness import ItemTask, run_in_memory
    >>> from dprmt.training.recipes import Settings
    >>> def losses(model, labels):
    ...     return torch.nn.functional.cross_entropy(model(torch.eye(4)[labels]), labels, reduction="none")
    >>> task = ItemTask([0, 1, 2, 3] * 10, torch.tensor, losses)
    >>> settings = Settings(
    ...     privacy={"noise_multiplier": 1.0, "delta": 1e-5},
    ...     optimizer={"name": "gd", "learning_rate": 0.1},
    ...     training={"batch_size": 20, "steps": 4},
    ... )
    >>> look = TelemetryTruth()
    >>> with run_in_memory(torch.nn.Linear(4, 4), task, settings, noise_seed=0, observers=[look]) as run:
    ...     records = list(run.steps())
    >>> last = look.private_steps[-1]
    >>> signal = last["telemetry"]["signal"]["*"]
    >>> signal["low"] <= last["truth"]["signal"]["*"] <= signal["high"]
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self.private_steps: list[dict[str, Any]] = []

    def start(self, run: Any) -> None:
        """Attach between noise and optimizer, after telemetry."""
        super().start(run)
        self._parameters, window = run.prepared.parameters, run.prepared.settings.telemetry.window
        self._energies: deque[dict[str, float]] = deque(maxlen=window)
        self._updates: deque[tuple[float, float, float]] = deque(maxlen=window)  # before, after, ‖U‖²
        self._number, self._change = 0, 0.0
        self._last: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]] | None = None  # gradient and place
        self._now: dict[str, Any] = {}
        self._total = {name: torch.zeros_like(p) for name, p in self._parameters.items()}

    def after_step(self, run: Any, record: StepRecord) -> None:
        """Add the true values to the reading."""
        truth, found = dict(self._now), record.telemetry
        if "signal" in found:
            truth["signal"] = self._shares()
        if "change" in found:
            truth["change"] = self._change
        if self._updates and "rate_factor" in found:
            before, after, length = (math.fsum(column) for column in zip(*self._updates, strict=True))
            bend = after - before
            truth["rate_factor"] = max(-before, 0.0) / bend if bend > 0 else math.inf if before < 0 else 0.0
            truth["curvature"] = bend / length
        if "displacement" in found:
            truth["predicted"] = self._predicted()
        self.private_steps.append({"step": record.step, "telemetry": found, "truth": truth})

    def _take(self, noisy: Mapping[str, torch.Tensor], denoised: object, sigma: float) -> None:
        super()._take(noisy, denoised, sigma)
        clean = {name: gradient.double() for name, gradient in self.clean.items()}
        place, self._number, self._now = copies(self._parameters), self._number + 1, {}
        self._energies.append({name: float(g.square().sum()) / sigma**2 for name, g in clean.items()})
        if self._last is not None:
            former, start = self._last
            update = {name: (place[name] - start[name]).double() for name in place}
            before, after, length = _inner(former, update), _inner(clean, update), _inner(update, update)
            self._updates.append((before, after, length))
            if self._number > _CURVE_FROM:
                self._change += (before + after) / 2
            if length > 0:
                self._now["z"] = -after / (sigma * math.sqrt(length))
        if self._number == _CURVE_FROM:
            self._begin = place
        if self._number > _CURVE_FROM:
            way = {name: (place[name] - self._begin[name]).double() for name in place}
            slope, length = _inner(clean, way), _inner(way, way)
            if length > 0:
                self._now["z_displacement"] = -slope / (sigma * math.sqrt(length))
                self._now["displacement_factor"] = _lowest(slope, self._change)
        for name, g in clean.items():
            self._total[name] += g
        self._last = clean, place

    def _shares(self) -> dict[str, float]:
        n, sizes = len(self._energies), {name: p.numel() for name, p in self._parameters.items()}
        energies = {name: math.fsum(step[name] for step in self._energies) for name in sizes}
        energies["*"], sizes["*"] = math.fsum(energies.values()), sum(sizes.values())
        return {name: energy / (energy + n * sizes[name]) for name, energy in energies.items()}

    def _predicted(self) -> dict[str, float]:
        found = {}
        for name, total in self._total.items():
            if total.ndim == 2 and min(total.shape) >= 2:
                signal = float(torch.linalg.matrix_norm(total.double(), 2)) / self._number
                expected = steps_until_visible(signal, total.shape, self.sigma, false_alarm=_GATE) if signal else None
                found[name] = math.inf if expected is None else expected
        return found


def telemetry_readings(
    setting: RecipeExperiment,
    start: Mapping[str, torch.Tensor],
    *,
    steps: int,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Read the telemetry of a recipe's first steps, without a denoiser, with the true values from clean gradients.

    The model is trained in place, from ``start``. DP-GRAPE's gradients are not whole, so they have no true values.

    Parameters
    ----------
    setting : RecipeExperiment
        Recipe to train.
    start : mapping of str to Tensor
        Initial values of the trained parameters.
    steps : int
        Number of steps, at most the recipe's; there is advice from step 20 on.
    seed : int
        Seed of noise and batches.

    Returns
    -------
    list of dict
        `TelemetryTruth.private_steps`, without ``truth`` if there is none. **Private.**

    Raises
    ------
    ParameterError
        If the settings do not fit.

    Formal guarantees
    -----------------
    None: it reads clean gradients, and its noise comes from a known seed.

    Examples
    --------
    >>> from dprmt.report.measurements import recipe_experiment
    >>> from dprmt.training.recipes import load_recipe
    >>> changes = {"data.limit": 40, "training.batch_size": 8}
    >>> setting = recipe_experiment(load_recipe("roberta-tiny-docstrings").with_changes(changes), steps=2)
    >>> start = {name: p.detach().clone() for name, p in setting.experiment.model.named_parameters()}
    >>> [sorted(entry) for entry in telemetry_readings(setting, start, steps=2)]
    [['step', 'telemetry', 'truth'], ['step', 'telemetry', 'truth']]
    """
    experiment, every = setting.experiment, max(1, steps // _READINGS)
    telemetry = {"on": True, "every": every, "window": max(2, 4 * every), "displacement": True}
    settings = setting.settings.with_changes({"denoising": {"method": "none"}, "telemetry": telemetry})
    experiment.model.load_state_dict(dict(start), strict=False)
    looks = [] if settings.optimizer.name == "grape" else [TelemetryTruth()]
    with run_in_memory(experiment.model, experiment.task, settings, noise_seed=seed, observers=looks) as run:
        records = list(itertools.islice(run.steps(), steps))
    return looks[0].private_steps if looks else [{"step": r.step, "telemetry": r.telemetry} for r in records]


def _lowest(slope: float, change: float) -> float:
    exact = (Estimate(value, value, value) for value in (slope, change))
    return float(displacement_factor(*exact).value)


def _inner(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    return math.fsum(float((first[name] * second[name]).sum()) for name in second)
