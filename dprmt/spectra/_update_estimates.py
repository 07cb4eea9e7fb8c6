"""Best rate, curvature and change of the objective, from what updates and noisy gradients have in common (T3, T4)."""

from __future__ import annotations

import numpy as np

from dprmt.spectra._estimate import Estimate, Numbers, as_numbers, estimate
from dprmt.spectra._update_products import UpdateProducts, slope_before, slope_combination


def objective_change(
    products: UpdateProducts, *, failure: float = 0.05, expected: UpdateProducts | None = None
) -> Estimate:
    """Change of the objective over some steps: a loss curve that costs no privacy.

    The trapezoid ``½Σ⟨g_t + g_{t+1}, U_t⟩`` is exact on a quadratic. What ``⟨g̃_t, U_t⟩`` owes to shared noise is taken
    off.

    Parameters
    ----------
    products : UpdateProducts
        Of the steps; by layer, the work along each.
    failure : float
        In [1e-12, 0.5]: chance that the interval misses.
    expected : UpdateProducts, optional
        See `dprmt.spectra.slope_before`.

    Returns
    -------
    Estimate
        Of the trapezoid: the work that the clipped gradients g_t, those of the batches that were drawn, did along the
        updates. Where samples are clipped that is not the loss; and with fresh batches it is up to ``½ max D·C²/L`` a
        step too low in the mean, because U_t shares its batch with g_t.

    Formal guarantees
    -----------------
    Unbiased, with the guarantee and the limits of `dprmt.spectra.slope_before`.

    References
    ----------
    (T4) of ``docs/theory/telemetry.md``.

    Examples
    --------
    Twenty steps on f(x) = ½‖x‖² from f = 50, of which noisy gradients alone are seen:

    >>> import numpy as np
    >>> from dprmt.spectra import update_products
    >>> rng, x, seen = np.random.default_rng(0), np.ones(100), None
    >>> noisy = x + 0.5 * rng.standard_normal(100)
    >>> for _ in range(20):
    ...     update = -0.1 * noisy
    ...     x = x + update
    ...     following = x + 0.5 * rng.standard_normal(100)
    ...     new = update_products(noisy, update, following, sigma=0.5, response=0.1)
    ...     seen, noisy = new if seen is None else seen + new, following
    >>> round(0.5 * float(x @ x) - 50, 1)
    -48.4
    >>> change = objective_change(seen)
    >>> round(change.value, 1), round(change.low), round(change.high)
    (-46.2, -52, -41)
    """
    return slope_combination(products, 0.5, 0.5, failure, expected)


def update_curvature(
    products: UpdateProducts, *, failure: float = 0.05, expected: UpdateProducts | None = None
) -> Estimate:
    """``Σ UᵀHU``: the curvature that the updates met, their noise included.

    For plain gradient descent at rate α, over α² and the number of steps, it estimates ``gᵀHg + s² tr H``.

    Parameters
    ----------
    products : UpdateProducts
        Of the steps; of a layer, with its cross terms to the others.
    failure : float
        In [1e-12, 0.5]: chance that the interval misses.
    expected : UpdateProducts, optional
        See `dprmt.spectra.slope_before`.

    Returns
    -------
    Estimate
        Of ``Σ ⟨g_{t+1} - g_t, U_t⟩``, which is that on a quadratic. Fresh batches whose gradients scatter make it up to
        ``max D·C²/L`` a step too large.

    Formal guarantees
    -----------------
    As for `objective_change`.

    References
    ----------
    (T3) of ``docs/theory/telemetry.md``.

    Examples
    --------
    >>> import numpy as np
    >>> from dprmt.spectra import update_products
    >>> rng, x = np.random.default_rng(0), np.ones(10_000)  # H = 1, one step of rate 0.1
    >>> noisy = x + 0.1 * rng.standard_normal(10_000)
    >>> following = x - 0.1 * noisy + 0.1 * rng.standard_normal(10_000)
    >>> found = update_curvature(update_products(noisy, -0.1 * noisy, following, sigma=0.1, response=0.1))
    >>> round(found.value / 0.1**2), found.low < 0.1**2 * 10_100 < found.high
    (10155, True)
    """
    return slope_combination(products, -1.0, 1.0, failure, expected)


def best_rate_factor(
    products: UpdateProducts, *, failure: float = 0.05, expected: UpdateProducts | None = None
) -> Estimate:
    """The factor by which all these updates should have been scaled: above 1, the rate was too low for a single step.

    On a quadratic the updates ``cU_t``, each on its own, decrease the objective most at
    ``c = Σ⟨-g_t, U_t⟩/ΣU_tᵀHU_t``. For plain gradient descent ``c·α`` is
    ``Σ‖g‖²/Σ(gᵀHg + s² tr H)``, the best rate for the noise that is there.

    Parameters
    ----------
    products : UpdateProducts
        Of the steps.
    failure : float
        In [1e-12, 0.5]: chance that the interval misses.
    expected : UpdateProducts, optional
        See `dprmt.spectra.slope_before`.

    Returns
    -------
    Estimate
        >= 0; infinite where the updates met no curvature that could be seen, 0 where they led upward from the start.
        It looks one step ahead: what is best for many steps with momentum can be another rate.

    Formal guarantees
    -----------------
    The interval is the range of the quotient where slope and curvature are in theirs, each of which fails with half the
    probability: as for `objective_change`.

    References
    ----------
    (T3) of ``docs/theory/telemetry.md``.

    Examples
    --------
    >>> import numpy as np
    >>> from dprmt.spectra import update_products
    >>> g = np.ones(100)  # of ½‖x‖², for which the rate is half the best one
    >>> products = update_products(g, -0.5 * g, 0.5 * g, sigma=0.01, response=0.5)
    >>> found = best_rate_factor(products, expected=products)
    >>> round(found.value, 2), round(found.low, 2), round(found.high, 2)
    (2.0, 1.98, 2.02)
    """
    start = slope_before(products, failure=failure / 2, expected=expected)
    bend = update_curvature(products, failure=failure / 2, expected=expected)
    return estimate(_factor(start.value, bend.value), _factor(start.high, bend.high), _factor(start.low, bend.low))


def _factor(start: Numbers, bend: Numbers) -> np.ndarray:
    # Where on a ray of this slope and curvature the lowest point is.
    fall, curvature = np.broadcast_arrays(np.maximum(-as_numbers(start), 0.0), as_numbers(bend))
    bent = (curvature > 0) & np.isfinite(curvature) & np.isfinite(fall)
    factor = np.divide(fall, curvature, out=np.where((curvature > 0) & np.isfinite(fall), 0.0, np.inf), where=bent)
    return np.where(fall == 0, 0.0, factor)
