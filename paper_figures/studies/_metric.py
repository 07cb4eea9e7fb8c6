"""Scores that runs are compared by: which a recipe gives, which way is better, how they are shown."""

from __future__ import annotations

from dataclasses import dataclass

from dprmt._validation import ParameterError
from dprmt.training.recipes import Recipe

_SHARES = ("accuracy", "f1", "rouge_1", "rouge_l", "meteor", "exact_match")
_TEXT = ("bleu", "nist", "rouge_1", "rouge_l", "meteor", "cider", "exact_match")


@dataclass(frozen=True)
class Metric:
    """A score by its name in ``metrics.jsonl``.

    Attributes
    ----------
    name : str
        Such as "accuracy", "loss" or "rouge_l".
    """

    name: str

    @property
    def larger_is_better(self) -> bool:
        """False for a loss."""
        return self.name != "loss"

    @property
    def factor(self) -> float:
        """From the stored number to the one that is shown: shares are shown in per cent."""
        return 100.0 if self.name in _SHARES else 1.0

    @property
    def unit(self) -> str:
        """Of the shown number."""
        return "%" if self.name in _SHARES else "nats" if self.name == "loss" else ""

    def shown(self, mean: float, spread: float) -> str:
        """As text, such as "62.1 ± 0.7 %"."""
        digits = 1 if self.factor == 100 else 3
        numbers = f"{self.factor * mean:5.{digits}f} ± {self.factor * spread:.{digits}f}"
        return f"{numbers} {self.unit}".rstrip()

    @property
    def label(self) -> str:
        """For an axis."""
        return f"{self.name}, {self.unit}" if self.unit else self.name


ACCURACY = Metric("accuracy")


def metric_of(recipe: Recipe, wanted: str | None = None) -> Metric:
    """The score to compare runs of a recipe by, before anything is trained.

    Parameters
    ----------
    recipe : Recipe
        What will be trained.
    wanted : str, optional
        One of the scores that its evaluation gives; the first of them by default.

    Returns
    -------
    Metric
        That one.

    Raises
    ------
    ParameterError
        If the recipe's evaluation does not give it.

    Examples
    --------
    >>> from dprmt.training.recipes import load_recipe
    >>> metric_of(load_recipe("minilm-docstrings")).name, metric_of(load_recipe("smollm2-docstrings"), "rouge_l").unit
    ('accuracy', '%')
    >>> metric_of(load_recipe("smollm2-docstrings"), "accuracy")
    Traceback (most recent call last):
    ...
    dprmt._validation.ParameterError: metric must be one of 'bleu', 'rouge_l', which smollm2-docstrings gives, ...
    """
    if recipe.model.task == "generation":
        given = recipe.evaluation.metrics or _TEXT
    else:
        given = (*(recipe.evaluation.metrics or ("accuracy",)), "loss")
    if wanted is not None and wanted not in given:
        names = ", ".join(map(repr, given))
        raise ParameterError("metric", wanted, f"one of {names}, which {recipe.name} gives")
    return Metric(wanted or given[0])
