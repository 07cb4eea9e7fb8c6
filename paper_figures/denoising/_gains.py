"""What maps of a noisy gradient gain in one step, predicted and measured, for matrices of a pretrained model.

A map d of the released gradient Y = g + σW decreases a quadratic by ``D(d) = ½(E⟨g, d⟩)²/E dᵀHd`` at its best rate
(`docs/theory/when_denoising_helps.md`). g and H, the Gauss-Newton matrix of the mean loss, are those of a batch of
public texts; every dᵀHd is a product with the real H, by forward differentiation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from dprmt.spectra import (
    bulk_edge,
    denoise,
    detection_threshold,
    momentum_noise_scale,
    shrink,
    spike_map,
    vector_overlaps,
)
from paper_figures._verdict import Interval, mean_interval
from paper_figures.shrinkers import blend

STRENGTHS = (0.7, 2.0)
"""λ₁ of g over the detection threshold of a gradient's noise."""
DRAWS = 10
VARIANTS = ("noisy", "gate", "blend", "momentum", "momentum gate", "momentum blend")
MOMENTUM = momentum_noise_scale(0.9, 10_000)
"""Noise of a steady momentum over that of a gradient; the clean gradient is taken to stay."""
_DIRECTIONS, _PROBES, _GATE = 3, 8, 1.02

Products = Callable[[torch.Tensor], tuple[float, torch.Tensor]]


class Curvature:
    """Gradient of the mean loss by one matrix, and products with its Gauss-Newton matrix.

    ``logits``: of all samples, a function of the matrix.
    """

    def __init__(self, logits: Callable[[torch.Tensor], torch.Tensor], weight: torch.Tensor, labels: torch.Tensor):
        self._logits, self._weight = logits, weight.detach()
        point = self._weight.clone().requires_grad_()
        out = logits(point)
        (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(out, labels), point)
        self.gradient, self._p = gradient.detach(), out.detach().softmax(-1).double()

    def along(self, direction: torch.Tensor) -> float:
        """dᵀHd, the mean over samples of uᵀ(diag p - ppᵀ)u, u what the logits change along d."""
        _, change = torch.func.jvp(self._logits, (self._weight,), (direction.to(self._weight),))
        u = change.detach().double()
        return float(((self._p * u * u).sum(-1) - (self._p * u).sum(-1) ** 2).clamp_min(0).mean())


def around(curvature: Curvature, seed: int = 1) -> dict[str, Any]:
    """The gradient's largest singular values, and curvatures along and around their vectors."""
    u, s, vh = torch.linalg.svd(curvature.gradient.double(), full_matrices=False)
    generator = torch.Generator().manual_seed(seed)
    count = min(_DIRECTIONS, len(s))
    return {
        "singular": s[:count].tolist(),
        "directions": [_around(curvature, u[:, k], vh[k], generator) for k in range(count)],
    }


def measured(curvature: Curvature, strength: float, seed: int = 0, draws: int = DRAWS) -> dict[str, Any]:
    """⟨g, d⟩, ‖d‖² and dᵀHd of every variant and draw, at noise that puts λ₁ at so much of the threshold."""
    g = curvature.gradient.double()
    shape = (int(g.shape[0]), int(g.shape[1]))
    sigma = float(torch.linalg.matrix_norm(g, 2)) / (strength * detection_threshold(shape, 1.0))
    generator = torch.Generator().manual_seed(seed)
    values: dict[str, list[list[float]]] = {name: [] for name in VARIANTS}
    traces = []
    for _ in range(draws):
        noise = torch.randn(g.shape, generator=generator, dtype=torch.float64)
        traces.append(curvature.along(noise))
        for prefix, level in (("", sigma), ("momentum ", MOMENTUM * sigma)):
            y = g + level * noise
            for name, d in (
                (prefix.strip() or "noisy", y),
                (f"{prefix}gate", denoise(y, level, _GATE, below_gate="unchanged")),
                (f"{prefix}blend", blend(y, level)),
            ):
                values[name].append([float((g * d).sum()), float(d.square().sum()), curvature.along(d)])
    return {
        "shape": list(shape),
        "sigma": sigma,
        "square": float(g.square().sum()),
        "along": curvature.along(g),
        "traces": traces,
        "values": values,
    }


def _around(curvature: Curvature, u: torch.Tensor, v: torch.Tensor, generator: torch.Generator) -> list[float]:
    # Curvature along uvᵀ, and its means over uxᵀ and xvᵀ with random x of length 1.
    def drawn(length: int) -> torch.Tensor:
        return torch.nn.functional.normalize(torch.randn(length, generator=generator, dtype=torch.float64), dim=0)

    left = [curvature.along(torch.outer(u, drawn(len(v)))) for _ in range(_PROBES)]
    right = [curvature.along(torch.outer(drawn(len(u)), v)) for _ in range(_PROBES)]
    return [curvature.along(torch.outer(u, v)), float(np.mean(left)), float(np.mean(right))]


def rho(found: Mapping[str, Any]) -> float:
    """σ² tr H / gᵀHg."""
    return float(found["sigma"] ** 2 * np.mean(found["traces"]) / found["along"])


