"""One loss per sample, each with its own graph: what the model's own loss is for a batch of that sample alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import Any

import torch
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto

from dprmt._validation import ParameterError, check_real
from dprmt.training.data._task_data import IGNORED

_TARGETS = ("labels", "start_positions", "end_positions")
_NOT_INPUTS = (*_TARGETS, "num_items_in_batch")
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}  # relative, of a loss; of 16 bits the next


def per_sample_losses(
    model: torch.nn.Module, batch: Mapping[str, torch.Tensor], *, label_smoothing: float = 0.0
) -> torch.Tensor:
    """Compute the loss of every sample of a batch, as the model's own head defines it.

    The loss of a sample is what ``model(**batch).loss`` would be for a batch of this sample alone: the mean over its
    own labelled tokens, or its own classes, or its own start and end. No sample's loss depends on another's.

    Parameters
    ----------
    model : Module
        A Transformers or PEFT model, or the Opacus module around it, with a head for sequence, image, audio, or video
        classification (one label, several labels, or regression), token classification, question answering, masked or
        causal language modelling, or sequence to sequence.
    batch : mapping of Tensor
        Inputs and labels on the model's device. Labels of -100 do not count.
    label_smoothing : float
        In [0, 1): share of the label that all classes get, as in ``TrainingArguments.label_smoothing_factor``.

    Returns
    -------
    Tensor, shape (B,)
        float32 or float64, differentiable. A sample without a labelled token has loss 0.

    Raises
    ------
    ParameterError
        If the model has another head, whose loss has no definition per sample here.

    See Also
    --------
    check_own_loss : for comparing these losses with the model's own before training.

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
    head = head_of(model)
    smoothing = check_real("label_smoothing", label_smoothing, low=0.0, high=1.0, high_open=True)
    if missing := [name for name in head.targets if name not in batch]:
        raise ParameterError("batch", sorted(batch), f"one with {' and '.join(missing)} for a {head.name} head")
    return head.losses(model, batch, smoothing)


