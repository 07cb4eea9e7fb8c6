"""Time of the denoiser against a full SVD with the same shrinkage, as ratios within one run on one thread.

    python -m benchmarks.denoiser                                               # some minutes
    python -m benchmarks.denoiser --results benchmarks/results/spectra.json
    python -m benchmarks.denoiser --memory --results benchmarks/results/spectra.json     # its times and peaks anew

Errors are relative to the same computation in float64. Next to the bulk edge the shrinkage of a singular value
amplifies its error, so that the float32 SVD is not always the more accurate one. Large matrices are denoised by the way
that certifies that nothing was missed, next to the product YYᵀ alone and scipy's PROPACK for three triplets, which
certifies nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import svds

from audits.table import markdown
from dprmt.spectra import MarchenkoPastur, denoise, denoise_layers, kappa_for, shrink, spectra_of

SIGMA = 0.01
REPEATS = 10


@dataclass(frozen=True)
class Case:
    """Matrices of one shape, and the largest share of the SVD's time that the denoiser may take."""

    name: str
    count: int
    shape: tuple[int, int]
    signals: tuple[float, ...]
    """Singular values of the clean matrices, in units of the bulk edge."""
    limit: float
    library: str = "torch"


_TORCH = (
    Case("144 LoRA layers", 144, (16, 768), (2.0, 1.2, 0.8), limit=0.2),
    Case("dense layer, 3 spikes", 1, (768, 3072), (3.0, 2.0, 1.3), limit=0.1),
    Case("dense layer, noise", 1, (768, 3072), (), limit=0.1),
    Case("dense layer, 60 spikes", 1, (768, 3072), tuple(np.linspace(3.0, 1.2, 60)), limit=0.4),
    Case("square, 3 spikes", 1, (512, 512), (3.0, 2.0, 1.3), limit=0.5),
    Case("square, 30 spikes", 1, (512, 512), tuple(np.linspace(3.0, 1.2, 30)), limit=1.1),
    Case("square, 200 spikes", 1, (512, 512), tuple(np.linspace(3.0, 1.2, 200)), limit=1.1),
    Case("square, all spikes", 1, (600, 600), tuple(np.linspace(5.0, 2.0, 600)), limit=1.1),
    Case("square, far spikes", 1, (512, 512), tuple(np.linspace(50.0, 12.0, 200)), limit=1.1),
    Case("small square", 1, (300, 300), tuple(np.linspace(3.0, 1.2, 100)), limit=1.1),
)
CASES = (*_TORCH, *(replace(case, library="numpy") for case in _TORCH[6:]))
LARGE = (
    Case("dense layer, 3 spikes", 1, (768, 3072), (3.0, 2.0, 1.3), limit=1.0),
    Case("dense layer, noise", 1, (768, 3072), (), limit=1.0),
    Case("large, 3 spikes", 1, (4096, 4096), (3.0, 2.0, 1.3), limit=1.0),
    Case("large, noise", 1, (4096, 4096), (), limit=1.0),
    Case("larger, 3 spikes", 1, (8192, 8192), (3.0, 2.0, 1.3), limit=1.0),
)
_FEW_KINDS_FROM, _ONE_KIND_FROM = 4000, 8000  # such matrices take seconds each, and tens of seconds
KINDS = ("torch", "float32"), ("torch", "float64"), ("numpy", "float32"), ("numpy", "float64")

Layers = dict[str, Any]


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


def denoise_by_svd(layers: Layers) -> Layers:
    """The whole decomposition and what `denoise_layers` does with it; numpy's for arrays."""
    torch_layers = isinstance(next(iter(layers.values())), torch.Tensor)
    xp: Any = torch if torch_layers else np
    stack = xp.stack(list(layers.values()))
    m, n = stack.shape[-2:]
    U, s, Vh = xp.linalg.svd(stack, full_matrices=False)
    shrunk = shrink(s, (m, n), SIGMA)
    passed = s[:, 0] >= 1.02 * SIGMA * (m**0.5 + n**0.5)
    norms = xp.linalg.norm(stack.reshape(len(stack), -1), None, -1)
    scale = norms / xp.linalg.norm(shrunk, None, -1)
    denoised = (U * (shrunk * scale[:, None])[:, None, :]) @ Vh
    return dict(zip(layers, xp.where(passed[:, None, None], denoised, stack), strict=True))


