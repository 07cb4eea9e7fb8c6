"""Evaluation of a trained model: accuracy and F1, or BLEU, NIST, ROUGE-L, METEOR and CIDEr of generated texts."""

import dprmt.training._needs_train  # noqa: F401
from dprmt._lazy import public_names as _public_names
from dprmt.training.evaluation._generation import GenerationResult as GenerationResult
from dprmt.training.evaluation._generation import evaluate_generation as evaluate_generation
from dprmt.training.evaluation._generation import generate_texts as generate_texts
from dprmt.training.evaluation._scores import evaluate_classification as evaluate_classification
from dprmt.training.evaluation._scores import generation_loss as generation_loss
from dprmt.training.evaluation._text_metrics import text_metrics as text_metrics

__all__ = _public_names(vars())
