"""Clipping norms that follow a quantile, and automatic clipping: what is released, its noise, and its price."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from audits.processes import in_processes
from audits.steps import Parts
from dprmt import ParameterError
from dprmt.accounting import DPSGD, AddRemove, GaussianRelease, Hutchinson, ReplaceOne, calibrate, compose
from dprmt.training.clipping import Units
from dprmt.training.norms import clip_factors
from dprmt.training.optimizers import DPAdamBC
from dprmt.training.private_run import AdaptiveClipping, PerLayerClipping
from dprmt.training.private_run._randomness import Randomness
from tests.training.literal import clipped_sum, gradients_of, norm_of
from tests.training.sharded import TOKENS
from tests.training.sharded import losses as losses_of_tokens
from tests.training.sharded import network as model_of_tokens
from tests.training.test_private_run import ROWS, N, losses, network, new, row_losses, saved_and_loaded, train, weights
from tests.training.tiny_recipe import positions

QUIET = AdaptiveClipping(noise_multiplier=1e-3, quantile=0.3, learning_rate=1.0, initial=0.5)


def norms_of(model: nn.Module, rows: list[int]) -> list[float]:
    plain = copy.deepcopy(model)  # without hooks
    return [norm_of(gradients) for gradients in gradients_of(plain, row_losses(plain, rows))]


@pytest.mark.parametrize("options", [{"micro_batch_size": 5}, {"norms": "ghost"}, {"units": Units(1, regime="alone")}])
def test_the_clipping_norm_follows_the_share_of_norms_below_it(options: dict[str, Any]) -> None:
    """Against the literal rule. Of the realised batch size, or of the next step's norm, it would be another number."""
    private = new(clipping_norm=QUIET, noise_multiplier=1e-3, **options)
    norm = 0.5
    for batch in private:
        drawn = norms_of(private.model, positions(batch))
        assert private.clipping_norm == pytest.approx(norm, rel=1e-6)
        before = weights(private.model)
        private.step(losses(private), batch)
        pairs = zip(before, weights(private.model), strict=True)
        moved = math.sqrt(sum(float((a - b).square().sum()) for a, b in pairs))
        assert moved <= sum(min(norm, length) for length in drawn) / 12 + 1e-2
        # "ghost" allows for cancellation in its norms, so one next to C may count as longer.
        least, most = (sum(length <= norm * (1 + near) for length in drawn) for near in (-1e-3, 1e-3))
        wanted = [norm * math.exp(-((n - len(drawn) / 2) / 12 + 0.5 - 0.3)) for n in range(least, most + 1)]
        apart = min(abs(private.clipping_norm / each - 1.0) for each in wanted)
        assert apart < 5e-4  # noise of 5e-4 in a sum over 12; one sample more moves C by 8 %
        norm = private.clipping_norm
    assert private.records["clipping_norm"] == norm


def test_a_sample_without_a_finite_gradient_counts_as_a_long_one() -> None:
    rows = TensorDataset(torch.full((1, 6), math.inf), torch.zeros(1, dtype=torch.int64))
    private = new(rows, batch_size=1, steps=1, clipping_norm=QUIET, micro_batch_size=1)
    private.step(losses(private), next(iter(private)))
    assert private.clipping_norm == pytest.approx(0.5 * math.exp(-(-0.5 + 0.5 - 0.3)), rel=5e-3)


def changes(samples: int) -> list[float]:
    """Centred counts of batches of this many samples with short gradients, and with long ones."""
    found = []
    for scale in (0.0, 1e3):
        rows = TensorDataset(scale * torch.ones(samples, 6), torch.zeros(samples, dtype=torch.int64))
        nn.init.zeros_((model := nn.Linear(6, 2, bias=False)).weight)
        private = new(rows, model, batch_size=samples, clipping_norm=QUIET, steps=1)
        for part in private.micro_batches(next(iter(private))):
            private.accumulate(losses(private), part)
        found.append(private._inner.centred_count)
    return found


def test_one_sample_changes_the_count_by_a_half_and_its_replacement_by_one() -> None:
    """The unit of ``AdaptiveClipping.noise_multiplier``; the replacement's price has twice the shift, as any sum's."""
    assert changes(1) == [0.5, -0.5]
    assert changes(2) == [1.0, -1.0]
    assert QUIET.release.noise_multiplier == QUIET.noise_multiplier
    options: dict[str, Any] = {"beside": [GaussianRelease(2.0)]}
    for relation, shift in ((AddRemove(), 1.0), (ReplaceOne(), 2.0)):
        found = DPSGD(1.0, 1.0, neighbours=relation, **options).epsilon(steps=1, delta=1e-5)
        wanted = GaussianRelease(
            1.0 / (shift * math.hypot(1.0, 0.5))
        )  # (C, ±1/2) over (σC, 2·1/2), and to its opposite
        assert found.upper == pytest.approx(compose([(wanted, 1)]).epsilon(1e-5).upper, rel=1e-4)


