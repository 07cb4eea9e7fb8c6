"""Compute the singular values above the bulk edge, and their vectors of the shorter side, by the cheapest safe method.

A shrunk matrix is ``Σ η_i u_i v_iᵀ = U diag(η/s) Uᵀ Y``. So the vectors of one side suffice, and only for values above
the edge, since all others are shrunk to 0. With r <= c the two sides of the matrix:

| backend    | method                                     | chosen by "auto"                                     |
|------------|--------------------------------------------|------------------------------------------------------|
| "gram"     | eigendecomposition of the r × r matrix YYᵀ | r <= 128, all matrices of a stack in one call        |
| "lanczos"  | Lanczos iteration on YYᵀ, certified        | r > 128, matrix by matrix                            |
| "products" | the same with products by Y alone          | r >= 2560, matrix by matrix                          |
| "svd"      | full singular value decomposition          | when the others are not accurate enough or no faster |

These are no faster than a full decomposition for float32 tensors on the CPU with c < 3r/2 and 96 < r <= 400, and for
matrices with too many spikes for a Lanczos iteration.

**Accuracy.** Forming YYᵀ squares the singular values. An error of ε·s₁², with ε of the product's dtype, becomes a
relative error of ``ε·(s₁/b)²`` next to the edge b. With top value s₁ = R·b on 16×768 float32 data, the worst of 60
relative errors of a float32 product is 1e-7 at R = 1.2 and 4e-5 at R = 1000. A float64 product has 1e-7 at both, as
the float32 SVD has. So float32 data use a float32 product up to R = 10 and a float64 product beyond. Float64 data use
a float64 product up to R = 100, then a full SVD. Off the CPU products are formed in float64, because the hardware may
round float32 products to TF32. Eigenvalue problems are always solved in float64.

The product is chosen before anything is diagonalized, by ``s₁² >= ‖GGv‖/‖Gv‖`` for ``G = YYᵀ`` and any v. The first
two moments of the spectrum show whether a Lanczos iteration would have too many vectors to find.

**Completeness.** A Lanczos run can miss an eigenvalue, so it ends only with a proof. k Ritz values above the threshold
τ imply at least k eigenvalues above it. A Cholesky factorization of ``τ - A + UΘUᵀ``, whose last term has rank k,
implies at most k. This covers repeated values and unlucky start vectors. Without proof the basis grows, and finally
the full eigendecomposition is used. The proof leaves open only values within rounding of the threshold, which are
shrunk to almost nothing.

**Products alone.** Where even forming YYᵀ takes longest, and most memory, it is not formed. The pairs found by a
Lanczos run are deflated, ``B = (1 - UUᵀ) YYᵀ (1 - UUᵀ)``. A run from a *fresh* Gaussian block G (r × p) then shows
that nothing was missed, except with probability 1e-12. Let ``V_0 = G/‖G‖, …, V_k`` have Frobenius norms of at most 1
and ``B V_j = Σ_i T_ij V_i + [j = k-1] β V_k + E_j`` with T tridiagonal, entries >= 0 and ``‖E_j‖ <= ρ``. Let τ be
above all eigenvalues of T and ``z = (τ - T)⁻¹ e_0``. If ``‖G‖ (β z_{k-1} + ρ Σ_j z_j) < δ``, all eigenvalues of B are
below τ, except with probability ``P(χ²_p <= δ²) <= (δ²/2)^{p/2}/Γ(p/2 + 1)``. For the top eigenvector x, of eigenvalue
λ >= τ, the recurrence times xᵀ gives ``y_0 = β y_k w_{k-1} + Σ_j E_jᵀx w_j`` with ``y_j = V_jᵀx`` and ``w = (λ - T)⁻¹
e_0``, where ``0 <= w <= z``. So ``‖Gᵀx‖ = ‖G‖‖y_0‖ < δ``, but x does not depend on G. The seed is fixed, so that runs
repeat: the probability is over it, for matrices that were not made with knowledge of it. (Kuczyński & Woźniakowski
1992 and Hochstenbach 2013 have p = 1, whose δ would be below the rounding of float32.) Without proof YYᵀ is formed
after all.

Randomized SVD is not used: with two power iterations it underestimates a top value next to the gate by 5 to 9 %
(256×1024 and 768×3072, 6 to 16 columns).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import scipy

from dprmt.spectra._arrays import Array, array_namespace, cast_like, is_tensor, to_float64

Backend: TypeAlias = Literal["auto", "gram", "lanczos", "products", "svd"]

GRAM_LIMIT = 128  # longest short side for which the Gram matrix is diagonalized in full
_PRODUCTS = {4: ((4, 10.0), (8, 1e8)), 8: ((8, 1e2),)}
# By bytes per entry of the data, what to try in turn: bytes per entry of YYᵀ, and the largest s₁/b it is accurate for.
_TINY = 1e-300  # replaces the norm of a zero vector
_BASIS = 192  # largest basis, or an eighth of the space if that is more, or half of it if that is less


class LeadingSpectrum(NamedTuple):
    """Singular values in decreasing order: at least the top one, and all above the edge."""

    values: Array
    """Singular values in float64, shape (batch, q), with zeros if a matrix has fewer values above the edge."""
    vectors: Array
    """Singular vectors of the shorter side, shape (batch, r, q), in the dtype of the data."""
    others: Array | None = None
    """Singular vectors of the longer side as rows, shape (batch, q, c), if the method has them."""


def leading_spectrum(stack: Array, edges: Array, backend: Backend = "auto") -> LeadingSpectrum:
    """Return all singular values above the edge, and their vectors of the shorter side.

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
    rows = stack.shape[-2]
    if backend == "auto":
        backend = "gram" if rows <= GRAM_LIMIT else "lanczos" if rows < 2560 else "products"
        if 96 < rows <= 400 and _svd_is_fast(stack):
            backend = "svd"
    products = _PRODUCTS[stack.dtype.itemsize][0 if "cpu" in str(stack.device) else -1 :]
    if backend == "gram":
        spectrum = _from_products(stack, edges, products)
    elif backend == "svd":
        spectrum = _from_svd(stack)
    elif len(stack) == 1:
        spectrum = _from_lanczos(stack, edges, products, form_product=backend == "lanczos")
    else:
        singles = [leading_spectrum(stack[i : i + 1], edges[i : i + 1], backend) for i in range(len(stack))]
        widest = max(single.values.shape[-1] for single in singles)
        xp = array_namespace(stack)
        values = xp.zeros((len(stack), widest), dtype=xp.float64, device=stack.device)
        vectors = xp.zeros((len(stack), rows, widest), dtype=stack.dtype, device=stack.device)
        for i, (own, columns, _) in enumerate(singles):
            values[i, : own.shape[-1]], vectors[i, :, : own.shape[-1]] = own[0], columns[0]
        return LeadingSpectrum(values, vectors)
    values, vectors, others = spectrum
    kept = max(1, int((values > edges[:, None]).sum(-1).max()))
    return LeadingSpectrum(values[:, :kept], vectors[..., :kept], others if others is None else others[:, :kept])


