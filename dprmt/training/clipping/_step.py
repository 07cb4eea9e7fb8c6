"""One private step of any clipping method: measure, clip, sum, noise, move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, SupportsIndex, TypeAlias

import torch
from opacus.grad_sample import GradSampleModuleFastGradientClipping

from dprmt._validation import ParameterError, TrainingStateError, check_count
from dprmt.training.clipping._first_pass import FirstPass
from dprmt.training.clipping._formed_layers import WholeModule
from dprmt.training.clipping._optimizer import NoisySum
from dprmt.training.clipping._plain_gradients import WithoutPlainGradients, spares_plain_gradients
from dprmt.training.clipping._policy import Contribution
from dprmt.training.clipping._refusals import parameters_added
from dprmt.training.clipping._replay import Replay
from dprmt.training.clipping._sample_wise import checkpointing_by_name
from dprmt.training.clipping._samplers import NormSamplers, StepLog
from dprmt.training.clipping._unit_rows import UnitRows, unit_rows
from dprmt.training.norms import NormRecord, SampleId, clip_factors
from dprmt.training.subspaces import Subspaces

Identities: TypeAlias = Sequence[SampleId] | torch.Tensor
Losses: TypeAlias = torch.Tensor | Callable[[Any], torch.Tensor]

REPLAY = 0.02
"""How often a sample of a later micro-batch is run alone, by default."""


class LogicalStep:
    """Base of private steps: micro-batches that a log knows are noised once, for the optimizer that was given."""

    def __init__(self, model: torch.nn.Module, optimizer: NoisySum, log: StepLog) -> None:
        self.model, self._log = model, log
        self.optimizer: torch.optim.Optimizer = optimizer
        self._moved = frozenset(optimizer.params)

    @property
    def subspaces(self) -> Subspaces | None:
        """The projectors of DP-GRAPE; None where nothing is trained in a subspace."""
        return getattr(self.optimizer.original_optimizer, "subspaces", None)

    def step(self) -> None:
        """Add noise once, divide by the *expected* batch size, let the optimizer move, and clear the sum.

        The sum is cleared and the step's number used up whatever happens: a step that failed is not tried again with
        other noise.

        Raises
        ------
        ParameterError
            In all processes of a group, if they are not at one step, or a sample was in two of them.
        TrainingStateError
            If the optimizer got parameters since it was made private.
        """
        try:
            self._check_optimizer()
            if self.optimizer.is_shared:
                self._log.check_ranks()
            self.optimizer.step()
        finally:
            self.optimizer.zero_grad(set_to_none=True)
            self._log.current = None

    def abandon(self) -> None:
        """Forget everything that was added since the last step, which is neither charged nor used."""
        self.discard()
        self.optimizer.forget()
        self._log.current = None

    def discard(self) -> None:
        """Forget a forward pass that is not to be trained on."""

    def _check_optimizer(self) -> None:
        later = [value for value in self.optimizer.params if value not in self._moved]
        if later:
            raise TrainingStateError(parameters_added(later))


class ClippedStep(LogicalStep):
    """A private step over Opacus' hooks; made by :func:`make_private`.

    A logical step is any number of calls of :meth:`accumulate` (none, if Poisson sampling drew nobody) and one of
    :meth:`step`. Where all norms are exact, Opacus' own loop works as well: a summed loss, its Poisson loader and
    ``BatchMemoryManager`` with :attr:`optimizer`. Nothing then looks for samples that come twice in a logical step.

    Parameters
    ----------
    model : GradSampleModuleFastGradientClipping
        The model with hooks.
    optimizer : NoisySumOptimizer or DistributedNoisySumOptimizer
        It noises the sums.
    samplers : NormSamplers
        Of the model, keeping what norms are computed from.
    replay : float
        Probability with which a sample of a later micro-batch is run alone; see :meth:`accumulate`.
    most_rows : int or None
        How many rows a unit may have in a logical step.

    Attributes
    ----------
    model : Module
        The model to call, with the hooks that the clipping needs.
    optimizer : Optimizer
        The Opacus optimizer; its ``original_optimizer`` is the one that was given.

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
    ...     norms="exact",
    ...     clipping_norm=1.0,
    ...     noise_multiplier=0.0,  # to see the sum: not private
    ...     expected_batch_size=2.0,
    ... )
    >>> inputs = torch.tensor([[30.0, 0.0], [0.0, 0.5]])
    >>> losses = step.accumulate(step.model(inputs).flatten(), samples=[17, 4], step=0)
    >>> step.step()
    >>> network.weight.detach()
    tensor([[-0.4999, -0.2500]])
    >>> losses = step.accumulate(step.model(inputs).flatten(), samples=[17, 4], step=0)
    Traceback (most recent call last):
    ...
    dprmt._validation.ParameterError: step must be a number that no earlier step had...
    >>> step.close() is network
    True
    """

    def __init__(
        self,
        model: GradSampleModuleFastGradientClipping,
        optimizer: NoisySum,
        samplers: NormSamplers,
        *,
        replay: float = REPLAY,
        most_rows: int | None = None,
    ) -> None:
        super().__init__(model, optimizer, samplers.log)
        self._most_rows = most_rows
        self._has_units: bool | None = None if most_rows is None else True  # None: nobody has said yet
        self._replay = Replay(model, samplers, replay, float(optimizer.max_grad_norm))
        self._model, self._samplers = model, samplers
        self._first: FirstPass | None = FirstPass(model, samplers.layers)
        self._handles = [value.register_post_accumulate_grad_hook(self._let_go) for value in optimizer.params]
        self._plainless = [
            # A copied model would copy methods.
            WithoutPlainGradients(layer.module, lambda: self._spares_plain_gradients(), lambda *use: self._note(*use))
            for layer in samplers.layers
            if not isinstance(layer, WholeModule) and spares_plain_gradients(layer.module)
        ]
        optimizer.collect, samplers.uses.watch = self._collect, self._watch

    @property
    def record(self) -> NormRecord:
        """Record of how the norm of every trainable parameter is obtained: what the accountant is told."""
        return self._samplers.record

    @property
    def rounding(self) -> float:
        """ρ of ``clip_factors``, the same for all samples whatever the batch."""
        return self._samplers.rounding

    @property
    def replays(self) -> int:
        """Micro-batches of which samples were run alone; 0 where every loss was given as a tensor."""
        return self._replay.count

    @property
    def replayable(self) -> bool:
        """True if all losses so far came as a function of the batch, which can be run again."""
        return self._replay.possible

    def accumulate(
        self,
        losses: Losses,
        *,
        samples: Identities,
        step: SupportsIndex,
        batch: Any = None,
        units: Identities | None = None,
    ) -> torch.Tensor:
        """Add the clipped gradients of a micro-batch to the sum of the logical step.

        Parameters
        ----------
        losses : callable, or Tensor of shape (B,)
            From a batch to each sample's own loss: the call of :attr:`model` in training mode, and the loss. Or these
            losses with their graph, which nobody can run again. Never their mean.
        samples : sequence of int or str, or tensor of integers, shape (B,)
            Identities in the data set, all different within a logical step.
        step : int
            Number of the logical step, >= 0, the same for all its micro-batches, never used twice in a run.
        batch : Tensor, list, or mapping or tuple of these
            What a callable takes: each with one row for each sample. Columns at the end that ``attention_mask``
            leaves out are padding.
        units : sequence of int or str, or tensor of integers, shape (B,), optional
            Of every row, whose it is: all rows of one, in this one micro-batch, are then a sample, with the gradient of
            their losses' sum (for a mean, divide the losses), one norm, and probes of its own; ``samples`` tell rows
            apart. The model and the losses still take each row by itself. Needs ``rows_per_unit`` where ``tokens`` was
            given.

        Returns
        -------
        Tensor, shape (B,)
            The losses, without graph. **Private.**

        Raises
        ------
        ParameterError
            If an argument is out of its range; if a sample was in this logical step already or the step in an
            earlier one, or another one is not finished; if T exceeds ``tokens``; in the first micro-batch, if a loss
            depends on another sample, or a parameter gets a gradient that does not come through its own layer.
        TrainingStateError
            If a layer's first axis is not the sample; if parameters or the optimizer's are not those that were made
            private, or a buffer changes in a forward pass; of a callable, at the first micro-batch and at random later
            ones,
            if a sample alone, without padding and with the random numbers that were drawn for it, has another loss than
            in the batch, or gives a trainable layer other inputs or output gradients; where rows are chosen or ordered
            by what is in them, at every micro-batch, if another order of the samples gives other rows. The sum is as
            before then, and the samples may come again with a forward pass of their own.

        Notes
        -----
        Differences count from 1e-4 on in float32 (1e-2 where its products are shortened, as TF32 does), 1e-7 in float64
        and 5 % in 16 bits, relative to a loss (or .1 if it is smaller) or the norm of an input; of gradients from a
        tenth on (a quarter in 16 bits), which rounding may change that much where it switches a unit off.

        A look reads private data and decides one thing, whether the step goes on. That bit, and the name of the layer
        in the message, depend on the samples looked at and are not covered by ε. For code that mixes no samples it is
        always the same, up to rounding beyond the tolerance, and says nothing of anybody; for code that does, it says
        that the code has to change. Nothing of a look reaches the sum, the probes, the noise or the coins.
        """
        self._check_optimizer()
        number, current = check_count("step", step, low=0), self._log.current
        if current not in (None, number):
            raise ParameterError("step", number, f"{current} until step() has finished it")
        if not isinstance(losses, torch.Tensor) and callable(losses):
            losses = self._computed(losses, batch, len(samples))
        elif batch is not None:
            raise ParameterError("batch", type(batch).__name__, "left out where losses are given as a tensor")
        else:
            self._replay.possible = False
        if not isinstance(losses, torch.Tensor) or losses.ndim != 1:
            shape = tuple(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
            raise ParameterError("losses", shape, "a tensor of shape (B,): one loss for each sample, not their mean")
        if not losses.requires_grad:
            raise TrainingStateError("the losses have no graph: compute them from the model with gradients enabled")
        if len(samples) != len(losses):
            raise ParameterError("samples", len(samples), f"identities of all {len(losses)} samples")
        if len(losses) == 0:
            self.discard()
            return losses.detach()
        whose = self._units_of(units, len(losses)) if self._has_units or units is not None else None
        try:
            with checkpointing_by_name() if self._first is not None else nullcontext():
                if self._first is not None:
                    self._first.check_samples(losses)
                with self._samplers.at(step=number, samples=samples, units=whose):
                    losses.sum().backward()
                    self._has_units = whose is not None
                    if not self._add():
                        raise TrainingStateError("the losses reach no trainable layer")
        except BaseException:
            self.discard()
            raise
        return losses.detach()

    def _units_of(self, units: Identities | None, rows: int) -> UnitRows:
        try:
            if units is None or self._has_units is False:
                found = None if units is None else type(units).__name__
                raise ParameterError("units", found, "given for all rows of a run, or for none")
            whose, most = unit_rows(units, rows), self._most_rows
            if most is not None and whose.most > most:
                raise ParameterError("rows of a unit", whose.most, f"at most rows_per_unit = {most} in a logical step")
        except BaseException:
            self.discard()
            raise
        return whose

    def _computed(self, losses: Callable[[Any], torch.Tensor], batch: Any, size: int) -> torch.Tensor:
        try:
            with checkpointing_by_name() if self._first is not None else nullcontext():
                self._replay.look(losses, batch, size)
            if self._first is not None:
                self._first.forget()
            return losses(batch)
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Forget a forward pass that is not to be trained on, for instance after an error."""
        self._samplers.uses.finish()
        if self._first is not None:
            self._first.forget()

    def close(self) -> torch.nn.Module:
        """Take all hooks away.

        Returns
        -------
        torch.nn.Module
            The model as it was given, with its trained weights.
        """
        self.discard()
        self.optimizer.forget()
        self._samplers.remove()
        self._looked()
        for handle in self._handles:
            handle.remove()
        while self._plainless:
            self._plainless.pop().remove()
        return self._model.to_standard_module()

    def _spares_plain_gradients(self) -> bool:
        return self._first is None or self._first.spares(self._samplers.uses.batch_size)

    def _note(self, module: torch.nn.Module, inputs: Sequence[Any], output: torch.Tensor) -> None:
        if self._first is not None:
            self._first.uses.note(module, inputs, output)

    def _watch(self, module: torch.nn.Module, inputs: Sequence[torch.Tensor], gradients: torch.Tensor) -> None:
        if self._first is not None:
            self._first.uses.capture(module, inputs, gradients)

    def _let_go(self, parameter: torch.Tensor) -> None:
        if self._first is not None:
            self._first.keep_gradient(parameter)
        parameter.grad = None  # of the plain sum: not private, and nothing else uses it

    def _looked(self) -> None:
        if self._first is not None:
            self._first.remove()
        self._first = self._samplers.uses.watch = None

    def _collect(self) -> None:
        # In Opacus' own loop nobody calls accumulate.
        try:
            if self._samplers.measured()[0] is not None:
                if self._has_units:
                    raise TrainingStateError(
                        "a backward pass names no units in a run that has them: give losses to accumulate(…, units=…)"
                    )
                self._samplers.uses.check()
                self._has_units = False
                self._add()
        finally:
            self._samplers.uses.finish()

    def _add(self) -> bool:
        squared, contributions = self._measured()
        if squared is None:
            return False
        finite = torch.isfinite(squared)
        seen = self._first is not None and self._look(self._first, contributions, squared, finite)
        factors = clip_factors(squared, self.optimizer.max_grad_norm, rounding=self._samplers.rounding)
        kept = self._kept(finite)
        if seen:
            self._looked()
        self._samplers.uses.summing = True
        self._large_last(contributions)
        while contributions:
            contributions.pop().add_to_sums(factors[kept], kept)  # freed one by one
            self._summed()
        return True

    def _large_last(self, contributions: list[Contribution]) -> None:
        """Large sums come when most of what is kept for others is gone: they are first in the list, taken from behind.

        A layer's own contributions stay in their order.
        """
        sizes = [sum(value.numel() for value in layer.module.parameters()) for layer in self._samplers.uses.sources]
        order = sorted(range(len(contributions)), key=sizes.__getitem__, reverse=True)
        contributions[:] = [contributions[place] for place in order]

    def _look(
        self, first: FirstPass, contributions: Sequence[Contribution], squared: torch.Tensor, finite: torch.Tensor
    ) -> bool:
        """Whether all was seen that the first micro-batch has to show."""
        # One row cannot show whether rows mix.
        several = self._in_any((self._samplers.uses.size or len(finite)) > 1)
        sources = self._samplers.uses.sources
        return first.check_sums(contributions, sources, squared, finite=self._in_all(bool(finite.all()))) and several

    # What processes that share a model do together, see `ShardedStep`.

    def _measured(self) -> tuple[torch.Tensor | None, list[Contribution]]:
        return self._samplers.measured()

    def _kept(self, finite: torch.Tensor) -> torch.Tensor | slice:
        return slice(None) if bool(finite.all()) else finite

    def _in_all(self, value: bool) -> bool:
        return value

    def _in_any(self, value: bool) -> bool:
        return value

    def _summed(self) -> None:
        """After every contribution to the sums."""
