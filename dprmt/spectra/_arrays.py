"""Array glue: one code path for NumPy arrays and torch tensors, which returns the type it was given.

The functions of this subpackage are written once, against an array namespace: `numpy` or `torch`, which share names
such as ``sqrt`` and ``where``. This module never imports torch: only a caller that has imported torch can pass a
tensor.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from numbers import Real
from types import ModuleType
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from dprmt._validation import ParameterError, check_count


class TensorLike(Protocol):
    """A torch tensor, to type checkers; torch itself is never imported here."""

    def is_floating_point(self) -> bool: ...

    def detach(self) -> Any: ...


class Labelled(Protocol):
    """A pandas or xarray object, to type checkers; neither is ever imported here."""

    def to_numpy(self) -> Any: ...


Array: TypeAlias = Any
"""A NumPy array or a torch tensor, inside this subpackage."""
ArrayT = TypeVar("ArrayT", bound="float | np.floating[Any] | NDArray[np.floating[Any]] | TensorLike | Labelled")
"""Argument and result of public functions: a number, a NumPy array, or a torch tensor."""
MatrixT = TypeVar("MatrixT", bound="NDArray[np.floating[Any]] | TensorLike | Labelled")
"""The same without numbers."""
Function = TypeVar("Function", bound=Callable[..., Any])

_REAL = "of a real floating-point or integer dtype"
_LARGEST_WINDOW = 7  # largest width of a convolution's window


def array_namespace(x: object) -> ModuleType:
    """Return the module whose functions apply to ``x``: `torch` for a torch tensor, `numpy` for everything else.

    Examples
    --------
    >>> array_namespace([1.0, 2.0]).__name__
    'numpy'
    """
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(x, torch.Tensor) else np


def is_tensor(x: object) -> bool:
    """Return whether ``x`` is a torch tensor; does not import torch."""
    return array_namespace(x) is not np


def as_array(name: str, x: object) -> Array:
    """Convert ``x`` to an array of real floating dtype: floating ones unchanged, integers and lists as float64.

    Sparse matrices become dense, 8-bit floats float32.
    """
    if is_tensor(x):
        tensor: Any = x
        if tensor.is_complex() or str(tensor.dtype) == "torch.bool":
            raise ParameterError(name, tensor.dtype, _REAL)
        tensor = tensor if str(tensor.layout) == "torch.strided" else tensor.to_dense()
        tensor = tensor if tensor.is_floating_point() else tensor.double()
        return tensor.float() if tensor.dtype.itemsize == 1 else tensor
    if np.ma.is_masked(x):
        raise ParameterError(name, "one with masked entries", "an array without masked entries: fill or drop them")
    if hasattr(x, "toarray"):  # scipy's sparse matrices
        x = x.toarray()
    if _is_python_number(x):
        return np.asarray(float(x))  # type: ignore[arg-type]
    try:
        values = np.asarray(x)
    except ValueError:  # ragged nesting
        raise ParameterError(name, x, "an array " + _REAL) from None
    if values.dtype.kind not in "fiu":
        raise ParameterError(name, values.dtype, _REAL)
    return values if values.dtype.kind == "f" else values.astype(float)


def check_finite(name: str, values: Array, *, low: float = -np.inf, high: float = np.inf) -> None:
    """Raise unless every entry is finite and within ``[low, high]``."""
    xp = array_namespace(values)
    good = xp.isfinite(values) & (values >= low) & (values <= high)
    if not bool(xp.all(good)):
        allowed = "finite in every entry"
        allowed += f" and >= {low:g}" if low > -np.inf else ""
        allowed += f" and <= {high:g}" if high < np.inf else ""
        raise ParameterError(name, float(values[~good][0]), allowed)


def check_nonempty(name: str, values: Array) -> None:
    """Raise if the array has no entries."""
    if 0 in values.shape:
        raise ParameterError(name, tuple(values.shape), "a non-empty array, whose shape has no 0")


def check_matrices(name: str, x: object, *, finite: bool = True) -> Array:
    """Check that ``x`` is a matrix or a stack of matrices: floating, non-empty, at least two axes, perhaps finite."""
    values = as_array(name, x)
    if values.ndim < 2:
        raise ParameterError(name, tuple(values.shape), "a matrix or a stack of matrices, shape (..., m, n)")
    check_nonempty(name, values)
    if values.ndim in (4, 5) and max(values.shape[2:]) <= _LARGEST_WINDOW < max(values.shape[:2]):
        allowed = "a matrix or a stack of matrices; a convolution's kernel as a matrix, such as x.reshape(len(x), -1)"
        raise ParameterError(name, tuple(values.shape), allowed)
    if finite:
        check_finite(name, values)
    return values


def check_matrix(name: str, x: object) -> Array:
    """Check that ``x`` is one matrix: floating, finite, non-empty."""
    values = check_matrices(name, x)
    if values.ndim != 2:
        raise ParameterError(name, tuple(values.shape), "one matrix: an array with two axes")
    return values


def check_shape(shape: object) -> tuple[int, int]:
    """Check that ``shape`` is a pair ``(m, n)`` of positive ints.

    Examples
    --------
    >>> check_shape([16, 768])
    (16, 768)
    """
    allowed = "a pair (m, n) of integers >= 1"
    if not isinstance(shape, Sequence) or isinstance(shape, str) or len(shape) != 2:
        raise ParameterError("shape", shape, allowed)
    try:
        return check_count("shape", shape[0]), check_count("shape", shape[1])
    except ParameterError:
        raise ParameterError("shape", shape, allowed) from None


def singular_values(name: str, x: object) -> Array:
    """Check that ``x`` are singular values and convert to float64: real, finite and non-negative."""
    values = as_array(name, x)
    check_finite(name, values, low=0.0)
    return to_float64(values)


def to_float64(values: Array) -> Array:
    """Return the array in double precision, on its device."""
    xp = array_namespace(values)
    return xp.asarray(values, dtype=xp.float64)


def float64_like(values: Any, like: Array) -> Array:
    """Return numbers as an array of the library, and on the device, of another one."""
    xp = array_namespace(like)
    return xp.asarray(values, dtype=xp.float64, device=like.device)


def numbers(values: Array) -> NDArray[np.float64]:
    """Return the entries as a NumPy array in double precision."""
    wide = to_float64(detached(values))
    return np.asarray(wide.cpu().numpy() if is_tensor(wide) else wide)


def detached(array: Array) -> Array:
    """Return the array outside automatic differentiation."""
    return array.detach() if is_tensor(array) else array


def promote_half(values: Array) -> Array:
    """Convert half precision and bfloat16 to float32, in which decompositions exist; other dtypes are unchanged."""
    if values.dtype.itemsize >= 4:
        return values
    return values.float() if is_tensor(values) else values.astype(np.float32)


def cast_like(result: Array, original: object) -> Array:
    """Cast ``result`` to the dtype of ``original``, or leave float64; a Python number gives a Python float."""
    if is_tensor(original):
        return result.to(original.dtype) if original.is_floating_point() else result  # type: ignore[attr-defined]
    if _is_python_number(original):
        return float(result)
    is_float = isinstance(original, (np.ndarray, np.generic)) and original.dtype.kind == "f"
    dtype = original.dtype if is_float else np.float64  # type: ignore[attr-defined]
    return np.asarray(result).astype(dtype, copy=False)[()]


def matrices_of(array: Array) -> tuple[Array, str] | None:
    """Return an array of a checkpoint as matrices, by the one rule for files; None if it holds none.

    Two axes are a matrix. Four or five, and three whose last is a window of at most 7, are the kernel (out, in, …) of a
    convolution: its outputs are the rows. Three others are a stack of matrices, such as experts.

    Returns: the matrix or the stack, and "matrix", "kernel" or "stack".
    """
    shape = tuple(array.shape)
    if not 2 <= len(shape) <= 5 or 0 in shape:
        return None
    if len(shape) == 2:
        return array, "matrix"
    if len(shape) > 3 or shape[2] <= _LARGEST_WINDOW < min(shape[:2]):
        return array.reshape(shape[0], -1), "kernel"
    return array, "stack"


def _is_python_number(x: object) -> bool:
    return isinstance(x, Real) and not isinstance(x, (bool, np.generic))


def keeps_labels(function: Function) -> Function:
    """Return the same function; a labelled first argument gives a labelled answer. Neither library is ever imported."""
    first = next(iter(inspect.signature(function).parameters))

    @functools.wraps(function)
    def labelled(*args: Any, **kwargs: Any) -> Any:
        given = args[0] if args else kwargs.get(first)
        answer = function(*args, **kwargs)
        return _relabelled(answer, given) if hasattr(given, "to_numpy") else answer

    return cast(Function, labelled)


def _relabelled(values: Any, like: Any) -> Any:
    # With the labels of a Series, a DataFrame or a DataArray of their shape.
    if np.shape(values) != like.shape:
        return values
    if hasattr(like, "dims"):  # xarray
        return like.copy(data=values)
    axes = {"columns": like.columns} if hasattr(like, "columns") else {"name": like.name}
    return type(like)(np.asarray(values), index=like.index, **axes)