_Products: TypeAlias = tuple[tuple[int, float], ...]


def _from_products(stack: Array, edges: Array, products: _Products) -> LeadingSpectrum:
    # All pairs: from YYᵀ, by the first product that is accurate enough for a matrix, or from the matrix itself.
    if not products:
        return _from_svd(stack)
    (size, largest), *wider = products
    xp, gram = array_namespace(stack), _gram(stack, size)
    limits = (largest * edges) ** 2
    near = gram.diagonal(0, -2, -1).sum(-1) <= limits
    if not bool(near.all()):
        near = _least_top_eigenvalue(gram) <= limits  # others would be diagonalized in vain
    if not bool(near.any()):
        return _from_products(stack, edges, tuple(wider))
    all_near = bool(near.all())
    eigenvalues, eigenvectors = xp.linalg.eigh(gram if all_near else gram[near])
    values = xp.sqrt(xp.clip(xp.flip(eigenvalues, (-1,)), 0.0, None))
    vectors = cast_like(xp.flip(eigenvectors, (-1,)), stack)
    if not all_near:
        values, vectors = _placed(values, near), _placed(vectors, near)
    far = values[:, 0] > largest * edges
    if bool(far.any()):
        values[far], vectors[far], _ = _from_products(stack[far], edges[far], tuple(wider))
    return LeadingSpectrum(values, vectors)


def _placed(found: Array, where: Array) -> Array:
    # Infinite elsewhere.
    xp = array_namespace(found)
    placed = xp.full((len(where), *found.shape[1:]), math.inf, dtype=found.dtype, device=found.device)
    placed[where] = found
    return placed


def _from_svd(stack: Array) -> LeadingSpectrum:
    vectors, values, others = array_namespace(stack).linalg.svd(stack, full_matrices=False)
    return LeadingSpectrum(to_float64(values), vectors, others)