def gains(found: Mapping[str, Any]) -> dict[str, Interval]:
    """Each variant's D over the noisy gradient's: Student's 95 % intervals, jackknifed over draws on a log scale."""
    return {name: _gain(found, name) for name in VARIANTS if name != "noisy"}


def gain(found: Mapping[str, Any], variant: str, of: Sequence[int] | slice = slice(None)) -> float:
    """D of a variant over that of the noisy gradient, whose first-order term is exact, from these draws.

    ⟨g, W⟩ and gᵀHW have the mean 0: what of ⟨g, d⟩ and dᵀHd is linear in them is taken out, by least squares.
    """
    inner, _, curved = np.array(found["values"][variant])[of].T
    of_noisy, _, noisy_curved = np.array(found["values"]["noisy"])[of].T
    spread = found["sigma"] ** 2 * np.array(found["traces"])[of]
    inner = _without(inner, of_noisy - found["square"])
    curved = _without(curved, noisy_curved - found["along"] - spread)
    noisy = found["along"] + spread.mean()
    if inner.mean() <= 0:
        return 0.0
    return float(inner.mean() ** 2 / curved.mean() * noisy / found["square"] ** 2)


def _without(values: np.ndarray, control: np.ndarray) -> np.ndarray:
    centred = control - control.mean()
    adjusted: np.ndarray = values - (values @ centred) / (centred @ centred) * control
    return adjusted


def _gain(found: Mapping[str, Any], variant: str) -> Interval:
    count = len(found["traces"])
    whole = math.log(gain(found, variant))
    without = [math.log(gain(found, variant, [i for i in range(count) if i != k])) for k in range(count)]
    pseudo = [count * whole - (count - 1) * value for value in without]
    interval = mean_interval(pseudo)
    return Interval(math.exp(interval.low), math.exp(interval.high))


def predicted_by_cosine(found: Mapping[str, Any], variant: str) -> float:
    """What the cosines say: the gain if curvature were the same in all directions."""
    inner, square, _ = np.array(found["values"][variant]).mean(0)
    noisy = found["square"] + found["sigma"] ** 2 * math.prod(found["shape"])
    return float(inner**2 / square * noisy / found["square"] ** 2)


def predicted(found: Mapping[str, Any], variant: str) -> float | None:
    """What theory says before any draw; None for blends, of which it says nothing.

    A momentum's noise is smaller, by (3): (1 + ρ)/(1 + ρ s²). What passes the gate has the sizes of the shrinker and
    the overlaps of Eqs. 4-6, its strayed part the mean curvatures around its directions.
    """
    level = MOMENTUM if variant.startswith("momentum") else 1.0
    ρ = rho(found)
    plain = (1 + ρ) / (1 + ρ * level**2)
    if variant in ("noisy", "momentum"):
        return plain
    if variant.endswith("blend"):
        return None
    return _gated(found, found["expected"]["momentum" if variant.startswith("momentum") else "gradient"]) or plain


def _gated(found: Mapping[str, Any], expected: Mapping[str, Any] | None) -> float | None:
    # What passes, by its mean, with all products between its parts, and what strays around each of them.
    if expected is None:
        return None
    mean = np.mean(found["traces"]) / math.prod(found["shape"])
    curved = expected["curved"]
    for k, (of_left, of_right, of_none) in enumerate(expected["strayed"]):
        # Of the directions that were not looked around, as of the last one that was.
        _, left, right = found["directions"][min(k, len(found["directions"]) - 1)]
        curved += of_left * left + of_right * right + of_none * mean
    noisy = found["along"] * (1 + rho(found))
    return float(expected["inner"] ** 2 / curved * noisy / found["square"] ** 2)


def expected(curvature: Curvature, strength: float) -> dict[str, Any]:
    """What theory expects to pass the gate of a gradient and of a momentum, with the curvature along its mean."""
    g = curvature.gradient.double()
    shape = (int(g.shape[0]), int(g.shape[1]))
    parts = torch.linalg.svd(g, full_matrices=False)
    sigma = float(parts.S[0]) / (strength * detection_threshold(shape, 1.0))
    return {"gradient": _passing(curvature, parts, sigma), "momentum": _passing(curvature, parts, MOMENTUM * sigma)}


def _passing(curvature: Curvature, parts: Any, sigma: float) -> dict[str, Any] | None:
    shape = (len(parts.U), parts.Vh.shape[1])
    if spike_map(float(parts.S[0]), shape, sigma) < _GATE * bulk_edge(shape, sigma):
        return None
    threshold = detection_threshold(shape, sigma)
    values = parts.S[threshold < parts.S].numpy()
    observed = spike_map(values, shape, sigma)
    sizes = shrink(observed, shape, sigma)
    left, right = vector_overlaps(values, shape, sigma)
    weights = torch.from_numpy(sizes * np.sqrt(left * right))
    mean = (parts.U[:, : len(values)] * weights) @ parts.Vh[: len(values)]
    strayed = np.stack([left * (1 - right), (1 - left) * right, (1 - left) * (1 - right)], 1) * sizes[:, None] ** 2
    return {"inner": float(weights.numpy() @ values), "curved": curvature.along(mean), "strayed": strayed.tolist()}
