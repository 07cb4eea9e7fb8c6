"""A private step of units that are run one at a time: what plain accumulation leaves is a unit's own gradient.

No hooks, no per-sample machinery, the memory of one gradient: any module works. Norms are exact.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import Any

import torch

from dprmt._validation import TrainingStateError
from dprmt.training.clipping._batch_rows import BatchRows
from dprmt.training.clipping._capture import check_buffers, check_losses, check_parameters
from dprmt.training.clipping._isolation import tolerance_of
from dprmt.training.clipping._optimizer import NoisySumOptimizer, sum_of
from dprmt.training.clipping._sample_wise import buffer_versions
from dprmt.training.clipping._step import REPLAY, Identities, LogicalStep, Losses
from dprmt.training.clipping._units import unit_rows
from dprmt.training.norms import NormRecord, clip_factors, rounding_margin
from dprmt.training.norms._clipping import full_precision, sum_of_squares
from dprmt.training.norms._probes import SampleId
from dprmt.training.randomness import draws_from
from dprmt.training.subspaces import Subspaces

_ZEROS = 10  # more than a loss with a margin has by chance


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
    projected : Subspaces or None
        Subspaces of weights whose gradients are clipped in projected coordinates.
    replay : float
        Probability that a later unit runs again after another one.

    Attributes
    ----------
    replays : int
        How often a unit was run again after another one, to see whether the model keeps a state.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: NoisySumOptimizer,
        record: NormRecord,
        *,
        projected: Subspaces | None = None,
        replay: float = REPLAY,
    ) -> None:
        super().__init__(model, optimizer)
        self._rate, self._chance, self._other = replay, secrets.SystemRandom(), None
        self.record, self._projected, self.replays = record, projected, 0
        self._trained = [value for value in model.parameters() if value.requires_grad]
        self._unit: SampleId | None = None
        self._held: dict[torch.nn.Parameter, torch.Tensor] = {}
        self._zeros = 0.0  # units from the first on whose gradients were zero; -inf after another one

    @property
    def rounding(self) -> float:
        """ρ of ``clip_factors``: norms are of what is stored."""
        double = all(value.dtype == torch.float64 for value in self._trained)
        return rounding_margin(1, dtype=torch.float64 if double else torch.float32)

    def accumulate(
        self,
        losses: Losses,
        *,
        samples: Identities,
        step: int,
        batch: Any = None,
        units: Identities | None = None,
        secret: bytes | None = None,
    ) -> torch.Tensor:
        """Add the clipped gradients of units; see :meth:`ClippedStep.accumulate`.

        Parameters
        ----------
        losses, samples, step, batch, units, secret
            As there, with a callable and the unit of each row.

        Returns
        -------
        Tensor, shape (B,)
            The losses, detached. **Private.**
        """
        assert callable(losses)
        assert units is not None
        size = len(samples)
        rows = unit_rows(units, size)
        if not size:
            return torch.zeros(0)
        apart, found = BatchRows(batch, size), dict[int, torch.Tensor]()
        secret = secrets.token_bytes(32) if secret is None else secret
        self._look(losses, [apart.picked(own) for own in (rows.rows[0], rows.rows[-1])])
        for place, (unit, own) in enumerate(zip(rows.names, rows.rows, strict=True)):
            try:
                if unit != self._unit:
                    self.complete()
                    self._enter([unit], step)
                    self._unit = unit
                with draws_from(secret + place.to_bytes(8, "little"), self._devices):
                    found |= zip(own, self._backward(losses, apart.picked(own), len(own)), strict=True)
            except BaseException:
                self.discard()
                raise
        return torch.stack([found[row] for row in range(size)])

    def discard(self) -> None:
        """Forget the rows of the unit that is held; what was added of others stays."""
        for parameter in self._trained:
            parameter.grad = None
        if self._unit is not None:
            self._samples.discard(self._unit)  # nothing of the unit is in the sum: its rows may come again
        self._held, self._unit = {}, None

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
            check_parameters(losses, self.model)
            found = torch.autograd.grad(losses.sum(), self._trained, allow_unused=True)
        return [losses.detach(), *(value.to_dense() for value in found if value is not None)]

    def _backward(self, losses_of: Callable[[Any], torch.Tensor], batch: Any, rows: int) -> torch.Tensor:
        buffers = buffer_versions(self.model)
        losses = losses_of(batch)
        check_losses(losses, rows)
        check_buffers(self.model, buffers, "units")
        for parameter in self._trained:  # a leftover gradient would be added to
            parameter.grad = self._held.get(parameter)
        losses.sum().backward(inputs=self._trained)  # nothing else gets a gradient of private rows
        for parameter in self._trained:
            if parameter.grad is not None:
                self._held[parameter] = parameter.grad
            parameter.grad = None
        return losses.detach()

    def complete(self) -> None:
        """Add the unit that is held."""
        if self._unit is None:
            return
        gradients = {parameter: self._as_summed(parameter, value) for parameter, value in self._held.items()}
        squared = sum((sum_of_squares(value[None]).cpu() for value in gradients.values()), torch.zeros(1).double())
        bound, stability = self.optimizer.max_grad_norm, self.optimizer.stability
        if bool(squared.isfinite()):
            factor = clip_factors(squared, bound, rounding=self.rounding, stability=stability)[0]
            for parameter, value in gradients.items():
                total = sum_of(parameter, value.shape)
                total.add_(value.to(total.dtype), alpha=float(factor))
        self.centred_count += float(((squared <= bound**2).double() - 0.5).sum())
        self._held, self._unit = {}, None
        self._zeros = -math.inf if bool(squared != 0) else self._zeros + 1
        if self._zeros >= _ZEROS:
            raise TrainingStateError(
                f"gradients of the first {_ZEROS} samples are zero, each run alone: a loss that compares rows with "
                "each other is constant for one.\nFix: put what a row is compared with into the row."
            )

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
