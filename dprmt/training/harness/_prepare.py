"""From a model, a task and settings to a run that can take its first step: plan, mechanism, σ, private model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import torch

from dprmt._validation import ParameterError
from dprmt.accounting import DPSGD, Poisson, RandomAllocation, calibrate, compose
from dprmt.training.clipping import PrivateStep
from dprmt.training.denoising import Denoising, DenoisingStep
from dprmt.training.harness._allocation import epoch_length
from dprmt.training.harness._private_score import wanted_releases
from dprmt.training.harness._released import ReleasedGradients
from dprmt.training.harness._sampling import charged_sample_rate
from dprmt.training.harness._sharding import check_spread, spread
from dprmt.training.harness._task import Plan, Task
from dprmt.training.norms import NormRecord, ProbeGenerator
from dprmt.training.optimizers import make_optimizer
from dprmt.training.private_run._clip_only import ClippingOnly
from dprmt.training.private_run._ledger import Mechanism, whole_epochs
from dprmt.training.private_run._processes import rank
from dprmt.training.private_run._randomness import Randomness
from dprmt.training.recipes import OPTIMIZERS, OptimizerRecipe, Settings
from dprmt.training.subspaces import RankRule, Subspaces
from dprmt.training.telemetry import Telemetry


@dataclass
class Prepared:
    """A run before its first step."""

    model: torch.nn.Module
    task: Task
    settings: Settings
    private: PrivateStep
    mechanism: Mechanism  # one step, at the exact sampling rate
    noise_generator: torch.Generator
    units: str | None = None  # how units of several rows are clipped, and why
    denoising: DenoisingStep | None = None
    telemetry: Telemetry | None = None
    inner_optimizer: torch.optim.Optimizer = field(init=False)  # the one inside Opacus' one
    parameters: dict[str, torch.nn.Parameter] = field(init=False)  # the trainable ones

    def __post_init__(self) -> None:
        self.inner_optimizer = self.private.optimizer.original_optimizer
        self.parameters = {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    def attach_telemetry(self) -> None:
        """Read what is released, if that is wanted and there is noise; before a denoiser changes it."""
        wanted, denoised = self.settings.telemetry, self.settings.denoising.method != "none"
        if not wanted.on or self.settings.privacy.clip_only or self.settings.distributed.is_sharded:
            return
        if denoised and OPTIMIZERS[self.settings.optimizer.name].in_subspaces:
            return  # the noisy gradient is gone when the optimizer's step begins
        steps = self.settings.training.steps
        self.telemetry = Telemetry.attach(
            self.private.optimizer,
            self.parameters,
            every=wanted.every or max(1, steps // 50),
            window=wanted.window,
            horizon=steps,
            untouched=not denoised,
            displacement=wanted.displacement,
        )

    def attach_denoising(self, released: ReleasedGradients) -> None:
        """Put the denoiser between noise and optimizer, if there is one, and the observer before it."""
        wanted, outer = self.settings.denoising, self.private.optimizer
        if wanted.method == "none":
            released.before(self.inner_optimizer)
        else:
            released.before(self.inner_optimizer)
            step = DenoisingStep.attach(outer, self.parameters, Denoising(**dataclasses.asdict(wanted)))
            self.denoising = step
            released.layers = lambda: step.last_report.layers if step.last_report is not None else {}
        released.after(self.inner_optimizer)

    def close(self) -> None:
        """Leave the model without hooks."""
        for attached in (self.denoising, self.telemetry):
            if attached is not None:
                attached.detach()
        close = getattr(self.private, "close", None)
        if close is not None:
            close()


def prepare(
    model: torch.nn.Module,
    task: Task,
    settings: Settings,
    randomness: Randomness,
    *,
    processes: int = 1,
    noise_multiplier: float | None = None,
    tokens: int | None = None,
) -> Prepared:
    """Find the noise multiplier and make the steps private."""
    if wanted_releases(settings) and task.scored_rows is None:
        allowed = "left out: this task's score is no accuracy over a known number of rows"
        raise ParameterError("evaluation.private_noise", settings.evaluation.private_noise, allowed)
    batches = sampling(settings, task.size)
    check_spread(settings, processes, goes_on=noise_multiplier is not None)
    if settings.distributed.is_sharded and processes > 1:
        spread(model)
    plan = _plan(model, task, settings, randomness, processes, tokens)
    sigma = noise_multiplier or find_noise_multiplier(settings, plan.record, batches)
    mechanism = _mechanism(settings, plan.record, sigma, batches)
    inner = _optimizer(model, settings, plan, sigma)
    purpose = f"noise of process {rank()}" if settings.distributed.is_sharded else "noise"  # each noises other rows
    noise = randomness.generator(purpose, next(model.parameters()).device)
    private = plan.privatize(inner, noise_multiplier=sigma, noise_generator=noise)
    units = getattr(plan, "reason", None) if getattr(plan, "regime", "rows") != "rows" else None
    return Prepared(model, task, settings, private, mechanism, noise, units)


def _mechanism(settings: Settings, record: NormRecord, sigma: float, batches: Poisson | RandomAllocation) -> Mechanism:
    return ClippingOnly(batches.rate) if settings.privacy.clip_only else record.mechanism(sigma, batches)


def find_noise_multiplier(settings: Settings, record: NormRecord, batches: Poisson | RandomAllocation) -> float:
    """Return the σ that was asked for, or the smallest that keeps the target ε."""
    privacy, steps = settings.privacy, settings.training.steps
    if privacy.clip_only:
        return 0.0
    if privacy.noise_multiplier is not None:
        return privacy.noise_multiplier
    assert privacy.target_epsilon is not None  # there is exactly one of both
    run, length = record.mechanism(1.0, batches), whole_epochs(steps, batches.steps_per_epoch)
    if releases := wanted_releases(settings):
        whole = compose([(run, length), *releases])
        found = calibrate(whole, target_epsilon=privacy.target_epsilon, delta=privacy.delta)
        return next(one.noise_multiplier for one, _ in found.phases if isinstance(one, DPSGD))
    return calibrate(run, steps=length, target_epsilon=privacy.target_epsilon, delta=privacy.delta).noise_multiplier


def sampling(settings: Settings, size: int) -> Poisson | RandomAllocation:
    """Choose the sampling scheme, for sampler and accountant."""
    if settings.training.batch_size > size:
        allowed = f"at most the size of the training set, {size}"
        raise ParameterError("training.batch_size", settings.training.batch_size, allowed)
    if settings.privacy.sampling == "allocation":
        return RandomAllocation(epoch_length(settings.training.batch_size, size))
    return Poisson(charged_sample_rate(settings.training.batch_size, size))


def _plan(
    model: torch.nn.Module, task: Task, settings: Settings, randomness: Randomness, processes: int, tokens: int | None
) -> Plan:
    privacy, subspaces = settings.privacy, _subspaces(settings, model)
    projected = {} if subspaces is None else {"subspaces": subspaces}  # a task's own plan may not know them
    return task.clipping_plan(
        model,
        norms=privacy.norms,
        clipping_norm=privacy.clipping_norm,
        expected_batch_size=settings.training.batch_size,
        tokens=tokens,
        probe_generator=ProbeGenerator(randomness.derive("probes")),
        distributed=processes > 1,
        replay=privacy.replay,
        **projected,
    )


def _subspaces(settings: Settings, model: torch.nn.Module) -> Subspaces | None:
    optimizer = settings.optimizer
    if not OPTIMIZERS[optimizer.name].in_subspaces:
        return None
    return Subspaces(
        model,
        rank=_rank(optimizer),
        refresh_every=optimizer.refresh_every,
        projector=optimizer.projector,  # type: ignore[arg-type]  # the recipe has checked its words
        seed=settings.training.seed,
    )


def _rank(optimizer: OptimizerRecipe) -> int | RankRule:
    # A gradient has no more singular vectors than its shorter side: a head with two labels has two.
    return optimizer.rank if optimizer.projector != "svd" else lambda layer: min(optimizer.rank, layer.n)


def _optimizer(model: torch.nn.Module, settings: Settings, plan: Plan, sigma: float) -> torch.optim.Optimizer:
    optimizer, variance = settings.optimizer, plan.noise_variance(sigma)
    parameters = [value for value in model.parameters() if value.requires_grad]
    return make_optimizer(
        optimizer.name,
        parameters,
        lr=optimizer.learning_rate,
        momentum=optimizer.momentum,
        betas=optimizer.betas,
        eps=optimizer.eps,
        floor=optimizer.floor,
        noise_variance=variance,
        weight_decay=optimizer.weight_decay,
        subspaces=plan.subspaces,
    )