def _svd_is_fast(stack: Array) -> bool:
    # Nearly square float32 matrices: an eigendecomposition in float64 costs as much.
    r, c = stack.shape[-2:]
    on_cpu = is_tensor(stack) and stack.device.type == "cpu"
    return bool(on_cpu and stack.dtype.itemsize == 4 and 2 * c < 3 * r)


def _from_lanczos(stack: Array, edges: Array, products: _Products, form_product: bool) -> LeadingSpectrum:
    # Stack of one matrix: the pairs above the edge, or all if they are many.
    y, edge, svd_is_fast = stack[0], float(edges[0]), _svd_is_fast(stack)
    looked = svd_is_fast or not form_product
    if looked and _many_spikes(*_moments(y), y.shape, edge):
        return _from_svd(stack) if svd_is_fast else _from_products(stack, edges, products)
    for size, largest in products:
        limit, residual = (largest * edge) ** 2, 1e-6 if size == 4 else 1e-11  # of a Ritz pair, in units of b²
        pairs = None if form_product else leading_pairs(y if size == 4 else to_float64(y), edge**2, residual, limit)
        if pairs is None:
            gram = _gram(stack, size)
            if float(_least_top_eigenvalue(gram)[0]) > limit:
                continue
            gram = gram[0]
            if looked or not _many_spikes(float(gram.trace()), _squared_norm(gram), y.shape, edge):
                pairs = lanczos(gram, edge**2, residual)
            if pairs is None and svd_is_fast:
                break
            pairs = pairs or array_namespace(stack).linalg.eigh(gram)
        xp = array_namespace(y)
        values = xp.sqrt(xp.clip(xp.flip(pairs[0], (-1,)), 0.0, None))
        spectrum = LeadingSpectrum(values[None], cast_like(xp.flip(pairs[1], (-1,)), y)[None])
        if float(spectrum.values[0, 0]) <= largest * edge:
            return spectrum
    return _from_svd(stack)


def _many_spikes(squares: float, fourths: float, shape: tuple[int, int], edge: float) -> bool:
    # From Σs² and Σs⁴, whether more of the clean singular values λ can be detected than are found one by one in less
    # time than all. Expectations over the noise: Σs² is Σλ² + rcσ², Σs⁴ is Σλ⁴ + (r+c+1)σ²(2Σλ² + rcσ²).
    r, c = shape
    variance = (edge / (math.sqrt(r) + math.sqrt(c))) ** 2
    signal = squares - r * c * variance
    if signal <= 0:
        return False
    share = variance / signal  # a ratio, since edges may be so small that their squares' squares vanish
    signal_fourths = fourths / signal / signal - (r + c + 1) * share * (2 + r * c * share)
    detectable = 1 / max(math.sqrt(r * c) * share, _TINY)  # at most, each of them being λ*² or more
    participating = 1 / max(signal_fourths, _TINY)
    return min(detectable, participating) > r / 16


def _moments(y: Array) -> tuple[float, float]:
    # Σs², and an unbiased estimate of Σs⁴ = ‖YYᵀ‖².
    probes = gaussian(np.random.default_rng(0), y, 8, y.shape[0])
    return _squared_norm(y), _squared_norm((probes @ y) @ y.mT) / len(probes)


def _squared_norm(matrix: Array) -> float:
    rows = to_float64(array_namespace(matrix).linalg.norm(matrix, 2, -1))
    return float(rows @ rows)


def _least_top_eigenvalue(gram: Array) -> Array:
    # A lower bound of the top eigenvalue of each matrix, less a safe allowance for rounding.
    xp = array_namespace(gram)
    column = xp.argmax(xp.linalg.norm(gram, 2, -1), -1)
    vector = gram[range(len(gram)), column][..., None]
    before, after = (xp.linalg.norm(x[..., 0], 2, -1) for x in (vector, gram @ vector))
    return after / xp.clip(before, _TINY, None) * (1 - 1e-9)


