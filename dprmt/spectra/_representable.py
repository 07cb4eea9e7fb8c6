"""Results in the range of the dtype in which the matrices came: rescaled if that fits, never infinite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dprmt._validation import ParameterError
from dprmt.spectra._arrays import Array, array_namespace, cast_like, to_float64


def representable(matrices: Array, unit: Array, fallback: Array, dtype: Any, names: Sequence[str]) -> Array:
    """Matrices back from their units, each times its fallback factor if it would otherwise leave the range.

    Returns: ``matrices`` itself, with entries that are finite in ``dtype``.
    """
    xp = array_namespace(matrices)
    unit = to_float64(unit)
    as_they_are = bool((unit == 1).all())
    if len(matrices) == 0 or (as_they_are and xp.finfo(dtype).max >= xp.finfo(matrices.dtype).max):
        return matrices
    peaks = to_float64(xp.maximum(xp.amax(matrices, (-2, -1)), -xp.amin(matrices, (-2, -1))))
    limit = float(xp.finfo(dtype).max)
    with np.errstate(over="ignore"):
        factors = xp.where(peaks * unit <= limit, unit, unit * to_float64(fallback))
        reached = (peaks * factors).tolist()
    for name, peak in zip(names, reached, strict=True):
        if peak > limit:
            allowed = f"a matrix whose denoised version fits {dtype}, entries up to {limit:g}; its largest entry"
            raise ParameterError(name, peak, allowed)
    if not bool((factors == 1).all()):
        matrices *= cast_like(factors, matrices)[:, None, None]
    return matrices
