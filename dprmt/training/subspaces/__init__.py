"""Subspaces in which weights are trained (DP-GRAPE): projectors, ranks, periods. Linear algebra, without clipping.

A weight with gradient G (m × n, the longer side first) has a projector P (m × r) for F steps; what is clipped, noised
and given to the optimizer is PᵀG (r × n). Numbers stored per sample, T tokens:

| what                                     | per sample | moments |
|------------------------------------------|------------|---------|
| whole gradients (DP-Adam)                | m·n        | 2·m·n   |
| projected, formed (``clipping="exact"``) | r·n        | 2·r·n   |
| projected, as factors (ghost, estimates) | T·(r + n)  | 2·r·n   |
"""

import dprmt.training._needs_train  # noqa: F401
from dprmt._lazy import public_names as _public_names
from dprmt.training.subspaces._subspaces import Subspaces as Subspaces

__all__ = _public_names(vars())
