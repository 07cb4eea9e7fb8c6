"""An accountant that was told other norms than the samplers compute is refused."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from opacus.accountants import PRVAccountant, RDPAccountant
from opacus.grad_sample import GradSampleModuleFastGradientClipping

from dprmt._validation import ParameterError
from dprmt.accounting.opacus import register
from dprmt.training.clipping import register_norm_samplers
from dprmt.training.norms import Hutchinson


def attach(accountant: Any, probes: int, sharing: Any = "batch") -> None:
    model = GradSampleModuleFastGradientClipping(torch.nn.Linear(40, 40), max_grad_norm=1.0)
    register_norm_samplers(model, Hutchinson(probes, sharing), accountant=accountant).remove()


def test_the_accountant_must_have_been_told_these_probes() -> None:
    attach(register(probes=4, name="link4")(), 4)
    attach(register(probes=4, name="link4b")(), 4, "sample")  # charged as if probes were revealed: more
    attach(register(probes=4, probe_sharing="sample", name="link4s")(), 4, "sample")
    for accountant in (
        register(probes=256, name="link256")(),
        register(probes=None, name="link-exact")(),
        register(probes=4, probe_sharing="sample", name="link4s2")(),
        RDPAccountant(),
        PRVAccountant(),
    ):
        with pytest.raises(ParameterError, match=r"accountant must be one for the norms.*register\(probes=4"):
            attach(accountant, 4)


def test_a_finite_rank_that_the_norms_do_not_have_is_refused() -> None:
    with pytest.raises(ParameterError, match="accountant must be one for the norms"):
        attach(register(probes=8, rank=2, name="link-rank")(), 8)
