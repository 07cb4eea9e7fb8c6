"""The clipped, noised gradient of a logical step against a literal loop over samples, one backward pass for each."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

from audits.steps import Parts, private_sgd
from dprmt.training.clipping import ClippedStep
from tests.training.clipping_table import CLIPPINGS, SEED, STEP, K, S, Way, literal_squared_norm
from tests.training.literal import clipped_sum, gradients_of
from tests.training.norms_by_word import by_word

T, VOCAB = 6, 29
IDS = [11, "b", 7, 3, "a"]
VARIANTS = [(clipping, "sample") for clipping in CLIPPINGS] + [("hutchinson", "batch")]
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft asks transformers


def tokens() -> nn.Module:
    """Embedding with padding, then a linear layer without bias."""
    return Parts(
        lambda model, tokens: model.head(torch.tanh(model.table(tokens))),
        table=nn.Embedding(VOCAB, 12, padding_idx=0),
        head=nn.Linear(12, 7, bias=False),
    )


def mlp() -> nn.Module:
    layers = nn.Linear(5, 20), nn.Tanh(), nn.LayerNorm(20), nn.Linear(20, 9), nn.RMSNorm(9), nn.Linear(9, 2)
    layers[3].weight.requires_grad_(False)  # a bias alone
    return nn.Sequential(*layers)


def gpt2() -> nn.Module:
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16, "vocab_size": VOCAB}
    config = GPT2Config(**sizes, tie_word_embeddings=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return GPT2LMHeadModel(config)


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "embedding": tokens, "gpt2": gpt2}


def make_model(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().to(dtype).train()


def inputs(name: str, dtype: torch.dtype = torch.float64, size: int = len(IDS)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    if name == "mlp":
        return torch.randn(size, T, 5, generator=generator, dtype=torch.float64).to(dtype)
    return torch.randint(0 if name == "embedding" else 2, VOCAB, (size, T), generator=generator)


def losses(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """One loss for each sample, of very different sizes."""
    output = model(x)
    output = getattr(output, "logits", output).double()
    if output.ndim == 3:
        output = output.mean(1)
    scale = 1 + x.double().flatten(1).abs().sum(1) ** 2
    return scale * functional.cross_entropy(output, torch.ones(len(x), dtype=torch.long), reduction="none")


def private(model: nn.Module, clipping: str, sharing: str = "sample", **options: object) -> ClippedStep:
    norms = by_word(clipping, K, S, sharing=sharing, seed=SEED)
    usual = {"norms": norms, "tokens": T, "noise_generator": torch.Generator().manual_seed(SEED)}
    return private_sgd(model, **(usual | options))


def trained(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters() if value.requires_grad}


def moved(model: nn.Module, before: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The gradient that SGD with learning rate 1 was given."""
    return {name: before[name] - value for name, value in trained(model).items()}


class Twice(nn.Module):
    """Uses its layers two times, and has one that nobody knows."""

    class Scale(nn.Module):
        """A layer of somebody else's."""

        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.linspace(0.5, 2.0, 12))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.gain * x

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer, self.scale = nn.Embedding(VOCAB, 12, padding_idx=3), nn.Linear(12, 12), self.Scale()
        self.norm = nn.LayerNorm(12)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.scale(self.norm(self.layer(self.table(tokens))))
        return self.norm(self.layer(torch.tanh(self.scale(hidden)))) + self.table(tokens.flip(1))


@pytest.mark.parametrize(("clipping", "sharing"), VARIANTS)
def test_a_layer_used_twice_has_one_gradient(clipping: str, sharing: str) -> None:
    """Its norm is that of the sum over its uses; against a plain backward pass for every sample."""
    torch.manual_seed(0)
    way, model, x = Way("full", clipping, sharing, "sgd"), Twice().double().train(), inputs("embedding")
    samples = gradients_of(model, (losses(model, row[None]) for row in x))
    pairs = zip(samples, IDS, strict=True)
    norms = [math.sqrt(literal_squared_norm(way, model, gradients, sample)) for gradients, sample in pairs]
    bound = sorted(norms)[2]
    before = trained(model)
    step = private(model, clipping, clipping_norm=bound, sharing=sharing, tokens=2 * T)
    step.accumulate(losses(step.model, x), samples=IDS, step=STEP)
    step.step()
    expected = clipped_sum(samples, (1 - step.rounding) * bound, norms)
    for name, value in moved(model, before).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_a_sample_that_is_not_finite_is_left_out(clipping: str) -> None:
    """NaN and infinity in the input, and an infinite loss: the sum is that of the other samples."""
    x = inputs("mlp")
    broken = x.clone()
    broken[1, 2, 3], broken[3, 0, 0] = math.nan, math.inf
    whole, rest = make_model("mlp"), make_model("mlp")
    kept = [0, 2, 4]
    results = []
    for model, batch, names in ((whole, broken, IDS), (rest, x[kept], [IDS[i] for i in kept])):
        step = private(model, clipping)
        before = trained(model)
        step.accumulate(losses(step.model, batch), samples=names, step=0)
        step.step()
        results.append(torch.cat([value.flatten() for value in moved(model, before).values()]))
    assert bool(results[0].isfinite().all())
    assert float(results[1].norm()) > 0.1
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("clipping", ["exact", "ghost"])
def test_a_gradient_of_infinite_norm_is_left_out(clipping: str) -> None:
    """Its factor is zero, and zero times infinity would be NaN in the sum of all."""
    model = torch.nn.Linear(3, 1, bias=False).double()
    step = private(model, clipping)
    x = torch.tensor([[1.0, 2.0, 2.0], [math.inf, 1.0, 1.0]], dtype=torch.float64)
    before = trained(model)
    step.accumulate(step.model(x).sum(1), samples=["kept", "infinite"], step=0)
    step.step()
    (change,) = moved(model, before).values()
    torch.testing.assert_close(change / change.norm(), x[:1] / 3.0)


