"""Norm samplers inside Opacus' hooks, on gradients of a small transformer: their law, envelope, memory and record."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from scipy import stats
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertConfig, BertForSequenceClassification

from audits.steps import make_private
from dprmt import ParameterError
from dprmt.accounting import DPSGD, Hutchinson, chi2_mixture_cdf, envelope_cdf
from dprmt.training.clipping import ClippedStep, plan_private
from dprmt.training.clipping._formed_layers import NormPolicy
from dprmt.training.clipping._matrix_layers import plan_layers
from dprmt.training.norms import (
    HutchinsonEstimator,
    HutchPlusPlusEstimator,
    LayerRecord,
    NormRecord,
    ProbeGenerator,
    ghost_squared_norms,
)
from tests.training.norms_by_word import by_word

T, K, VOCAB = 6, 4, 30
QUERY = "bert.encoder.layer.0.attention.self.query"


def bert(trainable: str = "") -> nn.Module:
    """A BERT in float64 with the layers of that name trainable."""
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        vocab_size=VOCAB,
        max_position_embeddings=16,
        num_labels=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForSequenceClassification(config).double().train()
    for name, value in model.named_parameters():
        value.requires_grad_(trainable in name)
    return model


def tokens(size: int) -> torch.Tensor:
    return torch.randint(1, VOCAB, (size, T), generator=torch.Generator().manual_seed(1))


def losses(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(input_ids=x).logits.square().sum(1)


def private(model: nn.Module, norms: Any, **options: Any) -> ClippedStep:
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=1.0)
    settings: dict[str, Any] = {"clipping_norm": 1.0, "noise_multiplier": 0.0, "expected_batch_size": 1.0}
    return make_private(model, optimizer, norms=norms, **settings, **options)  # type: ignore[return-value]


def squared_norms(private: ClippedStep, x: torch.Tensor, samples: Sequence[int], step: int = 0) -> torch.Tensor:
    """Of the norms' own estimates, before anything is clipped."""
    squared = private._capture.backward(losses(private.model, x), step=step, samples=samples)
    private._capture.finish()
    return squared


