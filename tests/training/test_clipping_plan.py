"""Plan, mechanism, noise multiplier, private model; and an estimator from outside the package."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from dprmt._validation import ParameterError
from dprmt.accounting import DPSGD, RandomizedClipping
from dprmt.training.clipping import make_private, plan_private
from dprmt.training.norms import LayerRecord, NormEstimator, NormRecord, ProbeGenerator

COMMON = {"clipping_norm": 1.0, "expected_batch_size": 2.0}


@dataclass(frozen=True)
class SignProbes:
    """‖M P‖² with random signs instead of normals: unbiased, but of another law than Hutchinson's with normals."""

    width: int = 3
    probe_sharing: str = "batch"
    law: str = "unknown"

    def is_cheaper(self, in_features: int, out_features: int) -> bool:
        return min(in_features, out_features) > self.width

    def terms(self, tokens: int, in_features: int, out_features: int) -> int:
        return tokens + in_features + out_features

    def layer_record(self, layer: str, in_features: int, out_features: int, **_: Any) -> LayerRecord:
        return LayerRecord(layer, self.law, self.width if self.law == "hutchinson" else None)

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
    private = make_private(
        net, torch.optim.SGD(net.parameters(), lr=1.0), clipping=estimator, noise_multiplier=0.0, tokens=3, **COMMON
    )
    private.accumulate(private.model(x).square().sum((1, 2)), samples=range(4), step=2)
    private.step()
    expected, signs = torch.zeros_like(net.weight), estimator.signs(5, "model", 2) / 3**0.5
    for sample in x:
        weight, bias = torch.autograd.grad(plain(sample).square().sum(), list(plain.parameters()))
        norm = torch.cat([weight.T @ signs, (bias @ signs)[None]]).norm()
        expected += weight * min(1.0, (1 - private.rounding) / float(norm)) / 2
    torch.testing.assert_close(plain.weight - net.weight, expected, rtol=1e-9, atol=1e-12)


def test_the_accountant_refuses_a_law_that_it_does_not_know() -> None:
    plan = plan_private(nn.Linear(6, 5), clipping=SignProbes(), **COMMON)
    with pytest.raises(ParameterError, match="law"):
        plan.record.mechanism(1.0, 0.01)
    claimed = plan_private(nn.Linear(6, 5), clipping=SignProbes(law="hutchinson"), **COMMON)
    assert claimed.record.mechanism(1.0, 0.01) == RandomizedClipping(1.0, 0.01, 3, probe_sharing="batch")
    exact = plan_private(nn.Linear(3, 5), clipping=SignProbes(), **COMMON)  # nothing is worth an estimate
    assert exact.record.mechanism(1.0, 0.01) == DPSGD(1.0, 0.01)


@pytest.mark.parametrize("clipping", ["exact", "ghost", "hutchinson", "hutch++"])
def test_plan_then_privatize_is_make_private(clipping: str) -> None:
    """The same steps, and σ is asked for between plan and private model: nothing is set and replaced."""
    results = []
    for planned in (True, False):
        torch.manual_seed(0)
        net, x = nn.Sequential(nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 7)), torch.ones(2, 9)
        sgd = torch.optim.SGD(net.parameters(), lr=1.0)
        options = {"clipping": clipping, "probes": 3, "probe_generator": ProbeGenerator(1), **COMMON}
        noise = torch.Generator().manual_seed(1)
        if planned:
            plan = plan_private(net, **options)
            sigma = 0.5 if plan.record.probes is None else 0.8
            assert plan.noise_variance(sigma) == (sigma / 2) ** 2
            assert not hasattr(net, "autograd_grad_sample_hooks")
            private = plan.privatize(sgd, noise_multiplier=sigma, noise_generator=noise)
            assert private.record == plan.record
        else:
            private = make_private(net, sgd, noise_multiplier=sigma, noise_generator=noise, **options)
        private.accumulate(private.model(x).sum(1), samples=[3, 4], step=0)
        private.step()
        results.append([value.detach().clone() for value in net.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_a_plan_is_for_the_model_as_it_was() -> None:
    net = nn.Sequential(nn.Linear(9, 8), nn.Linear(8, 7))
    plan = plan_private(net, clipping="ghost", **COMMON)
    net[0].requires_grad_(False)
    with pytest.raises(ParameterError, match="as it was planned"):
        plan.privatize(torch.optim.SGD(net[1].parameters(), lr=1.0), noise_multiplier=1.0)
    net.requires_grad_(True)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    plan.privatize(optimizer, noise_multiplier=1.0)
    with pytest.raises(ParameterError, match="hooks"):
        plan.privatize(optimizer, noise_multiplier=1.0)


def test_the_record_carries_the_smallest_sketch() -> None:
    """None as soon as one estimated layer has no sketch: its law is Hutchinson's. Exact layers do not matter."""
    first, second = LayerRecord("a", "hutch++", 4, sketch=8), LayerRecord("b", "hutch++", 4, sketch=6)
    exact, plain = LayerRecord("c", "exact"), LayerRecord("d", "hutchinson", 4)
    assert NormRecord([first, second, exact], "batch").sketch == 6
    assert NormRecord([first, plain, exact], "batch").sketch is None
    assert NormRecord([first, LayerRecord("f", "hutch++", 4, sketch=2)], "batch").sketch is None  # too narrow
    assert NormRecord([exact], "batch").sketch is None
    for wrong in ({"method": "hutchinson", "probes": 4, "sketch": 3}, {"method": "hutch++", "probes": 4, "sketch": 0}):
        with pytest.raises(ParameterError, match="sketch"):
            LayerRecord("e", **wrong)
    with pytest.raises(ParameterError, match="probes"):
        LayerRecord("e", "unknown", 4)
    with pytest.raises(ParameterError, match="power_iteration"):
        LayerRecord("e", "hutch++", 4, power_iteration=True)


def test_the_mechanism_of_hutchpp_claims_what_all_layers_have() -> None:
    """Smallest sketch, and a power iteration if every layer has it; Hutchinson's law with one layer of that."""
    iterated = [LayerRecord(name, "hutch++", 4, sketch=s, power_iteration=True) for name, s in (("a", 8), ("b", 6))]
    one_pass, plain = LayerRecord("c", "hutch++", 4, sketch=9), LayerRecord("d", "hutchinson", 4)
    cases = [
        (iterated, 6, True),
        ([*iterated, LayerRecord("e", "exact")], 6, True),
        ([*iterated, one_pass], 6, False),
        ([*iterated, plain], None, False),
    ]
    for layers, sketch, power in cases:
        mechanism = NormRecord(layers, "batch").mechanism(1.0, 0.01)
        assert (mechanism.probes, mechanism.sketch, mechanism.power_iteration) == (4, sketch, power)
    envelope = NormRecord(iterated, "batch").mechanism(1.0, 0.01, analysis="envelope")
    assert (envelope.sketch, envelope.power_iteration) == (None, False)
    for power in (True, False):
        options = {"clipping": "hutch++", "probes": 3, "sketch": 4, "power_iteration": power}
        plan = plan_private(nn.Linear(9, 8), **options, **COMMON)
        assert plan.record.mechanism(1.0, 0.01).power_iteration == power
