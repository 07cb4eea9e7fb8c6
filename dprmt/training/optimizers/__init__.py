"""Optimizers that know the noise in the gradients they are given, with the interface of ``torch.optim``."""

import dprmt.training._needs_train  # noqa: F401
from dprmt.training.optimizers._adambc import DPAdamBC as DPAdamBC
from dprmt.training.optimizers._grape import AtRefresh as AtRefresh
from dprmt.training.optimizers._grape import DPGrape as DPGrape
from dprmt.training.optimizers._grape import Rule as Rule
from dprmt.training.optimizers._names import make_optimizer as make_optimizer
from dprmt.training.optimizers._preconditioner import preconditioner as preconditioner

__all__ = ["AtRefresh", "DPAdamBC", "DPGrape", "Rule", "make_optimizer", "preconditioner"]
