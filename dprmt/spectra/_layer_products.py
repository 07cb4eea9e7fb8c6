"""Inner products of gradients and updates: one number, or one a layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dprmt._validation import ParameterError
from dprmt.spectra._arrays import Array, MatrixT, as_array, check_finite, detached, to_float64

Layers: TypeAlias = MatrixT | Mapping[str, MatrixT]
"""A whole gradient as one array of any shape, or its layers by name."""


def layer_products(first: Any, second: Any = None) -> float | NDArray[np.float64]:
    """Inner products of two gradients, updates or directions, layer by layer.

    Parameters
    ----------
    first : array or mapping of str to array
        NumPy or torch, of any shape, dtype of floating point and device.
    second : array or mapping of str to array, optional
        Of the same shapes and names; ``first`` itself, for squared norms, if absent.

    Returns
    -------
    float or array, shape (layers,)
        In double precision; one number for arrays, one a layer for mappings, in the order of ``first``. Their sum is
        the inner product of the whole.

    Raises
    ------
    ParameterError
        If names or shapes differ, or an entry is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> layer_products({"A": np.ones((2, 3)), "b": np.array([2.0])})
    array([6., 4.])
    >>> layer_products(np.array([1.0, 2.0]), np.array([3.0, -1.0]))
    1.0
    """
    second = first if second is None else second
    if not isinstance(first, Mapping):
        return _product("first", first, "second", second)
    if not isinstance(second, Mapping) or first.keys() != second.keys():
        named = sorted(second) if isinstance(second, Mapping) else type(second).__name__
        raise ParameterError("second", named, f"a mapping with the names {sorted(first)}")
    return np.array([_product(name, value, name, second[name]) for name, value in first.items()])


def layer_sizes(layers: Any) -> int | NDArray[np.int64]:
    """Numbers of entries: one, or one a layer."""
    if not isinstance(layers, Mapping):
        return int(np.prod(as_array("noisy", layers).shape))
    return np.array([int(np.prod(as_array(name, value).shape)) for name, value in layers.items()])


def _product(name: str, first: Any, other: str, second: Any) -> float:
    one, two = _flat(name, first), _flat(other, second)
    if one.shape != two.shape:
        raise ParameterError(other, tuple(np.shape(second)), f"of the shape of {name}, {tuple(np.shape(first))}")
    return float((one * two).sum())


def _flat(name: str, values: Any) -> Array:
    array = detached(as_array(name, values))
    check_finite(name, array)
    return to_float64(array).reshape(-1)
