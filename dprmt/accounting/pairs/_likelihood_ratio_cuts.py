r"""Where to cut the law of the likelihood ratio V of one step, so that a sum of t copies of it is accurate.

Ratios up to a boundary lie on a linear grid and are summed by FFT; larger ones, if that would be too long a grid, are
rare large summands: (R4) and (R6) of ``docs/theory/random_allocation.md``. Nothing here makes a bound wrong, only wide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dprmt.accounting.basics import Array
from dprmt.accounting.pairs._cells import StepPair
from dprmt.accounting.pairs._likelihood_ratio import ratio_cells

_LARGE = 5.0  # losses beyond which nodes are further and further apart
_LARGEST_LOSS = 300.0  # e^300 squared is still a number
_POINTS = 2**17  # of a linear grid, beyond which large ratios are convolved apart
_MOST_POINTS = 2**21
_EXPECTED_LARGE = 0.02  # expected number of large ratios in an epoch
_MESH, _SPACING = 0.03, 0.015  # of the grid in deviations of V, of larger nodes in deviations of log V
_ACCURACY = 2e-4  # wanted in ε, at the first level


@dataclass(frozen=True)
class RatioPlan:
    """Cells for V.

    Attributes
    ----------
    mesh : float
        Spacing of the linear grid.
    small : ndarray of int64, shape (n + 1,)
        Nodes on the grid, in units of ``mesh``; the first is 0.
    large : ndarray, shape (m,)
        Nodes beyond the grid, if any.
    """

    mesh: float
    small: NDArray[np.int64]
    large: Array

    def nodes(self) -> Array:
        """All nodes."""
        return np.concatenate([self.small * self.mesh, self.large])


def ratio_plan(pair: StepPair, deviation: float, copies: int, fineness: float, tail: float) -> RatioPlan:
    """Nodes for a law of V."""
    low, high = pair.loss_range(tail)
    low, high = max(low, -_LARGEST_LOSS), min(high, _LARGEST_LOSS)
    ratio, mass = _rough_law(pair, low, high)
    boundary, mesh = float(np.exp(high)), _mesh(ratio, mass, np.exp(high), copies, fineness, tail)
    if (2 * boundary + copies) / mesh > _POINTS:
        beyond = np.cumsum(mass[::-1])[::-1] * copies <= _EXPECTED_LARGE
        boundary = min(max(float(ratio[beyond].min(initial=boundary)), (_POINTS * mesh - copies) / 8), boundary)
        mesh = _mesh(ratio, mass, boundary, copies, fineness, tail)
        mesh = max(mesh, (2 * boundary + 20 * np.sqrt(copies) * _deviation(ratio, mass, boundary)) / _MOST_POINTS)
    losses = _graded_losses(low, high, min(deviation, 3.0) * _SPACING * fineness)
    middle = float(np.log(boundary))
    small = np.unique(np.rint(np.exp(losses[losses < middle]) / mesh).astype(np.int64))
    small = np.unique(np.concatenate([[0], small, [int(np.ceil(boundary / mesh))]]))
    large = np.empty(0)
    if boundary < np.exp(high):
        large = np.exp(
            _graded_losses(float(np.log(small[-1] * mesh)), high, 2 * min(deviation, 3.0) * _SPACING * fineness)
        )
        large = large[1:]
    return RatioPlan(mesh, small, large)


def _graded_losses(low: float, high: float, spacing: float) -> Array:
    """From ``low`` to ``high`` and past it, in steps that grow with the loss where it is large."""
    inner = np.arange(low, min(high, max(low, _LARGE)) + spacing, spacing)
    if high <= inner[-1]:
        return inner
    growth = 1.0 + spacing / inner[-1]
    count = int(np.ceil(np.log(high / inner[-1]) / np.log(growth))) + 1
    return np.concatenate([inner, inner[-1] * growth ** np.arange(1, count + 1, dtype=np.int64)])


def _rough_law(pair: StepPair, low: float, high: float) -> tuple[Array, Array]:
    nodes = np.append(0.0, np.exp(np.linspace(low, high, 257)))
    cells = ratio_cells(pair, nodes)
    return np.append(cells.means(), nodes[-1]), np.append(cells.mass, cells.mass_above)


def _deviation(ratio: Array, mass: Array, boundary: float) -> float:
    small = np.minimum(ratio, boundary)
    return float(np.sqrt(mass @ (small - mass @ small) ** 2))


def _mesh(ratio: Array, mass: Array, boundary: float, copies: int, fineness: float, tail: float) -> float:
    """The mesh that suffices for the bulk, and for the lower tail of the sum, where adding a sample is decided."""
    # Spreading on a mesh h multiplies E e^{-θV} by up to e^{θ²h²/12}, so it moves the ε of the add direction, whose
    # slope is θ·E[sum] of the tilted law, by θh²/12 over the tilted mean.
    small = np.minimum(ratio, boundary)
    mean = float(mass @ small)
    theta = np.exp(np.linspace(-8.0, 12.0, 81)) / max(mean, 1e-300)
    weight = np.exp(-np.multiply.outer(theta, small)) * mass
    total = np.maximum(weight.sum(axis=1), 1e-300)
    tilted_mean = weight @ small / total
    exponent = -copies * (np.log(total) + theta * tilted_mean)
    place = min(int(np.searchsorted(exponent, max(-np.log(tail) - 9.0, 5.0))), theta.size - 1)
    wanted = _ACCURACY * max(1.0, -float(np.log(max(tilted_mean[place], 1e-300))))
    for_add = np.sqrt(12 * wanted * tilted_mean[place] / theta[place])
    return fineness * float(min(for_add, _MESH * _deviation(ratio, mass, boundary)))
