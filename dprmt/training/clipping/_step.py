"""One private step of any clipping method: measure, clip, sum, noise, move."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch

from dprmt._validation import ParameterError, TrainingStateError
from dprmt.training.clipping._capture import Capture, check_losses, check_parameters
from dprmt.training.clipping._formed_layers import Layer
from dprmt.training.clipping._isolation import Isolation
from dprmt.training.clipping._modules import padding_rows
from dprmt.training.clipping._optimizer import ONLY_STEP, NoisySumOptimizer
from dprmt.training.clipping._sample_wise import explained
from dprmt.training.clipping._units import unit_rows
from dprmt.training.norms import NormRecord, clip_factors
from dprmt.training.norms._probes import SampleId, checked_ids
from dprmt.training.randomness import draws_from, secret_generator

Identities: TypeAlias = Sequence[SampleId] | torch.Tensor
Losses: TypeAlias = torch.Tensor | Callable[[Any], torch.Tensor]

REPLAY = 0.02
"""Default probability of an isolation check of a later micro-batch."""


class _MaySpreadError(Exception):
    """A gradient is not finite, and a neighbour's may be so because of it."""


@contextmanager
def products_by_row() -> Iterator[None]:
    """Switch off oneDNN, whose products in bfloat16 read past a row of odd length.

    They multiply the next row's first number by zero. If that is NaN or infinite, the product is NaN, and the
    neighbour of a dropped sample would be dropped too.
    """
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


