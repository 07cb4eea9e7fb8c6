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
from dprmt._lazy import public_names as _public_names
from dprmt.training.norms._clipping import cheaper_side as cheaper_side
from dprmt.training.norms._clipping import clip_factors as clip_factors
from dprmt.training.norms._clipping import rounding_margin as rounding_margin
from dprmt.training.norms._estimators import HutchinsonEstimator as HutchinsonEstimator
from dprmt.training.norms._estimators import HutchPlusPlusEstimator as HutchPlusPlusEstimator
from dprmt.training.norms._estimators import NormEstimator as NormEstimator
from dprmt.training.norms._estimators import hutchinson_squared_norms as hutchinson_squared_norms
from dprmt.training.norms._estimators import hutchpp_squared_norms as hutchpp_squared_norms
from dprmt.training.norms._exact import exact_squared_norms as exact_squared_norms
from dprmt.training.norms._exact import ghost_squared_norms as ghost_squared_norms
from dprmt.training.norms._probes import ProbeGenerator as ProbeGenerator
from dprmt.training.norms._record import LayerRecord as LayerRecord
from dprmt.training.norms._record import NormRecord as NormRecord

__all__ = _public_names(vars())
