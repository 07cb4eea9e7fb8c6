"""Steps of private training at which the noisy gradient is denoised aside and compared with the clean one.

The probe looks when the optimizer is about to move: the noise was added, and the clean sum is not cleared yet.
Training continues with the noisy gradient. What it sees of the clean one is private; the data here are public.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from dprmt.spectra import (
    bulk_edge,
    cosine_similarity,
    denoise,
    denoise_layers,
    detection_threshold,
    layer_improvements,
    spike_map,
)
from dprmt.training.denoising import Denoising, DenoisingEvaluation, DenoisingStep
from dprmt.training.denoising._options import matches
from dprmt.training.harness import Observer, StepRecord, run_in_memory
from dprmt.training.recipes import Recipe

KAPPAS = (1.01, 1.02, 1.05, 1.1)
Gradients = Mapping[str, torch.Tensor]


class Probe(Observer):
    """Writes down, for every step, how denoising would have changed its gradient, and what it costs."""

    def __init__(self, exclude: tuple[str, ...]) -> None:
        self._exclude = exclude
        self.steps: list[dict[str, Any]] = []
        self._began = 0.0

    def start(self, run: Any) -> None:
        """Stand between noise and optimizer."""
        self._step = DenoisingStep(run.noised, run.parameters, Denoising(method="none"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that what follows is private
            self._clean = DenoisingEvaluation(self._step)
        self._step.observers[self] = self._look

    def before_step(self, run: Any, step: int) -> None:
        """Start the clock."""
        self._began = time.process_time()

    def after_step(self, run: Any, record: StepRecord) -> None:
        """Stop it, without the time that was spent looking."""
        self.steps[-1]["seconds"]["step"] = time.process_time() - self._began - self.steps[-1]["seconds"].pop("looking")

    def end(self, run: Any) -> None:
        """Go away."""
        self._step.detach()

    def _look(self, noisy: Gradients, untouched: Gradients, sigma: float) -> None:
        started = time.process_time()
        clean = self._clean.private_clean_gradients()
        heads = {name for name in clean if matches(name, self._exclude)}
        seen: dict[str, Any] = {
            "noisy": cosine_similarity(noisy, clean),
            "improvement": {f"{kappa:g}": self._improvements(noisy, clean, sigma, kappa) for kappa in KAPPAS},
            "layers": self._layers(noisy, clean, sigma),
            "spectra": [
                {"denoised": name not in heads, **_spectrum(clean[name], noisy[name], sigma)}
                for name in clean
                if _is_seen(clean[name])
            ],
            "seconds": _costs(noisy, sigma),
        }
        seen["shown"] = _shown(clean, noisy, sigma)
        self.steps.append(seen)
        seen["seconds"]["looking"] = time.process_time() - started

    def _improvements(self, noisy: Gradients, clean: Gradients, sigma: float, kappa: float) -> list[float]:
        # With and without norm correction.
        before = cosine_similarity(noisy, clean)
        found = []
        for method in ("paper", "shrink"):
            denoised, _ = Denoising(method, kappa=kappa, exclude=self._exclude).apply(noisy, sigma)
            found.append(cosine_similarity(denoised, clean) - before)
        return found

    def _layers(self, noisy: Gradients, clean: Gradients, sigma: float) -> list[list[Any]]:
        # m, n, λ₁ over the bulk edge, and what denoising it does to its cosine, for each matrix with λ₁ above the edge.
        denoised, report = Denoising("paper", kappa=1.0, exclude=self._exclude).apply(noisy, sigma)
        gains = layer_improvements(denoised, noisy, clean)
        return [
            [*report[name].shape, report[name].top_over_edge, gains[name]] for name in report if report[name].denoised
        ]


def _is_seen(clean: torch.Tensor) -> bool:
    # A LoRA factor whose partner is still zero has no gradient.
    return clean.ndim == 2 and bool(clean.any())


LOUD = 2.5
"""Signal over the detection threshold where noise is made small enough for one."""


def _quieter(clean: torch.Tensor) -> tuple[float, torch.Tensor]:
    """σ at which the largest singular value is LOUD thresholds, and the matrix with noise of that σ."""
    generator = torch.Generator().manual_seed(int(clean.shape[0]))
    sigma = float(torch.linalg.matrix_norm(clean, 2)) / (LOUD * clean.numel() ** 0.25)
    return sigma, clean + sigma * torch.randn(clean.shape, generator=generator)


def _spectrum(clean: torch.Tensor, noisy: torch.Tensor, sigma: float) -> dict[str, float]:
    """Largest singular values over what theory says of them, and entropies; of the run's noise, and of less."""
    top, shape = float(torch.linalg.matrix_norm(clean, 2)), tuple(clean.shape)
    threshold = detection_threshold(shape, sigma)
    expected = float(spike_map(top, shape, sigma)) if top > threshold else bulk_edge(shape, sigma)
    quiet, heard = _quieter(clean)
    matrices = {"clean": clean, "noisy": noisy, "heard": heard, "denoised": denoise(heard, quiet, 1.02, method="paper")}
    return {
        "signal": top / threshold,
        "top": float(torch.linalg.matrix_norm(noisy, 2)) / expected,
        "top heard": float(torch.linalg.matrix_norm(heard, 2)) / float(spike_map(top, shape, quiet)),
        **{f"entropy {name}": spectral_entropy(matrix) for name, matrix in matrices.items()},
    }


