"""A private step over sums of clipped gradients that the caller knows in closed form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from dprmt._validation import ParameterError, check_real
from dprmt.training.clipping import ClippingPlan, NoisySumOptimizer, sum_of
from dprmt.training.clipping._policy import NormPolicy
from dprmt.training.clipping._step import LogicalStep, StepLog
from dprmt.training.norms import LayerRecord, NormRecord

ClippedSums: TypeAlias = Callable[[torch.nn.Module, Any, float], tuple[torch.Tensor, Mapping[str, torch.Tensor]]]
"""From a model, a batch and C to the losses, without graph, and the sum of clipped gradients by parameter."""


@dataclass(frozen=True)
class SummedPlan(ClippingPlan):
    """A plan for sums that the caller clips; from `plan_sums`.

    Parameters
    ----------
    sums : callable
        The sums of a batch; for the others see `ClippingPlan`. All norms are exact.
    """

    sums: ClippedSums = lambda *_: (torch.zeros(0), {})  # a field needs a default after others

    def privatize(  # type: ignore[override]  # another kind of step
        self, optimizer: torch.optim.Optimizer, *, noise_multiplier: float, noise_generator: Any = None
    ) -> SummedStep:
        """Noise before the optimizer, which has the model's trainable parameters; the model gets no hooks."""
        noisy = NoisySumOptimizer(
            optimizer,
            noise_multiplier=check_real("noise_multiplier", noise_multiplier, low=0.0),
            max_grad_norm=self.clipping_norm,
            expected_batch_size=self.expected_batch_size,
            loss_reduction="mean",
            generator=noise_generator,
        )
        return SummedStep(self.model, noisy, self.record, self.sums)


def plan_sums(
    model: torch.nn.Module, sums: ClippedSums, *, clipping_norm: float, expected_batch_size: float
) -> SummedPlan:
    """Plan a training whose clipped sums the caller forms, where it knows them without a backward pass.

    Parameters
    ----------
    model : Module
        What is trained.
    sums : callable
        From a model, a batch and C to losses, shape (B,), and the sum of clipped gradients by parameter.
    clipping_norm, expected_batch_size : float
        C > 0 and L > 0.

    Returns
    -------
    SummedPlan
        Its ``privatize`` gives a `SummedStep`.

    Raises
    ------
    ParameterError
        If a number is out of its range.

    Formal guarantees
    -----------------
    The record says that norms are exact, which is the caller's word: see `SummedStep`.

    Examples
    --------
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> def sums(model, batch, bound):
    ...     return torch.zeros(len(batch)), {"weight": torch.tensor([[1.0, 2.0]])}
    >>> plan = plan_sums(model, sums, clipping_norm=1.0, expected_batch_size=4.0)
    >>> plan.record.norms
    ExactNorms()
    """
    bound = check_real("clipping_norm", clipping_norm, low=0.0, low_open=True)
    size = check_real("expected_batch_size", expected_batch_size, low=0.0, low_open=True)
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    record = NormRecord([LayerRecord(name) for name in names])
    return SummedPlan(model, record, bound, size, NormPolicy(None, None), None, False, sums=sums)


class SummedStep(LogicalStep):
    """A private step that asks for sums in place of losses.

    Parameters
    ----------
    model : Module
        What is trained.
    optimizer : NoisySumOptimizer
        Of its trainable parameters.
    record : NormRecord
        All norms are exact.
    sums : callable
        As in `plan_sums`.

    Formal guarantees
    -----------------
    :meth:`step` gives the optimizer (Σ + σC·N(0, I))/L, noise drawn once, L the *expected* batch size. That one
    sample changes Σ, over all parameters together, by at most C in norm is the caller's word.

    Examples
    --------
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> def sums(model, batch, bound):
    ...     return torch.zeros(len(batch)), {"weight": torch.tensor([[1.0, 2.0]])}
    >>> plan = plan_sums(model, sums, clipping_norm=1.0, expected_batch_size=4.0)
    >>> step = plan.privatize(
    ...     torch.optim.SGD(model.parameters(), lr=1.0),
    ...     noise_multiplier=0.0,  # to see the sum: not private
    ...     noise_generator=torch.Generator(),
    ... )
    >>> _ = step.accumulate(None, batch=[0], samples=[0], step=0)
    >>> step.step()
    >>> model.weight.detach()
    tensor([[-0.2500, -0.5000]])
    """

    replays = 0

    def __init__(
        self, model: torch.nn.Module, optimizer: NoisySumOptimizer, record: NormRecord, sums: ClippedSums
    ) -> None:
        super().__init__(model, optimizer, StepLog())
        self.record, self._sums = record, sums
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}

    def _add(self, losses: Any, samples: Any, number: int, batch: Any, units: Any) -> torch.Tensor:
        self._log.enter(number, samples)
        found, sums = self._sums(self.model, batch, self.optimizer.max_grad_norm)
        if sums.keys() != self._trained.keys():
            raise ParameterError("sums", sorted(sums), f"of {sorted(self._trained)}")
        for name, parameter in self._trained.items():
            sum_of(parameter).add_(sums[name])
        return found

    def discard(self) -> None:
        """Do nothing: no forward pass is kept."""

    def close(self) -> torch.nn.Module:
        """Forget what was added; nothing else was changed."""
        self._give_back()
        return self.model
