"""The denoising step: what it hands on, that σ is that of the settings, its coupling to Opacus and DP-AdamBC."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer, DPOptimizerFastGradientClipping
from opacus.optimizers.ddpoptimizer import DistributedDPOptimizer
from opacus.optimizers.ddpoptimizer_fast_gradient_clipping import DistributedDPOptimizerFastGradientClipping

from dprmt import ParameterError, TrainingStateError
from dprmt.spectra import bulk_edge, kappa_for
from dprmt.training import denoising
from dprmt.training.denoising import Denoising, DenoisingEvaluation, DenoisingReport, DenoisingStep, gradient_noise_std
from dprmt.training.optimizers import DPAdamBC
from tests.spectra.simulation import denoise_layers

# Torch about the hooks of Opacus on a first layer, whose input needs no gradient.
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")

SHAPES = {"wide": (12, 40), "tall": (40, 12), "head": (3, 12), "bias": (12,), "kernel": (4, 3, 2, 2)}


def parameters(dtype: Any = torch.float32, **shapes: tuple[int, ...]) -> dict[str, Any]:
    return {name: torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for name, shape in (shapes or SHAPES).items()}


def gradients(seed: int, sigma: float, strength: float = 3.0, dtype: Any = torch.float32) -> dict[str, Any]:
    """Rank one in noise, the signal a multiple of the bulk edge."""
    generator = torch.Generator().manual_seed(seed)

    def draw(shape: tuple[int, ...]) -> Any:
        noise = sigma * torch.randn(shape, generator=generator, dtype=torch.float64)
        if len(shape) == 2:
            left, right = (torch.randn(side, generator=generator, dtype=torch.float64) for side in shape)
            noise += strength * bulk_edge(shape, sigma) * torch.outer(left / left.norm(), right / right.norm())
        return noise.to(dtype)

    return {name: draw(shape) for name, shape in SHAPES.items()}


def private_optimizer(named: dict[str, Any], kind: type = DPOptimizer, inner: Any = None, **options: Any) -> Any:
    inner = inner if inner is not None else torch.optim.SGD(named.values(), lr=1.0)
    generator = torch.Generator().manual_seed(options.pop("seed", 0))
    defaults = {"noise_multiplier": 1.5, "max_grad_norm": 0.4, "expected_batch_size": 30, "generator": generator}
    return kind(inner, **{**defaults, **options})


def give(named: dict[str, Any], grads: dict[str, Any]) -> None:
    for name, gradient in grads.items():
        named[name].grad = gradient.clone()


def denoised(named: dict[str, Any], sigma: float, options: Denoising | None = None) -> DenoisingReport:
    """Denoise the gradients that are there, as if they had just been given noise."""
    private = private_optimizer(named, noise_multiplier=sigma, max_grad_norm=1.0, loss_reduction="sum")
    step = DenoisingStep(private, named, options)
    private.original_optimizer.step()
    assert step.last_report is not None
    return step.last_report


@given(
    seed=st.integers(0, 2**32),
    strength=st.floats(0.0, 3.0),
    sigma=st.floats(1e-6, 1e3),
    kappa=st.floats(1.0, 1.5),
    norm_correction=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_gradients_are_exactly_those_of_denoise_layers(
    seed: int, strength: float, sigma: float, kappa: float, norm_correction: bool, dtype: Any
) -> None:
    named, grads = parameters(dtype), gradients(seed, sigma, strength, dtype)
    give(named, grads)
    options = Denoising("paper" if norm_correction else "shrink", kappa=kappa)
    report = denoised(named, sigma, options)
    expected, layers = denoise_layers(grads, sigma, kappa, norm_correction)
    for name, p in named.items():
        assert p.grad.dtype == dtype
        assert torch.equal(p.grad, expected[name])
    assert report.layers == layers
    assert set(report.replaced) == {name for name, layer in layers.items() if layer.denoised}
    assert {"bias", "kernel"}.isdisjoint(report.replaced)


def test_gradients_are_replaced_never_written_into() -> None:
    """On rank > 0 of Opacus' distributed optimizer ``.grad`` is a view of the sum of clipped gradients."""
    named = parameters()
    give(named, gradients(0, 1.0))
    before = {name: p.grad for name, p in named.items()}
    values = copy.deepcopy(before)
    report = denoised(named, 1.0)
    assert set(report.replaced) == {"wide", "tall", "head"}
    for name, p in named.items():
        assert torch.equal(before[name], values[name])
        assert (p.grad is before[name]) == (name not in report.replaced)


