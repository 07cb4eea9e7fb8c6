r"""The exact law of the largest singular value of a Gaussian noise matrix, at any finite size.

The singular values s of an m × n matrix (m <= n) of independent N(0, 1) entries have a density proportional to ``∏_i
s_i^{n-m} exp(-s_i²/2) · ∏_{i<j} |s_i² - s_j²|``. By de Bruijn's formula, with any m polynomials p_j that span the
polynomials of degree < m and ``f_j(s) = s^{n-m} exp(-s²/2) p_j(s²)``,

    P(s₁ <= t) = Pf A(t) / Pf A(∞),    A_jk(t) = ∫∫_{[0,t]²} sgn(y - x) f_j(x) f_k(y) dx dy,

bordered for odd m by the column ``c_j(t) = ∫_0^t f_j``. In powers of s² (Chiani 2014) A is too ill-conditioned for
floats, so the p_j are Laguerre polynomials, orthonormal for the weight ``x^{n-m} e^{-x}``. Since ``Pf² = det``, the
tail is ``P(s₁ > t) = 1 - √det(1 - E)`` with ``E = A(∞)⁻¹ (A(∞) - A(t))``. E has integrals beyond t only, so the tail
keeps its relative accuracy when small.

**The inverse is tridiagonal.** With x = s² and α = n - m, ``f_j ds = ½g_j dx`` for ``g_j = x^{(α-1)/2} e^{-x/2} p_j``,
and ``(x g_q)' = g_{Nq}`` for ``Nq = xq' + ½(α + 1 - x)q``. Integration by parts makes N skew in the basis p_j, and it
raises degrees by one, so ``N p_j = ½b_{j-1}p_{j-1} - ½b_j p_{j+1}``, ``b_j = √((j+1)(j+1+α))``. And ``∫∫ sgn(y - x)
½g_i(x) ½(y g_j)'(y) = -½∫ x g_i g_j = -½δ_ij``, so A times the matrix of N is -½I. For even m both can be cut off at
m, since ``A_{im} = 0`` for i < m; so A(∞)⁻¹ has the entries b_j below the diagonal and -b_j above it. For odd m, ``∫
(x g_j)' = 0`` implies that N maps c(∞) to 0, and bordering adds ``±1/c_{m-1}(∞)`` in the corner. From the generating
function of Laguerre polynomials, ``c_j(∞) = 0`` for odd j, and for even j it is a product of ratios from ``c_0 =
√(B((α+1)/2, ½)/2)`` on.

**Few nodes.** Let F (m × K) be the values of all f_j at the K nodes of a quadrature on [t, ∞). Then
``A(∞) - A(t) = U M Uᵀ`` has rank at most K + 1 (K + 2 for odd m), and ``det(1 - A⁻¹UMUᵀ) = det(1 - M UᵀA⁻¹U)`` costs
O(mK²) operations. Beyond the edge K = 64 is enough for every m.

References: de Bruijn (1955), On some multiple integrals involving determinants; Chiani (2014), arXiv:1209.3394v5, for
the same law in another basis.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import NDArray

LARGEST_SIDE = 1024
"""The shorter side up to which the law is used."""

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)  # of a panel, over which an Airy function has few waves
Floats = NDArray[np.float64]


def centre_and_scale(a: float, b: float) -> tuple[float, float]:
    """Return μ and τ such that the top eigenvalue of WWᵀ is about ``μ + τ·TW₁``, of the roots of the sides."""
    return (a + b) ** 2, (a + b) * (1 / a + 1 / b) ** (1 / 3)


def exceeded_with(p: float, m: int, n: int) -> float:
    """Return the value that the largest singular value exceeds with probability p in [1e-30, 1 - 1e-6].

    Arguments are as of `upper_tail`. The value is found by secants between it and the normal quantile of the
    probability, nearly a line, from the limit of large matrices with Chiani's gamma law for TW₁.

    Examples
    --------
    >>> round(exceeded_with(0.01, 16, 768) / (16**0.5 + 768**0.5), 4)
    1.0182
    """
    centre, scale = centre_and_scale(math.sqrt(m - 0.5), math.sqrt(n - 0.5))
    start = centre + scale * (0.186054 * float(scipy.special.gammainccinv(46.446, p)) - 9.84801)
    # s₁ is 1-Lipschitz in the entries and its mean is at most the edge: P(s₁ > edge + u) <= exp(-u²/2).
    low, high = 0.0, math.sqrt(m) + math.sqrt(n) + math.sqrt(-2 * math.log(p))
    x = min(math.sqrt(max(start, 1e-3 * centre)), high)
    slope, before, short_before = 1.4 * x / scale, math.nan, 0.0
    for step in itertools.count():
        tail = min(max(upper_tail(x, m, n), 1e-300), 1 - 1e-16)
        short = float(scipy.special.ndtri(p) - scipy.special.ndtri(tail))
        low, high = (x, high) if short < 0 else (low, x)
        slope = (short - short_before) / (x - before) if step else slope
        following = x - short / slope if slope > 0 else low
        if abs(following - x) <= 1e-8 * x:  # secants square the error
            break
        if step > 20 or not low < following < high:
            following = (low + high) / 2
        before, short_before, x = x, short, following
    return min(max(following, low), high)


def upper_tail(t: float, m: int, n: int) -> float:
    """Return the probability that the largest singular value of an m × n matrix of N(0, 1) entries is above t.

    ``m <= n``, with ``m <= LARGEST_SIDE``. It costs O(m) operations. Relative accuracy 1e-11 or better, also of small
    tails (1e-8 for n = 10⁸).

    Examples
    --------
    >>> round(upper_tail(1.02 * (16**0.5 + 768**0.5), 16, 768), 6)
    0.007425
    """
    a, b = math.sqrt(m), math.sqrt(n)
    scale = (1 / a + 1 / b) ** (1 / 3) / 2  # of an Airy function at the edge
    if t <= max(0.0, a + b - 12 * scale):  # TW₁ is below -12 with a probability of 1e-35
        return 1.0
    if t > a + b + 40:  # P(s₁ > √m + √n + u) <= exp(-u²/2)
        return 0.0
    end = max(t, a + b) + 16 * scale  # |Ai(16)| < 1e-19
    width = 8.2 * scale if t > a + b - 4 * scale else min(8.2 * scale, 4 / max(1.0, a / 4))
    panels = math.ceil((end - t) / width)
    half = (end - t) / panels / 2
    nodes = (t + half * (2 * np.arange(panels) + 1))[:, None] + half * _NODES
    return min(1.0, -math.expm1(0.5 * _log_det_one_minus(_ratio(nodes, half, m, n))))


def _ratio(nodes: Floats, half: float, m: int, n: int) -> Floats:
    # M UᵀA⁻¹U, which has the determinant of E in 1 - E, from Gauss–Legendre panels of this half width.
    panels, K, odd = len(nodes), nodes.size, m % 2
    F = _weighted_laguerre(nodes, m, n).reshape(m, -1)
    unit = 2.0 ** math.frexp(float(abs(F).max()))[1]  # balances small entries against c, which is of order 1
    F = F / unit
    w = unit * np.tile(half * _WEIGHTS, panels)
    earlier = np.kron(np.tri(panels, k=-1), np.ones((len(_NODES), 1)) * _WEIGHTS)
    ordered = unit * w * half * (earlier + np.kron(np.eye(panels), _running_integral())).T
    U, M = np.zeros((m + odd, K + 1 + odd)), np.zeros((K + 1 + odd,) * 2)
    U[:m, :K], U[:m, K] = F, _totals(m, n) - F @ w
    M[:K, :K], M[:K, K], M[K, :K] = ordered - ordered.T, -w, w
    if odd:
        U[m, K + 1], M[:K, K + 1], M[K + 1, :K] = 1.0, w, -w
    return np.asarray(M @ (U.T @ _solve(U, m, n)))


def _log_det_one_minus(E: Floats) -> float:
    # log det(1 - E), to relative accuracy also for small E; -∞ if rounding makes the determinant
    # negative.
    if np.linalg.norm(E) < 1e-3:
        E2 = E @ E
        powers = (np.trace(E), np.trace(E2), np.vdot(E2.T, E), np.vdot(E2.T, E2), np.vdot(E2.T, E2 @ E))
        return -float(sum(trace / k for k, trace in enumerate(powers, start=1)))
    sign, log_det = np.linalg.slogdet(np.eye(len(E)) - E)
    return float(log_det) if sign > 0 else -math.inf


def _solve(B: Floats, m: int, n: int) -> Floats:
    # A(∞)⁻¹ B.
    j = np.arange(1, m)
    b = np.sqrt(j * (j + float(n - m)))[:, None]
    result = np.zeros_like(B)
    result[1:m] = b * B[: m - 1]
    result[: m - 1] -= b * B[1:m]
    if m % 2:
        corner = _totals(m, n)[m - 1]
        result[m - 1] -= B[m] / corner
        result[m] += B[m - 1] / corner
    return result


@lru_cache(maxsize=16)
def _totals(m: int, n: int) -> Floats:
    # c(∞).
    α, i = float(n - m), np.arange((m - 1) // 2)
    ratios = ((α + 1) / 2 + i) / (i + 1) * np.sqrt((2 * i + 1) / (2 * i + 1 + α) * ((2 * i + 2) / (2 * i + 2 + α)))
    totals = np.zeros(m)
    totals[::2] = np.cumprod([math.sqrt(scipy.special.beta((α + 1) / 2, 0.5) / 2), *ratios])
    return totals


@lru_cache(maxsize=1)
def _running_integral() -> Floats:
    # The matrix from values at the Gauss–Legendre nodes to the integrals from -1 up to each node.
    legendre = np.polynomial.legendre
    degree = len(_NODES) - 1
    integrals = legendre.legval(_NODES, legendre.legint(np.eye(degree + 1), lbnd=-1))
    return np.asarray(np.linalg.solve(legendre.legvander(_NODES, degree).T, integrals).T)


def _weighted_laguerre(s: Floats, m: int, n: int) -> Floats:
    # ``s^{n-m} e^{-s²/2} p_j(s²)`` for j < m, p_j orthonormal for ``x^{n-m} e^{-x}``. The three-term recurrence keeps a
    # running logarithm per node, since the first functions underflow where the last ones do not.
    α, x = n - m, s * s
    peak = math.sqrt(α)
    log_scale = (α * np.log(s / peak) if α else 0.0) - (s - peak) * (s + peak) / 2 + _log_peak(α)
    j = np.arange(m + 1.0)
    b = np.sqrt(j * (j + α))
    values = np.empty((m, *s.shape))
    previous, current = np.zeros_like(s), np.ones_like(s)
    for start in range(0, m, 8):  # steps in which a function grows by less than 1e40
        for k in range(start, min(start + 8, m)):
            values[k] = current
            previous, current = current, ((x - (2 * k + 1 + α)) * current - b[k] * previous) / b[k + 1]
        values[start : start + 8] *= np.exp(log_scale)
        excess = np.where(np.abs(current) > 1e80, np.abs(current), 1.0)
        previous, current, log_scale = previous / excess, current / excess, log_scale + np.log(excess)
    return values


def _log_peak(α: int) -> float:
    # Logarithm of ``s^α e^{-s²/2}/√Γ(α+1)`` at its maximum, s = √α.
    if α < 50:
        return 0.5 * ((α * math.log(α) if α else 0.0) - α - math.lgamma(α + 1))
    stirling = 1 / (12 * α) - 1 / (360 * α**3) + 1 / (1260 * α**5) - 1 / (1680 * α**7)
    return -0.5 * (0.5 * math.log(2 * math.pi * α) + stirling)
