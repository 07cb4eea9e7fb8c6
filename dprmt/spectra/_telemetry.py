r"""Statistics of telemetry: estimates from released gradients, with intervals, and the noise of a momentum.

Theorem (T1): ``docs/theory/telemetry.md``.

**Noise of a momentum.** The noise in an exponential moving average of privatised gradients. Let ``m_t = βm_{t-1} + (1
- β)(g_t + ξ_t)``, ``m_0 = 0``, with independent ξ_s of variance σ² per entry. Its noise has the variance ``(1 - β)²
Σ_{k<t} β^{2k} σ² = σ²(1 - β)²(1 - β^{2t})/(1 - β²)``. Adam divides by the sum ``1 - β^t`` of the weights. So the
bias-corrected ``m̂_t`` has the noise

    ``σ̄_t = σ·√[(1 - β)(1 + β^t) / ((1 + β)(1 - β^t))]``,

which falls from σ at t = 1 to ``σ√((1 - β)/(1 + β))``, or σ/√19 at β = 0.9. For Gaussian ξ_s the noise is white and
Gaussian, so the theory of a single noisy gradient holds with σ̄_t for σ and the weighted mean of the g_s as the
signal. A steady signal is √19 times as far above the bulk edge. Consecutive momenta share most of their noise, so
their results are not independent evidence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dprmt._validation import ParameterError, check_count, check_real
from dprmt.spectra._arrays import Array, as_array, check_finite, detached, to_float64

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
    """

    value: Numbers
    low: Numbers
    high: Numbers


def estimate(value: object, low: object, high: object) -> Estimate:
    """Return the estimate of arrays, of which those without axes become numbers."""
    arrays = np.broadcast_arrays(*(np.asarray(number, dtype=np.float64) for number in (value, low, high)))
    return Estimate(*(float(array) if array.ndim == 0 else np.array(array) for array in arrays))


def signal_energy(noisy: Any, sigma: float, *, failure: float = 0.05) -> Estimate:
    """Estimate the squared norm of the signal in one noisy gradient, with an exact interval.

    ``‖g̃‖² - ds²`` is unbiased for ``‖g‖²``. The interval inverts the noncentral χ² distribution of ``‖g̃‖²/s²``.

    Parameters
    ----------
    noisy : array or mapping of str to array
        g̃, NumPy or torch: a whole gradient as one array of any shape, or its layers by name.
    sigma : float
        Standard deviation s > 0 of the noise in one entry: σ_DP·C/L, with L the *expected* batch size.
    failure : float
        Probability in [1e-12, 0.5] that the interval of each layer misses, half of it on either side.

    Returns
    -------
    Estimate
        Estimate of ``‖g‖²``, one number or one per layer, in the units of the gradient squared. ``low >= 0``; ``high``
        is 0 if the noise is so short that no signal is compatible with it.

    Raises
    ------
    ParameterError
        If an argument is out of range, empty or not finite.

    Formal guarantees
    -----------------
    For every fixed g the interval contains ``‖g‖²`` with probability at least ``1 - failure``. Equality holds unless
    ``g`` is so short that the interval reaches 0. It is post-processing: a function of ``noisy`` and public numbers.

    References
    ----------
    (T1) of ``docs/theory/telemetry.md``.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> layers = {"learns": 0.3 + rng.standard_normal(5000), "noise": rng.standard_normal(5000)}
    >>> found = signal_energy(layers, sigma=1.0)  # 450 and 0
    >>> found.value.round(), found.low.round()
    (array([391.,   8.]), array([185.,   0.]))
    """
    s = check_real("sigma", sigma, low=0.0, low_open=True)
    layered = isinstance(noisy, Mapping)
    flats = [_flat(name, values) for name, values in (noisy.items() if layered else [("noisy", noisy)])]
    if not flats or not all(map(len, flats)):
        raise ParameterError("noisy", np.shape(noisy), "with at least one entry in every layer")
    d, squared = np.array([(len(g), float((g * g).sum())) for g in flats]).T[:, slice(None) if layered else 0]
    low, high = _exact_interval(squared / s**2, d, check_real("failure", failure, low=1e-12, high=0.5))
    return estimate(squared - d * s**2, low * s**2, high * s**2)


