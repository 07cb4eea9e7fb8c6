"""Every architecture and head: the model's own losses, a literal loop's sums, and C for one sample."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import transformers as hf
from transformers.trainer_pt_utils import LabelSmoother

from audits.steps import private_sgd
from dprmt import ParameterError
from dprmt.accounting import Hutchinson
from dprmt.training.data import check_own_loss, head_of, per_sample_losses
from dprmt.training.models import whole_modules
from tests.training.literal import clipped_sum, gradients_of, norm_of

C = 0.05
LENGTHS = (7, 3, 5, 4)
SIZES: dict[str, Any] = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "hidden_size": 8}
ENCODER = SIZES | {"vocab_size": 24, "max_position_embeddings": 16, "num_labels": 3}
ENCODER |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
IMAGE = ENCODER | {"image_size": 4, "patch_size": 2, "num_channels": 1}
AFTER_PADDING = ENCODER | {"pad_token_id": 1}
DECODER = SIZES | {"vocab_size": 24, "max_position_embeddings": 16, "num_key_value_heads": 1, "head_dim": 4}
DECODER |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SEQ2SEQ: dict[str, Any] = {"vocab_size": 24, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
SEQ2SEQ |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
GPT2: dict[str, Any] = {"vocab_size": 24, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
T5: dict[str, Any] = {"vocab_size": 24, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
OPT: dict[str, Any] = {"ffn_dim": 8, "dropout": 0.0, "word_embed_proj_dim": 8, "num_attention_heads": 2}
WHISPER: dict[str, Any] = SEQ2SEQ | {"num_mel_bins": 4, "max_source_positions": 5, "max_target_positions": 16}
WHISPER |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
WHISPER |= {"suppress_tokens": None, "begin_suppress_tokens": None}
RELATIVE = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForSequenceClassification", ENCODER),
    "several labels": ("BertForSequenceClassification", ENCODER | {"problem_type": "multi_label_classification"}),
    "regression": ("BertForSequenceClassification", ENCODER | {"num_labels": 1}),
    "answers": ("BertForQuestionAnswering", ENCODER | {"num_labels": 2}),
    "masked": ("BertForMaskedLM", ENCODER),
    "tokens": ("BertForTokenClassification", ENCODER),
    "roberta": ("RobertaForSequenceClassification", AFTER_PADDING),
    "xlm-roberta": ("XLMRobertaForTokenClassification", AFTER_PADDING),
    "mpnet": ("MPNetForSequenceClassification", AFTER_PADDING),
    "longformer": ("LongformerForSequenceClassification", AFTER_PADDING | {"attention_window": 4}),
    "esm": ("EsmForTokenClassification", AFTER_PADDING | {"mask_token_id": 4}),
    "deberta": ("DebertaV2ForSequenceClassification", ENCODER | RELATIVE | {"pooler_hidden_size": 8}),
    "electra": ("ElectraForSequenceClassification", ENCODER | {"embedding_size": 8}),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "opt": ("OPTForCausalLM", DECODER | OPT),
    "llama": ("LlamaForCausalLM", DECODER),
    "llama, tied": ("LlamaForCausalLM", DECODER | {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", DECODER),
    "gemma": ("GemmaForCausalLM", DECODER),
    "smollm": ("SmolLM3ForCausalLM", DECODER),
    "t5": ("T5ForConditionalGeneration", T5 | {"dropout_rate": 0.0, "decoder_start_token_id": 0}),
    "bart": ("BartForConditionalGeneration", SEQ2SEQ | {"scale_embedding": True}),
    "vit": ("ViTForImageClassification", IMAGE),
    "whisper": ("WhisperForConditionalGeneration", WHISPER),
    "audio": (
        "ASTForAudioClassification",
        ENCODER | {"patch_size": 2, "frequency_stride": 2, "time_stride": 2, "max_length": 6, "num_mel_bins": 4},
    ),
    "video": ("VideoMAEForVideoClassification", IMAGE | {"num_frames": 4}),
}
# Their own position ids start after the number of the padding token; an earlier version passed ids from 0.
OTHER_POSITIONS = {
    "data2vec": ("Data2VecTextForSequenceClassification", AFTER_PADDING),
    "xlm-roberta-xl": ("XLMRobertaXLForSequenceClassification", AFTER_PADDING),
    "pre-layer-norm": ("RobertaPreLayerNormForSequenceClassification", AFTER_PADDING),
    "i-bert": ("IBertForSequenceClassification", AFTER_PADDING),
    "x-mod": ("XmodForSequenceClassification", AFTER_PADDING | {"default_language": "en_XX"}),
}
EVERY = MODELS | OTHER_POSITIONS
# What these compute for padded text depends on where the text begins, so that left padding is another sample.
LEFT = ["xlm-roberta", "esm", "llama", "llama, tied", "qwen3", "gemma", "smollm", "opt", "t5"]
FIXED = ("vit", "whisper", "audio", "video")  # their inputs have one length


def made(kind: str, sizes: dict[str, Any]) -> torch.nn.Module:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make = getattr(hf, kind)
        return make(make.config_class(**sizes)).double().train()


def a_batch(model: torch.nn.Module, *, left: bool = False) -> dict[str, torch.Tensor]:
    """Four samples of different lengths, padded on one side."""
    draw, kind = torch.Generator().manual_seed(5), type(model).__name__
    width, size = max(LENGTHS), len(LENGTHS)

    def words(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=draw)

    def within(lengths: tuple[int, ...], width: int) -> torch.Tensor:
        columns = torch.arange(width - 1, -1, -1) if left else torch.arange(width)
        return (columns < torch.tensor(lengths)[:, None]).long()

    for sort, key, shape in (
        ("Image", "pixel_values", (1, 4, 4)),
        ("Audio", "input_values", (6, 4)),
        ("Video", "pixel_values", (4, 1, 4, 4)),
    ):
        if sort in kind:
            found = torch.randn(size, *shape, generator=draw, dtype=torch.float64)
            return {key: found, "labels": words(0, 3, size)}
    mask = within(LENGTHS, width)
    ids = words(5, 24, size, width).masked_fill(mask == 0, model.config.pad_token_id or 0)
    batch = {"input_ids": ids, "attention_mask": mask}
    if "Whisper" in kind:
        batch = {"input_features": torch.randn(size, 4, 10, generator=draw, dtype=torch.float64)}
    if "CausalLM" in kind or "LMHead" in kind:
        batch["labels"] = ids.masked_fill(mask == 0, -100)
    elif "Conditional" in kind:
        columns = torch.arange(6) < torch.tensor((6, 2, 4, 5))[:, None]
        batch["labels"] = words(5, 24, size, 6).masked_fill(~columns, -100)
    elif "Token" in kind or "MaskedLM" in kind:
        labels = words(0, model.config.num_labels if "Token" in kind else 24, size, width)
        labels[:, ::3] = -100
        batch["labels"] = labels.masked_fill(mask == 0, -100)
    elif "Question" in kind:
        first = mask.argmax(1)
        batch |= {"start_positions": first + 1, "end_positions": first + 2}
    elif model.config.problem_type == "multi_label_classification":
        batch["labels"] = words(0, 2, size, 3).double()
    elif model.config.num_labels == 1:
        batch["labels"] = torch.randn(size, generator=draw, dtype=torch.float64)
    else:
        batch["labels"] = words(0, 3, size)
    return batch


def alone(batch: dict[str, torch.Tensor], row: int) -> dict[str, torch.Tensor]:
    """One sample without its padding."""
    own = {key: value[row : row + 1] for key, value in batch.items()}
    if "attention_mask" not in own:
        return own
    mask = own["attention_mask"]
    kept = mask[0] == 1
    cut = {key: value[:, kept] if value.shape == mask.shape else value for key, value in own.items()}
    first = int(kept.nonzero()[0])
    return cut | {key: own[key] - first for key in ("start_positions", "end_positions") if key in own}


def rows_of(batch: dict[str, torch.Tensor], rows: list[int]) -> dict[str, torch.Tensor]:
    return {key: value[rows] for key, value in batch.items()}


def private_sums(model: torch.nn.Module, batch: dict[str, torch.Tensor], **options: Any) -> dict[str, torch.Tensor]:
    step = private_sgd(model, **{"norms": "exact", "clipping_norm": C, "whole": whole_modules(model)} | options)
    losses = partial(per_sample_losses, step.model)
    step.accumulate(losses, samples=range(len(next(iter(batch.values())))), step=0, batch=batch)
    found = {
        name: torch.zeros_like(value) if value.summed_grad is None else value.summed_grad.clone()
        for name, value in model.named_parameters()
        if value.requires_grad
    }
    step.close()
    return found


def literal_sums(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Of the model's own losses, one sample after the other; and the norms."""
    rows = range(len(next(iter(batch.values()))))
    samples = gradients_of(model, (model(**alone(batch, row)).loss for row in rows))
    return clipped_sum(samples, C), [norm_of(sample) for sample in samples]


