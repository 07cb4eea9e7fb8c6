"""From a script on Opacus' engine to estimated norms: the page's two programs, line by line and step by step."""

from __future__ import annotations

import difflib
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from opacus import PrivacyEngine

from dprmt import ParameterError, TrainingStateError
from dprmt.accounting import ExactNorms, Hutchinson, HutchPlusPlus
from dprmt.training.clipping import estimate_norms

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "opacus_loop.md"


def programs() -> tuple[str, str]:
    """Before and after."""
    found = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    before, after = (program for program in found if "PrivacyEngine()" in program)
    return before, after


def run(program: str) -> dict[str, Any]:
    torch.manual_seed(0)
    namespace: dict[str, Any] = {}
    with warnings.catch_warnings():
        exec(compile(program, str(PAGE), "exec"), namespace)
    return namespace


def test_at_most_five_lines_change() -> None:
    before, after = (program.splitlines() for program in programs())
    lines = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    assert len([line for line in lines if line[0] == "+"]) <= 5
    assert len([line for line in lines if line[0] == "-"]) == 1  # loss.backward(), which is indented


def test_the_script_with_estimated_norms_steps_once_a_logical_batch_and_tells_its_own_epsilon() -> None:
    """Eight logical batches of about four physical ones; ε is that of 16 probes, and more than for exact norms."""
    before, after = map(run, programs())
    accountant = after["engine"].accountant
    assert len(accountant) == sum(steps for *_, steps in before["engine"].accountant.history) == 8
    record = after["samplers"].record
    assert record.norms == HutchPlusPlus(16, 7, secret=False)
    mechanism = record.mechanism(1.2, 1 / 4)
    told = after["engine"].get_epsilon(delta=1e-5)
    assert told == pytest.approx(mechanism.epsilon(steps=8, delta=1e-5).upper, rel=2e-3)
    assert told > before["engine"].get_epsilon(delta=1e-5)


@pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning")
def test_what_cannot_be_accounted_for_is_refused() -> None:
    def made(**options: Any) -> tuple[Any, ...]:
        data = torch.utils.data.TensorDataset(torch.ones(20, 40), torch.arange(20))
        network, engine = torch.nn.Linear(40, 40), PrivacyEngine()
        model, optimizer, *_, loader = engine.make_private(
            module=network,
            optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
            criterion=torch.nn.CrossEntropyLoss(),
            data_loader=torch.utils.data.DataLoader(data, batch_size=5),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            **{"grad_sample_mode": "ghost", **options},
        )
        return engine, model, optimizer, loader

    for options, changes, named in (
        ({}, {"norms": "ghost"}, "norms must be estimated"),
        ({}, {"norms": 16}, "norms must be one of"),
        ({"poisson_sampling": False}, {}, "data_loader must be the DPDataLoader"),
        ({"grad_sample_mode": "hooks"}, {}, "optimizer must be the optimizer of make_private"),
    ):
        with pytest.raises(ParameterError, match=named):
            estimate_norms(*made(**options), **changes)
    engine, *others = made()
    engine.accountant.step(noise_multiplier=1.0, sample_rate=0.25)
    with pytest.raises(TrainingStateError, match="must not have counted any"):
        estimate_norms(engine, *others)
    small = estimate_norms(
        *made(), norms=Hutchinson(40, secret=False)
    )  # 40 x 40: exact is cheaper, Opacus' own accountant is right
    assert small.record.norms == ExactNorms()
