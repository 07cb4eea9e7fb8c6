r"""Statistics of telemetry: estimates from released gradients, with intervals, and the noise of a momentum.

Theorems (T1) to (T6): ``docs/theory/telemetry.md``.

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

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dprmt._validation import ParameterError, check_count, check_real
from dprmt.spectra._arrays import Array, MatrixT, as_array, check_finite, detached, to_float64

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

    Examples
    --------
    >>> Estimate(1.0, 0.5, 1.5).scaled(-2.0)
    Estimate(value=-2.0, low=-3.0, high=-1.0)
    """

    value: Numbers
    low: Numbers
    high: Numbers

    def scaled(self, factor: float) -> Estimate:
        """Multiply the estimate by a factor.

        Parameters
        ----------
        factor : float
            Factor of either sign.

        Returns
        -------
        Estimate
            The scaled estimate, with its ends in order.
        """
        ends = (self.low * factor, self.high * factor)
        low, high = ends if factor >= 0 else ends[::-1]
        return Estimate(self.value * factor, low, high)


def as_numbers(values: object) -> NDArray[np.float64]:
    """Return one number or one a layer, in double precision."""
    return np.asarray(values, dtype=np.float64)


def estimate(value: object, low: object, high: object) -> Estimate:
    """Return the estimate of arrays, of which those without axes become numbers."""
    arrays = np.broadcast_arrays(as_numbers(value), as_numbers(low), as_numbers(high))
    return Estimate(*(float(array) if array.ndim == 0 else np.array(array) for array in arrays))


Layers: TypeAlias = MatrixT | Mapping[str, MatrixT]
"""A whole gradient as one array of any shape, or its layers by name."""


def layer_products(first: Any, second: Any = None) -> float | NDArray[np.float64]:
    """Compute inner products of two gradients, updates or directions, layer by layer.

    Parameters
    ----------
    first : array or mapping of str to array
        NumPy or torch, of any shape, dtype of floating point and device.
    second : array or mapping of str to array, optional
        Arrays with the shapes and names of ``first``; by default ``first`` itself, for squared norms.

    Returns
    -------
    float or array, shape (layers,)
        One double-precision number for arrays, or one per layer for mappings, in the order of ``first``. Their sum is
        the inner product of the whole gradients.

    Raises
    ------
    ParameterError
        If names or shapes differ, or an entry is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> layer_products({"A": np.ones((2, 3)), "b": np.array([2.0])})
    array([6., 4.])
    >>> layer_products(np.array([1.0, 2.0]), np.array([3.0, -1.0]))
    1.0
    """
    second = first if second is None else second
    if not isinstance(first, Mapping):
        return _product("first", first, "second", second)
    if not isinstance(second, Mapping) or first.keys() != second.keys():
        named = sorted(second) if isinstance(second, Mapping) else type(second).__name__
        raise ParameterError("second", named, f"a mapping with the names {sorted(first)}")
    return np.array([_product(name, value, name, second[name]) for name, value in first.items()])


def layer_sizes(layers: Any) -> int | NDArray[np.int64]:
    """Return numbers of entries: one, or one a layer."""
    if not isinstance(layers, Mapping):
        return int(np.prod(as_array("noisy", layers).shape))
    return np.array([int(np.prod(as_array(name, value).shape)) for name, value in layers.items()])


def _product(name: str, first: Any, other: str, second: Any) -> float:
    one, two = _flat(name, first), _flat(other, second)
    if one.shape != two.shape:
        raise ParameterError(other, tuple(np.shape(second)), f"of the shape of {name}, {tuple(np.shape(first))}")
    return float((one * two).sum())


def _flat(name: str, values: Any) -> Array:
    array = detached(as_array(name, values))
    check_finite(name, array)
    return to_float64(array).reshape(-1)


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
    d = np.asarray(layer_sizes(noisy), dtype=np.float64)
    if d.size == 0 or np.any(d == 0):
        raise ParameterError("noisy", np.shape(noisy), "with at least one entry in every layer")
    squared = as_numbers(layer_products(noisy))
    low, high = _exact_interval(squared / s**2, d, _failure(failure))
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
    # (T1a): u and v follow Birgé's bounds for the central law, and are not random.
    x = math.log(2 / failure)
    u = math.sqrt(x) / (np.sqrt(D) + 2 * math.sqrt(x))
    v = math.sqrt(x) / np.sqrt(D)
    low = (1 - 2 * u) * (S + D / 2 * np.log1p(-2 * u) / u - x / u)
    high = (1 + 2 * v) * (S - D / 2 * np.log1p(2 * v) / v + x / v)
    return np.maximum(low, 0.0), np.maximum(high, 0.0)


