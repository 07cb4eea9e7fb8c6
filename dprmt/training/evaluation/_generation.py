"""Texts by beam search, and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import GenerationConfig

from dprmt.training.data import TaskData
from dprmt.training.data._losses import evaluating
from dprmt.training.data._task_data import prompt_ids
from dprmt.training.evaluation._scores import DEFAULTS, first_rows
from dprmt.training.evaluation._text_metrics import text_metrics
from dprmt.training.recipes import EvaluationRecipe


@dataclass(frozen=True)
class GenerationResult:
    """Generated texts and what they score.

    Attributes
    ----------
    scores : dict of float
        As in `text_metrics`.
    skipped : dict of str
        Reason by metric, for those that cannot be computed here.
    inputs, hypotheses : tuple of str
        Different inputs in the order of the split, and the text for each of them.
    references : tuple of tuple of str
        All the references of each input.
    """

    scores: dict[str, float]
    skipped: dict[str, str]
    inputs: tuple[str, ...] = field(repr=False)
    hypotheses: tuple[str, ...] = field(repr=False)
    references: tuple[tuple[str, ...], ...] = field(repr=False)


def evaluate_generation(
    model: torch.nn.Module, tokenizer: Any, data: TaskData, split: str = "test", settings: EvaluationRecipe = DEFAULTS
) -> GenerationResult:
    r"""Generate one text for every different input of a split, and score it against all its references.

    Parameters
    ----------
    model : Module
        A causal language model, or the Opacus module around it. Its train mode is restored.
    tokenizer : PreTrainedTokenizerBase
        The model's.
    data : TaskData
        Data of a generation task.
    split : {"validation", "test"}
        Split to measure on.
    settings : EvaluationRecipe
        Beam search, batch size, limit and metrics. The default is the setting of appendix J.2 of arXiv:2510.01137v3,
        with all metrics.

    Returns
    -------
    GenerationResult
        Scores, the reason for each score that is missing, and the texts.

    Raises
    ------
    ParameterError
        If the split is empty or unknown, or a metric is not for text.

    Formal guarantees
    -----------------
    As for `evaluate_classification`.

    Examples
    --------
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
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "e2e.csv")
    ...     _ = file.write_text("mr,ref\nname[Aromi],Aromi is a pub.\nname[Aromi],A pub.\nname[Zizzi],Zizzi.\n")
    ...     where = DataRecipe("files", train=[str(file)], validation=[str(file)], inputs=["mr"], target="ref")
    ...     data = load_data(where, loaded.tokenizer, "generation")
    >>> settings = EvaluationRecipe(beams=2, max_new_tokens=4, limit=1, metrics=("bleu",))
    >>> result = evaluate_generation(loaded.model, loaded.tokenizer, data, "validation", settings=settings)
    >>> result.inputs, result.references
    (('name[Aromi]',), (('Aromi is a pub.', 'A pub.'),))
    >>> len(result.hypotheses), list(result.scores), result.skipped
    (1, ['bleu'], {})
    """
    grouped: dict[str, list[str]] = {}
    for row in first_rows(data, "generation", split, None):
        grouped.setdefault(row.inputs[0], []).append(row.target)
    inputs = tuple(grouped)[: settings.limit]
    prompts = [prompt_ids(text, tokenizer)[: data.max_tokens] for text in inputs]
    hypotheses = tuple(generate_texts(model, tokenizer, prompts, settings))
    references = tuple(tuple(grouped[text]) for text in inputs)
    scores, skipped = text_metrics(hypotheses, references, settings.metrics)
    return GenerationResult(scores, skipped, inputs, hypotheses, references)


def generate_texts(
    model: torch.nn.Module, tokenizer: Any, prompts: Sequence[Sequence[int]], settings: EvaluationRecipe
) -> list[str]:
    """Generate a text after each prompt.

    Parameters
    ----------
    model : Module
        A causal language model, or the Opacus module around it.
    tokenizer : PreTrainedTokenizerBase
        The model's.
    prompts : sequence of sequences of int
        Token ids.
    settings : EvaluationRecipe
        Beam search and batch size.

    Returns
    -------
    list of str
        Texts without special tokens and without white space at their ends.

    Examples
    --------
    >>> from dprmt.training.models import load_model
    >>> from dprmt.training.recipes import ModelRecipe
    >>> sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 64}
    >>> recipe = ModelRecipe(
    ...     "generation", architecture="gpt2", tokenizer="bytes", config=sizes, finetune="full", untie=True
    ... )
    >>> loaded = load_model(recipe)
    >>> with torch.no_grad():
    ...     for parameter in loaded.model.parameters():
    ...         _ = parameter.zero_()
    ...     _ = loaded.model.transformer.ln_f.bias.fill_(1.0)
    ...     _ = loaded.model.lm_head.weight[loaded.tokenizer.convert_tokens_to_ids("!")].fill_(1.0)
    >>> prompts = [loaded.tokenizer(text)["input_ids"] for text in ("a pub", "b")]
    >>> generate_texts(loaded.model, loaded.tokenizer, prompts, EvaluationRecipe(max_new_tokens=3, beams=1))
    ['!!!', '!!!']
    """
    network: Any = next(module for module in model.modules() if hasattr(module, "generate"))
    device = next(model.parameters()).device
    search: dict[str, float] = {"num_beams": settings.beams, "no_repeat_ngram_size": settings.no_repeat_ngram}
    if settings.beams > 1:
        search["length_penalty"] = settings.length_penalty
    config = GenerationConfig(
        max_new_tokens=settings.max_new_tokens,
        do_sample=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **search,
    )
    texts = []
    with evaluating(model):
        for start in range(0, len(prompts), settings.batch_size):
            chosen = [list(prompt) for prompt in prompts[start : start + settings.batch_size]]
            # On the left, so that what is generated follows the prompt.
            batch = tokenizer.pad({"input_ids": chosen}, padding_side="left", return_tensors="pt").to(device)
            output = network.generate(**batch, generation_config=config)
            texts += tokenizer.batch_decode(output[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    return [text.strip() for text in texts]