def model_logits(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Run the model on a batch without its labels.

    Parameters
    ----------
    model : Module
        A Transformers model, with or without hooks.
    batch : mapping of str to Tensor
        As `TaskData.collate` returns it. The model gets all of it except for labels, and nothing
        else: positions are those that the model computes.

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
    return _output(model, batch).logits


def check_own_loss(model: torch.nn.Module, sample: Mapping[str, torch.Tensor]) -> None:
    """Raise an error unless the loss of one sample is what the model returns as its own loss.

    Run it once before training, where the model's own loss is what you mean to train on.

    Parameters
    ----------
    model : Module
        A Transformers or PEFT model.
    sample : mapping of Tensor
        A batch of one sample, with its labels, as the model takes it.

    Raises
    ------
    ParameterError
        If the two differ by more than rounding, for example because the head adds a loss over the batch.

    Examples
    --------
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=8))
    >>> ids = torch.tensor([[1, 2, 3]])
    >>> check_own_loss(model, {"input_ids": ids, "labels": ids})
    """
    sample = _without_padding(sample)
    with evaluating(model):  # without dropout: two forward passes are compared
        found = per_sample_losses(model, sample)
        own = model(**sample).loss
    kind = type(_transformers_model(model)).__name__
    if found.numel() != 1:
        allowed = "of one sample: collate_fn makes one row of every row of the data set"
        raise ParameterError("sample", f"{found.numel()} rows", allowed)
    if own is None:
        raise ParameterError("model", kind, "one that returns a loss for a batch with labels, or give losses=")
    tolerance = _TOLERANCE.get(next(model.parameters()).dtype, 0.05)
    own, one = own.detach().double().reshape(()), found.detach().double().reshape(())
    if bool(own.isfinite()) and bool((own - one).abs() > tolerance * (own.abs() + 1)):
        allowed = "a model whose own loss is that of its head, sample by sample, or give losses= of each sample"
        raise ParameterError("model", kind, allowed)


def _without_padding(sample: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Restrict to real tokens, for models whose loss counts only these."""
    mask, labels = sample.get("attention_mask"), sample.get("labels")
    if mask is None or mask.ndim != 2 or (labels is not None and labels.ndim == 2 and labels.shape != mask.shape):
        return dict(sample)
    kept = mask.any(dim=0).nonzero().flatten()
    first, last = (int(kept[0]), int(kept[-1]) + 1) if len(kept) else (0, mask.shape[1])
    cut = {key: value[:, first:last] if value.shape == mask.shape else value for key, value in sample.items()}
    return cut | {key: sample[key] - first for key in _TARGETS[1:] if key in sample}


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Switch to evaluation mode without gradients, and restore every module's mode afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@dataclass(frozen=True)
class Head:
    """Head of a model: the losses of a batch, Transformers' tables of its classes, and the names of its labels."""

    name: str
    losses: Callable[[torch.nn.Module, Mapping[str, torch.Tensor], float], torch.Tensor]
    tables: tuple[str, ...]
    targets: tuple[str, ...] = ("labels",)


def head_of(model: torch.nn.Module) -> Head:
    """Return the head of a model by its class, or raise an error with the name of the class.

    Returns
    -------
    Head
        Head of the outermost Transformers model in it, or of a module whose class has an attribute ``head``.

    Raises
    ------
    ParameterError
        If no loss per sample is known for it.
    """
    network, heads = _transformers_model(model), _heads()
    names = [*(kind.__name__ for kind in type(network).__mro__), getattr(type(network), "head", "")]
    found = next((heads[name] for name in names if name in heads), None)
    if found is None:
        known = ", ".join(head.name for head in _HEADS)
        allowed = f"one with a head for {known}; or give the loss of each sample as losses="
        raise ParameterError("model", type(network).__name__, allowed)
    if getattr(getattr(network, "config", None), "output_router_logits", False):  # counts experts in the whole batch
        allowed = f"False: the loss that {type(network).__name__} adds for it is one of the batch"
        raise ParameterError("model.config.output_router_logits", True, allowed)
    return found


def _transformers_model(model: torch.nn.Module) -> torch.nn.Module:
    """Return the outermost model of Transformers, or module whose class names its head: adapters and hooks around it
    do not pass on attributes.
    """
    for module in model.modules():
        if isinstance(module, PreTrainedModel) or isinstance(getattr(type(module), "head", None), str):
            return module
    allowed = "a model of Transformers; or give the loss of each sample as losses="
    raise ParameterError("model", type(model).__name__, allowed)


def _output(model: torch.nn.Module, batch: Mapping[str, torch.Tensor], **more: Any) -> Any:
    if "use_cache" in signature(_transformers_model(model).forward).parameters:
        more["use_cache"] = False  # no cache of keys and values is needed
    return model(**{key: value for key, value in batch.items() if key not in _NOT_INPUTS}, **more)


def _whole_losses(model: torch.nn.Module, batch: Mapping[str, torch.Tensor], smoothing: float) -> torch.Tensor:
    """Compute losses for one label, several labels or numbers per sample."""
    labels, config = batch["labels"], _transformers_model(model).config
    logits = _raised(model_logits(model, batch))
    kind = getattr(config, "problem_type", None)
    if kind is None:
        several = labels.is_floating_point() or labels.dtype == torch.bool
        kind = "multi_label_classification" if several else "single_label_classification"
        kind = "regression" if logits.shape[-1] == 1 else kind
    if kind == "regression":
        return (logits - labels.to(logits).view_as(logits)).square().mean(dim=1)
    if kind == "multi_label_classification":
        losses = functional.binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="none")
        return losses.mean(dim=1)
    return functional.cross_entropy(
        logits, labels.view(-1), reduction="none", ignore_index=IGNORED, label_smoothing=smoothing
    )


def _token_losses(model: torch.nn.Module, batch: Mapping[str, torch.Tensor], smoothing: float) -> torch.Tensor:
    return _mean_over_tokens(model_logits(model, batch), batch["labels"], smoothing)


def _next_token_losses(model: torch.nn.Module, batch: Mapping[str, torch.Tensor], smoothing: float) -> torch.Tensor:
    labels, mask = batch["labels"], batch.get("attention_mask")
    targets = functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    if mask is not None and mask.shape == targets.shape:
        targets = targets.masked_fill(mask == 0, IGNORED)  # a token that padding comes before is not predicted by it
    if _has_fixed_head(model):
        # Counted out, not found by `nonzero`, which to the step may choose samples; and a copy: slices multiply slowly.
        first, length = int((targets != IGNORED).any(dim=0).int().argmax()), targets.shape[1]
        kept = torch.arange(first, length, device=targets.device)
        targets, batch = targets[:, first:], {**batch, "logits_to_keep": kept}
    return _mean_over_tokens(model_logits(model, batch), targets, smoothing)


def _decoded_losses(model: torch.nn.Module, batch: Mapping[str, torch.Tensor], smoothing: float) -> torch.Tensor:
    """Set the decoder's inputs by the model's shift of the labels, unless the batch has them."""
    labels, more = batch["labels"], {}
    if not any(name in batch for name in ("decoder_input_ids", "decoder_inputs_embeds")):
        shift = getattr(_transformers_model(model), "prepare_decoder_input_ids_from_labels", None)
        # Without such a method the model shifts in its forward pass, and computes an unused loss.
        more = {"labels": labels} if shift is None else {"decoder_input_ids": shift(labels)}
    return _mean_over_tokens(_output(model, batch, **more).logits, labels, smoothing)


def _span_losses(model: torch.nn.Module, batch: Mapping[str, torch.Tensor], smoothing: float) -> torch.Tensor:
    """Compute losses of the first and the last token of an answer; padding is no candidate, so other samples' lengths
    do not count.
    """
    output, mask = _output(model, batch), batch.get("attention_mask")
    total = torch.zeros((), device=output.start_logits.device)
    for name in ("start", "end"):
        logits, places = _raised(output[f"{name}_logits"]), batch[f"{name}_positions"].reshape(-1).clamp(min=0)
        outside = places >= logits.shape[1]
        if mask is not None and mask.shape == logits.shape:
            logits = logits.masked_fill(mask == 0, torch.finfo(logits.dtype).min)
            outside = outside | (mask.gather(1, places.clamp(max=logits.shape[1] - 1)[:, None])[:, 0] == 0)
        total = total + functional.cross_entropy(
            logits,
            places.masked_fill(outside, IGNORED),
            ignore_index=IGNORED,
            reduction="none",
            label_smoothing=smoothing,
        )
    return total / 2


_WHOLE = ("SEQUENCE_CLASSIFICATION", "IMAGE_CLASSIFICATION", "AUDIO_CLASSIFICATION", "VIDEO_CLASSIFICATION")
_HEADS = (  # a class in several tables belongs to the first
    Head("sequence-to-sequence", _decoded_losses, ("SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ")),
    Head("classification", _whole_losses, _WHOLE),
    Head("token classification", _token_losses, ("TOKEN_CLASSIFICATION",)),
    Head("causal language modelling", _next_token_losses, ("CAUSAL_LM",)),
    Head("masked language modelling", _token_losses, ("MASKED_LM",)),
    Head("question answering", _span_losses, ("QUESTION_ANSWERING",), ("start_positions", "end_positions")),
)


@cache
def _heads() -> dict[str, Head]:
    """Map names of heads, and of Transformers' classes, to heads."""
    found = {head.name: head for head in _HEADS}
    for head in _HEADS:
        for table in head.tables:
            for kinds in getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES").values():
                for kind in (kinds,) if isinstance(kinds, str) else kinds:
                    found.setdefault(kind, head)
    return found


def _mean_over_tokens(logits: torch.Tensor, targets: torch.Tensor, smoothing: float) -> torch.Tensor:
    """Average over each sample's labelled tokens.

    Tokens are the last axis, because torch adds one by one over other axes, which costs 1e-4.
    """
    losses = functional.cross_entropy(
        _raised(logits).flatten(0, 1),
        targets.flatten(),
        ignore_index=IGNORED,
        reduction="none",
        label_smoothing=smoothing,
    )
    return losses.view_as(targets).sum(dim=1) / (targets != IGNORED).sum(dim=1).clamp(min=1)


def _raised(logits: torch.Tensor) -> torch.Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _has_fixed_head(model: torch.nn.Module) -> bool:
    """Return whether the model can leave out logits of the prompt that all samples have, and no trained layer misses
    them.
    """
    for module in model.modules():
        if "logits_to_keep" in signature(module.forward).parameters:
            head = module.get_output_embeddings()
            return head is not None and not any(value.requires_grad for value in head.parameters())
    return False