@dataclass(frozen=True)
class UpdateProducts:
    """Inner products of updates with the noisy gradients before and after them, and the updates' response to noise.

    Add products of consecutive steps by ``+``, in their order. Letters: the update ``U_t`` from ``g̃_t = g_t +
    s_tξ_t``, and its response ``D = -∂U/∂g̃``, entry by entry.

    Attributes
    ----------
    steps : int
        Number of steps.
    before : float or array, shape (layers,)
        ``Σ ⟨g̃_t, U_t⟩``: the gradient that made the update.
    after : float or array, shape (layers,)
        ``Σ ⟨g̃_{t+1}, U_t⟩``: the gradient that the update led to.
    noise_before : float or array, shape (layers,)
        ``Σ s_t² ΣD``: minus the part of ``before`` that is due to the noise shared by U_t and g̃_t.
    variance_before : float or array, shape (layers,)
        ``Σ s_t²‖U_t‖²``.
    variance_after : float or array, shape (layers,)
        ``Σ s_{t+1}²‖U_t‖²``.
    squared_response : float or array, shape (layers,)
        ``Σ s_t⁴ ΣD²``.
    largest_response : float or array, shape (layers,)
        The largest ``s_t²|D|``.
    cross : float or array, shape (layers,)
        ``Σ s_t²⟨U_t, U_{t-1}⟩`` over neighbouring steps; NaN if unknown.
    link : float or array, shape (layers,)
        The same product for the first step and the update before it.

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
        """Return the products of all layers together.

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
    """Compute the products of one step.

    Parameters
    ----------
    noisy : array or mapping of str to array
        g̃_t, NumPy or torch: a whole gradient as one array, or its layers by name.
    update : array or mapping of str to array
        The update U_t = x_{t+1} - x_t, computed from g̃_t and the past, each entry from the same entry of g̃_t.
    following : array or mapping of str to array
        g̃_{t+1}, the noisy gradient at x_{t+1}.
    sigma : float
        Standard deviation s > 0 of the noise in one entry of g̃_t.
    response : float, or array or mapping as above
        ``D = -∂U/∂g̃_t``. For gradient descent with any momentum it is the rate. For Adam with a preconditioner fixed
        before g̃_t it is ``α(1-β₁)/((1-β₁^t)(√v̂_{t-1} + ε))``. For Adam itself it is the derivative at g̃_t (theory
        page).
    previous_update : array or mapping as above, optional
        The update U_{t-1}. Without it intervals are wider, several times under momentum.
    following_sigma : float, optional
        Standard deviation of the noise in g̃_{t+1}, if it differs.

    Returns
    -------
    UpdateProducts
        Products as numbers, or as arrays with one entry per layer.

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
    """Estimate ``Σ ⟨g_t, U_t⟩`` from noisy gradients: the slope along the updates where they started.

    Parameters
    ----------
    products : UpdateProducts
        Products of any number of steps.
    failure : float
        Probability in [1e-12, 0.5] that the interval misses.
    expected : UpdateProducts, optional
        Products of as many steps with similar variances, known before the first of them. They choose the interval
        among valid ones, and a wrong guess makes it wider. By default the products of updates that are noise without
        momentum.

    Returns
    -------
    Estimate
        The ends are infinite if a response is too large for a known interval.

    Formal guarantees
    -----------------
    Holds if: updates are affine in their gradient with coefficients fixed before it (gradient descent, momentum, a
    preconditioner fixed before). It also holds if each entry is a function of the same entry of g̃_t such that ``g̃ ∓
    us²U(g̃)`` increase with g̃, with u as in the proof. Covers: an unbiased estimate, and the slope in the interval
    with probability at least ``1 - failure``, for any dependence on earlier steps. It is post-processing.

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


def slope_combination(
    products: UpdateProducts, a: float, b: float, failure: float, expected: UpdateProducts | None
) -> Estimate:
    """Estimate ``aΣ ⟨g_t, U_t⟩ + bΣ ⟨g_{t+1}, U_t⟩`` by (T4a): the noise ξ_t meets ``aU_t + bU_{t-1}``, with response
    ``aD``.
    """
    x = math.log(2 / check_real("failure", failure, low=1e-12, high=0.5))
    squared, largest = as_numbers(products.squared_response), as_numbers(products.largest_response)
    guess = (a**2 + b**2) * squared if expected is None else _variance(expected, a, b)
    guess = np.maximum(guess + a**2 * squared, 1e-200)  # of 0: the interval is then wide
    u = np.sqrt(2 * x / guess)  # at which x/u + u·guess/2 is least
    known = abs(a) * u * largest <= 0.5  # for the bound of the logarithm and the change of variables
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


