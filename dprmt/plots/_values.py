"""Checks of the numbers to be drawn."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dprmt._validation import ParameterError

Floats = NDArray[np.float64]


def as_floats(values: object) -> Floats:
    """Convert arrays, lists, and tensors of any dtype, device and graph to float64."""
    if isinstance(values, (list, tuple)):
        return np.array([as_floats(value) for value in values], dtype=np.float64)
    if hasattr(values, "detach"):  # a torch tensor: NumPy takes neither bfloat16 nor what requires a gradient
        values = values.detach().double().cpu().numpy()
    return np.asarray(values, dtype=np.float64)


def finite_values(name: str, values: ArrayLike, *, low: float = -np.inf, high: float = np.inf) -> Floats:
    """Return the values as a non-empty array of finite floats within ``[low, high]``."""
    allowed = "finite numbers"
    allowed += f" >= {low:g}" if low > -np.inf else ""
    allowed += f" and <= {high:g}" if high < np.inf else ""
    try:
        array = as_floats(values)
    except (TypeError, ValueError):
        raise ParameterError(name, values, allowed) from None
    if array.size == 0:
        raise ParameterError(name, array.shape, f"{allowed}, at least one")
    good = np.isfinite(array) & (array >= low) & (array <= high)
    if not good.all():
        raise ParameterError(name, float(array[~good][0]), allowed)
    return array


def descending(name: str, values: ArrayLike) -> Floats:
    """Return the values, numbers >= 0 along one axis, in decreasing order."""
    array = finite_values(name, values, low=0.0)
    if array.ndim != 1:
        raise ParameterError(name, array.shape, "an array of shape (k,)")
    return np.sort(array)[::-1]


def matching(name: str, values: Floats, other_name: str, other: Floats, *, draws: bool = False) -> Floats:
    """Return the values, of the shape (k,) of ``other`` or, if draws are allowed, of shape (draws, k)."""
    if values.ndim not in ((1, 2) if draws else (1,)) or values.shape[-1] != len(other):
        count = len(other)
        allowed = f"({count},) or (draws, {count})" if draws else f"({count},)"
        raise ParameterError(name, values.shape, f"of shape {allowed}, as {other_name} has {count} entries")
    return values


def shares(name: str, values: ArrayLike, count: int) -> Floats:
    """Return the values as ``count`` shares in [0, 1], or NaN for a share of nothing."""
    array = as_floats(values)
    if array.shape != (count,):
        raise ParameterError(name, array.shape, f"of shape ({count},), one share per gate")
    finite_values(name, np.where(np.isnan(array), 0.0, array), low=0.0, high=1.0)
    return array
