"""What each kind of layer measures and sums, against a literal loop over samples in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers.models.bart.modeling_bart import BartScaledWordEmbedding

from audits.steps import private_sgd
from dprmt.accounting import ExactNorms
from dprmt.training.clipping._formed_layers import NormPolicy
from dprmt.training.clipping._matrix_layers import plan_layers
from dprmt.training.clipping._modules import trainable_modules
from dprmt.training.norms import (
    HutchinsonEstimator,
    HutchPlusPlusEstimator,
    ProbeGenerator,
    exact_squared_norms,
    ghost_squared_norms,
    rounding_margin,
)
from tests.training.clipping_table import CLIPPINGS
from tests.training.norms_by_word import by_word

B = 4
IDS = range(B)
pytestmark = pytest.mark.filterwarnings("ignore:Using padding=.same. with even kernel:UserWarning")


class Gain(nn.Module):
    """A layer of nobody's, with one input and no parts."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 2.0, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.gain * x)


def image(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(B, *shape, generator=torch.Generator().manual_seed(1))


def tokens(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(0, 7, (B, *shape), generator=torch.Generator().manual_seed(1))


Kind = tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]
CONVOLUTIONS: dict[str, Kind] = {
    "conv1d": (lambda: nn.Conv1d(4, 6, 3), image(4, 9)),
    "conv1d, one place": (lambda: nn.Conv1d(4, 6, 9, bias=False), image(4, 9)),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3), image(3, 8, 7)),
    "conv2d, depthwise": (lambda: nn.Conv2d(4, 8, 3, padding=1, groups=4), image(4, 6, 5)),
    "conv2d, grouped": (lambda: nn.Conv2d(4, 6, (3, 2), stride=(2, 1), dilation=(1, 2), groups=2), image(4, 9, 8)),
    "conv2d, same": (lambda: nn.Conv2d(2, 3, (2, 4), padding="same"), image(2, 5, 6)),
    "conv2d, stride": (lambda: nn.Conv2d(3, 4, 3, stride=3, padding=(0, 2)), image(3, 8, 8)),
    "conv2d, patches": (lambda: nn.Conv2d(3, 12, 4, stride=4), image(3, 8, 8)),
    "conv3d": (lambda: nn.Conv3d(2, 4, (2, 3, 2), stride=(1, 2, 1), padding=1, groups=2), image(2, 4, 5, 3)),
    **{
        f"conv2d, {mode}": (lambda mode=mode: nn.Conv2d(2, 3, 3, padding=(1, 2), padding_mode=mode), image(2, 5, 6))
        for mode in ("reflect", "replicate", "circular")
    },
}
KINDS: dict[str, Kind] = CONVOLUTIONS | {
    "linear": (lambda: nn.Linear(5, 6), image(7, 5)),
    "linear, long": (lambda: nn.Linear(5, 6, bias=False), image(200, 5)),
    "linear, wide": (lambda: nn.Linear(30, 40), image(3, 30)),
    "linear, several axes": (lambda: nn.Linear(30, 40), image(2, 3, 30)),
    "embedding": (lambda: nn.Embedding(7, 5, padding_idx=2), tokens(6)),
    "embedding, scaled": (lambda: BartScaledWordEmbedding(7, 5, 2, embed_scale=3.0), tokens(6)),
    "embedding, two axes": (lambda: nn.Embedding(7, 5), tokens(3, 4)),
    "layer norm": (lambda: nn.LayerNorm(5), image(7, 5)),
    "layer norm, two axes": (lambda: nn.LayerNorm((7, 5)), image(3, 7, 5)),
    "rms norm": (lambda: nn.RMSNorm(5), image(7, 5)),
    "group norm": (lambda: nn.GroupNorm(2, 6), image(6, 4, 5)),
    "instance norm": (lambda: nn.InstanceNorm2d(6, affine=True), image(6, 4, 5)),
    "another": (lambda: Gain(5), image(3, 5)),
}
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "channels last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    "samples last": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
    "reversed": lambda x: x.permute(*reversed(range(x.ndim))).contiguous().permute(*reversed(range(x.ndim))),
    "every other": lambda x: torch.stack([x, torch.full_like(x, 99)], -1)[..., 0],
    "expanded": lambda x: x[:1].expand(x.shape),
}
POLICIES = {
    "exact": NormPolicy(form=True),
    "ghost": NormPolicy(),
    "a few at a time": NormPolicy(form=True, memory_budget=1),
    "hutchinson": NormPolicy(HutchinsonEstimator(2, secret=False, generator=ProbeGenerator(3))),
    "hutchinson, all": NormPolicy(HutchinsonEstimator(2, everything=True, generator=ProbeGenerator(3))),
    "hutch++": NormPolicy(HutchPlusPlusEstimator(2, 3, generator=ProbeGenerator(3))),
}


