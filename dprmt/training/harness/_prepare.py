"""From a model, a task and settings to a run that can take its first step: plan, mechanism, σ, optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from dprmt._validation import ParameterError
from dprmt.accounting import Poisson, RandomAllocation
from dprmt.training.clipping import ClippingPlan
from dprmt.training.harness._privacy_cost import wanted_releases
from dprmt.training.harness._shards import check_spread, spread
from dprmt.training.harness._task import Task
from dprmt.training.norms import NormRecord, ProbeGenerator
from dprmt.training.optimizers import make_optimizer
from dprmt.training.private_run._batches import scheme
from dprmt.training.private_run._ledger import ClippingOnly, Mechanism, calibrated
from dprmt.training.private_run._randomness import Randomness
from dprmt.training.recipes import Settings
from dprmt.training.subspaces import Subspaces

NEW: Mapping[str, Any] = MappingProxyType({})


@dataclass
class Prepared:
    """A run before its first step; nothing is on the model or the optimizer yet."""

    model: torch.nn.Module
    task: Task
    settings: Settings
    plan: ClippingPlan
    probes: ProbeGenerator
    mechanism: Mechanism  # one step, at the rate of the draws
    optimizer: torch.optim.Optimizer

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The trainable ones."""
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}


def prepare(
    model: torch.nn.Module,
    task: Task,
    settings: Settings,
    randomness: Randomness,
    former: Mapping[str, Any] = NEW,
    processes: int = 1,
    *,
    tokens: int | None = None,
) -> Prepared:
    """Plan the norms, find the noise multiplier and make the optimizer; ``former``: the record of earlier starts."""
    if wanted_releases(settings) and task.scored_rows is None:
        allowed = "left out: this task's score is no accuracy over a known number of rows"
        raise ParameterError("evaluation.private_noise", settings.evaluation.private_noise, allowed)
    batches = sampling(settings, task.size)
    check_spread(settings, processes, goes_on=bool(former))
    if settings.distributed.is_sharded and processes > 1:
        spread(model)
    probes = ProbeGenerator(randomness.derive("probes"))
    plan = clipping_plan(model, task, settings, probes, processes, tokens)
    mechanism = one_step(settings, plan.record, batches, former.get("noise_multiplier"))
    wanted = settings.optimizer
    optimizer = make_optimizer(
        wanted.name,
        [value for value in model.parameters() if value.requires_grad],
        lr=wanted.learning_rate,
        noise_variance=plan.noise_variance(mechanism.noise_multiplier),
        subspaces=plan.subspaces,
        **{name: getattr(wanted, name) for name in ("momentum", "betas", "eps", "floor", "weight_decay")},
    )
    return Prepared(model, task, settings, plan, probes, mechanism, optimizer)


def one_step(
    settings: Settings, record: NormRecord, batches: Poisson | RandomAllocation, noise_multiplier: float | None = None
) -> Mechanism:
    """Return one step with the given σ, the one that was asked for, or the smallest that keeps the target ε."""
    privacy = settings.privacy
    if privacy.clip_only:
        return ClippingOnly(batches)
    if (sigma := noise_multiplier or privacy.noise_multiplier) is not None:
        return record.mechanism(sigma, batches)
    target, releases = privacy.target_epsilon, wanted_releases(settings)
    assert target is not None  # there is exactly one of both
    return calibrated(record.mechanism(1.0, batches), settings.training.steps, target, privacy.delta, releases)


def sampling(settings: Settings, size: int) -> Poisson | RandomAllocation:
    """Choose the sampling scheme, for sampler and accountant."""
    batch_size = settings.training.batch_size
    if batch_size > size:
        raise ParameterError("training.batch_size", batch_size, f"at most the size of the training set, {size}")
    return scheme(settings.privacy.sampling, batch_size, size)


def clipping_plan(
    model: torch.nn.Module, task: Task, settings: Settings, probes: ProbeGenerator, processes: int, tokens: int | None
) -> ClippingPlan:
    """Plan how gradients are clipped."""
    privacy, optimizer = settings.privacy, settings.optimizer
    options: dict[str, Any] = {} if task.units is None else {"units": task.units}
    if optimizer.name == "grape":  # else a task's own plan may not know subspaces
        drawn: dict[str, Any] = {"refresh_every": optimizer.refresh_every, "projector": optimizer.projector}
        options["subspaces"] = Subspaces(model, rank=optimizer.rank, seed=settings.training.seed, **drawn)
    return task.clipping_plan(
        model,
        norms=privacy.norms,
        clipping_norm=privacy.clipping_norm,
        expected_batch_size=settings.training.batch_size,
        tokens=tokens,
        probe_generator=probes,
        distributed=processes > 1,
        replay=privacy.replay,
        **options,
    )


def check_gradients_arrive(model: torch.nn.Module, losses: Callable[[], torch.Tensor]) -> None:
    """Raise unless every trainable parameter has a gradient that is not 0, on made-up input.

    With noise every parameter moves, also one that is not connected to the loss: the noise hides it. So this is
    checked beforehand, on random input, which costs no privacy. Parameters that are all 0 (LoRA's B, whose zeros stop
    the gradient of A) are replaced for the check.

    ``model``: without per-sample hooks. Its parameters and gradients are as before afterwards.
    """
    trainable = {name: value for name, value in model.named_parameters() if value.requires_grad}
    if not trainable:
        raise ParameterError("model", type(model).__name__, "a model with trainable parameters")
    zeros = [value for value in trainable.values() if not value.any()]
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for value in zeros:
                value.copy_(0.02 * torch.randn(value.shape, generator=generator).to(value))
        model.zero_grad(set_to_none=True)
        losses().sum().backward()
        silent = [name for name, value in trainable.items() if value.grad is None or not value.grad.any()]
    finally:
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for value in zeros:
                value.zero_()
    if silent:
        shown = ", ".join(silent[:5]) + (f", … ({len(silent)} in all)" if len(silent) > 5 else "")
        raise ParameterError("model", shown, "one whose trainable parameters all get a gradient")
