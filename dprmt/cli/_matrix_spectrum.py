"""One matrix's singular values and what the noise level says about them, as the command line reports it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprmt.spectra import bulk_edge, detection_threshold, predicted_spectrum, shrink, spike_map_inverse, vector_overlaps

Floats = NDArray[np.float64]
LARGEST_ENTRY = 1e100
_MOST_AXES = 5  # of a kernel of a convolution in three dimensions


@dataclass(frozen=True)
class Spike:
    """A singular value above the bulk edge.

    Attributes
    ----------
    observed : float
        The singular value of the noisy matrix.
    signal : float
        The clean singular value that causes it.
    shrunk : float
        What the Frobenius shrinker makes of it.
    left_overlap, right_overlap : float
        Predicted squared overlaps of its singular vectors with the clean ones.
    """

    observed: float
    signal: float
    shrunk: float
    left_overlap: float
    right_overlap: float


@dataclass(frozen=True)
class MatrixSpectrum:
    """The singular values of a noisy matrix beside the scales of its noise.

    Attributes
    ----------
    name : str
        Of the matrix in its file.
    shape : tuple of int
        Rows and columns.
    array_shape : tuple of int
        Of the array as it was: longer for the kernel of a convolution.
    sigma : float
        Standard deviation of one entry of the noise.
    bulk_edge, detection_threshold : float
        Where noise ends, and the smallest clean value that shows.
    singular_values : array, shape (min(m, n),)
        In decreasing order.
    spikes : tuple of Spike
        Of the values above the bulk edge, in the same order.
    """

    name: str
    shape: tuple[int, int]
    array_shape: tuple[int, ...]
    sigma: float
    bulk_edge: float
    detection_threshold: float
    singular_values: Floats
    spikes: tuple[Spike, ...]

    @property
    def top_over_edge(self) -> float:
        """The top singular value in units of the bulk edge."""
        return float(self.singular_values[0]) / self.bulk_edge

    def predicted(self) -> Floats:
        """Singular values by the law of the noise, given as many spikes."""
        signals = np.array([spike.signal for spike in self.spikes])
        return np.asarray(predicted_spectrum(signals, self.shape, self.sigma))

    def as_dict(self) -> dict[str, Any]:
        """All of it in types that JSON knows."""
        return {
            "name": self.name,
            "shape": list(self.shape),
            "array_shape": list(self.array_shape),
            "sigma": self.sigma,
            "bulk_edge": self.bulk_edge,
            "detection_threshold": self.detection_threshold,
            "singular_values": self.singular_values.tolist(),
            "spikes": [asdict(spike) for spike in self.spikes],
        }


def as_matrix(array: NDArray[Any]) -> NDArray[Any]:
    """A matrix as it is; the kernel (out, in, …) of a convolution as the matrix (out, in·…) that its outputs are of.

    Examples
    --------
    >>> as_matrix(np.zeros((64, 32, 3, 3))).shape
    (64, 288)
    """
    return array if array.ndim == 2 else array.reshape(array.shape[0], -1)


def matrix_spectrum(name: str, array: NDArray[Any], sigma: float) -> MatrixSpectrum:
    """Singular values of a matrix or kernel, in float64, and what they say at this noise level.

    Examples
    --------
    >>> spectrum = matrix_spectrum("query", np.diag([30.0, 1.0]), sigma=1.0)
    >>> round(spectrum.bulk_edge, 3), len(spectrum.spikes), round(spectrum.spikes[0].signal, 3)
    (2.828, 1, 29.933)
    """
    matrix = as_matrix(array)
    m, n = shape = int(matrix.shape[0]), int(matrix.shape[1])
    values = np.asarray(np.linalg.svdvals(np.asarray(matrix, dtype=np.float64)))
    edge, threshold = bulk_edge(shape, sigma), detection_threshold(shape, sigma)
    spikes = _spikes(values[values > edge], (m, n), sigma)
    return MatrixSpectrum(name, shape, tuple(map(int, array.shape)), sigma, edge, threshold, values, spikes)


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


def _spikes(observed: Floats, shape: tuple[int, int], sigma: float) -> tuple[Spike, ...]:
    if len(observed) == 0:
        return ()
    signals = spike_map_inverse(observed, shape, sigma)
    columns = observed, signals, shrink(observed, shape, sigma), *vector_overlaps(signals, shape, sigma)
    return tuple(Spike(*row) for row in np.stack(columns, axis=1).tolist())
