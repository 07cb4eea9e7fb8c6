"""What updates and noisy gradients have in common, summed over steps: all that T3 and T4 of the telemetry need."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from dprmt._validation import ParameterError, check_real
from dprmt.spectra._arrays import as_array, check_finite, to_float64
from dprmt.spectra._estimate import Estimate, Numbers, as_numbers, estimate
from dprmt.spectra._layer_products import layer_products, layer_sizes

_TINY = 1e-200  # in place of a variance of 0: the interval is wide then
_LARGEST = 0.5  # of u·s²|D|, for the bound of the logarithm and a margin to where the change of variables folds


@dataclass(frozen=True)
class UpdateProducts:
    """Inner products of updates with the noisy gradients before and after them, and how updates answer to noise.

    Those of consecutive steps are added by ``+``, in their order. Letters: the update ``U_t`` from
    ``g̃_t = g_t + s_tξ_t``, and its response
    ``D = -∂U/∂g̃``, entry by entry.

    Attributes
    ----------
    steps : int
        How many.
    before : float or array, shape (layers,)
        ``Σ ⟨g̃_t, U_t⟩``: the gradient that made the update.
    after : float or array, shape (layers,)
        ``Σ ⟨g̃_{t+1}, U_t⟩``: the gradient that the update led to.
    noise_before : float or array, shape (layers,)
        ``Σ s_t² ΣD``: minus what ``before`` owes to the noise that U_t shares with g̃_t.
    variance_before : float or array, shape (layers,)
        ``Σ s_t²‖U_t‖²``.
    variance_after : float or array, shape (layers,)
        ``Σ s_{t+1}²‖U_t‖²``.
    squared_response : float or array, shape (layers,)
        ``Σ s_t⁴ ΣD²``.
    largest_response : float or array, shape (layers,)
        The largest ``s_t²|D|``.
    cross : float or array, shape (layers,)
        ``Σ s_t²⟨U_t, U_{t-1}⟩`` over neighbours among these steps; NaN where it is not known.
    link : float or array, shape (layers,)
        The same of the first of them with the update before it.

    References
    ----------
    (T3) and (T4) of ``docs/theory/telemetry.md``.

    Examples
    --------
    See `objective_change`.
    """

    steps: int
    before: Numbers
    after: Numbers
    noise_before: Numbers
    variance_before: Numbers
    variance_after: Numbers
    squared_response: Numbers
    largest_response: Numbers
    cross: Numbers = 0.0
    link: Numbers = math.nan

    def __add__(self, other: UpdateProducts) -> UpdateProducts:
        values = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        values["largest_response"] = np.maximum(self.largest_response, other.largest_response)
        values["cross"] = self.cross + other.cross + other.link
        values["link"] = self.link
        return UpdateProducts(**values)

    def total(self) -> UpdateProducts:
        """The products of all layers together.

        Returns
        -------
        UpdateProducts
            Of numbers.
        """
        values = {f.name: float(np.sum(getattr(self, f.name))) for f in fields(self)}
        largest = float(np.max(self.largest_response, initial=0.0))
        values["largest_response"] = largest
        values.pop("steps")
        return UpdateProducts(steps=self.steps, **values)


def update_products(
    noisy: Any,
    update: Any,
    following: Any,
    sigma: float,
    response: Any,
    *,
    previous_update: Any = None,
    following_sigma: float | None = None,
) -> UpdateProducts:
    """The products of one step.

    Parameters
    ----------
    noisy : array or mapping of str to array
        g̃_t, NumPy or torch: a whole gradient as one array, or its layers by name.
    update : array or mapping of str to array
        U_t = x_{t+1} - x_t, which the optimizer made of g̃_t and of the past, every entry of its own entry of g̃_t.
    following : array or mapping of str to array
        g̃_{t+1}, the noisy gradient at x_{t+1}.
    sigma : float
        Standard deviation s > 0 of the noise in one entry of g̃_t.
    response : float, or array or mapping as above
        ``D = -∂U/∂g̃_t``: the rate, for gradient descent with any momentum; for Adam with a preconditioner that is fixed
        before g̃_t, ``α(1-β₁)/((1-β₁^t)(√v̂_{t-1} + ε))``; for Adam itself its derivative at g̃_t (theory page).
    previous_update : array or mapping as above, optional
        U_{t-1}. Without it intervals are wider, under momentum several times.
    following_sigma : float, optional
        That of g̃_{t+1}, if it is another one.

    Returns
    -------
    UpdateProducts
        Of numbers, or of arrays with an entry a layer.

    Raises
    ------
    ParameterError
        If an argument is out of range or not finite, or names or shapes differ.

    Examples
    --------
    >>> import numpy as np
    >>> g = np.array([1.0, 2.0])
    >>> products = update_products(g, -0.5 * g, 0.5 * g, sigma=0.1, response=0.5)
    >>> products.before, products.after, round(products.noise_before, 9)
    (-2.5, -1.25, 0.01)
    """
    s = check_real("sigma", sigma, low=0.0, low_open=True)
    next_s = s if following_sigma is None else check_real("following_sigma", following_sigma, low=0.0, low_open=True)
    total, squared, largest = _response_sums(response, noisy)
    length = layer_products(update)
    link = math.nan if previous_update is None else s**2 * layer_products(update, previous_update)
    return UpdateProducts(
        steps=1,
        before=layer_products(noisy, update),
        after=layer_products(following, update),
        noise_before=s**2 * total,
        variance_before=s**2 * length,
        variance_after=next_s**2 * length,
        squared_response=s**4 * squared,
        largest_response=s**2 * largest,
        cross=0.0 * length,
        link=link + 0.0 * length,
    )


def _response_sums(response: Any, noisy: Any) -> tuple[Any, Any, Any]:
    # ΣD, ΣD² and max|D| by layer.
    if isinstance(response, Mapping):
        if not isinstance(noisy, Mapping) or response.keys() != noisy.keys():
            raise ParameterError("response", sorted(response), "a number, or with the names of the gradient")
        sums = [_response_sums(response[name], value) for name, value in noisy.items()]
        total, squared, largest = (np.array(column) for column in zip(*sums, strict=True))
        return total, squared, largest
    sizes = layer_sizes(noisy)
    values = as_array("response", response)
    check_finite("response", values)
    if values.ndim == 0:
        D = float(values)
        return D * sizes, D**2 * sizes, abs(D) * np.ones_like(sizes, dtype=float)
    flat = to_float64(values).reshape(-1)
    if len(flat) != sizes:
        raise ParameterError("response", tuple(values.shape), "a number, or of the shape of the gradient")
    return float(flat.sum()), float((flat * flat).sum()), float(abs(flat).max())


def slope_before(
    products: UpdateProducts, *, failure: float = 0.05, expected: UpdateProducts | None = None
) -> Estimate:
    """``Σ ⟨g_t, U_t⟩`` from noisy gradients: the slope along the updates where they started.

    Parameters
    ----------
    products : UpdateProducts
        Of any number of steps.
    failure : float
        In [1e-12, 0.5]: chance that the interval misses.
    expected : UpdateProducts, optional
        Products of as many steps whose variances are about those of these, from what was known before the first of
        them: they choose the interval among valid ones, and a wrong guess makes it wider. By default those of updates
        that are noise without momentum.

    Returns
    -------
    Estimate
        Infinite ends where a response is too large for the interval to be known.

    Formal guarantees
    -----------------
    Unbiased, and the interval contains the slope with probability at least ``1 - failure``, for updates that are affine
    in their gradient with coefficients fixed before it (gradient descent, momentum, a preconditioner fixed before), and
    for others whose every entry is a function of its own entry of g̃_t such that ``g̃ ∓ us²U(g̃)`` grow with g̃, with
    the u of the proof. Whatever the dependence of steps on earlier ones. Post-processing.

    References
    ----------
    (T4a) of ``docs/theory/telemetry.md``.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> noisy = 1.0 + rng.standard_normal(1000)
    >>> found = slope_before(update_products(noisy, -0.1 * noisy, noisy, sigma=1.0, response=0.1))
    >>> truth = -0.1 * float(np.ones(1000) @ noisy)
    >>> round(truth), found.low < truth < found.high, round(found.value)
    (-95, True, -86)
    """
    return slope_combination(products, 1.0, 0.0, failure, expected)


def slope_after(products: UpdateProducts, *, failure: float = 0.05, expected: UpdateProducts | None = None) -> Estimate:
    """``Σ ⟨g_{t+1}, U_t⟩`` from noisy gradients: the slope along the updates where they ended.

    Parameters
    ----------
    products : UpdateProducts
        Of any number of steps.
    failure : float
        In [1e-12, 0.5]: chance that the interval misses.
    expected : UpdateProducts, optional
        See `slope_before`.

    Returns
    -------
    Estimate
        Of the sum.

    Formal guarantees
    -----------------
    As `slope_before`, for any optimizer.

    References
    ----------
    (T2) and (T4a) of ``docs/theory/telemetry.md``.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> noisy, following = 1.0 + rng.standard_normal((2, 1000))
    >>> found = slope_after(update_products(noisy, -0.1 * noisy, following, sigma=1.0, response=0.1))
    >>> truth = -0.1 * float(np.ones(1000) @ noisy)
    >>> round(truth), found.low < truth < found.high, round(found.value)
    (-95, True, -100)
    """
    return slope_combination(products, 0.0, 1.0, failure, expected)


def slope_combination(
    products: UpdateProducts, a: float, b: float, failure: float, expected: UpdateProducts | None
) -> Estimate:
    """``aΣ ⟨g_t, U_t⟩ + bΣ ⟨g_{t+1}, U_t⟩`` by (T4a): the noise ξ_t meets ``aU_t + bU_{t-1}``, with response ``aD``."""
    x = math.log(2 / check_real("failure", failure, low=1e-12, high=0.5))
    squared, largest = as_numbers(products.squared_response), as_numbers(products.largest_response)
    guess = (a**2 + b**2) * squared if expected is None else _variance(expected, a, b)
    guess = np.maximum(guess + a**2 * squared, _TINY)
    u = np.sqrt(2 * x / guess)  # at which x/u + u·guess/2 is least
    known = abs(a) * u * largest <= _LARGEST
    spread = _variance(products, a, b) + a**2 * squared / (1 - np.where(known, abs(a) * u * largest, 0.0))
    half = np.where(known, x / u + u / 2 * spread, np.inf)
    value = a * (as_numbers(products.before) + as_numbers(products.noise_before)) + b * as_numbers(products.after)
    return estimate(value, value - half, value + half)


def _variance(products: UpdateProducts, a: float, b: float) -> np.ndarray:
    # Σ s²‖aU_t + bU_{t-1}‖², at most where neighbours' inner products are not known.
    before, after, cross = map(as_numbers, (products.variance_before, products.variance_after, products.cross))
    most = np.sqrt(before * after)
    signed = np.where(np.isnan(cross), most if a * b > 0 else -most, cross)
    return np.maximum(a**2 * before + b**2 * after + 2 * a * b * signed, 0.0)