def objective_change(
    products: UpdateProducts, *, failure: float = 0.05, expected: UpdateProducts | None = None
) -> Estimate:
    """Estimate the change of the objective over some steps: a loss curve that costs no privacy.

    The trapezoid ``½Σ⟨g_t + g_{t+1}, U_t⟩`` is exact on a quadratic. The part of ``⟨g̃_t, U_t⟩`` due to shared noise
    is subtracted.

    Parameters
    ----------
    products : UpdateProducts
        Products of the steps; for a layer they give the work along it.
    failure : float
        Probability in [1e-12, 0.5] that the interval misses.
    expected : UpdateProducts, optional
        See `dprmt.spectra.slope_before`.

    Returns
    -------
    Estimate
        Estimate of the trapezoid: the work of the clipped gradients g_t of the drawn batches along the updates. With
        clipping this is not the loss. With fresh batches its mean is up to ``½ max D·C²/L`` per step too low, because
        U_t shares its batch with g_t.

    Formal guarantees
    -----------------
    As for `dprmt.spectra.slope_before`, with the same limits.

    References
    ----------
    (T4) of ``docs/theory/telemetry.md``.

    Examples
    --------
    Twenty steps on f(x) = ½‖x‖² from f = 50, with only noisy gradients:

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
    """Estimate ``Σ UᵀHU``: the curvature along the updates, including their noise.

    For plain gradient descent at rate α, divided by α² and the number of steps, it estimates ``gᵀHg + s² tr H``.

    Parameters
    ----------
    products : UpdateProducts
        Products of the steps; for a layer they include its cross terms with the others.
    failure : float
        Probability in [1e-12, 0.5] that the interval misses.
    expected : UpdateProducts, optional
        See `dprmt.spectra.slope_before`.

    Returns
    -------
    Estimate
        Estimate of ``Σ ⟨g_{t+1} - g_t, U_t⟩``, which equals the curvature on a quadratic. Fresh batches whose
        gradients scatter make it up to ``max D·C²/L`` per step too large.

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
    """Estimate the factor by which all updates should have been scaled; above 1, the rate was too low for a single
    step.

    On a quadratic, the updates ``cU_t``, each alone, decrease the objective most at ``c = Σ⟨-g_t, U_t⟩/ΣU_tᵀHU_t``.
    For plain gradient descent ``c·α`` is ``Σ‖g‖²/Σ(gᵀHg + s² tr H)``, the best rate for the present noise.

    Parameters
    ----------
    products : UpdateProducts
        Products of the steps.
    failure : float
        Probability in [1e-12, 0.5] that the interval misses.
    expected : UpdateProducts, optional
        See `dprmt.spectra.slope_before`.

    Returns
    -------
    Estimate
        A factor >= 0; infinite if no curvature is visible along the updates, 0 if they led upward from the start. It
        considers one step: another rate can be best for many steps with momentum.

    Formal guarantees
    -----------------
    The interval is the range of the quotient over the intervals of slope and curvature, each of which fails with half
    the probability.

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


def displacement_factor(slope: Estimate, change: Estimate) -> Estimate:
    """Estimate the factor at which a displacement would have decreased the objective most, from its slope and its
    change.

    Consider a parabola along the ray from x_0 through x_t that has changed by F at x_t and has the slope ``S =
    ⟨g(x_t), x_t - x_0⟩`` there. It is lowest at ``(S - 2F)/(2(S - F))`` times the way. If it does not bend upward, the
    minimum is at infinity or at the start, whichever way it falls at x_t.

    Parameters
    ----------
    slope : Estimate
        Estimate of S; negative if the objective still falls along the displacement.
    change : Estimate
        Estimate of F, from `objective_change`; both are numbers.

    Returns
    -------
    Estimate
        A factor >= 0; 1 if the displacement has the best length. Its interval is the range over both intervals: 0 to
        infinity if these do not determine it.

    Raises
    ------
    ParameterError
        If an estimate is of several layers.

    Formal guarantees
    -----------------
    If both intervals hold, so does this one, on every ray along which the objective is a parabola. A rate that was low
    by some factor shortens the displacement by another factor in the same direction.

    References
    ----------
    (T6) of ``docs/theory/telemetry.md``.

    Examples
    --------
    For f = ½x² from 1 to 0.8, the way should have been five times as long.

    >>> round(displacement_factor(Estimate(-0.16, -0.17, -0.15), Estimate(-0.18, -0.18, -0.18)).value, 9)
    5.0
    """
    ends = {"slope": slope, "change": change}
    for name, found in ends.items():
        if not all(isinstance(value, float | int) for value in (found.value, found.low, found.high)):
            raise ParameterError(name, found, "an Estimate of one number")
    if not all(math.isfinite(float(end)) for found in ends.values() for end in (found.low, found.high)):
        return Estimate(_lowest(float(slope.value), float(change.value)), 0.0, math.inf)
    # In F it is monotone, in S on either side of 0: the extremes are at ends, or at S = 0.
    places = {float(slope.low), float(slope.high)} | ({0.0} if slope.low < 0 < slope.high else set())
    values = [_lowest(S, F) for S, F in itertools.product(places, (float(change.low), float(change.high)))]
    return Estimate(_lowest(float(slope.value), float(change.value)), min(values), max(values))


def _lowest(slope: float, change: float) -> float:
    bend = 2 * (slope - change)
    if not bend > 0:
        return math.inf if slope < 0 else 0.0
    return max((slope - 2 * change) / bend, 0.0)


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