def close(found: torch.Tensor, own: torch.Tensor) -> None:
    """Causal models compute their own loss in single precision."""
    torch.testing.assert_close(found.double(), own.double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("name", EVERY)
def test_losses_are_the_models_own(name: str, left: bool) -> None:
    """Of batches of one; in a batch the same, where padding changes nothing in the model."""
    if left and name in FIXED:
        pytest.skip("there is no padding")
    model = made(*EVERY[name]).eval()
    batch = a_batch(model, left=left)
    with torch.no_grad():
        for row in range(len(LENGTHS)):
            own = model(**alone(batch, row)).loss
            close(per_sample_losses(model, alone(batch, row))[0], own)
            padded = rows_of(batch, [row])
            found = per_sample_losses(model, padded)[0]
            if name != "answers" and not (left and (name in LEFT or name == "gpt2")):
                close(found, model(**padded).loss)
            if not left or name in LEFT:
                close(per_sample_losses(model, batch)[row], own)
    check_own_loss(model, alone(batch, 0))


@pytest.mark.parametrize(("name", "left"), [*((name, False) for name in MODELS), *((name, True) for name in LEFT)])
def test_the_private_sum_is_that_of_a_literal_loop(name: str, left: bool) -> None:
    model = made(*EVERY[name])
    batch = a_batch(model, left=left)
    found = private_sums(model, batch)
    expected, norms = literal_sums(model, batch)
    assert max(norms) > 1.05 * C, "or clipping is not seen"
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-5, atol=1e-7, msg=key)
    without = private_sums(model, rows_of(batch, [1, 2, 3]))  # the longest is gone: padding changes too
    moved = torch.cat([(found[key] - without[key]).flatten() for key in found]).norm()
    assert float(moved) <= C * (1 + 1e-9)


