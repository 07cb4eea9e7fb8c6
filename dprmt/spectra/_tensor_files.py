"""Named arrays from files and folders of tensors, none of which may run code."""

from __future__ import annotations

import importlib
import json
import math
import os
import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import scipy

from dprmt._validation import needing

Reader: TypeAlias = Callable[[], Any]
_T = TypeVar("_T")

_SAFETENSORS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "C64": "<c8", "BOOL": "?"}
_SAFETENSORS |= {f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)}
"""Types in NumPy's spelling; bfloat16, which NumPy lacks, is the upper half of a float32."""


def _eight_bit_floats() -> dict[str, np.ndarray]:
    # Values by their codes.
    exponent, fraction = np.divmod(np.arange(128), 8)  # below 2⁻⁶ the leading 1 is missing
    half = (fraction / 8 + (exponent > 0)) * 2.0 ** (np.maximum(exponent, 1) - 7)
    half[127] = np.nan
    values = {
        "F8_E4M3": np.concatenate([half, -half]),
        "F8_E5M2": (np.arange(256, dtype=np.uint16) << 8).view(np.float16),
        "F8_E8M0": np.append(2.0 ** (np.arange(255) - 127.0), np.nan),
    }
    return {kind: table.astype(np.float32) for kind, table in values.items()}


_EIGHT_BITS = _eight_bit_floats()

_TORCH, _HDF5 = (".pt", ".pth", ".ckpt", ".bin"), (".h5", ".hdf5")
_PREFERRED = ((".safetensors",), _TORCH, (".npz", ".npy"), (".gguf",), _HDF5, (".mat",))
"""Order of formats in a folder, which often has the same weights in two formats."""
_STATE = ("optimizer", "scheduler", "scaler", "training_args", "rng_state")
"""Beginnings of the names of files in a folder that hold the state of a training, not weights."""

_PICKLED = ("pickle", "Python objects", "weights_only")
"""Words in NumPy's and torch's errors about code in a file; the rest of these errors advises how to run it."""


class UnreadableFileError(ValueError):
    """A file that cannot be read as named arrays."""

    def __init__(self, allowed: str, reason: str = "", place: str | Path = "the file") -> None:
        self.allowed, self.reason = allowed, reason
        super().__init__(f"{place} must be {allowed}" + (f" ({reason})" if reason else ""))


class EightBit(np.ndarray):
    """Numbers that were stored as 8-bit floats, perhaps in units of scales that are stored with them."""


def open_tensors(path: Path) -> dict[str, Reader]:
    """Map the arrays of a file or folder by name to functions that read them.

    The array of a ``.npy`` file, and a single tensor in a torch file, are named by the file without suffix. Nested
    mappings and lists in a torch file give dotted names; entries that are not tensors are skipped. In a folder, files
    of one format are read: .safetensors before torch, NumPy, GGUF, HDF5 and MATLAB. Names that occur in two files get
    the file's name in front. Quantized GGUF tensors are dequantized.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(Path(folder) / "gradients.npz", query=np.ones((2, 3)), bias=np.ones(3))
    ...     tensors = open_tensors(Path(folder) / "gradients.npz")
    ...     {name: read().shape for name, read in tensors.items()}
    {'query': (2, 3), 'bias': (3,)}
    """
    if path.is_dir():
        return _open_folder(path)
    if path.name.endswith(".index.json") and path.is_file():
        return _open_shards(path)
    suffix = path.suffix.lower()
    if suffix not in _FORMATS and not path.name.endswith(".index.json"):
        raise UnreadableFileError("a file that ends in " + ", ".join(_FORMATS) + ", or a folder of them")
    if not os.path.isfile(path):
        raise UnreadableFileError("a file", "no such file")
    readers = _guarded(lambda: _FORMATS[suffix](path), suffix)
    return {name: partial(_guarded, read, suffix) for name, read in readers.items()}


def _open_folder(folder: Path) -> dict[str, Reader]:
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(_STATE)]
    for suffixes in _PREFERRED:
        chosen = {path: open_tensors(path) for path in files if path.suffix.lower() in suffixes}
        if chosen:
            return _joined(chosen)
    raise UnreadableFileError("a folder with a file that ends in " + ", ".join(_FORMATS))


def _open_shards(index: Path) -> dict[str, Reader]:
    # The shards that an index file of Hugging Face names; none may lie elsewhere.
    def shards() -> set[str]:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        if any(Path(name).name != name for name in names):
            raise UnreadableFileError("an index of files in its folder")
        return names

    paths = [index.parent / name for name in sorted(_guarded(shards, ".json"))]
    return _joined({path: open_tensors(path) for path in paths})


def _joined(files: Mapping[Path, dict[str, Reader]]) -> dict[str, Reader]:
    names = [name for tensors in files.values() for name in tensors]
    if len(set(names)) == len(names):
        return {name: read for tensors in files.values() for name, read in tensors.items()}
    return {f"{path.name}:{name}": read for path, tensors in files.items() for name, read in tensors.items()}