def gradients(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of one sample, by a plain backward pass."""
    plain = copy.deepcopy(model)
    losses(plain, x).sum().backward()
    return {name: value.grad for name, value in plain.named_parameters() if value.requires_grad}


def spectrum(model: nn.Module, x: torch.Tensor) -> np.ndarray:
    """λ of a Linear layer with bias and of vectors, over all of them, with Σλ = 1."""
    values = gradients(model, x)
    weights = []
    for name, value in values.items():
        if name.removesuffix("bias") + "weight" in values and name.endswith("bias") and "LayerNorm" not in name:
            continue
        bias = values.get(name.removesuffix("weight") + "bias")
        matrix = value[None] if value.ndim == 1 else value
        if value.ndim == 2 and bias is not None:
            matrix = torch.cat([value, bias[:, None]], 1)
        weights.append(torch.linalg.svdvals(matrix).square())
    λ = torch.cat(weights)
    return (λ / λ.sum()).numpy()


def ratios(trainable: str, probes: int, count: int, *, batches: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Independent values of n̂/n of one sample with everything estimated, and the sample's λ."""
    model, x = bert(trainable), tokens(1)
    λ, norm = spectrum(model, x), sum(float(value.square().sum()) for value in gradients(model, x).values())
    step = private(model, HutchinsonEstimator(probes, everything=True, generator=ProbeGenerator(3)), tokens=T)
    many = x.expand(count // batches, -1)
    values = torch.cat([squared_norms(step, many, range(len(many)), number) for number in range(batches)])
    return (values / norm).numpy(), λ


def claimed(norms: Any, model: nn.Module, **options: Any) -> NormRecord:
    settings: dict[str, Any] = {"clipping_norm": 1.0, "expected_batch_size": 1.0}
    return plan_private(model, norms=norms, **settings, **options).record


@pytest.mark.parametrize("trainable", [QUERY, "classifier", "LayerNorm", "word_embeddings", ""])
def test_norm_ratios_of_a_transformer_have_the_mixture_law(trainable: str) -> None:
    """KS test of X against Σ λ_i χ²_i(k)/k with λ from literal gradients; half and twice the probes are rejected.

    One sample many times with other identities, hence other probes. Mean 1 and variance (2/k)Σλ² within 5 standard
    errors.
    """
    values, λ = ratios(trainable, K, 1200)
    λ = λ[λ > 1e-12]

    def law(k: int) -> Any:
        return lambda x: chi2_mixture_cdf(x, λ / k, np.full(len(λ), float(k)))

    assert stats.kstest(values, law(K)).pvalue > 1e-3
    assert stats.kstest(values, law(K // 2)).pvalue < 1e-6
    assert stats.kstest(values, law(2 * K)).pvalue < 1e-6
    variance = 2 / K * float((λ**2).sum())
    assert abs(values.mean() - 1) < 5 * math.sqrt(variance / values.size)
    spread = math.sqrt(float(((values - 1) ** 4).mean()) / values.size)
    assert abs(values.var() - variance) < 5 * spread < variance / 2


def test_the_ratio_never_crosses_the_envelope() -> None:
    """P(X <= x) <= G_d(x) up to the Dvoretzky-Kiefer-Wolfowitz band, so P(n/n̂ > z²) is below the accountant's.

    All of a transformer for every x; with power for the head alone, whose gradient has rank one: half the probes
    cross.
    """
    count = 2000
    band = math.sqrt(math.log(1 / 1e-4) / (2 * count))

    def excess(values: np.ndarray, rank: int | None) -> float:
        ordered = np.sort(values)
        return float((np.arange(1, len(ordered) + 1) / len(ordered) - envelope_cdf(ordered, K, rank)).max())

    values, λ = ratios("", K, count, batches=4)
    model = bert()
    rank = claimed(HutchinsonEstimator(K, everything=True), model, tokens=T).norms.rank
    assert rank is not None
    assert (λ > 1e-12).sum() <= rank
    assert excess(values, rank) < band
    assert excess(values, None) < band
    values, λ = ratios("classifier", K, count)
    assert (λ > 1e-12).sum() == 1
    assert excess(values, 1) < band
    assert excess(ratios("classifier", K // 2, count)[0], 1) > band


ESTIMATORS = [
    HutchinsonEstimator,
    partial(HutchinsonEstimator, everything=True),
    partial(HutchPlusPlusEstimator, sketch=1),
]


@pytest.mark.parametrize("norms", ESTIMATORS)
def test_norms_do_not_depend_on_the_micro_batch(norms: Any) -> None:
    """Every sample alone, B = 1, has the norm that it has in a batch, by its identity."""
    step, x = private(bert(), norms(K, generator=ProbeGenerator(1)), tokens=T), tokens(5)
    together = squared_norms(step, x, range(5))
    changes = []
    for i in range(5):
        changes.append(abs(float(squared_norms(step, x[i : i + 1], [i], 1 + i)) / float(together[i]) - 1))
    if norms is not ESTIMATORS[-1]:  # this model's gradients are nearly of rank one, for Hutch++ nearly exact
        assert min(changes) > 1e-4
    again = private(bert(), norms(K, generator=ProbeGenerator(1)), tokens=T)
    for i in (3, 0, 4, 1, 2):
        assert float(squared_norms(again, x[i : i + 1], [i])) == pytest.approx(float(together[i]), rel=1e-9)


def test_the_record_says_what_may_be_claimed() -> None:
    """A finite rank only with everything estimated and bounded; DPSGD where all layers are small."""
    secret = Hutchinson(K, secret=True)
    default = claimed(HutchinsonEstimator(K), bert(), tokens=T)
    assert default.norms == secret
    assert LayerRecord(QUERY, replace(secret, rank=T)) in default.layers
    assert LayerRecord("bert.embeddings.word_embeddings") in default.layers
    assert LayerRecord("classifier") in default.layers  # 3 <= k
    everything = claimed(HutchinsonEstimator(K, everything=True), bert(), tokens=T)
    assert everything.estimated == list(everything.layers)
    assert everything.norms == replace(secret, rank=sum(layer.norms.rank for layer in everything.layers))
    assert everything.mechanism(1.0, 0.1) == DPSGD(1.0, 0.1, everything.norms)
    ranks = {"LayerNorm.weight": 1, "word_embeddings": T, "token_type_embeddings": 2}
    for name, rank in ranks.items():
        assert LayerRecord(f"bert.embeddings.{name}", replace(secret, rank=rank)) in everything.layers
    unbounded = claimed(HutchinsonEstimator(K, everything=True), bert())
    assert LayerRecord(QUERY, replace(secret, rank=16)) in unbounded.layers
    small = claimed(HutchinsonEstimator(K), bert("classifier"))
    assert small.mechanism(1.0, 0.1) == DPSGD(1.0, 0.1)


def test_a_value_with_a_rank_estimates_everything_and_may_not_claim_less() -> None:
    whole = claimed(HutchinsonEstimator(K, secret=False, everything=True), bert(), tokens=T).norms
    assert claimed(Hutchinson(K, rank=whole.rank + 5, secret=False), bert(), tokens=T).norms == whole
    with pytest.raises(ParameterError, match=f"norms.rank must be at least {whole.rank}"):
        claimed(Hutchinson(K, rank=whole.rank - 1, secret=False), bert(), tokens=T)


class LargestTensor(TorchDispatchMode):
    """Elements of the largest tensor that an operation gives back, except for those of one size."""

    def __init__(self, ignored: int) -> None:
        super().__init__()
        self.largest, self.ignored = 0, ignored

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(value, torch.Tensor) and value.numel() != self.ignored:
                self.largest = max(self.largest, value.numel())
        return result


@pytest.mark.parametrize("sharing", ["sample", "batch"])
@pytest.mark.parametrize("clipping", ["exact", "ghost", "hutchinson", "hutch++"])
def test_memory_of_a_step(clipping: str, sharing: str) -> None:
    """Beside copies of A and G nothing exceeds k(T + d + p) per sample with estimates, as exact methods do."""
    size, length, d, k = 16, 40, 48, 4
    model = nn.Linear(d, d)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"clipping_norm": 1.0, "noise_multiplier": 1.0, "expected_batch_size": size}
    step = make_private(model, optimizer, norms=by_word(clipping, k, sharing=sharing), **options)

    def losses() -> torch.Tensor:
        return step.model(torch.randn(size, length, d)).square().sum((1, 2))

    step.accumulate(losses(), samples=range(size), step=0)  # the first one is looked at more closely
    step.step()
    total = losses()
    with LargestTensor(ignored=size * length * d) as memory:
        step.accumulate(total, samples=range(size), step=1)
        step.step()
    limit = size * k * (length + 2 * d + 1)
    assert limit < size * min(length**2, d**2)
    assert (memory.largest <= limit) == clipping.startswith("hutch")
    if not clipping.startswith("hutch"):
        assert memory.largest >= size * min(length**2, d**2)


def test_ghost_norms_are_not_too_small_where_their_terms_cancel() -> None:
    """Gram matrices of nearly constant activations: without the allowance float32 norms fall below the true ones."""
    generator = torch.Generator().manual_seed(0)
    common, own = (torch.randn(64, 1 + 7 * i, 200, generator=generator) for i in (0, 1))
    signs = torch.tensor([1.0, -1.0]).repeat(4)[:, None]
    activations, outputs = 30 * common + own, signs * torch.randn(64, 1, 200, generator=generator)
    truth = (activations.double().transpose(1, 2) @ outputs.double()).square().sum((1, 2))
    layer = plan_layers({"layer": nn.Linear(200, 200, bias=False)}, NormPolicy(tokens=8))[0]
    allowed, _ = layer.measure([([activations], outputs)], 0, None)
    assert bool((ghost_squared_norms(activations, outputs) < truth * (1 - 1e-6)).any())
    assert bool((allowed >= truth).all())
    assert float((allowed / truth).max()) < 1.1


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft asks transformers
def test_lora_in_float32_on_a_bfloat16_model() -> None:
    """Peft's default: adapters in float32, the frozen model in bfloat16; norms and sums are float32's."""
    model = get_peft_model(bert().to(torch.bfloat16), LoraConfig(r=2, target_modules=["query"]))
    assert {value.dtype for value in model.parameters()} == {torch.bfloat16, torch.float32}
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=1.0)
    options = {"clipping_norm": 1e-4, "noise_multiplier": 0.0, "expected_batch_size": 1}
    step = make_private(model.train(), optimizer, norms=Hutchinson(K, secret=True), **options)
    assert [layer.is_exact for layer in step.record.layers] == [True, True]  # 2 <= k
    step.accumulate(1e6 * losses(step.model, tokens(1)), samples=[0], step=0)
    norm = math.sqrt(
        sum(float(value.summed_grad.double().square().sum()) for value in optimizer.param_groups[0]["params"])
    )
    assert 1e-4 * (1 - 2e-4) < norm <= 1e-4
