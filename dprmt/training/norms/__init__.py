"""Squared per-sample gradient norms of linear-like layers: exact, ghost, Hutchinson and Hutch++.

With activations A (B, T, d) and output gradients G (B, T, p) of a layer, sample i's gradient is A_iᵀG_i. In
memory per sample:

| function                         | memory       | norm                                     |
|----------------------------------|--------------|------------------------------------------|
| :func:`exact_squared_norms`      | a block      | exact                                    |
| :func:`ghost_squared_norms`      | 128·T        | exact                                    |
| :func:`hutchinson_squared_norms` | k(T + d + p) | times Σ λ_i χ²_i(k)/k                    |
| :func:`hutchpp_squared_norms`    | k(T + d + p) | times h + (1-h) Σ λ_i χ²_i(k)/k          |

:class:`HutchinsonEstimator` and :class:`HutchPlusPlusEstimator` add the probes of a training run. Each is a
:class:`NormEstimator`, as is any object with its methods, and its ``norms`` are the accountant's value.
:func:`clip_factors` turns norms into clip factors. :class:`NormRecord` passes the norm methods to the accountant.
"""

import dprmt.training._needs_train  # noqa: F401
from dprmt.training.norms._clipping import (
    DEFAULT_ROUNDING,
    cancellation_allowance,
    cheaper_side,
    clip_factors,
    rounding_margin,
)
from dprmt.training.norms._estimators import (
    HutchinsonEstimator,
    HutchPlusPlusEstimator,
    NormEstimator,
    hutchinson_squared_norms,
    hutchpp_squared_norms,
)
from dprmt.training.norms._exact import exact_squared_norms, ghost_squared_norms
from dprmt.training.norms._probes import ProbeGenerator, SampleId
from dprmt.training.norms._record import LayerRecord, NormRecord

__all__ = [
    "DEFAULT_ROUNDING",
    "HutchPlusPlusEstimator",
    "HutchinsonEstimator",
    "LayerRecord",
    "NormEstimator",
    "NormRecord",
    "ProbeGenerator",
    "SampleId",
    "cancellation_allowance",
    "cheaper_side",
    "clip_factors",
    "exact_squared_norms",
    "ghost_squared_norms",
    "hutchinson_squared_norms",
    "hutchpp_squared_norms",
    "rounding_margin",
]