def _gram(stack: Array, size: int) -> Array:
    # YYᵀ in float64, multiplied in a dtype of this many bytes; torch multiplies only the upper half of large ones.
    xp, rows = array_namespace(stack), stack.shape[-2]
    stack = stack if size == stack.dtype.itemsize else to_float64(stack)
    if rows <= 256 or xp is np:  # whose own product is symmetric
        return to_float64(stack @ stack.mT)
    product = xp.empty((*stack.shape[:-1], rows), dtype=xp.float64, device=stack.device)
    ends = [rows * i // 8 for i in range(9)]
    for i, j in itertools.pairwise(ends):
        part = stack[..., i:j, :] @ stack[..., i:, :].mT
        product[..., i:j, i:], product[..., i:, i:j] = part, part.mT
    return product


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


def lanczos(matrix: Array, threshold: float, residual: float) -> tuple[Array, Array] | None:
    """Compute the eigenpairs of a positive semidefinite matrix above a threshold, with proof that there are no others.

    The start vector is fixed.

    ``residual``: largest ``‖Au - θu‖`` of the pairs, in units of the threshold; it is ignored below 1e-14 of the top
    value. The result has eigenvalues in increasing order and orthonormal eigenvectors: all above the threshold, and
    the largest Ritz value below it. It is None if no proof was found in a basis of bounded size, or if more than half
    of the basis would be above the threshold.

    Examples
    --------
    >>> import numpy as np
    >>> values, vectors = lanczos(np.diag([9.0, 5.0, *np.linspace(0, 1, 398)]), threshold=4.0, residual=1e-9)
    >>> values[1:].round(12).tolist()
    [5.0, 9.0]
    """
    size = matrix.shape[0]
    start = gaussian(np.random.default_rng(0), matrix, size)
    return _search(lambda v: matrix @ v, start, threshold, residual, max(_BASIS, size // 8), matrix)


def _search(
    apply: Callable[[Array], Array],
    start: Array,
    threshold: float,
    residual: float,
    basis: int,
    matrix: Array | None = None,
    rounding: float = 1e-14,
) -> tuple[Array, Array] | None:
    # As `lanczos`; without the matrix what looks complete is not proven to be.
    largest = min(len(start) // 2, basis)
    run, before = KrylovBasis(apply, start, largest), (-1, math.inf, 0)
    for _ in range(largest // 12):  # steps between checks of the Ritz values
        for _ in range(12):
            run.step()
        done = run.basis[: run.steps].T, run.images[: run.steps].T
        θ, S = ritz_pairs(*done)
        spikes, k = int((θ > threshold).sum()), run.steps
        if 2 * spikes > largest:
            return None  # the basis would grow too far
        # Where the largest of the others will end: below a dense edge, after k steps, it is about 1/k² of the way
        # short.
        now, (spikes_before, last, steps) = float(θ[-spikes - 1]) if spikes < k else math.inf, before
        rise = (now - last) * steps**2 / (k**2 - steps**2) if spikes == spikes_before else math.inf
        before = spikes, now, k
        pairs = _proven(θ, S, matrix, *done, threshold, residual, now + rise < threshold, rounding)
        if pairs is not None:
            return pairs
    return None


def leading_pairs(y: Array, threshold: float, residual: float, limit: float = math.inf) -> tuple[Array, Array] | None:
    """Compute eigenpairs of YYᵀ above a threshold from products with Y; the proof fails with probability at most
    1e-12.

    ``y``: shape (r, c), r <= c. ``limit``: of eigenvalues; where one is larger, those found come back unproven.
    Returns: eigenvalues in increasing order and orthonormal eigenvectors, in float64: all above the threshold, and
    the largest Ritz pair if there is none. None if no proof was found in a few short runs.

    Examples
    --------
    >>> import numpy as np
    >>> values, _ = leading_pairs(np.diag([3.0, 2.0, *np.linspace(0, 1, 398)]), threshold=2.0, residual=1e-9)
    >>> values.round(9).tolist()
    [4.0, 9.0]
    """
    xp, rng = array_namespace(y), np.random.default_rng(0)
    rounding = 8 * float(xp.finfo(y.dtype).eps)  # of a product with YYᵀ, in units of its top eigenvalue
    U = to_float64(y[:, :0])
    values = U[0]

    def apply(rows: Array) -> Array:
        narrow = cast_like(rows - (rows @ U) @ U.mT, y)
        images = to_float64((narrow @ y) @ y.mT)
        return images - (images @ U) @ U.mT

    for _ in range(3):
        seen = _search(apply, gaussian(rng, U, len(y)), threshold, residual, _BASIS, rounding=rounding)
        if seen is None:
            return None
        above = seen[0] > threshold
        values, U = (
            xp.concatenate([values, seen[0][above]]),
            xp.linalg.qr(xp.concatenate([U, seen[1][:, above]], -1))[0],
        )
        top = max([threshold, *values.tolist()])
        order = xp.argsort(values)
        if top > limit:
            return values[order], U[:, order]
        last = _nothing_above(apply, gaussian(rng, U, 16, len(y)), threshold, rounding * top)
        if last is not False:
            return last if last is None or not len(values) else (values[order], U[:, order])
    return None


def _nothing_above(
    apply: Callable[[Array], Array], block: Array, threshold: float, rounding: float
) -> tuple[Array, Array] | Literal[False] | None:
    # The top Ritz pair, if a run from a Gaussian block proves all eigenvalues to be below the threshold; False if one
    # is seen that is not, None if the run is too short.
    xp, like, p, most = array_namespace(block), {"dtype": block.dtype, "device": block.device}, len(block), 48
    norm = float(xp.linalg.norm(block))
    run = KrylovBasis(lambda rows: apply(rows.reshape(block.shape)).reshape(-1), block.reshape(-1), most)
    δ = math.sqrt(2 * (math.gamma(p / 2 + 1) * 1e-12) ** (2 / p))  # for a probability of 1e-12
    for k in range(2, most + 1, 2):
        run.step()
        run.step()
        Q, images = run.basis[:k], run.images[:k]
        full = xp.clip(Q @ images.T, 0.0, None)
        beside = (full.diagonal(1) + full.diagonal(-1)) / 2
        T = xp.diag(full.diagonal()) + xp.diag(beside, 1) + xp.diag(beside, -1)
        if float(xp.linalg.eigvalsh(T)[-1]) >= threshold:
            return False
        z = xp.linalg.solve(threshold * xp.eye(k, **like) - T, xp.eye(k, **like)[0])
        missed = norm * (float(xp.linalg.norm(run.next)) * float(z[-1]) + rounding * float(z.sum()))
        if missed < δ:
            errors = images - T @ Q
            errors[-1] -= run.next
            if missed + norm * float(xp.linalg.norm(errors, 2, -1).max()) * float(z.sum()) < δ:
                weights = xp.linalg.eigh(T)[1][:, -1]
                basis = xp.linalg.qr((weights @ Q).reshape(block.shape).T)[0]
                θ, S = ritz_pairs(basis, apply(basis.T).T)
                return θ[-1:], basis @ S[:, -1:]
    return None


def ritz_pairs(basis: Array, images: Array) -> tuple[Array, Array]:
    """Compute Ritz values over an orthonormal basis, in increasing order, and their vectors in terms of it."""
    projected = basis.T @ images
    θ, S = array_namespace(projected).linalg.eigh((projected + projected.T) / 2)
    return θ, S


def gaussian(rng: np.random.Generator, like: Array, *shape: int) -> Array:
    """Return independent N(0, 1) entries in the dtype, and on the device, of another array."""
    entries = rng.standard_normal(shape)
    return like.new_tensor(entries) if is_tensor(like) else entries.astype(like.dtype, copy=False)


def _proven(
    θ: Array,
    S: Array,
    matrix: Array | None,
    basis: Array,
    images: Array,
    threshold: float,
    residual: float,
    settled: bool = False,
    rounding: float = 1e-14,
) -> tuple[Array, Array] | None:
    # The Ritz pairs above the threshold and one more, if they are accurate and, of a given matrix, certainly all.
    xp = array_namespace(basis)
    spikes = int((θ > threshold).sum())
    θ, S = θ[-spikes - 1 :], S[:, -spikes - 1 :]
    U = basis @ S
    errors = xp.linalg.norm(images @ S - U * θ, 2, 0)
    wanted, accurate = errors[1:], max(residual * threshold, rounding * float(θ[-1]))
    if not spikes and matrix is not None:  # the top value is for information only
        wanted, accurate = errors, 1e-3 * float(θ[0])
    settled = settled or float(θ[0] + errors[0]) < threshold  # else the costly part of the proof would hardly succeed
    if not (settled and bool((wanted <= accurate).all())):
        return None
    if matrix is None:
        return θ, U
    certificate = (U[:, 1:] * θ[1:]) @ U[:, 1:].T  # becomes threshold·I - (matrix - UΘUᵀ), in place
    certificate -= matrix
    certificate.reshape(-1)[:: len(matrix) + 1] += threshold
    overlap = basis.T @ basis  # not the identity if the Krylov space was exhausted
    overlap.reshape(-1)[:: len(overlap) + 1] -= 1
    return (θ, U) if float(abs(overlap).max()) < 1e-12 and _is_positive_definite(certificate) else None


def _is_positive_definite(matrix: Array) -> bool:
    if is_tensor(matrix):
        return int(array_namespace(matrix).linalg.cholesky_ex(matrix).info) == 0
    return int(scipy.linalg.lapack.dpotrf(matrix.T, lower=1, overwrite_a=1)[1]) == 0
