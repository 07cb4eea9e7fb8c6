"""One matrix's singular values, and what the level of its noise says about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprmt import _html
from dprmt._validation import ParameterError, check_count, check_real
from dprmt.spectra._arrays import (
    MatrixT,
    check_matrices,
    detached,
    is_tensor,
    to_float64,
)
from dprmt.spectra._phase_transition import (
    bulk_edge,
    detection_threshold,
    predicted_spectrum,
    shrink,
    spike_map_inverse,
    vector_overlaps,
)
from dprmt.spectra._tracy_widom import false_alarm_rate, kappa_for

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
        What the Frobenius shrinker makes of it.
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
    """The singular values of a noisy matrix beside the scales of its noise; a notebook shows it as table and picture.

    Attributes
    ----------
    shape : tuple of int
        Rows m and columns n.
    sigma : float
        Standard deviation of one entry of the noise.
    bulk_edge, detection_threshold : float
        What the largest singular value of noise is near, and the smallest clean value that shows.
    gate : float
        What a singular value has to exceed to be called a spike.
    false_alarm : float
        The chance that the largest singular value of noise alone exceeds the gate; at most what was asked for.
    singular_values : array, shape (min(m, n),)
        In decreasing order.
    spikes : tuple of Spike
        Of the values above the gate, in the same order.
    """

    shape: tuple[int, int]
    sigma: float
    bulk_edge: float
    detection_threshold: float
    gate: float
    false_alarm: float
    singular_values: Floats
    spikes: tuple[Spike, ...]

    @property
    def top_over_edge(self) -> float:
        """The top singular value in units of the bulk edge."""
        return float(self.singular_values[0]) / self.bulk_edge

    def predicted(self) -> Floats:
        """Singular values by the law of the noise, given as many spikes.

        Returns
        -------
        array, shape (min(m, n),)
            In decreasing order.
        """
        signals = np.array([spike.signal for spike in self.spikes])
        return np.asarray(predicted_spectrum(signals, self.shape, self.sigma))

    def as_dict(self) -> dict[str, Any]:
        """All of it in types that JSON knows.

        Returns
        -------
        dict
            The attributes by name.
        """
        return {
            "shape": list(self.shape),
            "sigma": self.sigma,
            "bulk_edge": self.bulk_edge,
            "detection_threshold": self.detection_threshold,
            "gate": self.gate,
            "false_alarm": self.false_alarm,
            "singular_values": self.singular_values.tolist(),
            "spikes": [asdict(spike) for spike in self.spikes],
        }

    def __str__(self) -> str:
        rate = f"noise alone has one above it in {100 * self.false_alarm:.3g} % of such matrices"
        top = f"the largest is {float(self.singular_values[0]):.4g}, the gate {self.gate:.4g}; {rate}"
        many = f"{len(self.spikes)} of {len(self.singular_values)} singular values"
        verdict = f"{many} above the gate" if self.spikes else "no singular value that can be told from noise"
        rows, columns = self.shape
        return f"{rows} x {columns} matrix in noise of standard deviation {self.sigma:g}: {verdict} ({top})."

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"<{type(self).__name__} of {rows} x {columns}, sigma={self.sigma:g}, spikes={len(self.spikes)}>"

    def _repr_html_(self) -> str:
        names = ["observed", "clean", "shrunk", "left overlap", "right overlap"]
        rows = [[*(f"{value:.4g}" for value in asdict(spike).values())] for spike in self.spikes[:_SHOWN]]
        more = [_html.sentence(f"and {len(self.spikes) - _SHOWN} more")] if len(self.spikes) > _SHOWN else []
        numbers = np.arange(1, len(self.singular_values) + 1)
        picture = _html.picture(
            {"singular values": (numbers.tolist(), self.singular_values.tolist())},
            levels={"gate": self.gate},
            dots=True,
            axes=("number", "singular value"),
            title=str(self),
        )
        return _html.block(_html.sentence(str(self)), _html.table(names, rows) if rows else "", *more, picture)


_SHOWN = 8  # spikes in a notebook


def noisy_spectrum(matrix: MatrixT, sigma: float, *, false_alarm: float = 0.01) -> NoisySpectrum:
    """Singular values of a matrix, in float64, and which of them stand out from noise of a known level.

    Parameters
    ----------
    matrix : array or Tensor, shape (m, n)
        The noisy matrix.
    sigma : float
        Standard deviation of one entry of the noise, > 0.
    false_alarm : float
        In how many matrices of noise alone a value is called a spike, in (0, 1).

    Returns
    -------
    NoisySpectrum
        Prints as a sentence; a notebook shows its spikes and a picture.

    Raises
    ------
    ParameterError
        If the matrix is not a finite matrix of real floating-point numbers, or a number is out of its range.

    Formal guarantees
    -----------------
    None about privacy: it is computed from the matrix and is as private as that. Of Gaussian noise alone the largest
    singular value exceeds ``gate`` with probability ``false_alarm``, up to the error of `kappa_for`.

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
    values = _float64_matrix(matrix)
    sigma = check_real("sigma", sigma, low=0.0, low_open=True)
    m, n = int(values.shape[0]), int(values.shape[1])
    return _of_values(np.asarray(np.linalg.svdvals(values)), (m, n), sigma, false_alarm)


