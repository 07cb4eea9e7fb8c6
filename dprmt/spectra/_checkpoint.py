"""The spectra of all matrices of a checkpoint, of the difference of two, and of the products of adapters."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprmt import _html
from dprmt.spectra._arrays import detached, is_tensor, matrices_of
from dprmt.spectra._noise_level import ROUNDING, spectrum_sigma
from dprmt.spectra._noisy_spectrum import NoisySpectrum, noisy_spectrum, spectrum_of_values
from dprmt.spectra._tensor_files import Reader, open_tensors

LARGEST_ENTRY = 1e100
_MOMENTS = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg"}
Sigma = float | Callable[[NDArray[Any]], float] | None


@dataclass(frozen=True)
class CheckpointSpectra(Mapping[str, NoisySpectrum]):
    """The spectra of a checkpoint by name; a notebook shows them as a table.

    Attributes
    ----------
    spectra : dict of NoisySpectrum
        By the name of the matrix; a stack of experts has ``name[0]``, ``name[1]``, ….
    kinds : dict of str
        How each array was read: "matrix", "kernel", "stack" or "product".
    array_shapes : dict of tuple
        The shape of the array that each matrix is from.
    skipped : dict of str
        By the name of the array, why it has no spectrum.
    """

    spectra: dict[str, NoisySpectrum] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    array_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> NoisySpectrum:
        return self.spectra[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.spectra)

    def __len__(self) -> int:
        return len(self.spectra)

    def rows(self) -> list[dict[str, Any]]:
        """One row a matrix, also of those that have no spectrum, for a CSV file or ``pandas.DataFrame``."""
        found = [summary_row(name, spectrum) for name, spectrum in self.items()]
        return found + [{"matrix": name, "verdict": reason} for name, reason in self.skipped.items()]

    def _repr_html_(self) -> str:
        names = ["matrix", "shape", "sigma", "estimated_sigma", "top_over_edge", "spikes", "verdict"]
        cells = [[str(row.get(name, "")) for name in names] for row in self.rows()]
        return _html.block(_html.table(names, cells))


def summary_row(name: str, spectrum: NoisySpectrum) -> dict[str, Any]:
    """Summarise one matrix as a row of a table."""
    return {
        "matrix": name,
        "shape": "{} × {}".format(*spectrum.shape),
        "sigma": spectrum.sigma,
        "estimated_sigma": spectrum.fit.sigma,
        "top_over_edge": spectrum.top_over_edge,
        "spikes": len(spectrum.spikes),
        "stable_rank": spectrum.stable_rank,
        "effective_rank": spectrum.effective_rank,
        "energy_above_edge": spectrum.energy_above_edge,
        "visible": spectrum.visible,
        "fit_distance": spectrum.fit.distance,
        "fit_p_value": spectrum.fit.p_value,
        "verdict": spectrum.fit.verdict,
    }


def spectra_of(
    source: str | Path | Mapping[str, Any],
    sigma: Sigma = None,
    *,
    minus: str | Path | Mapping[str, Any] | None = None,
    param: str = "*",
    false_alarm: float = 0.01,
    progress: Callable[[list[str]], Iterable[str]] = iter,
) -> CheckpointSpectra:
    """Analyse the matrices of a checkpoint, one at a time.

    Two axes are a matrix. Four or five axes, and three whose last is at most 7, are a convolution's kernel (out, in, …)
    with its outputs as rows. Three others are a stack of matrices, such as experts. ``lora_A`` and ``lora_B`` are one
    matrix, the product B·A, which is not formed; its scale is read from ``adapter_config.json``.

    Parameters
    ----------
    source : str, Path or mapping of str to array
        A ``.safetensors``, ``.npz``, ``.npy`` or torch file, an index of shards, a folder, or a state dict.
    sigma : float or callable, optional
        Standard deviation of one entry of the noise, or a function that gives it for a matrix; estimated from each
        matrix by default.
    minus : str, Path or mapping, optional
        A checkpoint that is subtracted first, by name.
    param : str, default "*"
        Names to analyse, with the wildcards of `fnmatch`. Optimizer states are left out unless their whole name is
        given.
    false_alarm : float, default 0.01
        As in `noisy_spectrum`.
    progress : callable, optional
        Gets the names of the arrays and gives them back one by one, such as ``tqdm``.

    Returns
    -------
    CheckpointSpectra
        A mapping of names to `NoisySpectrum`, without the matrices themselves, and the reason for every array that has
        none.

    Raises
    ------
    ParameterError
        If ``sigma`` or ``false_alarm`` is out of range.

    Examples
    --------
    >>> noise = np.random.default_rng(0).standard_normal((64, 256))
    >>> found = spectra_of({"query": noise, "broken": np.full((2, 2), np.nan), "bias": np.ones(3)}, sigma=1.0)
    >>> found["query"].fit.verdict, found.skipped
    ('noise of this σ', {'broken': 'has entries that are not finite', 'bias': 'has shape (3,)'})
    """
    arrays = _readers(source)
    before = None if minus is None else _readers(minus)
    chosen = {name: read for name, read in arrays.items() if fnmatchcase(name, param)}
    result = CheckpointSpectra()
    scales = _lora_scales(source)
    for name in progress(list(chosen)):
        read = chosen[name]
        if name != param and _MOMENTS & set(name.split(".")):
            result.skipped[name] = "is an optimizer's state"
            continue
        if "lora_B" in name and name.replace("lora_B", "lora_A") in arrays:
            continue  # with its lora_A
        other = name.replace("lora_A", "lora_B")
        if "lora_A" in name and other in arrays and before is None:
            values = _product_values(_floats(read()), _floats(arrays[other]()), scales)
            if isinstance(values, str):
                result.skipped[name] = values
                continue
            shape, observed = values
            level = spectrum_sigma(observed, shape, ROUNDING) if sigma is None or callable(sigma) else sigma
            label = name.replace("lora_A", "lora_B·A")
            result.spectra[label] = spectrum_of_values(observed, shape, level, false_alarm)
            result.kinds[label], result.array_shapes[label] = "product", shape
            continue
        array = _floats(read())
        if before is not None and not isinstance(array, str):
            earlier = _floats(before[name]()) if name in before else "is not in the file that is subtracted"
            if not isinstance(earlier, str) and earlier.shape != array.shape:
                earlier = f"has shape {array.shape}, {earlier.shape} in the file that is subtracted"
            array = earlier if isinstance(earlier, str) else array.astype(np.float64) - earlier
        _analyse(result, name, array, sigma, false_alarm)
    return result


def _analyse(result: CheckpointSpectra, name: str, array: NDArray[Any] | str, sigma: Sigma, false_alarm: float) -> None:
    found = array if isinstance(array, str) else matrices_of(array)
    if found is None or isinstance(found, str):
        result.skipped[name] = found if isinstance(found, str) else f"has shape {tuple(array.shape)}"  # type: ignore[union-attr]
        return
    matrices, kind = found
    parts = {name: matrices} if matrices.ndim == 2 else {f"{name}[{i}]": one for i, one in enumerate(matrices)}
    for label, matrix in parts.items():
        largest = float(np.abs(matrix).max())
        if not math.isfinite(largest):
            result.skipped[label] = "has entries that are not finite"
        elif largest > LARGEST_ENTRY:
            result.skipped[label] = f"has entries above {LARGEST_ENTRY:g}"
        elif largest == 0:
            result.skipped[label] = "is zero"
        else:
            result.spectra[label] = _spectrum(matrix, sigma, false_alarm)
            result.kinds[label], result.array_shapes[label] = kind, tuple(map(int, array.shape))  # type: ignore[union-attr]


def _spectrum(matrix: NDArray[Any], sigma: Sigma, false_alarm: float) -> NoisySpectrum:
    wide = matrix.astype(np.float64)
    if sigma is None:
        observed = np.asarray(np.linalg.svdvals(wide))
        shape = int(wide.shape[0]), int(wide.shape[1])
        found = spectrum_of_values(observed, shape, spectrum_sigma(observed, shape, ROUNDING), false_alarm, wide)
    else:
        found = noisy_spectrum(wide, sigma(wide) if callable(sigma) else sigma, false_alarm=false_alarm)
    return replace(found, matrix=None)


def _readers(source: str | Path | Mapping[str, Any]) -> dict[str, Reader]:
    if isinstance(source, Mapping):
        return {str(name): partial(source.__getitem__, name) for name in source}
    return open_tensors(Path(source))


def _floats(value: Any) -> NDArray[Any] | str:
    # A NumPy array of floats, or why there is none.
    if is_tensor(value):
        tensor = detached(value)
        if not tensor.is_floating_point():
            return f"holds {str(tensor.dtype).removeprefix('torch.')} numbers"
        tensor = tensor if str(tensor.layout) == "torch.strided" else tensor.to_dense()
        value = (tensor.float() if tensor.dtype.itemsize < 4 else tensor).cpu().numpy()
    if not isinstance(value, np.ndarray):
        return "is no array"
    if value.dtype.kind != "f":
        return f"holds {value.dtype.name} numbers"
    return "has masked entries" if np.ma.is_masked(value) else np.asarray(value)


def _lora_scales(source: Any) -> float:
    # alpha/r of an adapter, or alpha/√r.
    if isinstance(source, Mapping):
        return 1.0
    folder = Path(source) if Path(source).is_dir() else Path(source).parent
    try:
        said = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        rank = float(said["r"])
        return float(said["lora_alpha"]) / (math.sqrt(rank) if said.get("use_rslora") else rank)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return 1.0


def _product_values(a: Any, b: Any, scale: float) -> tuple[tuple[int, int], NDArray[np.float64]] | str:
    # Shape and singular values of scale·B·A, from the triangles of two thin QR decompositions.
    for one in (a, b):
        if isinstance(one, str):
            return one
    if a.ndim != 2 or b.ndim != 2 or b.shape[1] != a.shape[0]:
        return f"has a pair of shapes {b.shape} and {a.shape}"
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return "has entries that are not finite"
    left, right = (np.asarray(np.linalg.qr(np.asarray(x, dtype=np.float64), mode="r")) for x in (b, a.T))
    shape = int(b.shape[0]), int(a.shape[1])
    values = np.zeros(min(shape))
    found = abs(scale) * np.linalg.svdvals(left @ right.T)[: min(shape)]
    values[: len(found)] = found
    return (shape, values) if values[0] > 0 else "is zero"
