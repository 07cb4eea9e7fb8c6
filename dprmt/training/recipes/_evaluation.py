"""The section of a recipe on what is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dprmt._validation import ParameterError
from dprmt.training.recipes._fields import Section, checked, count, optional, real, texts

METRICS = ("accuracy", "f1", "bleu", "nist", "rouge_1", "rouge_l", "meteor", "cider", "exact_match")


@dataclass(frozen=True)
class EvaluationRecipe(Section):
    """Measurements on the validation split, and options of text generation.

    Attributes
    ----------
    every : int or None
        Steps between evaluations; only at the end if absent.
    batch_size : int
        Number of samples per forward pass.
    limit : int or None
        Measure on this number of inputs, the first ones.
    metrics : tuple of str
        Any of accuracy, f1, bleu, nist, rouge_1, rouge_l, meteor, cider, exact_match. Empty: accuracy, or all of the
        generation metrics.
    private_noise : float or None
        Release the accuracy after the last step with Gaussian noise, whose standard deviation is this number of
        validation rows. It counts towards ε once in a run folder, and exact scores are then private. In [1e-3, 1e6],
        for a classifier whose unit of privacy is an item. If absent, exact scores are recorded.
    beams, max_new_tokens, length_penalty, no_repeat_ngram
        Options of beam search, by default as in appendix J.2 of arXiv:2510.01137v3.

    Raises
    ------
    ParameterError
        If a value is of the wrong type or outside its range, or a metric is unknown; it names ``evaluation.key``.
    """

    section = "evaluation"
    every: int | None = checked(optional(count()), None)
    batch_size: int = checked(count(), 64)
    limit: int | None = checked(optional(count()), None)
    metrics: tuple[str, ...] = checked(texts, ())
    private_noise: float | None = checked(optional(real(1e-3, 1e6)), None)
    beams: int = checked(count(), 10)
    max_new_tokens: int = checked(count(), 100)
    length_penalty: float = checked(real(-math.inf, math.inf), 0.9)
    no_repeat_ngram: int = checked(count(0), 4)

    def check_together(self) -> None:
        """Refuse metrics that do not exist."""
        for metric in self.metrics:
            if metric not in METRICS:
                raise ParameterError("evaluation.metrics", metric, "one of " + ", ".join(METRICS))
        if self.private_noise is not None and self.metrics and "accuracy" not in self.metrics:
            allowed, fix = "left out unless metrics has 'accuracy'", "add 'accuracy' to evaluation.metrics"
            raise ParameterError("evaluation.private_noise", self.private_noise, allowed, fix)
