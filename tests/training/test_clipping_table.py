"""Every way to clip against a literal loop: what is trained, norms, probes, optimizers, processes."""

from __future__ import annotations

import pytest
import torch

from dprmt import ParameterError
from dprmt.training.clipping import plan_private
from dprmt.training.subspaces import Subspaces
from tests.training.clipping_table import SHARINGS, WAYS, L, Way, check_released, make_model
from tests.training.norms_by_word import by_word

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft asks transformers


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_what_a_step_releases_is_the_literal_sum(way: Way) -> None:
    """Σ_i min(1, (1-ρ)C/√n̂_i) v_i / L with v_i whole or projected; some samples are clipped and some are not."""
    model = make_model(way)
    step = check_released(way, model)
    estimated = way.clipping not in ("exact", "ghost")
    assert step.record.mechanism(1.0, 0.01).norms.secret == (estimated and way.sharing == "sample")
    assert step.close() is model


@pytest.mark.parametrize("sharing", SHARINGS)
def test_what_does_not_go_together_is_refused_before_the_first_step(sharing: str) -> None:
    way = Way("projected", "hutchinson", sharing, "sgd")
    model = make_model(way)
    options = {"norms": by_word("hutchinson", sharing=sharing), "clipping_norm": 1.0, "expected_batch_size": L}
    plan = plan_private(model, subspaces=Subspaces(model, rank=2), **options)
    with pytest.raises(ParameterError, match="a DPGrape of the plan's subspaces"):
        plan.privatize(torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0)
    with pytest.raises(ParameterError, match="init_process_group"):
        plan_private(model, distributed=True, **options)
