"""Optimizers that know the noise in the gradients they are given, with the interface of ``torch.optim``."""

import dprmt.training._needs_train  # noqa: F401
from dprmt._lazy import public_names as _public_names
from dprmt.training.optimizers._adambc import DPAdamBC as DPAdamBC
from dprmt.training.optimizers._grape import DPGrape as DPGrape
from dprmt.training.optimizers._grape import released_gradient as released_gradient

__all__ = _public_names(vars())
