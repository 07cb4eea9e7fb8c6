r"""Next-token prediction with GPT-2-style models, with metrics by token frequency (appendix B).

`text_data` and `e2e_data` are tasks for `studies.train_privately`. `HeadData` trains the output head alone, with
per-sample gradients in closed form: a sequence with hidden states h_t, residuals r_t = p_t - y_t and weights w_t has
the gradient ``Σ_t w_t r_t h_tᵀ`` in the head. Its squared norm needs inner products of tokens only
(`dprmt.training.norms.ghost_squared_norms`), and the sum of clipped gradients is one matrix product over all tokens.
The per-sample gradients would take B·V·h numbers: 154 MB for one sequence at GPT-2's size.
"""

from __future__ import annotations

import csv
import itertools
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dprmt._validation import ParameterError, check_count
from dprmt.training.data._rows import read_rows
from dprmt.training.norms import clip_factors, ghost_squared_norms
from dprmt.training.recipes import DataRecipe
from paper_figures.studies import ClosedFormTask, GroupTask, Measured, frequency_groups

Encode = Callable[[str], list[int]]
UNKNOWN, END = 0, "<|endoftext|>"
_WORDS = re.compile(r"\w+|[^\w\s]")
_POWERS = (100_000, 10_000, 1_000, 100, 10, 0)


# -------------------------------------------------------------------------------------------------------- sequences


@dataclass(frozen=True)
class TokenData(GroupTask):
    """Sequences of equal length; a task for `studies.train_privately`, one sample per sequence.

    Attributes
    ----------
    ids : Tensor of int64, shape (n, T)
        Token numbers.
    counted : Tensor of bool, shape (n, T)
        Which tokens are to be predicted from those before; never the first of a sequence, never padding.
    token_groups : Tensor of int64, shape (V,)
        Frequency group of every token, 0 for the most frequent.
    group_names : tuple of str
        Such as "100 to 999 times".
    """

    ids: torch.Tensor
    counted: torch.Tensor
    token_groups: torch.Tensor
    group_names: tuple[str, ...]

    @property
    def size(self) -> int:  # type: ignore[override]  # what is an attribute may be computed
        """Number of sequences."""
        return len(self.ids)

    @property
    def vocabulary(self) -> int:
        """Number of different tokens, V."""
        return len(self.token_groups)

    def measure(self, model: torch.nn.Module, indices: torch.Tensor) -> Measured:
        """Cross entropy of the counted tokens, in nats; a sequence's loss is their mean."""
        ids, counted = self.ids[indices], self.counted[indices, 1:]
        logits = model(input_ids=ids).logits[:, :-1]
        return _measured_tokens(logits, ids[:, 1:], counted, self.token_groups)


def _measured_tokens(
    logits: torch.Tensor, targets: torch.Tensor, counted: torch.Tensor, token_groups: torch.Tensor
) -> Measured:
    # A sequence without counted tokens has loss 0.
    flat = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    losses = flat.view(targets.shape)  # classes last is twice as fast
    weights = counted / counted.sum(1, keepdim=True).clamp_min(1)
    return Measured(
        (losses * weights).sum(1),
        losses[counted],
        (logits.argmax(2) == targets)[counted],
        token_groups[targets[counted]],
    )


