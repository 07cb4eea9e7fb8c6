"""The Opacus accountant: what it is told, what it refuses, and a real training run through PrivacyEngine."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprmt import ParameterError, accounting
from dprmt.accounting import DPSGD, ExactNorms, Group, Hutchinson, RandomAllocation, ReplaceOne, calibrate, compose

torch = pytest.importorskip("torch")

from opacus import PrivacyEngine  # noqa: E402
from opacus.accountants import create_accountant, register_accountant  # noqa: E402
from opacus.accountants.utils import get_noise_multiplier  # noqa: E402
from opacus.utils.batch_memory_manager import BatchMemoryManager  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from dprmt.accounting.opacus import ClippingConfiguration, RandomizedClippingAccountant, register  # noqa: E402

NAME = "randomized_clipping"
DELTA = 1e-5
PUBLIC = Hutchinson(32, secret=False)

# What Opacus and torch always say in training.
opacus_talks = pytest.mark.filterwarnings("ignore:(Secure RNG turned off|Full backward hook is firing):UserWarning")


@pytest.fixture
def default_name() -> Iterator[str]:
    """The default name, told nothing again afterwards."""
    yield NAME
    register_accountant(NAME, RandomizedClippingAccountant, force=True)


def after(accountant, *history: tuple[float, float, int]):
    """The accountant after some steps."""
    for noise_multiplier, sample_rate, steps in history:
        for _ in range(steps):
            accountant.step(noise_multiplier=noise_multiplier, sample_rate=sample_rate)
    return accountant


def test_importing_registers_an_accountant_that_refuses_to_guess(default_name: str) -> None:
    """No default number of probes: a wrong one would report too small an ε."""
    accountant = create_accountant(default_name)
    assert type(accountant) is RandomizedClippingAccountant
    for run in (accountant, after(accountant, (1.0, 0.1, 2))):
        with pytest.raises(ParameterError, match=r"norms must be stated .*register\(Hutchinson\(32, secret=False\)\)"):
            run.get_epsilon(DELTA)
    expected = DPSGD(1.0, 0.1, PUBLIC).epsilon(steps=2, delta=DELTA).upper
    assert accountant.get_epsilon(DELTA, norms=PUBLIC) == expected
    with pytest.raises(ParameterError):
        accountant.get_epsilon(DELTA, sampling="poisson")


STEPS = st.lists(st.tuples(st.sampled_from([0.5, 1.0]), st.sampled_from([0.01, 0.5, 1.0])), min_size=1, max_size=8)


@given(STEPS)
def test_the_history_is_the_steps_that_were_taken(steps: list[tuple[float, float]]) -> None:
    """Neighbours are one entry only if both their noise and their rate are the same."""
    accountant = RandomizedClippingAccountant()
    for noise_multiplier, sample_rate in steps:
        accountant.step(noise_multiplier=noise_multiplier, sample_rate=sample_rate)
    assert [(sigma, rate) for sigma, rate, count in accountant.history for _ in range(count)] == steps
    assert len(accountant.history) == 1 + sum(first != second for first, second in itertools.pairwise(steps))


@pytest.mark.parametrize("history", [[(2.0, 1e-6, 20), (2.0, 1.0, 1)], [(2.0, 1.0, 1), (2.0, 1e-6, 20)]])
def test_a_step_at_a_larger_rate_is_charged_as_such(history: list[tuple[float, float, int]]) -> None:
    """One Gaussian step without sampling beside many of one batch in a million: about that one alone."""
    exact = accounting.gdp_epsilon(0.5, DELTA)
    bounds = after(register(ExactNorms(), name="rc-rates")(), *history).get_bounds(DELTA)
    assert exact <= bounds.upper < exact + 0.01


def test_exact_norms_agree_with_opacus_own_accountants() -> None:
    """Above what they bound from below, and below their upper bounds."""
    history = (1.0, 0.02, 300)
    ours = after(register(ExactNorms(), name="exact")(), history).get_epsilon(DELTA)
    prv = after(create_accountant("prv"), history).get_epsilon(DELTA, eps_error=0.02)
    rdp = after(create_accountant("rdp"), history).get_epsilon(DELTA)
    assert ours == DPSGD(1.0, 0.02).epsilon(steps=300, delta=DELTA).upper
    assert prv - 0.04 <= ours <= prv <= rdp


def test_no_noise_has_infinite_epsilon_and_much_noise_counts_as_the_most_that_is_checked() -> None:
    accountant = after(register(Hutchinson(32, secret=False), name="rc-noise")(), (1.0, 0.1, 2), (0.0, 0.1, 1))
    assert accountant.get_epsilon(DELTA) == math.inf
    accountant.history = [(1e9, 0.1, 2)]
    assert accountant.get_epsilon(DELTA) == DPSGD(1e6, 0.1, PUBLIC).epsilon(steps=2, delta=DELTA).upper


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("sample_rate", (1.0, 1.25, 1)),
        ("sample_rate", (1.0, 0.0, 1)),
        ("noise_multiplier", (-1.0, 0.1, 1)),
        ("noise_multiplier", (math.nan, 0.1, 1)),
        ("steps", (1.0, 0.1, 0)),
        ("steps", (1.0, 0.1, 2.5)),
    ],
)
def test_bad_entries_are_named(name: str, entry: tuple) -> None:
    accountant = register(Hutchinson(32, secret=False), name="rc-bad")()
    if name != "steps":
        with pytest.raises(ParameterError) as caught:
            accountant.step(noise_multiplier=entry[0], sample_rate=entry[1])
        assert caught.value.name == name
        assert accountant.history == []
    accountant.history = [entry]
    with pytest.raises(ParameterError) as caught:
        accountant.get_epsilon(DELTA)
    assert caught.value.name == name


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("norms", {"norms": 8}),
        ("norms", {"norms": "hutchinson"}),
        ("sampling", {"norms": Hutchinson(8, secret=False), "sampling": "shuffled"}),
        ("name", {"norms": Hutchinson(8, secret=False), "name": "prv"}),
        ("name", {"norms": Hutchinson(8, secret=False), "name": ""}),
    ],
)
def test_bad_registrations_are_named(name: str, options: dict) -> None:
    with pytest.raises(ParameterError) as caught:
        register(**options)
    assert caught.value.name == name


def test_state_makes_a_round_trip() -> None:
    registered = register(Hutchinson(16, secret=False, rank=3, analysis="envelope"), name="rc-state")
    accountant = after(registered(), (1.0, 0.1, 4))
    state = accountant.state_dict()
    norms = {"kind": "hutchinson", "probes": 16, "secret": False, "rank": 3, "analysis": "envelope"}
    assert state["configuration"] == {"norms": norms, "sampling": "poisson"}
    other = create_accountant("rc-state")
    other.load_state_dict(state)
    assert other.history == [(1.0, 0.1, 4)]
    after(other, (1.0, 0.1, 1))
    assert accountant.history == state["history"] == [(1.0, 0.1, 4)]


@pytest.mark.parametrize(
    "change",
    [
        {"configuration": ClippingConfiguration(Hutchinson(64, secret=False)).as_dict()},
        {"configuration": ClippingConfiguration(Hutchinson(32, secret=True)).as_dict()},
        {"configuration": ClippingConfiguration(Hutchinson(32, secret=False), "allocation").as_dict()},
        {"configuration": None},
        {"mechanism": "rdp"},
        {"history": [(1.0, 2.0, 3)]},
    ],
)
def test_another_state_is_refused_and_changes_nothing(change: dict) -> None:
    accountant = after(register(Hutchinson(32, secret=False), name="rc-refuse")(), (1.0, 0.1, 2))
    with pytest.raises(ValueError):
        accountant.load_state_dict(accountant.state_dict() | change)
    assert accountant.history == [(1.0, 0.1, 2)]


def test_opacus_calibration_ends_on_the_private_side() -> None:
    register(PUBLIC, name="rc-calibrate")
    asked = {"target_epsilon": 2.0, "target_delta": DELTA, "sample_rate": 0.05, "steps": 60}
    found = get_noise_multiplier(**asked, accountant="rc-calibrate")
    assert DPSGD(found, 0.05, PUBLIC).epsilon(steps=60, delta=DELTA).upper <= 2.0
    ours = calibrate(DPSGD(1.0, 0.05, PUBLIC), steps=60, target_epsilon=2.0, delta=DELTA).noise_multiplier
    assert 1.0 <= found / ours <= 1.02
    assert get_noise_multiplier(**asked, accountant="rc-calibrate", norms=Hutchinson(24, secret=False)) > found


class Run:
    """A small model under PrivacyEngine."""

    def __init__(self, accountant: str, batch_size: int = 8, samples: int = 64, loads=DataLoader, **options) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        data = TensorDataset(torch.randn(samples, 4), torch.randint(0, 2, (samples,)))
        self.engine = PrivacyEngine(accountant=accountant)
        make = self.engine.make_private if "noise_multiplier" in options else self.engine.make_private_with_epsilon
        self.model, self.optimizer, self.loader = make(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=loads(data, batch_size=batch_size),
            max_grad_norm=1.0,
            **options,
        )

    def backward(self, batch) -> None:
        """One backward pass."""
        nn.functional.cross_entropy(self.model(batch[0]), batch[1]).backward()

    def epoch(self, loader=None) -> None:
        """As many steps as the loader has batches."""
        for batch in loader or self.loader:
            self.optimizer.zero_grad()
            self.backward(batch)
            self.optimizer.step()


@opacus_talks
def test_training_to_a_target_epsilon(default_name: str, tmp_path) -> None:
    """Calibrate, train with Opacus' exact clipping (accounted for conservatively), ask, save, load, go on."""
    register(Hutchinson(32, secret=False))
    budget = {"target_epsilon": 3.0, "target_delta": DELTA, "epochs": 2}
    run = Run(default_name, **budget)
    before = [parameter.detach().clone() for parameter in run.model.parameters()]
    run.epoch()
    run.epoch()
    assert any(not torch.equal(old, new) for old, new in zip(before, run.model.parameters(), strict=True))
    sigma = run.optimizer.noise_multiplier
    assert run.engine.accountant.history == [(sigma, 1 / 8, 16)]
    assert 2.9 < run.engine.get_epsilon(DELTA) <= 3.0
    assert DPSGD(sigma, 1 / 8).epsilon(steps=16, delta=DELTA).upper < run.engine.get_epsilon(DELTA)

    run.engine.save_checkpoint(path=tmp_path / "state.pt", module=run.model, optimizer=run.optimizer)
    later = Run(default_name, noise_multiplier=sigma)
    later.engine.load_checkpoint(path=tmp_path / "state.pt", module=later.model, optimizer=later.optimizer)
    later.epoch()
    assert later.engine.accountant.history == [(sigma, 1 / 8, 24)]
    register(Hutchinson(64, secret=False))
    other = Run(default_name, noise_multiplier=sigma)
    with pytest.raises(ParameterError, match="'probes': 64"):
        other.engine.load_checkpoint(path=tmp_path / "state.pt", module=other.model, optimizer=other.optimizer)