@pytest.mark.parametrize("norms", ["ghost", "hutchinson", "hutch++"])
@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_a_shared_table_has_an_exact_norm_however_others_are_estimated(name: str, norms: str) -> None:
    """With everything else frozen the sums are the literal ones."""
    model = made(*EVERY[name])
    table = model.get_input_embeddings().weight
    for value in model.parameters():
        value.requires_grad_(value is table)
    batch = a_batch(model)
    found = private_sums(model, batch, norms=norms)
    expected, _ = literal_sums(model, batch)
    assert len(found) == 1
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-5, atol=1e-7)


def test_a_shared_table_is_refused_where_everything_is_estimated() -> None:
    with pytest.raises(ParameterError, match=r"norms must be without a rank: the norm of transformer\.wte\.weight"):
        private_sums(made(*EVERY["gpt2"]), {}, norms=Hutchinson(4, secret=True, rank=8))


def test_parts_of_a_shared_table_that_cancel_are_not_underestimated() -> None:
    """Of an embedding and a head whose gradients are opposite, up to rounding of what they were."""
    from dprmt.training.clipping._formed_layers import PerSampleGradients
    from dprmt.training.clipping._matrix_layers import EmbeddingRows, Factors, add_inner_products

    draw = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(9, 4))
    a, g = torch.randn(3, 5, 4, generator=draw), torch.randn(3, 5, 9, generator=draw)
    formed = g.double().transpose(1, 2) @ a.double()
    places = torch.arange(9).repeat(3)
    owners = torch.arange(3).repeat_interleave(9)
    rows = (-(1 - 1e-5) * formed).flatten(0, 1).float()
    table = EmbeddingRows(weight, owners, places, rows)
    other = EmbeddingRows(weight, owners[::2], places[::2], rows[::2] * 0.5)
    truth = formed + rows.double().view(3, 9, 4)
    truth_of_both = truth.clone().view(27, 4).index_add_(0, torch.arange(0, 27, 2), other.rows.double()).view(3, 9, 4)
    for head in (Factors(weight, None, False, a, g), PerSampleGradients({weight: formed.float()})):
        for parts, exact in (([table, head], truth), ([head, other, table], truth_of_both)):
            squares = [formed if part is head else _dense(part) for part in parts]
            each = torch.stack([value.double().square().sum((1, 2)) for value in squares]).sum(0)
            found = add_inner_products(each, parts, {weight}, rounding=2**-13)
            wanted = exact.square().sum((1, 2))
            assert bool((found >= wanted * (1 - 1e-6)).all())
            assert bool((found <= wanted + 2**-11 * each).all())


