"""One matrix's singular values and what the noise level says about them, as the command line reports it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprmt.spectra import NoisySpectrum, noisy_spectrum, noisy_spectrum_from_dict

LARGEST_ENTRY = 1e100
FALSE_ALARM = 0.01
_MOST_AXES = 5  # of a kernel of a convolution in three dimensions


@dataclass(frozen=True, eq=False, repr=False)
class MatrixSpectrum(NoisySpectrum):
    """The spectrum of a matrix of a file.

    Attributes
    ----------
    name : str
        Of the matrix in its file.
    array_shape : tuple of int
        Of the array as it was: longer for the kernel of a convolution.
    """

    name: str
    array_shape: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        """All of it in types that JSON knows."""
        return {"name": self.name, "array_shape": list(self.array_shape), **super().as_dict()}


def as_matrix(array: NDArray[Any]) -> NDArray[Any]:
    """A matrix as it is; the kernel (out, in, …) of a convolution as the matrix (out, in·…) that its outputs are of.

    Examples
    --------
    >>> as_matrix(np.zeros((64, 32, 3, 3))).shape
    (64, 288)
    """
    return array if array.ndim == 2 else array.reshape(array.shape[0], -1)


def matrix_spectrum(name: str, array: NDArray[Any], sigma: float, false_alarm: float = FALSE_ALARM) -> MatrixSpectrum:
    """Singular values of a matrix or kernel, in float64, and what they say at this noise level.

    Examples
    --------
    >>> spectrum = matrix_spectrum("query", np.diag([30.0, 1.0]), sigma=1.0)
    >>> round(spectrum.bulk_edge, 3), len(spectrum.spikes), round(spectrum.spikes[0].signal, 3)
    (2.828, 1, 29.933)
    """
    spectrum = noisy_spectrum(as_matrix(array), sigma, false_alarm=false_alarm)
    return MatrixSpectrum(**vars(spectrum), name=name, array_shape=tuple(map(int, array.shape)))


def recorded_spectrum(record: Mapping[str, Any], false_alarm: float) -> MatrixSpectrum:
    """What :meth:`MatrixSpectrum.as_dict` described, at this rate of false alarms."""
    spectrum = noisy_spectrum_from_dict(record, false_alarm=false_alarm)
    return MatrixSpectrum(**vars(spectrum), name=str(record["name"]), array_shape=tuple(record["array_shape"]))


def why_not(array: NDArray[Any]) -> str | None:
    """What keeps an array from being a matrix, or a kernel, with a spectrum, in words; None if nothing does.

    Examples
    --------
    >>> why_not(np.zeros(3)), why_not(np.zeros((2, 3)))
    ('has shape (3,)', None)
    """
    if array.dtype.kind != "f":
        return f"holds {array.dtype.name} numbers"
    if not 2 <= array.ndim <= _MOST_AXES or 0 in array.shape:
        return f"has shape {array.shape}"
    return None


def is_usable(matrix: NDArray[Any]) -> bool:
    """Whether all entries are finite and far from overflow."""
    largest = float(np.abs(matrix).max())
    return math.isfinite(largest) and largest <= LARGEST_ENTRY
