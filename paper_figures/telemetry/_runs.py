"""The runs of the study, and what is kept of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dprmt.training.recipes import Settings
from paper_figures.telemetry._tasks import NoData, Shuffled, digits, recipe

_WHOLE = ("rate_factor", "best_rate", "curvature", "change")
_RATES = {"gd": 1.0, "gdm": 0.2, "adam": 0.01, "adambc": 0.01}


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes
    ----------
    kind : str
        Those of one kind are added up.
    model : str
        A recipe of the package, "logistic" or "perceptron".
    data : {"as they are", "shuffled labels", "none"}
        What it is trained on.
    seed : int
        Of weights, batches, noise and shuffling.
    changes : mapping
        Of the settings.
    """

    kind: str
    model: str
    data: str = "as they are"
    seed: int = 0
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the piece."""
        data = "" if self.data == "as they are" else f", {self.data}"
        return f"{self.kind}{data}, seed {self.seed}"

    def train(self) -> dict[str, Any]:
        """Train, read, and put the truth beside what was read."""
        from dprmt.report.measurements import TelemetryTruth
        from dprmt.training.harness import run_in_memory

        model, task, settings = self._parts()
        if self.data == "none":
            task = NoData(task.size)
        elif self.data == "shuffled labels":
            task = replace(task, items=Shuffled(task.items, self.seed))
        look = TelemetryTruth()
        with run_in_memory(model, task, settings, noise_seed=self.seed, observers=[look]) as run:
            sigma = run.prepared.mechanism.noise_multiplier
            losses = [record.loss for record in run.steps()]
        shapes = {name: list(p.shape) for name, p in model.named_parameters() if p.requires_grad}
        tens = [_mean(losses[start : start + 10]) for start in range(0, len(losses), 10)]
        window = settings.telemetry.window
        return {"noise_multiplier": sigma, "shapes": shapes, "losses": tens, **kept(look.private_steps, window)}

    def _parts(self) -> tuple[Any, Any, Settings]:
        if self.model in ("logistic", "perceptron"):
            model, task = digits(None if self.model == "logistic" else 64, self.seed)
            return model, task, _small(str(self.changes["optimizer.name"]), self.changes)
        found = recipe(self.model, {"training.seed": self.seed, **self.changes})
        settings = found.settings.with_changes({"denoising.method": "none", "telemetry": _WINDOW})
        return found.experiment.model, found.experiment.task, settings


_WINDOW = {"every": 2, "window": 10}


def _small(optimizer: str, changes: Mapping[str, Any]) -> Settings:
    sections: dict[str, Any] = {
        "privacy": {"noise_multiplier": 1.0, "delta": 1e-5, "clipping_norm": 1.0, "norms": "exact"},
        "optimizer": {"name": optimizer, "learning_rate": _RATES[optimizer]},
        "training": {"batch_size": 200, "steps": 200},
        "telemetry": {"every": 5, "window": 20},
    }
    return Settings(**sections).with_changes(dict(changes))


def kept(steps: list[dict[str, Any]], window: int) -> dict[str, Any]:
    """Of a run's readings: z and their truth, intervals of windows that do not overlap, spikes and when predicted."""
    found: dict[str, Any] = {"z": [], "z_truth": [], "readings": [], "layers": [], "spikes": {}}
    for line in steps:
        read, truth = line["telemetry"], line["truth"]
        if "z" in read:
            found["z"].append(_short(read["z"]))
            found["z_truth"].append(_short(truth["z"]))
        if "signal" not in read:
            continue
        for name, seen in read.get("displacement", {}).items():
            spikes = [line["step"], seen["spikes"], _short(seen["top_over_edge"]), _short(truth["predicted"][name])]
            found["spikes"].setdefault(name, []).append(spikes)
        if line["step"] % window:
            continue
        reading: dict[str, Any] = {"step": line["step"], "signal": _held(read["signal"]["*"], truth["signal"]["*"])}
        for name in _WHOLE:
            if name in read:
                reading[name] = _held(read[name], truth.get(name, math.nan))
        if "z_displacement" in read:
            reading["z_displacement"] = [_short(read["z_displacement"]), _short(truth["z_displacement"])]
        if "advice" in read:
            reading["factor"] = _held(read["advice"]["factor"], truth["displacement_factor"])
            reading["advice"] = read["advice"]["rate"]
        if "z_window" in read:
            reading["z_window"] = _short(read["z_window"])
        found["readings"].append(reading)
        layers = {name: _held(value, truth["signal"][name]) for name, value in read["signal"].items() if name != "*"}
        found["layers"].append(layers)
    return found


def _held(estimate: Mapping[str, float], truth: float) -> list[float | None]:
    return [_short(truth), *(_short(estimate[end]) for end in ("low", "value", "high"))]


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _mean(losses: Sequence[float | None]) -> float | None:
    known = [loss for loss in losses if loss is not None]
    return _short(math.fsum(known) / len(known)) if known else None


def _digits_runs() -> list[Run]:
    runs = []
    for model in ("logistic", "perceptron"):
        for optimizer in _RATES:
            kind, changes = f"digits {model}, {optimizer}", {"optimizer.name": optimizer}
            runs += [Run(kind, model, "as they are", seed, changes) for seed in range(5)]
            runs += [Run(kind, model, data, seed, changes) for data in ("shuffled labels", "none") for seed in range(3)]
    return runs


_DOCSTRINGS = {"training.steps": 60}
_MOMENTUM = {"training.steps": 60, "optimizer": {"name": "gdm", "learning_rate": 0.05}}
_SST2 = {"training.batch_size": 400, "training.steps": 60}
_LARGE = {"training.batch_size": 2000, "training.steps": 30}
_LM, _E2E = "minilm-docstrings", "smollm2-e2e, batch 8"
_FEW = {"training.batch_size": 8, "training.steps": 20, "data.limit": 2000}
RUNS: tuple[Run, ...] = (
    *(Run(_LM, _LM, "none", seed, _DOCSTRINGS) for seed in range(3)),
    Run(_LM, _LM, changes=_DOCSTRINGS),
    Run("minilm-sst2, batch 400", "minilm-sst2", changes=_SST2),
    *_digits_runs(),
    Run(_LM, _LM, "shuffled labels", changes=_DOCSTRINGS),
    Run(f"{_LM}, momentum", _LM, changes=_MOMENTUM),
    *(Run("minilm-sst2, batch 400", "minilm-sst2", "none", seed, _SST2) for seed in range(9)),
    *(Run("minilm-sst2, batch 2,000", "minilm-sst2", "none", seed, _LARGE) for seed in range(3)),
    Run("minilm-sst2, batch 400", "minilm-sst2", "shuffled labels", changes=_SST2),
    Run("minilm-sst2, batch 2,000", "minilm-sst2", changes=_LARGE),
    Run("minilm-sst2, batch 2,000", "minilm-sst2", "shuffled labels", changes=_LARGE),
    Run(_E2E, "smollm2-e2e", changes=_FEW),
    *(Run(_E2E, "smollm2-e2e", "none", seed, _FEW) for seed in range(3)),
    Run(_E2E, "smollm2-e2e", "shuffled labels", changes=_FEW),
)