def spectral_entropy(matrix: torch.Tensor) -> float:
    """Entropy, in nats, of the squared singular values as shares of their sum; at most log of the smaller side."""
    shares = torch.linalg.svdvals(matrix.double()).square()
    shares = shares[shares > 0] / shares.sum()
    return float(-(shares * shares.log()).sum())


def _shown(clean: Gradients, noisy: Gradients, sigma: float) -> dict[str, Any]:
    # Of the layer with the strongest signal, for a picture.
    seen = {name: matrix for name, matrix in clean.items() if _is_seen(matrix)}
    strength = {n: float(torch.linalg.matrix_norm(m, 2)) / m.numel() ** 0.25 for n, m in seen.items()}
    name = max(strength, key=lambda n: strength[n])
    quiet, heard = _quieter(seen[name])
    unscaled = denoise(heard, quiet, 1.02, below_gate="unchanged")
    matrices = {"clean": seen[name], "noisy": noisy[name], "heard": heard, "denoised": unscaled}
    values = {key: torch.linalg.svdvals(matrix).tolist() for key, matrix in matrices.items()}
    return {"layer": name, "shape": list(seen[name].shape), "sigma": sigma, "quiet": quiet, **values}


def _costs(noisy: Gradients, sigma: float) -> dict[str, float]:
    # One matrix after another, and those of equal shape together.
    matrices = {name: matrix for name, matrix in noisy.items() if matrix.ndim == 2}
    began = time.process_time()
    for name, matrix in matrices.items():
        denoise_layers({name: matrix}, sigma, 1.02, method="paper")
    middle = time.process_time()
    denoise_layers(matrices, sigma, 1.02, method="paper")
    return {"one by one": middle - began, "batched": time.process_time() - middle}


def probed_steps(recipe: Recipe, seed: int, first: int | None = None) -> list[dict[str, Any]]:
    """What the probe sees at every step of a run of the recipe, without evaluation.

    ``first``: of so many steps alone, with the noise of them all.
    """
    from dprmt.training.harness._recipe import RecipeTask

    recipe = recipe.with_changes({"denoising.method": "none", "training.seed": seed, "evaluation.every": None})
    probe = Probe(tuple(recipe.denoising.exclude))
    task, tokens = RecipeTask(recipe, torch.device("cpu")), recipe.data.max_tokens
    with run_in_memory(task.model, task, recipe, noise_seed=seed, tokens=tokens, observers=[probe]) as run:
        for record in run.steps():
            if record.step == first:
                break
    return probe.steps
