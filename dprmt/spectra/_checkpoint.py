"""The spectra of all matrices of a checkpoint, of the difference of two, and of the products of adapters."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprmt import _html
from dprmt._validation import ParameterError
from dprmt.spectra._arrays import is_tensor, matrices_of, promote_half
from dprmt.spectra._noisy_spectrum import GramSpectrum, NoisySpectrum, largest_entry, spectrum_of_values
from dprmt.spectra._tensor_files import EightBit, UnreadableFileError, as_numpy, open_tensors

SUBTRACTED = "in the file that is subtracted"
"""How the reasons end for which there is no difference."""
_MOMENTS = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg"}
_PAIRS = (("lora_A", "lora_B"), ("lora_down", "lora_up"), ("lora_embedding_A", "lora_embedding_B"))
Sigma = float | Callable[[NDArray[Any]], float] | None
Source = str | Path | Mapping[str, Any]


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
        """Return one row a matrix, also of those that have no spectrum, for a CSV file or ``pandas.DataFrame``."""
        found = [{"matrix": name, "kind": self.kinds[name], **summary(spectrum)} for name, spectrum in self.items()]
        return found + [{"matrix": name, "verdict": reason} for name, reason in self.skipped.items()]

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Draw all matrices below each other, in units of their bulk edges.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Where to draw; a new figure otherwise.
        **options
            Of `dprmt.plots.plot_spectra`.

        Returns
        -------
        matplotlib.axes.Axes
            The axes.
        """
        from dprmt.plots import plot_spectra

        return plot_spectra(self.spectra, ax=ax, **options)

    def _repr_html_(self) -> str:
        rows = self.rows()
        names = list(dict.fromkeys(name for row in rows for name in row))
        return _html.block(_html.table(names, [[_cell(row.get(name, "")) for name in names] for row in rows]))