def _guarded(read: Callable[[], _T], suffix: str) -> _T:
    # The parsers of seven formats raise all sorts of exceptions for damaged files.
    try:
        with warnings.catch_warnings(action="ignore"):
            return read()
    except (UnreadableFileError, ModuleNotFoundError):
        raise
    except Exception as error:
        reason = str(error).strip() or type(error).__name__
        pickled = isinstance(error, pickle.UnpicklingError) or any(word in reason for word in _PICKLED)
    allowed = f"a {suffix} file of arrays"
    if pickled:
        advice = "damaged, or with pickled objects in it, which could run code: save a state_dict() instead"
        raise UnreadableFileError(allowed, advice)
    raise UnreadableFileError(allowed, reason.splitlines()[0])


def _open_npy(path: Path) -> dict[str, Reader]:
    array = np.lib.format.open_memmap(path, mode="r")  # refuses pickled objects
    return {path.stem: lambda: array}


def _open_npz(path: Path) -> dict[str, Reader]:
    def read(name: str) -> Any:
        return _with_archive(path, lambda archive: np.asarray(archive[name]))

    return {name: partial(read, name) for name in _with_archive(path, list)}


def _with_archive(path: Path, use: Callable[[Any], _T]) -> _T:
    with path.open("rb") as file:  # which np.load, given a name, would leave open if the archive is damaged
        archive = np.load(file, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise UnreadableFileError("a .npz file of arrays", "a .npy file by another name")
        return use(archive)


def _open_safetensors(path: Path) -> dict[str, Reader]:
    with needing("cli"):
        from safetensors import safe_open

    with safe_open(path, framework="np"), path.open("rb") as file:  # safe_open checks the header and the length
        start = 8 + int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(start - 8))
    header.pop("__metadata__", None)

    def read(entry: Mapping[str, Any]) -> Any:
        dtype, shape = entry["dtype"], entry["shape"]
        code = "u1" if dtype in _EIGHT_BITS else _SAFETENSORS.get(dtype)
        if code is None:
            return np.broadcast_to(np.zeros((), "V1"), shape)
        values = np.fromfile(path, code, math.prod(shape), offset=start + entry["data_offsets"][0]).reshape(shape)
        if dtype == "BF16":
            wide = values.astype(np.uint32)
            wide <<= 16
            return wide.view(np.float32)
        return _EIGHT_BITS[dtype][values].view(EightBit) if dtype in _EIGHT_BITS else values

    return {name: partial(read, entry) for name, entry in header.items()}


def _needing(module: str, install: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        allowed = f"a .npy, .npz or .safetensors file, as {module} is not installed ({install})"
        raise UnreadableFileError(allowed) from None


def _open_torch(path: Path) -> dict[str, Reader]:
    torch = _needing("torch", "extra train")
    mapped = zipfile.is_zipfile(path)  # not read before it is used; older files have no such form
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    named = {path.stem: content} if isinstance(content, torch.Tensor) else dict(_leaves(content))
    return {name: partial(as_numpy, leaf) for name, leaf in named.items() if isinstance(leaf, torch.Tensor)}


def as_numpy(tensor: Any) -> Any:
    """Convert a torch tensor; types that NumPy lacks become float32."""
    dense = tensor.detach().to_dense() if str(tensor.layout) != "torch.strided" else tensor.detach()
    narrow = dense.is_floating_point() and dense.dtype.itemsize < 4
    values = (dense.float() if narrow else dense).cpu().numpy()
    return values.view(EightBit) if narrow and dense.dtype.itemsize == 1 else values


def _open_gguf(path: Path) -> dict[str, Reader]:
    gguf = _needing("gguf", "extra smollm2")

    def read(tensor: Any) -> Any:
        quantized = tensor.data.dtype == np.uint8
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type) if quantized else tensor.data

    return {tensor.name: partial(read, tensor) for tensor in gguf.GGUFReader(path).tensors}


def _open_hdf5(path: Path, by_columns: bool = False) -> dict[str, Reader]:
    h5py, names = _needing("h5py", "pip install h5py"), []

    def read(name: str) -> Any:
        with h5py.File(path) as file:
            dataset = file[name]
            if dataset.external or dataset.is_virtual:
                raise UnreadableFileError("a file that holds its own numbers", "they are in another file")
            values = dataset[()]
        return np.transpose(values) if by_columns else values

    with h5py.File(path) as file:  # links to other files are not followed
        file.visititems(lambda name, node: names.append(name) if isinstance(node, h5py.Dataset) else None)
    return {name: partial(read, name) for name in names if not name.startswith("#")}  # MATLAB's own


def _open_mat(path: Path) -> dict[str, Reader]:
    def read(name: str) -> Any:
        values = scipy.io.loadmat(path, appendmat=False, variable_names=[name])[name]
        return values.toarray() if hasattr(values, "toarray") else values

    try:
        return {name: partial(read, name) for name, _, _ in scipy.io.whosmat(path, appendmat=False)}
    except NotImplementedError:  # version 7.3 is HDF5
        return _open_hdf5(path, by_columns=True)


def _leaves(content: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(content, Mapping):
        for name, value in content.items():
            yield from _leaves(value, f"{prefix}{name}.")
    elif isinstance(content, (list, tuple)):
        yield from _leaves(dict(enumerate(content)), prefix)
    else:
        yield prefix.removesuffix("."), content


_FORMATS = {
    ".npy": _open_npy,
    ".npz": _open_npz,
    ".safetensors": _open_safetensors,
    **dict.fromkeys(_TORCH, _open_torch),
    ".gguf": _open_gguf,
    **dict.fromkeys(_HDF5, _open_hdf5),
    ".mat": _open_mat,
}