@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_contributions_keep_their_bound(name: str, clipping: str) -> None:
    """The float32 sum of one sample has norm at most C with exact norms; estimates keep factor and bound together."""
    model = make_model(name, torch.bfloat16)
    x = inputs(name, torch.bfloat16)
    step = private(model, clipping, clipping_norm=0.5)
    before = trained(model)
    for i in range(len(x)):
        step.accumulate(losses(step.model, x[i : i + 1]), samples=[IDS[i]], step=i)
        sums = [value.summed_grad for value in model.parameters() if getattr(value, "summed_grad", None) is not None]
        assert {value.dtype for value in sums} == {torch.float32}
        norm = math.sqrt(sum(float(value.double().square().sum()) for value in sums))
        assert 0.5 * (1 - 2e-4) < norm <= 0.5 if clipping in ("exact", "ghost") else 0.15 < norm < 2.0
        step.step()
    assert {value.dtype for value in trained(model).values()} == {torch.bfloat16}
    assert sum(float(value.abs().sum()) for value in moved(model, before).values()) > 0


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_noise_has_the_stated_variance_and_comes_once(clipping: str) -> None:
    """Per entry σC/L, L the expected batch size, after three micro-batches; 5 % more or less is rejected."""
    torch.manual_seed(0)
    model = nn.Linear(90, 90)
    step = private(model, clipping, noise_multiplier=1.5, clipping_norm=2.0, expected_batch_size=40.0, tokens=None)
    for i in range(3):
        x = torch.zeros(2, 4, 90)  # the weight's gradient is zero
        step.accumulate(step.model(x).square().sum((1, 2)), samples=[2 * i, 2 * i + 1], step=0)
    assert sum(float(value.summed_grad.double().square().sum()) for value in model.parameters()) > 0  # the bias'
    before = model.weight.detach().clone()
    step.step()
    noise = (before - model.weight.detach()).flatten().numpy()
    scale = 1.5 * 2.0 / 40.0
    assert stats.kstest(noise, stats.norm(scale=scale).cdf).pvalue > 1e-3
    squares = float((noise.astype(float) ** 2).sum())
    accepts = lambda sd: 1e-4 < stats.chi2.cdf(squares / sd**2, noise.size) < 1 - 1e-4  # noqa: E731
    assert accepts(scale)
    for wrong in (0.95, 1.05, 1 / math.sqrt(3), math.sqrt(3), 40 / 6):
        assert not accepts(wrong * scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 15, 16, 100, 65_535, 65_536, 65_551, 65_552, 3 * 65_536 + 5])
def test_noise_in_pieces_is_what_torch_draws_at_once(size: int, dtype: torch.dtype) -> None:
    """Of a parameter of that size and a gradient of small integers; it leaves the generator where torch does."""
    one, other = torch.Generator().manual_seed(size), torch.Generator().manual_seed(size)
    model, x = nn.Linear(size, 1, bias=False, dtype=dtype), torch.randint(-1, 2, (1, 1, size)).to(dtype)
    nn.init.zeros_(model.weight)
    step = private_sgd(
        model, norms="exact", clipping_norm=1024.0, noise_multiplier=0.25, expected_batch_size=1, noise_generator=other
    )
    step.accumulate(step.model(x).sum((1, 2)), samples=[0], step=0)
    step.step()
    expected = x[0] + torch.normal(0.0, 256.0, (1, size), generator=one, dtype=dtype)
    assert torch.equal(model.weight, -expected)
    assert torch.equal(one.get_state(), other.get_state())
