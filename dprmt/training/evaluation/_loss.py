"""Per-token loss of a language model on target texts."""

from __future__ import annotations

from typing import SupportsIndex

import torch

from dprmt.training.data import TaskData, per_sample_losses
from dprmt.training.evaluation._mode import batches, evaluating, first_samples


def generation_loss(
    model: torch.nn.Module,
    data: TaskData,
    split: str = "validation",
    *,
    batch_size: SupportsIndex = 64,
    limit: SupportsIndex | None = None,
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
    batch_size : int
        Number of items per forward pass; the result does not depend on it, up to rounding.
    limit : int or None
        Measure on this number of items, the first ones.

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
    samples = first_samples(data, "generation", split, limit)
    losses = torch.empty(len(samples))
    with evaluating(model):
        for chosen, batch in batches(model, data, samples, batch_size):
            losses[chosen] = per_sample_losses(model, batch).cpu()
    return float(losses.double().mean())
