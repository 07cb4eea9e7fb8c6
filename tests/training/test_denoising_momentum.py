"""Denoised momenta: the optimizers' steps written out, their noise, checkpoints, and what is refused."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from opacus.optimizers import DPOptimizer

from dprmt import ParameterError, TrainingStateError
from dprmt.spectra import bulk_edge, momentum_noise_scale
from dprmt.training.denoising import Denoising, DenoisingEvaluation, DenoisingStep
from dprmt.training.optimizers import DPAdamBC
from tests.spectra.simulation import denoise
from tests.training.test_private_run import saved_and_loaded
from tests.training.tiny_recipe import recipe_in

SHAPE, SIGMA, RATE = (12, 40), 0.5, 0.05
OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=RATE, betas=(0.9, 0.99)),
    "adamw": lambda p: torch.optim.AdamW(p, lr=RATE, betas=(0.9, 0.99), weight_decay=0.1),
    "decoupled adam": lambda p: torch.optim.Adam(
        p, lr=RATE, betas=(0.9, 0.99), weight_decay=0.1, decoupled_weight_decay=True
    ),
    "adambc": lambda p: DPAdamBC(p, RATE, (0.9, 0.99), noise_variance=SIGMA**2, floor=1e-3, weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=RATE, momentum=0.9),
}


class Moves:
    """A matrix and a bias under an Opacus optimizer whose noise is drawn here."""

    def __init__(self, name, options=None, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.weight = torch.nn.Parameter(torch.randn(SHAPE, generator=generator, dtype=torch.float64))
        self.bias = torch.nn.Parameter(torch.zeros(12, dtype=torch.float64))
        self.inner = OPTIMIZERS[name]([self.weight, self.bias])
        self.private = DPOptimizer(self.inner, noise_multiplier=SIGMA, max_grad_norm=1.0, expected_batch_size=1)
        named = {"weight": self.weight, "bias": self.bias}
        self.step_ = DenoisingStep.attach(self.private, named, options) if options else None

    def steps(self, gradients):
        for weight, bias in gradients:
            self.weight.grad, self.bias.grad = weight.clone(), bias.clone()
            self.inner.step()
        return self


def noisy_gradients(count, strength=0.5, seed=0):
    """A rank-one signal that stays, in units of the bulk edge, and fresh noise."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    left, right = draw(12), draw(40)
    signal = strength * bulk_edge(SHAPE, SIGMA) * torch.outer(left / left.norm(), right / right.norm())
    return [(signal + SIGMA * draw(*SHAPE), draw(12)) for _ in range(count)]


