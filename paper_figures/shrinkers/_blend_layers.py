"""Blending shrinkers over a whole gradient: each layer by its own spectrum, now and at earlier steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from dprmt._validation import ParameterError, check_choice
from dprmt.spectra._alignment import norm
from dprmt.spectra._arrays import Array, MatrixT, array_namespace, cast_like, check_finite, detached
from dprmt.spectra._denoise import (
    LayerReport,
    axes_of,
    batches,
    checked_matrix,
    label,
    shape_of,
    sigma_by_name,
    stack_of,
)
from paper_figures.shrinkers._blend import (
    NoisySpectra,
    changed_rows,
    combine,
    decompose,
    identity,
    norm_ratios,
    rescaling,
    single_layer_coefficients,
)
from paper_figures.shrinkers._blend_memory import BlendMemory, LayerKey
from paper_figures.shrinkers._blend_weights import NAMES, Floats, Moments, estimated_gain, fit_weights

LayerWeights: TypeAlias = Literal["noisy", "least-squares"]


@dataclass(frozen=True)
class BlendReport(LayerReport):
    """Effect of blending on one layer; `LayerReport` with more detail.

    Attributes
    ----------
    name : str
        The name of the layer.
    shape : tuple of int
        Its shape.
    top_over_edge : float or None
        Its top singular value in units of the bulk edge; infinite if sigma is 0, None if it is not a matrix.
    spikes : int
        How many of its singular values lie above the bulk edge.
    denoised : bool
        Whether it was replaced.
    weights : dict of float
        By the name of the shrinker, the a_k >= 0 of the result ``Σ a_k f_k(Y)``, after rescaling: "identity" is
        Y itself, "soft q" the soft threshold at ``b₋ + q(b₊ - b₋)`` for the edges b± of the bulk.
    noisy_share : float
        The weight of Y itself: noise in directions of small singular values has the standard deviation
        ``noisy_share·σ`` afterwards. 1 for a layer that was left alone.
    cosine_gain : float
        Estimated improvement of the cosine with the clean layer, in [0, 1]; too high on average, being the
        best of several estimates. It does not depend on the norm of the layer.
    """

    weights: Mapping[str, float] = field(default_factory=lambda: {NAMES[0]: 1.0})
    noisy_share: float = 1.0
    cosine_gain: float = 0.0


def blend_layers(
    layers: Mapping[str, MatrixT],
    sigma: float | Mapping[str, float],
    norm_correction: bool = True,
    *,
    layer_weights: LayerWeights = "noisy",
    memory: BlendMemory | None = None,
) -> tuple[dict[str, MatrixT], dict[str, BlendReport]]:
    """Denoise every matrix of a noisy gradient, as `blend` does, and leave everything else alone.

    Parameters
    ----------
    layers : mapping of str to array
        The noisy gradient by layer, as in `denoise_layers`: two-dimensional arrays are matrices, others pass
        through. Not modified.
    sigma : float or mapping of str to float
        Standard deviation of one entry of the noise, >= 0, in the units of the gradient: σ_DP·C/|B|, not the
        noise multiplier. A mapping gives it for every matrix by name.
    norm_correction : bool
        Whether results are rescaled: see ``layer_weights``. If not, they are least-squares estimates.
    layer_weights : {"noisy", "least-squares"}
        "noisy": every matrix keeps its noisy norm, as in the paper, also one in which nothing is detected.
        "least-squares": every matrix is the least-squares estimate of its clean one, 0 if nothing is detected, and
        all are multiplied by one number that gives the matrices together their noisy norm. Unless nothing is
        detected in any: then all come back as they are.
    memory : BlendMemory, optional
        Averages of earlier steps, from which to choose the weights; brought up to date, unless an error is raised.

    Returns
    -------
    layers : dict
        The same names in the same order. A layer that was not changed is the same object, not a copy.
    report : dict of BlendReport
        By name, in the same order.

    Raises
    ------
    ParameterError
        If ``layers`` is not a mapping of names to arrays, a matrix is empty, not finite or not of a real floating
        dtype, its sigma is missing or negative, or another argument is not what it should be. Nothing is returned
        then, and the memory is left as it was.

    Formal guarantees
    -----------------
    As in `blend`: a function of the layers, of those that the memory has seen and of the other arguments alone, so
    the (ε, δ) of the private gradients carries over, to the report as well. Cosines: as in `blend`, for each
    layer with ``layer_weights="noisy"``; with "least-squares" for each layer that is not set to 0.

    References
    ----------
    ``docs/theory/sure_denoiser.md``.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> noisy = {"lora_A": rng.standard_normal((16, 256)), "bias": rng.standard_normal(16)}
    >>> noisy |= {"lora_B": 0.5 * np.ones((256, 16)) + rng.standard_normal((256, 16))}
    >>> blended, report = blend_layers(noisy, sigma=1.0)
    >>> blended["bias"] is noisy["bias"], report["lora_B"].denoised, report["lora_B"].noisy_share < 0.5
    (True, True, True)
    """
    if not isinstance(layers, Mapping):
        raise ParameterError("layers", type(layers), "a mapping of names to arrays")
    check_choice("layer_weights", layer_weights, get_args(LayerWeights))
    if memory is not None and not isinstance(memory, BlendMemory):
        raise ParameterError("memory", memory, "a BlendMemory, or None")
    sigmas = sigma_by_name([name for name, layer in layers.items() if axes_of(name, layer) == 2], sigma)
    matrices = {name: checked_matrix(name, layers[name]) for name in sigmas}
    noiseless = {name: matrix for name, matrix in matrices.items() if sigmas[name] == 0}
    for name, matrix in noiseless.items():  # the others are checked on the way
        check_finite(label(name), matrix)
    groups = [
        _analysed(names, matrices, sigmas, memory)
        for names in batches({name: matrix for name, matrix in matrices.items() if sigmas[name] > 0}, "auto")
    ]
    if layer_weights == "noisy":
        chosen = [
            single_layer_coefficients(group.weights, group.spectra.moments.gram, norm_correction) for group in groups
        ]
        scale = 1.0
    else:
        scale = _joint_scale(groups, noiseless, norm_correction)
        chosen = [group.weights * scale if scale else identity(group.weights) + 0 * group.weights for group in groups]
        scale = scale or 1.0
    result: dict[str, Array] = dict(layers)
    found: dict[str, BlendReport] = {}
    for group, coefficients in zip(groups, chosen, strict=True):
        changed = changed_rows(coefficients)
        if changed:
            unscaled = np.ones(len(coefficients))  # one layer alone must not leave a scale common to all
            if layer_weights == "noisy":
                unscaled = rescaling(coefficients, group.weights)
            blended = cast_like(combine(group.spectra, coefficients, changed, unscaled), matrices[group.names[0]])
            result.update(zip((group.names[i] for i in changed), blended, strict=True))
        found.update(_reports(group, coefficients, set(changed)))
    for name, matrix in noiseless.items():
        if scale != 1:
            with np.errstate(over="ignore"):
                result[name] = detached(matrix) * scale
            check_finite(f"layers[{name!r}] times {scale:.3g}", result[name])
            found[name] = _unblended(name, matrix, scale)
    if memory is not None:
        for group in groups:
            memory.update(group.keys, group.pooled)
    return result, {name: found.get(name) or _unblended(name, layer) for name, layer in layers.items()}


class _Group(NamedTuple):
    # Matrices of one shape, dtype and device.
    names: list[str]
    keys: list[LayerKey]
    spectra: NoisySpectra
    pooled: Moments
    weights: Floats


def _analysed(
    names: list[str], matrices: Mapping[str, Array], sigmas: Mapping[str, float], memory: BlendMemory | None
) -> _Group:
    spectra = decompose(
        stack_of([matrices[name] for name in names]), [sigmas[name] for name in names], [label(name) for name in names]
    )
    keys = [LayerKey(name, spectra.shape) for name in names]
    pooled = spectra.moments if memory is None else memory.pooled(keys, spectra.moments)
    return _Group(names, keys, spectra, pooled, fit_weights(pooled))


def _joint_scale(groups: list[_Group], noiseless: Mapping[str, Array], norm_correction: bool) -> float:
    # What gives the least-squares estimates together their noisy norm; 0 if all of them are 0.
    before = [norm({None: matrix}) for matrix in noiseless.values()]
    after = list(before)
    for group in groups:
        norms = _norms(group.spectra)
        before += norms.tolist()
        after += (norms * norm_ratios(group.weights, group.spectra.moments.gram)).tolist()
    total = math.hypot(*after)
    if total == 0:
        return 0.0
    return math.hypot(*before) / total if norm_correction else 1.0


def _norms(spectra: NoisySpectra) -> Floats:
    y, xp = detached(spectra.y), array_namespace(spectra.y)
    rows = xp.linalg.norm(y, 2, -1)
    norms = [math.hypot(*row) * unit for row, unit in zip(rows.tolist(), spectra.unit.tolist(), strict=True)]
    return np.array(norms)


def _reports(group: _Group, coefficients: Floats, changed: set[int]) -> dict[str, BlendReport]:
    rows, columns = group.spectra.shape
    ratios = group.spectra.values / (math.sqrt(rows) + math.sqrt(columns))
    top, spikes, weights = ratios[:, 0].tolist(), (ratios > 1).sum(-1).tolist(), coefficients.tolist()
    something = norm_ratios(coefficients, group.spectra.moments.gram) > 0
    gains = (estimated_gain(coefficients, group.pooled) * something).tolist()
    return {
        name: BlendReport(
            name,
            (rows, columns),
            top[i],
            spikes[i],
            i in changed,
            weights=dict(zip(NAMES, weights[i], strict=True)),
            noisy_share=weights[i][0],
            cosine_gain=gains[i] if i in changed else 0.0,
        )
        for i, name in enumerate(group.names)
    }


def _unblended(name: str, layer: Array, scale: float = 1.0) -> BlendReport:
    # Of a layer that is no matrix, or a matrix without noise.
    is_matrix = len(layer.shape) == 2
    shape = shape_of(layer) if is_matrix else tuple(layer.shape)
    return BlendReport(
        name,
        shape,
        math.inf if is_matrix else None,
        min(shape) if is_matrix else 0,
        scale != 1,
        weights={member: scale * (member == NAMES[0]) for member in NAMES},
        noisy_share=scale,
    )
