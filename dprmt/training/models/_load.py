"""A model ready for private training, from its recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from dprmt._validation import ParameterError, check_count
from dprmt.training.models._sources import base_model, folder_or_hub_name, loading
from dprmt.training.models._trainable import make_trainable
from dprmt.training.recipes import ModelRecipe

_PAD_OFFSET = ("roberta", "xlm-roberta", "camembert")  # their positions start after the padding token's number


@dataclass(frozen=True)
class LoadedModel:
    """A model and its tokenizer.

    Attributes
    ----------
    model : Module
        In train mode, on the CPU, every dropout of the pretrained part at 0.
    tokenizer : PreTrainedTokenizerBase
        Its tokenizer.
    """

    model: torch.nn.Module
    tokenizer: Any

    @property
    def longest_input(self) -> int | None:
        """Largest number of tokens of a text, or None if the configuration has no limit."""
        config = self.model.config
        limit = getattr(config, "max_position_embeddings", None)
        return limit - config.pad_token_id - 1 if limit and config.model_type in _PAD_OFFSET else limit


def load_model(model: ModelRecipe, *, labels: int | None = None, seed: int = 0, tokenizer: Any = None) -> LoadedModel:
    """Load or build a model, add adapters, freeze what is not trained.

    Parameters
    ----------
    model : ModelRecipe
        Source of the model, and which parameters to train.
    labels : int or None
        Number of classes, >= 2, for classification; None for generation.
    seed : int
        Seed of all initial values that are not loaded. The state of the global generator is restored.
    tokenizer : PreTrainedTokenizerBase or None
        The result of `load_tokenizer`, if it has been loaded already.

    Returns
    -------
    LoadedModel
        The model, with ``requires_grad`` on what is trained, and its tokenizer.

    Raises
    ------
    ParameterError
        If something cannot be loaded, an adapter's target matches nothing, or trainable input and output embeddings
        share a parameter: their per-sample gradients would have to be added before the norm is computed.

    Notes
    -----
    The model is in train mode, because per-sample hooks record only there. Dropouts are 0. Otherwise a sample's
    gradient would depend on the order of random numbers in its micro-batch, and on being computed once or twice.

    Attention is Transformers' default, ``scaled_dot_product_attention`` where there is one. It has no parameters,
    so the hooks do not see it, and it does not mix samples.

    Examples
    --------
    In this example LoRA's adapters and the new head of a small random encoder are trained:

    >>> from dprmt.training.recipes import LoraRecipe
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> lora = LoraRecipe(rank=2, alpha=4.0, targets=("query",))
    >>> recipe = ModelRecipe("classification", architecture="bert", tokenizer="bytes", config=sizes, lora=lora)
    >>> loaded = load_model(recipe, labels=3)
    >>> sum(value.numel() for value in loaded.model.parameters() if value.requires_grad)  # 2·16 + 16·2 + 3·16 + 3
    115
    """
    if (labels is not None) != (model.task == "classification"):
        raise ParameterError("labels", labels, "given for classification only")
    if labels is not None:
        check_count("labels", labels, low=2)
    tokenizer = load_tokenizer(model) if tokenizer is None else tokenizer
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(check_count("seed", seed, low=0))
        network = make_trainable(base_model(model, tokenizer, labels), model)
    return LoadedModel(network.train(), tokenizer)


_SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
# A token of Llama-3's vocabulary that stands nowhere in its training texts.
_SPARE_PADS = ("<|finetune_right_pad_id|>",)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer of 256 bytes and four special tokens.

    It does not depend on data. A tokenizer trained on the training texts would reveal them: its vocabulary is not
    covered by the privacy of the run.

    Returns
    -------
    PreTrainedTokenizerFast
        Tokenizer with padding, start and end of text; the start is not added automatically.

    Formal guarantees
    -----------------
    It is a constant, independent of the data, and costs no privacy.

    Examples
    --------
    >>> tokenizer = byte_tokenizer()
    >>> ids = tokenizer("né")["input_ids"]
    >>> len(tokenizer), len(ids), tokenizer.decode(ids)
    (260, 3, 'né')
    """
    vocabulary = {token: i for i, token in enumerate([*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    core = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    pad, bos, eos, unknown = _SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        unk_token=unknown,
        padding_side="right",
        model_input_names=["input_ids", "attention_mask"],
    )


def load_tokenizer(model: ModelRecipe) -> Any:
    """Load the tokenizer of a model recipe.

    Parameters
    ----------
    model : ModelRecipe
        Its ``tokenizer`` is used, or else its ``source``.

    Returns
    -------
    PreTrainedTokenizerBase
        It pads on the right and has a padding token.

    Raises
    ------
    ParameterError
        If it cannot be loaded, or has no token to pad with.

    Notes
    -----
    A tokenizer without a padding token, such as GPT-2's, pads with its end of text. In generation the end of text is
    still a target, because labels and attention follow the position of the padding, not its token.

    Examples
    --------
    >>> tokenizer = load_tokenizer(ModelRecipe("generation", architecture="gpt2", tokenizer="bytes", finetune="full"))
    >>> tokenizer.padding_side, tokenizer.pad_token, len(tokenizer("a pub")["input_ids"])
    ('right', '<pad>', 5)
    >>> load_tokenizer(ModelRecipe("generation", source="./nowhere", finetune="full"))
    Traceback (most recent call last):
    ...
    dprmt._validation.ParameterError: model.source must be a folder with config.json, got './nowhere'
    """
    source = model.tokenizer or model.source or "bytes"
    if source == "bytes":
        return byte_tokenizer()
    key = "model.tokenizer" if model.tokenizer else "model.source"
    name, options = folder_or_hub_name(key, source)
    if source == model.source and model.revision:
        options["revision"] = model.revision
    with loading(key, source, "one whose tokenizer loads"):
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
    if tokenizer.pad_token is None:
        spare = [token for token in _SPARE_PADS if token in tokenizer.get_vocab()]
        tokenizer.pad_token = spare[0] if spare else tokenizer.eos_token
    if tokenizer.pad_token is None:
        raise ParameterError("model.tokenizer", source, "a tokenizer with a padding or end-of-text token")
    tokenizer.padding_side = "right"
    return tokenizer
