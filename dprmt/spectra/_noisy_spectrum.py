"""Singular values of one matrix, compared with the level of its noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import scipy
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
from dprmt.spectra._backends import leading_spectrum
from dprmt.spectra._noise_level import ROUNDING, NoiseFit, clear_spikes, noise_fit, other_noise, spectrum_sigma
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
        """Draw the histogram of the singular values against the law of the noise.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Where to draw; a new figure otherwise.
        **options
            Of `dprmt.plots.plot_spectrum_histogram`.

        Returns
        -------
        matplotlib.axes.Axes
            The axes.
        """
        from dprmt.plots import plot_spectrum_histogram

        return plot_spectrum_histogram(self.singular_values, self.shape, self.sigma, ax=ax, **options)

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
        return {
            "shape": list(self.shape),
            "sigma": self.sigma,
            "bulk_edge": self.bulk_edge,
            "detection_threshold": self.detection_threshold,
            "gate": self.gate,
            "false_alarm": self.false_alarm,
            "visible": self.visible,
            "estimated_sigma": self.fit.sigma,
            "fit": {name: getattr(self.fit, name) for name in ("distance", "p_value", "verdict", "entries")},
            "stable_rank": self.stable_rank,
            "effective_rank": self.effective_rank,
            "energy_above_edge": self.energy_above_edge,
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
        If the matrix is not a finite matrix of real floating-point numbers, or a number is out of its range.

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
    values = _float64_matrix(matrix)
    sigma = check_real("sigma", sigma, low=0.0)
    m, n = int(values.shape[0]), int(values.shape[1])
    return spectrum_of_values(np.asarray(np.linalg.svdvals(values)), (m, n), sigma, false_alarm, values)


def noisy_spectrum_from_dict(record: Mapping[str, Any], *, false_alarm: float | None = None) -> NoisySpectrum:
    """Rebuild the spectrum from a result of :meth:`NoisySpectrum.as_dict`, at the same or another false-alarm rate.

    Parameters
    ----------
    record : mapping
        Mapping with ``shape``, ``sigma``, ``singular_values`` and ``false_alarm``, and optionally ``fit`` for the test
        of the entries. All other entries follow from these.
    false_alarm : float, optional
        Probability in (0, 1) that a matrix of noise alone has a spike; by default as in the record.

    Returns
    -------
    NoisySpectrum
        Equal to the recorded spectrum if the rate is.

    Raises
    ------
    ParameterError
        If the record lacks one of the four, or has values that no spectrum has.

    Formal guarantees
    -----------------
    None about privacy: the result is as private as the given values.

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
        entries = str(record.get("fit", {}).get("entries", ""))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ParameterError("record", sorted(record), "with shape, sigma, false_alarm, singular_values") from None
    m, n = check_count("shape", rows), check_count("shape", columns)
    sigma = check_real("sigma", sigma, low=0.0)
    finite = observed.shape == (min(m, n),) and np.isfinite(observed).all() and observed[-1] >= 0
    if not finite or (np.diff(observed) > 0).any():
        raise ParameterError("singular_values", observed.shape, f"{min(m, n)} numbers >= 0, the largest first")
    return spectrum_of_values(observed, (m, n), sigma, rate, entries=entries)


def spectrum_of_values(
    observed: Floats,
    shape: tuple[int, int],
    sigma: float,
    false_alarm: float,
    matrix: Floats | None = None,
    entries: str = "",
) -> NoisySpectrum:
    """Build the spectrum of singular values in decreasing order; the entries of a matrix are tested, or ``entries`` is
    used.
    """
    if sigma == 0:
        return _without_noise(observed, shape, false_alarm, matrix)
    edge, threshold, kappa = bulk_edge(shape, sigma), detection_threshold(shape, sigma), kappa_for(shape, false_alarm)
    rate = false_alarm if kappa > 1 else false_alarm_rate(shape, 1.0)
    spikes = _spikes(observed[observed > kappa * edge], shape, sigma)
    visible = visible_signal(shape, sigma, false_alarm)
    own = spectrum_sigma(observed, shape, ROUNDING)
    clear = clear_spikes(observed, shape, own)
    clear = clear if 4 * clear <= len(observed) else min(clear, clear_spikes(observed, shape, sigma))
    residual = None if matrix is None else _without(matrix, observed, clear)
    found = entries if residual is None else other_noise(residual)
    fit = noise_fit(observed, shape, sigma, len(spikes), found)
    return NoisySpectrum(shape, sigma, edge, threshold, kappa * edge, rate, observed, spikes, visible, fit, matrix)