def _dense(part: Any) -> torch.Tensor:
    found = torch.zeros(3, 9, 4, dtype=torch.float64)
    found[part.owners, part.tokens] = part.rows.double()
    return found


@pytest.mark.parametrize("name", ["bert", "tokens", "llama", "t5"])
def test_smoothed_labels_are_the_trainers(name: str) -> None:
    model = made(*EVERY[name]).eval()
    sample = alone(a_batch(model), 0)
    causal = "Causal" in EVERY[name][0]
    wanted = LabelSmoother(epsilon=0.3)(model(**sample), sample["labels"], shift_labels=causal)
    found = per_sample_losses(model, sample, label_smoothing=0.3)
    torch.testing.assert_close(found[0], wanted, rtol=1e-6, atol=1e-6)


class Doubled(hf.BertForSequenceClassification):
    """A loss of its own under a known name."""

    def forward(self, *args: Any, **inputs: Any) -> Any:
        output = super().forward(*args, **inputs)
        output.loss = None if output.loss is None else 2 * output.loss
        return output


def test_what_is_trained_is_refused_where_it_is_not_the_models_own_loss() -> None:
    model = Doubled(hf.BertConfig(**ENCODER)).double()
    assert head_of(model).name == "classification"
    with pytest.raises(ParameterError, match=r"own loss is that of its head.*Doubled"):
        check_own_loss(model, alone(a_batch(model), 0))
    with pytest.raises(ParameterError, match=r"sample must be of one sample: collate_fn.*got '\d+ rows'"):
        check_own_loss(model, a_batch(model))


UNKNOWN: dict[str, Callable[[], torch.nn.Module]] = {
    "BertForNextSentencePrediction": lambda: hf.BertForNextSentencePrediction(hf.BertConfig(**ENCODER)),
    "BertForMultipleChoice": lambda: hf.BertForMultipleChoice(hf.BertConfig(**ENCODER)),
    "BertModel": lambda: hf.BertModel(hf.BertConfig(**ENCODER)),
    "Linear": lambda: torch.nn.Linear(2, 2),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_head_without_a_loss_per_sample_is_refused_by_name(name: str) -> None:
    with pytest.raises(ParameterError, match=rf"give the loss of each sample as losses=, got '{name}'"):
        per_sample_losses(UNKNOWN[name](), {"labels": torch.zeros(2)})


def test_other_refusals() -> None:
    model = made(*EVERY["bert"])
    with pytest.raises(ParameterError, match="batch must be one with labels for a classification head"):
        per_sample_losses(model, {"input_ids": torch.zeros(1, 2, dtype=torch.long)})
    sizes = DECODER | {"num_local_experts": 2, "num_experts_per_tok": 1, "output_router_logits": True}
    experts = hf.MixtralForCausalLM(hf.MixtralConfig(**sizes))
    with pytest.raises(ParameterError, match="output_router_logits"):
        per_sample_losses(experts, {"labels": torch.zeros(1, 2)})


def test_a_sample_without_a_labelled_token_has_loss_0() -> None:
    model = made(*EVERY["tokens"])
    batch = a_batch(model)
    batch["labels"][1] = -100
    assert per_sample_losses(model, batch)[1] == 0.0
