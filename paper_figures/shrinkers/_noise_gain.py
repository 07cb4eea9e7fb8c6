r"""What removing all noise gains in one step: the curvature that noise meets, over the curvature of the signal.

**One step.** On a quadratic loss with gradient g and Hessian H, a step -αs along ``s = g + ξ``, ξ ~ N(0, σ²I), has the
expected decrease ``α‖g‖² - ½α²(gᵀHg + σ² tr H)``. Its best rate is ``α* = ‖g‖²/(gᵀHg + σ² tr H)``, and the decrease
there ``½‖g‖⁴/(gᵀHg + σ² tr H)``. Without noise it is ``½‖g‖⁴/gᵀHg``. So, each at its best rate, removing *all* noise
multiplies the decrease by exactly

    ``1 + ρ,    ρ = σ² tr H / gᵀHg``.

At the same rate ``α = tα*`` for both, t in (0, 1], the ratio is ``(2 - t/(1 + ρ))/(2 - t) <= (1 + 2ρ)/(1 + ρ)``, less
than 2: what else a clean gradient could give is a longer step, which a larger rate gives as well. Only beyond α* is the
ratio unbounded, and there a smaller rate would do.

So much can be gained by *estimating g*: it bounds every map of the released gradient whose mean is along g, and no
others. A map whose mean has another direction v may gain more, by the factor of `direction_gain`; for a fixed g and H
the most is that of `largest_direction_gain`. Proofs: docs/theory/when_denoising_helps.md, Theorems 1 and 2. (With a
fixed preconditioner P the same holds of the steps Ps, with PHP in place of H.)

**Trace from samples.** For H positive semidefinite, the mean T̂ of k independent ``zᵀHz`` with z ~ N(0, I) estimates
``tr H`` without bias. By ``∏(1 + 2θλ_i) >= 1 + 2θΣλ_i`` its lower tail is no heavier, as far as Chernoff's bound sees,
than that of one eigenvalue: ``E e^{-θ zᵀHz} <= (1 + 2θ tr H)^{-1/2}``, so

    ``P(T̂ <= x·tr H) <= (x e^{1-x})^{k/2}``    for x in (0, 1),

and ``T̂/x`` is an upper confidence limit for the trace of *any* such H.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from dprmt._validation import ParameterError, check_count, check_real
from dprmt.spectra._arrays import Array, array_namespace, as_array, check_finite, check_nonempty, is_tensor, to_float64

_NEGATIVE = 1e-8  # curvature below zero, relative to the largest seen, that passes as rounding


@dataclass(frozen=True)
class NoiseGain:
    """Gain of removing all noise from a gradient, in one step on a quadratic loss: no bound on other directions.

    Attributes
    ----------
    rho : float
        ``ρ = σ² tr H / gᵀHg >= 0``, with the estimated trace: exact if the trace is.
    upper : float
        Upper confidence limit of ρ, for any positive semidefinite H. Equal to ``rho`` if the trace is exact.
    trace : float
        tr H, exact or estimated.
    along_gradient : float
        ``gᵀHg > 0``.
    """

    rho: float
    upper: float
    trace: float
    along_gradient: float

    @property
    def gain(self) -> float:
        """``1 + ρ``: expected decrease without noise over that with noise, each at its best learning rate."""
        return 1 + self.rho

    @property
    def gain_at_one_rate(self) -> float:
        """``(1 + 2ρ)/(1 + ρ) < 2``: the same at one rate for both, the best one with noise."""
        return (1 + 2 * self.rho) / (1 + self.rho)

    @classmethod
    def from_samples(
        cls,
        trace_samples: Sequence[float] | NDArray[np.float64],
        along_gradient: float,
        sigma: float,
        failure: float = 0.05,
    ) -> NoiseGain:
        """The gain from independent quadratic forms ``zᵀHz`` of Gaussian vectors z, or others with the same law.

        Parameters
        ----------
        trace_samples : sequence of float
            At least one, >= 0; their mean estimates tr H. For ``H = AᵀA`` also ``‖Aᵀz‖²``.
        along_gradient : float
            ``gᵀHg > 0``.
        sigma : float
            Standard deviation of one entry of the noise, >= 0, in the units of the gradient.
        failure : float
            Probability in [1e-9, 0.5] that ``upper`` is too small.

        Returns
        -------
        NoiseGain
            Not private, where H or g are not.

        Raises
        ------
        ParameterError
            If an argument is out of range.

        Examples
        --------
        >>> gain = NoiseGain.from_samples([3.0, 5.0], along_gradient=8.0, sigma=2.0)
        >>> gain.rho, gain.gain, gain.upper > gain.rho
        (2.0, 3.0, True)
        """
        samples = np.atleast_1d(as_array("trace_samples", trace_samples)).astype(np.float64)
        check_nonempty("trace_samples", samples)
        check_finite("trace_samples", samples, low=0.0)
        failure = check_real("failure", failure, low=1e-9, high=0.5)
        return cls._of(float(samples.mean()), along_gradient, sigma, _least_share(len(samples), failure))

    @classmethod
    def _of(cls, trace: float, along_gradient: float, sigma: float, share: float) -> NoiseGain:
        along = check_real("along_gradient", along_gradient, low=0.0, low_open=True)
        rho = check_real("sigma", sigma, low=0.0) ** 2 * trace / along
        return cls(rho, rho / share, trace, along)


def noise_gain(
    gradient: Array,
    hessian: Array | Callable[[Array], Array] | Any,
    sigma: float,
    *,
    preconditioner: Array | None = None,
    probes: int = 32,
    seed: int = 0,
    failure: float = 0.05,
) -> NoiseGain:
    """Gain of removing all noise: ``ρ = σ² tr H / gᵀHg``, exact from a matrix, estimated from products.

    Where ρ is small, a better estimate of g gains next to nothing that a learning rate would not give, however small
    the cosine of the noisy gradient with the clean one. It is no bound on maps whose mean is not along g: a denoiser
    that drops weak directions of large curvature preconditions, and can gain many times ``1 + ρ``
    (`direction_gain`, `largest_direction_gain`). Compute it on public or made-up data before a run.

    Parameters
    ----------
    gradient : array of any shape, d entries
        g, NumPy or torch, of floating dtype.
    hessian : array of shape (d, d), callable, or object with a ``matvec`` method
        H, symmetric positive semidefinite such as a Gauss–Newton matrix, or the map v -> Hv from arrays of the shape,
        dtype and library of ``gradient`` to the same.
    sigma : float
        Standard deviation of one entry of the noise, >= 0, in the units of the gradient: σ_DP·C/|B|.
    preconditioner : array of the shape of ``gradient``, optional
        The diagonal of P >= 0 in a step Ps, for Adam ``1/(√v̂ + ε)``; then PHP takes the place of H.
    probes : int
        Products with random vectors, >= 1, from which the trace of an operator is estimated; with 32, ``upper`` is
        twice the estimate.
    seed : int
        Of the random vectors, >= 0.
    failure : float
        Probability in [1e-9, 0.5] that ``upper`` is too small, for an operator.

    Returns
    -------
    NoiseGain
        ρ with an upper confidence limit. Not private where g or H are not.

    Raises
    ------
    ParameterError
        If shapes, libraries or dtypes do not match, H is not positive semidefinite as far as seen or has no curvature
        along the gradient, or a number is out of range.

    References
    ----------
    Hutchinson (1990) for the trace; docs/theory/when_denoising_helps.md, Eq. (2) and Theorem 1.

    Examples
    --------
    >>> import numpy as np
    >>> g, curvature = np.array([3.0, 1.0, 1.0, 1.0]), np.diag([1.0, 0.1, 0.1, 0.1])
    >>> round(noise_gain(g, curvature, sigma=1.0).gain, 4)  # noise is mostly where there is little curvature
    1.1398
    >>> noise_gain(g, lambda v: curvature @ v, sigma=1.0).upper > 0.139
    True
    """
    g = _flat_gradient(gradient)
    P = None if preconditioner is None else _diagonal(preconditioner, gradient)
    apply = getattr(hessian, "matvec", hessian)
    if not callable(apply):
        H = _matrix(hessian, g)
        diagonal = H.diagonal() if P is None else H.diagonal() * P * P
        v = g if P is None else P * g
        return NoiseGain._of(float(diagonal.sum()), _curvature(float(v @ (H @ v)), 0.0), sigma, 1.0)
    product = _quadratic_form(apply, gradient, P)
    rng = np.random.default_rng(check_count("seed", seed, low=0))
    count = check_count("probes", probes)
    along = product(g)
    samples = [product(_like(rng.standard_normal(len(g)), g)) for _ in range(count)]
    least, largest = min(samples), max(abs(sample) for sample in samples)
    if least < -_NEGATIVE * largest:
        raise ParameterError("hessian", least, "positive semidefinite; its curvature along a random vector")
    return NoiseGain.from_samples(np.clip(samples, 0.0, None), _curvature(along, _NEGATIVE * largest), sigma, failure)


def _least_share(samples: int, failure: float) -> float:
    # The x in (0, 1) with (x e^{1-x})^{k/2} = failure: x = -W(-failure^{2/k}/e).
    return float(-scipy.special.lambertw(-math.exp(2 * math.log(failure) / samples - 1)).real)


def _curvature(along: float, rounding: float, *, of: str = "gradient") -> float:
    if along <= rounding:
        raise ParameterError("hessian", along, f"of positive curvature along the {of}; vᵀHv")
    return along


def _flat_gradient(gradient: Array) -> Array:
    values = as_array("gradient", gradient)
    check_nonempty("gradient", values)
    check_finite("gradient", values)
    return to_float64(values.detach() if is_tensor(values) else values).reshape(-1)


def _diagonal(preconditioner: Array, gradient: Array) -> Array:
    P = as_array("preconditioner", preconditioner)
    if P.shape != gradient.shape or array_namespace(P) is not array_namespace(gradient):
        raise ParameterError("preconditioner", tuple(P.shape), f"an array like the gradient, {tuple(gradient.shape)}")
    check_finite("preconditioner", P, low=0.0)
    return to_float64(P).reshape(-1)


def _matrix(hessian: Array, g: Array) -> Array:
    H = as_array("hessian", hessian)
    size = len(g)
    if tuple(H.shape) != (size, size) or array_namespace(H) is not array_namespace(g):
        raise ParameterError("hessian", tuple(H.shape), f"of shape ({size}, {size}) and the library of the gradient")
    check_finite("hessian", H)
    if float(abs(H - H.T).max()) > _NEGATIVE * float(abs(H).max()):
        raise ParameterError("hessian", float(abs(H - H.T).max()), "a symmetric matrix; its largest asymmetry")
    if float(H.diagonal().min()) < -_NEGATIVE * float(abs(H).max()):
        raise ParameterError("hessian", float(H.diagonal().min()), "positive semidefinite; its least diagonal entry")
    return to_float64(H)


def _quadratic_form(apply: Callable[[Array], Array], gradient: Array, P: Array | None) -> Callable[[Array], float]:
    # v -> vᵀPHPv, through products in the shape and dtype of the gradient.
    def form(v: Array) -> float:
        v = v if P is None else P * v
        argument = v.reshape(gradient.shape)
        argument = argument.to(gradient.dtype) if is_tensor(v) else argument.astype(gradient.dtype)
        image = as_array("hessian(v)", apply(argument))
        if image.shape != gradient.shape or array_namespace(image) is not array_namespace(gradient):
            raise ParameterError("hessian(v)", tuple(image.shape), f"an array like the gradient, {gradient.shape}")
        check_finite("hessian(v)", image)
        return float(v @ to_float64(image.detach() if is_tensor(image) else image).reshape(-1))

    return form


def _like(values: NDArray[np.float64], like: Array) -> Array:
    return like.new_tensor(values) if is_tensor(like) else values
