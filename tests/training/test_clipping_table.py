"""Every way to clip against a literal loop: what is trained, norms, probes, optimizers, processes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch._functorch.config
from torch import nn

from dprmt import ParameterError, TrainingStateError
from dprmt.training.clipping import plan_private
from dprmt.training.subspaces import Subspaces
from tests.training import clipping_table
from tests.training.clipping_table import (
    CLIPPINGS,
    SHARINGS,
    TRAINED,
    WAYS,
    L,
    Way,
    check_released,
    make_model,
    make_step,
)
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


@pytest.mark.parametrize("trained", ["full", "projected"])
@pytest.mark.parametrize("clipping", ["exact", "ghost"])
def test_one_rounding_margin_for_every_kind_of_layer(trained: str, clipping: str) -> None:
    """It grows with the unit roundoff of the products that torch may take, projected or not."""
    way, margins = Way(trained, clipping, "batch", "sgd"), []
    try:
        for precision in ("highest", "high"):
            torch.set_float32_matmul_precision(precision)
            margins.append(make_step(way, make_model(way).float(), 1.0).rounding)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert margins[0] <= 2.0**-13
    assert margins[1] > 6e-3


CLIPPED_WAYS = [Way(trained, clipping, "batch", "sgd") for trained in TRAINED for clipping in CLIPPINGS]


@pytest.mark.parametrize("way", CLIPPED_WAYS, ids="-".join)
def test_with_checkpoints_the_literal_sum_is_released(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipping_table.Net, "checkpointed", True)
    check_released(way, make_model(way))


@contextmanager
def autocast_losses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    plain = clipping_table.losses

    def losses(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return plain(model, tokens)

    with monkeypatch.context() as patched:
        patched.setattr(clipping_table, "losses", losses)
        yield


@pytest.mark.parametrize("way", CLIPPED_WAYS, ids="-".join)
def test_under_autocast_the_literal_sum_is_released_to_its_bits(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's own gradients are rounded to eight bits, as are what layers see; sums and norms of that are not."""
    with autocast_losses(monkeypatch):
        check_released(way, make_model(way).float(), 0.02)


@pytest.mark.parametrize("clipping", ["exact", "ghost"])
def test_norms_under_autocast_have_the_digits_of_float32(clipping: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample that is clipped is (1 - ρ)C long after it, where a norm in eight bits would be off by 1e-3."""
    way, bound = Way("full", clipping, "batch", "sgd"), 1e-3
    with autocast_losses(monkeypatch):
        model = make_model(way).float()
        step = make_step(way, model, bound)
        row = clipping_table.data()[:1]
        step.accumulate(clipping_table.losses(step.model, row), samples=[0], step=0)
        length = math.sqrt(sum(float(value.summed_grad.double().square().sum()) for value in step.optimizer.params))
    assert length == pytest.approx((1 - step.rounding) * bound, rel=2e-5 if clipping == "exact" else 2e-4)
    assert length <= bound


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # as dynamo looks at hooks
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what inductor imports
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])  # which needs a C++ compiler
def test_a_compiled_model_releases_the_literal_sum_if_its_backward_pass_keeps_its_buffers(backend: str) -> None:
    """Its graph breaks at every layer's hooks; what is between them is compiled."""
    way = Way("full", "exact", "batch", "sgd")
    with torch._functorch.config.patch(donated_buffer=False):
        check_released(way, make_model(way), backend=backend)
    with pytest.raises(TrainingStateError, match=r"set torch\._functorch\.config\.donated_buffer = False before"):
        check_released(way, make_model(way), backend=backend)