def best_times(*functions: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    """Least CPU time of each, in seconds; interleaved, so that a busy spell hits all of them."""
    best = [float("inf")] * len(functions)
    for _ in range(repeats):
        for i, function in enumerate(functions):
            start = time.process_time()
            function()
            best[i] = min(best[i], time.process_time() - start)
    return best


def largest_error(actual: Layers, expected: Layers) -> float:
    """Relative, in Frobenius norm."""
    pairs = [(np.asarray(actual[name], dtype=np.float64), np.asarray(layer)) for name, layer in expected.items()]
    return max(float(np.linalg.norm(one - other) / np.linalg.norm(other)) for one, other in pairs)


def measure(case: Case) -> dict[str, Any]:
    """Times and errors, ours and a full decomposition's."""
    tensors = noisy_layers(case)
    layers = tensors if case.library == "torch" else {name: layer.numpy() for name, layer in tensors.items()}
    exact = denoise_by_svd({name: layer.double() for name, layer in tensors.items()})
    answer = denoise_layers(layers, SIGMA, method="paper")[0]
    svd, ours = best_times(lambda: denoise_by_svd(layers), lambda: denoise_layers(layers, SIGMA, method="paper"))
    return asdict(case) | {
        "signals": len(case.signals),
        "svd_ms": 1e3 * svd,
        "ms": 1e3 * ours,
        "error": largest_error(answer, exact),
        "svd_error": largest_error(denoise_by_svd(layers), exact),
    }


def measure_large(case: Case, library: str, dtype: str) -> dict[str, Any]:
    """Both certified ways, against the product alone, and three triplets without a certificate."""
    tensor = noisy_layers(case)["layer0"].to(getattr(torch, dtype))
    matrix: Any = tensor if library == "torch" else tensor.numpy()
    work: dict[str, Callable[[], object]] = {
        "product": lambda: matrix @ matrix.T,
        "lanczos": lambda: denoise(matrix, SIGMA, method="paper", backend="lanczos"),
        "products": lambda: denoise(matrix, SIGMA, method="paper", backend="products"),
    }
    if case.signals:
        work["propack"] = lambda: svds(tensor.numpy(), k=3, solver="propack", maxiter=200)
    seconds = dict(zip(work, best_times(*work.values(), repeats=2 if max(case.shape) > 4000 else 5), strict=True))
    about = {"name": case.name, "shape": case.shape, "library": library, "dtype": dtype}
    return about | {name: 1e3 * value for name, value in seconds.items()}


MEMORY_SHAPES = (1024, 1024), (768, 3072), (4096, 1024), (2048, 2048), (8192, 8192)
WAYS = {
    "svd": "`torch.linalg.svd`, thin",
    "numpy_svd": "`numpy.linalg.svd`",
    "spectra_of": "`spectra_of`",
    "spectra_of_eight": "`spectra_of`, 8 such",
    "minus": "`spectra_of(minus=)`",
    "denoise": "`denoise`",
    "denoise_by_gram": "`denoise`, by YYᵀ",
}
_SVD_TAKES_MINUTES = 4096  # shorter side


def measure_memory(shape: tuple[int, int], way: str) -> dict[str, Any]:
    """CPU milliseconds of one call on a float32 matrix with three spikes, and by how many MiB it raises the peak."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(*shape, generator=generator).mul_(SIGMA)
    for strength in (3.0, 2.0, 1.3):  # in place: temporary arrays would raise the peak that is compared with
        left, right = (torch.randn(side, generator=generator) for side in shape)
        size = SIGMA * strength * (shape[0] ** 0.5 + shape[1] ** 0.5) / float(left.norm() * right.norm())
        matrix.addr_(left, right, alpha=size)
    array, half = matrix.numpy(), np.ones((8, 8), np.float32)
    eight = {f"layer{i}": array for i in range(8)}
    before = {"layer0": np.zeros(shape, np.float32)} if way == "minus" else None
    work: dict[str, Callable[[], object]] = {
        "svd": lambda: torch.linalg.svd(matrix, full_matrices=False),
        "numpy_svd": lambda: np.linalg.svd(array),
        "denoise": lambda: denoise(matrix, SIGMA),
        "denoise_by_gram": lambda: denoise(matrix, SIGMA, backend="lanczos"),
        "spectra_of": lambda: spectra_of({"layer0": array}, SIGMA),
        "spectra_of_eight": lambda: spectra_of(eight, SIGMA),
        "minus": lambda: spectra_of({"layer0": array}, SIGMA, minus=before),
    }
    spectra_of({"small": half}, SIGMA), np.linalg.svd(half), torch.linalg.svd(torch.ones(8, 8))  # libraries loaded
    peak, start = _peak_kib(), time.process_time()
    work[way]()
    grown = _peak_kib() - peak
    return {"ms": 1e3 * (time.process_time() - start), "mib": grown / 1024}


def _peak_kib() -> int:
    """Peak memory of this process; ``ru_maxrss`` would keep that of the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def memory_rows() -> list[dict[str, Any]]:
    """Each way in a process of its own, whose peak it is."""
    rows = []
    for shape in MEMORY_SHAPES:
        large = min(shape) > _SVD_TAKES_MINUTES
        row: dict[str, Any] = {"shape": shape}
        for way in WAYS:
            if large and way in ("numpy_svd", "spectra_of_eight", "minus"):
                continue
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                row[way] = pool.submit(measure_memory, shape, way).result()
        rows.append(row)
    return rows


def measure_laws() -> list[dict[str, Any]]:
    """CPU milliseconds of what a gate and a histogram of singular values need."""
    points = np.random.default_rng(0).random(10**6)
    law = MarchenkoPastur((768, 3072), sigma=1.0)
    values = law.ppf(points)
    kappa_for((767, 3071), 1e-3)  # libraries loaded
    work: dict[str, tuple[Callable[[], object], int]] = {
        "kappa_for, first call, 768x3072": (lambda: kappa_for((768, 3072), 1e-3), 200),
        "Marchenko-Pastur cdf, 1e6 points": (lambda: law.cdf(values), 100),
        "Marchenko-Pastur ppf, 1e6 points": (lambda: law.ppf(points), 300),
    }
    rows = []
    for name, (function, limit) in work.items():
        (seconds,) = best_times(function, repeats=1 if "first" in name else 5)
        rows.append({"name": name, "ms": 1e3 * seconds, "limit": limit})
    return rows


def large_rows() -> list[dict[str, Any]]:
    """Rows of the second table; the larger the matrix, the fewer libraries and types."""
    few = {case: (max(case.shape) >= _FEW_KINDS_FROM) + (max(case.shape) >= _ONE_KIND_FROM) for case in LARGE}
    return [measure_large(case, *kind) for case in LARGE for kind in KINDS[: (4, 2, 1)[few[case]]]]


def tables(rows: dict[str, Any]) -> str:
    """In Markdown."""
    return "\n".join((_denoiser(rows["denoiser"]), _large(rows["large"]), _memory(rows["memory"]), _laws(rows["laws"])))


def _denoiser(rows: list[dict[str, Any]]) -> str:
    head = ["denoiser, float32", "shape", "SVD ms", "ours ms", "ours / SVD", "wanted", "error", "of the SVD"]
    lines = []
    for row in rows:
        ratio, shape = row["ms"] / row["svd_ms"], f"{row['count']} × {row['shape'][0]} × {row['shape'][1]}"
        times = [f"{row['svd_ms']:.1f}", f"{row['ms']:.1f}", f"{ratio:.2f}", _met(ratio, row["limit"])]
        errors = [f"{row[name]:.0e}" for name in ("error", "svd_error")]
        lines.append([f"{row['name']}, {row['library']}", shape, *times, *errors])
    return markdown(head, lines)


def _large(rows: list[dict[str, Any]]) -> str:
    head = ["few spikes", "shape", "YYᵀ alone, ms", "`lanczos`: on YYᵀ, exact proof, ms"]
    head += ["`products`: Y alone, proof up to 1e-12, ms", "PROPACK, 3 triplets, no proof, ms"]
    lines = []
    for row in rows:
        about = [f"{row['name']}, {row['library']} {row['dtype']}", f"{row['shape'][0]} × {row['shape'][1]}"]
        ways = ("product", "lanczos", "products", "propack")
        lines.append(about + [f"{row[way]:.0f}" if way in row else "–" for way in ways])
    return markdown(head, lines)


def _memory(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        cells = [f"{row[way]['ms'] / 1e3:.2f} s, {row[way]['mib']:.0f} MiB" if way in row else "–" for way in WAYS]
        lines.append([f"{row['shape'][0]} × {row['shape'][1]}", *cells])
    return markdown(["one float32 matrix, CPU s and MiB over its own", *WAYS.values()], lines)


def _laws(rows: list[dict[str, Any]]) -> str:
    lines = [[row["name"], f"{row['ms']:.0f}", _met(row["ms"], row["limit"])] for row in rows]
    return markdown(["laws", "CPU ms", "wanted"], lines)


def _met(value: float, limit: float) -> str:
    return f"≤ {limit:g}" + ("" if value <= limit else ", **missed**")


def main() -> None:
    """Print the tables, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="a JSON file to write")
    parser.add_argument("--memory", action="store_true", help="measure the third table anew; with --results")
    arguments = parser.parse_args()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    if arguments.memory:
        rows = json.loads(arguments.results.read_text()) | {"memory": memory_rows()}
    else:
        rows = {"denoiser": [measure(case) for case in CASES], "large": large_rows(), "laws": measure_laws()}
        rows["memory"] = memory_rows()
    torch.set_num_threads(threads)
    print(tables(rows))
    if arguments.results:
        arguments.results.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