def noisy_spectrum_from_dict(record: Mapping[str, Any], *, false_alarm: float | None = None) -> NoisySpectrum:
    """The spectrum that :meth:`NoisySpectrum.as_dict` described, at its own rate of false alarms or another.

    Parameters
    ----------
    record : mapping
        With ``shape``, ``sigma``, ``singular_values`` and ``false_alarm``; what else it states follows from these.
    false_alarm : float, optional
        In how many matrices of noise alone a value is called a spike, in (0, 1); the record's by default.

    Returns
    -------
    NoisySpectrum
        Equal to the described one where the rate is.

    Raises
    ------
    ParameterError
        If the record lacks one of the four, or says what no spectrum has.

    Formal guarantees
    -----------------
    None about privacy: that of the values that are given.

    Examples
    --------
    >>> record = noisy_spectrum(np.diag([30.0, 4.0]), sigma=1.0).as_dict()
    >>> len(noisy_spectrum_from_dict(record).spikes), len(noisy_spectrum_from_dict(record, false_alarm=1e-9).spikes)
    (2, 1)
    """
    try:
        (rows, columns), sigma = record["shape"], record["sigma"]
        rate = record["false_alarm"] if false_alarm is None else false_alarm
        observed = np.array(record["singular_values"], dtype=np.float64)
    except (KeyError, TypeError, ValueError):
        raise ParameterError("record", sorted(record), "with shape, sigma, false_alarm, singular_values") from None
    m, n = check_count("shape", rows), check_count("shape", columns)
    sigma = check_real("sigma", sigma, low=0.0, low_open=True)
    finite = observed.shape == (min(m, n),) and np.isfinite(observed).all() and observed[-1] >= 0
    if not finite or (np.diff(observed) > 0).any():
        raise ParameterError("singular_values", observed.shape, f"{min(m, n)} numbers >= 0, the largest first")
    return _of_values(observed, (m, n), sigma, rate)


def _of_values(observed: Floats, shape: tuple[int, int], sigma: float, false_alarm: float) -> NoisySpectrum:
    edge, threshold, kappa = bulk_edge(shape, sigma), detection_threshold(shape, sigma), kappa_for(shape, false_alarm)
    rate = false_alarm if kappa > 1 else false_alarm_rate(shape, 1.0)
    spikes = _spikes(observed[observed > kappa * edge], shape, sigma)
    return NoisySpectrum(shape, sigma, edge, threshold, kappa * edge, rate, observed, spikes)


def _float64_matrix(matrix: Any) -> Floats:
    values = check_matrices("matrix", matrix)
    if values.ndim != 2:
        raise ParameterError("matrix", tuple(values.shape), "one matrix: an array with two axes")
    wide = to_float64(detached(values))
    return np.asarray(wide.cpu().numpy() if is_tensor(wide) else wide)


def _spikes(observed: Floats, shape: tuple[int, int], sigma: float) -> tuple[Spike, ...]:
    if len(observed) == 0:
        return ()
    signals = spike_map_inverse(observed, shape, sigma)
    columns = observed, signals, shrink(observed, shape, sigma), *vector_overlaps(signals, shape, sigma)
    return tuple(Spike(*row) for row in np.stack(columns, axis=1).tolist())
