r"""A denoiser that blends the noisy matrix with soft thresholds of it, as an unbiased estimate of its error prefers.

The derivation, what is proved and what simulations show: ``docs/theory/sure_denoiser.md``. In units of σ, with the
noisy singular values y and the members ``f_0(y) = y`` and ``f_k(y) = (y - t_k)_+``, let

    c_k = Σ f_k(y_i) y_i - div f_k(Y),     Γ_kl = Σ f_k(y_i) f_l(y_i).

c_k estimates ``⟨f_k(Y), X⟩`` without bias, so ``wᵀc/√(wᵀΓw)`` estimates ``cos(f(Y), X)·‖X‖`` for ``f = Σ w_k f_k``,
and minimizing ``wᵀΓw - 2wᵀc`` over w >= 0 maximizes it. The standard errors s_k of c_k lean against the best of noisy
estimates: ``c_0 + ¾s_0`` and ``c_k - ¾s_k`` inside the bulk take the place of c_0 and c_k. The *estimated* cosine is
never below that of Y.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dprmt._validation import ParameterError, check_real
from dprmt.spectra._arrays import MatrixT, as_array, check_finite, check_nonempty, detached, is_tensor
from dprmt.spectra._denoise import LayerReport, sigma_by_name
from dprmt.training.recipes import DENOISERS

Floats: TypeAlias = NDArray[np.float64]
KNOTS = 0.6, 0.8, 1.0  # of the soft thresholds, as fractions of the way through the bulk
NAMES = ("identity", *(f"soft {knot:.1f}" for knot in KNOTS))
CAUTION = np.array([0.75, -0.75, -0.75, 0.0])  # in standard errors, per member
_RIDGE = 1e-10  # of the diagonal of Γ; makes the minimizer unique where members are parallel on this spectrum
_CLOSE = 6e-6  # ∛ε: pairs of relative distance below it use slopes, where differences lose more than half the digits


class Moments(NamedTuple):
    """What the weights of one matrix depend on, in units of σ²; sums over several noisy matrices add up."""

    inner_products: Floats  # c, shape (members,)
    gram: Floats  # Γ, shape (members, members)
    variances: Floats  # of the errors of c, shape (members,), in units of σ⁴


@dataclass(frozen=True)
class BlendReport(LayerReport):
    """Effect of blending on one layer; `LayerReport` with more detail.

    ``weights`` are the a_k >= 0 of the result ``Σ a_k f_k(Y)`` by the name of the member, after rescaling;
    ``cosine_gain`` is the estimated improvement of the cosine with the clean layer, too high on average.
    """

    weights: Mapping[str, float] = field(default_factory=lambda: {NAMES[0]: 1.0})
    cosine_gain: float = 0.0

    @property
    def noisy_share(self) -> float:
        """The weight of Y itself; 1 for a layer that was left alone."""
        return self.weights[NAMES[0]]


class BlendMemory:
    """Sums of the estimates over earlier steps, in which each step counts ``decay`` times as much as the next one.

    A function of the noisy gradients that it was shown: no further cost in privacy.
    """

    def __init__(self, decay: float = 0.9) -> None:
        self.decay = check_real("decay", decay, low=0.0, high=1.0, high_open=True)
        self._sums: dict[tuple[str, tuple[int, ...]], Moments] = {}

    def pooled(self, name: str, shape: tuple[int, ...], moments: Moments) -> Moments:
        """Add a step of a layer, and return the sums; a layer is another one if its shape changes."""
        before = self._sums.get((name, shape))
        if before is not None:
            factors = self.decay, self.decay, self.decay**2  # errors of steps are independent
            moments = Moments(*(f * old + new for f, old, new in zip(factors, before, moments, strict=True)))
        self._sums[name, shape] = moments
        return moments


def blend(matrix: MatrixT, sigma: float, norm_correction: bool = True) -> MatrixT:
    """Denoise a noisy matrix by the combination of shrinkers that Stein's unbiased risk estimate prefers.

    Parameters
    ----------
    matrix : array, shape (..., m, n)
        Y, NumPy or torch; leading axes are a batch of independent matrices.
    sigma : float
        Standard deviation of one entry of the noise, >= 0, in the units of the matrix.
    norm_correction : bool
        Whether the result gets the Frobenius norm of Y. If not, it is the least-squares estimate of the clean matrix;
        so is a result that would leave the range of its dtype if rescaled.

    Returns
    -------
    array, shape (..., m, n)
        In the form, dtype and device of ``matrix``. A matrix in which nothing is detected comes back as it is.

    Formal guarantees
    -----------------
    A function of ``matrix`` and the other arguments alone: if ``matrix`` is the output of a differentially private
    mechanism, so is the result, with the same (ε, δ).

    Examples
    --------
    >>> from dprmt.spectra import cosine_similarity, denoise
    >>> rng = np.random.default_rng(0)
    >>> clean = np.zeros((16, 768))
    >>> clean[range(16), range(16)] = 14 / np.arange(1, 17) ** 0.5  # top singular value 14; bulk edge 32
    >>> noisy = clean + rng.standard_normal((100, 16, 768))  # 100 draws of the noise
    >>> def mean_cosine(matrices):
    ...     return round(sum(cosine_similarity(matrix, clean) for matrix in matrices) / 100, 3)
    >>> mean_cosine(noisy), mean_cosine(denoise(noisy, sigma=1.0, method="paper")), mean_cosine(blend(noisy, sigma=1.0))
    (0.226, 0.18, 0.241)
    """
    array = as_array("matrix", matrix)
    if array.ndim < 2:
        raise ParameterError("matrix", tuple(array.shape), "a matrix or a stack of matrices, shape (..., m, n)")
    check_nonempty("matrix", array)
    layers = {str(i): one for i, one in enumerate(array.reshape(-1, *array.shape[-2:]))}
    found = list(blend_layers(layers, sigma, norm_correction)[0].values())
    if is_tensor(array):
        import torch

        return torch.stack(found).reshape(array.shape)
    return np.stack(found).reshape(array.shape)  # type: ignore[return-value]


def blend_layers(
    layers: Mapping[str, Any],
    sigma: float | Mapping[str, float],
    norm_correction: bool = True,
    *,
    memory: BlendMemory | None = None,
) -> tuple[dict[str, Any], dict[str, BlendReport]]:
    """Denoise every matrix of a noisy gradient, as `blend` does, and leave everything else alone.

    Parameters
    ----------
    layers : mapping of str to array
        The noisy gradient by layer: two-dimensional arrays are matrices, others pass through. Not modified.
    sigma : float or mapping of str to float
        Standard deviation of one entry of the noise, >= 0, by name of the matrix if a mapping.
    norm_correction : bool
        As in `blend`.
    memory : BlendMemory, optional
        Sums over earlier steps, from which to choose the weights; brought up to date.

    Returns
    -------
    layers : dict
        The same names in the same order. A layer that was not changed is the same object, not a copy.
    report : dict of BlendReport
        By name, in the same order.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> noisy = {"lora_A": rng.standard_normal((16, 256)), "bias": rng.standard_normal(16)}
    >>> noisy |= {"lora_B": 0.5 * np.ones((256, 16)) + rng.standard_normal((256, 16))}
    >>> blended, report = blend_layers(noisy, sigma=1.0)
    >>> blended["bias"] is noisy["bias"], report["lora_B"].denoised, report["lora_B"].noisy_share < 0.5
    (True, True, True)
    """
    sigmas = sigma_by_name([name for name, layer in layers.items() if layer.ndim == 2], sigma)
    result, report = dict(layers), {}
    for name, layer in layers.items():
        σ = sigmas.get(name, 0.0)
        if σ > 0:
            result[name], report[name] = _blended(name, layer, σ, norm_correction, memory)
        else:
            is_matrix, shape = layer.ndim == 2, tuple(layer.shape)
            report[name] = BlendReport(name, shape, math.inf if is_matrix else None, min(shape) * is_matrix, False)
    return result, report


def _blended(
    name: str, layer: Any, σ: float, norm_correction: bool, memory: BlendMemory | None
) -> tuple[Any, BlendReport]:
    check_finite(f"layers[{name!r}]", layer)
    plain = detached(layer)
    Y = np.asarray(plain.double().cpu() if is_tensor(plain) else plain, dtype=np.float64)
    U, s, Vt = np.linalg.svd(Y, full_matrices=False)
    y, shape = s / σ, Y.shape
    moments = moments_of(y, shape)
    chosen = moments if memory is None else memory.pooled(name, shape, moments)
    weights = fit_weights(chosen)
    ratio = math.sqrt(max(weights @ moments.gram @ weights, 0.0) / max(moments.gram[0, 0], 1e-300))
    ratios = y / (math.sqrt(shape[0]) + math.sqrt(shape[1]))
    report = BlendReport(name, shape, float(ratios[0]), int((ratios > 1).sum()), False)
    if ratio == 0 or (norm_correction and not (weights * moments.gram.diagonal())[1:].any()):
        return layer, report
    for a in (weights / ratio, weights) if norm_correction else (weights,):
        shrunk = σ * (a[1:] @ members(y, shape)[1:])
        with np.errstate(over="ignore"):
            found = _like((U * shrunk) @ Vt + a[0] * Y, plain)
        if bool(np.isfinite(np.asarray(found.double().cpu() if is_tensor(found) else found)).all()):
            break
    gain = estimated_gain(a, chosen)
    kept = dict(zip(NAMES, a.tolist(), strict=True))
    return found, BlendReport(name, shape, report.top_over_edge, report.spikes, True, weights=kept, cosine_gain=gain)


def _like(result: Floats, like: Any) -> Any:
    return like.new_tensor(result) if is_tensor(like) else result.astype(like.dtype)


def members(y: Floats, shape: tuple[int, ...]) -> Floats:
    """The values f_k(y_i), shape (members, r); of a matrix with one singular value the first member counts alone."""
    outer, inner = (math.sqrt(max(shape)) + sign * math.sqrt(min(shape)) for sign in (1, -1))
    thresholds = np.array([inner + knot * (outer - inner) if knot < 1 else outer for knot in KNOTS])
    return np.concatenate([y[None], np.clip(y - thresholds[:, None], 0, None) * (min(shape) > 1)])


def moments_of(y: Floats, shape: tuple[int, ...]) -> Moments:
    """The estimates c, the Gram matrix Γ and the unbiased variances ``‖f‖² + tr J²`` of one noisy matrix.

    Examples
    --------
    >>> moments_of(np.array([40.0, 12.0]), (2, 100)).inner_products.round(3).tolist()  # edges: 8.586, 11.414
    [1544.0, 1118.857, 1095.469, 1072.081]
    """
    f = members(y, shape)
    gram = f @ f.T
    slopes = np.concatenate([np.ones((1, len(y))), (f[1:] > 0).astype(np.float64)])
    divergences, squares = zip(*(divergence(y, *one, shape) for one in zip(f, slopes, strict=True)), strict=True)
    return Moments(gram[0] - divergences, gram, gram.diagonal() + squares)


def divergence(y: Floats, f: Floats, slope: Floats, shape: tuple[int, ...]) -> tuple[float, float]:
    """Divergence of ``f(Y) = U diag(f(y_i)) Vᵀ`` in the mn entries of Y, and ``tr J²`` of the Jacobian J.

    J is symmetric with the eigenvalues f'(y_i); f(y_i)/y_i, |n - m| times each; and for each pair
    ``(f_i - f_j)/(y_i - y_j)`` and ``(f_i + f_j)/(y_i + y_j)``. The first of values that agree to 6e-6, and all with a
    vanishing denominator, are slopes. (Candès, Sing-Long & Trzasko 2013, arXiv:1210.4139.)

    Examples
    --------
    >>> y = np.array([5.0, 3.0, 1.0])
    >>> round(divergence(y, y, np.ones(3), shape=(3, 7))[0], 9)  # of the identity: the number of entries
    21.0
    >>> round(divergence(y, np.maximum(y - 2, 0), np.array([1.0, 1.0, 0.0]), shape=(3, 7))[0], 3)
    9.233
    """
    i, j = np.triu_indices(len(y), 1)
    apart, total, mean = y[i] - y[j], y[i] + y[j], (slope[i] + slope[j]) / 2
    close, vanishing = abs(apart) <= _CLOSE * total, total == 0
    eigenvalues = (
        slope,
        np.where(close, mean, (f[i] - f[j]) / np.where(close, 1, apart)),
        np.where(vanishing, mean, (f[i] + f[j]) / np.where(vanishing, 1, total)),
    )
    ratio, excess = np.where(y > 0, f / np.where(y > 0, y, 1), slope), abs(shape[0] - shape[1])
    trace, square = (sum(float((e**p).sum()) for e in eigenvalues) + excess * (ratio**p).sum() for p in (1, 2))
    return float(trace), float(square)


def fit_weights(moments: Moments) -> Floats:
    """The weights w >= 0 for which ``Σ w_k f_k(Y)`` is the least-squares estimate; all 0 if nothing is detected."""
    c, gram, variances = moments
    w = nonnegative_least_squares(gram, c + CAUTION * np.sqrt(variances))
    product, square = w @ c, w @ gram @ w
    scaled: Floats = w * (product / square if product > 0 and square > 0 else 0.0)
    return scaled


def estimated_gain(weights: Floats, moments: Moments) -> float:
    """Estimated cosine with X of ``Σ w_k f_k(Y)``, minus that of Y.

    The unknown ‖X‖² is taken as its unbiased estimate c_0, but not smaller than the standard error of that, from
    which 0 cannot be told, and not so small that a cosine would exceed 1.
    """
    c, gram, variances = moments
    ours = max(float(weights @ c), 0.0) / math.sqrt(weights @ gram @ weights)
    noisy = max(float(c[0]), 0.0) / math.sqrt(gram[0, 0])
    return float(max(ours - noisy, 0.0) / math.sqrt(max(c[0], math.sqrt(variances[0]), ours**2, noisy**2)))


def nonnegative_least_squares(gram: Floats, target: Floats) -> Floats:
    """The minimizer of ``wᵀΓw - 2wᵀc`` over w >= 0, by trying all sets of positive weights.

    Exact for Γ with its diagonal raised by 1e-10 of itself. Members that are 0 get no weight.

    Examples
    --------
    >>> nonnegative_least_squares(np.array([[1.0, 0.5], [0.5, 1.0]]), np.array([1.0, -1.0])).round(6).tolist()
    [1.0, 0.0]
    """
    scale = np.sqrt(gram.diagonal())
    present = np.flatnonzero(scale)
    best: float
    best, weights = 0.0, np.zeros_like(target)
    for size in range(1, len(present) + 1):
        for chosen in map(list, itertools.combinations(present, size)):
            Γ = gram[np.ix_(chosen, chosen)] / np.outer(scale[chosen], scale[chosen]) + _RIDGE * np.eye(size)
            c = target[chosen] / scale[chosen]
            w = np.linalg.solve(Γ, c)
            if (w >= 0).all() and float(w @ c) > best:  # minus the least value on this face
                best, weights = float(w @ c), np.zeros_like(target)
                weights[chosen] = w / scale[chosen]
    return weights


def blended(options: Any) -> Any:
    """The denoiser of a run whose recipe has ``method = "blend"``; its memory over steps is that of the process."""
    memory = BlendMemory() if options.on == "gradient" else None
    return partial(blend_layers, memory=memory)


def register_blend() -> Any:
    """Make ``"blend"`` known to recipes."""
    DENOISERS.own["blend"] = f"{__name__}:{blended.__name__}"
    return blended
