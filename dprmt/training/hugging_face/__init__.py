"""Transformers' own `Trainer`, with private steps: a callback that takes over how it samples, clips and steps."""

import dprmt.training._needs_train  # noqa: F401
from dprmt.training.hugging_face._callback import PrivateTraining as PrivateTraining
from dprmt.training.hugging_face._sampling import PoissonBatches as PoissonBatches

__all__ = ["PoissonBatches", "PrivateTraining"]
