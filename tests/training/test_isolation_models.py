"""Models that were untested: each gives the literal sum of clipped gradients, or is refused with what to do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from audits.steps import Parts
from dprmt import ParameterError, TrainingStateError
from dprmt.training.clipping import Units, _isolation
from dprmt.training.clipping._unit_step import UnitStep
from dprmt.training.data import per_sample_losses
from dprmt.training.models import whole_modules
from tests.training.test_heads import DECODER, EVERY, LEFT, a_batch, made
from tests.training.test_isolation import WIDTH, literal, private, refuses_mixing

Losses = Callable[[nn.Module, Any], torch.Tensor]


def check_sum(model: nn.Module, losses: Losses, batch: dict[str, torch.Tensor], **options: Any) -> None:
    """Of a micro-batch that is checked, against samples one at a time."""
    plain, step, size = copy.deepcopy(model), private(model, **options), len(next(iter(batch.values())))
    units = {"units": range(size)} if isinstance(step, UnitStep) else {}
    if not units:
        refuses_mixing(step, partial(losses, model), batch, size)
    step.accumulate(partial(losses, model), batch=batch, samples=range(size), step=0, **units)
    assert step.replays == 1
    if isinstance(step, UnitStep):
        step.complete()
    rows = [{name: value[row : row + 1] for name, value in batch.items()} for row in range(size)]
    expected = literal(plain, partial(losses, plain), rows)
    sums = [value.summed_grad for value in step.optimizer.params]
    distance = sum(float((one - two).square().sum()) for one, two in zip(sums, expected, strict=True)) ** 0.5
    assert distance < 1e-6
    assert sum(float(one.square().sum()) for one in expected) > 1e-6


def refused(model: nn.Module, losses: Losses, batch: dict[str, torch.Tensor], match: str) -> None:
    """At the first micro-batch."""
    step = private(model)
    with pytest.raises(TrainingStateError, match=match):
        step.accumulate(partial(losses, model), batch=batch, samples=range(4), step=0)


def classified(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(model(batch["x"]).logits, batch["y"], reduction="none")


def test_windows_of_an_image_are_taken_inside_a_module_that_is_run_whole() -> None:
    from transformers import SwinConfig, SwinForImageClassification

    torch.manual_seed(0)
    sizes = {"image_size": 16, "patch_size": 2, "embed_dim": 8, "window_size": 4}
    config = SwinConfig(**sizes, depths=[2, 1], num_heads=[2, 2], drop_path_rate=0.0)
    model, batch = SwinForImageClassification(config).double(), {"x": torch.randn(4, 3, 16, 16).double()}
    batch["y"] = torch.arange(4) % 2
    refused(copy.deepcopy(model), classified, batch, r"relative_position_bias is the same for .* in whole=\[\.\.\.\]")
    check_sum(model, classified, batch, whole=["swin.encoder"])


def next_words(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    words, own = batch["input_ids"], batch["attention_mask"][:, 1:] != 0
    logits = model(**batch, use_cache=False).logits[:, -words.shape[1] :]
    found = functional.cross_entropy(logits[:, :-1].transpose(1, 2), words[:, 1:], reduction="none")
    return (found * own).sum(1) / own.sum(1)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft
@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PromptEncoderConfig", "PrefixTuningConfig", "IA3Config"])
def test_prompts_and_prefixes(kind: str) -> None:
    """A prompt is looked up once and repeated: no sample has a gradient of its own, unless it is alone."""
    from transformers import LlamaConfig, LlamaForCausalLM

    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    options = {} if kind == "IA3Config" else {"num_virtual_tokens": 3, "token_dim": 16}
    options |= {"encoder_hidden_size": 8} if kind == "PromptEncoderConfig" else {}
    base = LlamaForCausalLM(LlamaConfig(vocab_size=20, tie_word_embeddings=False, **sizes))
    model = peft.get_peft_model(base, getattr(peft, kind)(task_type="CAUSAL_LM", **options)).double()
    mask = (torch.arange(7) < torch.tensor([[4], [7], [5], [3]])).long()
    batch = {"input_ids": torch.randint(1, 20, mask.shape) * mask, "attention_mask": mask}
    if kind.startswith("Prompt"):
        with pytest.raises(ParameterError, match=r"one row is repeated .*PrefixTuningConfig, or units=Units\(1"):
            private(model)
        check_sum(model, next_words, batch, units=Units(1, regime="alone"))
    else:
        check_sum(model, next_words, batch)


def packed(model: Any, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Texts of several lengths, packed for a recurrent layer."""
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(model.layer(packed)[0], batch_first=True, total_length=x.shape[1])[0].sum(1)


