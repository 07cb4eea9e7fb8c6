"""The central-limit approximation by Gaussian differential privacy: for comparison only, it under-reports."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, ndtr, ndtri

from dprmt._validation import check_count, check_real
from dprmt.accounting.mechanisms._dpsgd import check_noise
from dprmt.accounting.questions._trade_off import checked_rates


def clt_mu(noise_multiplier: float, sample_rate: float, steps: int) -> float:
    """Return μ of the Gaussian-DP limit of DP-SGD with exact norms: q √(T (e^{1/σ²} - 1)).

    An approximation without guarantee that usually **under-reports** the privacy cost. There is none for
    randomized clipping, whose privacy loss has no such moment.

    Parameters
    ----------
    noise_multiplier, sample_rate, steps
        σ, q and T.

    Returns
    -------
    float
        μ.

    Notes
    -----
    Bu, Dong, Long & Su 2020 (arXiv:1911.11607v3), Corollary 5.4.

    Examples
    --------
    >>> round(clt_mu(1.0, 0.01, 1000), 4)
    0.4145
    """
    check_noise(noise_multiplier)
    check_real("sample_rate", sample_rate, low=1e-9, high=1.0)
    check_count("steps", steps)
    return float(sample_rate * np.sqrt(steps * np.expm1(noise_multiplier**-2.0)))


def gdp_trade_off(mu: float, alpha: ArrayLike) -> NDArray[np.float64]:
    """Evaluate G_μ(α) = Φ(Φ⁻¹(1 - α) - μ), the trade-off function of N(0,1) against N(μ,1).

    Parameters
    ----------
    mu : float
        Gaussian DP parameter μ ≥ 0.
    alpha : array_like
        False positive rates in [0, 1].

    Returns
    -------
    ndarray
        False negative rates.

    Raises
    ------
    ParameterError
        If some false positive rate is not in [0, 1].

    Examples
    --------
    >>> gdp_trade_off(0.0, [0.25, 0.5]).tolist()
    [0.75, 0.5]
    """
    check_real("mu", mu, low=0.0)
    result: NDArray[np.float64] = ndtr(-ndtri(checked_rates(alpha)) - mu)
    return result


def gdp_epsilon(mu: float, delta: float) -> float:
    """Return ε of μ-Gaussian DP at δ (approximation when μ comes from :func:`clt_mu`).

    Parameters
    ----------
    mu : float
        ≥ 0.
    delta : float
        In (0, 1).

    Returns
    -------
    float
        ε ≥ 0.

    Examples
    --------
    >>> round(gdp_epsilon(1.0, 1e-5), 3)
    4.377
    """
    from scipy.optimize import brentq  # on use: a third of the subpackage's import time

    mu = check_real("mu", mu, low=0.0)
    delta = check_real("delta", delta, low=0.0, high=1.0, low_open=True, high_open=True)

    def excess(epsilon: float) -> float:
        inner = ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))
        return float(inner - delta)

    if mu == 0.0 or excess(0.0) <= 0.0:
        return 0.0
    return float(brentq(excess, 0.0, mu * (mu / 2 + 40.0), xtol=1e-12))
