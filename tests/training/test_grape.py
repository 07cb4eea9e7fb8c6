"""DP-GRAPE's private step against a literal transcription: clipping, noise, batches, resumption."""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from opacus.data_loader import DPDataLoader
from peft import LoraConfig, get_peft_model
from scipy import stats
from torch import nn
from torch.utils.data import TensorDataset

from dprmt import ParameterError, TrainingStateError
from dprmt.accounting import DPSGD
from dprmt.training.clipping import ClippedStep
from tests.training.grape_reference import (
    LiteralAdam,
    clipped_sum,
    lift,
    literal_gradients,
    losses_of,
    make_data,
    make_net,
    project,
)
from tests.training.projected import projected_step

C, L = 0.8, 4.0
NORMS = ["exact", "ghost"]
PROJECTORS = ["gaussian", "stiefel", "svd"]


def private(model: nn.Module, *, norms: str = "exact", **options: Any) -> ClippedStep:
    """A step with small ranks and no noise, unless told otherwise."""
    defaults: dict[str, Any] = {
        "rank": 3,
        "refresh_every": 2,
        "clipping_norm": C,
        "noise_multiplier": 0.0,
        "expected_batch_size": L,
        "lr": 0.01,
        "seed": 5,
        "noise_generator": torch.Generator().manual_seed(2),
        "norms": norms,
    }
    return projected_step(model, **(defaults | options))


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def take_step(step: ClippedStep, data: tuple, number: int, splits: tuple[int, ...] = ()) -> None:
    """One logical step, in micro-batches cut at the given places; losses are scaled as in one batch."""
    edges = [0, *splits, len(data[0])]
    scale = losses_scale(len(data[0]))
    for start, stop in pairwise(edges):
        part = slice(start, stop)
        scores = step.model(data[0][part]).double()
        losses = scale[part] * nn.functional.cross_entropy(scores, data[1][part], reduction="none")
        step.accumulate(losses, samples=range(start, stop), step=number)
    step.step()


def losses_scale(size: int) -> torch.Tensor:
    return torch.linspace(0.005, 3.0, size, dtype=torch.float64)


# Against the literal algorithm


@pytest.mark.parametrize("norms", NORMS)
@pytest.mark.parametrize("projector", ["gaussian", "stiefel"])
def test_noiseless_steps_equal_the_literal_algorithm(projector: str, norms: str) -> None:
    """Five steps over three subspaces: one flat norm with bias, LayerNorm and embedding, clipped projected."""
    net, data = make_net(), make_data()
    step = private(net, projector=projector, norms=norms, weight_decay=0.1, at_refresh="keep")
    adam = LiteralAdam(0.01, (0.9, 0.999), 1e-8)
    for number in range(5):
        samples = literal_gradients(plain(net), lambda model: losses_of(model, data))
        samples = [{name: project(step, name, g) for name, g in sample.items()} for sample in samples]
        norms_found = [math.sqrt(sum(float(v.square().sum()) for v in s.values())) for s in samples]
        assert min(norms_found) < C < max(norms_found)
        moves = adam.step({name: g / L for name, g in clipped_sum(samples, C).items()})
        before = weights_of(net)
        expected = {n: w * (1 - 0.01 * 0.1) + lift(step, n, moves[n], w.shape) for n, w in before.items()}
        take_step(step, data, number)
        for name, weight in weights_of(net).items():
            torch.testing.assert_close(weight, expected[name], rtol=1e-9, atol=1e-9)


def plain(net: nn.Module) -> nn.Module:
    """A copy of the net without hooks."""
    copied = make_net()
    copied.load_state_dict(net.state_dict())
    return copied


@pytest.mark.parametrize("norms", NORMS)
def test_the_clipped_sum_is_within_the_sensitivity_and_tight(norms: str) -> None:
    """One sample alone, far too long: what is summed has norm (1 - 2⁻¹³)C over all coordinates."""
    net, (tokens, labels) = make_net(), make_data(1)
    step = private(net, norms=norms, noise_multiplier=1.0)
    step.accumulate(
        100 * nn.functional.cross_entropy(step.model(tokens), labels, reduction="none"), samples=[0], step=0
    )
    total = math.sqrt(sum(float(p.summed_grad.square().sum()) for p in net.parameters()))
    assert (1 - 2.0**-12) * C < total <= C
    assert net.up.weight.summed_grad.shape == (3, 6)


