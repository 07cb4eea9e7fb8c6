"""One private step of any clipping method: measure, clip, sum, noise, move."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import SupportsIndex, TypeAlias

import torch
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizerFastGradientClipping

from dprmt._validation import ParameterError, check_count
from dprmt.training.clipping._contributions import Contribution, PerSampleGradients
from dprmt.training.clipping._forward_guard import ForwardGuard, without_hook_warning
from dprmt.training.clipping._per_sample_gradients import grad_samplers
from dprmt.training.clipping._policy import NormPolicy
from dprmt.training.clipping._refusals import trainable_modules
from dprmt.training.clipping._samplers import NormSamplers
from dprmt.training.clipping._step_log import StepLog
from dprmt.training.norms import LayerRecord, NormRecord, clip_factors, rounding_margin
from dprmt.training.norms._layer_gradient import sum_of_squares
from dprmt.training.norms._probes import SampleId

Identities: TypeAlias = Sequence[SampleId] | torch.Tensor
Gradients: TypeAlias = tuple[torch.Tensor | None, list[Contribution]]


class ClippedStep(ABC):
    """A private step (``PrivateStep``) over Opacus' hooks; made by :func:`make_private`.

    Parameters
    ----------
    model : GradSampleModule
        The model with hooks.
    optimizer : DPOptimizerFastGradientClipping
        Of this folder: it noises the sums.
    record : NormRecord
        How norms are obtained.
    guard : ForwardGuard
        Of the model.
    log : StepLog
        Of the run.

    Formal guarantees
    -----------------
    What :meth:`step` gives the wrapped optimizer is the noisy mean that :func:`make_private` describes, with its
    guarantee and its limits. A sample counts once in a logical step, and no step number serves twice: both are
    refused. Losses, norms and clip factors are private.

    Examples
    --------
    Of the gradients 30 and ½ long, the first is cut to C = 1; the sum is divided by the expected batch size:

    >>> from dprmt.training.clipping import make_private
    >>> network = torch.nn.Linear(2, 1, bias=False)
    >>> _ = torch.nn.init.zeros_(network.weight)
    >>> step = make_private(
    ...     network,
    ...     torch.optim.SGD(network.parameters(), lr=1.0),
    ...     clipping="exact",
    ...     clipping_norm=1.0,
    ...     noise_multiplier=0.0,  # to see the sum: not private
    ...     expected_batch_size=2.0,
    ... )
    >>> inputs = torch.tensor([[30.0, 0.0], [0.0, 0.5]])
    >>> step.accumulate(step.model(inputs).flatten(), samples=[17, 4], step=0)
    >>> step.step()
    >>> network.weight.detach()
    tensor([[-0.5000, -0.2500]])
    >>> step.accumulate(step.model(inputs).flatten(), samples=[17, 4], step=0)
    Traceback (most recent call last):
    ...
    dprmt._validation.ParameterError: step must be a number that no earlier step had...
    >>> step.close()
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: DPOptimizerFastGradientClipping,
        record: NormRecord,
        guard: ForwardGuard,
        log: StepLog,
    ) -> None:
        self._model, self._optimizer, self._record = model, optimizer, record
        self._guard, self._log = guard, log

    @property
    def model(self) -> torch.nn.Module:
        """The model to call, with the hooks that the clipping needs."""
        return self._model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The Opacus optimizer; its ``original_optimizer`` is the one that was given."""
        return self._optimizer

    @property
    def record(self) -> NormRecord:
        """How the norm of every trainable parameter is obtained: what the accountant is told."""
        return self._record

    @property
    @abstractmethod
    def rounding(self) -> float:
        """ρ of ``clip_factors``, the same for all samples whatever the batch."""

    @abstractmethod
    def _gradients(self, losses: torch.Tensor, samples: Identities, step: int) -> AbstractContextManager[Gradients]:
        """A context with the squared norms, and what the sum can be formed from."""

    def accumulate(self, losses: torch.Tensor, *, samples: Identities, step: SupportsIndex) -> None:
        """Add the clipped gradients of a micro-batch to the sum of the logical step.

        Parameters
        ----------
        losses : Tensor, shape (B,)
            Each sample's own loss, with its graph, from :attr:`model` in training mode; never their mean.
        samples : sequence of int or str, or tensor of integers, shape (B,)
            Identities in the data set, all different within a logical step.
        step : int
            Number of the logical step, >= 0, the same for all its micro-batches, never used twice in a run.

        Raises
        ------
        ParameterError
            If an argument is out of its range; if a sample was in this logical step already or the step in an
            earlier one; if a layer was used twice or its first axis is not the sample; if T exceeds ``tokens``.
        """
        number = self._check(losses, samples, step)
        if len(losses) == 0:
            self._guard.finish()
            return
        try:
            with self._gradients(losses, samples, number) as (squared, contributions):
                self._forget_gradients()
                if squared is None:
                    raise ParameterError("losses", "no trainable layer reached", "a function of trainable parameters")
                self._add(squared, contributions)
        finally:
            self._forget_gradients()

    def step(self) -> None:
        """Add noise once, divide by the *expected* batch size, let the optimizer move, and clear the sum."""
        self._log.finish()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def discard(self) -> None:
        """Forget a forward pass that is not to be trained on, for instance after an error."""
        self._guard.finish()
        self._forget_gradients()

    def close(self) -> None:
        """Take all hooks away and leave the model as it was given."""
        self.discard()
        self._guard.remove()
        self._model.to_standard_module()

    def _check(self, losses: torch.Tensor, samples: Identities, step: SupportsIndex) -> int:
        if not isinstance(losses, torch.Tensor) or losses.ndim != 1:
            shape = tuple(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
            raise ParameterError("losses", shape, "a tensor of shape (B,): one loss for each sample, not their mean")
        if not losses.requires_grad:
            raise ParameterError("losses", "no graph", "computed from the model with gradients enabled")
        if len(samples) != len(losses):
            raise ParameterError("samples", len(samples), f"identities of all {len(losses)} samples")
        return check_count("step", step, low=0)

    def _add(self, squared: torch.Tensor, contributions: list[Contribution]) -> None:
        factors = clip_factors(squared, self._optimizer.max_grad_norm, rounding=self.rounding)
        finite = torch.isfinite(squared)
        kept = slice(None) if bool(finite.all()) else finite
        while contributions:
            contributions.pop().add_to_sums(factors[kept], kept)  # freed one by one

    def _forget_gradients(self) -> None:
        for parameter in self._optimizer.params:
            parameter.grad = None  # of the plain sum: not private


class EstimatedStep(ClippedStep):
    """Over Opacus' fast gradient clipping hooks: ghost, Hutchinson or Hutch++ norms.

    Parameters
    ----------
    model : GradSampleModuleFastGradientClipping
        The hooks.
    optimizer : DPOptimizerFastGradientClipping
        Of this folder.
    policy : NormPolicy
        How norms are obtained.
    probe_sharing : {"batch", "sample"}
        Of the estimator.
    """

    def __init__(
        self,
        model: GradSampleModuleFastGradientClipping,
        optimizer: DPOptimizerFastGradientClipping,
        policy: NormPolicy,
        probe_sharing: str,
    ) -> None:
        self._samplers = NormSamplers(model, policy, probe_sharing, keep=True)
        super().__init__(model, optimizer, self._samplers.record, self._samplers.guard, self._samplers.log)

    @property
    def rounding(self) -> float:
        """ρ of ``clip_factors``."""
        return self._samplers.rounding

    @contextmanager
    def _gradients(self, losses: torch.Tensor, samples: Identities, step: int) -> Iterator[Gradients]:
        with self._samplers.at(step=step, samples=samples):
            losses.sum().backward()
            yield self._samplers.measured()

    def close(self) -> None:
        """Take all hooks away and leave the model as it was given."""
        self._samplers.remove()
        super().close()


class ExactStep(ClippedStep):
    """Over Opacus' plain hooks: per-sample gradients are formed, B times the memory of the trained parameters.

    Parameters
    ----------
    model : GradSampleModule
        The hooks.
    optimizer : DPOptimizerFastGradientClipping
        Of this folder.
    probe_sharing : {"batch", "sample"}
        For the record, where it means nothing.
    """

    def __init__(self, model: GradSampleModule, optimizer: DPOptimizerFastGradientClipping, probe_sharing: str) -> None:
        modules = trainable_modules(model._module)
        model.GRAD_SAMPLERS = grad_samplers(list(modules.values()))
        records = [LayerRecord(name, "exact") for name in modules]
        double = all(parameter.dtype == torch.float64 for parameter in optimizer.params)
        self._dtype = torch.float64 if double else torch.float32
        record = NormRecord(records, probe_sharing)  # type: ignore[arg-type]
        super().__init__(model, optimizer, record, ForwardGuard(model._module, modules), StepLog())

    @property
    def rounding(self) -> float:
        """ρ of ``clip_factors``: the norms are those of the stored gradients; the products round."""
        return rounding_margin(1, dtype=self._dtype)

    @contextmanager
    def _gradients(self, losses: torch.Tensor, samples: Identities, step: int) -> Iterator[Gradients]:
        self._guard.check()
        self._log.enter(step, samples)
        try:
            with without_hook_warning():
                losses.sum().backward()
            yield self._measured(len(losses))
        finally:
            self._guard.finish()

    def _measured(self, size: int) -> Gradients:
        squared = None
        contributions: list[Contribution] = []
        names = {parameter: name for name, parameter in self._model._module.named_parameters()}
        for parameter in self._optimizer.params:
            gradients, parameter.grad_sample = parameter.grad_sample, None
            if gradients is None:
                continue
            if len(gradients) != size:
                shape = f"{names[parameter]}: {len(gradients)}"
                raise ParameterError("samples", shape, f"the first axis of every trainable layer, here {size}")
            squares = sum_of_squares(gradients)
            squared = squares if squared is None else squared + squares.to(squared.device)
            contributions.append(PerSampleGradients({parameter: gradients}))
        return squared, contributions