def test_the_count_has_the_stated_noise() -> None:
    """Half the noise multiplier, anew in every step; the gradient's noise follows the clipping norm."""
    rows = TensorDataset(torch.zeros(4, 500), torch.zeros(4, dtype=torch.int64))
    rule = AdaptiveClipping(noise_multiplier=20.0, learning_rate=0.05, initial=1.0)
    model = nn.Linear(500, 2, bias=False)
    private = new(rows, model, clipping_norm=rule, batch_size=4, steps=200, isolation_checks=0.0)
    counts, spreads = [], []
    for batch in private:
        before, norm = model.weight.detach().clone(), private.clipping_norm
        private.step(losses(private), batch)
        spreads.append(float((model.weight.detach() - before).std()) / (norm / 4))
        counts.append((-math.log(private.clipping_norm / norm) / 0.05 - 0.5 + 0.5) * 4 - 2.0)  # all four are below C
    noise = torch.tensor(counts, dtype=torch.float64)
    assert abs(float(noise.mean())) < 5 * 10 / math.sqrt(200)
    assert 10 * (1 - 5 / math.sqrt(400)) < float(noise.std()) < 10 * (1 + 5 / math.sqrt(400))
    assert abs(float((noise[1:] * noise[:-1]).mean())) < 5 * 100 / math.sqrt(199)
    assert all(0.8 < spread < 1.2 for spread in spreads)  # σ = 1, of 1,000 entries; C itself went elsewhere:
    assert private.clipping_norm < 0.9 or private.clipping_norm > 1.1


