r"""What denoising could gain in one step: ρ, κ and K of a quadratic loss, by parameter of a model, and by batch size.

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

**Another direction.** Along v, the best decrease at any rate is ``½⟨g, v⟩²/vᵀHv``; along g it is ``½‖g‖⁴/gᵀHg``. Their
ratio is

    ``κ(v) = ⟨g, v⟩²·gᵀHg / (‖g‖⁴·vᵀHv)``,

at most ``K = gᵀHg·gᵀH⁺g/‖g‖⁴ >= 1`` by Cauchy–Schwarz, with equality at ``v = H⁺g``; K = 1 if and only if g is an
eigenvector of H. Proofs: docs/theory/when_denoising_helps.md, Theorems 1 to 3.

**Batch size.** The mean ``Ḡ_B`` of B independent per-sample gradients is ``M + E_B``: a coherent part that stays, and
sampling noise that falls as ``1/√B``. Noise of privacy on the sum has a detection threshold ``θ = ζ(mn)^{1/4}``,
ζ = σ_DP·C, hence
``θ/B`` on the mean. ``E λ₁(Ḡ_B)`` never rises with B and never falls below ``λ₁(M)``, so the batch size from which on
it is at least ``θ/B`` lies between ``θ/E λ₁(Ḡ_b)`` and ``θ/λ₁(M)``. Proofs: docs/theory/when_denoising_helps.md,
Theorem 8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch.nn.attention import SDPBackend, sdpa_kernel

from dprmt._validation import ParameterError, check_count, check_real
from dprmt.spectra._arrays import (
    Array,
    array_namespace,
    as_array,
    check_finite,
    check_matrices,
    check_nonempty,
    is_tensor,
    to_float64,
)
from dprmt.spectra._telemetry import Estimate, estimate

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


_FLAT = 1e-12  # an eigenvalue that counts as zero, relative to the largest
_INSIDE = 1e-8  # share of g in the directions without curvature that passes as rounding


def direction_gain(direction: Array, gradient: Array, hessian: Array | Callable[[Array], Array] | Any) -> float:
    """Gain of a step along another direction over one along the gradient, both without noise and at their best rate.

    A map of a noisy gradient whose mean is ``direction`` gains at most ``(1 + ρ)`` times this over the noisy gradient,
    ρ that of `noise_gain`, and exactly that if nothing of its noise meets curvature.

    Parameters
    ----------
    direction : array of the shape of ``gradient``
        v: the mean of a denoised gradient, or what would be left of the gradient itself. Its length does not matter.
    gradient : array of any shape, d entries
        g, NumPy or torch, of floating dtype.
    hessian : array of shape (d, d), callable, or object with a ``matvec`` method
        H, as in `noise_gain`.

    Returns
    -------
    float
        κ(v) >= 0: above 1 for a better direction than g, 0 if v does not point downhill. Not private where g or H
        are not.

    Raises
    ------
    ParameterError
        If shapes, libraries or dtypes do not match, a matrix is not positive semidefinite as far as seen, or there is
        no curvature along one of the two.

    References
    ----------
    docs/theory/when_denoising_helps.md, Theorem 1.

    Examples
    --------
    >>> import numpy as np
    >>> g, curvature = np.array([32.0, 6.0]), np.diag([1e-3, 1.0])
    >>> round(direction_gain([32.0, 0.0], g, curvature), 2)  # without its weak, sharp entry
    33.74
    >>> round(direction_gain([0.0, 6.0], g, curvature), 4)
    0.0012
    """
    g, v = _flat_gradient(gradient), _flat_gradient(direction)
    if len(v) != len(g) or array_namespace(v) is not array_namespace(g):
        raise ParameterError("direction", tuple(v.shape), f"an array like the gradient, of {len(g)} entries")
    g, v = g / _length("gradient", g), v / _length("direction", v)
    apply = getattr(hessian, "matvec", hessian)
    if callable(apply):
        form = _quadratic_form(apply, as_array("gradient", gradient), None)
    else:
        H = _matrix(hessian, g)
        form = lambda x: float(x @ (H @ x))  # noqa: E731
    along = max(float(g @ v), 0.0)
    return along**2 * _curvature(form(g), 0.0) / _curvature(form(v), 0.0, of="direction")


def largest_direction_gain(gradient: Array, hessian: Array) -> float:
    """The most that any direction gains over the gradient, at ``H⁺g``; times ``1 + ρ``, the most of any denoiser.

    Parameters
    ----------
    gradient : array of any shape, d entries
        g, NumPy or torch, of floating dtype.
    hessian : array of shape (d, d)
        H, symmetric positive semidefinite. A matrix: products give no upper bound on ``gᵀH⁺g``.

    Returns
    -------
    float
        ``K = gᵀHg·gᵀH⁺g/‖g‖⁴ >= 1``; infinite if part of g lies in directions without curvature.

    Raises
    ------
    ParameterError
        If shapes, libraries or dtypes do not match, H is not symmetric positive semidefinite, or has no curvature along
        the gradient.

    References
    ----------
    docs/theory/when_denoising_helps.md, Theorem 2.

    Examples
    --------
    >>> import numpy as np
    >>> round(largest_direction_gain(np.array([32.0, 6.0]), np.diag([1e-3, 1.0])), 2)
    33.74
    >>> largest_direction_gain(np.array([32.0, 6.0]), np.eye(2))  # 1 + ρ bounds every map
    1.0
    """
    g = _flat_gradient(gradient)
    H = _matrix(hessian, g)
    values, vectors = np.linalg.eigh(_numpy(H))
    if values[0] < -_INSIDE * values[-1]:
        raise ParameterError("hessian", float(values[0]), "positive semidefinite; its least eigenvalue")
    return _spread(vectors.T @ _numpy(g / _length("gradient", g)), np.clip(values, 0.0, None))


def filter_gain(signal: Array, curvature: Array, *, monotone: bool = True) -> float:
    """The most that filters of a gradient's singular values gain: matrices with its vectors and other values.

    Such a filter maps ``g = Σ s_i u_i v_iᵀ`` to ``Σ w_i s_i u_i v_iᵀ``. Shrinkers and truncations are monotone: a
    larger singular value has no smaller weight ``w_i >= 0``. They gain only where weak singular values are more curved
    than the whole.

    Parameters
    ----------
    signal : array, shape (k,)
        s, the singular values of the clean gradient, >= 0 in any order, not all 0.
    curvature : array, shape (k,)
        ``h_i = ⟨u_i v_iᵀ, H u_i v_iᵀ⟩ > 0``; curvature between two different directions has to be 0.
    monotone : bool
        Whether to allow monotone weights alone.

    Returns
    -------
    float
        The largest κ, >= 1: with all weights free ``Σ s_i²h_i · Σ s_i²/h_i / (Σ s_i²)²``, else from the isotonic
        regression of ``1/h_i`` on s_i with the weights ``s_i²h_i``.

    Raises
    ------
    ParameterError
        If the two have other shapes or an entry is out of range.

    References
    ----------
    docs/theory/when_denoising_helps.md, Theorem 3; isotonic regression by pooling adjacent violators, Barlow et al.
    (1972), Statistical Inference under Order Restrictions, Theorem 1.1.

    Examples
    --------
    >>> round(filter_gain([32.0, 6.0], [1e-3, 1.0]), 2)  # weak and sharp: truncation preconditions
    33.74
    >>> filter_gain([32.0, 6.0], [1.0, 1e-3])  # weak and flat: no monotone filter beats the gradient
    1.0
    >>> round(filter_gain([32.0, 6.0], [1.0, 1e-3], monotone=False), 2)
    33.74
    """
    s, h = (_numpy(as_array(name, x)) for name, x in (("signal", signal), ("curvature", curvature)))
    if s.ndim != 1 or s.shape != h.shape:
        raise ParameterError("curvature", h.shape, f"of the shape (k,) of signal, which has {s.shape}")
    check_nonempty("signal", s)
    check_finite("signal", s, low=0.0)
    check_finite("curvature", h, low=np.finfo(float).tiny)
    s = s / _length("signal", s)
    if not monotone:
        return _spread(s, h)
    _, group = np.unique(s, return_inverse=True)  # equal singular values have equal weights
    energy, curved = np.bincount(group, s * s), np.bincount(group, s * s * h)
    seen = energy > 0  # what is 0, or underflows, moves nothing
    blocks = _pooled(energy[seen], curved[seen])
    return float(max(sum(E * E / C for E, C in blocks) * curved.sum() / energy.sum() ** 2, 1.0))


def _pooled(energy: NDArray[Any], curved: NDArray[Any]) -> list[tuple[float, float]]:
    # Adjacent violators, weakest first: the ratios energy/curved of the blocks increase.
    blocks: list[tuple[float, float]] = []
    for E, C in zip(energy.tolist(), curved.tolist(), strict=True):
        while blocks and blocks[-1][0] * C >= E * blocks[-1][1]:
            E, C = E + blocks[-1][0], C + blocks[-1][1]
            blocks.pop()
        blocks.append((E, C))
    return blocks


def _spread(g: NDArray[np.float64], h: NDArray[np.float64]) -> float:
    # K of a unit vector in the eigenbasis of H.
    flat = h <= _FLAT * h.max()
    along = _curvature(float(g * g @ h), 0.0)
    if math.sqrt(float(g[flat] @ g[flat])) > _INSIDE:
        return math.inf
    inverse = float((g[~flat] ** 2 / h[~flat]).sum())
    return max(along * inverse, 1.0)


def _length(name: str, x: Array) -> float:
    largest = float(abs(x).max())
    if largest == 0:
        raise ParameterError(name, 0.0, "not 0 in every entry; its largest")
    scaled = x / largest
    return largest * math.sqrt(float(scaled @ scaled))


WHOLE = "*"
_IGNORED = -100  # the label of positions that do not count


def layer_noise_gains(
    forward: Callable[[], tuple[torch.Tensor, torch.Tensor]],
    named_parameters: Mapping[str, torch.Tensor],
    sigma: float,
    *,
    probes: int = 32,
    seed: int = 0,
    failure: float = 0.05,
) -> dict[str, NoiseGain]:
    """Gain of removing all noise in one step, by parameter and for all of them, at a cross-entropy loss.

    The most that *estimating* the gradient gains; no bound on maps that aim elsewhere (`noise_gain`).

    H is the Gauss–Newton matrix ``(1/n) Σ JᵢᵀSᵢJᵢ`` of the mean loss, ``S = diag(p) - ppᵀ = LLᵀ``. A backward pass
    from ``Lε/√n`` with ε ~ N(0, I) gives ``AᵀA = H`` the sample ``‖Aᵀε‖²`` of the traces of all diagonal blocks at
    once; ``gᵀHg`` is exact, from one product per parameter.

    Parameters
    ----------
    forward : callable
        Runs the model on a public or made-up batch: logits of shape (..., c), with a graph, and labels of shape (...),
        int64, -100 where there are none. Called once; the model should be in evaluation mode.
    named_parameters : mapping of str to Tensor
        Those that are trained, by name. The loss is as they are now.
    sigma : float
        Standard deviation of the noise in one entry of the gradient of the mean loss, >= 0. If clipping shrinks the
        gradient to c times itself, that is σ_DP·C/(c·L).
    probes : int
        Backward passes behind the traces, >= 1.
    seed : int
        Of ε.
    failure : float
        Probability in [1e-9, 0.5], of each ``upper`` by itself, that it is too small.

    Returns
    -------
    dict of NoiseGain
        By name, with noise in that parameter alone, and under ``"*"`` with noise in all of them. A parameter on which
        the logits do not depend has no entry.

    Raises
    ------
    ParameterError
        If there are no parameters, no labels, or a number is out of range.

    Formal guarantees
    -----------------
    None: a function of the batch. On private data the answer is private, and no accountant has counted it.

    References
    ----------
    docs/theory/when_denoising_helps.md, Eq. (2) and Theorem 1.

    Examples
    --------
    >>> layer = torch.nn.Linear(3, 2, bias=False)
    >>> _ = torch.nn.init.zeros_(layer.weight)
    >>> forward = lambda: (layer(torch.ones(1, 3)), torch.tensor([0]))
    >>> gain = layer_noise_gains(forward, dict(layer.named_parameters()), sigma=1.0)["weight"]
    >>> round(gain.along_gradient, 6)  # g = (-½, ½) ⊗ (1, 1, 1), S has the eigenvalue ½ along (1, -1)
    2.25
    """
    if not named_parameters:
        raise ParameterError("named_parameters", named_parameters, "at least one parameter")
    count = check_count("probes", probes)
    names, parameters = list(named_parameters), list(named_parameters.values())
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # the fused kernels cannot be differentiated twice
        logits, labels = forward()
        model = _GaussNewton(logits, labels, parameters)
        along = model.along_gradient()
        traces = model.trace_samples(count, seed)
    result = {
        name: NoiseGain.from_samples(traces[:, i].numpy(), float(along[i]), sigma, failure)
        for i, name in enumerate([*names, WHOLE])
        if along[i] > 0
    }
    return {name: result[name] for name in [*names, WHOLE] if name in result}


class _GaussNewton:
    """Gradient and curvature of the mean cross-entropy at the labelled positions."""

    def __init__(self, logits: torch.Tensor, labels: torch.Tensor, parameters: list[torch.Tensor]) -> None:
        labelled = labels != _IGNORED
        self.logits, self.parameters = logits[labelled], parameters
        self.count = len(self.logits)
        if self.count == 0:
            raise ParameterError("forward", tuple(labels.shape), "a function that gives labels; their shape")
        self.p = self.logits.detach().softmax(-1)
        self.residual = self.p - torch.nn.functional.one_hot(labels[labelled], self.p.shape[-1])

    def along_gradient(self) -> torch.Tensor:
        """``g_lᵀH_ll g_l`` by parameter, and ``gᵀHg``."""
        gradient = self._transposed(self.residual / self.count)
        cotangent = torch.zeros_like(self.logits, requires_grad=True)
        pulled = torch.autograd.grad(
            self.logits, self.parameters, cotangent, create_graph=True, allow_unused=True
        )  # Jᵀw, linear in w, whose derivative is Jv
        pushed = [self._pushed(image, g, cotangent) for image, g in zip(pulled, gradient, strict=True)]
        squares = [self._squared(image) for image in [*pushed, sum(pushed, start=torch.zeros_like(self.logits))]]
        return torch.tensor(squares, dtype=torch.float64)

    def trace_samples(self, probes: int, seed: int) -> torch.Tensor:
        """``‖A_lᵀε‖²`` by probe and parameter, with the sum over parameters last."""
        generator = torch.Generator().manual_seed(check_count("seed", seed, low=0))
        rows = []
        for _ in range(probes):
            ε = torch.randn(self.p.shape, generator=generator).to(self.p)
            root = self.p.sqrt()
            signal = root * (ε - root * (root * ε).sum(-1, keepdim=True)) / self.count**0.5
            rows.append([float(image.double().square().sum()) for image in self._transposed(signal)])
        samples = torch.tensor(rows, dtype=torch.float64)
        return torch.cat([samples, samples.sum(1, keepdim=True)], 1)

    def _transposed(self, signal: torch.Tensor) -> list[torch.Tensor]:
        # Jᵀ times a signal in the logits.
        images = torch.autograd.grad(self.logits, self.parameters, signal, retain_graph=True, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for g, p in zip(images, self.parameters, strict=True)]

    def _pushed(self, pulled: torch.Tensor | None, v: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
        # J_l v for one parameter.
        if pulled is None:
            return torch.zeros_like(cotangent)
        (image,) = torch.autograd.grad(pulled, cotangent, v, retain_graph=True)
        return image

    def _squared(self, image: torch.Tensor) -> float:
        # ‖Lᵀ u‖²/n for u = Jv: the mean of uᵀSu.
        u = image.double()
        p = self.p.double()
        return float(((p * u * u).sum(-1) - (p * u).sum(-1) ** 2).clamp_min(0).mean())


_FEWEST = 4


def detection_batch(gradients: Any, samples: int, noise: float, *, failure: float = 0.05) -> Estimate:
    """The batch size from which on a layer's top singular value is above the detection threshold, with an interval.

    Parameters
    ----------
    gradients : array, shape (..., k, m, n)
        Means of the (clipped) per-sample gradients over k >= 4 disjoint micro-batches of equally many samples, drawn
        independently; NumPy or torch, of floating dtype. Leading axes are layers.
    samples : int
        b >= 1, in each micro-batch.
    noise : float
        ``σ_DP·C`` > 0: standard deviation of one entry of the noise on the *sum*, in the units of the gradients.
    failure : float
        In [1e-9, 0.5]: chance that the interval misses, for each layer.

    Returns
    -------
    Estimate
        The least B with ``E λ₁(Ḡ_B) >= noise·(mn)^{1/4}/B``, in samples, one number or one a layer: ``low``, 0 where it
        may be below b; ``high``, infinite where no coherent part is seen; and ``value`` between them, from
        ``λ₁² ≈ μ² + τ²/B`` with mean μ and variance τ² along a direction that other micro-batches chose. As functions
        of ``noise``, ``low`` and ``high`` are proportional to it (but where ``low`` is 0). Not private: a function of
        gradients without noise, for public or made-up data.

    Raises
    ------
    ParameterError
        If there are fewer than three axes or four micro-batches, an entry is not finite, or a number is out of range.

    Notes
    -----
    The interval is of Student's, for a mean along the held-out direction and one of top singular values. It is exact
    for neither, but holds as far as means of k/2 numbers, each a mean of b samples, are normal.

    References
    ----------
    docs/theory/when_denoising_helps.md, Theorem 8.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> clean = np.zeros((32, 8, 64))
    >>> clean[:, 0, 0] = 0.5
    >>> found = detection_batch(clean + rng.normal(size=clean.shape) / 64**0.5, samples=64, noise=100.0)
    >>> found.low < 951 < found.high, round(found.value, -1)  # θ/λ₁(M) = 951
    (True, 1060.0)
    """
    stack = _numpy(check_matrices("gradients", gradients))
    if stack.ndim < 3 or stack.shape[-3] < _FEWEST:
        allowed = f"an array (..., k, m, n) with k >= {_FEWEST} micro-batches"
        raise ParameterError("gradients", tuple(stack.shape), allowed)
    b = check_count("samples", samples)
    m, n = stack.shape[-2:]
    theta = check_real("noise", noise, low=0.0, low_open=True) * (m * n) ** 0.25
    miss = check_real("failure", failure, low=1e-9, high=0.5)
    along = _held_out(stack)
    tops = np.linalg.svd(stack, compute_uv=False)[..., 0]
    with np.errstate(divide="ignore"):
        low = theta / (tops.mean(-1) + _reach(tops, miss / 2))
        low = np.where(low < b, 0.0, low)
        high = theta / np.maximum(along.mean(-1) - _reach(along, miss / 2), 0.0)
        value = np.clip(_crossing(along, b, theta), low, high)
    return estimate(value, low, np.maximum(low, high))


def _held_out(stack: NDArray[np.float64]) -> NDArray[np.float64]:
    # ⟨u, G v⟩ over the second half of the micro-batches, (u, v) the top pair of the first half's mean.
    half = stack.shape[-3] // 2
    U, _, Vt = np.linalg.svd(stack[..., :half, :, :].mean(-3), full_matrices=False)
    found: NDArray[np.float64] = np.einsum("...kmn,...m,...n->...k", stack[..., half:, :, :], U[..., 0], Vt[..., 0, :])
    return found


def _reach(values: NDArray[Any], miss: float) -> NDArray[np.float64]:
    # From a mean to its one-sided limit.
    count = values.shape[-1]
    reach: NDArray[np.float64] = scipy.special.stdtrit(count - 1, 1 - miss) * values.std(-1, ddof=1) / math.sqrt(count)
    return reach


def _crossing(along: NDArray[np.float64], b: int, theta: float) -> NDArray[np.float64]:
    # The root of μ²B² + τ²B = θ², with unbiased μ², at least 0, and τ² of one sample.
    variance = along.var(-1, ddof=1)
    squared = np.maximum(along.mean(-1) ** 2 - variance / along.shape[-1], 0.0)
    per_sample = b * variance
    root: NDArray[np.float64] = 2 * theta**2 / (per_sample + np.sqrt(per_sample**2 + 4 * squared * theta**2))
    return root


def _numpy(x: Any) -> NDArray[np.float64]:
    return np.asarray(x.detach().cpu() if is_tensor(x) else x, dtype=np.float64)
