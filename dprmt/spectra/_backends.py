"""The singular values above the bulk edge and their vectors of the shorter side, by the cheapest safe method.

A shrunk matrix is ``Σ η_i u_i v_iᵀ = U diag(η/s) Uᵀ Y``: the vectors of one side suffice, and only those of
values above the edge, since all others are shrunk to 0. With r <= c the two sides of the matrix:

===========  ==========================================  ===============================================
backend      method                                      chosen by "auto"
===========  ==========================================  ===============================================
"gram"       eigendecomposition of the r × r matrix YYᵀ  r <= 128, all matrices of a stack in one call
"lanczos"    Lanczos iteration, certified: on YYᵀ, or    r > 128, matrix by matrix
             for r >= 2560 with products by Y alone
"svd"        full singular value decomposition           when the others are not accurate enough, or not faster:
                                                         float32 tensors on the CPU with c < 3r/2, 96 < r <= 400
                                                         or with more spikes than a Lanczos iteration pays for
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

**Completeness.** A Lanczos run can miss a value. Here it ends only with a proof that it has not: on YYᵀ an exact one
(`dprmt.spectra._lanczos`), which leaves open only values within rounding of the edge, which are shrunk to next to
nothing; without YYᵀ one that fails with probability 1e-12 at most (`dprmt.spectra._krylov`). Where none is found, the
slower way takes over, in the end the full eigendecomposition.

Randomized SVD is left out: with two power iterations it underestimates a top value next to the gate by 5 to
9 % (256×1024 and 768×3072, 6 to 16 columns), so that it would need a gate of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from dprmt.spectra._arrays import Array, array_namespace, is_tensor, to_float64
from dprmt.spectra._krylov import leading_pairs
from dprmt.spectra._lanczos import CHECK_EVERY, KrylovBasis, crowded, gaussian, lanczos, telling_steps

Backend: TypeAlias = Literal["auto", "gram", "lanczos", "svd"]

GRAM_LIMIT = 128  # longest short side for which the Gram matrix is diagonalized in full
PRODUCT_FREE = 2560  # shortest short side of which YYᵀ is not formed to look for a few values
_SVD_SIDES = 96, 400  # shorter sides of nearly square float32 matrices that are decomposed in full
_FLOAT32_RANGE = 10.0  # largest s₁/b for a float32 product
_FLOAT64_RANGE = {4: 1e8, 8: 1e2}  # the same for a float64 product, by bytes per entry of the data
_RESIDUAL = {4: 1e-6, 8: 1e-11}  # of a Ritz pair, in units of b², by bytes per entry of the data
_TINY = 1e-300  # in place of the norm of a zero vector
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
    others : array, shape (batch, q, c), optional
        Those of the longer side as rows, where the method has them anyway.
    """

    values: Array
    vectors: Array
    others: Array | None = None


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
        return _decomposed(stack, edges)
    if backend == "gram":
        return _trim(*_escalate(stack, edges, _solvers(stack, _full_eigh)), edges)
    return _concatenate([_one_by_lanczos(stack[i : i + 1], edges[i : i + 1]) for i in range(len(stack))])


def _one_by_lanczos(stack: Array, edges: Array) -> LeadingSpectrum:
    if _svd_is_fast(stack) and _needs_svd(stack[0], float(edges[0])):
        return _decomposed(stack, edges)
    return _trim(*_escalate(stack, edges, _solvers(stack, _certified_lanczos)), edges)


def _needs_svd(y: Array, edge: float) -> bool:
    # Seen in a few products, before YYᵀ is formed: many spikes, or one too far for a float32 product.
    size = y.shape[0]
    steps = CHECK_EVERY * math.ceil(max(1, telling_steps(size)) / CHECK_EVERY)
    if size <= 2 * steps or size >= PRODUCT_FREE:  # there the search itself sees it
        return False
    run = KrylovBasis(lambda v: y @ (y.mT @ v), gaussian(np.random.default_rng(0), y, size), 2 * steps)
    for _ in range(2):
        run.steps_on(steps)
        θ, _ = run.ritz_pairs()
        if crowded(θ, edge**2, size) or float(θ[-1]) > (_FLOAT32_RANGE * edge) ** 2:
            return True
        if 2 * int((θ > edge**2).sum()) <= len(θ):  # more steps will not make them many
            return False
    return False


def _chosen(stack: Array) -> Backend:
    size = stack.shape[-2]
    if _svd_is_fast(stack) and _SVD_SIDES[0] < size <= _SVD_SIDES[1]:
        return "svd"
    return "gram" if size <= GRAM_LIMIT else "lanczos"


def _svd_is_fast(stack: Array) -> bool:
    # Nearly square float32 matrices: an eigendecomposition in float64 costs as much.
    r, c = stack.shape[-2:]
    on_cpu = is_tensor(stack) and stack.device.type == "cpu"
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


def _decomposed(stack: Array, edges: Array) -> LeadingSpectrum:
    # By a full singular value decomposition, which has the other side's vectors too.
    vectors, values, right = array_namespace(stack).linalg.svd(stack, full_matrices=False)
    trimmed = _trim(to_float64(values), vectors, edges)
    return replace(trimmed, others=right[:, : trimmed.values.shape[-1]])


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
    threshold, residual = float(edges[0]) ** 2, _RESIDUAL[stack.dtype.itemsize]
    pairs = None
    if stack.shape[-2] >= PRODUCT_FREE:
        pairs = leading_pairs(stack[0], threshold, residual, (largest * float(edges[0])) ** 2)
    if pairs is None:
        gram = _gram(stack)
        least = _least_top_eigenvalue(gram)
        if bool(least > (largest * edges) ** 2):
            return least[:, None] + math.inf, stack[..., :1]
        pairs = lanczos(gram[0], threshold, residual)
        if pairs is None and _svd_is_fast(stack):
            return _full_svd(stack, edges, largest)
        pairs = pairs or array_namespace(stack).linalg.eigh(gram[0])
    return _from_eigenpairs(pairs[0][None], pairs[1][None], stack)


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
    if len(singles) == 1:
        return singles[0]
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
