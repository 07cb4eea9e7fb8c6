"""One loss per sample, each with its own graph."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature

import torch
from torch.nn import functional

from dprmt.training.data._task_data import IGNORED

_NOT_INPUTS = ("labels", "sample_id")
# These number the positions themselves, from the tokens that are not padding.
_OWN_POSITIONS = ("roberta", "xlm-roberta", "camembert")


def per_sample_losses(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The loss of every sample of a batch.

    Parameters
    ----------
    model : Module
        A Transformers or PEFT model, or the Opacus module around it.
    batch : mapping of Tensor
        What `TaskData.collate` returns, on the model's device.

    Returns
    -------
    Tensor, shape (B,)
        float32, differentiable. Classification: cross-entropy. Generation: the mean cross-entropy over the
        sample's own target tokens. No sample's loss depends on another's.

    Notes
    -----
    Positions are passed as (B, T). Left to themselves, models with learned positions look them up once for the
    whole batch, and a row that is shared by all samples has no per-sample gradient.

    Examples
    --------
    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> config = BertConfig(
    ...     vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=3
    ... )
    >>> model = BertForSequenceClassification(config)
    >>> _ = torch.nn.init.zeros_(model.classifier.weight)
    >>> ids = torch.tensor([[7, 8, 9], [7, 8, 0]])
    >>> batch = {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([0, 2])}
    >>> per_sample_losses(model, batch).detach()  # all classes alike: log 3 each
    tensor([1.0986, 1.0986])
    """
    labels = batch["labels"]
    if labels.ndim == 1:
        return functional.cross_entropy(model_logits(model, batch).float(), labels, reduction="none")
    # The token after each. Words are the last axis: over another one torch adds them up one by one, which costs 1e-4.
    targets = functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    if _has_fixed_head(model):
        # Counted out, not found by `nonzero`, which to the step may choose samples; and a copy: slices multiply slowly.
        first, length = int((targets != IGNORED).any(dim=0).int().argmax()), targets.shape[1]
        kept = torch.arange(first, length, device=targets.device)
        targets, batch = targets[:, first:], {**batch, "logits_to_keep": kept}
    losses = functional.cross_entropy(
        model_logits(model, batch).flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return losses.view_as(targets).sum(dim=1) / (targets != IGNORED).sum(dim=1)


def _has_fixed_head(model: torch.nn.Module) -> bool:
    """Whether the model can leave out logits of the prompt that all samples have, and no trained layer misses them."""
    for module in model.modules():
        if "logits_to_keep" in signature(module.forward).parameters:
            head = module.get_output_embeddings()
            return head is not None and not any(value.requires_grad for value in head.parameters())
    return False


def model_logits(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The model's logits on a batch.

    Parameters
    ----------
    model : Module
        Of Transformers, with or without hooks.
    batch : mapping of str to Tensor
        As `TaskData.collate` returns it.

    Returns
    -------
    Tensor
        Shape (B, labels), or (B, T, vocabulary).

    Examples
    --------
    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    >>> model = BertForSequenceClassification(BertConfig(vocab_size=9, num_labels=3, **sizes))
    >>> model_logits(model, {"input_ids": torch.tensor([[1, 2, 3]]), "labels": torch.tensor([0])}).shape
    torch.Size([1, 3])
    """
    inputs = {key: value for key, value in batch.items() if key not in _NOT_INPUTS}
    # The Opacus module does not pass on attributes.
    config = next(module.config for module in model.modules() if hasattr(module, "config"))
    if config.model_type not in _OWN_POSITIONS:
        ids = inputs["input_ids"]
        inputs["position_ids"] = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
    return model(**inputs).logits
