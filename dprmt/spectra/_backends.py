"""The singular values above the bulk edge and their vectors of the shorter side, by the cheapest safe method.

A shrunk matrix is ``Σ η_i u_i v_iᵀ = U diag(η/s) Uᵀ Y``: the vectors of one side suffice, and only those of
values above the edge, since all others are shrunk to 0. With r <= c the two sides of the matrix:

===========  ==========================================  ===============================================
backend      method                                      chosen by "auto"
===========  ==========================================  ===============================================
"gram"       eigendecomposition of the r × r matrix YYᵀ  r <= 128, all matrices of a stack in one call
"lanczos"    Lanczos iteration on YYᵀ, certified         r > 128, matrix by matrix
"svd"        full singular value decomposition           when the others are not accurate enough, or not faster:
                                                         float32 on the CPU with c < 3r/2, 96 < r <= 400 or with
                                                         more spikes than a Lanczos iteration pays for
===========  ==========================================  ===============================================

**Accuracy.** Forming YYᵀ squares the singular values: an error of ε·s₁² (ε of the product's dtype) becomes,
next to the edge b, a relative error of ``ε·(s₁/b)²``. Relative error of the norm-corrected estimate on 16×768
float32 data with top value s₁ = R·b, against a float64 SVD, worst of 60: float32 product 1e-7 at R = 1.2,
2e-7 at 10, 2e-6 at 100, 4e-5 at 1000; float64 product 1e-7 at all of them, as the float32 SVD. So float32
data use a float32 product up to R = 10 and a float64 one beyond, which loses to the float32 SVD only where R
exceeds the ratio of the two ε, 5e8; float64 data use a float64 product up to R = 100, then a full SVD. Off
the CPU, where the hardware may round float32 products to TF32, they are formed in float64. Eigenvalue
problems are always solved in float64.

Which product will do is seen before anything is diagonalized: ``s₁² >= ‖GGv‖/‖Gv‖`` for ``G = YYᵀ`` and any v.

**Completeness.** A Lanczos run can miss a value. Here it ends only with a proof that it has not: k Ritz
values of an orthonormal basis above b² mean that at least k eigenvalues are, and a Cholesky factorization of
``b²I - YYᵀ + UΘUᵀ`` (which only a positive definite matrix has; the last term is of rank k) means that at
most k are. Repeated values and unlucky start vectors are caught too. Without proof the basis grows, and when
it has grown too far, the full eigendecomposition takes over. The proof is exact for the YYᵀ it was given, so
it leaves open only values within rounding of the edge, which are shrunk to next to nothing.

Randomized SVD is left out: with two power iterations it underestimates a top value next to the gate by 5 to
9 % (256×1024 and 768×3072, 6 to 16 columns), so that it would need a gate of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from dprmt.spectra._arrays import Array, array_namespace, is_tensor, to_float64

Backend: TypeAlias = Literal["auto", "gram", "lanczos", "svd"]

GRAM_LIMIT = 128  # longest short side for which the Gram matrix is diagonalized in full
_SVD_SIDES = 96, 400  # shorter sides of nearly square float32 matrices that are decomposed in full
_FLOAT32_RANGE = 10.0  # largest s₁/b for a float32 product
_FLOAT64_RANGE = {4: 1e8, 8: 1e2}  # the same for a float64 product, by bytes per entry of the data
_RESIDUAL = {4: 1e-6, 8: 1e-11}  # of a Ritz pair, in units of b², by bytes per entry of the data
_TOP_RESIDUAL = 1e-3  # of the top Ritz pair if it lies below the edge, relative to its value
_TINY = 1e-300  # in place of the norm of a zero vector
_CHECK_EVERY = 12  # Lanczos steps between attempts at a proof
_BASIS = 192  # largest basis, or an eighth of the space if that is more, or half of it if that is less
_PRODUCT_LIMIT, _PRODUCT_BLOCKS = 256, 8  # longer sides: YYᵀ in this many row blocks, its upper half only


@dataclass(frozen=True)
class LeadingSpectrum:
    """Singular values in decreasing order: at least the top one, and all above the edge.

    Attributes
    ----------
    values : array of float64, shape (batch, q)
        Padded with zeros where a matrix has fewer values above the edge than another one.
    vectors : array, shape (batch, r, q)
        Singular vectors of the shorter side, in the dtype of the data.
    """

    values: Array
    vectors: Array


def leading_spectrum(stack: Array, edges: Array, backend: Backend = "auto") -> LeadingSpectrum:
    """All singular values above the edge, and their vectors of the shorter side.

    ``stack``: finite, with entries whose squares, and sums of them, neither overflow nor vanish.
    Returns: with as many columns as the matrix with the most values above its edge has, at least one.

    Examples
    --------
    >>> import numpy as np
    >>> stack = np.diag([5.0, 3.0, 1.0])[None]
    >>> spectrum = leading_spectrum(stack, np.array([2.0]), "gram")
    >>> spectrum.values.tolist(), abs(spectrum.vectors).tolist()
    ([[5.0, 3.0]], [[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]])
    """
    if backend == "auto":
        backend = _chosen(stack)
    if backend == "svd":
        return _trim(*_full_svd(stack, edges, math.inf), edges)
    if backend == "gram":
        return _trim(*_escalate(stack, edges, _solvers(stack, _full_eigh)), edges)
    solvers = _solvers(stack, _certified_lanczos)
    one_by_one = ((stack[i : i + 1], edges[i : i + 1]) for i in range(len(stack)))
    return _concatenate([_trim(*_escalate(y, edge, solvers), edge) for y, edge in one_by_one])


def _chosen(stack: Array) -> Backend:
    size = stack.shape[-2]
    if _svd_is_fast(stack) and _SVD_SIDES[0] < size <= _SVD_SIDES[1]:
        return "svd"
    return "gram" if size <= GRAM_LIMIT else "lanczos"


def _svd_is_fast(stack: Array) -> bool:
    # Nearly square float32 matrices: an eigendecomposition in float64 costs as much.
    r, c = stack.shape[-2:]
    on_cpu = not is_tensor(stack) or stack.device.type == "cpu"
    return bool(on_cpu and stack.dtype.itemsize == 4 and 2 * c < 3 * r)


def full_spectrum(stack: Array, edges: Array) -> LeadingSpectrum:
    """All singular values, and their vectors of the shorter side.

    By the eigendecomposition of YYᵀ, formed in float64, or by a full singular value decomposition where that
    is not accurate enough.

    Returns: with r columns. The squares of the values are accurate to rounding of the largest one.

    Examples
    --------
    >>> import numpy as np
    >>> full_spectrum(np.diag([5.0, 3.0, 0.0])[None], np.array([2.0])).values.tolist()
    [[5.0, 3.0, 0.0]]
    """
    return LeadingSpectrum(*_escalate(stack, edges, _solvers(stack, _full_eigh)[-2:]))


_Solver: TypeAlias = Callable[[Array, Array, float], tuple[Array, Array]]
# (stack, edges, largest) to values in decreasing order, shape (batch, q), and vectors, shape (batch, r, q). Of matrices
# with s₁ > largest·b, where it is not accurate, it may only say so: by an infinite value.


def _solvers(stack: Array, diagonalize: _Solver) -> list[tuple[_Solver, float]]:
    # What to try in turn, each with the largest s₁/b for which it is accurate.
    def in_float64(y: Array, edges: Array, largest: float) -> tuple[Array, Array]:
        values, vectors = diagonalize(to_float64(y), edges, largest)
        return values, _as_dtype_of(y, vectors)

    size = stack.dtype.itemsize
    trusted = size == 4 and not (is_tensor(stack) and stack.device.type != "cpu")
    return [
        *([(diagonalize, _FLOAT32_RANGE)] if trusted else []),
        (in_float64, _FLOAT64_RANGE[size]),
        (_full_svd, math.inf),
    ]


def _escalate(stack: Array, edges: Array, solvers: list[tuple[_Solver, float]]) -> tuple[Array, Array]:
    # The first solver, then the others for those matrices that are out of its range.
    (solve, largest), *others = solvers
    values, vectors = solve(stack, edges, largest)
    far = values[:, 0] > largest * edges
    if bool(far.all()) and others:
        return _escalate(stack, edges, others)
    if bool(far.any()) and others:
        values[far], vectors[far] = _escalate(stack[far], edges[far], others)
    return values, vectors


def _full_svd(stack: Array, edges: Array, largest: float) -> tuple[Array, Array]:
    vectors, values, _ = array_namespace(stack).linalg.svd(stack, full_matrices=False)
    return to_float64(values), vectors


def _full_eigh(stack: Array, edges: Array, largest: float) -> tuple[Array, Array]:
    xp, gram = array_namespace(stack), _gram(stack)
    least = _least_top_eigenvalue(gram)
    near = least <= (largest * edges) ** 2
    if bool(near.all()):
        eigenvalues, eigenvectors = xp.linalg.eigh(gram)
        return _from_eigenpairs(eigenvalues, eigenvectors, stack)
    values, vectors = to_float64(xp.zeros_like(stack[..., 0])), xp.zeros_like(stack[..., : stack.shape[-2]])
    values[:, 0] = math.inf
    if bool(near.any()):
        eigenvalues, eigenvectors = xp.linalg.eigh(gram[near])
        values[near], vectors[near] = _from_eigenpairs(eigenvalues, eigenvectors, stack)
    return values, vectors


def _least_top_eigenvalue(gram: Array) -> Array:
    # A lower bound of the top eigenvalue of each matrix, less a safe allowance for rounding.
    xp = array_namespace(gram)
    column = xp.argmax(xp.linalg.norm(gram, 2, -1), -1)
    vector = gram[range(len(gram)), column][..., None]
    before, after = (xp.linalg.norm(x[..., 0], 2, -1) for x in (vector, gram @ vector))
    return after / xp.clip(before, _TINY, None) * (1 - 1e-9)


def _certified_lanczos(stack: Array, edges: Array, largest: float) -> tuple[Array, Array]:
    # For a stack of one matrix.
    gram = _gram(stack)
    least = _least_top_eigenvalue(gram)
    if bool(least > (largest * edges) ** 2):
        return least[:, None] + math.inf, stack[..., :1]
    pairs = lanczos(gram[0], float(edges[0]) ** 2, _RESIDUAL[stack.dtype.itemsize])
    if pairs is None and _svd_is_fast(stack):
        return _full_svd(stack, edges, largest)
    if pairs is None:
        pairs = array_namespace(stack).linalg.eigh(gram[0])
    return _from_eigenpairs(pairs[0][None], pairs[1][None], stack)


def lanczos(matrix: Array, threshold: float, residual: float) -> tuple[Array, Array] | None:
    """Eigenpairs of a positive semidefinite matrix above a threshold, with proof that there are no others.

    Lanczos iteration with full reorthogonalization, from a fixed start vector.

    ``residual``: largest ``‖Au - θu‖`` of these, in units of the threshold; not asked below 1e-14 of the top value.
    Returns: eigenvalues in increasing order and orthonormal eigenvectors: all above the threshold, and the largest
    Ritz value below it. None if no proof was found in a basis of bounded size, or none is to be expected since more
    than half of the Ritz values are above the threshold.

    Examples
    --------
    >>> import numpy as np
    >>> values, vectors = lanczos(np.diag([9.0, 5.0, *np.linspace(0, 1, 398)]), threshold=4.0, residual=1e-9)
    >>> values[1:].round(12).tolist()
    [5.0, 9.0]
    """
    xp = array_namespace(matrix)
    size = matrix.shape[0]
    largest = min(size // 2, max(_BASIS, size // 8))
    basis, images = (xp.empty((largest, size), dtype=matrix.dtype, device=matrix.device) for _ in range(2))
    vector = _as_like(np.random.default_rng(0).standard_normal(size), matrix)
    for k in range(largest):
        basis[k] = vector / xp.clip(xp.linalg.norm(vector), _TINY, None)
        images[k] = matrix @ basis[k]
        vector, done = images[k], basis[: k + 1]
        for earlier in (done[-2:], done):  # the three-term recurrence, then what rounding left of the others
            vector = vector - (earlier @ vector) @ earlier
        if k % _CHECK_EVERY == _CHECK_EVERY - 1:
            θ, S = _ritz_pairs(done.T, images[: k + 1].T)
            if int((θ > threshold).sum()) > _crowded(k + 1, size):
                return None  # so many that the basis would grow too far
            pairs = _proven(θ, S, matrix, done.T, images[: k + 1].T, threshold, residual)
            if pairs is not None:
                return pairs
    return None


def _crowded(steps: int, size: int) -> float:
    # Above how many spikes among so many Ritz values a full decomposition is taken for cheaper.
    if steps < size // 42:
        return math.inf
    return steps * (0.8 if steps <= _CHECK_EVERY else 0.5)


def _ritz_pairs(basis: Array, images: Array) -> tuple[Array, Array]:
    projected = basis.T @ images
    θ, S = array_namespace(projected).linalg.eigh((projected + projected.T) / 2)
    return θ, S


def _proven(
    θ: Array, S: Array, matrix: Array, basis: Array, images: Array, threshold: float, residual: float
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
    separated = float(θ[0] + errors[0]) < threshold  # else the costly part of the proof would hardly succeed
    if not (separated and bool((wanted <= accurate).all())):
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


def _gram(stack: Array) -> Array:
    # YYᵀ in float64, multiplied in the dtype of Y; for large matrices only the upper half is computed.
    size = stack.shape[-2]
    if size <= _PRODUCT_LIMIT:
        return to_float64(stack @ stack.mT)
    xp = array_namespace(stack)
    product = xp.empty((*stack.shape[:-1], size), dtype=xp.float64, device=stack.device)
    ends = [size * i // _PRODUCT_BLOCKS for i in range(_PRODUCT_BLOCKS + 1)]
    for i, j in itertools.pairwise(ends):
        rows = stack[..., i:j, :] @ stack[..., i:, :].mT
        product[..., i:j, i:], product[..., i:, i:j] = rows, rows.mT
    return product


def _from_eigenpairs(eigenvalues: Array, eigenvectors: Array, stack: Array) -> tuple[Array, Array]:
    # Eigenpairs of YYᵀ in increasing order to singular values and vectors in decreasing order.
    xp = array_namespace(stack)
    values = xp.sqrt(xp.clip(xp.flip(eigenvalues, (-1,)), 0.0, None))
    return values, _as_dtype_of(stack, xp.flip(eigenvectors, (-1,)))


def _trim(values: Array, vectors: Array, edges: Array) -> LeadingSpectrum:
    kept = max(1, int((values > edges[:, None]).sum(-1).max()))
    return LeadingSpectrum(values[:, :kept], vectors[..., :kept])


def _concatenate(singles: list[LeadingSpectrum]) -> LeadingSpectrum:
    widest = max(s.values.shape[-1] for s in singles)
    xp = array_namespace(singles[0].values)
    return LeadingSpectrum(
        xp.concatenate([_widen(s.values, widest) for s in singles]),
        xp.concatenate([_widen(s.vectors, widest) for s in singles]),
    )


def _widen(array: Array, columns: int) -> Array:
    xp = array_namespace(array)
    shape = (*array.shape[:-1], columns - array.shape[-1])
    return xp.concatenate([array, xp.zeros(shape, dtype=array.dtype, device=array.device)], -1)


def _as_like(values: Array, like: Array) -> Array:
    return like.new_tensor(values) if is_tensor(like) else values


def _as_dtype_of(like: Array, array: Array) -> Array:
    return array.to(like.dtype) if is_tensor(like) else array.astype(like.dtype, copy=False)