class LogicalStep:
    """Base of private steps: micro-batches are clipped and added, noised once, and given to the optimizer."""

    def __init__(self, model: torch.nn.Module, optimizer: NoisySumOptimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self._samples: set[SampleId] = set()  # of the logical step, whose gradients are in the sum or may be
        self._number = 0
        self._moved = frozenset(optimizer.params)
        optimizer.padding_rows = padding_rows(model)
        self._may_move = False
        self.stands_in = False
        """Whether :meth:`accumulate` adds nothing, and only takes part in what processes with a sharded model do."""
        self._devices = sorted({value.device for value in model.parameters()}, key=str)
        self.centred_count = 0.0
        """1/2 for each sample of the step whose norm is at most the clipping norm, -1/2 for longer ones and those that
        are left out because their norm is not finite. **Private.**"""
        self._guard = optimizer.original_optimizer.register_step_pre_hook(self._only_here)

    def step(self) -> None:
        """Add noise once, divide by the *expected* batch size, let the optimizer move, and clear the sum.

        The sum is cleared whatever happens: a step that failed is not tried again with other noise.

        Raises
        ------
        ParameterError
            In all processes of a group, if they are not at one step, or a sample was in two of them.
        TrainingStateError
            If the optimizer got parameters since it was made private.
        """
        try:
            self.complete()
            later = [tuple(value.shape) for value in self.optimizer.params if value not in self._moved]
            if later:
                found = f"the optimizer got parameters of shapes {later} since it was made private"
                raise TrainingStateError(f"{found}: they have no clipped gradients")
            if self.optimizer.is_shared:
                self._check_processes()
            self._may_move = True
            self.optimizer.step()
        finally:
            self._may_move = False
            self.abandon()

    def abandon(self) -> None:
        """Forget everything that was added since the last step."""
        self.discard()
        for parameter in self.optimizer.params:
            parameter.grad = parameter.summed_grad = parameter.projected_grad = None
        self._samples, self.centred_count = set(), 0.0

    def close(self) -> torch.nn.Module:
        """Forget what was added, and take all hooks away.

        Returns
        -------
        torch.nn.Module
            The model as it was given, with its trained weights.
        """
        self.abandon()
        self._guard.remove()
        return self.model

    def _enter(self, samples: Identities, step: int) -> set[SampleId]:
        """Note samples of a logical step, each of which is clipped and added once."""
        ids = checked_ids("samples", samples)
        new = set(ids)
        if again := len(ids) - len(new - self._samples):
            raise ParameterError("samples that come twice in a logical step", again, "0: each is added once")
        self._samples |= new
        self._number = step
        return new

    def _check_processes(self) -> None:
        """Raise in all processes unless they are at one step, and no sample of it was in two of them."""
        seen: list[tuple[int | None, set[SampleId]]] = [(None, set())] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(seen, (self._number if self._samples else None, self._samples))
        steps = sorted({step for step, _ in seen if step is not None})
        if len(steps) > 1:
            raise ParameterError("step", steps, "the same number in all processes: they share its probes")
        repeated = sum(len(names) for _, names in seen) - len(set().union(*(names for _, names in seen)))
        if repeated:
            raise ParameterError("samples", repeated, "in one process only: each would be clipped and added twice")

    def _only_here(self, *_: Any) -> None:
        if not self._may_move:
            raise TrainingStateError(f"a step of the optimizer that was made private.\nFix: {ONLY_STEP}")

    def complete(self) -> None:
        """Add what is held back, of a unit that may have more rows."""

    def discard(self) -> None:
        """Forget a forward pass that is not to be trained on."""


class ClippedStep(LogicalStep):
    """A private step over hooks on a model's layers; made by :meth:`ClippingPlan.privatize`.

    A logical step is any number of calls of :meth:`accumulate` (none, if Poisson sampling drew no sample) and one of
    :meth:`step`. A backward pass outside of :meth:`accumulate` and a step of the optimizer outside of :meth:`step`
    raise an error. :meth:`step` gives the wrapped optimizer the noisy mean of :func:`plan_private`, with its guarantee
    and its limits. Losses, norms and clip factors are private.

    Parameters
    ----------
    optimizer : NoisySumOptimizer
        It noises the sums; its ``original_optimizer`` is the one that was given.
    capture : Capture
        The hooks on the model.
    replay : float
        Probability with which a sample of a later micro-batch is run alone; see :meth:`accumulate`.

    Attributes
    ----------
    model : Module
        Your model, with the hooks for clipping. A copy of it has no hooks.

    Examples
    --------
    Two gradients have lengths 30 and ½. The first is cut to C = 1, and the sum is divided by the expected batch size:

    >>> from dprmt.training.clipping import plan_private
    >>> network = torch.nn.Linear(2, 1, bias=False)
    >>> _ = torch.nn.init.zeros_(network.weight)
    >>> plan = plan_private(
    ...     network,
    ...     norms="exact",
    ...     clipping_norm=1.0,
    ...     expected_batch_size=2.0,
    ... )
    >>> optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    >>> step = plan.privatize(optimizer, noise_multiplier=0.0)  # to see the sum: not private
    >>> inputs = torch.tensor([[30.0, 0.0], [0.0, 0.5]])
    >>> losses = step.accumulate(lambda rows: step.model(rows).flatten(), batch=inputs, samples=[17, 4], step=0)
    >>> step.step()
    >>> network.weight.detach()
    tensor([[-0.4999, -0.2500]])
    >>> step.close() is network
    True
    """

    def __init__(self, optimizer: NoisySumOptimizer, capture: Capture, *, replay: float = REPLAY) -> None:
        super().__init__(capture.model, optimizer)
        self._isolation = Isolation(capture, replay)
        self._capture, self._was_checked, self._is_first = capture, False, True
        self.record: NormRecord = capture.record
        """Record of how the norm of every trainable parameter is obtained, for the accountant."""
        self.clips_layers = False
        """Whether each of the L layers' gradients is clipped to C/√L, instead of the whole gradient to C."""

    @property
    def rounding(self) -> float:
        """ρ of ``clip_factors``, the same for all samples whatever the batch."""
        return self._capture.rounding

    @property
    def replays(self) -> int:
        """Micro-batches of which samples were run alone; 0 where every loss was given as a tensor."""
        return self._isolation.count

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
        """Add the clipped gradients of a micro-batch to the sum of the logical step.

        Parameters
        ----------
        losses : callable, or Tensor of shape (B,)
            A function from a batch to each sample's loss, by :attr:`model` in training mode; or these losses, with
            their graph, which allow no isolation check. Never their mean.
        samples : sequence of int or str, or tensor of integers, shape (B,)
            Identities in the data set, not positions in the batch.
        step : int
            Number of the logical step, the same for all its micro-batches and never used twice: it keys probes.
        batch : Tensor, list, or mapping or tuple of these
            Argument of a callable ``losses``; every tensor has one row per sample. Columns at the end that
            ``attention_mask`` excludes are padding.
        units : sequence of int or str, or tensor of integers, shape (B,), optional
            Unit of each row, and ``samples`` are identities of rows. All rows of a unit form one sample: their losses
            are summed. Side by side, all are in one micro-batch. Run alone, the last unit of a call may continue in
            the next one.
        secret : bytes, optional
            At least 32, never used before, which dropout is drawn from; by default new ones.

        Returns
        -------
        Tensor, shape (B,)
            The losses, detached. **Private.**

        Raises
        ------
        ParameterError
            If an argument is out of its range, or a sample is in the sum already. In the first micro-batch also if a
            loss depends on another sample, or a parameter gets a gradient outside of its layer.
        TrainingStateError
            If samples influence each other, a layer's first axis is not the sample, a buffer changes, or parameters
            were replaced. The sum is unchanged, so you can fix the model and pass the samples again.

        Notes
        -----
        An isolation check compares the loss and the captured gradient of two samples. With other neighbours,
        in batches of equal size of at most 13 rows, they may differ by 1e-5 in float32, 1e-9 in float64 and 1e-2 in 16
        bits, relative to the larger of C and the gradient. Alone, without dropout and padding, losses may differ by
        1e-4 (1e-7, 5 %) and gradients by a tenth (16 bits: half), because rounding can switch units off. Other
        micro-batches and other kinds of neighbours are not covered.

        The decision to stop and the layer named in the error depend on private data: see
        ``docs/theory/isolation_checks.md``.
        """
        capture, isolation = self._capture, self._isolation
        secret = secrets.token_bytes(32) if secret is None else secret
        may_spread = callable(losses) and torch.backends.mkldnn.enabled and self._devices[0].type == "cpu"
        try:
            # Given the key, dropout is independent across samples and of the data. So it can be the same for each
            # remaining sample when one is removed and the others move up.
            with draws_from(secret, self._devices):
                if isinstance(losses, torch.Tensor):
                    found = losses
                else:
                    capture.finish()  # forward passes between steps, which nothing is trained on
                    if not self.is_spread:
                        isolation.check(losses, batch, len(samples), float(self.optimizer.max_grad_norm))
                    for generator in isolation.generators:  # of the model's own: their seed may be known
                        generator.set_state(secret_generator(generator.device).get_state())
                    found = losses(batch)
                check_losses(found)
                if len(samples) != len(found):
                    raise ParameterError("samples", len(samples), f"identities of all {len(found)} samples")
                if len(found):
                    if self._is_first and not self.is_spread:
                        check_parameters(found, self.model)
                        self._is_first = False
                    self._clip_and_sum(found, samples, step, units, may_spread)
                return found.detach()
        except _MaySpreadError:
            with products_by_row():
                return self.accumulate(losses, samples=samples, step=step, batch=batch, units=units, secret=secret)
        except RuntimeError as error:
            if (explanation := explained(error, capture.shared_modules())) is None:
                raise
            raise explanation from error
        finally:
            self.discard()

    def _clip_and_sum(
        self, losses: torch.Tensor, samples: Identities, number: int, units: Identities | None, may_spread: bool
    ) -> None:
        capture, bound = self._capture, self.optimizer.max_grad_norm
        whose = None if units is None else unit_rows(units, len(losses))
        names = samples if whose is None else whose.names
        new = self._enter(names, number)
        try:
            looks = not (self._was_checked or self._isolation.apart) and not self._in_all(len(losses) < 2)
            squared = capture.backward(losses, step=number, samples=names, units=whose, apart=looks)
            finite = torch.isfinite(squared)
            all_finite = bool(finite.all())
            if may_spread and not all_finite:
                raise _MaySpreadError
            if self.is_spread:
                self._check_same()
            factors = clip_factors(squared, bound, rounding=capture.rounding, stability=self.optimizer.stability)
            factors_of = self._factors_of_layers(squared) if self.clips_layers else {}
            kept: torch.Tensor | slice = slice(None) if all_finite else finite
            if self.stands_in:
                kept = torch.zeros_like(finite)
            # Large sums last, when most other memory is free; a layer's own contributions stay in their order.
            capture.contributions.sort(key=lambda pair: capture.sizes[pair[0]], reverse=True)
            capture.summing = True
            while capture.contributions:
                layer, contribution = capture.contributions.pop()  # freed one by one
                own = factors_of[layer] if self.clips_layers else factors
                contribution.add_to_sums(own[kept], kept)
                if self.is_spread:
                    self._summed()
            if not self.stands_in:
                self.centred_count += float(((squared <= bound**2).double() - 0.5).sum())
            self._was_checked = self._was_checked or (looks and self._in_all(all_finite))  # NaN shows nothing
        except BaseException:
            if not capture.summing:
                self._samples -= new
            raise

    def _factors_of_layers(self, squared: torch.Tensor) -> dict[Layer, torch.Tensor]:
        capture = self._capture
        share = self.optimizer.max_grad_norm / math.sqrt(len(capture.layers)) * (1.0 - 2.0**-50)
        each = capture.squared_of.items()
        return {layer: clip_factors(of, share, rounding=capture.rounding).to(squared.device) for layer, of in each}

    def discard(self) -> None:
        """Forget a forward pass that is not to be trained on, for instance after an error."""
        self._capture.finish()

    def close(self) -> torch.nn.Module:
        """See ``LogicalStep``.

        Returns
        -------
        torch.nn.Module
            The model as it was given, with its trained weights.
        """
        self._capture.remove()
        return super().close()

    # Of processes that share a model, see `ShardedStep`.

    is_spread = False

    def _in_all(self, value: bool) -> bool:
        return value

    def _check_same(self) -> None:
        """Raise unless all processes have come to the same place."""

    def _summed(self) -> None:
        """Take a contribution's sum to where it is kept."""
