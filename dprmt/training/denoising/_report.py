"""Effect of a denoising step, read from the released gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dprmt._validation import ParameterError
from dprmt.spectra import LayerReport, bulk_edge


@dataclass(frozen=True)
class LayerSpectrum:
    """All singular values of one layer, in decreasing order, in the units of the gradient.

    Attributes
    ----------
    noisy, denoised : array, shape (min(m, n),)
        Before and after the step; equal if the layer was left alone.
    """

    noisy: NDArray[np.float64]
    denoised: NDArray[np.float64]


@dataclass(frozen=True)
class DenoisingReport:
    """Effect of one denoising step on each layer.

    Attributes
    ----------
    sigma : float
        Standard deviation of the noise in one entry of the gradient, in the gradient's units. Where momenta are
        denoised, of the momentum in the optimizer's state, the largest if parameters have seen different numbers of
        steps.
    layers : dict of LayerReport
        By parameter: shape, top singular value over the bulk edge, number of spikes, whether it was replaced.
    spectra : dict of LayerSpectrum
        Spectra of the layers that `Denoising.spectra` selects.

    Formal guarantees
    -----------------
    A function of the released gradient, of σ (expected, not realised, batch size) and of the options: as private as
    the gradient, and no more private than it.

    Examples
    --------
    >>> report = DenoisingReport(0.5, {"head": LayerReport("head", (16, 144), 1.25, 1, True)})
    >>> report.edge("head"), report.top_singular_value("head"), report.replaced
    (8.0, 10.0, ('head',))
    """

    sigma: float
    layers: Mapping[str, LayerReport]
    spectra: Mapping[str, LayerSpectrum] = field(default_factory=dict)

    @property
    def replaced(self) -> tuple[str, ...]:
        """Names of the layers that passed the gate and were replaced."""
        return tuple(name for name, layer in self.layers.items() if layer.denoised)

    def edge(self, name: str) -> float:
        """Compute the bulk edge σ(√m + √n) of a matrix.

        Parameters
        ----------
        name : str
            Name of the parameter.

        Returns
        -------
        float
            In the units of the gradient.

        Raises
        ------
        ParameterError
            If no matrix has this name.
        """
        return bulk_edge(self._matrix(name).shape, self.sigma)

    def top_singular_value(self, name: str) -> float:
        """Return the largest singular value of the noisy matrix.

        Parameters
        ----------
        name : str
            Name of the parameter.

        Returns
        -------
        float
            In the units of the gradient. Infinite without noise, when nothing is decomposed. For a large matrix with
            nothing above the edge it is a lower bound, see `dprmt.spectra.LayerReport`.

        Raises
        ------
        ParameterError
            If no matrix has this name.
        """
        ratio = self._matrix(name).top_over_edge
        assert ratio is not None  # it is a matrix
        return float("inf") if self.sigma == 0 else ratio * self.edge(name)

    def _matrix(self, name: str) -> LayerReport:
        layer = self.layers.get(name)
        if layer is None or layer.top_over_edge is None:
            names = [key for key, value in self.layers.items() if value.top_over_edge is not None]
            raise ParameterError("name", name, f"one of the matrices, {names}")
        return layer
