"""The report on real gradients: measurements of `dprmt.report.measurements` put into sections of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dprmt.report._gradients import (
    course_section,
    improvement_section,
    kappa_section,
    norm_section,
    spectra_section,
    theory_sections,
)
from dprmt.report._page import Section
from dprmt.report._telemetry import telemetry_sections
from dprmt.report._words import matrices
from dprmt.report.measurements._alignment import AlignmentStep, measure_alignment
from dprmt.report.measurements._norm_ratio import measure_norm_ratios
from dprmt.report.measurements._run import Experiment, GradientStep, private_gradients, recipe_experiment, signal_shares
from dprmt.report.measurements._spikes import LayerSpectra, Spike, measure_spectra, measure_spikes
from dprmt.training.recipes import load_recipe

_CHANGES = {  # to the recipe minilm-docstrings: adapters in all layers, so that there is much to look at
    "name": "minilm-docstrings, adapters in all layers",
    "model.lora.rank": 8,
    "model.lora.alpha": 16.0,
    "model.lora.targets": ["query", "value"],
    "training.batch_size": 256,
    "training.steps": 40,
    "optimizer.learning_rate": 2e-3,
    "privacy.clipping_norm": 1.0,
}


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    steps: int = 10
    noise_draws: int = 8
    samples: int = 32
    probe_draws: int = 128
    probes: int = 32


def _weakness(measured: Spike | LayerSpectra) -> float:
    return -measured.signal_over_threshold


def report_experiment(name: str | None, changes: Mapping[str, Any], say: Callable[[str], None]) -> Experiment:
    """Load model and data of a recipe, or of the report's."""
    recipe = load_recipe("minilm-docstrings").with_changes(_CHANGES) if name is None else load_recipe(name)
    say("loading model and data")
    return recipe_experiment(recipe.with_changes(changes))


def measured_sections(
    experiment: Experiment, steps: int | None, seeds: int, say: Callable[[str], None]
) -> tuple[list[str], list[Section], dict[str, Any]]:
    """Train by a recipe's first steps, and measure; return introduction, sections, and the setting."""
    sizes = Sizes() if steps is None else replace(Sizes(), steps=steps)
    model, task, settings = experiment.model, experiment.task, experiment.settings
    total = min(sizes.steps, settings.training.steps)
    start = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}

    def run(changes: Mapping[str, Any], seed: int = 0) -> Iterator[GradientStep]:
        model.load_state_dict(start, strict=False)
        return private_gradients(experiment, steps=sizes.steps, seed=seed, changes=changes)

    spikes, losses, alignment = list[Spike](), list[float](), list[list[AlignmentStep]]()
    strongest, alarms = list[LayerSpectra](), list[LayerSpectra]()
    for seed in range(seeds):
        alignment.append([])
        for step in run({}, seed):
            say(f"measuring step {step.number + 1} of {total}, run {seed + 1} of {seeds}")
            alignment[seed].append(measure_alignment(step, exclude=settings.denoising.exclude))
            if seed > 0:
                continue
            losses.append(step.loss)
            found = measure_spikes(
                step, draws=sizes.noise_draws, noise_scales=(1.0, 0.5, 0.25, 0.125, 0.0625), seed=step.number
            )
            spikes += found
            # Also of layers that the recipe keeps from denoising.
            own = sorted((spike for spike in found if spike.noise_scale == 1), key=_weakness)
            strongest += measure_spectra(step, [spike.layer for spike in own[:3]])
            called = [spike.layer for spike in own if spike.called and spike.signal_over_threshold <= 1]
            alarms += [entry for entry in measure_spectra(step, called) if entry.verdict == "false alarm"]
    best = {entry.layer: entry for entry in sorted(strongest, key=_weakness, reverse=True)}  # of each layer, one step
    strongest = sorted(best.values(), key=_weakness)[:3]
    alarms = sorted(alarms, key=lambda entry: -entry.top_over_edge)[:1]
    say("measuring norms")
    samples = min(sizes.samples, task.size)
    norms = measure_norm_ratios(model, task, samples=samples, draws=sizes.probe_draws, probes=sizes.probes)
    say("training without noise")
    plain: dict[str, Any] = {"denoising": {"method": "none"}}
    clipped = {**plain, "privacy.noise_multiplier": None, "privacy.clip_only": True}
    courses = {
        "clipping and noise": losses,
        "clipping alone": [step.loss for step in run(clipped)],
        "neither": [step.loss for step in run({**clipped, "privacy.clipping_norm": 1e9})],  # which clips nothing
    }
    say("reading telemetry")
    telemetry, lines = {"on": True, "every": 1, "window": max(2, total)}, list[dict[str, Any]]()

    def read() -> Iterator[GradientStep]:
        for step in run({**plain, "telemetry": telemetry}):
            lines.append({"step": step.number + 1, "telemetry": step.telemetry})
            yield step

    truth = signal_shares(read())
    if settings.optimizer.name == "grape":
        truth = {}  # DP-GRAPE's gradients are not whole: they have no true values
    sections = [
        *theory_sections(spikes),
        spectra_section(strongest, alarms, spikes),
        improvement_section(alignment),
        kappa_section([step for run in alignment for step in run]),
        course_section(courses),
        norm_section(norms),
        *telemetry_sections(lines, truth),
    ]
    return [_setting_sentence(experiment, spikes)], sections, {"setting": settings.to_dict() | {"seeds": seeds}}


def _setting_sentence(experiment: Experiment, spikes: list[Spike]) -> str:
    privacy, training = experiment.settings.privacy, experiment.settings.training
    shapes = ", ".join(f"{m} × {n}" for m, n in sorted({spike.shape for spike in spikes}))
    steps, layers = (len({getattr(spike, name) for spike in spikes}) for name in ("step", "layer"))
    return (
        f"Recipe {experiment.name}: the first {steps} of its {training.steps} steps of DP-SGD on"
        f" {experiment.task.size} training items, expected batch {training.batch_size}, clipping norm"
        f" {privacy.clipping_norm:g}, noise multiplier {privacy.noise_multiplier:.3f}, with denoising. Measured on"
        f" {matrices(layers)} of shapes {shapes} at each step."
    )
