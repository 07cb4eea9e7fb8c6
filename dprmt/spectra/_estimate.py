"""An estimate with the interval that it comes with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = float | NDArray[np.float64]
"""One number, or one a layer in the order of a mapping."""


@dataclass(frozen=True)
class Estimate:
    """An estimate and a confidence interval, of one quantity or of one a layer.

    Attributes
    ----------
    value : float or array, shape (layers,)
        The estimate; it need not lie in the range of what is estimated: an unbiased estimate of a square can be
        negative.
    low, high : float or array, shape (layers,)
        Ends of the interval, which may be infinite.

    Examples
    --------
    >>> Estimate(1.0, 0.5, 1.5).scaled(-2.0)
    Estimate(value=-2.0, low=-3.0, high=-1.0)
    """

    value: Numbers
    low: Numbers
    high: Numbers

    def scaled(self, factor: float) -> Estimate:
        """Estimate of a multiple of the quantity.

        Parameters
        ----------
        factor : float
            Of either sign.

        Returns
        -------
        Estimate
            With its ends in order.
        """
        ends = (self.low * factor, self.high * factor)
        low, high = ends if factor >= 0 else ends[::-1]
        return Estimate(self.value * factor, low, high)


def as_numbers(values: object) -> NDArray[np.float64]:
    """One number or one a layer, in double precision."""
    return np.asarray(values, dtype=np.float64)


def estimate(value: object, low: object, high: object) -> Estimate:
    """The estimate of arrays, of which those without axes become numbers."""
    arrays = np.broadcast_arrays(as_numbers(value), as_numbers(low), as_numbers(high))
    return Estimate(*(float(array) if array.ndim == 0 else np.array(array) for array in arrays))