def word_vocabulary(text: str, size: int) -> dict[str, int]:
    """Number the ``size - 1`` most frequent words and signs of a text from 1; 0 is left for all others.

    Ties are in alphabetical order. A vocabulary that is counted on private text reveals what is in it.

    Examples
    --------
    >>> word_vocabulary("the cat, the dog", 3)
    {'the': 1, ',': 2}
    """
    counts = Counter(_WORDS.findall(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(ranked[: size - 1], start=1)}


def word_encoder(vocabulary: Mapping[str, int]) -> Encode:
    """Return the function from text to token numbers of a vocabulary; unknown words become 0.

    Examples
    --------
    >>> word_encoder({"the": 1, ",": 2})("the cat, the dog")
    [1, 0, 2, 1, 0]
    """
    return lambda text: [vocabulary.get(word, UNKNOWN) for word in _WORDS.findall(text)]


def encoder(tokenizer: Any) -> Encode:
    """Return the function from text to token numbers of a tokenizer, without special tokens."""
    return lambda text: list(tokenizer(text, add_special_tokens=False)["input_ids"])


def text_data(ids: Sequence[int], length: int, vocabulary: int, *, lowest: Sequence[int] = _POWERS) -> TokenData:
    """Cut a text in tokens into sequences of T >= 2; a rest is left out, and all but the first of each count.

    ``lowest`` has the smallest token count of every frequency group, decreasing to 0.

    Examples
    --------
    >>> data = text_data([1, 2, 1, 1, 0, 1, 2], length=3, vocabulary=3, lowest=[2, 0])
    >>> data.ids.tolist(), data.token_groups.tolist(), data.group_names
    ([[1, 2, 1], [1, 0, 1]], [1, 0, 1], ('2 times or more', '0 to 1 times'))
    """
    kept = len(ids) - len(ids) % check_count("length", length, low=2)
    if not kept:
        raise ParameterError("ids", len(ids), f"at least {length} tokens; their number")
    table = torch.tensor(ids[:kept]).reshape(-1, length)
    counted = torch.ones_like(table, dtype=torch.bool)
    counted[:, 0] = False
    return _grouped(table, counted, vocabulary, lowest)


def e2e_data(
    path: str | Path,
    encode: Encode,
    vocabulary: int,
    *,
    length: int = 96,
    end: int = UNKNOWN,
    rows: int | None = None,
    lowest: Sequence[int] = _POWERS,
) -> TokenData:
    r"""The E2E set: every row's meaning, a separator and its reference; only the reference is to be predicted.

    Parameters
    ----------
    path : str or Path
        A csv file with the columns mr and ref.
    encode : callable
        From text to token numbers.
    vocabulary : int
        V.
    length : int
        T; longer rows are cut, shorter ones padded with ``end``.
    end : int
        The token at the end of a reference, which is to be predicted as well.
    rows : int, optional
        Take the first ones only.
    lowest : sequence of int
        As in `text_data`; counts are of the tokens to be predicted.

    Raises
    ------
    ParameterError
        If the columns are not there, the file has no rows, or a token number is out of range.

    Examples
    --------
    >>> import tempfile
    >>> encode = word_encoder({"name": 1, "[": 2, "]": 3, "Aromi": 4, "a": 5, "pub": 6})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "e2e.csv")
    ...     _ = file.write_text("mr,ref\nname[Aromi],Aromi a pub\n")
    ...     data = e2e_data(file, encode, 7, length=12, lowest=[1, 0])
    >>> data.ids[0].tolist()  # meaning, separator, reference, end, padding
    [1, 2, 4, 3, 0, 4, 5, 6, 0, 0, 0, 0]
    >>> data.ids[data.counted].tolist(), data.group_names
    ([4, 5, 6, 0], ('1 times or more', '0 to 0 times'))
    """
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if not {"mr", "ref"} <= set(reader.fieldnames or ()):
            raise ParameterError("path", list(reader.fieldnames or ()), "a csv file with the columns mr and ref")
        pairs = [(row["mr"], row["ref"]) for row in reader][:rows]
    if not pairs:
        raise ParameterError("path", str(path), "a csv file with rows")
    table = torch.full((len(pairs), length), end)
    counted = torch.zeros(len(pairs), length, dtype=torch.bool)
    for i, (meaning, reference) in enumerate(pairs):
        prompt = encode(f"{meaning} |")
        tokens = [*prompt, *encode(f" {reference}"), end][:length]
        table[i, : len(tokens)] = torch.tensor(tokens)
        counted[i, max(1, len(prompt)) : len(tokens)] = True
    return _grouped(table, counted, vocabulary, lowest)


def _grouped(table: torch.Tensor, counted: torch.Tensor, vocabulary: int, lowest: Sequence[int]) -> TokenData:
    if not 0 <= int(table.min()) <= int(table.max()) < vocabulary:
        raise ParameterError("ids", [int(table.min()), int(table.max())], f"token numbers in [0, {vocabulary - 1}]")
    counts = torch.bincount(table[counted], minlength=vocabulary)
    edges = list(lowest)
    while len(edges) > 1 and edges[0] > int(counts.max()):
        edges = edges[1:]  # groups that no token is frequent enough for
    groups = frequency_groups(counts, edges)
    names = [f"{edges[0]:,} times or more"]
    names += [f"{low:,} to {high - 1:,} times" for high, low in itertools.pairwise(edges)]
    return TokenData(table, counted, groups, tuple(names))


# ----------------------------------------------------------------------------------------------------------- models


def small_gpt2(
    vocabulary: int, *, layers: int = 2, hidden: int = 64, heads: int = 4, length: int = 128, seed: int = 0
) -> torch.nn.Module:
    """A small ``GPT2LMHeadModel`` with random weights, without dropout; input embedding and head share their weights.

    Examples
    --------
    >>> small_gpt2(50)(input_ids=torch.zeros(1, 7, dtype=torch.int64)).logits.shape
    torch.Size([1, 7, 50])
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocabulary,
        n_layer=layers,
        n_embd=hidden,
        n_head=heads,
        n_positions=length,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: torch.nn.Module = GPT2LMHeadModel(config)
    return model


def pretrained_gpt2(name_or_folder: str) -> torch.nn.Module:
    """A pretrained causal language model by its name on the hub or from a folder, in float32, dropout off.

    Examples
    --------
    By name it is ``pretrained_gpt2("gpt2")``, which downloads; from a folder:

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     small_gpt2(50).save_pretrained(folder)
    ...     model = pretrained_gpt2(folder)
    >>> model(input_ids=torch.zeros(1, 7, dtype=torch.int64)).logits.shape, model.training
    (torch.Size([1, 7, 50]), False)
    """
    from transformers import AutoModelForCausalLM

    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(name_or_folder, dtype=torch.float32)
    return model.eval()


def with_lora(model: torch.nn.Module, *, rank: int = 4, alpha: float = 32.0, seed: int = 0) -> torch.nn.Module:
    """LoRA on the attention projections of a GPT-2, which is changed in place; everything else is frozen.

    Rank and scale are those of appendix B, after Yu et al., arXiv:2110.06500; the seed is of A, B starts at 0.

    Examples
    --------
    >>> model = with_lora(small_gpt2(50))
    >>> sum(p.numel() for p in model.parameters() if p.requires_grad)  # 2 layers × 4 × (64 + 192)
    2048
    """
    from peft import LoraConfig, TaskType, get_peft_model

    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=rank,
        lora_alpha=alpha,
        lora_dropout=0.0,
        target_modules=["c_attn"],
        fan_in_fan_out=True,
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)  # peft asks transformers 5
        torch.manual_seed(seed)
        adapted: Any = get_peft_model(model, config)
    return adapted


def head_and_features(
    model: torch.nn.Module, ids: torch.Tensor, *, batch: int = 32
) -> tuple[torch.nn.Linear, torch.Tensor]:
    """Return a copy of a GPT-2's head, untied from the embedding, and the last hidden states that it reads, (n, T, h).

    Examples
    --------
    >>> head, features = head_and_features(small_gpt2(50), torch.zeros(3, 7, dtype=torch.int64))
    >>> head.weight.shape, features.shape
    (torch.Size([50, 64]), torch.Size([3, 7, 64]))
    """
    whole: Any = model
    weight = whole.lm_head.weight.detach()
    head = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, device=weight.device)
    with torch.no_grad():
        head.weight.copy_(weight)
        parts = [whole.transformer(input_ids=part).last_hidden_state for part in ids.split(batch)]
    return head, torch.cat(parts)


@dataclass(frozen=True)
class HeadData(ClosedFormTask):
    """Sequences as their hidden states; a task for `studies.train_privately` with a ``Linear`` model.

    Attributes
    ----------
    features : Tensor, shape (n, T, h)
        Hidden states, as from `head_and_features`.
    tokens : TokenData
        The sequences.
    """

    features: torch.Tensor
    tokens: TokenData

    @property
    def size(self) -> int:  # type: ignore[override]  # what is an attribute may be computed
        """Number of sequences."""
        return self.tokens.size

    @property
    def group_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """Those of the tokens."""
        return self.tokens.group_names

    def measure(self, model: torch.nn.Module, indices: torch.Tensor) -> Measured:
        """Cross entropy of the counted tokens, in nats; a sequence's loss is their mean."""
        ids, counted = self.tokens.ids[indices, 1:], self.tokens.counted[indices, 1:]
        return _measured_tokens(model(self.features[indices, :-1]), ids, counted, self.tokens.token_groups)

    def clipped_gradients(
        self, model: torch.nn.Module, indices: torch.Tensor, clipping_norm: float
    ) -> tuple[Measured, dict[str, torch.Tensor]]:
        """Return losses and the sum of exactly clipped gradients of the head, a ``Linear`` without bias.

        Adding or removing a sequence changes the sum by at most C in norm, up to the rounding of the sum: norms
        are exact, and their rounding is taken off the clip factors.
        """
        if not isinstance(model, torch.nn.Linear) or model.bias is not None:
            raise ParameterError("model", type(model).__name__, "a Linear layer without bias")
        ids, counted = self.tokens.ids[indices, 1:], self.tokens.counted[indices, 1:]
        states = self.features[indices, :-1]
        with torch.no_grad():
            logits = model(states)
            measured = _measured_tokens(logits, ids, counted, self.tokens.token_groups)
            rows = logits.softmax(2)
            rows.scatter_add_(2, ids[..., None], -torch.ones_like(rows[..., :1]))
            rows.mul_((counted / counted.sum(1, keepdim=True).clamp_min(1))[..., None])
            factors = clip_factors(ghost_squared_norms(states, rows), clipping_norm)
            rows.mul_(factors.to(rows.dtype)[:, None, None])
            return measured, {"weight": rows.flatten(0, 1).T @ states.flatten(0, 1)}


# ----------------------------------------------------------------------------- a start from public text, not private


def public_lines(path: Path) -> list[str]:
    r"""Return every reference of a file of DART (json or xml) after its triples.

    Examples
    --------
    >>> import json, tempfile
    >>> entry = {"tripleset": [["Aromi", "area", "riverside"]], "annotations": [{"text": "Aromi is by the river."}]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "dart.json").write_text(json.dumps([entry]))
    ...     public_lines(Path(folder, "dart.json"))
    ['Aromi : area : riverside | Aromi is by the river.']
    """
    names = (path.name,)
    recipe = DataRecipe("files", train=names, validation=names, inputs=("tripleset",), target="annotations")
    return [f"{row.inputs[0]} | {row.target}" for row in read_rows(recipe, "generation", path.parent).splits["train"]]


def byte_pair_tokenizer(lines: Sequence[str], size: int) -> Any:
    """A tokenizer of GPT-2's kind, learnt on public text: byte pairs, and a token for the end of a text.

    It has at most V = ``size`` >= 257 tokens, which give away frequent words of the text.

    Examples
    --------
    >>> tokenizer = byte_pair_tokenizer(["a cat and a cat"] * 9, 270)
    >>> tokenizer.tokenize("a cat"), len(tokenizer), tokenizer.eos_token_id
    (['a', 'Ġcat'], 263, 0)
    """
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(iter(lines), vocab_size=size, special_tokens=[END], show_progress=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, eos_token=END, bos_token=END)


def train_on_public(
    model: torch.nn.Module,
    data: TokenData,
    *,
    epochs: int = 4,
    learning_rate: float = 2e-3,
    batch: int = 32,
    seed: int = 0,
) -> float:
    """Train in place on public text, by AdamW with a warm-up and a cosine decay, gradients clipped at norm 1.

    Not private: no noise is added. Returns the mean loss per sequence in the last epoch, in nats.

    Examples
    --------
    >>> data = text_data([1, 2, 3] * 64, length=12, vocabulary=4)
    >>> model = small_gpt2(4, hidden=16, length=12)
    >>> loss = train_on_public(model, data, epochs=20, learning_rate=1e-2, batch=4)
    >>> with torch.no_grad():
    ...     start = data.measure(small_gpt2(4, hidden=16, length=12), torch.arange(16)).losses.mean()
    >>> loss < 0.1 < 1.3 < float(start)
    True
    """
    order = torch.Generator().manual_seed(seed)
    trained = [p for p in model.parameters() if p.requires_grad]
    steps = epochs * math.ceil(data.size / batch)
    optimizer = torch.optim.AdamW(trained, lr=learning_rate, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, learning_rate, total_steps=max(steps, 2), pct_start=0.1, cycle_momentum=False
    )
    total = 0.0
    for epoch in range(epochs):
        for indices in torch.randperm(data.size, generator=order).split(batch):
            losses = data.measure(model, indices).losses
            optimizer.zero_grad(set_to_none=True)
            losses.mean().backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            schedule.step()
            total += float(losses.detach().sum()) * (epoch == epochs - 1)
    return total / data.size
