"""Plan, mechanism, noise multiplier, private model; and an estimator from outside the package."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from audits.steps import private_sgd
from dprmt import ParameterError, TrainingStateError
from dprmt.accounting import DPSGD, ExactNorms, Hutchinson, HutchPlusPlus, Norms
from dprmt.training.clipping import plan_private
from dprmt.training.norms import HutchPlusPlusEstimator, LayerRecord, NormEstimator, NormRecord

COMMON = {"clipping_norm": 1.0, "expected_batch_size": 2.0}


@dataclass(frozen=True)
class SignProbes:
    """‖M P‖² with random signs instead of normals: unbiased, but of another law than Hutchinson's with normals."""

    width: int = 3
    norms: Norms | None = None

    def is_cheaper(self, in_features: int, out_features: int) -> bool:
        return min(in_features, out_features) > self.width

    def terms(self, tokens: int, in_features: int, out_features: int) -> int:
        return tokens + in_features + out_features

    def signs(self, rows: int, layer: str, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(hash((layer, step)) % 2**32)
        return torch.randint(0, 2, (rows, self.width), generator=generator).double() * 2 - 1

    def squared_norms(self, activations, gradients, *, layer, step, samples=None, bias=False):  # type: ignore
        signs = self.signs(gradients.shape[-1], layer, step) / self.width**0.5
        products = activations.double().mT @ (gradients.double() @ signs)
        total = (gradients.double() @ signs).sum(1) if bias else 0 * products[:, 0]
        return products.square().sum((1, 2)) + total.square().sum(1)


def test_an_estimator_from_outside_clips_by_its_own_norms() -> None:
    """Against a literal loop: the released sum with SGD at learning rate 1 is Σ g_i min(1, (1-ρ)C/√n̂_i) / L."""
    torch.manual_seed(0)
    net, estimator = nn.Linear(6, 5).double(), SignProbes()
    plain, x = copy.deepcopy(net), torch.randn(4, 3, 6, dtype=torch.float64)
    assert isinstance(estimator, NormEstimator)
    private = private_sgd(net, norms=estimator, tokens=3, **COMMON)
    private.accumulate(private.model(x).square().sum((1, 2)), samples=range(4), step=2)
    private.step()
    expected, signs = torch.zeros_like(net.weight), estimator.signs(5, "model", 2) / 3**0.5
    for sample in x:
        weight, bias = torch.autograd.grad(plain(sample).square().sum(), list(plain.parameters()))
        norm = torch.cat([weight.T @ signs, (bias @ signs)[None]]).norm()
        expected += weight * min(1.0, (1 - private.rounding) / float(norm)) / 2
    torch.testing.assert_close(plain.weight - net.weight, expected, rtol=1e-9, atol=1e-12)


def test_a_layer_in_float64_leaves_the_others_their_rounding_margin() -> None:
    def margin(first: torch.dtype, second: torch.dtype) -> float:
        net = nn.Sequential(nn.Linear(6, 5).to(first), nn.Linear(5, 4).to(second))
        step = private_sgd(net, norms="exact", tokens=3, **COMMON)
        return float(step.rounding)

    single, double = torch.float32, torch.float64
    assert margin(single, double) == margin(double, single) == margin(single, single) > 1e3 * margin(double, double)


def test_the_accountant_refuses_a_law_that_it_does_not_know() -> None:
    plan = plan_private(nn.Linear(6, 5), norms=SignProbes(), **COMMON)
    with pytest.raises(ParameterError, match="law"):
        plan.record.mechanism(1.0, 0.01)
    claimed = plan_private(nn.Linear(6, 5), norms=SignProbes(norms=Hutchinson(3, secret=False)), **COMMON)
    assert claimed.record.mechanism(1.0, 0.01) == DPSGD(1.0, 0.01, Hutchinson(3, secret=False))
    exact = plan_private(nn.Linear(3, 5), norms=SignProbes(), **COMMON)  # nothing is worth an estimate
    assert exact.record.mechanism(1.0, 0.01) == DPSGD(1.0, 0.01)


def test_a_plan_is_for_the_model_as_it_was() -> None:
    net = nn.Sequential(nn.Linear(9, 8), nn.Linear(8, 7))
    plan = plan_private(net, norms="ghost", **COMMON)
    net[0].requires_grad_(False)
    with pytest.raises(ParameterError, match="as it was planned"):
        plan.privatize(torch.optim.SGD(net[1].parameters(), lr=1.0), noise_multiplier=1.0)
    net.requires_grad_(True)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    for _ in range(2):
        plan.privatize(optimizer, noise_multiplier=1.0)
    with pytest.raises(TrainingStateError, match="a hook was put before hooks of 0"):
        net(torch.ones(2, 9))


def test_the_record_carries_the_smallest_sketch() -> None:
    """None as soon as one estimated layer has no sketch: its law is Hutchinson's. Exact layers do not matter."""
    first, second = (
        LayerRecord("a", HutchPlusPlus(4, 8, secret=False)),
        LayerRecord("b", HutchPlusPlus(4, 6, secret=False)),
    )
    exact, plain = LayerRecord("c"), LayerRecord("d", Hutchinson(4, secret=False))
    assert NormRecord([first, second, exact]).norms == HutchPlusPlus(4, 6, secret=False)
    assert NormRecord([first, plain, exact]).norms == Hutchinson(4, secret=False)
    narrow = LayerRecord("f", HutchPlusPlusEstimator(4, 2, secret=False).norms)  # too narrow
    assert NormRecord([first, narrow]).norms == Hutchinson(4, secret=False)
    assert NormRecord([exact]).norms == ExactNorms()
    with pytest.raises(ParameterError, match="norms"):
        LayerRecord("e", "hutchinson")


def test_the_mechanism_claims_what_all_layers_have() -> None:
    """Smallest sketch; a power iteration, a secret, a rank if all have one; Hutchinson's law if one layer has it."""
    power = {"power_iteration": True}
    iterated = [LayerRecord(n, HutchPlusPlus(4, w, secret=True, **power)) for n, w in zip("ab", (8, 6), strict=True)]
    one_pass, known = HutchPlusPlus(4, 9, secret=True), HutchPlusPlus(4, 9, power_iteration=True, secret=False)
    plain = LayerRecord("d", Hutchinson(4, secret=True, rank=7))
    cases: list[tuple[list[LayerRecord], Norms]] = [
        (iterated, HutchPlusPlus(4, 6, secret=True, **power)),
        ([*iterated, LayerRecord("e")], HutchPlusPlus(4, 6, secret=True, **power)),
        ([*iterated, LayerRecord("c", one_pass)], HutchPlusPlus(4, 6, secret=True)),
        ([*iterated, LayerRecord("c", known)], HutchPlusPlus(4, 6, **power, secret=False)),
        ([*iterated, plain], Hutchinson(4, secret=True)),
        ([plain, LayerRecord("e", Hutchinson(4, secret=True, rank=2))], Hutchinson(4, secret=True, rank=9)),
        ([plain, LayerRecord("e", Hutchinson(4, secret=False, rank=2))], Hutchinson(4, secret=False, rank=9)),
        ([plain, LayerRecord("e")], Hutchinson(4, secret=True)),
    ]
    for layers, norms in cases:
        assert NormRecord(layers).mechanism(1.0, 0.01) == DPSGD(1.0, 0.01, norms)


@pytest.mark.parametrize(
    "norms",
    [
        HutchPlusPlus(3, 4, secret=False),
        HutchPlusPlus(3, 4, power_iteration=True, secret=True),
        Hutchinson(3, secret=False, rank=8),
    ],
)
def test_what_is_done_is_what_a_value_says(norms: Norms) -> None:
    plan = plan_private(nn.Linear(9, 8), norms=norms, **COMMON)
    assert plan.record.norms == norms


def test_words_have_secret_probes_and_values_say_whether_theirs_are() -> None:
    for norms, found in {
        "hutchinson": Hutchinson(32, secret=True, rank=50),
        "hutch++": HutchPlusPlus(32, 12, power_iteration=True, secret=True),
        "exact": ExactNorms(),
        "ghost": ExactNorms(),
        ExactNorms(): ExactNorms(),
    }.items():
        assert plan_private(nn.Linear(60, 50), norms=norms, **COMMON).record.norms == found
    for wrong in ("none", 32, None, Hutchinson(4, secret=False, analysis="envelope")):
        with pytest.raises(ParameterError, match=r"^norms must be"):
            plan_private(nn.Linear(60, 50), norms=wrong, **COMMON)
