"""A private step over sums of clipped gradients that the caller knows in closed form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dprmt._validation import ParameterError, check_real
from dprmt.training.clipping import NoisySumOptimizer, sum_of
from dprmt.training.norms import LayerRecord, NormRecord


@dataclass(frozen=True)
class SummedPlan:
    """A `ClippingPlan` for sums that the caller clips; from `plan_sums`.

    Parameters
    ----------
    model : Module
        What is trained.
    record : NormRecord
        All norms are exact.
    clipping_norm, expected_batch_size : float
        C and L.
    """

    model: torch.nn.Module
    record: NormRecord
    clipping_norm: float
    expected_batch_size: float

    @property
    def subspaces(self) -> None:
        """None: all parameters are trained as they are."""

    def noise_variance(self, noise_multiplier: float) -> float:
        """(σC/L)², of the noise in one entry of the gradient."""
        return (noise_multiplier * self.clipping_norm / self.expected_batch_size) ** 2

    def privatize(
        self, optimizer: torch.optim.Optimizer, *, noise_multiplier: float, noise_generator: torch.Generator
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
        return SummedStep(self.model, noisy, self.record)


def plan_sums(model: torch.nn.Module, *, clipping_norm: float, expected_batch_size: float) -> SummedPlan:
    """Plan a training whose clipped sums the caller forms, where it knows them without a backward pass.

    Parameters
    ----------
    model : Module
        What is trained.
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
    >>> plan = plan_sums(model, clipping_norm=1.0, expected_batch_size=4.0)
    >>> plan.record.norms
    ExactNorms()
    """
    bound = check_real("clipping_norm", clipping_norm, low=0.0, low_open=True)
    size = check_real("expected_batch_size", expected_batch_size, low=0.0, low_open=True)
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    return SummedPlan(model, NormRecord([LayerRecord(name) for name in names]), bound, size)


class SummedStep:
    """A ``PrivateStep`` that is given sums in place of losses.

    Parameters
    ----------
    model : Module
        What is trained.
    optimizer : NoisySumOptimizer
        Of its trainable parameters.
    record : NormRecord
        All norms are exact.

    Formal guarantees
    -----------------
    :meth:`step` gives the optimizer (Σ + σC·N(0, I))/L, noise drawn once, L the *expected* batch size. That one
    sample changes Σ, over all parameters together, by at most C in norm is the caller's word.

    Examples
    --------
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> plan = plan_sums(model, clipping_norm=1.0, expected_batch_size=4.0)
    >>> step = plan.privatize(
    ...     torch.optim.SGD(model.parameters(), lr=1.0),
    ...     noise_multiplier=0.0,  # to see the sum: not private
    ...     noise_generator=torch.Generator(),
    ... )
    >>> step.add({"weight": torch.tensor([[1.0, 2.0]])})
    >>> step.step()
    >>> model.weight.detach()
    tensor([[-0.2500, -0.5000]])
    """

    def __init__(self, model: torch.nn.Module, optimizer: NoisySumOptimizer, record: NormRecord) -> None:
        self.model, self.optimizer, self.record = model, optimizer, record
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}

    def add(self, sums: Mapping[str, torch.Tensor]) -> None:
        """Add sums of clipped gradients.

        Parameters
        ----------
        sums : mapping of str to Tensor
            By name, for every trainable parameter.

        Raises
        ------
        ParameterError
            If names are missing or unknown.
        """
        if sums.keys() != self._trained.keys():
            raise ParameterError("sums", sorted(sums), f"of {sorted(self._trained)}")
        for name, parameter in self._trained.items():
            sum_of(parameter).add_(sums[name])

    def accumulate(
        self,
        losses: torch.Tensor | Callable[[Any], torch.Tensor],
        *,
        samples: Sequence[int | str] | torch.Tensor,
        step: int,
        batch: Any = None,
        units: Sequence[int | str] | torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Refused: sums are added by :meth:`add`."""
        raise ParameterError("losses", type(losses).__name__, "left out: this step is given sums, by its method add")

    def step(self) -> None:
        """Add noise once, divide by the *expected* batch size, let the optimizer move, and clear the sum."""
        try:
            self.optimizer.step()
        finally:
            self.optimizer.zero_grad(set_to_none=True)

    def close(self) -> None:
        """Forget what was added; nothing else was changed."""
        self.optimizer.forget()
