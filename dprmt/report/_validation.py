"""The report on real gradients: measurements of `dprmt.report.measurements` put into sections of the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dprmt.report._gradients import (
    NOISY,
    course_section,
    improvement_section,
    kappa_section,
    norm_section,
    overlap_section,
    spectra_section,
    spike_section,
)
from dprmt.report._page import Section
from dprmt.report._telemetry import telemetry_sections
from dprmt.report._words import matrices

if TYPE_CHECKING:
    from dprmt.report.measurements import (
        AlignmentStep,
        GradientStep,
        LayerSpectra,
        RecipeExperiment,
        Spike,
    )
    from dprmt.training.recipes import Recipe

_RECIPE: dict[str, Any] = {  # adapters in all layers, so that there is much to look at
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
    seeds: int = 1
    noise_draws: int = 8
    samples: int = 32
    probe_draws: int = 128
    probes: int = 32


def report_recipe(name: str | None, changes: Mapping[str, Any]) -> Recipe:
    """Return a recipe by name, or the report's."""
    from dprmt.training.recipes import load_recipe, recipe_from_dict

    return (recipe_from_dict(_RECIPE) if name is None else load_recipe(name)).with_changes(changes)


class _Seen:
    """What is measured along the first of the runs, step by step."""

    def __init__(self, draws: int) -> None:
        self._draws = draws
        self.spikes: list[Spike] = []
        self.strongest: list[LayerSpectra] = []
        self.alarms: list[LayerSpectra] = []  # the largest one, if there is any
        self.losses: list[float] = []

    def look(self, step: GradientStep) -> None:
        """Measure a step. Kept are the three layers, each at its best step, whose clean value is furthest above the
        threshold or least below it, also of those that the recipe keeps from denoising; and the largest false alarm.
        """
        from dprmt.report.measurements import measure_spectra, measure_spikes

        found = measure_spikes(step, draws=self._draws, noise_scales=NOISE_SCALES, seed=step.number)
        self.spikes += found
        self.losses.append(step.loss)
        own = sorted((spike for spike in found if spike.noise_scale == 1), key=_weakness)
        best = measure_spectra(step, [spike.layer for spike in own[:_SHOWN]])
        firsts = {entry.layer: entry for entry in sorted([*self.strongest, *best], key=_weakness, reverse=True)}
        self.strongest = sorted(firsts.values(), key=_weakness)[:_SHOWN]
        called = [spike.layer for spike in own if spike.called and spike.signal_over_threshold <= 1]
        alarms = [*self.alarms, *(e for e in measure_spectra(step, called) if e.verdict == "false alarm")]
        self.alarms = sorted(alarms, key=lambda entry: -entry.top_over_edge)[:1]


def _weakness(measured: Spike | LayerSpectra) -> float:
    return -measured.signal_over_threshold


def measured_sections(
    recipe: Recipe, sizes: Sizes, say: Callable[[str], None]
) -> tuple[list[str], list[Section], dict[str, Any]]:
    """Train by the recipe's first steps and measure; return introduction, sections, and numbers about the setting."""
    from dprmt.report.measurements import (
        losses_without_noise,
        measure_alignment,
        measure_norm_ratios,
        private_gradients,
        recipe_experiment,
        telemetry_readings,
    )

    say("loading model and data")
    setting = recipe_experiment(recipe, steps=sizes.steps)
    seen, experiment = _Seen(sizes.noise_draws), setting.experiment
    start = {name: p.detach().clone() for name, p in experiment.model.named_parameters() if p.requires_grad}
    alignment: list[list[AlignmentStep]] = []
    for seed in range(sizes.seeds):
        experiment.model.load_state_dict(start, strict=False)
        alignment.append([])
        for step in private_gradients(experiment, setting.settings, steps=setting.steps, seed=seed):
            say(f"measuring step {step.number + 1} of {setting.steps}, run {seed + 1} of {sizes.seeds}")
            alignment[seed].append(measure_alignment(step, exclude=setting.settings.denoising.exclude))
            if seed == 0:
                seen.look(step)
    say("measuring norms")
    samples = min(sizes.samples, experiment.task.size)
    norms = measure_norm_ratios(experiment, samples=samples, draws=sizes.probe_draws, probes=sizes.probes)
    say("training without noise")
    courses = {NOISY: seen.losses, **losses_without_noise(setting, start)}
    say("reading telemetry")
    telemetry, truth = telemetry_readings(setting, start, steps=setting.steps)
    sections = [
        spike_section(seen.spikes),
        overlap_section(seen.spikes),
        spectra_section(seen.strongest, seen.alarms, seen.spikes),
        improvement_section(alignment),
        kappa_section([step for run in alignment for step in run]),
        course_section(courses),
        norm_section(norms),
        *telemetry_sections(telemetry, truth),
    ]
    return (
        [_setting_sentence(setting, seen)],
        sections,
        {"setting": setting.settings.to_dict() | {"seeds": sizes.seeds}},
    )


def _setting_sentence(setting: RecipeExperiment, seen: _Seen) -> str:
    privacy, training = setting.settings.privacy, setting.settings.training
    shapes = ", ".join(f"{m} × {n}" for m, n in sorted({spike.shape for spike in seen.spikes}))
    return (
        f"Recipe {setting.experiment.name}: the first {len(seen.losses)} of its {training.steps} steps of DP-SGD on"
        f" {setting.experiment.task.size} training items, expected batch {training.batch_size}, clipping norm"
        f" {privacy.clipping_norm:g}, noise multiplier {privacy.noise_multiplier:.3f}, with denoising. Measured on"
        f" {matrices(len({spike.layer for spike in seen.spikes}))} of shapes {shapes} at each step."
    )