@pytest.mark.parametrize("norms", NORMS)
@pytest.mark.parametrize("projector", PROJECTORS)
def test_splitting_a_logical_batch_changes_nothing(projector: str, norms: str) -> None:
    results = []
    for splits in [(), (2,), (1, 2, 5)]:
        net, data = make_net(), make_data()
        step = private(net, projector=projector, norms=norms, noise_multiplier=0.5)
        for number in range(3):
            take_step(step, data, number, splits)
        results.append(weights_of(net))
    for other in results[1:]:
        for name, weight in results[0].items():
            torch.testing.assert_close(other[name], weight, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("projector", PROJECTORS)
def test_norm_modes_agree(projector: str) -> None:
    """Formed or kept as factors: the same steps."""
    results = []
    for norms in NORMS:
        net, data = make_net(), make_data()
        step = private(net, projector=projector, norms=norms, noise_multiplier=0.1)
        for number in range(3):
            take_step(step, data, number)
        results.append(weights_of(net))
    for other in results[1:]:
        for name, weight in results[0].items():
            torch.testing.assert_close(other[name], weight, rtol=1e-9, atol=1e-10)


def test_with_full_stiefel_rank_adam_is_adam_in_rotated_coordinates() -> None:
    """W = QU with orthogonal Q: DP-GRAPE on W is DP-Adam on U. Adam does not commute with Q, so on W it is not."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 9, bias=False, dtype=torch.float64)
    start, x = layer.weight.detach().clone(), torch.randn(5, 4, dtype=torch.float64)
    step = private(layer, projector="stiefel", rank=9, clipping_norm=1e6, refresh_every=100, expected_batch_size=1.0)
    q = step.subspaces.projector(layer.weight).double()
    rotated, straight = nn.Parameter(q.T @ start), nn.Parameter(start.clone())
    adams = torch.optim.Adam([rotated], lr=0.01), torch.optim.Adam([straight], lr=0.01)
    for number in range(4):
        step.accumulate((step.model(x) - 1).square().sum(1), samples=range(5), step=number)
        step.step()
        for adam, weight in zip(adams, (lambda: q @ rotated, lambda: straight), strict=True):
            adam.zero_grad()
            (x @ weight().T - 1).square().sum().backward()
            adam.step()
    torch.testing.assert_close(layer.weight.detach(), (q @ rotated).detach(), rtol=0, atol=1e-6)
    assert (layer.weight - straight).abs().max() > 1e-3


def test_privatize_then_project_is_the_naive_order() -> None:
    """Whole gradients are clipped, then projected: other clip factors than in the projected space."""
    net, data = make_net(), make_data()
    step = private(net, order="privatize-then-project", rule="sgd", lr=0.1)
    samples = literal_gradients(plain(net), lambda model: losses_of(model, data))
    before, total = weights_of(net), clipped_sum(samples, C)
    moves = {n: lift(step, n, project(step, n, -0.1 * g / L), g.shape) for n, g in total.items()}
    take_step(step, data, 0)
    for name, weight in weights_of(net).items():
        torch.testing.assert_close(weight - before[name], moves[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("order", ["project-then-privatize", "privatize-then-project"])
def test_svd_steps_stay_in_the_leading_subspace_of_a_released_gradient(order: str) -> None:
    net, data = make_net(), make_data()
    step = private(net, projector="svd", order=order, rule="sgd", lr=0.1, refresh_every=3)
    before = net.up.weight.detach().clone()
    total = clipped_sum(literal_gradients(plain(net), lambda model: losses_of(model, data)), C)["up.weight"] / L
    u = torch.linalg.svd(total, full_matrices=False)[0][:, :3]
    for number in range(3):
        take_step(step, data, number)
        moved = net.up.weight.detach() - before
        torch.testing.assert_close(u @ (u.T @ moved), moved, rtol=1e-6, atol=1e-9)
    take_step(step, data, 3)  # another subspace
    moved = net.up.weight.detach() - before
    assert (u @ (u.T @ moved) - moved).abs().max() > 1e-6


# Noise


def noise_of_empty_step(net: nn.Module, **options: Any) -> dict[str, torch.Tensor]:
    """Released gradients of a step for which nobody was sampled."""
    step = private(net, noise_multiplier=1.5, **options)
    step.optimizer.may_step = True
    step.optimizer.pre_step()
    return {n: p.grad if p.projected_grad is None else p.projected_grad for n, p in net.named_parameters()}


def test_noise_has_the_standard_deviation_of_the_mechanism_in_the_projected_space() -> None:
    """N(0, (σC/L)²) per projected and unprojected coordinate; 10 % more or less, or times √(m/r), is rejected."""
    net = nn.Sequential(nn.Linear(40, 400), nn.Linear(400, 40))
    released = noise_of_empty_step(net, rank=50)
    assert released["0.weight"].shape == (50, 40)
    for name, count in {"0.weight": 2000, "1.weight": 2000, "0.bias": 400}.items():
        z = released[name].numpy().ravel() / (1.5 * C / L)
        assert z.size == count
        low, high = stats.chi2(z.size).ppf([1e-4, 1 - 1e-4])
        assert low < np.square(z).sum() < high
        if count == 2000:
            for wrong in (0.9, 1.1, math.sqrt(400 / 50)):
                assert not low < np.square(wrong * z).sum() < high
            assert stats.kstest(z, "norm").pvalue > 1e-3


def test_projecting_after_the_noise_multiplies_its_variance_by_m_over_r() -> None:
    """Why the order matters: the signal's norm is kept either way, the noise's is not."""
    net = nn.Linear(40, 400, bias=False)
    step = private(net, rank=50, noise_multiplier=1.5, order="privatize-then-project", lr=1.0, rule="sgd")
    step.optimizer.may_step = True
    step.optimizer.pre_step()
    projected = step.subspaces.projector(net.weight).T @ net.weight.grad
    assert net.weight.projected_grad is None
    ratio = float(projected.square().mean()) / (1.5 * C / L) ** 2
    assert ratio == pytest.approx(400 / 50, rel=0.15)
    assert step.subspaces.noise_gain(net.weight) == 8.0


def test_the_sum_is_divided_by_the_expected_batch_size() -> None:
    """Half the samples give half the step, not the same mean."""
    moved = []
    for size in (6, 3):
        net, (tokens, labels) = make_net(), make_data()
        before = weights_of(net)
        step = private(net, rule="sgd", clipping_norm=1e6)
        tokens, labels = tokens[:1].expand(size, -1), labels[:1].expand(size)
        step.accumulate(
            nn.functional.cross_entropy(step.model(tokens), labels, reduction="none"), samples=range(size), step=0
        )
        step.step()
        moved.append(net.up.weight.detach() - before["up.weight"])
    torch.testing.assert_close(moved[0], 2 * moved[1])


def test_a_sample_that_is_not_finite_is_left_out() -> None:
    for norms in NORMS:
        results = []
        for bad in (True, False):
            net, (tokens, labels) = make_net(), make_data()
            step = private(net, norms=norms)
            losses = nn.functional.cross_entropy(step.model(tokens), labels, reduction="none")
            losses = losses * torch.tensor([1, 1, torch.inf if bad else 0.0, 1, 1, 1])
            step.accumulate(losses, samples=range(6), step=0)
            step.step()
            results.append(weights_of(net))
        for name, weight in results[0].items():
            assert weight.isfinite().all()
            torch.testing.assert_close(weight, results[1][name])


# The rest of the interface


def test_the_accountant_is_told_plain_dpsgd() -> None:
    net = make_net()
    step = private(net)
    assert step.record.mechanism(1.1, 0.01) == DPSGD(1.1, 0.01)
    assert [layer.layer for layer in step.record.layers] == [
        "embedding",
        "up",
        "up.bias",
        "conv",
        "conv.bias",
        "norm",
        "head",
    ]


@pytest.mark.parametrize("projector", ["gaussian", "svd"])
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_resuming_is_bit_exact(projector: str, cut: int) -> None:
    """Weights, moments, period and seed come back, in the middle of a period and at its start."""
    options = {"projector": projector, "noise_multiplier": 0.7, "refresh_every": 2}
    data, noise = make_data(), torch.Generator().manual_seed(9)
    net = make_net(dtype=torch.float32)
    whole = private(net, **options, noise_generator=noise)
    for number in range(cut):
        take_step(whole, data, number)
    saved = copy.deepcopy((whole.optimizer.state_dict(), net.state_dict(), noise.get_state()))
    for number in range(cut, 5):
        take_step(whole, data, number)

    again, noise = make_net(seed=3, dtype=torch.float32), torch.Generator()
    resumed = private(again, **options, seed=77, noise_generator=noise)
    again.load_state_dict(saved[1])
    resumed.optimizer.load_state_dict(saved[0])
    noise.set_state(saved[2])
    for number in range(cut, 5):
        take_step(resumed, data, number)
    assert all(torch.equal(w, weights_of(net)[name]) for name, w in weights_of(again).items())


def test_lora_layers_are_projected_and_the_base_stays_frozen() -> None:
    net = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 3))
    lora = get_peft_model(net, LoraConfig(r=4, target_modules=["0", "2"], init_lora_weights=False))
    frozen = {name: p.clone() for name, p in lora.named_parameters() if not p.requires_grad}
    step = private(lora, rank=3, norms="ghost")
    assert [(layer.m, layer.n) for layer in step.subspaces] == [(20, 4), (30, 4), (30, 4), (4, 3)]
    before = weights_of(lora)
    x = torch.randn(5, 20)
    step.accumulate(step.model(x).square().sum(1), samples=range(5), step=0)
    step.step()
    assert all((w != before[n]).any() for n, w in weights_of(lora).items())
    assert all(torch.equal(p, frozen[n]) for n, p in lora.named_parameters() if not p.requires_grad)


@pytest.mark.parametrize("norms", NORMS)
def test_an_embedding_table_with_padding_that_is_used_twice(norms: str) -> None:
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(9, 8, padding_idx=1), nn.Linear(8, 8)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(tokens)).mean(1) * self.table(tokens[:, :2].flip(1)).sum(1)

    torch.manual_seed(0)
    net, tokens = Pairs().double(), torch.tensor([[3, 3, 1, 1], [8, 0, 3, 1], [1, 1, 5, 5]])
    samples = literal_gradients(net, lambda model: model(tokens).square().sum(1))
    assert samples[2]["table.weight"][1].abs().max() == 0 < net.table.weight.abs().max()
    step = private(net, norms=norms, noise_multiplier=1.0)
    step.accumulate(step.model(tokens).square().sum(1), samples=range(3), step=0)
    expected = clipped_sum([{n: project(step, n, g) for n, g in s.items()} for s in samples], C)
    for name, p in net.named_parameters():
        torch.testing.assert_close(p.summed_grad, expected[name], rtol=1e-9, atol=1e-12)


def test_micro_batches_of_opacus_poisson_loader_give_the_same_steps() -> None:
    """Micro-batches of 3 against whole batches; empty batches among them."""
    results = []
    tokens, labels = make_data(12)
    for most in (3, 12):
        net = make_net()
        step = private(net, noise_multiplier=0.5)
        loader = DPDataLoader(
            TensorDataset(torch.arange(12), tokens, labels),
            sample_rate=1 / 6,
            generator=torch.Generator().manual_seed(3),
        )
        sizes = []
        for number, (who, x, y) in enumerate(loader):
            sizes.append(len(who))
            for part in torch.arange(len(who)).split(most) if len(who) else ():
                losses = nn.functional.cross_entropy(step.model(x[part]), y[part], reduction="none")
                step.accumulate(losses, samples=who[part], step=number)
            step.step()
        assert min(sizes) == 0 < 3 < max(sizes)
        assert step.subspaces.step == 6
        results.append(weights_of(net))
    for name, weight in results[0].items():
        torch.testing.assert_close(weight, results[1][name])


# Denoising in the projected space


def test_adambc_follows_a_schedule_of_the_noise() -> None:
    net = make_net(dtype=torch.float32)
    step = private(net, noise_multiplier=1.0, rule="adambc", floor=1e-8)
    average = 0.0
    for sigma in (1.0, 0.5, 2.0):
        step.optimizer.noise_multiplier = sigma
        step.step()
        average = 0.999 * average + 0.001 * (sigma * C / L) ** 2
    assert step.optimizer.state[net.up.weight]["noise_average"] == pytest.approx(average)


# Bad input


def tied() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    return net


@pytest.mark.parametrize(
    ("model", "options", "argument"),
    [
        (make_net, {"rank": 15}, "rank of up.weight"),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False)), {}, "model"),
        (lambda: nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 4)), {}, "model"),
        (lambda: nn.Sequential(nn.Embedding(9, 4, max_norm=1.0), nn.Linear(4, 4)), {}, "model"),
        (make_net, {"refresh_every": 0}, "refresh_every"),
        (make_net, {"clipping_norm": 0.0}, "clipping_norm"),
        (make_net, {"noise_multiplier": -1.0}, "noise_multiplier"),
        (make_net, {"expected_batch_size": 0}, "expected_batch_size"),
        (make_net, {"lr": -1.0}, "lr"),
        (make_net, {"betas": (0.9, 1.0)}, "betas"),
        (make_net, {"rule": "lion"}, "rule"),
        (make_net, {"norms": "none"}, "norms"),
        (make_net, {"projector": "pca"}, "projector"),
        (make_net, {"at_refresh": "forget"}, "at_refresh"),
        (tied, {}, "model"),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), {}, "model"),
        (lambda: nn.MultiheadAttention(8, 2), {}, "rank"),
        (lambda: nn.Linear(4, 4).requires_grad_(False), {}, "rank"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), {}, "rank"),
        (lambda: nn.LayerNorm(4), {}, "rank"),
    ],
)
def test_bad_input_before_the_first_step(model: Any, options: dict, argument: str) -> None:
    net = model()
    with pytest.raises(ParameterError) as error:
        private(net, **options)
    assert error.value.name == argument
    assert not hasattr(net, "autograd_grad_sample_hooks")


def test_inputs_without_a_batch_axis() -> None:
    """Tokens flattened into the batch are refused; positions that are broadcast over it get an axis of their own."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.word, self.place, self.head = nn.Embedding(5, 4), nn.Embedding(3, 4), nn.Linear(4, 6)

        def forward(self, tokens: torch.Tensor, flatten: bool) -> torch.Tensor:
            hidden = self.word(tokens) + self.place(torch.arange(3).expand(1 if not flatten else len(tokens), -1))
            out = self.head(hidden.flatten(0, 1)) if flatten else self.head(hidden)
            return out.reshape(len(tokens), -1)

    net = Positions()
    step = private(net)
    with pytest.raises(TrainingStateError, match="head"):
        step.accumulate(step.model(torch.ones(2, 3).long(), True).sum(1), samples=range(2), step=0)
    net = Positions()
    plain = copy.deepcopy(net)
    step, words = private(net, noise_multiplier=1.0), torch.tensor([[0, 1, 2], [2, 2, 4]])
    samples = literal_gradients(plain, lambda model: model(words, False).sum(1))
    step.accumulate(step.model(words, False).sum(1), samples=range(2), step=0)
    expected = clipped_sum([{n: project(step, n, g) for n, g in s.items()} for s in samples], C)
    for name, p in net.named_parameters():
        torch.testing.assert_close(p.summed_grad, expected[name])
