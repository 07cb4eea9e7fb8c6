"""Norm samplers inside Opacus' hooks, on gradients of a small transformer: their law, envelope, memory and record."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from scipy import stats
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertConfig, BertForSequenceClassification

from audits.steps import private_sgd
from dprmt import ParameterError
from dprmt.accounting import DPSGD, Hutchinson, chi2_mixture_cdf, envelope_cdf
from dprmt.training.clipping import ClippedStep, plan_private
from dprmt.training.norms import HutchinsonEstimator, LayerRecord, NormRecord, ProbeGenerator, exact_squared_norms
from dprmt.training.norms._clipping import sum_of_squares
from tests.training.literal import gradients_of
from tests.training.norms_by_word import by_word

T, K, VOCAB = 6, 4, 30
QUERY = "bert.encoder.layer.0.attention.self.query"


def bert(trainable: str = "") -> nn.Module:
    """A BERT in float64 with the layers of that name trainable."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"vocab_size": VOCAB, "max_position_embeddings": 16, "num_labels": 3}
    config = BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = BertForSequenceClassification(config).double().train()
    for name, value in model.named_parameters():
        value.requires_grad_(trainable in name)
    return model


def tokens(size: int) -> torch.Tensor:
    return torch.randint(1, VOCAB, (size, T), generator=torch.Generator().manual_seed(1))


