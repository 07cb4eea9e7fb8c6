"""The lowest frequencies of one step's loss, one by one, on windows that no FFT could hold: (F6) of the theory, §6.

Where very many steps are composed on a fine mesh, the window has 10⁸ points, but the sum of their losses is so smooth
that some dozen frequencies tell all of it. That the others vanish is shown for all at once, without looking at each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from dprmt.accounting.basics import Array
from dprmt.accounting.composition._transforms import folded
from dprmt.accounting.pairs import complex_log1p

_EPS = float(np.finfo(np.float64).eps)
_SAMPLES = 2**18
_AT_A_TIME = 2**20
_SAFE = 1.0 - 1e-9


@dataclass(frozen=True)
class LowFrequencies:
    """Frequencies 0, …, K - 1 of a law on the integers, less a centre.

    Attributes
    ----------
    center : int
        What is taken off each index first.
    log_transform : ndarray of complex, shape (K,)
        Logarithm of the transform, accurate relative to its own size, however small.
    error : ndarray, shape (K,)
        Bound on the absolute error of the transform.
    """

    center: int
    log_transform: Array
    error: Array


def low_frequencies(index: NDArray[np.int64], weights: Array, size: int, number: int) -> LowFrequencies:
    """Lowest frequencies of a law on a window of ``size`` points: 1 plus sums of e^{-iθ} - 1, which do not cancel."""
    center = int(index[int(np.argmax(np.cumsum(weights) >= 0.5))])
    offset = index - center
    frequency = np.arange(number, dtype=np.int64)
    distance, moved = np.zeros(number, dtype=np.complex128), np.zeros(number)
    for start in range(0, number, max(_AT_A_TIME // index.size, 1)):
        rows = slice(start, start + max(_AT_A_TIME // index.size, 1))
        place = (frequency[rows, None] * (offset % size)) % size
        angle = 2.0 * np.pi * (np.where(2 * place > size, place - size, place) / size)
        distance[rows] = -2.0 * (np.sin(angle / 2.0) ** 2 @ weights) - 1j * (np.sin(angle) @ weights)
        moved[rows] = np.abs(angle) @ weights
    # n additions, and some roundings of weight, angle and sine: each relative to what the outcome is moved by.
    return LowFrequencies(center, complex_log1p(distance), (index.size + 32) * _EPS * moved)


def number_that_matters(index: NDArray[np.int64], weights: Array, size: int, log_least: float) -> int:
    """How many of the lowest frequencies may exceed e^{log_least} in modulus: all others do not, by (F6).

    Returns: ``size`` if this cannot be shown of any.
    """
    center = int(index[int(np.argmax(np.cumsum(weights) >= 0.5))])
    offset = (index - center).astype(np.float64)
    spacing = 2.0 * np.pi / _SAMPLES
    modulus = np.abs(fft.rfft(folded(index - center, weights[None], _SAMPLES)[0]))
    between = 0.5 * spacing * float(weights @ np.abs(offset)) / _SAFE
    bound = modulus + between + 8 * _EPS * np.log2(_SAMPLES)
    small = np.maximum.accumulate(bound[::-1])[::-1] <= np.exp(log_least) * (1.0 - 8 * _EPS)
    if not small.any():
        return size
    first = (int(np.argmax(small)) - 0.5) * spacing  # from there on, the samples show it
    if first <= 0.0:
        return 1
    near = np.abs(offset) <= 0.5 * np.pi / first
    mass, mean, square = (float(weights[near] @ offset[near] ** power) for power in (0, 1, 2))
    spread = 2.0 * (mass * square - mean**2) * _SAFE - 1e-12 * mass * square
    enough = np.pi * np.sqrt(-log_least / spread) / _SAFE if spread > 0.0 else np.inf
    return int(min(enough, first) * size / (2.0 * np.pi)) + 2