def signal_energy_over_steps(
    squared_norms: Numbers, dimension: Numbers, steps: int, sigma: float = 1.0, *, failure: float = 0.05
) -> Estimate:
    """Estimate the squared norm of the signal, summed over steps, with an interval that allows for the run's feedback.

    A step's signal depends on the noise of earlier steps, so the sum is not noncentral χ². The interval uses an
    exponential martingale: it holds for any dependence, and is about 1.4 times as wide.

    Parameters
    ----------
    squared_norms : float or array, shape (layers,)
        ``Σ_t ‖g̃_t‖²`` >= 0. If s changes, pass ``Σ_t ‖g̃_t‖²/s_t²`` with ``sigma=1``.
    dimension : float or array, shape (layers,)
        Number of entries of each, >= 1.
    steps : int
        Number of steps, >= 1.
    sigma : float
        As in `signal_energy`.
    failure : float
        As in `signal_energy`.

    Returns
    -------
    Estimate
        Estimate of ``Σ_t ‖g_t‖²``.

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Formal guarantees
    -----------------
    If each signal is any function of the past, the interval contains ``Σ_t ‖g_t‖²`` with probability at least ``1 -
    failure``.

    References
    ----------
    ``docs/theory/telemetry.md``: theorem T1, over steps.

    Examples
    --------
    >>> found = signal_energy_over_steps(20 * 1300.0, dimension=1000, steps=20)
    >>> found.value, found.low < 6000 < found.high
    (6000.0, True)
    """
    s = check_real("sigma", sigma, low=0.0, low_open=True)
    S, d = np.asarray(squared_norms, dtype=np.float64) / s**2, np.asarray(dimension, dtype=np.float64)
    if not np.all(np.isfinite(S) & (S >= 0)):
        raise ParameterError("squared_norms", squared_norms, "finite and >= 0")
    if not np.all(d >= 1):
        raise ParameterError("dimension", dimension, ">= 1")
    D = check_real("steps", steps, low=1) * d
    low, high = _martingale_interval(S, D, check_real("failure", failure, low=1e-12, high=0.5))
    return estimate((S - D) * s**2, low * s**2, high * s**2)


def _flat(name: str, values: Any) -> Array:
    array = detached(as_array(name, values))
    check_finite(name, array)
    return to_float64(array).reshape(-1)


def _exact_interval(
    x: NDArray[np.float64], d: NDArray[np.float64], failure: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    # The noncentralities at which x is the upper and the lower quantile; 0 where even 0 is too large.
    safe_low, safe_high = _martingale_interval(x, d, failure)
    low, high = (special.chndtrinc(x, d, p) for p in (1 - failure / 2, failure / 2))
    # Beyond the range of the inverse (NaN) the wider interval serves.
    low, high = np.where(np.isnan(low), safe_low, low), np.where(np.isnan(high), safe_high, high)
    below = special.chdtr(d, x)
    return np.where(below <= 1 - failure / 2, 0.0, low), np.where(below <= failure / 2, 0.0, high)


def _martingale_interval(
    S: NDArray[np.float64], D: NDArray[np.float64], failure: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    # u and v follow Birgé's bounds for the central law, and are not random.
    x = math.log(2 / failure)
    u = math.sqrt(x) / (np.sqrt(D) + 2 * math.sqrt(x))
    v = math.sqrt(x) / np.sqrt(D)
    low = (1 - 2 * u) * (S + D / 2 * np.log1p(-2 * u) / u - x / u)
    high = (1 + 2 * v) * (S - D / 2 * np.log1p(2 * v) / v + x / v)
    return np.maximum(low, 0.0), np.maximum(high, 0.0)


def momentum_noise_scale(decay: float, step: int) -> float:
    """Compute the noise of the bias-corrected momentum after some steps, relative to one gradient: σ̄_t/σ.

    Parameters
    ----------
    decay : float
        Decay β in [0, 1), Adam's β₁ or the momentum of SGD.
    step : int
        Step t >= 1, counted from the first gradient.

    Returns
    -------
    float
        ``√[(1 - β)(1 + β^t)/((1 + β)(1 - β^t))]`` in (0, 1], non-increasing in t. For the momentum of SGD without
        dampening, ``b_t = βb_{t-1} + g̃_t``, multiply by ``(1 - β^t)/(1 - β)``.

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Formal guarantees
    -----------------
    Exact for independent noise of one variance, for any gradients.

    References
    ----------
    Derived at the head of ``dprmt/spectra/_telemetry.py``.

    Examples
    --------
    >>> momentum_noise_scale(0.9, 1), round(momentum_noise_scale(0.9, 10), 3), round(momentum_noise_scale(0.9, 1000), 3)
    (1.0, 0.33, 0.229)
    """
    β = check_real("decay", decay, low=0.0, high=1.0, high_open=True)
    t = check_count("step", step)
    if β == 0:
        return 1.0
    vanished = -math.expm1(t * math.log(β))  # 1 - β^t, accurate for β near 1
    return math.sqrt((1 - β) / vanished * (2 - vanished) / (1 + β))