def test_options_reach_the_denoiser() -> None:
    grads = gradients(4, 1.0)
    for options, arguments in (
        (Denoising(false_alarm=1e-3), {"kappa": lambda shape: kappa_for(shape, 1e-3)}),
        (Denoising("paper"), {"norm_correction": True}),
        (Denoising(), {}),
    ):
        denoised, report = options.apply(grads, 1.0)
        expected, layers = denoise_layers(grads, 1.0, **({"kappa": 1.02, "norm_correction": False} | arguments))
        assert all(torch.equal(denoised[name], expected[name]) for name in grads)
        assert report == layers
    denoised, report = Denoising(exclude=["t*", "head"]).apply(grads, 1.0)
    assert list(denoised) == list(grads)
    assert set(report) == {"wide", "bias", "kernel"}
    assert denoised["tall"] is grads["tall"]
    assert denoised["wide"] is not grads["wide"]


def test_none_leaves_every_gradient_as_it_is() -> None:
    named, grads = parameters(), gradients(4, 1.0)
    give(named, grads)
    before = {name: p.grad for name, p in named.items()}
    denoised(named, 1.0, Denoising("none"))
    assert all(p.grad is before[name] and torch.equal(p.grad, grads[name]) for name, p in named.items())


def test_finite_float16_in_finite_float16_out() -> None:
    half = (4000 * torch.randn(64, 64, generator=torch.Generator().manual_seed(0))).half()
    half[0, 0], half[0, 1] = 6e4, 5e4
    found = Denoising("paper").apply({"w": half}, 4000.0)[0]["w"]
    assert found.dtype == torch.float16
    assert bool(torch.isfinite(found).all())


def test_parameters_without_gradient_are_skipped_and_nothing_changes_on_error() -> None:
    named, grads = parameters(), gradients(5, 1.0)
    give(named, {"wide": grads["wide"]})
    assert set(denoised(named, 1.0).layers) == {"wide"}
    assert named["tall"].grad is None
    assert denoised(parameters(), 1.0) == DenoisingReport(1.0, {})
    grads["tall"][3, 4] = math.nan
    give(named, grads)
    with pytest.raises(ParameterError, match=r"layers\['tall'\]"):
        denoised(named, 1.0)
    assert torch.equal(named["wide"].grad, grads["wide"])


