"""Time of the denoiser against a full SVD with the same shrinkage, as ratios within one run on one thread.

Errors are relative to the same computation in float64. Next to the bulk edge the shrinkage of a singular value
amplifies its error, so that the float32 SVD is not always the more accurate one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from dprmt.spectra import MarchenkoPastur, denoise_layers, kappa_for, shrink

SIGMA = 0.01
REPEATS = 9


@dataclass(frozen=True)
class Case:
    """Matrices of one shape, and the largest share of the SVD's time that the denoiser may take."""

    name: str
    count: int
    shape: tuple[int, int]
    signals: tuple[float, ...]
    """Singular values of the clean matrices, in units of the bulk edge."""
    limit: float


CASES = (
    Case("144 LoRA layers", 144, (16, 768), (2.0, 1.2, 0.8), limit=0.2),
    Case("dense layer, 3 spikes", 1, (768, 3072), (3.0, 2.0, 1.3), limit=0.1),
    Case("dense layer, noise", 1, (768, 3072), (), limit=0.1),
    Case("dense layer, 60 spikes", 1, (768, 3072), tuple(np.linspace(3.0, 1.2, 60)), limit=0.4),
    Case("square, 3 spikes", 1, (512, 512), (3.0, 2.0, 1.3), limit=0.5),
    Case("square, 200 spikes", 1, (512, 512), tuple(np.linspace(3.0, 1.2, 200)), limit=1.1),
    Case("square, all spikes", 1, (600, 600), tuple(np.linspace(5.0, 2.0, 600)), limit=1.1),
    Case("square, far spikes", 1, (512, 512), tuple(np.linspace(50.0, 12.0, 200)), limit=1.1),
    Case("small square", 1, (300, 300), tuple(np.linspace(3.0, 1.2, 100)), limit=1.1),
)


def noisy_layers(case: Case) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    m, n = case.shape
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    signal = torch.tensor(case.signals, dtype=torch.float32) * (m**0.5 + n**0.5)
    layers = {}
    for i in range(case.count):
        left, right = (torch.linalg.qr(draw(side, len(case.signals)))[0] for side in case.shape)
        layers[f"layer{i}"] = SIGMA * (left * signal @ right.T + draw(m, n))
    return layers


def denoise_by_svd(layers: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    stack = torch.stack(list(layers.values()))
    m, n = stack.shape[-2:]
    U, s, Vh = torch.linalg.svd(stack, full_matrices=False)
    shrunk = shrink(s, (m, n), SIGMA)
    passed = s[:, 0] >= 1.02 * SIGMA * (m**0.5 + n**0.5)
    scale = torch.linalg.vector_norm(stack, dim=(-2, -1)) / torch.linalg.vector_norm(shrunk, dim=-1)
    denoised = (U * (shrunk * scale[:, None])[:, None, :]) @ Vh
    return dict(zip(layers, torch.where(passed[:, None, None], denoised, stack), strict=True))


def best_times(*functions: Callable[[], object]) -> list[float]:
    """Least wall time of each, in seconds; interleaved, so that a busy spell hits all of them."""
    best = [float("inf")] * len(functions)
    for _ in range(REPEATS):
        for i, function in enumerate(functions):
            start = time.perf_counter()
            function()
            best[i] = min(best[i], time.perf_counter() - start)
    return best


def largest_error(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    norm = torch.linalg.vector_norm
    return max(float(norm(actual[name] - layer) / norm(layer)) for name, layer in expected.items())


def measure(case: Case) -> str:
    layers = noisy_layers(case)
    exact = denoise_by_svd({name: layer.double() for name, layer in layers.items()})
    error = largest_error(denoise_layers(layers, SIGMA)[0], exact)
    svd_error = largest_error(denoise_by_svd(layers), exact)
    svd, ours = best_times(lambda: denoise_by_svd(layers), lambda: denoise_layers(layers, SIGMA))
    verdict = "" if ours <= case.limit * svd and error <= 1e-5 else "  <- over the limit"
    shape = f"{case.count} x {case.shape[0]}x{case.shape[1]}"
    times = f"{1e3 * svd:8.1f} {1e3 * ours:7.1f} {ours / svd:6.3f} {case.limit:6.2f}"
    return f"{case.name:22} {shape:>14} {times} {error:8.1e} {svd_error:9.1e}{verdict}"


def measure_laws() -> None:
    """Print the time of what a gate and a histogram of singular values need, in milliseconds."""
    points = np.random.default_rng(0).random(10**6)
    law = MarchenkoPastur((768, 3072), sigma=1.0)
    values = law.ppf(points)
    kappa_for((767, 3071), 1e-3)  # libraries loaded
    work = {
        "kappa_for, first call, 768x3072": (lambda: kappa_for((768, 3072), 1e-3), 200),
        "Marchenko-Pastur cdf, 1e6 points": (lambda: law.cdf(values), 100),
        "Marchenko-Pastur ppf, 1e6 points": (lambda: law.ppf(points), 300),
    }
    print(f"\n{'one thread, CPU time':34} {'ms':>7} {'limit':>6}")
    for name, (function, limit) in work.items():
        start = time.process_time()
        function()
        spent = 1e3 * (time.process_time() - start)
        print(f"{name:34} {spent:7.1f} {limit:6d}{'' if spent <= limit else '  <- over the limit'}")


def main() -> None:
    """Print one line per case."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    columns = f"{'shape':>14} {'SVD ms':>8} {'ms':>7} {'ratio':>6} {'limit':>6} {'error':>8} {'SVD error':>9}"
    print(f"{'float32, one thread':22} {columns}")
    for case in CASES:
        print(measure(case))
    measure_laws()
    torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
