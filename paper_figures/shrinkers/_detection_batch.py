r"""From which batch size on the top of a layer's gradient shows above the noise that privacy adds.

The mean ``Ḡ_B`` of B independent per-sample gradients is ``M + E_B``: a coherent part that stays, and sampling noise
that falls as ``1/√B``. Noise of privacy on the sum has a detection threshold ``θ = ζ(mn)^{1/4}``, ζ = σ_DP·C, hence
``θ/B`` on the mean. ``E λ₁(Ḡ_B)`` never rises with B and never falls below ``λ₁(M)``, so the batch size from which on
it is at least ``θ/B`` lies between ``θ/E λ₁(Ḡ_b)`` and ``θ/λ₁(M)``. Proofs: docs/theory/when_denoising_helps.md,
Theorem 8.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dprmt._validation import ParameterError, check_count, check_real
from dprmt.spectra._arrays import check_matrices, detached, is_tensor
from dprmt.spectra._telemetry import Estimate, estimate

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
    reach: NDArray[np.float64] = special.stdtrit(count - 1, 1 - miss) * values.std(-1, ddof=1) / math.sqrt(count)
    return reach


def _crossing(along: NDArray[np.float64], b: int, theta: float) -> NDArray[np.float64]:
    # The root of μ²B² + τ²B = θ², with unbiased μ², at least 0, and τ² of one sample.
    variance = along.var(-1, ddof=1)
    squared = np.maximum(along.mean(-1) ** 2 - variance / along.shape[-1], 0.0)
    per_sample = b * variance
    root: NDArray[np.float64] = 2 * theta**2 / (per_sample + np.sqrt(per_sample**2 + 4 * squared * theta**2))
    return root


def _numpy(x: Any) -> NDArray[np.float64]:
    return np.asarray(detached(x).cpu() if is_tensor(x) else x, dtype=np.float64)
