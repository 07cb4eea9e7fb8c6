r"""The exact law of the largest singular value of a Gaussian noise matrix, at any finite size.

The singular values s of an m × n matrix (m <= n) of independent N(0, 1) entries have a density proportional
to ``∏_i s_i^{n-m} exp(-s_i²/2) · ∏_{i<j} |s_i² - s_j²|``. By de Bruijn's formula, with any m polynomials p_j
that span those of degree < m and ``f_j(s) = s^{n-m} exp(-s²/2) p_j(s²)``,

    P(s₁ <= t) = Pf A(t) / Pf A(∞),    A_jk(t) = ∫∫_{[0,t]²} sgn(y - x) f_j(x) f_k(y) dx dy,

bordered for odd m by the column ``c_j(t) = ∫_0^t f_j``. In powers of s² (Chiani 2014) A is too
ill-conditioned for floats; in the Laguerre polynomials orthonormal for the weight ``x^{n-m} e^{-x}`` its
condition number is only about 5 m. And since ``Pf² = det``, the tail is ``P(s₁ > t) = 1 - √det(1 - E)`` with
``E = A(∞)⁻¹ (A(∞) - A(t))``, which involves integrals beyond t only: it keeps its relative accuracy when
small.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import NDArray

from dprmt._validation import ParameterError, check_real
from dprmt.spectra._arrays import check_shape

LARGEST_SIDE = 1024
"""The shorter side up to which the law is offered; there it takes seconds."""

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_REACH = 9.0
"""How far outside the bulk, in units of σ, integrals go: beyond, the mass is below exp(-9²/2) = 3e-18."""
_PANELS_AT_ONCE = 32

Floats = NDArray[np.float64]


class TopSingularValue:
    """Law of the largest singular value of an m × n matrix of independent N(0, σ²) entries, not asymptotic.

    Parameters
    ----------
    shape : tuple of int
        ``(m, n)`` of the matrix, either orientation, with min(m, n) <= 1024.
    sigma : float, default 1
        Standard deviation of one entry, > 0, in the units of the matrix.

    Raises
    ------
    ParameterError
        If ``shape`` is not a pair of integers >= 1, its shorter side is above 1024, or ``sigma`` is not
        positive and finite.

    Notes
    -----
    The first use of a shape costs O(m³) (1 ms for 16 × 768, half a second for 768 × 3072) and is remembered;
    then a tail probability costs about a fifth of that. Relative accuracy 1e-11 or better, also of small
    tails (1e-8 for a longer side of 10⁸).

    References
    ----------
    de Bruijn (1955), On some multiple integrals involving determinants; Chiani (2014), arXiv:1209.3394v5, for
    the same law in another basis.

    Examples
    --------
    >>> law = TopSingularValue((16, 768), sigma=0.5)
    >>> edge = 0.5 * (16**0.5 + 768**0.5)
    >>> round(law.sf(1.02 * edge), 6)
    0.007425
    >>> round(law.isf(0.01) / edge, 4)
    1.0182
    """

    def __init__(self, shape: tuple[int, int], sigma: float = 1.0) -> None:
        sides = check_shape(shape)
        self.shape, self.sigma = sides, check_real("sigma", sigma, low=0.0, low_open=True)
        self._short, self._long = sorted(sides)
        if self._short > LARGEST_SIDE:
            raise ParameterError("shape", sides, f"a pair whose shorter side is <= {LARGEST_SIDE}")

    def sf(self, x: float) -> float:
        """Probability that the largest singular value is above ``x``.

        Returns
        -------
        float
            In [0, 1].

        Raises
        ------
        ParameterError
            If ``x`` is not a finite number.
        """
        return _upper_tail(check_real("x", x) / self.sigma, self._short, self._long)

    def cdf(self, x: float) -> float:
        """Probability that the largest singular value is at most ``x``; absolute accuracy 1e-12.

        Returns
        -------
        float
            In [0, 1].

        Raises
        ------
        ParameterError
            If ``x`` is not a finite number.
        """
        return 1.0 - self.sf(x)

    def isf(self, p: float) -> float:
        """The value that the largest singular value exceeds with probability ``p``.

        Parameters
        ----------
        p : float
            A probability in [1e-30, 1 - 1e-6].

        Returns
        -------
        float
            In the units of ``sigma``.

        Raises
        ------
        ParameterError
            If ``p`` is outside its range.
        """
        p = check_real("p", p, low=1e-30, high=1 - 1e-6)
        edge = math.sqrt(self._short) + math.sqrt(self._long)
        # s₁ is 1-Lipschitz in the entries and its mean is at most the edge: P(s₁ > edge + u) <= exp(-u²/2).
        high = edge + math.sqrt(-2 * math.log(p))
        low = edge if _upper_tail(edge, self._short, self._long) > p else 0.0
        root = scipy.optimize.brentq(
            lambda t: math.log(max(_upper_tail(t, self._short, self._long), 1e-300) / p),
            low,
            high,
            xtol=1e-13 * edge,
        )
        return self.sigma * float(root)


def _upper_tail(t: float, m: int, n: int) -> float:
    # P(s₁ > t) for σ = 1.
    if t <= 0:
        return 1.0
    inverse, ends = _whole_line(m, n)
    lowest, highest = _range(m, n)
    beyond, d = _pairings(m, n, max(t, lowest), max(t + _REACH, highest))
    c = ends - d
    difference = _bordered(beyond + np.outer(c, d) - np.outer(d, c), d)
    return min(1.0, -math.expm1(0.5 * _log_det_one_minus(inverse @ difference)))


def _log_det_one_minus(E: Floats) -> float:
    # log det(1 - E), to relative accuracy also for small E; -∞ if rounding makes the determinant
    # negative.
    if np.linalg.norm(E) < 1e-3:
        E2 = E @ E
        powers = (np.trace(E), np.trace(E2), np.vdot(E2.T, E), np.vdot(E2.T, E2), np.vdot(E2.T, E2 @ E))
        return -float(sum(trace / k for k, trace in enumerate(powers, start=1)))
    sign, log_det = np.linalg.slogdet(np.eye(len(E)) - E)
    return float(log_det) if sign > 0 else -math.inf


@lru_cache(maxsize=16)
def _whole_line(m: int, n: int) -> tuple[Floats, Floats]:
    # A(∞)⁻¹ and c(∞).
    A, c = _pairings(m, n, *_range(m, n))
    return np.asarray(np.linalg.inv(_bordered(A, c)), dtype=np.float64), c


def _range(m: int, n: int) -> tuple[float, float]:
    # The interval outside of which there is no mass to speak of.
    return max(0.0, math.sqrt(n) - math.sqrt(m) - _REACH), math.sqrt(n) + math.sqrt(m) + _REACH


def _bordered(A: Floats, c: Floats) -> Floats:
    # The matrix of even order of which the Pfaffian is taken.
    if len(c) % 2 == 0:
        return A
    return np.block([[A, c[:, None]], [-c[None, :], np.zeros((1, 1))]])


def _pairings(m: int, n: int, low: float, high: float) -> tuple[Floats, Floats]:
    # A and c over the interval, by 16-point Gauss–Legendre panels with running integrals.
    panels = int((high - low) * max(1.0, math.sqrt(m) / 4)) + 4
    half = (high - low) / panels / 2
    centres = low + half * (2 * np.arange(panels) + 1)
    one_sided, so_far = np.zeros((m, m)), np.zeros(m)
    for first in range(0, panels, _PANELS_AT_ONCE):
        nodes = centres[first : first + _PANELS_AT_ONCE, None] + half * _NODES
        f = _weighted_laguerre(nodes, m, n)
        per_panel = half * f @ _WEIGHTS
        before = so_far[:, None] + np.cumsum(per_panel, axis=1) - per_panel
        integral = before[:, :, None] + half * f @ _running_integral().T
        one_sided += integral.reshape(m, -1) @ (half * f * _WEIGHTS).reshape(m, -1).T
        so_far = so_far + per_panel.sum(axis=1)
    return one_sided - one_sided.T, so_far


@lru_cache(maxsize=1)
def _running_integral() -> Floats:
    # The matrix from values at the Gauss–Legendre nodes to the integrals from -1 up to each node.
    legendre = np.polynomial.legendre
    degree = len(_NODES) - 1
    integrals = legendre.legval(_NODES, legendre.legint(np.eye(degree + 1), lbnd=-1))
    return np.asarray(np.linalg.solve(legendre.legvander(_NODES, degree).T, integrals).T)


def _weighted_laguerre(s: Floats, m: int, n: int) -> Floats:
    # ``s^{n-m} e^{-s²/2} p_j(s²)`` for j < m up to a common factor, p_j orthonormal for ``x^{n-m}
    # e^{-x}``.
    # The three-term recurrence keeps a running logarithm per node, since the first functions underflow
    # where the last ones do not.
    α, x = n - m, s * s
    peak = math.sqrt(α)
    log_scale = (α * np.log(s / peak) if α else 0.0) - (s - peak) * (s + peak) / 2
    values = np.empty((m, *s.shape))
    previous, current = np.zeros_like(s), np.ones_like(s)
    for k in range(m):
        values[k] = current * np.exp(log_scale)
        up, down = math.sqrt((k + 1) * (k + 1 + α)), math.sqrt(k * (k + α))
        previous, current = current, ((x - (2 * k + 1 + α)) * current - down * previous) / up
        excess = np.where(np.abs(current) > 1e80, np.abs(current), 1.0)
        previous, current, log_scale = previous / excess, current / excess, log_scale + np.log(excess)
    return values
