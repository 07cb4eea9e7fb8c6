"""An accountant that was told other norms than the samplers compute is refused."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant, RDPAccountant
from opacus.grad_sample import GradSampleModuleFastGradientClipping

from dprmt import ParameterError, TrainingStateError
from dprmt.accounting import ExactNorms, Hutchinson
from dprmt.accounting.opacus import register
from dprmt.training.clipping import register_norm_samplers


def attach(accountant: Any, probes: int, *, secret: bool = False) -> None:
    model = GradSampleModuleFastGradientClipping(torch.nn.Linear(40, 40), max_grad_norm=1.0)
    register_norm_samplers(model, Hutchinson(probes, secret=secret), accountant=accountant).remove()


def test_the_accountant_must_have_been_told_these_probes() -> None:
    attach(register(Hutchinson(4, secret=False), name="link4")(), 4)
    attach(
        register(Hutchinson(4, secret=False), name="link4b")(), 4, secret=True
    )  # charged as if probes were public: more
    attach(register(Hutchinson(4, secret=True), name="link4s")(), 4, secret=True)
    for accountant in (
        register(Hutchinson(256, secret=False), name="link256")(),
        register(ExactNorms(), name="link-exact")(),
        register(Hutchinson(4, secret=True), name="link4s2")(),
        RDPAccountant(),
        PRVAccountant(),
    ):
        with pytest.raises(ParameterError, match=r"accountant must be one for the norms.*register\(Hutchinson\(4"):
            attach(accountant, 4)


def test_a_finite_rank_that_the_norms_do_not_have_is_refused() -> None:
    with pytest.raises(ParameterError, match="accountant must be one for the norms"):
        attach(register(Hutchinson(8, secret=False, rank=2), name="link-rank")(), 8)


def engine_steps(word: str, steps: int, norms: Hutchinson, **options: Any) -> float:
    """Opacus' own loop; its ε."""
    data = torch.utils.data.TensorDataset(torch.arange(30))
    network, engine = torch.nn.Linear(40, 40), PrivacyEngine(accountant=word)
    model, optimizer, criterion, _ = engine.make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        criterion=torch.nn.CrossEntropyLoss(),
        data_loader=torch.utils.data.DataLoader(data, batch_size=3),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode="ghost",
    )
    samplers = register_norm_samplers(model, norms, **options)
    before = network.weight.detach().clone()
    try:
        for number in range(steps):
            logits = model(torch.ones(2, 40))
            with samplers.at(step=number, samples=[1, 2]):
                criterion(logits, torch.tensor([3, 4])).backward()
            optimizer.step()
            optimizer.zero_grad()
    except (ParameterError, TrainingStateError):
        assert torch.equal(network.weight.detach(), before) == (steps == 1)  # the first step's refusal releases nothing
        raise
    return float(engine.accountant.get_epsilon(1e-5))


@pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning")
def test_an_engine_that_was_told_other_probes_is_refused_at_its_first_step() -> None:
    """Without being handed the accountant: 256 probes stated and 4 used are a small ε for a large one."""
    register(Hutchinson(256, secret=False), name="seen256")
    register(Hutchinson(4, secret=False), name="seen4")
    with pytest.raises(ParameterError, match=r"accountant must be one for the norms.*register\(Hutchinson\(4"):
        engine_steps("seen256", 1, Hutchinson(4, secret=False))
    assert engine_steps("seen4", 3, Hutchinson(4, secret=False)) > 10
    assert engine_steps("seen4", 2, Hutchinson(4, secret=True)) > 10  # charged as if probes were public
    assert engine_steps("seen256", 1, Hutchinson(256, secret=False, rank=1000)) < 20


@pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning")
@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_opacus_own_accountants_are_refused_for_estimated_norms(accountant: str) -> None:
    """They have no place to ask; that nobody who knows of the norms has counted shows at the second step."""
    with pytest.raises(TrainingStateError, match="no accountant that knows of these norms counted step 0"):
        engine_steps(accountant, 2, Hutchinson(4, secret=False))


@pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning")
@pytest.mark.filterwarnings("ignore:Optimal order:UserWarning")
def test_who_counts_for_himself_says_so_and_exact_norms_are_for_anybody() -> None:
    assert engine_steps("rdp", 2, Hutchinson(4, secret=False), accountant="mine") > 0
    assert engine_steps("rdp", 2, Hutchinson(40, secret=False)) > 0  # 40 x 40 with 40 probes: exact is cheaper