@opacus_talks
def test_virtual_steps_are_one_step_at_the_logical_rate() -> None:
    register(Hutchinson(32, secret=False), name="rc-virtual")
    run = Run("rc-virtual", batch_size=16, noise_multiplier=1.0)
    with BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=3, optimizer=run.optimizer) as loader:
        run.epoch(loader)
    assert run.engine.accountant.history == [(1.0, 1 / 4, 4)]


def test_random_allocation_is_charged_in_whole_epochs() -> None:
    """Seven steps of epochs of five are two epochs; noise may change between epochs, not within one."""
    mechanism = DPSGD(1.0, RandomAllocation(5))
    run = after(RandomizedClippingAccountant(), (1.0, 0.2, 7))
    stated = {"norms": ExactNorms(), "sampling": "allocation"}
    assert run.get_epsilon(DELTA, **stated) == mechanism.epsilon(epochs=2, delta=DELTA).upper
    both = after(RandomizedClippingAccountant(), (1.0, 0.2, 5), (2.0, 0.2, 1))
    quieter = DPSGD(2.0, RandomAllocation(5))
    assert both.get_epsilon(DELTA, **stated) == compose([(mechanism, 5), (quieter, 5)]).epsilon(DELTA).upper
    with pytest.raises(ParameterError, match="steps must be whole epochs"):
        after(RandomizedClippingAccountant(), (1.0, 0.2, 4), (2.0, 0.2, 1)).get_epsilon(DELTA, **stated)
    with pytest.raises(ParameterError, match="sample_rate must be 1 /"):
        after(RandomizedClippingAccountant(), (1.0, 0.3, 4)).get_epsilon(DELTA, **stated)
    estimated = DPSGD(1.0, RandomAllocation(5), PUBLIC).epsilon(steps=10, delta=DELTA).upper
    assert run.get_epsilon(DELTA, norms=PUBLIC, sampling="allocation") == estimated


def test_neighbours_are_those_that_were_stated() -> None:
    """Replacement and groups: the mechanism's own numbers, registered or told in a call; states are of one relation."""
    replaced = register(ExactNorms(), neighbours=ReplaceOne(), name="replaced")
    accountant = after(replaced(), (1.0, 0.02, 50))
    own = [
        DPSGD(1.0, 0.02, neighbours=whose).epsilon(steps=50, delta=DELTA).upper for whose in (ReplaceOne(), Group(3))
    ]
    assert [accountant.get_epsilon(DELTA), accountant.get_epsilon(DELTA, neighbours=Group(3))] == own
    assert own[0] > DPSGD(1.0, 0.02).epsilon(steps=50, delta=DELTA).upper
    assert accountant.state_dict()["configuration"]["neighbours"] == {"kind": "replace-one"}
    zero_out = register(ExactNorms(), name="zero_out")()
    assert "neighbours" not in zero_out.configuration.as_dict()  # as states of earlier versions
    with pytest.raises(ParameterError, match="the configuration of this accountant"):
        zero_out.load_state_dict({**accountant.state_dict(), "mechanism": "zero_out"})
    with pytest.raises(ParameterError, match="neighbours must be"):
        register(ExactNorms(), neighbours="replace-one", name="worded")