@pytest.mark.parametrize("how", ["trained", "whole", "frozen"])
def test_packed_sequences(how: str) -> None:
    """A recurrent layer that is trained takes them inside a module that is run whole; a frozen one as it is."""
    torch.manual_seed(0)
    inner = Parts(packed, layer=nn.LSTM(WIDTH, 4, batch_first=True))
    model = Parts(
        lambda model, x, lengths: model.head(model.packed(x, lengths)).flatten(), packed=inner, head=nn.Linear(4, 1)
    )
    model = model.double()
    model.packed.requires_grad_(how != "frozen")
    batch = {"x": torch.randn(4, 6, WIDTH).double(), "lengths": torch.tensor([3, 6, 1, 4])}

    def losses(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return (model(**batch) - 1.0).square()

    if how == "trained":
        refused(model, losses, batch, r"was given a PackedSequence, .*pad instead")
    else:
        check_sum(model, losses, batch, whole=["packed"] if how == "whole" else [])


def test_texts_that_are_packed_into_one_row_are_refused_by_name() -> None:
    """As collators without padding make them: samples are told apart by positions that start again."""
    step = private(nn.Embedding(9, 4))
    batch = {"input_ids": torch.randint(1, 9, (1, 8)), "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])}
    with pytest.raises(ParameterError, match=r"batch\['input_ids'\] must be one row for each sample"):
        step.accumulate(lambda b: step.model(b["input_ids"]).sum((1, 2)), batch=batch, samples=range(2), step=0)


MORE = {
    "mistral": ("MistralForCausalLM", DECODER | {"sliding_window": 4}),
    "gpt-neox": ("GPTNeoXForCausalLM", DECODER | {"tie_word_embeddings": False}),
    "phi": ("PhiForCausalLM", DECODER),
    "gemma2": ("Gemma2ForCausalLM", DECODER),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [name for name in EVERY | MORE if name != "i-bert"])  # which keeps ranges of batches
def test_right_code_on_published_architectures_is_far_from_the_tolerance(name: str, dtype: torch.dtype) -> None:
    """Every micro-batch is checked; rounding takes a tenth of the tolerance in float32, half of it in bfloat16."""
    kind, sizes = (EVERY | MORE)[name]
    model = made(kind, {key: value for key, value in sizes.items() if "drop" not in key}).to(dtype)
    step, shares = private(model, noise_multiplier=0.1, replay=1.0, whole=whole_modules(model)), [0.0]
    within = _isolation.within

    def note(difference: float, allowed: float) -> bool:
        shares.append(difference / max(allowed, 1e-300))
        return within(difference, allowed)

    for number in range(4):
        batch = a_batch(model, left=name in LEFT and number % 2 == 1)
        batch = {key: value.to(dtype) if value.is_floating_point() else value for key, value in batch.items()}
        losses = partial(per_sample_losses, step.model)
        with mock.patch.object(_isolation, "within", note):
            step.accumulate(losses, samples=range(len(next(iter(batch.values())))), step=number, batch=batch)
        step.step()
    assert step.replays == 4
    assert max(shares) < (0.1 if dtype == torch.float32 else 0.5)


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("of", ["rows", "tokens", "masked rows"])
def test_experts_that_choose_are_refused(of: str, trained: bool) -> None:
    """An expert takes the half of a batch's rows, or tokens, that score highest with it; or all, and half count."""

    def call(model: Any, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1) if of == "tokens" else x
        weights, out = model.gate(flat).softmax(-1), torch.zeros_like(flat)
        for number, expert in enumerate(model.experts):
            scores, chosen = weights[:, number].topk(len(flat) // 2)
            if of == "masked rows":
                out = out + expert(flat) * (weights[:, number] * (weights[:, number] >= scores[-1]))[:, None]
            else:
                out = out.index_add(0, chosen, expert(flat[chosen]) * scores[:, None])
        return model.head(out.view_as(x)).flatten(1).mean(1)

    torch.manual_seed(0)
    experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2)).requires_grad_(trained)
    gate = nn.Linear(WIDTH, 2, bias=False).requires_grad_(False)
    model = Parts(call, gate=gate, head=nn.Linear(WIDTH, 1), experts=experts)
    x, step = torch.randn(16, 3, WIDTH) if of == "tokens" else torch.randn(16, WIDTH), private(model)
    with pytest.raises(TrainingStateError, match=r"depends? on other samples|by index|samples and tokens in one axis"):
        step.accumulate(lambda x: (model(x) - 1.0).square(), batch=x, samples=range(16), step=0)
