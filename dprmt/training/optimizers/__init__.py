"""Optimizers that know the noise in the gradients they are given, with the interface of ``torch.optim``."""

from dprmt.training.optimizers._adambc import DPAdamBC as DPAdamBC

__all__ = ["DPAdamBC"]
