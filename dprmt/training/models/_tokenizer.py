"""Tokenizers: of a model, or plain bytes for models that have none."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from dprmt._validation import ParameterError
from dprmt.training.models._gguf import parsed_once
from dprmt.training.models._sources import folder_or_hub_name, loading
from dprmt.training.recipes import ModelRecipe

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
    with loading(key, source, "one whose tokenizer loads"), parsed_once():
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
    if tokenizer.pad_token is None:
        spare = [token for token in _SPARE_PADS if token in tokenizer.get_vocab()]
        tokenizer.pad_token = spare[0] if spare else tokenizer.eos_token
    if tokenizer.pad_token is None:
        raise ParameterError("model.tokenizer", source, "a tokenizer with a padding or end-of-text token")
    tokenizer.padding_side = "right"
    return tokenizer