@pytest.mark.parametrize(
    "options",
    [
        {"method": "sure"},
        {"kappa": 0.99},
        {"kappa": math.nan},
        {"false_alarm": 0.0},
        {"false_alarm": 1.0},
        {"exclude": "head"},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ParameterError) as caught:
        Denoising(**options)
    assert caught.value.name == next(iter(options))


# --- σ: that of the settings, whatever the batch ---------------------------------------------------------------


def sample(named: dict[str, Any], samples: int, batches: int = 1, seed: int = 0) -> None:
    """Per-sample gradients as Opacus leaves them; a list where several batches were accumulated."""
    generator = torch.Generator().manual_seed(seed)
    for p in named.values():
        draws = [torch.randn((samples, *p.shape), generator=generator).to(p.dtype) for _ in range(batches)]
        p.grad_sample = draws if batches > 1 else draws[0]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("batches", [1, 3])
def test_sigma_is_the_standard_deviation_of_the_released_noise(reduction: str, dtype: Any, batches: int) -> None:
    """Empty batches release pure noise: its measured standard deviation is σ, and neither 2 % more nor less."""
    named = parameters(dtype, matrix=(300, 200))
    private = private_optimizer(named, loss_reduction=reduction)
    step = DenoisingStep(private, named, Denoising("none"))
    sample(named, 0, batches)
    private.step()
    measured = named["matrix"].grad.double().square().mean().sqrt().item()
    expected = 1.5 * 0.4 / (30 * batches if reduction == "mean" else 1)
    assert step.last_report.sigma == pytest.approx(expected, rel=1e-12)
    error = measured / step.last_report.sigma - 1
    assert abs(error) < 4.5 / math.sqrt(2 * 300 * 200)
    for wrong in (0.98, 1.02, 7 / 30):
        assert abs(measured / (wrong * step.last_report.sigma) - 1) > 4.5 / math.sqrt(2 * 300 * 200)


def test_optimizers_whose_noise_is_not_known_are_refused() -> None:
    named = parameters()
    adaptive = {"target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2, "max_clipbound": 9.0}
    adaptive |= {"min_clipbound": 0.1, "unclipped_num_std": 2.0}
    with pytest.raises(ParameterError, match="AdaClip"):
        DenoisingStep(private_optimizer(named, AdaClipDPOptimizer, **adaptive), named)
    ghost = private_optimizer(named, DPOptimizerFastGradientClipping)
    ghost._adjusted_noise_multiplier = 2.0  # what Opacus' adaptive clipping sets, from the realised batch size
    with pytest.raises(ParameterError, match="adaptive clipping"):
        gradient_noise_std(ghost)
    with pytest.raises(ParameterError, match="dp_optimizer"):
        gradient_noise_std(torch.optim.SGD(named.values(), lr=1.0))


# --- attached to Opacus ----------------------------------------------------------------------------------------


def test_schedules_are_followed() -> None:
    named = parameters()
    private = private_optimizer(named)
    step, seen = DenoisingStep(private, named), []
    for sigma, bound in ((1.5, 0.4), (0.75, 1.2), (0.375, 3.6)):
        private.noise_multiplier, private.max_grad_norm = sigma, bound
        sample(named, 5)
        private.step()
        private.zero_grad()
        seen.append(step.last_report.sigma)
    assert seen == pytest.approx([0.02, 0.03, 0.045], rel=1e-12)


def test_detach() -> None:
    named = parameters()
    private = private_optimizer(named, noise_multiplier=0.01, max_grad_norm=40.0)
    step = DenoisingStep(private, named)
    with pytest.raises(TrainingStateError, match="denoising twice"):
        DenoisingStep(private, named)
    step.detach()
    sample(named, 5)
    private.step()
    assert step.last_report is None
    step.detach()
    again = DenoisingStep(private, named)
    private.zero_grad()
    sample(named, 5)
    private.step()
    assert again.last_report is not None


def test_only_what_is_optimized_is_denoised_and_all_of_it_needs_a_name() -> None:
    named = parameters()
    frozen = named.pop("head")
    frozen.grad = gradients(0, 1.0)["head"]
    before = frozen.grad.clone()
    private = private_optimizer(named, noise_multiplier=0.01, max_grad_norm=40.0)
    with pytest.raises(ParameterError, match="named_parameters"):
        DenoisingStep(private, {"wide": named["wide"]})
    step = DenoisingStep(private, {**named, "head": frozen})
    sample(named, 5)
    private.step()
    assert "head" not in step.last_report.layers
    assert torch.equal(frozen.grad, before)


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("kind", [DistributedDPOptimizer, DistributedDPOptimizerFastGradientClipping])
def test_opacus_distributed_optimizers_are_refused(kind: type) -> None:
    with pytest.raises(ParameterError, match=f"of one process.*{kind.__name__}"):
        gradient_noise_std(private_optimizer(parameters(), kind))


# --- DP-AdamBC -------------------------------------------------------------------------------------------------


def test_adambc_is_told_the_noise_that_is_left() -> None:
    named = parameters()
    adam = DPAdamBC(named.values(), lr=0.1, betas=(0.9, 0.5), noise_variance=123.0, floor=1e-8)
    private = private_optimizer(named, inner=adam, noise_multiplier=0.02, max_grad_norm=40.0)
    step = DenoisingStep(private, named, Denoising(exclude=["tall"]))
    sample(named, 5)
    private.step()
    Φ = (0.02 * 40 / 30) ** 2
    replaced = set(step.last_report.replaced)
    assert replaced
    assert "tall" not in replaced
    for name, p in named.items():
        assert adam.state[p]["noise_average"] == pytest.approx(0.5 * (0.0 if name in replaced else Φ), rel=1e-12)
    private.zero_grad()
    private.noise_multiplier = 1e6  # all signals vanish; the schedule is followed
    sample(named, 5)
    private.step()
    assert not step.last_report.replaced
    for name, p in named.items():
        average = 0.25 * (0.0 if name in replaced else Φ) + 0.5 * (1e6 * 40 / 30) ** 2
        assert adam.state[p]["noise_average"] == pytest.approx(average, rel=1e-12)


# --- evaluation: private -----------------------------------------------------------------------------------------


def test_evaluation_warns_and_returns_the_clean_gradient() -> None:
    named = parameters(torch.float64)
    private = private_optimizer(named, noise_multiplier=0.02, max_grad_norm=40.0)
    step = DenoisingStep(private, named)
    with pytest.warns(denoising.PrivateDataWarning, match="private"):
        evaluation = DenoisingEvaluation(step)
    sample(named, 5, seed=3)
    clean = {}
    for name, p in named.items():
        norms = sum(q.grad_sample.flatten(1).square().sum(1) for q in named.values()).sqrt()
        factors = (40.0 / (norms + 1e-6)).clamp(max=1.0).double()
        clean[name] = torch.einsum("i,i...->...", factors, p.grad_sample) / 30
    private.step()
    for name, value in evaluation.private_clean_gradients().items():
        torch.testing.assert_close(value.double(), clean[name], rtol=1e-9, atol=0.0)
    private.zero_grad()
    with pytest.raises(TrainingStateError, match="ask before zero_grad"):
        evaluation.private_clean_gradients()
