"""The singular values above the bulk edge and their vectors of the shorter side, by the cheapest safe method.

A shrunk matrix is ``Σ η_i u_i v_iᵀ = U diag(η/s) Uᵀ Y``: the vectors of one side suffice, and only those of
values above the edge, since all others are shrunk to 0. With r <= c the two sides of the matrix:

| backend    | method                                     | chosen by "auto"                                     |
|------------|--------------------------------------------|------------------------------------------------------|
| "gram"     | eigendecomposition of the r × r matrix YYᵀ | r <= 128, all matrices of a stack in one call        |
| "lanczos"  | Lanczos iteration on YYᵀ, certified        | 128 < r < 2560, matrix by matrix                     |
| "products" | the same with products by Y alone          | r >= 2560, matrix by matrix                          |
| "svd"      | full singular value decomposition          | when the others are not accurate enough or no faster |

No faster than a full decomposition are, for float32 tensors on the CPU, matrices with c < 3r/2 and 96 < r <= 400, and
those with more spikes than a Lanczos iteration pays for.

**Accuracy.** Forming YYᵀ squares the singular values: an error of ε·s₁² (ε of the product's dtype) becomes,
next to the edge b, a relative error of ``ε·(s₁/b)²``. Relative error of the norm-corrected estimate on 16×768
float32 data with top value s₁ = R·b, against a float64 SVD, worst of 60: float32 product 1e-7 at R = 1.2,
2e-7 at 10, 2e-6 at 100, 4e-5 at 1000; float64 product 1e-7 at all of them, as the float32 SVD. So float32
data use a float32 product up to R = 10 and a float64 one beyond, which loses to the float32 SVD only where R
exceeds the ratio of the two ε, 5e8; float64 data use a float64 product up to R = 100, then a full SVD. Off
the CPU, where the hardware may round float32 products to TF32, they are formed in float64. Eigenvalue
problems are always solved in float64.

Which product will do is seen before anything is diagonalized: ``s₁² >= ‖GGv‖/‖Gv‖`` for ``G = YYᵀ`` and any v. Whether
a Lanczos iteration would have too many vectors to find is seen in the first two moments of the spectrum.

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
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from dprmt.spectra._arrays import Array, array_namespace, cast_like, is_tensor, to_float64
from dprmt.spectra._krylov import leading_pairs
from dprmt.spectra._lanczos import gaussian, lanczos

Backend: TypeAlias = Literal["auto", "gram", "lanczos", "products", "svd"]

GRAM_LIMIT = 128  # longest short side for which the Gram matrix is diagonalized in full
PRODUCT_FREE = 2560  # shortest short side of which YYᵀ is not formed to look for a few values
_SVD_SIDES = 96, 400  # shorter sides of nearly square float32 matrices that are decomposed in full
_PRODUCTS = {4: ((4, 10.0), (8, 1e8)), 8: ((8, 1e2),)}
# By bytes per entry of the data, what to try in turn: bytes per entry of YYᵀ, and the largest s₁/b it is accurate for.
_RESIDUAL = {4: 1e-6, 8: 1e-11}  # of a Ritz pair, in units of b², by bytes per entry of the product
_FEW = 1 / 16  # of all singular values; more spikes than this are not looked for one by one
_LOOKS = 8  # products with a vector that tell how many they are
_TINY = 1e-300  # in place of the norm of a zero vector
_PRODUCT_LIMIT, _PRODUCT_BLOCKS = 256, 8  # longer sides: torch's YYᵀ in this many row blocks, its upper half only


class LeadingSpectrum(NamedTuple):
    """Singular values in decreasing order: at least the top one, and all above the edge."""

    values: Array
    """Of float64, shape (batch, q), with zeros where a matrix has fewer values above the edge than another one."""
    vectors: Array
    """Singular vectors of the shorter side, shape (batch, r, q), in the dtype of the data."""
    others: Array | None = None
    """Those of the longer side as rows, shape (batch, q, c), where the method has them anyway."""


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
    rows = stack.shape[-2]
    if backend == "auto":
        backend = "gram" if rows <= GRAM_LIMIT else "lanczos" if rows < PRODUCT_FREE else "products"
        if _SVD_SIDES[0] < rows <= _SVD_SIDES[1] and _svd_is_fast(stack):
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
        return _joined(singles)
    values, vectors, others = spectrum
    kept = max(1, int((values > edges[:, None]).sum(-1).max()))
    return LeadingSpectrum(values[:, :kept], vectors[..., :kept], others if others is None else others[:, :kept])


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
    return _from_products(stack, edges, _PRODUCTS[stack.dtype.itemsize][-1:])


_Products: TypeAlias = tuple[tuple[int, float], ...]


def _from_products(stack: Array, edges: Array, products: _Products) -> LeadingSpectrum:
    # All pairs: from YYᵀ, by the first product that is accurate enough for a matrix, or from the matrix itself.
    if not products:
        return _from_svd(stack)
    (size, largest), *wider = products
    xp, gram = array_namespace(stack), _gram(stack, size)
    near = _least_top_eigenvalue(gram) <= (largest * edges) ** 2  # others would be diagonalized in vain
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
    # Of a stack of one matrix: the pairs above the edge, or all of them where they are many.
    y, edge, svd_is_fast = stack[0], float(edges[0]), _svd_is_fast(stack)
    looked = svd_is_fast or not form_product
    if looked and _many_spikes(*_moments(y), y.shape, edge):
        return _from_svd(stack) if svd_is_fast else _from_products(stack, edges, products)
    for size, largest in products:
        limit, residual = (largest * edge) ** 2, _RESIDUAL[size]
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
        spectrum = _from_eigenpairs(pairs[0], pairs[1], y)
        if float(spectrum.values[0, 0]) <= largest * edge:
            return spectrum
    return _from_svd(stack)


def _from_eigenpairs(eigenvalues: Array, eigenvectors: Array, y: Array) -> LeadingSpectrum:
    # Of the YYᵀ of one matrix, in increasing order.
    xp = array_namespace(y)
    values = xp.sqrt(xp.clip(xp.flip(eigenvalues, (-1,)), 0.0, None))
    return LeadingSpectrum(values[None], cast_like(xp.flip(eigenvectors, (-1,)), y)[None])


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
    return min(detectable, participating) > _FEW * r


def _moments(y: Array) -> tuple[float, float]:
    # Σs², and an unbiased estimate of Σs⁴ = ‖YYᵀ‖².
    probes = gaussian(np.random.default_rng(0), y, _LOOKS, y.shape[0])
    return _squared_norm(y), _squared_norm((probes @ y) @ y.mT) / _LOOKS


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
    if rows <= _PRODUCT_LIMIT or xp is np:  # whose own product is symmetric
        return to_float64(stack @ stack.mT)
    product = xp.empty((*stack.shape[:-1], rows), dtype=xp.float64, device=stack.device)
    ends = [rows * i // _PRODUCT_BLOCKS for i in range(_PRODUCT_BLOCKS + 1)]
    for i, j in itertools.pairwise(ends):
        part = stack[..., i:j, :] @ stack[..., i:, :].mT
        product[..., i:j, i:], product[..., i:, i:j] = part, part.mT
    return product


def _joined(singles: list[LeadingSpectrum]) -> LeadingSpectrum:
    widest = max(s.values.shape[-1] for s in singles)
    xp = array_namespace(singles[0].values)
    values = xp.concatenate([_widened(s.values, widest) for s in singles])
    return LeadingSpectrum(values, xp.concatenate([_widened(s.vectors, widest) for s in singles]))


def _widened(array: Array, columns: int) -> Array:
    xp = array_namespace(array)
    shape = (*array.shape[:-1], columns - array.shape[-1])
    return xp.concatenate([array, xp.zeros(shape, dtype=array.dtype, device=array.device)], -1)
