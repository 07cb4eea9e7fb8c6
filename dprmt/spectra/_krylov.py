r"""Eigenpairs of YYᵀ above a threshold from products with Y alone, and a probabilistic proof that there are no others.

For matrices so large that even forming YYᵀ is what takes longest. A Krylov space of a Gaussian r × p block is searched;
what it finds is deflated, and a run from a *fresh* Gaussian block shows that nothing was missed.

**Theorem.** Let B be symmetric and positive semidefinite, and let G (r × p) have independent N(0, 1) entries,
independent of B. Let blocks ``V_0 = G/‖G‖, V_1, …, V_k`` with ``‖V_k‖ <= 1`` (Frobenius norms), a symmetric tridiagonal
matrix T (k × k) with entries >= 0, and β >= 0 satisfy

    B V_j = Σ_i T_ij V_i + [j = k - 1] β V_k + E_j,    ‖E_j‖ <= ρ.

Let τ be above all eigenvalues of T and ``z = (τ - T)⁻¹ e_0``. If ``‖G‖·(β z_{k-1} + ρ Σ_j z_j) < δ``, then all
eigenvalues of B are below τ, except with probability at most ``P(χ²_p <= δ²) <= (δ²/2)^{p/2}/Γ(p/2 + 1)``.

*Proof.* Let ``Bx = λx`` with ``‖x‖ = 1`` and λ >= τ the largest eigenvalue, and ``y_j = V_jᵀx``. The recurrence times
xᵀ is ``λ y_j = Σ_i T_ij y_i + [j = k - 1] β y_k + E_jᵀx``; so ``y_0 = β y_k w_{k-1} + Σ_j E_jᵀx w_j`` with
``w = (λ - T)⁻¹ e_0 = Σ_n Tⁿ e_0/λ^{n+1}``, whose entries are non-negative and fall in λ: ``0 <= w <= z``. With
``‖y_k‖ <= ‖V_k‖ <= 1`` and ``‖E_jᵀx‖ <= ρ``, ``‖Gᵀx‖ = ‖G‖·‖y_0‖ < δ``. But x does not depend on G, so that
``‖Gᵀx‖²`` is χ² with p degrees of freedom. ∎

For ``B = (1 - UUᵀ) YYᵀ (1 - UUᵀ)`` with s columns U, independent of G, YYᵀ then has at most s eigenvalues >= τ
(Courant–Fischer); s Ritz values above τ say that it has as many.

For p = 1 and the Chebyshev polynomial this is the bound of Kuczyński & Woźniakowski (1992); Hochstenbach (2013) has the
Lanczos polynomial of the very run, as here. Blocks make δ so large that products in float32 are accurate enough: with
p = 1 it would be below their rounding. Nothing is assumed of orthogonality, which rounding destroys; ρ holds what
reorthogonalization removed and the rounding of the products. The start is from a fixed seed, so that runs repeat: the
probability is over it, for matrices that were not made with knowledge of it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dprmt.spectra._arrays import Array, array_namespace, cast_like, is_tensor, to_float64
from dprmt.spectra._lanczos import CHECK_EVERY, BulkTop, KrylovBasis, gaussian, ritz_pairs

FAILURE = 1e-12
"""Largest probability that a run calls complete what is not."""
WIDTH = 16
"""Columns of a block."""
_BLOCK_STEPS = 48  # of a proof; more would take as long as forming YYᵀ
_SEARCHES = 3
_LEAST_STEPS, _MOST_STEPS = 2 * CHECK_EVERY, 16 * CHECK_EVERY  # of a search
_TINY = 1e-300
_ROUNDING = 8.0  # of a product with YYᵀ, in units of the dtype's ε times the top eigenvalue


def leading_pairs(y: Array, threshold: float, residual: float, limit: float = math.inf) -> tuple[Array, Array] | None:
    """Eigenpairs of YYᵀ above a threshold, with a proof, up to `FAILURE`, that there are no others.

    ``y``: shape (r, c), r <= c. ``residual``: largest ``‖YYᵀu - θu‖`` of these, in units of the threshold; not asked
    below the rounding of a product. ``limit``: of eigenvalues; where one is larger, those found come back unproven.
    Returns: eigenvalues in increasing order and orthonormal eigenvectors, in float64: all above the threshold, or the
    largest Ritz pair if there is none. None if no proof was found in a few short runs.

    Examples
    --------
    >>> import numpy as np
    >>> values, vectors = leading_pairs(np.diag([3.0, 2.0, *np.linspace(0, 1, 398)]), threshold=2.0, residual=1e-9)
    >>> values.round(9).tolist(), abs(vectors[:2]).round(6).tolist()
    ([4.0, 9.0], [[0.0, 1.0], [1.0, 0.0]])
    """
    rng = np.random.default_rng(0)
    xp, product = array_namespace(y), DeflatedProduct(y, to_float64(y[:, :0]))
    top = threshold
    values = product.deflated[0]  # none yet
    for _ in range(_SEARCHES):
        seen = _search(product, rng, threshold, residual, top)
        if seen is None:
            return None
        values, product = xp.concatenate([values, seen[0]]), product.without(seen[1])
        top = max([top, *seen[0].tolist()])
        if top > limit:
            return _in_order(values, product.deflated)
        proof = FrobeniusRun(product, rng, product.rounding * top)
        if proof.shows_below(threshold):
            return _in_order(values, product.deflated) if len(values) else proof.top_pair()
        if not proof.sees_above(threshold):
            return None
    return None


class DeflatedProduct:
    """The product of ``B = (1 - UUᵀ) YYᵀ (1 - UUᵀ)``, in the dtype of Y, with a vector or the rows of a block."""

    def __init__(self, y: Array, deflated: Array) -> None:
        self.y, self.deflated = y, deflated
        self.rounding = _ROUNDING * float(array_namespace(y).finfo(y.dtype).eps)

    def __call__(self, rows: Array) -> Array:
        narrow = cast_like(self.projected(rows), self.y)
        return self.projected(to_float64((narrow @ self.y) @ self.y.mT))

    def projected(self, rows: Array) -> Array:
        """The rows less their parts in the deflated space."""
        U = self.deflated
        return rows - (rows @ U) @ U.mT if U.shape[-1] else rows

    def without(self, vectors: Array) -> DeflatedProduct:
        """The same with more vectors deflated; these are orthonormal up to rounding, which this removes."""
        xp = array_namespace(vectors)
        if not vectors.shape[-1]:
            return self
        return DeflatedProduct(self.y, xp.linalg.qr(xp.concatenate([self.deflated, vectors], -1))[0])


def _search(
    product: DeflatedProduct, rng: np.random.Generator, threshold: float, residual: float, top: float
) -> tuple[Array, Array] | None:
    # Accurate Ritz pairs above the threshold; none if none is to be seen, None if there are too many to tell.
    size = len(product.deflated)
    run = KrylovBasis(product, gaussian(rng, product.deflated, size), min(size // 2, _MOST_STEPS))
    bulk = BulkTop(threshold)
    while run.steps + CHECK_EVERY <= len(run.basis):
        run.steps_on(CHECK_EVERY)
        θ, S = run.ritz_pairs()
        if 2 * int((θ > threshold).sum()) > len(run.basis):
            return None
        above, settled = θ > threshold, bulk.seems_below(θ)
        U, errors = run.ritz_vectors(θ[above], S[:, above])
        accurate = max(residual * threshold, product.rounding * max(top, float(θ[-1])))
        if settled and run.steps >= _LEAST_STEPS and bool((errors <= accurate).all()):
            return θ[above], U
    return None


class FrobeniusRun:
    """The iteration of the theorem from a fresh Gaussian block: that of Lanczos for ``B ⊗ 1``, with one long vector.

    ``rounding``: bound of the Frobenius norm of a product's error.
    """

    def __init__(self, product: DeflatedProduct, rng: np.random.Generator, rounding: float) -> None:
        xp = array_namespace(product.y)
        start = product.projected(gaussian(rng, product.deflated, WIDTH, len(product.deflated)))
        self.product, self.shape, self.rounding, self.removed = product, tuple(start.shape), rounding, 0.0
        self.norm = _norm(start)
        self.next = start.reshape(-1) / max(self.norm, _TINY)
        self.basis = xp.empty((_BLOCK_STEPS, start.shape[0] * start.shape[1]), dtype=start.dtype, device=start.device)
        self.diagonal, self.off_diagonal = list[float](), list[float]()

    def shows_below(self, threshold: float) -> bool:
        """Whether a run of bounded length proves all eigenvalues to be below the threshold."""
        for _ in range(_BLOCK_STEPS):
            self.step()
            if self.sees_above(threshold):
                return False
            if self.largest_missed(threshold) < least_overlap(WIDTH, FAILURE):
                return True
        return False

    def sees_above(self, threshold: float) -> bool:
        """Whether T has an eigenvalue that is not below the threshold: then B has, up to rounding."""
        return float(np.linalg.eigvalsh(self._tridiagonal())[-1]) >= threshold

    def step(self) -> None:
        """One more block."""
        k = len(self.diagonal)
        self.basis[k] = self.next
        rest = self.product(self.next.reshape(self.shape)).reshape(-1)
        self.diagonal.append(float(self.next @ rest))
        rest -= self.diagonal[-1] * self.next
        if k:
            rest -= self.off_diagonal[-1] * self.basis[k - 1]
        drift = (self.basis[: k + 1] @ rest) @ self.basis[: k + 1]
        rest -= drift
        self.removed = max(self.removed, _norm(drift))
        self.off_diagonal.append(_norm(rest))
        self.next = rest / max(self.off_diagonal[-1], _TINY)

    def largest_missed(self, threshold: float) -> float:
        """Bound of ``‖Gᵀx‖`` of a top eigenvector x whose eigenvalue is not below the threshold; those of T are."""
        T = self._tridiagonal()
        z = np.linalg.solve(threshold * np.eye(len(T)) - T, np.eye(len(T))[0])
        return self.norm * float(self.off_diagonal[-1] * z[-1] + (self.rounding + self.removed) * z.sum())

    def top_pair(self) -> tuple[Array, Array]:
        """The largest Ritz value over the columns of the long Ritz vector, and its vector."""
        xp = array_namespace(self.next)
        weights = _like(np.linalg.eigh(self._tridiagonal())[1][:, -1], self.next)
        basis = xp.linalg.qr((weights @ self.basis[: len(weights)]).reshape(self.shape).T)[0]
        θ, S = ritz_pairs(basis, self.product(basis.T).T)
        return θ[-1:], basis @ S[:, -1:]

    def _tridiagonal(self) -> NDArray[np.float64]:
        inner = self.off_diagonal[:-1]
        return np.diag(self.diagonal) + np.diag(inner, 1) + np.diag(inner, -1)


def least_overlap(width: int, failure: float) -> float:
    """δ of the theorem: below it is ``‖Gᵀx‖`` with at most this probability."""
    return math.sqrt(2 * (math.gamma(width / 2 + 1) * failure) ** (2 / width))


def _in_order(values: Array, vectors: Array) -> tuple[Array, Array]:
    order = array_namespace(values).argsort(values)
    return values[order], vectors[:, order]


def _like(values: NDArray[np.float64], like: Array) -> Array:
    return like.new_tensor(values) if is_tensor(like) else values


def _norm(values: Array) -> float:
    return float(array_namespace(values).linalg.norm(values))