def literal(name, θ, gradients):
    """The table at the head of the module, letter by letter, with the closed form of σ̄_t."""
    β1, β2, λ = 0.9, 0.99, 0.1 if name in ("adamw", "decoupled adam", "adambc") else 0.0
    m = v = b = 0.0
    denoised = 0
    for t, (g, _) in enumerate(gradients, start=1):
        m, v, b = β1 * m + (1 - β1) * g, β2 * v + (1 - β2) * g * g, β1 * b + g
        scale = momentum_noise_scale(0.9, t) * SIGMA
        if name == "sgd":
            θ = θ - RATE * denoise(b, scale * (1 - β1**t) / (1 - β1), 1.02, False)
            continue
        m_hat, v_hat = m / (1 - β1**t), v / (1 - β2**t)
        cleaned = denoise(m_hat, scale, 1.02, False)
        replaced = cleaned is not m_hat
        denoised += replaced
        if name == "adambc":
            root = torch.sqrt(torch.clamp(v_hat - SIGMA**2, min=1e-3))
        else:
            root = torch.sqrt(torch.clamp(v_hat, min=SIGMA**2) if replaced else v_hat) + 1e-8
        θ = (1 - RATE * λ) * θ - RATE * cleaned / root
    return θ


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_the_table(name):
    gradients = noisy_gradients(25, strength=0.35, seed=1)
    run = Moves(name, Denoising(on="momentum"))
    start, plain = run.weight.detach().clone(), Moves(name)
    replaced = []
    for gradient in gradients:
        run.steps([gradient])
        replaced.append("weight" in run.step_.last_report.replaced)
    torch.testing.assert_close(run.weight.detach(), literal(name, start, gradients), rtol=1e-9, atol=1e-10)
    assert not replaced[0]
    assert replaced[-1]  # a third of the edge in one gradient, above it in the momentum
    assert torch.equal(run.bias, plain.steps(gradients).bias)
    assert not torch.equal(run.weight, plain.weight)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_matrices_that_are_left_alone_move_as_without_a_denoiser(name):
    gradients = noisy_gradients(10)
    for options in (Denoising(on="momentum", kappa=50.0), Denoising(on="momentum", exclude=("weight",))):
        run = Moves(name, options).steps(gradients)
        assert torch.equal(run.weight, Moves(name).steps(gradients).weight)
        assert run.step_.last_report.replaced == ()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_noise_of_the_report_is_that_of_the_momentum(name):
    """The sample deviation of momenta of pure noise, and the closed form; also after the noise has changed."""
    run = Moves(name, Denoising(on="momentum", kappa=50.0)).steps(noisy_gradients(8, strength=0.0))
    state = run.inner.state[run.weight]
    momentum = state["momentum_buffer" if name == "sgd" else "exp_avg"]
    stated = run.step_.last_report.sigma
    assert float(momentum.std()) == pytest.approx(stated, rel=0.2)  # 480 entries: 3 % a standard error
    unit = (1 - 0.9**8) / (0.1 if name == "sgd" else 1)
    assert stated == pytest.approx(SIGMA * unit * momentum_noise_scale(0.9, 8), rel=1e-12)
    run.private.noise_multiplier = 3 * SIGMA
    run.steps(noisy_gradients(1))
    weight = 1.0 if name == "sgd" else 0.1
    expected = 0.81 * stated**2 + (weight * 3 * SIGMA) ** 2
    assert run.step_.last_report.sigma == pytest.approx(math.sqrt(expected), rel=1e-12)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_checkpoint_holds_all_that_the_next_step_needs(name):
    gradients = noisy_gradients(20)
    whole = Moves(name, Denoising(on="momentum")).steps(gradients)
    half = Moves(name, Denoising(on="momentum")).steps(gradients[:9])
    resumed = Moves(name, Denoising(on="momentum"), seed=5)
    with torch.no_grad():
        resumed.weight.copy_(half.weight)
        resumed.bias.copy_(half.bias)
    resumed.inner.load_state_dict(saved_and_loaded(half.inner.state_dict()))
    assert torch.equal(resumed.steps(gradients[9:]).weight, whole.weight)
    kept = "momentum_noise_variance"  # as it stands in checkpoints
    assert resumed.inner.state[resumed.weight][kept] == whole.inner.state[whole.weight][kept]


def test_momentum_of_unknown_noise_is_refused():
    """After steps without the denoiser nobody has counted the noise; and nothing has moved."""
    run = Moves("adam").steps(noisy_gradients(2))
    before = copy.deepcopy(run.weight.detach())
    DenoisingStep.attach(run.private, {"weight": run.weight, "bias": run.bias}, Denoising(on="momentum"))
    with pytest.raises(TrainingStateError, match="momentum of unknown noise"):
        run.steps(noisy_gradients(1))
    assert torch.equal(run.weight, before)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), "one with momentum"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), "optimizer's nesterov must be off"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1), "optimizer's dampening must be off"),
        (lambda p: torch.optim.Adam(p, amsgrad=True), "optimizer's amsgrad must be off"),
        (lambda p: torch.optim.Adagrad(p), "Adam, AdamW, DPAdamBC or SGD with momentum"),
    ],
)
def test_optimizers_whose_momentum_is_another_are_refused(make, message):
    weight = torch.nn.Parameter(torch.zeros(SHAPE))
    private = DPOptimizer(make([weight]), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1)
    with pytest.raises(ParameterError, match=message):
        DenoisingStep.attach(private, {"weight": weight}, Denoising(on="momentum"))
    DenoisingStep.attach(private, {"weight": weight}, Denoising()).detach()  # nothing is left behind


MOMENTA = {"denoising.method": "paper", "denoising.on": "momentum", "training.checkpoint_every": 2}


@pytest.mark.parametrize("name", ["gd", "grape"])
def test_recipes_without_a_momentum_are_refused(name, tmp_path):
    changes = {"model.finetune": "full", "model.lora": None} if name == "grape" else {}
    with pytest.raises(ParameterError, match=r"denoising\.on must be 'gradient' unless optimizer\.name is one of"):
        recipe_in(tmp_path, **MOMENTA, **{"optimizer.name": name}, **changes)


def test_only_attached_steps_see_a_momentum():
    run = Moves("adam", Denoising(on="momentum"))
    with pytest.raises(ParameterError, match=r"options\.on must be 'gradient'"):
        run.step_()
    with pytest.raises(ParameterError, match="with which the clean one compares"):
        DenoisingEvaluation(run.step_)
    run.step_.detach()
    gradients = noisy_gradients(3)
    assert torch.equal(run.steps(gradients).weight, Moves("adam").steps(gradients).weight)
