"""What users call: one noisy matrix, or a named set of layers, denoised by Eq. 10."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dprmt._validation import ParameterError, check_real
from dprmt.spectra._arrays import MatrixT, as_array, cast_like, check_finite, check_nonempty, detached, refuse_kernels
from dprmt.spectra._backends import Backend
from dprmt.spectra._denoiser import LayerDenoiser, check_method, denoise_stack, gate_of
from dprmt.spectra._formulas import Loss
from dprmt.spectra._labels import keeps_labels
from dprmt.spectra._layers import LayerReport


@keeps_labels
def denoise(
    matrix: MatrixT,
    sigma: float,
    kappa: float | None = None,
    norm_correction: bool = True,
    *,
    loss: Loss = "frobenius",
    backend: Backend = "auto",
) -> MatrixT:
    """Denoise a noisy gradient matrix, or leave it alone if nothing in it stands out from the noise.

    With s₁ the top singular value of Y, b the bulk edge and Ŷ the matrix Y with its singular values shrunk by
    `shrink` (those at and below the edge to 0):

    - ``s₁ < κ·b``: Y, unchanged to the last bit;
    - otherwise: ``Ŷ·‖Y‖/‖Ŷ‖``, or Ŷ itself without ``norm_correction``.

    Parameters
    ----------
    matrix : array, shape (..., m, n)
        Y, NumPy or torch (any device), of real floating dtype; leading axes are a batch of independent
        matrices. Work is done in float64 for float64, else in float32, the gate and the shrinkage always in
        float64. It is outside automatic differentiation; keep it out of autocast regions, which would round
        its products.
    sigma : float
        Standard deviation of one entry of the noise, >= 0, in the units of the matrix: σ_DP·C/|B|, not the
        noise multiplier. With 0 there is nothing to remove and the matrix comes back as it is.
    kappa : float, optional
        κ >= 1, the gate in units of the bulk edge; 1.02 is the paper's. By default that of `kappa_for` for the shape,
        which noise alone passes in 1 % of draws.
    norm_correction : bool
        Whether to give the shrunk matrix the Frobenius norm of the noisy one; then improvements of the layers
        add up to one of the whole gradient (`block_cosine`). False is the paper's ablation. A matrix whose
        rescaled version would leave the range of its dtype, as large float16 entries can, is not rescaled.
    loss : {"frobenius", "operator", "nuclear"}
        The shrinker. The paper's is Frobenius. Only "nuclear" shrinks values next to the edge to 0, so that a
        matrix that passes the gate may have nothing left to rescale; it is then returned unchanged.
    backend : {"auto", "gram", "lanczos", "products", "svd"}
        How to find the singular values; "auto" goes by the shape, see `dprmt.spectra._backends`.

    Returns
    -------
    array, shape (..., m, n)
        In the form, dtype and device of ``matrix``. The same object, not a copy, if no matrix passes the
        gate.

    Raises
    ------
    ParameterError
        If ``matrix`` has fewer than two axes or is a convolution's kernel (out, in, h, w), whose slices are no
        matrices to denoise; if it has a zero-length axis, an entry that is not finite or a dtype that
        is not real floating; if ``sigma`` < 0, ``kappa`` < 1, or either is not finite; if a choice is
        unknown; if the result does not fit the dtype, rescaled or not.

    Formal guarantees
    -----------------
    If ``matrix`` is the output of a differentially private mechanism, so is the result, with the same (ε, δ):
    it is a function of ``matrix`` and of the other arguments alone. These must not depend on the private data
    in other ways.

    References
    ----------
    Eq. 10 of arXiv:2510.01137v3 with the shrinker of Eq. 9; appendix H.2 without norm correction.

    Examples
    --------
    >>> import numpy as np
    >>> from dprmt.spectra._alignment import cosine_similarity
    >>> rng = np.random.default_rng(0)
    >>> clean = 60 * np.outer(np.eye(16)[0], np.ones(256) / 16)
    >>> noisy = clean + rng.standard_normal((16, 256))  # bulk edge: 20
    >>> denoised = denoise(noisy, sigma=1.0)
    >>> round(cosine_similarity(noisy, clean), 2), round(cosine_similarity(denoised, clean), 2)
    (0.68, 0.96)
    >>> noise = noisy - clean
    >>> denoise(noise, sigma=1.0) is noise
    True
    """
    array = as_array("matrix", matrix)
    if array.ndim < 2:
        raise ParameterError("matrix", tuple(array.shape), "a matrix or a stack of matrices, shape (..., m, n)")
    check_nonempty("matrix", array)
    refuse_kernels("matrix", array)
    σ = check_real("sigma", sigma, low=0.0)
    κ = gate_of((int(array.shape[-2]), int(array.shape[-1])), kappa)
    check_method(loss, backend)
    if σ == 0:
        check_finite("matrix", array)
        return array
    stack = array.reshape(-1, *array.shape[-2:])
    size = len(stack)
    result = denoise_stack(stack, [σ] * size, [κ] * size, norm_correction, loss, backend, ["matrix"] * size)
    if not result.changed:
        return array
    if len(result.changed) < size:
        whole = detached(stack) * 1.0
        whole[result.changed] = cast_like(result.matrices, array)
    else:
        whole = cast_like(result.matrices, array)
    return whole.reshape(array.shape)


def denoise_layers(
    layers: Mapping[str, MatrixT],
    sigma: float | Mapping[str, float],
    kappa: float | Callable[[tuple[int, int]], float] | None = None,
    norm_correction: bool = True,
    *,
    loss: Loss = "frobenius",
    backend: Backend = "auto",
) -> tuple[dict[str, MatrixT], dict[str, LayerReport]]:
    """Denoise every matrix of a noisy gradient, as `denoise` does, and leave everything else alone.

    Only two-dimensional arrays count as matrices. Biases and norms pass through, and so do convolution
    kernels with four axes: which of their matrix views is of low rank is for the caller to say, by reshaping
    them.

    Parameters
    ----------
    layers : mapping of str to array
        The noisy gradient by layer, NumPy or torch, any mixture of shapes, dtypes and devices. Not modified.
    sigma : float or mapping of str to float
        Standard deviation of one entry of the noise, >= 0, in the units of the gradient: σ_DP·C/|B|, not the
        noise multiplier. A mapping gives it for every matrix by name.
    kappa : float or callable, optional
        The gate in units of the bulk edge, >= 1, or a function of the shape (m, n) that gives it, such as
        `kappa_for` with a fixed false-alarm rate. By default that of 1 % for every shape, as in `denoise`.
    norm_correction : bool
        As in `denoise`.
    loss : {"frobenius", "operator", "nuclear"}
        As in `denoise`.
    backend : {"auto", "gram", "lanczos", "products", "svd"}
        As in `denoise`.

    Returns
    -------
    layers : dict
        The same names in the same order. A layer that was not denoised is the same object, not a copy.
    report : dict of LayerReport
        By name, in the same order.

    Raises
    ------
    ParameterError
        If ``layers`` is not a mapping of names to arrays, a matrix is empty, not finite or not of a real
        floating dtype, its sigma is missing or negative, or as in `denoise`. Nothing is returned then.

    Formal guarantees
    -----------------
    As in `denoise`: a function of the layers and the other arguments alone, so the (ε, δ) of a private
    gradient carries over. So does the report: it depends on the noisy gradient only.

    References
    ----------
    Appendix E.1 and Eq. 10 of arXiv:2510.01137v3.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> noise = {"lora_A": rng.standard_normal((16, 256)), "bias": rng.standard_normal(16)}
    >>> noisy = noise | {"lora_B": 4 * np.ones((256, 16)) + rng.standard_normal((256, 16))}
    >>> denoised, report = denoise_layers(noisy, sigma=1.0)
    >>> [name for name in noisy if denoised[name] is noisy[name]]
    ['lora_A', 'bias']
    >>> report["lora_B"].denoised, round(report["lora_B"].top_over_edge, 1)
    (True, 12.9)
    """
    return LayerDenoiser(kappa, norm_correction, loss=loss, backend=backend)(layers, sigma)
