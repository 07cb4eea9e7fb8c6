"""A private step of units that are run one at a time: what plain accumulation leaves is a unit's own gradient.

No hooks, no per-sample machinery, the memory of one gradient: any module works. Norms are exact.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import torch

from dprmt._validation import ParameterError, TrainingStateError
from dprmt.training.clipping._batch_rows import BatchRows
from dprmt.training.clipping._capture import check_buffers, check_losses
from dprmt.training.clipping._isolation import tolerance_of
from dprmt.training.clipping._optimizer import NoisySumOptimizer, sum_of
from dprmt.training.clipping._sample_wise import buffer_versions
from dprmt.training.clipping._step import REPLAY, Identities, LogicalStep, Losses
from dprmt.training.clipping._units import unit_rows
from dprmt.training.norms import NormRecord, rounding_margin
from dprmt.training.norms._clipping import full_precision, sum_of_squares
from dprmt.training.norms._probes import SampleId
from dprmt.training.randomness import draws_from
from dprmt.training.subspaces import Subspaces


class UnitStep(LogicalStep):
    """A private step over units, such as people, each run alone; made by a plan with `Units`.

    Each forward pass holds rows of one unit. The sum of the unit's gradients is held, its norm computed and clipped,
    and the result added when the next unit begins or the logical step ends. So a unit may span micro-batches, as long
    as its rows are consecutive.

    Parameters
    ----------
    model : Module
        Any model, without hooks.
    optimizer : NoisySumOptimizer
        It noises the sums.
    record : NormRecord
        All norms are exact.
    most_rows : int or None
        Largest number of rows of a unit in a logical step.
    projected : Subspaces or None
        Subspaces of weights whose gradients are clipped in projected coordinates.
    replay : float
        Probability that a later unit runs again after another one.

    Attributes
    ----------
    model : Module
        The model to call.
    optimizer : Optimizer
        The Opacus optimizer; its ``original_optimizer`` is your optimizer.
    replays : int
        How often a unit was run again after another one, to see whether the model keeps a state.

    Formal guarantees
    -----------------
    Covers: :meth:`step` gives the optimizer (Σ_u c_u g_u + σC·N(0, I))/L with c_u = min(1, (1-ρ)C/‖g_u‖), where g_u is
    the sum of unit u's gradients as accumulated in the parameters' dtype. A unit without a finite ‖g_u‖ is dropped. So
    one unit, with all its rows, changes the sum by at most C. A unit counts once in a logical step, and each step
    number is used once. Losses, norms, clip factors and the number of rows of a unit are private. Does not cover: the
    limits of `plan_private`, such as rounding in the sum, torch's generator, and wrongly named units.

    Examples
    --------
    Anna has two rows with gradients 30 and ½, Ben has one:

    >>> from dprmt.training.clipping import Units
    >>> from dprmt.training.clipping import plan_private
    >>> network = torch.nn.Linear(2, 1, bias=False)
    >>> _ = torch.nn.init.zeros_(network.weight)
    >>> plan = plan_private(
    ...     network,
    ...     norms="exact",
    ...     clipping_norm=1.0,
    ...     expected_batch_size=2.0,
    ...     units=Units(8),
    ... )
    >>> optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    >>> step = plan.privatize(optimizer, noise_multiplier=0.0)  # to see the sum: not private
    >>> inputs = torch.tensor([[30.0, 0.0], [0.0, 0.5], [0.0, 0.5]])
    >>> losses = step.accumulate(
    ...     lambda batch: step.model(batch).flatten(),
    ...     samples=[17, 4, 8],
    ...     units=["anna", "ben", "anna"],
    ...     step=0,
    ...     batch=inputs,
    ... )
    >>> step.step()
    >>> network.weight.detach()
    tensor([[-0.4999, -0.2583]])
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: NoisySumOptimizer,
        record: NormRecord,
        *,
        most_rows: int | None = None,
        projected: Subspaces | None = None,
        replay: float = REPLAY,
    ) -> None:
        super().__init__(model, optimizer)
        self._rate, self._chance, self._other = replay, secrets.SystemRandom(), None
        self.record, self._projected, self._most_rows, self.replays = record, projected, most_rows, 0
        self._trained = [value for value in model.parameters() if value.requires_grad]
        self._unit: SampleId | None = None
        self._rows = 0  # of the unit that is held
        self._held: dict[torch.nn.Parameter, torch.Tensor] = {}

    @property
    def rounding(self) -> float:
        """ρ of ``clip_factors``: norms are of what is stored."""
        double = all(value.dtype == torch.float64 for value in self._trained)
        return rounding_margin(1, dtype=torch.float64 if double else torch.float32)

    def _add(
        self, losses: Losses, samples: Identities, number: int, batch: Any, units: Identities | None
    ) -> torch.Tensor:
        if isinstance(losses, torch.Tensor):
            raise ParameterError("losses", "Tensor", "a function of the batch where units run alone")
        if units is None:
            raise ParameterError("units", None, "given: this step was planned for units of several rows")
        names: list[SampleId] = samples.tolist() if isinstance(samples, torch.Tensor) else list(samples)
        rows = unit_rows(units, len(names))
        if not names:
            return torch.zeros(0)
        apart, found = BatchRows(batch, len(names)), dict[int, torch.Tensor]()
        self._look(losses, [apart.picked(own) for own in (rows.rows[0], rows.rows[-1])])
        for unit, own in zip(rows.names, rows.rows, strict=True):
            try:
                self._begin(unit, [names[row] for row in own], number)
                with self._draws():
                    found |= zip(own, self._backward(losses, apart.picked(own), len(own)), strict=True)
            except BaseException:
                self.discard()
                raise
        return torch.stack([found[row] for row in range(len(names))])

    def step(self) -> None:
        """Step as every private step does; the unit that is held is added before the noise.

        Raises
        ------
        ParameterError
            In all processes of a group, if they are not at one step, or a unit or row was in two of them.
        """
        try:
            self.finish_unit()
            super().step()
        finally:
            self._forget_unit()

    def discard(self) -> None:
        """Forget the rows of the unit that is held; what was added of others stays."""
        for parameter in self._trained:
            parameter.grad = None
        if self._unit is not None:
            self._log.undo()  # nothing of the unit is in the sum: its rows may come again
        self._forget_unit()

    def close(self) -> torch.nn.Module:
        """Forget everything that was added.

        Returns
        -------
        torch.nn.Module
            The model as it was given, with its trained weights.
        """
        self.discard()
        self._give_back()
        return self.model

    def _look(self, function: Callable[[Any], torch.Tensor], batches: list[Any]) -> None:
        """Raise unless a unit gives the same twice, with another one in between: the first, and random later ones."""
        own, other = batches[0], self._other if self._other is not None else batches[1]
        self._other = batches[1]
        if self.replays and self._chance.random() >= self._rate:
            return
        seed, buffers = secrets.token_bytes(32), buffer_versions(self.model)
        first = self._seen(function, own, seed)
        self._seen(function, other, seed)
        again = self._seen(function, own, seed)
        check_buffers(self.model, buffers, "units")
        for one, two in zip(first, again, strict=True):
            tolerance = tolerance_of({one.dtype}, one.device).beside
            if one.shape != two.shape or float((one - two).norm()) > tolerance * max(0.1, float(one.norm())):
                raise TrainingStateError("a loss or its gradient depends on other units: a state is kept")
        self.replays += 1

    def _seen(self, function: Callable[[Any], torch.Tensor], batch: Any, seed: bytes) -> list[torch.Tensor]:
        with draws_from(seed, self._devices):
            losses = function(batch)
            if not isinstance(losses, torch.Tensor) or not losses.requires_grad:
                return []  # refused when it is added
            found = torch.autograd.grad(losses.sum(), self._trained, allow_unused=True)
        return [losses.detach(), *(value.to_dense() for value in found if value is not None)]

    def _begin(self, unit: SampleId, samples: list[SampleId], number: int) -> None:
        if unit != self._unit:
            self.finish_unit()
            self._log.enter(number, [unit], samples)
            self._unit = unit
        else:
            self._log.extend(samples)
        self._rows += len(samples)
        if self._most_rows is not None and self._rows > self._most_rows:
            allowed = f"at most rows_per_unit = {self._most_rows} in a logical step"
            raise ParameterError("rows of a unit", self._rows, allowed)

    def _backward(self, losses_of: Callable[[Any], torch.Tensor], batch: Any, rows: int) -> torch.Tensor:
        buffers = buffer_versions(self.model)
        losses = losses_of(batch)
        check_losses(losses, rows)
        check_buffers(self.model, buffers, "units")
        for parameter in self._trained:  # a leftover gradient would be added to
            parameter.grad = self._held.get(parameter)
        losses.sum().backward()
        for parameter in self._trained:
            if parameter.grad is not None:
                self._held[parameter] = parameter.grad
            parameter.grad = None
        return losses.detach()

    def finish_unit(self) -> None:
        """Add the unit that is held."""
        if self._unit is None:
            return
        gradients = {parameter: self._as_summed(parameter, value) for parameter, value in self._held.items()}
        squared = sum((sum_of_squares(value[None]).cpu() for value in gradients.values()), torch.zeros(1).double())
        if bool(squared.isfinite()):
            factor = self._clip_factors(squared, self.rounding)[0]
            for parameter, value in gradients.items():
                total = sum_of(parameter, value.shape)
                total.add_(value.to(total.dtype), alpha=float(factor))
        self._count(squared)
        self._forget_unit()

    def _as_summed(self, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> torch.Tensor:
        subspaces, gradient = self._projected, gradient.to_dense()  # tokens' own gradients are added up
        matrix = None if subspaces is None else subspaces.layer(parameter)
        if subspaces is None or matrix is None:
            return gradient
        subspaces.check_shapes(parameter)
        whole, projector = matrix.orient(gradient), subspaces.projector(parameter)
        if projector is None:
            return whole
        dtype = torch.promote_types(whole.dtype, torch.float32)
        with full_precision(whole.device):
            return projector.to(dtype).mT @ whole.to(dtype)

    def _forget_unit(self) -> None:
        self._held, self._unit, self._rows = {}, None, 0
