"""Accuracy, loss and F1 of a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

import torch
from torch.nn import functional

from dprmt._validation import ParameterError, check_choice
from dprmt.training.data import TaskData, model_logits
from dprmt.training.evaluation._mode import Item, batches, evaluating, first_samples

_METRICS = ("accuracy", "f1")


def evaluate_classification(
    model: torch.nn.Module,
    data: TaskData,
    split: str = "validation",
    *,
    metrics: Sequence[str] = ("accuracy",),
    batch_size: SupportsIndex = 64,
    limit: SupportsIndex | None = None,
) -> dict[str, float]:
    r"""Measure a classifier on a split.

    Parameters
    ----------
    model : Module
        A classifier, or the Opacus module around it. Its train mode is restored.
    data : TaskData
        Data of a classification task.
    split : {"validation", "test"}
        Split to measure on.
    metrics : sequence of {"accuracy", "f1"}
        F1 of label 1, GLUE's second metric of QQP, needs two classes.
    batch_size : int
        Number of samples per forward pass. Texts of similar length share a batch. The results do not depend on the
        batch size, up to rounding.
    limit : int or None
        Measure on this number of samples, the first ones.

    Returns
    -------
    dict of float
        ``"loss"``, the mean cross-entropy in nats, always, ``"samples"``, and the metrics in [0, 1]. If the split
        has several parts, each metric also for each of them: ``"accuracy_matched"`` and
        ``"accuracy_mismatched"`` for MNLI's ``validation_matched`` and ``validation_mismatched``.

    Raises
    ------
    ParameterError
        If the split is empty or unknown, or a metric does not fit.

    Formal guarantees
    -----------------
    None for the measured samples: the results are exact functions of them. The (ε, δ) of training covers what the
    results reveal about training items, as post-processing.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from dprmt.training.data import load_data
    >>> from dprmt.training.models import load_model
    >>> from dprmt.training.recipes import DataRecipe, ModelRecipe
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> recipe = ModelRecipe("classification", architecture="bert", tokenizer="bytes", config=sizes, finetune="head")
    >>> loaded = load_model(recipe, labels=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "films.csv")
    ...     _ = file.write_text("text,label\na fine film,good\na dull film,bad\na pub,bad\n")
    ...     where = DataRecipe("files", train=[str(file)], validation=[str(file)], inputs=["text"], target="label")
    ...     data = load_data(where, loaded.tokenizer, "classification")
    >>> head = loaded.model.classifier
    >>> _, head.bias.data = torch.nn.init.zeros_(head.weight), torch.tensor([1.0, 0.0])  # always "bad"
    >>> scores = evaluate_classification(loaded.model, data, metrics=["accuracy", "f1"])
    >>> {name: round(score, 3) for name, score in scores.items()}
    {'loss': 0.647, 'samples': 3.0, 'accuracy': 0.667, 'f1': 0.0}
    """
    samples = first_samples(data, "classification", split, limit)
    classes = len(data.labels or ())
    for metric in metrics:
        check_choice("metrics", metric, _METRICS)
        if metric == "f1" and classes != 2:
            raise ParameterError("metrics", metric, f"'accuracy' for {classes} classes")
    predicted, losses = _predictions(model, data, samples, batch_size)
    labels = torch.tensor([sample["labels"] for sample in samples])
    result = {"loss": float(losses.double().mean()), "samples": float(len(samples))}
    parts = [row.part for row in getattr(data, split).rows[: len(samples)]]
    names = dict.fromkeys(parts)
    for metric in metrics:
        score = accuracy if metric == "accuracy" else f1_score
        result[metric] = score(predicted, labels)
        for name in names if len(names) > 1 else ():
            chosen = torch.tensor([part == name for part in parts])
            short = name.removeprefix("validation_").removeprefix("test_")
            result[f"{metric}_{short}"] = score(predicted[chosen], labels[chosen])
    return result


def accuracy(predicted: torch.Tensor, labels: torch.Tensor) -> float:
    """Share of the samples whose label was predicted.

    Examples
    --------
    >>> accuracy(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 2, 2]))
    0.75
    """
    return float((predicted == labels).double().mean())


def f1_score(predicted: torch.Tensor, labels: torch.Tensor) -> float:
    """Compute F1 of label 1: ``2·hits/(predicted ones + true ones)``.

    Examples
    --------
    >>> f1_score(torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 1, 1]))
    0.4
    """
    hits = int(((predicted == 1) & (labels == 1)).sum())
    total = int((predicted == 1).sum()) + int((labels == 1).sum())
    return 2 * hits / total if total else 0.0


def _predictions(
    model: torch.nn.Module, data: TaskData, samples: Sequence[Item], batch_size: SupportsIndex
) -> tuple[torch.Tensor, torch.Tensor]:
    predicted, losses = torch.empty(len(samples), dtype=torch.int64), torch.empty(len(samples))
    with evaluating(model):
        for chosen, batch in batches(model, data, samples, batch_size):
            logits = model_logits(model, batch).float()
            predicted[chosen] = logits.argmax(dim=1).cpu()
            losses[chosen] = functional.cross_entropy(logits, batch["labels"], reduction="none").cpu()
    return predicted, losses
