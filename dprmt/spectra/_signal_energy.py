"""How much signal a noisy gradient holds: ‖g‖² from ‖g + sξ‖² (T1 of ``docs/theory/telemetry.md``)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dprmt._validation import ParameterError, check_real
from dprmt.spectra._estimate import Estimate, Numbers, as_numbers, estimate
from dprmt.spectra._layer_products import layer_products, layer_sizes


def signal_energy(noisy: Any, sigma: float, *, failure: float = 0.05) -> Estimate:
    """The squared norm of the signal in one noisy gradient, with an exact interval.

    ``‖g̃‖² - ds²`` is unbiased for ``‖g‖²``, and ``‖g̃‖²/s²`` is noncentral χ² with d degrees of freedom and
    noncentrality ``‖g‖²/s²``, whose distribution function is inverted.

    Parameters
    ----------
    noisy : array or mapping of str to array
        g̃, NumPy or torch: a whole gradient as one array of any shape, or its layers by name.
    sigma : float
        Standard deviation s > 0 of the noise in one entry: σ_DP·C/L, with L the *expected* batch size.
    failure : float
        In [1e-12, 0.5]: chance that an interval misses, half of it on either side; of each layer's on its own.

    Returns
    -------
    Estimate
        Of ``‖g‖²``, one number or one a layer, in the units of the gradient squared. ``low >= 0``; ``high`` is 0 where
        the noise happens to be so short that no signal is compatible with it.

    Raises
    ------
    ParameterError
        If an argument is out of range, empty or not finite.

    Formal guarantees
    -----------------
    For every fixed g the interval contains ``‖g‖²`` with probability at least ``1 - failure``, and exactly that unless
    ``g`` is 0 or so short that the interval reaches 0. Post-processing: a function of ``noisy`` and public numbers.

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
    d = np.asarray(layer_sizes(noisy), dtype=np.float64)
    if d.size == 0 or np.any(d == 0):
        raise ParameterError("noisy", np.shape(noisy), "with at least one entry in every layer")
    squared = as_numbers(layer_products(noisy))
    low, high = _exact_interval(squared / s**2, d, _failure(failure))
    return estimate(squared - d * s**2, low * s**2, high * s**2)


def signal_energy_over_steps(
    squared_norms: Numbers, dimension: Numbers, steps: int, sigma: float = 1.0, *, failure: float = 0.05
) -> Estimate:
    """The squared norm of the signal, summed over steps of a run, with an interval that allows for the run's feedback.

    Where a step's signal depends on the noise of the steps before it, the sum of noncentral χ² variables is none. The
    interval is from an exponential martingale: it holds whatever the dependence, and is about 1.4 times as wide.

    Parameters
    ----------
    squared_norms : float or array, shape (layers,)
        ``Σ_t ‖g̃_t‖²`` >= 0. Where s changes, ``Σ_t ‖g̃_t‖²/s_t²``, with ``sigma=1``.
    dimension : float or array, shape (layers,)
        Entries of each, >= 1.
    steps : int
        How many, >= 1.
    sigma : float
        As in `signal_energy`.
    failure : float
        As in `signal_energy`.

    Returns
    -------
    Estimate
        Of ``Σ_t ‖g_t‖²``.

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Formal guarantees
    -----------------
    For signals each of which is any function of what came before, the interval contains ``Σ_t ‖g_t‖²`` with probability
    at least ``1 - failure``.

    References
    ----------
    (T1a) of ``docs/theory/telemetry.md``.

    Examples
    --------
    >>> found = signal_energy_over_steps(20 * 1300.0, dimension=1000, steps=20)
    >>> found.value, found.low < 6000 < found.high
    (6000.0, True)
    """
    s = check_real("sigma", sigma, low=0.0, low_open=True)
    S, d = as_numbers(squared_norms) / s**2, as_numbers(dimension)
    if not np.all(np.isfinite(S) & (S >= 0)):
        raise ParameterError("squared_norms", squared_norms, "finite and >= 0")
    if not np.all(d >= 1):
        raise ParameterError("dimension", dimension, ">= 1")
    D = check_real("steps", steps, low=1) * d
    low, high = _martingale_interval(S, D, _failure(failure))
    return estimate((S - D) * s**2, low * s**2, high * s**2)


def _failure(failure: float) -> float:
    return check_real("failure", failure, low=1e-12, high=0.5)


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
    # (T1a): u and v are those of Birgé's bounds for the central law, and depend on nothing that is random.
    x = math.log(2 / failure)
    u = math.sqrt(x) / (np.sqrt(D) + 2 * math.sqrt(x))
    v = math.sqrt(x) / np.sqrt(D)
    low = (1 - 2 * u) * (S + D / 2 * np.log1p(-2 * u) / u - x / u)
    high = (1 + 2 * v) * (S - D / 2 * np.log1p(2 * v) / v + x / v)
    return np.maximum(low, 0.0), np.maximum(high, 0.0)
