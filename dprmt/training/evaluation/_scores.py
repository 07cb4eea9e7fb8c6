"""Accuracy, F1 and losses of a model on a split, in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from dprmt._validation import ParameterError, check_choice
from dprmt.training.data import TaskData, model_logits, per_sample_losses
from dprmt.training.data._losses import evaluating
from dprmt.training.data._rows import Row
from dprmt.training.recipes import EvaluationRecipe

Item: TypeAlias = dict[str, Any]
DEFAULTS = EvaluationRecipe()


def evaluate_classification(
    model: torch.nn.Module, data: TaskData, split: str = "validation", *, settings: EvaluationRecipe = DEFAULTS
) -> dict[str, float]:
    r"""Measure a classifier on a split.

    Parameters
    ----------
    model : Module
        A Transformers classifier, or the Opacus module around it. Its train mode is restored.
    data : TaskData
        Data of a classification task.
    split : {"validation", "test"}
        Split to measure on.
    settings : EvaluationRecipe
        Batch size, which does not change the results up to rounding, limit, and metrics: accuracy by default, and "f1"
        of label 1, GLUE's second metric of QQP, which needs two classes.

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
    >>> from dprmt.training.recipes import DataRecipe, EvaluationRecipe, ModelRecipe
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
    >>> scores = evaluate_classification(loaded.model, data, settings=EvaluationRecipe(metrics=("accuracy", "f1")))
    >>> {name: round(score, 3) for name, score in scores.items()}
    {'loss': 0.647, 'samples': 3.0, 'accuracy': 0.667, 'f1': 0.0}
    """
    rows, metrics = first_rows(data, "classification", split, settings.limit), settings.metrics or ("accuracy",)
    known = ("accuracy", "f1") if len(data.labels or ()) == 2 else ("accuracy",)
    for metric in metrics:
        check_choice("metrics", metric, known)

    def measured(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        logits = model_logits(model, batch).float()
        losses = functional.cross_entropy(logits, batch["labels"], reduction="none")
        return torch.stack([logits.argmax(dim=1), losses], dim=1)

    samples = getattr(data, split)[: len(rows)]
    predicted, losses = _measured(model, data, samples, settings.batch_size, measured).unbind(1)
    labels = torch.tensor([sample["labels"] for sample in samples])
    result = {"loss": float(losses.mean()), "samples": float(len(samples))}
    parts = [row.part for row in rows]
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


def generation_loss(
    model: torch.nn.Module, data: TaskData, split: str = "validation", *, settings: EvaluationRecipe = DEFAULTS
) -> float:
    r"""Compute the mean cross-entropy per target token over items, in nats.

    Parameters
    ----------
    model : Module
        A causal language model, or the Opacus module around it. Its train mode is restored.
    data : TaskData
        Data of a generation task.
    split : {"validation", "test"}
        Split to measure on.
    settings : EvaluationRecipe
        Batch size, which does not change the result up to rounding, and limit.

    Returns
    -------
    float
        >= 0; the training loss of an item is the same.

    Raises
    ------
    ParameterError
        If the split is empty or unknown, or the task is another.

    Formal guarantees
    -----------------
    As for `evaluate_classification`.

    Examples
    --------
    In this example the model gives all tokens the same probability:

    >>> import tempfile
    >>> from pathlib import Path
    >>> from dprmt.training.data import load_data
    >>> from dprmt.training.models import load_model
    >>> from dprmt.training.recipes import DataRecipe, ModelRecipe
    >>> sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 64}
    >>> recipe = ModelRecipe(
    ...     "generation", architecture="gpt2", tokenizer="bytes", config=sizes, finetune="full", untie=True
    ... )
    >>> loaded = load_model(recipe)
    >>> _ = torch.nn.init.zeros_(loaded.model.lm_head.weight)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "e2e.csv")
    ...     _ = file.write_text("mr,ref\nname[Aromi],Aromi is a pub.\nname[Zizzi],Zizzi.\n")
    ...     where = DataRecipe("files", train=[str(file)], validation=[str(file)], inputs=["mr"], target="ref")
    ...     data = load_data(where, loaded.tokenizer, "generation")
    >>> round(generation_loss(loaded.model, data), 4), round(torch.log(torch.tensor(260.0)).item(), 4)
    (5.5607, 5.5607)
    """
    samples = getattr(data, split)[: len(first_rows(data, "generation", split, settings.limit))]
    losses = _measured(model, data, samples, settings.batch_size, lambda batch: per_sample_losses(model, batch))
    return float(losses.mean())


def first_rows(data: TaskData, task: str, split: str, limit: int | None) -> list[Row]:
    """Return the first rows of a split, all without a limit; raise an error if there is none, or the data are of
    another task.
    """
    check_choice("split", split, ("validation", "test"))
    if data.task != task:
        raise ParameterError("data.task", data.task, repr(task))
    rows: list[Row] = getattr(data, split).rows
    if not rows:
        raise ParameterError("split", split, "a split with samples")
    return rows[:limit]


def _measured(
    model: torch.nn.Module,
    data: TaskData,
    samples: Sequence[Item],
    size: int,
    measure: Callable[[dict[str, torch.Tensor]], torch.Tensor],
) -> torch.Tensor:
    """Measure all samples in float64, those of similar length together, in the order of the samples."""
    device = next(model.parameters()).device
    order = sorted(range(len(samples)), key=lambda position: len(samples[position]["input_ids"]))
    found = []
    with evaluating(model):
        for start in range(0, len(order), size):
            batch = data.collate([samples[position] for position in order[start : start + size]])
            found.append(measure({key: value.to(device) for key, value in batch.items()}).double().cpu())
    return torch.cat(found)[torch.tensor(order).argsort()]