def make(kind: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A layer, its inputs, and gradients of its output of very different sizes."""
    torch.manual_seed(0)
    module, x = KINDS[kind][0](), KINDS[kind][1]()
    with torch.no_grad():
        for value in module.parameters():
            value.add_(0.1 * torch.randn(value.shape))
        shape = module(x).shape
    scales = torch.tensor([1.0, 1e-3, 30.0, 0.2]).view(B, *[1] * (len(shape) - 1))
    return module, x, scales * torch.randn(shape)


def measured(module: nn.Module, policy: NormPolicy, x: torch.Tensor, g: torch.Tensor) -> list[torch.Tensor]:
    """Squared norms, and the sums with factors 1, ½, ⅓, ¼."""
    (layer,) = plan_layers(trainable_modules(module), policy)
    squared, contributions = layer.measure([([x.detach()], g)], 0, IDS)
    for contribution in contributions:
        contribution.add_to_sums(1 / torch.arange(1.0, B + 1, dtype=torch.float64), slice(None))
    sums = [value.summed_grad for value in module.parameters()]
    for value in module.parameters():
        value.summed_grad = None
    return [squared, *sums]


def literal(module: nn.Module, x: torch.Tensor, g: torch.Tensor) -> list[torch.Tensor]:
    """The same by autograd, one sample at a time, in float64."""
    double = copy.deepcopy(module).double()
    squared, sums = [], [torch.zeros_like(value) for value in double.parameters()]
    for i in range(B):
        own = x[i : i + 1].double() if x.is_floating_point() else x[i : i + 1]
        gradients = torch.autograd.grad(double(own), list(double.parameters()), g[i : i + 1].double())
        squared.append(sum(value.square().sum() for value in gradients))
        for total, value in zip(sums, gradients, strict=True):
            total += value / (i + 1)
    return [torch.stack(squared), *sums]


@pytest.mark.parametrize("kind", KINDS)
def test_norms_and_sums_are_those_of_a_loop(kind: str) -> None:
    module, x, g = make(kind)
    expected = literal(module, x, g)
    for name, policy in POLICIES.items():
        found = measured(module, policy, x, g)
        (layer,) = plan_layers(trainable_modules(module), policy)
        if all(record.norms == ExactNorms() for record in layer.records):
            torch.testing.assert_close(found[0], expected[0], rtol=2e-4, atol=0.0, msg=name)
        for value, right in zip(found[1:], expected[1:], strict=True):
            torch.testing.assert_close(value.double(), right, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_depends_on_how_tensors_lie_in_memory(kind: str, layout: str) -> None:
    """Of the inputs, of the output gradients, and of both."""
    module, x, g = make(kind)
    lies = LAYOUTS[layout]
    one, other = lies(x), lies(g)
    for policy in POLICIES.values():
        expected = measured(module, policy, one.contiguous(), other.contiguous())
        for inputs, gradients in ((one, other), (one, other.contiguous()), (one.contiguous(), other)):
            found = measured(module, policy, inputs, gradients)
            for value, right in zip(found, expected, strict=True):
                torch.testing.assert_close(value, right, rtol=1e-5, atol=1e-5 * float(right.abs().max()))


def weighted_sum(norms: str, layer: nn.Module, x: torch.Tensor, weights: torch.Tensor, clip: float) -> torch.Tensor:
    """Of all parameters, in float64, where output gradients are the weights: one micro-batch in the order given."""
    model = copy.deepcopy(layer)
    step = private_sgd(model, norms=by_word(norms, 8, 3, sharing="batch", seed=3), clipping_norm=clip)
    step.accumulate((step.model(x) * weights).flatten(1).sum(1), samples=range(len(x)), step=0)
    return torch.cat([value.summed_grad.flatten().double() for value in model.parameters()])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norms", CLIPPINGS)
def test_a_record_whose_tokens_cancel_wipes_out_no_others(norms: str, dtype: torch.dtype, bias: bool) -> None:
    """Its own gradient is 0, so in exact arithmetic the sum does not move; all others point in one direction.

    Of the weight, or of the bias alone.
    """
    layer, size = nn.Linear(64, 64, bias=bias).to(dtype), 64
    x, weights = torch.full((size, 2, 64), float(not bias), dtype=dtype), torch.ones(size, 2, 64, dtype=dtype)
    others = weighted_sum(norms, layer, x[1:], weights[1:], 1.0)
    assert float(others.norm()) > 20.0
    for scale in (1e4, 1e8, 1e15):
        for place in (0, 40, size - 1):
            cancels = weights.clone()
            cancels[place] = scale * torch.tensor([1.0, -1.0])[:, None]
            assert float((weighted_sum(norms, layer, x, cancels, 1.0) - others).norm()) < 1e-3, (scale, place)


def test_room_for_tokens_that_cancel_lowers_no_ordinary_factor_by_more_than_the_margin() -> None:
    """Of independent tokens, and of tokens that add up."""
    generator = torch.Generator().manual_seed(0)
    for length, common in ((2, 0.0), (40, 0.0), (40, 1.0), (300, 0.3)):
        a = torch.randn(16, length, 400, generator=generator) + common
        g = torch.randn(16, length, 400, generator=generator) + common
        truth = (a.double().transpose(1, 2) @ g.double()).square().sum((1, 2))
        for tokens in (length, None):
            for form in (True, False):
                (layer,) = plan_layers(
                    trainable_modules(nn.Linear(400, 400, bias=False)), NormPolicy(form=form, tokens=tokens)
                )
                squared, _ = layer.measure([([a], g)], 0, None)
                share = (squared / truth).sqrt() - 1
                assert float(share.min()) > -1e-6
                assert float(share.max()) < rounding_margin(801 + (tokens or 65_000))


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("norms", CLIPPINGS)
def test_no_product_that_underflows_hides_a_gradient(norms: str, flushed: bool) -> None:
    """Inputs so small, output gradients so large, and the reverse; of all tokens, or of one among ordinary ones."""
    layer = nn.Linear(96, 96, bias=False)
    for tokens in (3, 40):
        for small, large in ((2e-23, 5e17), (5e17, 2e-23), (1e-30, 3e30), (1e-38, 1e38), (1e-42, 1e38)):
            x, weights = torch.full((1, tokens, 96), small), torch.full((1, tokens, 96), large)
            mixed = x.clone(), weights.clone()
            mixed[0][:, 1:], mixed[1][:, 1:] = 1.0, small * large
            for one, other in ((x, weights), mixed):
                length = float((one[0].double().T @ other[0].double()).norm())
                torch.set_flush_denormal(flushed)
                try:
                    total = weighted_sum(norms, layer, one, other, 0.1 * length)
                finally:
                    torch.set_flush_denormal(False)
                estimated = 2.0 if norms.startswith("hutch") else 1.0
                assert float(total.norm()) <= 0.1 * length * estimated, (tokens, small, large)


@pytest.mark.parametrize("bias", [False, True])
def test_ghost_norms_of_rows_of_any_length(bias: bool) -> None:
    """Against float64, of tokens whose activations and gradients lie 60 powers of ten apart, and of more than 128."""
    generator = torch.Generator().manual_seed(0)
    for tokens in (1, 5, 128, 129, 300):
        a, g = (torch.randn(3, tokens, width, generator=generator) for width in (20, 30))
        powers = torch.randint(-15, 16, (3, tokens, 1), generator=generator)
        powers[2] = 0
        a[:, ::3] = 0.0 if tokens > 1 else 1.0
        for scale in (1.0, 1e18, 1e-18):
            one, other = a * 10.0**powers * scale, g / 10.0**powers
            whole = torch.cat([one.double(), torch.full_like(one[..., :1], bias).double()], 2)
            truth = (whole.transpose(1, 2) @ other.double()).square().sum((1, 2))
            torch.testing.assert_close(ghost_squared_norms(one, other, bias=bias), truth, rtol=2e-5, atol=1e-30)


def test_a_bias_norm_is_of_all_tokens() -> None:
    """Of 9 MiB in float64, where the last tokens have the largest gradients."""
    generator = torch.Generator().manual_seed(0)
    g = torch.linspace(0.0, 2.0, 6000)[:, None] * (1.0 + torch.rand(1, 6000, 200, generator=generator))
    truth = float(g.double().sum(1).square().sum())
    for norm in (exact_squared_norms, ghost_squared_norms):
        assert float(norm(torch.zeros(1, 6000, 3), g, bias=True)) == pytest.approx(truth, rel=1e-5)


@pytest.mark.parametrize("norms", CLIPPINGS)
def test_no_factor_is_rounded_up_where_numbers_are_coarse(norms: str) -> None:
    """Below 2⁻¹²⁶ float32 has few digits: of factors, and of clipped gradients beside huge activations."""
    layer = nn.Linear(96, 96, bias=False)
    for large, small in ((1e15, 4.86e26), (3e38, 1e-8), (1e38, 1e-6), (1e-6, 1e38), (1e20, 1e23)):
        for tokens in (3, 40):
            x, weights = torch.full((1, tokens, 96), large), torch.full((1, tokens, 96), small)
            total = weighted_sum(norms, layer, x, weights, 0.1)
            assert float(total.norm()) <= 0.1 * (2.0 if norms.startswith("hutch") else 1.0)


def test_an_estimated_table_is_measured_by_the_rows_that_are_summed() -> None:
    """A word's gradients cancel up to rounding: what is left is stored, and its estimate is of that."""
    table = nn.Embedding(7, 40)
    (layer,) = plan_layers(trainable_modules(table), POLICIES["hutchinson, all"])
    g = torch.randn(B, 6, 40, generator=torch.Generator().manual_seed(0))
    g[:, 3] = -1e8 * g[:, 0]
    g[:, 0] *= 1e8
    words = torch.tensor([1, 2, 3, 1, 2, 1]).repeat(B, 1)
    squared, (contribution,) = layer.measure([([words], g)], 0, IDS)
    contribution.add_to_sums(torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64), slice(None))
    (P,) = ProbeGenerator(3).per_sample([0], step=0, layer="model", rows=40, probes=2)
    assert float(squared[0]) == pytest.approx(float((table.weight.summed_grad @ P).double().square().sum()), rel=1e-5)
