"""A product of many transforms, each to its power, with what rounding can do to it: (F2) of the theory, §6."""

from __future__ import annotations

import numpy as np
from scipy import fft

from dprmt.accounting.basics import Array

_EPS = float(np.finfo(np.float64).eps)
_LOG_NOTHING, _LOG_UNCHARGED = -80.0, -120.0
_FFT_POINTS = 2**17
"""Points that are transformed at a time: they fit into the cache."""


class PowerProduct:
    """The transform of a sum of independent losses on a window of ``size`` points, factor by factor.

    Frequencies at which the product is too small to be seen are dropped on the way.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.unit = 8 * _EPS * float(np.log2(size))
        self.frequency = np.arange(size // 2 + 1, dtype=np.int64)
        self.value = np.ones(self.frequency.size, dtype=np.complex128)
        self.log_bound = np.zeros(self.frequency.size)
        self.relative = np.ones(self.frequency.size)

    def multiply(self, index: Array, weights: Array, counts: Array) -> None:
        """Multiply by transforms of laws with ``weights``, shape (laws, n), at grid indices, each to its own power."""
        rows = max(_FFT_POINTS // self.size, 1)
        for start in range(0, counts.size, rows):
            part = slice(start, start + rows)
            transforms = fft.rfft(folded(index, weights[part], self.size), axis=-1)
            self.multiply_transforms(transforms[:, self.frequency], counts[part])

    def multiply_transforms(self, transforms: Array, counts: Array) -> None:
        """Multiply by transforms at the frequencies that are left, shape (laws, frequencies)."""
        padded = np.abs(transforms) + self.unit
        self.log_bound += counts @ np.log(padded)
        self.relative += 2.0 * counts @ (1.0 / padded)
        seen = self.log_bound > _LOG_UNCHARGED
        if not np.all(seen):
            transforms = transforms[:, seen]
            self.frequency, self.value = self.frequency[seen], self.value[seen]
            self.log_bound, self.relative = self.log_bound[seen], self.relative[seen]
        for transform, count in zip(transforms, counts.tolist(), strict=True):
            self.value *= power(transform, int(count))

    def inverse(self) -> Array:
        """The law of the sum, with negative masses where rounding left some."""
        spectrum = np.zeros(self.size // 2 + 1, dtype=np.complex128)
        spectrum[self.frequency] = self.value
        mass: Array = fft.irfft(spectrum, self.size)
        return mass

    def rounding(self) -> float:
        """Bound on the summed rounding error of transforms, powers and inverse (F2)."""
        # What is left out adds less than e^{-120} · T / unit in all.
        return 2 * self.unit * float(np.linalg.norm(np.exp(self.log_bound) * self.relative)) + 1e-25


def folded(index: Array, weights: Array, size: int) -> Array:
    """Weights at grid indices, shape (laws, n), wrapped around a window."""
    place = (index % size).astype(np.intp)
    if index[-1] - index[0] < size:
        whole = np.zeros((weights.shape[0], size))
        whole[:, place] = weights
        return whole
    return np.array([np.bincount(place, weights=row, minlength=size) for row in weights])


def power(transform: Array, count: int) -> Array:
    """Its power; 0 where that is below e^{-80}, as at most frequencies."""
    with np.errstate(divide="ignore"):
        seen = np.log(np.abs(transform)) * count > _LOG_NOTHING
    result = np.zeros_like(transform)
    result[seen] = transform[seen] ** count
    return result
