"""Singular values of one matrix, compared with the level of its noise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from dprmt import _html
from dprmt._validation import ParameterError, check_real
from dprmt.spectra._arrays import MatrixT, check_matrix, numbers
from dprmt.spectra._noise_level import ROUNDING, NoiseFit, clear_spikes, noise_fit, other_noise, spectrum_sigma
from dprmt.spectra._phase_transition import (
    bulk_edge,
    detection_threshold,
    predicted_spectrum,
    shrink,
    spike_map_inverse,
    vector_overlaps,
)
from dprmt.spectra._tracy_widom import false_alarm_rate, kappa_for, visible_signal

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Spike:
    """A singular value above the gate.

    Attributes
    ----------
    observed : float
        The singular value of the noisy matrix.
    signal : float
        The clean singular value that causes it.
    shrunk : float
        The value after the Frobenius shrinker.
    left_overlap, right_overlap : float
        Predicted squared overlaps of its singular vectors with the clean ones.
    """

    observed: float
    signal: float
    shrunk: float
    left_overlap: float
    right_overlap: float


@dataclass(frozen=True, eq=False, repr=False)
class NoisySpectrum:
    """Singular values of a noisy matrix and the scales of its noise; a notebook shows a table and a plot.

    Attributes
    ----------
    shape : tuple of int
        Rows m and columns n.
    sigma : float
        Standard deviation of one entry of the noise.
    bulk_edge, detection_threshold : float
        Approximate largest singular value of noise, and the smallest clean value that leaves the bulk in the limit of
        large matrices. At finite size such a value is detected in a few per cent of draws only.
    gate : float
        Threshold above which a singular value is a spike.
    visible : float
        The smallest clean value that passes the gate in 95 % of draws (`visible_signal`).
    false_alarm : float
        Probability that the largest singular value of noise alone exceeds the gate; at most the requested rate.
    singular_values : array, shape (min(m, n),)
        Singular values in decreasing order.
    spikes : tuple of Spike
        Spikes of the values above the gate, in the same order.
    fit : NoiseFit
        Estimated noise level, and whether white noise of the stated level explains the rest.
    matrix : array, shape (m, n), or None
        The matrix; None for a spectrum that was read from a record.
    """

    shape: tuple[int, int]
    sigma: float
    bulk_edge: float
    detection_threshold: float
    gate: float
    false_alarm: float
    singular_values: Floats
    spikes: tuple[Spike, ...]
    visible: float
    fit: NoiseFit
    matrix: Floats | None = None

    @property
    def top_over_edge(self) -> float:
        """The top singular value in units of the bulk edge."""
        return float(self.singular_values[0]) / self.bulk_edge if self.bulk_edge > 0 else math.inf

    @property
    def stable_rank(self) -> float:
        """Squared Frobenius norm over squared largest singular value."""
        return float(np.sum((self.singular_values / self._unit) ** 2))

    @property
    def effective_rank(self) -> float:
        """Exponential of the entropy of the singular values' shares of their sum."""
        shares = self.singular_values / self._unit
        shares = shares[shares > 0] / shares.sum()
        return float(np.exp(-np.sum(shares * np.log(shares))))

    @property
    def energy_above_edge(self) -> float:
        """Share of the squared Frobenius norm in singular values above the bulk edge, in [0, 1]."""
        squares = (self.singular_values / self._unit) ** 2
        return float(squares[self.singular_values > self.bulk_edge].sum() / squares.sum())

    @property
    def _unit(self) -> float:
        return float(self.singular_values[0]) or 1.0

    @cached_property
    def vectors(self) -> tuple[Floats, Floats]:
        """Singular vectors of the spikes: left ones as columns of (m, k), right ones as columns of (n, k)."""
        count = len(self.spikes)
        if self.matrix is None:
            raise ParameterError("matrix", None, "kept: a spectrum from a record has no singular vectors")
        left, _, right = np.linalg.svd(self.matrix, full_matrices=False)
        return left[:, :count], right[:count].T

    @property
    def clean(self) -> Floats:
        """The estimate of the clean matrix: spikes with shrunk values, zeros if there is none."""
        left, right = self.vectors
        return np.asarray(left * np.array([spike.shrunk for spike in self.spikes]) @ right.T)

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Draw the histogram of the singular values against the law of the noise; without noise, the sorted values.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Where to draw; a new figure otherwise.
        **options
            Of `dprmt.plots.plot_spectrum_histogram`, or of `dprmt.plots.plot_singular_values`.

        Returns
        -------
        matplotlib.axes.Axes
            The axes.
        """
        from dprmt.plots import plot_singular_values, plot_spectrum_histogram

        draw = plot_spectrum_histogram if self.sigma > 0 else plot_singular_values
        return draw(self.singular_values, self.shape, self.sigma, ax=ax, **options)

    def predicted(self) -> Floats:
        """Return the singular values by the law of the noise, given as many spikes.

        Returns
        -------
        array, shape (min(m, n),)
            In decreasing order.
        """
        signals = np.array([spike.signal for spike in self.spikes])
        return np.asarray(predicted_spectrum(signals, self.shape, self.sigma))

    def as_dict(self) -> dict[str, Any]:
        """Convert all fields to JSON values.

        Returns
        -------
        dict
            The attributes by name.
        """
        scales = "sigma", "bulk_edge", "detection_threshold", "gate", "false_alarm", "visible"
        ranks = "stable_rank", "effective_rank", "energy_above_edge"
        return {
            "shape": list(self.shape),
            **{name: getattr(self, name) for name in scales},
            "estimated_sigma": self.fit.sigma,
            "fit": {name: getattr(self.fit, name) for name in ("distance", "p_value", "verdict", "entries")},
            **{name: getattr(self, name) for name in ranks},
            "singular_values": self.singular_values.tolist(),
            "spikes": [asdict(spike) for spike in self.spikes],
        }

    def __str__(self) -> str:
        rate = f"noise alone has one above it in {100 * self.false_alarm:.3g} % of such matrices"
        top = f"the largest is {float(self.singular_values[0]):.4g}, the gate {self.gate:.4g}; {rate}"
        many = f"{len(self.spikes)} of {len(self.singular_values)} singular values"
        verdict = f"{many} above the gate" if self.spikes else "no singular value that can be told from noise"
        rows, columns = self.shape
        doubt = "" if self.fit.fits else f" But: {self.fit.verdict}."
        return f"{rows} x {columns} matrix in noise of standard deviation {self.sigma:g}: {verdict} ({top}).{doubt}"

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"<{type(self).__name__} of {rows} x {columns}, sigma={self.sigma:g}, spikes={len(self.spikes)}>"

    def _repr_html_(self) -> str:
        names = ["observed", "clean", "shrunk", "left overlap", "right overlap"]
        rows = [[*(f"{value:.4g}" for value in asdict(spike).values())] for spike in self.spikes[:8]]
        more = [_html.sentence(f"and {len(self.spikes) - 8} more")] if len(self.spikes) > 8 else []
        return _html.block(_html.sentence(str(self)), _html.table(names, rows) if rows else "", *more)


def noisy_spectrum(matrix: MatrixT, sigma: float, *, false_alarm: float = 0.01) -> NoisySpectrum:
    """Compute the singular values of a matrix in float64, and find those above noise of a known level.

    Parameters
    ----------
    matrix : array or Tensor, shape (m, n)
        The noisy matrix.
    sigma : float
        Standard deviation of one entry of the noise, >= 0; with 0 every value above rounding is signal.
    false_alarm : float
        Probability in (0, 1) that a matrix of noise alone has a spike.

    Returns
    -------
    NoisySpectrum
        It prints as a sentence; a notebook shows its spikes and a plot.

    Raises
    ------
    ParameterError
        If the matrix is not a finite matrix of real numbers, or a number is out of its range.

    Formal guarantees
    -----------------
    None about privacy: the result is as private as the matrix. The largest singular value of pure Gaussian noise
    exceeds ``gate`` with probability ``false_alarm``, up to the error of `kappa_for`.

    References
    ----------
    Eqs. 3 to 6 and 9 of arXiv:2510.01137v3; Ma (2012), arXiv:1203.0839, for the gate.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> spectrum = noisy_spectrum(0.01 * rng.standard_normal((256, 768)) + 1 / 768, sigma=0.01)
    >>> print(spectrum)  # doctest: +NORMALIZE_WHITESPACE
    256 x 768 matrix in noise of standard deviation 0.01: 1 of 256 singular values above the gate (the largest is
    0.6641, the gate 0.4415; noise alone has one above it in 1 % of such matrices).
    >>> [round(spike.signal, 2) for spike in spectrum.spikes]
    [0.58]
    """
    values = numbers(check_matrix("matrix", matrix))
    m, n = int(values.shape[0]), int(values.shape[1])
    observed = np.asarray(np.linalg.svdvals(values))
    return replace(spectrum_of_values(observed, (m, n), sigma, false_alarm, GramSpectrum(values)), matrix=values)


def spectrum_of_values(
    observed: Floats,
    shape: tuple[int, int],
    sigma: float | None,
    false_alarm: float,
    matrix: GramSpectrum | None = None,
) -> NoisySpectrum:
    """Build the spectrum of singular values in decreasing order, and test the entries of the matrix if it is given.

    ``sigma``: estimated if it is None.
    """
    own = spectrum_sigma(observed, shape, ROUNDING)
    sigma = own if sigma is None else check_real("sigma", sigma, low=0.0)
    if sigma == 0:  # every value above rounding is signal
        gate = 4 * ROUNDING * max(shape) * float(observed[0])
        spikes = tuple(Spike(value, value, value, 1.0, 1.0) for value in observed[observed > gate].tolist())
        fit = noise_fit(observed, shape, 1.0, len(spikes), "")
        return NoisySpectrum(shape, 0.0, 0.0, 0.0, gate, false_alarm, observed, spikes, 0.0, fit)
    edge, threshold, kappa = bulk_edge(shape, sigma), detection_threshold(shape, sigma), kappa_for(shape, false_alarm)
    rate = false_alarm if kappa > 1 else false_alarm_rate(shape, 1.0)
    above = observed[observed > kappa * edge]
    spikes = ()
    if len(above):
        signals = spike_map_inverse(above, shape, sigma)
        columns = above, signals, shrink(above, shape, sigma), *vector_overlaps(signals, shape, sigma)
        spikes = tuple(Spike(*row) for row in np.stack(columns, axis=1).tolist())
    visible = visible_signal(shape, sigma, false_alarm)
    clear = clear_spikes(observed, shape, own)
    clear = clear if 4 * clear <= len(observed) else min(clear, clear_spikes(observed, shape, sigma))
    entries = ""
    if matrix is not None and 4 * clear <= len(observed):  # else little would be left
        entries = other_noise(matrix.blocks(without=clear), matrix.tall)
    fit = noise_fit(observed, shape, sigma, len(spikes), entries)
    return NoisySpectrum(shape, sigma, edge, threshold, kappa * edge, rate, observed, spikes, visible, fit)


class GramSpectrum:
    """The singular values of a matrix, and what is left without its leading vectors, in the memory of a Gram matrix.

    The Gram matrix of the shorter side, of length r, is summed in float64 over blocks of the longer side, and made
    tridiagonal in place: 8r² bytes, without a copy of the matrix. A square s² has an error of some ``2⁻⁵⁰ s₁²``, s₁
    the top value. So s has an error of about ``2⁻⁵⁰ s₁²/s``, and at most ``2⁻²³ s₁``, as rounding to float32 has.
    """

    def __init__(self, matrix: NDArray[Any]) -> None:
        self.tall = len(matrix) > matrix.shape[1]
        self._wide = matrix.T if self.tall else matrix
        self._unit = math.ldexp(1.0, math.frexp(largest_entry(matrix))[1] - 1)

    @cached_property
    def _tridiagonal(self) -> tuple[Floats, Floats, Floats, Floats]:
        # Diagonal, subdiagonal, reflectors below it, and their scales.
        rows = len(self._wide)
        gram = np.zeros((rows, rows), order="F")
        for block in self.blocks():
            gram = scipy.linalg.blas.dsyrk(1.0, block, 1.0, gram, lower=1, overwrite_c=1)
        work = int(scipy.linalg.lapack.dsytrd_lwork(rows, lower=1)[0])
        gram, diagonal, below, scales, _ = scipy.linalg.lapack.dsytrd(gram, lower=1, lwork=work, overwrite_a=1)
        return diagonal, below, gram, scales

    @cached_property
    def values(self) -> Floats:
        """All singular values, in decreasing order."""
        diagonal, below, _, _ = self._tridiagonal
        squares = scipy.linalg.eigvalsh_tridiagonal(diagonal, below, lapack_driver="sterf")
        return np.asarray(self._unit * np.sqrt(np.clip(squares[::-1], 0.0, None)))

    def _leading(self, count: int) -> Floats:
        # Singular vectors of the shorter side.
        diagonal, below, reflectors, scales = self._tridiagonal
        last, choice = len(diagonal) - 1, {"select": "i", "lapack_driver": "stemr"}
        place = (last + 1 - count, last)
        vectors = scipy.linalg.eigh_tridiagonal(diagonal, below, select_range=place, **choice)[1]
        # The reflectors are the columns below the diagonal: a view that starts one entry later, with a row more.
        shifted = reflectors.ravel("F")[1 : 1 + last * len(diagonal)].reshape((len(diagonal), last), order="F")
        vectors[1:] = scipy.linalg.lapack.dormqr("L", "N", shifted, scales, vectors[1:], 64 * count)[0]
        vectors[~self._wide.any(1)] = 0.0
        return np.asarray(vectors)

    def blocks(self, without: int = 0) -> Iterator[Floats]:
        """Yield columns of the wide matrix in float64, in a unit near its largest entry, without leading vectors."""
        rows, columns = self._wide.shape
        width = max(128, 2**17 // rows)  # of a MiB, or more where thin products would be slow
        leading = self._leading(without) if without else None
        for start in range(0, columns, width):
            block = np.divide(self._wide[:, start : start + width], self._unit, order="F", dtype=np.float64)
            if leading is not None:
                block -= leading @ (leading.T @ block)
            yield block


def largest_entry(matrix: NDArray[Any]) -> float:
    """Return the largest absolute value; NaN if there is one among the entries."""
    return max(float(matrix.max()), -float(matrix.min()))