def _cell(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def summary(spectrum: NoisySpectrum) -> dict[str, Any]:
    """Return the columns of a table of matrices."""
    names = "stable_rank", "effective_rank", "energy_above_edge", "visible"
    return {
        "shape": "{} × {}".format(*spectrum.shape),
        "sigma": spectrum.sigma,
        "estimated_sigma": spectrum.fit.sigma,
        "top_over_edge": spectrum.top_over_edge,
        "spikes": len(spectrum.spikes),
        **{name: getattr(spectrum, name) for name in names},
        "fit_distance": spectrum.fit.distance,
        "fit_p_value": spectrum.fit.p_value,
        "verdict": spectrum.fit.verdict,
    }


def spectra_of(
    source: Source,
    sigma: Sigma = None,
    *,
    minus: Source | None = None,
    param: str = "*",
    false_alarm: float = 0.01,
    progress: Callable[[list[str]], Iterable[str]] = iter,
) -> CheckpointSpectra:
    """Analyse the matrices of a checkpoint, one at a time.

    An array with two axes is a matrix. An array with four or five axes, or with three of which the last is at most 7,
    is the kernel (out, in, …) of a convolution, whose outputs become rows. Any other array with three axes is a stack
    of matrices, such as experts. ``lora_A`` and ``lora_B``, or ``lora_down`` and ``lora_up``, are analysed as their
    product B·A, which is not formed. Its scale comes from ``adapter_config.json`` or ``alpha``. Numbers of 8 bits are
    multiplied by ``weight_scale``, ``weight_scale_inv`` or ``scale_weight``: one scale for all, for each row or for
    each block.

    Parameters
    ----------
    source : str, Path or mapping of str to array
        A state dict, a ``.safetensors``, ``.npz``, ``.npy`` or torch file, an index of shards, or a folder. Also a
        ``.gguf`` file, whose tensors are dequantized, where ``gguf`` is installed, ``.mat``, and ``.h5`` where ``h5py``
        is installed.
    sigma : float or callable, optional
        Standard deviation of one entry of the noise, >= 0, or a function that returns it for a matrix in its own dtype,
        float32 at least; estimated from each matrix by default.
    minus : str, Path or mapping, optional
        Checkpoint that is subtracted first, by name; for adapters, the products are subtracted. If the checkpoints
        share no name, a prefix that one of them adds to most names, such as ``module.``, is ignored.
    param : str, default "*"
        Names to analyse, with the wildcards of `fnmatch`. Optimizer states are left out unless their whole name is
        given.
    false_alarm : float, default 0.01
        As in `noisy_spectrum`.
    progress : callable, optional
        Function that wraps the iteration over the names of the arrays, such as ``tqdm``.

    Returns
    -------
    CheckpointSpectra
        A mapping of names to `NoisySpectrum`, without the matrices themselves, and the reason for every array that has
        none.

    Raises
    ------
    ParameterError
        If ``source`` is neither a path nor a mapping, or ``sigma`` or ``false_alarm`` is out of range.
    ValueError
        If a file cannot be read at all. An array that cannot be read is listed in ``skipped``.

    Notes
    -----
    Memory next to the largest m × n matrix, m ≤ n: 8m² bytes and a few MiB. Values come from Gram matrices in float64:
    with top value s₁, a value s has an error of about ``2⁻⁵⁰ s₁²/s``, and at most ``2⁻²³ s₁``. `noisy_spectrum` has
    errors of ``2⁻⁵⁰ s₁``.

    Examples
    --------
    >>> noise = np.random.default_rng(0).standard_normal((64, 256))
    >>> found = spectra_of({"query": noise, "broken": np.full((2, 2), np.nan), "bias": np.ones(3)}, sigma=1.0)
    >>> found["query"].fit.verdict, found.skipped
    ('noise of this σ', {'broken': 'has entries that are not finite', 'bias': 'has shape (3,)'})
    """
    arrays = _Arrays(source)
    before = None if minus is None else _Arrays(minus, like=arrays.readers)
    result = CheckpointSpectra()

    def add(label: str, kind: str, shape: tuple[int, ...], analyse: Callable[..., NoisySpectrum], *given: Any) -> None:
        try:
            spectrum = analyse(*given, sigma, false_alarm)
        except _NoSpectrumError as error:
            result.skipped[label] = str(error)
        else:
            result.spectra[label], result.kinds[label] = spectrum, kind
            result.array_shapes[label] = shape or spectrum.shape

    for name in progress([name for name in arrays.readers if fnmatchcase(name, param)]):
        try:
            if name != param and _MOMENTS & set(name.split(".")):
                raise _NoSpectrumError("is an optimizer's state")
            if arrays.is_scale(name):
                raise _NoSpectrumError("is the scale of another array")
            if name in arrays.pairs:
                first, second = next(pair for pair in _PAIRS if pair[0] in name)
                label = name.replace(first, f"{second}·{first.rpartition('_')[2]}")
                add(label, "product", (), _product, name, arrays, before)
            elif name not in arrays.pairs.values():
                array = _difference(name, arrays, before)
                shape, found = tuple(map(int, array.shape)), matrices_of(array)
                if found is None:
                    raise _NoSpectrumError(f"has shape {shape}")
                stack = [found[0]] if found[0].ndim == 2 else found[0]
                for i, matrix in enumerate(stack):
                    add(f"{name}[{i}]" if stack is found[0] else name, found[1], shape, _spectrum, matrix)
        except _NoSpectrumError as error:
            result.skipped[name] = str(error)
    return result


class _NoSpectrumError(Exception):
    """Why an array has no spectrum."""


def _difference(name: str, arrays: _Arrays, before: _Arrays | None) -> NDArray[Any]:
    array = arrays.read(name)
    if before is None:
        return array
    earlier = before.read(name)
    if earlier.shape != array.shape:
        raise _NoSpectrumError(f"has shape {array.shape}, {earlier.shape} {SUBTRACTED}")
    with np.errstate(over="ignore"):  # such a row says so
        return np.asarray(promote_half(array) - promote_half(earlier))


def _spectrum(matrix: NDArray[Any], sigma: Sigma, false_alarm: float) -> NoisySpectrum:
    largest = largest_entry(matrix)
    if not math.isfinite(largest):
        raise _NoSpectrumError("has entries that are not finite")
    if largest == 0 or largest > 1e100:  # whose squares would leave the range of floats
        raise _NoSpectrumError("has entries above 1e+100" if largest else "is zero")
    shape, gram = (int(matrix.shape[0]), int(matrix.shape[1])), GramSpectrum(matrix)
    try:
        level = sigma(promote_half(matrix)) if callable(sigma) else sigma
        return spectrum_of_values(gram.values, shape, level, false_alarm, gram)
    except np.linalg.LinAlgError as error:
        raise _NoSpectrumError(f"has no singular values: {error}") from None


def _product(name: str, arrays: _Arrays, before: _Arrays | None, sigma: Sigma, false_alarm: float) -> NoisySpectrum:
    # The product of an adapter's factors, or the difference of two: [B, -B₀]·[A; A₀].
    b, a = arrays.factors(name)
    if before is not None:
        earlier = before.factors(name)
        if (len(b), a.shape[1]) != (len(earlier[0]), earlier[1].shape[1]):
            raise _NoSpectrumError(f"has another shape {SUBTRACTED}")
        b, a = np.hstack([b, -earlier[0]]), np.vstack([a, earlier[1]])
    if callable(sigma):
        return _spectrum(b @ a, sigma, false_alarm)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise _NoSpectrumError("has entries that are not finite")
    shape = int(b.shape[0]), int(a.shape[1])
    observed = np.zeros(min(shape))
    left, right = (np.asarray(np.linalg.qr(x, mode="r")) for x in (b, a.T))
    values = np.linalg.svdvals(left @ right.T)[: min(shape)]
    observed[: len(values)] = values
    if observed[0] == 0:
        raise _NoSpectrumError("is zero")
    return spectrum_of_values(observed, shape, sigma, false_alarm)


class _Arrays:
    """The arrays of a checkpoint, and which of them belong together."""

    def __init__(self, source: Source, like: Iterable[str] = ()) -> None:
        self.readers: dict[str, Callable[[], Any]]
        if isinstance(source, Mapping):
            self.readers = {str(name): partial(source.__getitem__, name) for name in source}
        elif isinstance(source, (str, Path)):
            try:
                self.readers = open_tensors(Path(source))
            except UnreadableFileError as error:
                raise UnreadableFileError(error.allowed, error.reason, source) from None
        else:
            raise ParameterError("source", source, "a path, or a mapping of names to arrays such as model.state_dict()")
        if not self.readers.keys() & set(like):
            self.readers = _renamed(self.readers, list(like))
        self.pairs = {
            name: other
            for name in self.readers
            for first, second in _PAIRS
            if first in name and (other := name.replace(first, second)) in self.readers
        }
        self.scale_of = {name: scale for name in self.readers for scale in _scale_names(name) if scale in self.readers}
        self.scaled_by = {scale: name for name, scale in self.scale_of.items()}
        self.adapter = {} if isinstance(source, Mapping) else _adapter_config(Path(source))

    def is_scale(self, name: str) -> bool:
        """Return whether it is the scale of 8-bit floats."""
        try:
            return name in self.scaled_by and isinstance(self._floats(self.scaled_by[name]), EightBit)
        except _NoSpectrumError:
            return False

    def read(self, name: str) -> NDArray[Any]:
        """Return the array as floats."""
        values = self._floats(name)
        if not isinstance(values, EightBit):
            return values
        numbers = np.asarray(values)
        return _scaled(numbers, np.asarray(self._floats(self.scale_of[name]))) if name in self.scale_of else numbers

    def _floats(self, name: str) -> NDArray[Any]:
        if name not in self.readers:
            raise _NoSpectrumError(f"is not {SUBTRACTED}")
        try:
            value = self.readers[name]()
            value = as_numpy(value) if is_tensor(value) else value
        except UnreadableFileError as error:
            raise _NoSpectrumError(f"cannot be read: {error.reason or error.allowed}") from None
        except (RuntimeError, TypeError) as error:  # of tensors without numbers, such as those of the device "meta"
            raise _NoSpectrumError(f"cannot be read: {str(error).partition('.')[0]}") from None
        if not isinstance(value, np.ndarray):
            raise _NoSpectrumError("is no array")
        if value.dtype.kind != "f":
            raise _NoSpectrumError(f"holds {value.dtype.name} numbers")
        if np.ma.is_masked(value):
            raise _NoSpectrumError("has masked entries")
        return value

    def factors(self, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return B, with the adapter's scale, and A as matrices; for a convolution its kernels."""
        if name not in self.pairs:
            raise _NoSpectrumError(f"is not {SUBTRACTED}")
        b, a = self.read(self.pairs[name]), self.read(name)
        if min(a.ndim, b.ndim) < 2 or b.shape[1] != a.shape[0] or math.prod(b.shape[2:]) != 1:
            raise _NoSpectrumError(f"has a pair of shapes {b.shape} and {a.shape}")
        scaled = self._scale(name, len(a)) * b.reshape(len(b), -1).astype(np.float64)
        return scaled, a.reshape(len(a), -1).astype(np.float64)

    def _scale(self, name: str, rank: int) -> float:
        # alpha/r of an adapter, or alpha/√r.
        module = name.partition(".lora_")[0]
        try:
            return float(self._floats(f"{module}.alpha").reshape(())) / rank
        except (_NoSpectrumError, ValueError):
            pass
        try:
            patterns = self.adapter.get("alpha_pattern", {}).items()
            special = (value for key, value in patterns if f".{module}".endswith(f".{key}"))
            alpha = float(next(special, self.adapter["lora_alpha"]))
            return alpha / (math.sqrt(rank) if self.adapter.get("use_rslora") else rank)
        except (ValueError, KeyError, TypeError, AttributeError):
            return 1.0


def _renamed(readers: dict[str, Any], wanted: list[str]) -> dict[str, Any]:
    # With the prefix that most names have on one side only, such as "module." or "model.encoder.", added or left out.
    def prefix(names: Iterable[str], known: Iterable[str]) -> tuple[str, int]:
        found = Counter(
            name[:place]
            for name in names
            for place in range(len(name))
            if name[place - 1 : place] == "." and name[place:] in known
        )
        return found.most_common(1)[0] if found else ("", 0)

    (added, many), (dropped, more) = prefix(wanted, readers), prefix(readers, set(wanted))
    if many >= more:
        return {added + name: read for name, read in readers.items()}
    return {name.removeprefix(dropped): read for name, read in readers.items()}


def _scale_names(name: str) -> list[str]:
    names = [f"{name}_scale_inv", f"{name}_scale"]
    return [*names, f"{name.removesuffix('weight')}scale_weight"] if name.endswith("weight") else names


def _scaled(numbers: NDArray[Any], scale: NDArray[Any]) -> NDArray[Any]:
    # Times one scale for all, for each row, or for each block, whose sides are powers of two.
    scale = scale.astype(np.float32)
    if scale.size == 1:
        return numbers * scale.reshape(())
    shape = scale.shape + (1,) * (numbers.ndim - scale.ndim)
    sides = [
        1 << (-(-side // max(count, 1)) - 1).bit_length() for side, count in zip(numbers.shape, shape, strict=False)
    ]
    if shape != tuple(-(-side // size) for side, size in zip(numbers.shape, sides, strict=False)):
        raise _NoSpectrumError(f"has scales of shape {scale.shape} for {numbers.shape}")
    blocks = [np.arange(side) // size for side, size in zip(numbers.shape, sides, strict=True)]
    return numbers * scale.reshape(shape)[np.ix_(*blocks)]


def _adapter_config(source: Path) -> dict[str, Any]:
    folder = source if source.is_dir() else source.parent
    try:
        said = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