@pytest.mark.parametrize("shares", [False, True])
def test_everything_that_is_drawn_has_a_key_of_its_own(shares: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one key the count would tell the noise of the sum; micro-batches would share their dropout."""
    purposes, derive = [], Randomness.derive

    def recorded(self: Randomness, purpose: str) -> bytes:
        purposes.append(purpose)
        return derive(self, purpose)

    monkeypatch.setattr(Randomness, "derive", recorded)
    private = new(steps=3, clipping_norm=QUIET, micro_batch_size=5)
    if shares:
        private.state_dict()
    parts = 0
    for batch in private:
        parts += len(batch._parts)
        private.step(losses(private), batch)
    assert parts > 3
    of_steps = [purpose for purpose in purposes if purpose.startswith(("noise,", "count,", "dropout,"))]
    assert len(of_steps) == 2 * 3 + parts
    assert len(set(of_steps)) == len(of_steps)


def test_the_price_is_one_sum_with_less_noise() -> None:
    rule = AdaptiveClipping(noise_multiplier=4.0)
    private = new(clipping_norm=rule, noise_multiplier=1.5)
    train(private)
    rate = private.mechanism.sample_rate
    joint = DPSGD(1.0 / math.hypot(1 / 1.5, 1 / 4.0), rate).epsilon(steps=6, delta=1e-5)
    assert private.epsilon().upper == pytest.approx(joint.upper, rel=1e-4)
    assert private.epsilon().lower > DPSGD(1.5, rate).epsilon(steps=6, delta=1e-5).upper  # the count is not free
    assert "Gaussian noise of standard deviation 4" in private.statement()
    assert "in none of the sums" in private.statement()
    assert "0.5 quantile" in private.statement()
    assert private.records["mechanism"]["beside"] == [{"kind": "gaussian", "noise_multiplier": 4.0}]


def test_a_target_moves_the_gradients_noise_alone() -> None:
    """z_Δ of Andrew et al.: (z⁻² - (2σ_b)⁻²)^(-1/2) for the z that suffices without a count."""
    private = new(clipping_norm=AdaptiveClipping(noise_multiplier=5.0), noise_multiplier=None, target_epsilon=2.0)
    alone = calibrate(DPSGD(1.0, private.mechanism.sampling), steps=6, target_epsilon=2.0, delta=1e-5).noise_multiplier
    assert private.noise_multiplier == pytest.approx((alone**-2 - 5.0**-2) ** -0.5, rel=1e-3)
    assert private.mechanism.beside == (GaussianRelease(5.0),)
    assert private.mechanism.epsilon(steps=6, delta=1e-5).upper <= 2.0
    with pytest.raises(ParameterError, match="target_epsilon must be reachable"):
        new(clipping_norm=AdaptiveClipping(noise_multiplier=0.5), noise_multiplier=None, target_epsilon=0.5)


@pytest.mark.parametrize("secret", [True, False])
def test_a_loaded_run_keeps_its_clipping_norm(secret: bool) -> None:
    rule = AdaptiveClipping(noise_multiplier=2.0)
    private, other = new(clipping_norm=rule), new(clipping_norm=rule)
    train(private, 3)
    other.load_state_dict(saved_and_loaded(private.state_dict(secret=secret)))
    assert other.clipping_norm == private.clipping_norm != rule.initial
    train(private)
    train(other)
    assert (other.clipping_norm == private.clipping_norm) is secret
    assert all(map(torch.equal, weights(private.model), weights(other.model))) is secret
    with pytest.raises(ParameterError, match="state must be of a run like this one"):
        new(clipping_norm=AdaptiveClipping(noise_multiplier=2.0, quantile=0.4)).load_state_dict(private.state_dict())
    with pytest.raises(ParameterError, match="state must be of a run like this one"):
        new(clipping_norm=1.0).load_state_dict(new(clipping_norm="automatic").state_dict())


def test_optimizers_that_know_their_noise_are_given_each_steps() -> None:
    model = network()
    optimizer = DPAdamBC(model.parameters(), lr=0.01, floor=1e-6)
    private = new(ROWS, model, optimizer, clipping_norm=AdaptiveClipping(noise_multiplier=2.0))
    for batch in private:
        norm = private.clipping_norm
        private.step(losses(private), batch)
        assert optimizer.param_groups[0]["noise_variance"] == pytest.approx((norm / 12) ** 2)
        assert private.clipping_norm != norm


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"norms": Hutchinson(4, secret=True)}, r"norms must be 'exact' or 'ghost' with AdaptiveClipping"),
        ({"clipping_norm": "auto"}, "clipping_norm must be a number, AdaptiveClipping"),
        ({"clipping_norm": AdaptiveClipping}, "clipping_norm must be a number, AdaptiveClipping"),
    ],
)
def test_what_has_no_price_raises(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ParameterError, match=match):
        new(**{"clipping_norm": QUIET, **options})


@pytest.mark.parametrize(("name", "value"), [("noise_multiplier", 0.0), ("quantile", 1.1), ("learning_rate", 0.0)])
def test_rules_are_checked(name: str, value: float) -> None:
    with pytest.raises(ParameterError, match=name):
        AdaptiveClipping(**{"noise_multiplier": 1.0, name: value})


def in_a_group(rank: int, size: int) -> list[Any]:
    """Clipping norms of two steps on all rows, with a model that is replicated, and sharded."""
    answers = []
    for sharded in (False, True):
        model = model_of_tokens(sharded=sharded)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        rule = AdaptiveClipping(noise_multiplier=1e-3, initial=1e6, learning_rate=1.0)
        data = TensorDataset(TOKENS[:5])  # one process has a row less, and stands in
        private = new(
            data, model, optimizer, norms="ghost", clipping_norm=rule, batch_size=5, micro_batch_size=1, steps=2
        )
        for batch in private:
            private.step(lambda rows, model=model: losses_of_tokens(model, rows[0]), batch)
        answers.append(private.clipping_norm)
    return answers


def test_processes_share_one_count(tmp_path: Path) -> None:
    """All five norms are below 1e6, so C falls by exp(-1/2) a step; a row that stands in is not counted."""
    first, second = in_processes(2, in_a_group, tmp_path)
    assert isinstance(first, list), first
    assert first == second
    assert first == pytest.approx([1e6 * math.exp(-1.0)] * 2, rel=2e-3)


# --------------------------------------------------------------------------------------------------- automatic clipping


def test_automatic_clipping_divides_by_the_norm_and_a_constant() -> None:
    private = new(clipping_norm="automatic", noise_multiplier=1e-3, steps=3)
    for batch in private:
        before = network()
        before.load_state_dict(private.model.state_dict())
        samples = gradients_of(before, row_losses(before, positions(batch)))
        private.step(losses(private), batch)
        for name, was in before.named_parameters():
            total = sum(sample[name] / (norm_of(sample) + 0.01) for sample in samples)
            moved = (was - private.model.get_parameter(name)).detach()
            assert float((moved - total / 12).abs().max()) < 6e-4  # 7 standard deviations
    assert private.clipping_norm == 1.0
    assert private.epsilon() == private.mechanism.epsilon(steps=3, delta=1e-5)
    assert "divided by |g| + 0.01" in private.statement()


@pytest.mark.parametrize("norms", ["exact", "ghost", Hutchinson(4, secret=True), Hutchinson(8, secret=False)])
def test_automatic_clipping_adds_noise_for_a_sensitivity_of_one(norms: Any) -> None:
    """Estimated norms are covered: |g|/(n̂ + γ) < |g|/n̂ = Z, all that (A1) and (C1) use of a contribution."""
    model = nn.Linear(100, 50, bias=False)
    rows = TensorDataset(torch.zeros(N, 3, 100))
    private = new(rows, model, norms=norms, clipping_norm="automatic", noise_multiplier=2.0, steps=1)
    before = model.weight.detach().clone()
    private.step(lambda batch: model(batch[0]).square().sum((1, 2)), next(iter(private)))
    assert float((model.weight.detach() - before).std()) == pytest.approx(2.0 / 12, rel=0.05)


def test_no_factor_lets_a_sample_add_more_than_the_sensitivity() -> None:
    lengths = torch.logspace(-30, 30, 2001, dtype=torch.float64)
    factors = clip_factors(lengths.square(), 0.7, stability=0.01, rounding=0.0)
    assert bool((factors * lengths <= 0.7).all())
    assert float((factors * lengths)[lengths > 1e3].min()) > 0.699
    assert bool((factors[lengths < 1e-6] > 69.9).all())  # where clipping leaves gradients as they are
    with pytest.raises(ParameterError, match="stability"):
        clip_factors(lengths, 1.0, stability=0.0)


class Reads(nn.Module):
    """An embedding, a norm, a layer that is used twice, and one that no loss reaches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.words, self.norm, self.mixes = nn.Embedding(9, 8), nn.LayerNorm(8), nn.Linear(8, 8)
        self.unused, self.head = nn.Linear(3, 3), nn.Linear(8, 2, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.mixes(torch.tanh(self.mixes(self.norm(self.words(words))))).mean(1))


@pytest.mark.parametrize("norms", ["exact", "ghost"])
def test_every_layer_of_every_sample_is_clipped_to_its_share(norms: str) -> None:
    """Against literal gradients of single samples: the sum, the largest contribution, the noise and the price."""
    words = torch.randint(9, (7, 5), generator=torch.Generator().manual_seed(2))
    rows, bound = TensorDataset(words, torch.arange(7) % 2), 0.4
    model, clipping = Reads(), PerLayerClipping(bound)
    samples = gradients_of(model, [3.0 * cross_entropy(model(row[None]), target[None]) for row, target in rows])
    wanted, lengths = {}, []
    for layer in ("words", "norm", "mixes", "unused", "head"):
        parts = [{name: g for name, g in sample.items() if name.startswith(layer)} for sample in samples]
        wanted |= clipped_sum(parts, bound / math.sqrt(5))
        lengths += [norm_of(part) for part in parts]
    assert 0 < sum(0 < length < bound / math.sqrt(5) for length in lengths) < 4 * 7  # some are clipped and some not
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    private = new(rows, model, clipping_norm=clipping, norms=norms, batch_size=7, steps=1, noise_multiplier=1e-3)
    for batch in private:
        private.step(lambda part: 3.0 * cross_entropy(private.model(part[0]), part[1], reduction="none"), batch)
    for name, value in model.named_parameters():
        moved = 7 * (before[name] - value.detach())
        assert torch.allclose(moved, wanted[name], rtol=2e-3, atol=6e-3 * bound), name  # noise of 1e-3 · C
    assert private.clipping_norm == bound
    assert private.mechanism == DPSGD(1e-3, 1.0)  # as for one norm
    assert "each layer is clipped" in private.statement()
    whole = new(rows, Reads(), clipping_norm=bound, norms=norms, batch_size=7, steps=1, noise_multiplier=1e-3)
    with pytest.raises(ParameterError, match="clipping_norm"):
        whole.load_state_dict(private.state_dict())


def tied() -> nn.Module:
    """One table that reads words and writes them."""
    words, head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
    head.weight = words.weight
    return Parts(lambda model, rows: model.head(model.words(rows).mean(1)), words=words, head=head)


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        (network, {"norms": Hutchinson(4, secret=True)}, "norms are estimated"),
        (network, {"units": Units(1, regime="alone")}, "rows of a unit run alone"),
        (tied, {}, "layers share a parameter"),
    ],
)
def test_clipping_of_layers_names_what_it_does_not_cover(model: Any, options: dict[str, Any], reason: str) -> None:
    rows = ROWS if model is network else TensorDataset(torch.zeros(4, 3, dtype=torch.int64), torch.zeros(4).long())
    with pytest.raises(ParameterError, match=rf"clipping_norm must be a number where {reason}"):
        new(rows, model(), clipping_norm=PerLayerClipping(1.0), batch_size=2, **options)