def losses(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(input_ids=x).logits.square().sum(1)


def private(model: nn.Module, norms: Any, **options: Any) -> ClippedStep:
    return private_sgd(model, norms=norms, **options)


def squared_norms(private: ClippedStep, x: torch.Tensor, samples: Sequence[int], step: int = 0) -> torch.Tensor:
    """Of the norms' own estimates, before anything is clipped."""
    squared = private._capture.backward(losses(private.model, x), step=step, samples=samples)
    private._capture.finish()
    return squared


def gradients(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of one sample, by a plain backward pass."""
    plain = copy.deepcopy(model)
    return gradients_of(plain, [losses(plain, x)])[0]


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


def test_a_value_with_a_rank_estimates_everything_and_may_not_claim_less() -> None:
    whole = claimed(HutchinsonEstimator(K, secret=False, everything=True), bert(), tokens=T).norms
    assert claimed(Hutchinson(K, rank=whole.rank + 5, secret=False), bert(), tokens=T).norms == whole
    with pytest.raises(ParameterError, match=f"norms.rank must be at least {whole.rank}"):
        claimed(Hutchinson(K, rank=whole.rank - 1, secret=False), bert(), tokens=T)


def test_a_block_of_a_gradient_is_within_its_budget() -> None:
    """(d, p) = (512, 512), whole 1 MiB; on a CPU at least 128 rows, if that is within the budget."""
    a, g = torch.randn(1, 8, 512), torch.randn(1, 8, 512)
    for budget in (1, 1 << 16, 1 << 19):
        with LargestTensor(ignored=a.numel()) as memory:
            exact_squared_norms(a, g, memory_budget=budget)
        assert memory.largest <= max(512, budget // 4)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(0, 5), st.integers(0, 7), st.integers(1, 200), st.integers(1, 60)),
    budget=st.integers(1, 200_000),
    bias=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**31),
)
def test_blocks_have_the_norms_of_whole_gradients(
    shape: tuple[int, int, int, int], budget: int, bias: bool, dtype: torch.dtype, seed: int
) -> None:
    """For every budget, within 2⁻²⁰ of a gradient formed in float64."""
    (size, tokens, d, p), generator = shape, torch.Generator().manual_seed(seed)
    a, g = (torch.randn(size, tokens, n, generator=generator).to(dtype) for n in (d, p))
    whole = (a.double().mT @ g.double()).square().sum((1, 2)) + bias * g.double().sum(1).square().sum(1)
    found = exact_squared_norms(a, g, bias=bias, memory_budget=budget)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, whole, rtol=2.0**-20, atol=0.0 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("shape", [(3,), (2, 5), (3, 70_000), (70_000, 3), (0, 4), (2, 0), (3, 33, 1100)])
def test_sums_of_squares_whatever_the_blocks(shape: tuple[int, ...]) -> None:
    values = torch.randn(shape) * 1e25  # whose squares no float32 holds
    expected = values[..., None].flatten(1).double().square().sum(1)
    torch.testing.assert_close(sum_of_squares(values), expected, rtol=1e-12, atol=0.0)
    if values.numel():
        values.view(-1)[-1] = torch.inf
        assert torch.isinf(sum_of_squares(values)[-1])
        values.view(-1)[-1] = torch.nan
        assert torch.isnan(sum_of_squares(values)[-1])


@pytest.mark.parametrize("sharing", ["sample", "batch"])
@pytest.mark.parametrize("clipping", ["exact", "ghost", "hutchinson", "hutch++"])
def test_memory_of_a_step(clipping: str, sharing: str) -> None:
    """Beside copies of A and G nothing exceeds k(T + d + p) per sample with estimates, as exact methods do."""
    size, length, d = 16, 40, 48
    step = private(nn.Linear(d, d), by_word(clipping, K, sharing=sharing), noise_multiplier=1.0)
    for number in range(2):  # the first one is checked, which takes more
        total = step.model(torch.randn(size, length, d)).square().sum((1, 2))
        with LargestTensor(ignored=size * length * d) as memory:
            step.accumulate(total, samples=range(size), step=number)
            step.step()
    limit, exact = size * K * (length + 2 * d + 1), size * min(length**2, d**2)
    assert limit < exact
    assert memory.largest <= limit if clipping.startswith("hutch") else memory.largest >= exact


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft asks transformers
def test_lora_in_float32_on_a_bfloat16_model() -> None:
    """Peft's default: adapters in float32, the frozen model in bfloat16; norms and sums are float32's."""
    model = get_peft_model(bert().to(torch.bfloat16), LoraConfig(r=2, target_modules=["query"]))
    assert {value.dtype for value in model.parameters()} == {torch.bfloat16, torch.float32}
    step = private(model.train(), Hutchinson(K, secret=True), clipping_norm=1e-4)
    assert not step.record.estimated  # 2 <= k
    step.accumulate(1e6 * losses(step.model, tokens(1)), samples=[0], step=0)
    norm = math.sqrt(sum(float(value.summed_grad.double().square().sum()) for value in step.optimizer.params))
    assert 1e-4 * (1 - 2e-4) < norm <= 1e-4


def test_the_record_says_what_may_be_claimed() -> None:
    """A finite rank only with everything estimated and bounded; DPSGD where all layers are small."""
    secret = Hutchinson(K, secret=True)
    default = claimed(HutchinsonEstimator(K), bert(), tokens=T)
    assert default.norms == secret
    exact = {LayerRecord("bert.embeddings.word_embeddings"), LayerRecord("classifier")}  # 3 <= k
    assert {LayerRecord(QUERY, replace(secret, rank=T)), *exact} <= set(default.layers)
    everything = claimed(HutchinsonEstimator(K, everything=True), bert(), tokens=T)
    assert everything.estimated == list(everything.layers)
    assert everything.norms == replace(secret, rank=sum(layer.norms.rank for layer in everything.layers))
    for name, rank in {"LayerNorm.weight": 1, "word_embeddings": T, "token_type_embeddings": 2}.items():
        assert LayerRecord(f"bert.embeddings.{name}", replace(secret, rank=rank)) in everything.layers
    unbounded = claimed(HutchinsonEstimator(K, everything=True), bert())
    assert LayerRecord(QUERY, replace(secret, rank=16)) in unbounded.layers
    assert claimed(HutchinsonEstimator(K), bert("classifier")).mechanism(1.0, 0.1) == DPSGD(1.0, 0.1)
