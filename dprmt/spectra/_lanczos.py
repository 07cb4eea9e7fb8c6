"""Lanczos iteration with full reorthogonalization, and what a run on a whole matrix proves of the eigenvalues above it.

A run can miss an eigenvalue. `lanczos` ends only with a proof that it has not: k Ritz values of an orthonormal basis
above the threshold τ mean that at least k eigenvalues are, and a Cholesky factorization of ``τ - A + UΘUᵀ`` (which only
a positive definite matrix has; the last term is of rank k) means that at most k are. Repeated values and unlucky start
vectors are caught too. Without proof the basis grows. The proof is exact for the matrix it was given, so it leaves open
only values within rounding of the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dprmt.spectra._arrays import Array, array_namespace, is_tensor

CHECK_EVERY = 12
"""Steps between looks at the Ritz values."""
_TOP_RESIDUAL = 1e-3  # of the top Ritz pair if it lies below the threshold, relative to its value
_TINY = 1e-300  # in place of the norm of a zero vector
_BASIS = 192  # largest basis, or an eighth of the space if that is more, or half of it if that is less


class KrylovBasis:
    """An orthonormal basis of a Krylov space and its images, grown a vector at a time.

    ``apply``: the product with a symmetric matrix. ``start``: of its dtype and device.
    """

    def __init__(self, apply: Callable[[Array], Array], start: Array, largest: int) -> None:
        xp, size = array_namespace(start), len(start)
        self.apply, self.next, self.steps = apply, start, 0
        self.basis, self.images = (xp.empty((largest, size), dtype=start.dtype, device=start.device) for _ in range(2))

    def step(self) -> None:
        xp, k = array_namespace(self.next), self.steps
        self.basis[k] = self.next / xp.clip(xp.linalg.norm(self.next), _TINY, None)
        self.images[k] = self.apply(self.basis[k])
        vector, done = self.images[k], self.basis[: k + 1]
        for earlier in (done[-2:], done):  # the three-term recurrence, then what rounding left of the others
            vector = vector - (earlier @ vector) @ earlier
        self.next, self.steps = vector, k + 1

    def steps_on(self, number: int) -> None:
        for _ in range(number):
            self.step()

    def ritz_pairs(self) -> tuple[Array, Array]:
        """Ritz values in increasing order, and their vectors in terms of the basis."""
        return ritz_pairs(self.basis[: self.steps].T, self.images[: self.steps].T)

    def ritz_vectors(self, θ: Array, S: Array) -> tuple[Array, Array]:
        """Some of them in the space itself, and the norms of their residuals."""
        U, images = self.basis[: self.steps].T @ S, self.images[: self.steps].T @ S
        return U, array_namespace(θ).linalg.norm(images - U * θ, 2, 0)


def lanczos(matrix: Array, threshold: float, residual: float) -> tuple[Array, Array] | None:
    """Eigenpairs of a positive semidefinite matrix above a threshold, with proof that there are no others.

    From a fixed start vector.

    ``residual``: largest ``‖Au - θu‖`` of these, in units of the threshold; not asked below 1e-14 of the top value.
    Returns: eigenvalues in increasing order and orthonormal eigenvectors: all above the threshold, and the largest
    Ritz value below it. None if no proof was found in a basis of bounded size, or half of that would be above the
    threshold.

    Examples
    --------
    >>> import numpy as np
    >>> values, vectors = lanczos(np.diag([9.0, 5.0, *np.linspace(0, 1, 398)]), threshold=4.0, residual=1e-9)
    >>> values[1:].round(12).tolist()
    [5.0, 9.0]
    """
    size = matrix.shape[0]
    largest = min(size // 2, max(_BASIS, size // 8))
    run = KrylovBasis(lambda v: matrix @ v, gaussian(np.random.default_rng(0), matrix, size), largest)
    bulk = BulkTop(threshold)
    for _ in range(largest // CHECK_EVERY):
        run.steps_on(CHECK_EVERY)
        θ, S = run.ritz_pairs()
        if 2 * int((θ > threshold).sum()) > largest:
            return None  # the basis would grow too far
        settled = bulk.seems_below(θ)
        done = run.basis[: run.steps].T, run.images[: run.steps].T
        pairs = _proven(θ, S, matrix, *done, threshold, residual, settled)
        if pairs is not None:
            return pairs
    return None


class BulkTop:
    """A guess, from one look to the next, where the largest Ritz value that is not above the threshold will end.

    Below a dense edge, after k steps, it is about 1/k² of the way short.
    """

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self.spikes, self.last, self.steps = -1, math.inf, 0

    def seems_below(self, θ: Array) -> bool:
        """Whether it will stay below the threshold."""
        spikes, k = int((θ > self.threshold).sum()), len(θ)
        now = float(θ[-spikes - 1]) if spikes < k else math.inf
        rise = (now - self.last) * self.steps**2 / (k**2 - self.steps**2) if spikes == self.spikes else math.inf
        self.spikes, self.last, self.steps = spikes, now, k
        return now + rise < self.threshold


def ritz_pairs(basis: Array, images: Array) -> tuple[Array, Array]:
    """Ritz values over an orthonormal basis, in increasing order, and their vectors in terms of it."""
    projected = basis.T @ images
    θ, S = array_namespace(projected).linalg.eigh((projected + projected.T) / 2)
    return θ, S


def gaussian(rng: np.random.Generator, like: Array, *shape: int) -> Array:
    """Independent N(0, 1) entries in the dtype, and on the device, of another array."""
    entries = rng.standard_normal(shape)
    return like.new_tensor(entries) if is_tensor(like) else entries.astype(like.dtype, copy=False)


def _proven(
    θ: Array,
    S: Array,
    matrix: Array,
    basis: Array,
    images: Array,
    threshold: float,
    residual: float,
    settled: bool = False,
) -> tuple[Array, Array] | None:
    # The Ritz pairs above the threshold and one more, if they are accurate and certainly all there are.
    xp = array_namespace(matrix)
    spikes = int((θ > threshold).sum())
    θ, S = θ[-spikes - 1 :], S[:, -spikes - 1 :]
    U = basis @ S
    errors = xp.linalg.norm(images @ S - U * θ, 2, 0)
    wanted, accurate = errors[1:], max(residual * threshold, 1e-14 * float(θ[-1]))
    if not spikes:  # the top value is for information only
        wanted, accurate = errors, _TOP_RESIDUAL * float(θ[0])
    settled = settled or float(θ[0] + errors[0]) < threshold  # else the costly part of the proof would hardly succeed
    if not (settled and bool((wanted <= accurate).all())):
        return None
    certificate = (U[:, 1:] * θ[1:]) @ U[:, 1:].T  # becomes threshold·I - (matrix - UΘUᵀ), in place
    certificate -= matrix
    certificate.reshape(-1)[:: len(matrix) + 1] += threshold
    return (θ, U) if _is_orthonormal(basis) and _is_positive_definite(certificate) else None


def _is_orthonormal(basis: Array) -> bool:
    # It is not if the Krylov space was exhausted.
    overlap = basis.T @ basis
    overlap.reshape(-1)[:: len(overlap) + 1] -= 1
    return float(abs(overlap).max()) < 1e-12


def _is_positive_definite(matrix: Array) -> bool:
    if is_tensor(matrix):
        return int(array_namespace(matrix).linalg.cholesky_ex(matrix).info) == 0
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return False
    return True
