"""What each kind of layer measures and sums, against a literal loop over samples in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional

from dprmt.training.clipping import make_private
from dprmt.training.clipping._layer_kinds import plan_layers
from dprmt.training.clipping._policy import NormPolicy
from dprmt.training.norms import HutchinsonEstimator, HutchPlusPlusEstimator, ProbeGenerator

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
    (layer,) = plan_layers({"layer": module}, policy)
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
        if not any(record.norms for record in plan_layers({"layer": module}, policy)[0].records()):
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


class Block(nn.Module):
    """As in ConvNeXT: a depthwise convolution, then the channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.spread = nn.Conv2d(3, 8, 2, stride=2), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.last, self.head = nn.Conv2d(8, 6, 3), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.stem(x)
        inner = self.norm(self.spread(hidden).permute(0, 2, 3, 1))
        hidden = hidden + self.down(functional.gelu(self.up(inner))).permute(0, 3, 1, 2)
        return self.head(torch.tanh(self.last(hidden)).mean((2, 3)))


@pytest.mark.parametrize("layout", ["row-major", "channels last", "samples last"])
@pytest.mark.parametrize("norms", ["exact", "ghost", "hutchinson", "hutch++"])
def test_a_step_of_a_convolutional_network_is_the_literal_sum(norms: str, layout: str) -> None:
    """With C below all norms; estimates are compared by direction: each sample alone is a multiple of its gradient."""
    torch.manual_seed(0)
    model = Block().double()
    x = torch.randn(B, 3, 8, 8, dtype=torch.float64)
    x = x if layout == "row-major" else LAYOUTS[layout](x)
    if layout == "channels last":
        model = model.to(memory_format=torch.channels_last)
    plain, alone = copy.deepcopy(model), []
    for i in range(B):
        plain.zero_grad()
        plain(x[i : i + 1].contiguous()).square().sum().backward()
        alone.append(torch.cat([value.grad.flatten() for value in plain.parameters()]))
    lengths = [float(value.norm()) for value in alone]
    bound = 0.5 * min(lengths)
    estimators = {
        "hutchinson": HutchinsonEstimator(2, generator=ProbeGenerator(3)),
        "hutch++": HutchPlusPlusEstimator(2, 1, generator=ProbeGenerator(3)),
    }
    step = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        norms=estimators.get(norms, norms),
        clipping_norm=bound,
        noise_multiplier=0.0,
        expected_batch_size=1.0,
    )

    def moved(rows: slice, number: int) -> torch.Tensor:
        step.accumulate(step.model(x[rows]).square().sum(1), samples=list(IDS[rows]), step=number)
        total = torch.cat([value.summed_grad.flatten() for value in model.parameters()])
        step.optimizer.zero_grad(set_to_none=True)
        step._log.current = None
        return total

    together, one_by_one = moved(slice(0, B), 0), [moved(slice(i, i + 1), i + 1) for i in range(B)]
    for value, right, length in zip(one_by_one, alone, lengths, strict=True):
        share = float(value @ right) / length**2
        torch.testing.assert_close(value, share * right, rtol=1e-6, atol=1e-9 * length)
        if norms in ("exact", "ghost"):
            assert share * length == pytest.approx(bound, rel=2e-4)
            assert share * length <= bound
    if norms in ("exact", "ghost"):
        torch.testing.assert_close(together, sum(one_by_one), rtol=1e-6, atol=1e-9)