def _without_noise(
    observed: Floats, shape: tuple[int, int], false_alarm: float, matrix: Floats | None
) -> NoisySpectrum:
    # Every value above rounding is signal.
    gate = 4 * ROUNDING * max(shape) * float(observed[0])
    spikes = tuple(Spike(value, value, value, 1.0, 1.0) for value in observed[observed > gate].tolist())
    fit = noise_fit(observed, shape, 1.0, len(spikes), "")
    return NoisySpectrum(shape, 0.0, 0.0, 0.0, gate, false_alarm, observed, spikes, 0.0, fit, matrix)


def _without(matrix: Floats, observed: Floats, spikes: int) -> Floats | None:
    # The matrix without its leading singular vectors; None if little would be left of it.
    if not spikes:
        return matrix
    if 4 * spikes > min(matrix.shape):
        return None
    wide = matrix if len(matrix) <= matrix.shape[1] else matrix.T
    between = (observed[spikes - 1 : spikes] + observed[spikes : spikes + 1]) / 2 / observed[0]
    top = leading_spectrum(wide[None] / observed[0], between).vectors[0]
    rest = wide - top @ (top.T @ wide)
    return np.asarray(rest if wide is matrix else rest.T)


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


_POWER_DRAWS = 400


def visible_signal(shape: Sequence[int], sigma: float, false_alarm: float = 0.01, power: float = 0.95) -> float:
    """Find the clean singular value that is detected in a given share of draws.

    Parameters
    ----------
    shape : tuple of int
        ``(m, n)`` of the matrix, either orientation.
    sigma : float
        Standard deviation of one entry of the noise, >= 0, in the units of the matrix.
    false_alarm : float, default 0.01
        False-alarm rate of the gate, in [1e-30, 1 - 1e-6].
    power : float, default 0.95
        Share of draws in which a matrix of rank one with this value passes the gate, in (0, 1).

    Returns
    -------
    float
        From 400 draws: the share is met within two standard errors, 2.2 % at 95 %.

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Notes
    -----
    With one spike ``X = λuvᵀ`` the noise is reduced to a tridiagonal T that leaves u and v in place. A value g is
    singular for ``T + λe₁e₁ᵀ`` if ``1/λ = β + g√(αγ)``, with ``α = e₁ᵀ(g² - TTᵀ)⁻¹e₁``, γ the same for Tᵀ, and ``β =
    e₁ᵀ(g² - TTᵀ)⁻¹Te₁``. So every draw has one λ.

    Examples
    --------
    >>> round(visible_signal((64, 256), 1.0) / detection_threshold((64, 256), 1.0), 1)
    1.5
    """
    edge = bulk_edge(shape, 1.0)
    gate = kappa_for(shape, false_alarm) * edge
    share = check_real("power", power, low=0.0, high=1.0, low_open=True, high_open=True)
    short, long = sorted((int(shape[0]), int(shape[1])))
    return check_real("sigma", sigma, low=0.0) * float(np.quantile(_first_called(short, long, gate), share))


@lru_cache(maxsize=64)
def _first_called(short: int, long: int, gate: float) -> Floats:
    # Least λ > 0 that passes the gate, for each draw of noise of σ = 1; 0 if the noise alone passes.
    rng = np.random.default_rng(0)
    found = np.zeros(_POWER_DRAWS)
    for i in range(_POWER_DRAWS):
        d = rng.standard_normal(short)
        below = np.sqrt(rng.chisquare(short - 1 - np.arange(short - 1)))
        right = np.sqrt(rng.chisquare(np.maximum(long - 1 - np.arange(short), 1e-300)))
        upper = right[:-1] if long > short else right[: short - 1]
        rest = right[-1] if long > short else 0.0  # of the columns beyond, folded into one
        bands = np.zeros((3, short))  # of g² - TTᵀ, the lower ones
        bands[0] = gate**2 - d**2
        bands[0, :-1] -= upper**2
        bands[0, 1:] -= below**2
        bands[0, -1] -= rest**2
        bands[1, :-1] = -d[:-1] * below
        bands[1, :-1] -= upper * d[1:]
        bands[2, : short - 2] = -upper[: short - 2] * below[1:] if short > 2 else 0.0
        sides = np.zeros((short, 2))
        sides[0, 0], sides[0, 1] = 1.0, d[0]
        if short > 1:
            sides[1, 1] = below[0]
        try:
            solved = scipy.linalg.solveh_banded(bands[: min(3, short)], sides, lower=True)
        except np.linalg.LinAlgError:
            continue  # the noise alone is above the gate
        α, β = float(solved[0, 0]), float(solved[0, 1])
        γ = (1 + float(sides[:, 1] @ solved[:, 1])) / gate**2
        found[i] = max(0.0, 1 / (β + gate * math.sqrt(α * γ)))
    return found
