"""Evaluation of a trained model: accuracy and F1, or BLEU, NIST, ROUGE-L, METEOR and CIDEr of generated texts."""

import dprmt.training._needs_train  # noqa: F401
from dprmt._lazy import public_names as _public_names
from dprmt.training.evaluation._generation import evaluate_generation as evaluate_generation
from dprmt.training.evaluation._scores import evaluate_classification as evaluate_classification
from dprmt.training.evaluation._scores import generation_loss as generation_loss

__all__ = _public_names(vars())
