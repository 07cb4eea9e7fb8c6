"""A private run: the object that owns who is in a batch, how gradients are clipped and noised, and what it costs."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import secrets
import struct
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, cast

import torch
from torch.utils._pytree import tree_map_only

from dprmt import __version__
from dprmt._rounding import round_up
from dprmt._validation import ParameterError, TrainingStateError, check_real, differences
from dprmt.accounting import DPSGD, Composition, GaussianRelease, PrivacyBounds, compose
from dprmt.accounting.basics._value import Value
from dprmt.training.clipping import ClippedStep, ClippingPlan
from dprmt.training.clipping._shards import ShardedStep
from dprmt.training.denoising import Denoising, DenoisingStep
from dprmt.training.norms import ProbeGenerator
from dprmt.training.private_run._batches import Draws, MicroBatch, Part, PrivateBatch, Source
from dprmt.training.private_run._ledger import (
    ClippingOnly,
    Mechanism,
    PrivacyLedger,
    SpentEpsilon,
    charged_mechanism,
    describe_mechanism,
    named_relation,
    spent_epsilon,
    whole_epochs,
)
from dprmt.training.private_run._randomness import Randomness, from_first, in_first, most_in_any, rank, sum_of_all
from dprmt.training.private_run._step_options import (
    STABILITY,
    AdaptiveClipping,
    BandedNoise,
    ClippingNorm,
    CorrelatedNoise,
    PerLayerClipping,
    clipping_sentence,
)
from dprmt.training.randomness import secret_generator
from dprmt.training.telemetry import Telemetry

Losses: TypeAlias = Callable[[Any], torch.Tensor]
_FORMAT = 1  # of state_dict
_MODELS: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()  # models of open runs


def check_free(model: torch.nn.Module) -> None:
    """Raise if another private run holds the model."""
    if isinstance(model, torch.nn.Module) and model in _MODELS:
        allowed = "one that no other private run holds: call close() of that run first"
        raise ParameterError("model", type(model).__name__, allowed)


class PrivateRun:
    """A private training run; made by :func:`dprmt.make_private`.

    Iterate over it for batches, and give each batch to :meth:`step` before the next one. An iteration that was left
    goes on where it stopped: a batch whose step was not finished comes again, because nothing of it was released.

    Attributes
    ----------
    model : Module
        The model that was given; its names of parameters are unchanged.
    optimizer : Optimizer
        The optimizer that was given, for schedulers. Its ``step()`` raises an error; :meth:`step` calls it.
    steps : int
        Steps of the whole run, also ``len(private)``.
    mechanism : DPSGD
        One step, as the accountant composes it.
    steps_taken : int
        Steps that the parameters have seen.
    steps_charged : int
        Steps that count towards ε, at least ``steps_taken``.
    telemetry, denoising : Telemetry or None, DenoisingStep or None
        Where they were asked for.

    Raises
    ------
    TrainingStateError
        By methods, wherever a loop does what ε does not cover; the message has the call to write instead.

    Privacy
    -------
    Holds if: every row of the data set is one sample (or belongs to its owner), and what is released are the trained
    parameters after any steps, :meth:`epsilon`, ``telemetry`` and :meth:`statement`.
    Covers: sampling, clipping, noise and the number of steps of this object, and of those it was loaded from.
    Does not cover: losses, sizes of batches, evaluation on training data, :meth:`state_dict` (it holds secrets), rows
    that share content, and what :func:`dprmt.training.clipping.plan_private` leaves out. Proof: claims 1 to 6 of
    ``docs/guarantees.md``.

    See Also
    --------
    dprmt.make_private : for making one.

    Examples
    --------
    >>> import torch
    >>> from dprmt import make_private
    >>> rows = torch.utils.data.TensorDataset(torch.randn(100, 8), torch.arange(100) % 2)
    >>> model = torch.nn.Linear(8, 2)
    >>> private = make_private(
    ...     model,
    ...     torch.optim.SGD(model.parameters(), lr=0.1),
    ...     rows,
    ...     norms="exact",
    ...     clipping_norm=1.0,
    ...     batch_size=20,
    ...     steps=5,
    ...     noise_multiplier=1.0,
    ...     delta=1e-5,
    ... )
    >>> for batch in private:
    ...     private.step(lambda row: torch.nn.functional.cross_entropy(model(row[0]), row[1], reduction="none"), batch)
    >>> private.steps_taken, f"{private.epsilon():.2f}"
    (5, '...')
    """

    def __init__(
        self,
        plan: ClippingPlan,
        probes: ProbeGenerator,
        optimizer: torch.optim.Optimizer,
        source: Source,
        *,
        mechanism: Mechanism,
        steps: int,
        delta: float | None,
        has_target: bool,
        randomness: Randomness,
        clipping: ClippingNorm | None = None,
        noise: BandedNoise | None = None,
        ledger: Path | None = None,
        attempt: int = 1,
        denoising: Denoising | None = None,
        telemetry: Mapping[str, Any] | None = None,
        progress: bool = False,
    ) -> None:
        self.steps, self._delta = steps, delta
        self.mechanism = cast(DPSGD, mechanism)
        self._adds_noise = not isinstance(mechanism, ClippingOnly)
        self._plan, self._probes, self._source = plan, probes, source
        self._most = whole_epochs(steps, mechanism.steps_per_epoch) if has_target else math.inf  # σ is for so many
        self._progress = progress
        self._name = from_first(secrets.token_hex(8))
        self.steps_taken = self._attempts = self._iteration = 0
        self._losses_returned, self._loads = False, attempt - 1
        self.releases: tuple[GaussianRelease, ...] = ()  # charged beside the steps
        self._batch: PrivateBatch | None = None
        self.model, self._guard = plan.model, Guard(plan.model)
        self._trained = {name: value for name, value in plan.model.named_parameters() if value.requires_grad}
        self._rank, self._processes = rank(), torch.distributed.get_world_size() if plan.distributed else 1
        self._names_rows = bool(plan.record.estimated)  # by content: probes of their own
        self._draw_from(randomness)
        device = next(iter(self._trained.values())).device
        self._noise = randomness.generator(f"noise of process {self._rank}", device)
        self._inner = plan.privatize(optimizer, noise_multiplier=self.noise_multiplier, noise_generator=self._noise)
        self._clipping: ClippingNorm = plan.clipping_norm if clipping is None else clipping
        self._inner.optimizer.stability = STABILITY if clipping == "automatic" else None
        if isinstance(clipping, PerLayerClipping):
            assert isinstance(self._inner, ClippedStep)  # checked by make_private
            self._inner.clips_layers = True
        self._banded = noise
        self._correlated = None if noise is None else CorrelatedNoise(noise.coefficients(steps))
        self._inner.optimizer.correlation = self._correlated
        self.optimizer = self._inner.optimizer.original_optimizer
        self.telemetry = self.denoising = None
        if telemetry is not None:
            options = {"every": max(1, steps // 50), **telemetry}
            self.telemetry = Telemetry.attach(self._inner.optimizer, self._trained, **options)
        if denoising is not None:
            self.denoising = DenoisingStep(self._inner.optimizer, self._trained, denoising)
        _MODELS.add(self.model)
        self._ledger: PrivacyLedger | None = None
        if ledger is not None:
            charged = charged_mechanism(mechanism, self._checked_delta(None))
            self._ledger = in_first(lambda: PrivacyLedger(ledger, charged, named_relation(mechanism)))
        self.steps_charged = from_first(0 if self._ledger is None else self._ledger.charged)
        self._epoch_is_lost = randomness.is_secret  # if one is under way: its draws are not known here

    def _draw_from(self, randomness: Randomness) -> None:
        """Take batches, noise and probes from a secret."""
        self._draws = Draws(self._source.samples, self.mechanism.sampling, randomness)
        self._probes.restart(randomness.derive("probes"))
        self._is_shared = self._loads > 0  # whether another run may have the secret, too

    @property
    def noise_multiplier(self) -> float:
        """σ: the noise's standard deviation in units of the clipping norm."""
        return self.mechanism.noise_multiplier

    @property
    def clipping_norm(self) -> float:
        """C of the next step, which is public: a function of what was released."""
        return float(self._inner.optimizer.max_grad_norm)

    def __repr__(self) -> str:
        of = f"{self.steps_taken} of {self.steps} steps taken"
        return f"<{type(self).__name__}: {of}, {self.mechanism!r}, batch_size={self._plan.expected_batch_size:g}>"

    def __len__(self) -> int:
        return self.steps

    def __reduce__(self) -> NoReturn:
        raise TrainingStateError("a private run cannot be pickled or copied.\nFix: save private.state_dict().")

    # ------------------------------------------------------------------------------------------------------ batches

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every sample is expected once."""
        return self.mechanism.steps_per_epoch or max(1, round(1 / self.mechanism.sample_rate))

    def __iter__(self) -> Generator[PrivateBatch, None, None]:
        """Yield the batches of all steps that are left."""
        return self._batches(self.steps)

    def epoch(self) -> Epoch:
        """Iterate over one epoch's steps, for loops that evaluate after every epoch.

        Returns
        -------
        Epoch
            Its length is ``steps_per_epoch``; every iteration over it goes on with the next epoch.

        Examples
        --------
        ```python
        for number in range(epochs):
            for batch in private.epoch():
                private.step(losses_of, batch)
        ```
        """
        return Epoch(self)

    def _batches(self, end: int) -> Generator[PrivateBatch, None, None]:
        self.discard()
        self._iteration += 1
        self.steps_charged, self._epoch_is_lost = self._charged_before_next(), False
        iteration, first, left = self._iteration, self._place, min(end - self.steps_taken, self.steps_left)
        end = self.steps_taken + left
        if end == self.steps_taken < self.steps:
            raise TrainingStateError(
                f"{self.steps_charged} steps are charged: another one would exceed the target ε.\n"
                "Fix: stop here; the steps that were lost to interruptions count."
            )
        plans, planned = itertools.tee(map(self._drawn, range(first, first + left)))  # for the loop, and for the loader
        rows = self._source.loaded((parts for parts, _ in planned), self._names_rows)
        for step in self._shown(range(self.steps_taken, end)):
            if iteration != self._iteration:
                raise TrainingStateError("another iteration over this run has begun.\nFix: iterate in one place.")
            parts, size = next(plans)
            most = most_in_any(len(parts)) if isinstance(self._inner, ShardedStep) else len(parts)
            seen = self._source.seen_before(parts, self._processes) if self._names_rows else None
            row = self._source.first_row
            self._batch = PrivateBatch(step, size, parts, rows.__next__, most, row, seen)
            yield self._batch
            if iteration == self._iteration and self.steps_taken == step:
                raise TrainingStateError(
                    f"the batch of step {step} was left out: a step without noise has no ε.\n"
                    "Fix: private.step(losses_of, batch) for every batch; for an empty one it adds noise alone."
                )

    def _drawn(self, number: int) -> tuple[list[Part], int]:
        """Yield micro-batches of this process for the step after the recorded ones, and its size."""
        positions = self._draws.at(number)
        return self._source.parts(positions[self._rank :: self._processes], number), len(positions)

    @property
    def _place(self) -> int:
        """Number of the next step's draws and noise: none comes twice, unless a known seed is to repeat a run."""
        return self.steps_charged if self._draws.randomness.is_secret else self.steps_taken

    @property
    def steps_left(self) -> int:
        """Steps that may still be taken: fewer than planned where interruptions used up the target ε."""
        return max(0, int(min(self.steps - self.steps_taken, self._most - self._charged_before_next())))

    def _charged_before_next(self) -> int:
        """Count recorded steps, including all steps of an unfinished epoch of random allocation."""
        return self._counted() if self._epoch_is_lost else self.steps_charged

    def _shown(self, steps: range) -> Iterator[int]:
        if not self._progress or self._rank:
            yield from steps
            return
        from tqdm.auto import tqdm

        with tqdm(total=self.steps, initial=steps.start, desc="private steps") as bar:
            for step in steps:
                yield step
                bar.update()
                if self._delta is not None and self._adds_noise:
                    norm = f", C = {self.clipping_norm:.3g}" if isinstance(self._clipping, AdaptiveClipping) else ""
                    bar.set_postfix_str(f"ε ≤ {round_up(self._spent.after(self.steps_charged), 3)}{norm}")

    # -------------------------------------------------------------------------------------------------------- steps

    def step(self, losses_of: Losses, batch: PrivateBatch, *, return_losses: bool = False) -> torch.Tensor | None:
        """Take one private step: clip, sum, charge, noise, and let the optimizer move.

        Parameters
        ----------
        losses_of : callable
            From the rows of a micro-batch, as ``collate_fn`` made them, to one loss for each row, shape (B,). It calls
            the model; it may be called several times, and never for an empty batch.
        batch : PrivateBatch
            The last one that the run yielded.
        return_losses : bool
            Whether to return the losses. They are private: who sees them sees more than ε covers, and
            :attr:`records` says so.

        Returns
        -------
        Tensor of shape (B,), or None
            The losses where ``return_losses=True``; they carry no graph.

        Raises
        ------
        ParameterError
            If ``losses_of`` is no function, or does not give one loss for each row.
        TrainingStateError
            If the batch is not this run's last one, its step was taken, the model is in evaluation mode or has
            changed, or samples mix. Nothing was charged or released then: the batch may be given again.
        """
        found = [self.accumulate(losses_of, part, return_losses=return_losses) for part in self.micro_batches(batch)]
        self.finish()
        if not return_losses:
            return None
        return torch.cat([losses for losses in found if losses is not None]) if found else torch.zeros(0)

    def micro_batches(self, batch: PrivateBatch) -> Iterator[MicroBatch]:
        """Cut a batch into micro-batches, for loops that call :meth:`accumulate` and :meth:`finish` themselves.

        Parameters
        ----------
        batch : PrivateBatch
            The last one that the run yielded.

        Yields
        ------
        MicroBatch
            Each is to be given to :meth:`accumulate` before the next one is asked for.
        """
        if not isinstance(batch, PrivateBatch):
            raise TrainingStateError(
                f"batch must be one that the private run yields, got {type(batch).__name__}: batches of another loader "
                "carry no identities and are not drawn by Poisson sampling.\nFix: for batch in private: ..."
            )
        if batch is not self._batch:
            already = "its step was taken already" if batch._is_finished else "it is not this run's last one"
            raise TrainingStateError(f"a batch is used once, by the run that drew it: {already}.\nFix: {_ONCE}")
        while batch._left:
            part = batch._next()
            yield part
            if not part._is_added:
                raise TrainingStateError(
                    "a micro-batch was left out.\nFix: private.accumulate(losses_of, part) for each one."
                )

    def accumulate(self, losses_of: Losses, part: MicroBatch, *, return_losses: bool = False) -> torch.Tensor | None:
        """Add the clipped gradients of a micro-batch to the sum.

        Parameters
        ----------
        losses_of, return_losses
            As for :meth:`step`.
        part : MicroBatch
            The last one of :meth:`micro_batches`.

        Returns
        -------
        Tensor of shape (B,), or None
            As :meth:`step` does.

        Raises
        ------
        ParameterError, TrainingStateError
            As :meth:`step` does; the sum is as before, and the micro-batch may be given again.
        """
        if isinstance(losses_of, torch.Tensor) or not callable(losses_of):
            raise ParameterError(
                "losses_of",
                type(losses_of).__name__,
                "a function from rows to one loss for each row, such as "
                "lambda rows: cross_entropy(model(rows[0]), rows[1], reduction='none')",
            )
        if self._batch is None or not isinstance(part, MicroBatch) or part is not self._batch._current:
            raise TrainingStateError(
                "part must be the last micro-batch of private.micro_batches(batch).\n"
                "Fix: for part in private.micro_batches(batch): private.accumulate(losses_of, part)."
            )
        if part._is_added:
            raise TrainingStateError(f"a micro-batch is added once.\nFix: {_ONCE}")
        self._guard.begin()
        secret = self._draws.randomness.derive(f"dropout, {self._attempts}, {part._number}, {self._rank}")
        batch, of_rows = (part.rows, losses_of) if part._weights is None else part._weighted(losses_of)
        self._inner.stands_in = part._stands_in
        try:
            names = {"samples": part._names, "units": part._owners}
            losses = self._inner.accumulate(of_rows, batch=batch, step=self._attempts, secret=secret, **names)
        except RuntimeError as error:
            if not any(words in str(error) for words in ("does not require grad", "a backward pass other than")):
                raise
            raise TrainingStateError(
                "losses_of computes gradients itself, as a gradient penalty does; it may only return losses.\n"
                "Fix: no backward() in it; with units=Units(1, regime='alone') in make_private, autograd.grad is right."
            ) from error
        finally:
            self._guard.watch()
        part._is_added = True
        self._batch._left -= 1
        if not return_losses:
            return None
        self._losses_returned = True
        return losses[:0] if part._stands_in else losses

    def finish(self) -> None:
        """Charge the step, add noise once, divide by the expected batch size, and let the optimizer move.

        Raises
        ------
        TrainingStateError
            If a micro-batch of the batch is left, or there is no batch.
        """
        if self._batch is None:
            raise TrainingStateError(f"there is no batch to finish.\nFix: {_ONCE}")
        if self._batch._left:
            raise TrainingStateError(
                "a micro-batch was left out.\n"
                "Fix: for part in private.micro_batches(batch): private.accumulate(losses_of, part), then finish()."
            )
        self._guard.begin()
        self._inner.complete()  # noise is keyed by the whole sum
        charged = self.steps_charged + 1
        if self._ledger is not None:
            self._ledger.charge(self._loads + 1, self.steps_taken + 1, self._spent.after(charged), charged)
        # No process goes on before the charge is on the disk.
        self.steps_charged = from_first(charged) if self._processes > 1 else charged
        self._batch._is_finished, self._batch = True, None
        if isinstance(self._noise, torch.Generator):
            secret = self._draws.randomness.derive(self._of_this_sum("noise"))
            self._noise.set_state(secret_generator(self._noise.device, secret).get_state())
        clipping_norm = self._next_clipping_norm() if isinstance(self._clipping, AdaptiveClipping) else None
        self._attempts += 1
        self.steps_taken += 1
        with nullcontext() if self._correlated is None else self._correlated.row(self._place):
            self._inner.step()
        if clipping_norm is not None:
            self._inner.optimizer.max_grad_norm = clipping_norm

    def _next_clipping_norm(self) -> float:
        rule, count = self._clipping, self._inner.centred_count
        assert isinstance(rule, AdaptiveClipping)
        count = sum_of_all(count) if self._processes > 1 else count
        noise = rule.noise(self._draws.randomness.generator(self._of_this_sum("count")))
        return from_first(rule.following(self.clipping_norm, count + noise, self._plan.expected_batch_size))

    @property
    def _spent(self) -> SpentEpsilon:
        return spent_epsilon(self.mechanism, self._checked_delta(None), self.steps, self.releases)

    def discard(self) -> None:
        """Forget a batch whose step was not finished, after an error: nothing of it was charged or released."""
        if self._batch is not None:
            self._guard.forget()
            self._inner.abandon()
            self._attempts += 1
            self._batch = None

    def _of_this_sum(self, purpose: str) -> str:
        """Name what is drawn for the present sum, and for no other."""
        # Two sums never get the same noise, or their difference would be released without any: not after two runs went
        # on from one checkpoint with other losses, parameters, rates or numbers of rows. The sums themselves enter the
        # key. Under a secret key the noise of different sums is independent, and the same sum gets the same noise.
        # A secret that no other run has is asked for every step once, in each process that has it.
        is_secret = self._draws.randomness.is_secret
        is_shared = self._is_shared and is_secret
        digest = hashlib.blake2b(b"" if is_shared or not is_secret else str(os.getpid()).encode(), digest_size=16)
        with torch.no_grad():
            for value in self._trained.values() if is_shared else ():
                for each in (value, getattr(value, "summed_grad", None)):
                    if each is None:
                        continue
                    local = each.to_local() if hasattr(each, "to_local") else each
                    facts = (local.sum(dtype=torch.float64), torch.linalg.vector_norm(local, dtype=torch.float64))
                    digest.update(struct.pack("<dd", *map(float, facts)))
        if is_shared:
            digest.update(struct.pack("<dd", self._inner.centred_count, self.clipping_norm))
        where = f"process {self._rank}" if isinstance(self._inner, ShardedStep) else "one process"
        parts = (str(self._place), str(self._attempts), str(self._source.samples), where, digest.hexdigest())
        return ", ".join((purpose, *parts))

    # ------------------------------------------------------------------------------------------------ what it costs

    def epsilon(self, *, delta: float | None = None) -> PrivacyBounds:
        """Bound ε of all steps charged so far.

        Parameters
        ----------
        delta : float, optional
            The δ of the guarantee, in (0, 1); by default the δ of ``make_private``.

        Returns
        -------
        PrivacyBounds
            ``.upper`` is the guarantee; formatted, it is rounded outward.

        Raises
        ------
        ParameterError
            If there is no δ, or it is out of its range.
        """
        δ = self._checked_delta(delta)
        if not self._adds_noise:
            return PrivacyBounds(math.inf, math.inf, math.inf)
        if not self.steps_charged:
            return PrivacyBounds(0.0, 0.0, 0.0)
        return self._composition().epsilon(δ)

    def _composition(self) -> Composition:
        return compose([(self.mechanism, self._counted()), *self.releases])

    def _counted(self) -> int:
        return whole_epochs(self.steps_charged, self.mechanism.steps_per_epoch)

    def _checked_delta(self, delta: float | None) -> float:
        given = self._delta if delta is None else delta
        if given is None:
            raise ParameterError("delta", None, "given here or to make_private")
        return check_real("delta", given, low=0.0, high=1.0, low_open=True, high_open=True)

    def statement(self, *, delta: float | None = None) -> str:
        """Write the paragraph that states this run's privacy in a paper.

        Parameters
        ----------
        delta : float, optional
            As for :meth:`epsilon`.

        Returns
        -------
        str
            One paragraph, for the steps charged so far.

        Raises
        ------
        TrainingStateError
            If no step was charged.
        """
        from dprmt.statements import privacy_card

        if not self.steps_charged or not self._adds_noise:
            raise TrainingStateError("no step was charged: there is nothing to state.\nFix: train first.")
        said = privacy_card(self._composition(), self._checked_delta(delta)).statement()
        said += clipping_sentence(self._clipping) + ("" if self._banded is None else self._banded.describe(self.steps))
        if self._source.samples < len(self._source.dataset):
            said += " One sample is all rows of one owner."
        if self._losses_returned:
            said += " Losses of training samples were returned during the run; the bound does not cover them."
        return said

    @property
    def records(self) -> dict[str, Any]:
        """Records of the run, as a document of strings and numbers."""
        described = self._description()
        return {
            "version": __version__,
            **described,
            "clipping": described["clipping_norm"],
            "steps": self.steps,
            "steps_taken": self.steps_taken,
            "steps_charged": self._counted(),
            "clipping_norm": self.clipping_norm,
            "noise": "independent" if self._banded is None else self._banded.as_dict(),
            "layers": {layer.layer: repr(layer.norms) for layer in self._inner.record.layers},
            "isolation_checks": self._inner.replays,
            "losses_returned": self._losses_returned,
            "loads": self._loads,
            "secure": self._draws.randomness.secure,
        }

    # ------------------------------------------------------------------------------------------------- going on, end

    def state_dict(self, *, secret: bool = True) -> dict[str, Any]:
        """Return what another run needs to go on exactly; for ``torch.save``.

        Parameters
        ----------
        secret : bool
            Whether the secret of sampling, noise and probes is in it, of which another run makes the same batches and
            noise. Without, batches and noise to come are new ones; an epoch of random allocation is finished with its
            own draws, which the state then holds.

        Returns
        -------
        dict
            Trained parameters, optimizer, counts, and secrets: keep it as secret as the training data. With
            ``secure=True`` it holds no secret, and an epoch under way is charged whole and drawn anew.

        Raises
        ------
        TrainingStateError
            In the middle of a step.
        """
        if self._batch is not None and self._batch._current is not None:
            raise TrainingStateError(
                "a step is under way: its sum has no noise yet.\nFix: save before private.step(...) or after it."
            )
        randomness, self._is_shared = self._draws.randomness, self._is_shared or secret
        state: dict[str, Any] = {
            "format": _FORMAT,
            "run": self._name,
            "steps_taken": self.steps_taken,
            "charged": self.steps_charged,
            "attempts": self._attempts,
            "losses_returned": self._losses_returned,
            "loads": self._loads,
            "description": self._description(),
            "clipping_norm": self.clipping_norm,
            "parameters": {name: value.detach().clone() for name, value in self._trained.items()},
            "optimizer": tree_map_only(torch.Tensor, lambda value: value.detach().clone(), self.optimizer.state_dict()),
        }
        if secret and not randomness.secure:
            state["secret"] = torch.tensor(list(randomness.secret), dtype=torch.uint8)
            if self._correlated is not None:
                state["noise"] = self._correlated.state_dict()
        elif (epoch := self._draws.epoch_under_way(self.steps_charged)) is not None:
            state["epoch"] = torch.tensor(list(epoch), dtype=torch.uint8)
        if self.telemetry is not None:
            state["telemetry"] = self.telemetry.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`, with the same batches, noise and recorded steps.

        If this object or its ``ledger`` has recorded steps after the state was saved, they stay recorded, and the
        remaining steps get new batches and noise.

        Parameters
        ----------
        state : mapping
            State of a run with the same model, data set size and mechanism.

        Raises
        ------
        ParameterError
            If the state does not match.
        TrainingStateError
            If this object has recorded steps of another run.
        """
        if not isinstance(state, Mapping) or state.get("format") != _FORMAT:
            raise ParameterError("state", type(state).__name__, "what private.state_dict() gave")
        if other := differences(state["description"], self._description()):
            raise ParameterError("state", f"one of run {state['run']}", f"of a run like this one ({other})")
        if self.steps_taken and self._name != state["run"]:
            raise TrainingStateError(
                "this run has already taken steps.\nFix: load the state into a run that make_private has just made."
            )
        self.discard()
        self._iteration += 1
        used = self._attempts > 0
        with torch.no_grad():
            for name, value in self._trained.items():
                value.copy_(state["parameters"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self._inner.optimizer.max_grad_norm = float(state["clipping_norm"])
        self._name, self.steps_taken = state["run"], int(state["steps_taken"])
        self._attempts = max(self._attempts, int(state["attempts"]))
        self._losses_returned = self._losses_returned or bool(state["losses_returned"])
        self._loads = max(self._loads, int(state["loads"]) + 1)
        charged = int(state["charged"])
        randomness = self._draws.randomness
        keeps = not randomness.secure and (self.steps_charged <= charged or not randomness.is_secret)
        self._epoch_is_lost = not keeps or not {"secret", "epoch"} & state.keys()
        if keeps and "secret" in state:
            self._draw_from(replace(randomness, secret=bytes(state["secret"].tolist())))
        elif used:  # batches and noise of the steps that are charged already do not come again
            self._draw_from(from_first(replace(randomness, secret=secrets.token_bytes(32))))
        if self._correlated is not None:
            self._correlated.load_state_dict(state.get("noise", {}), self._inner.optimizer.params)
        if keeps and "epoch" in state:
            self._draws.go_on(charged, bytes(state["epoch"].tolist()))
        self.steps_charged = max(self.steps_charged, charged)
        if self.telemetry is not None and "telemetry" in state:
            self.telemetry.load_state_dict(state["telemetry"])

    def _description(self) -> dict[str, Any]:
        return {
            "mechanism": describe_mechanism(self.mechanism),
            "optimizer": type(self.optimizer).__name__,
            "clipping_norm": self._clipping.as_dict() if isinstance(self._clipping, Value) else self._clipping,
            "batch_size": self._plan.expected_batch_size,
            "samples": self._source.samples,
            "parameters": {name: list(value.shape) for name, value in self._trained.items()},
        }

    def close(self) -> torch.nn.Module:
        """Take all hooks off the model and the optimizer.

        Returns
        -------
        Module
            The model, with its trained weights.
        """
        self.discard()
        self._iteration += 1
        for attached in (self.denoising, self.telemetry):
            if attached is not None:
                attached.detach()
        _MODELS.discard(self.model)
        self._inner.close()
        self._guard.is_open = False
        return self.model


class Epoch:
    """Batches of one epoch at a time; from :meth:`PrivateRun.epoch`."""

    def __init__(self, run: PrivateRun) -> None:
        self._run, self.dataset = run, run._source.dataset

    def __len__(self) -> int:
        return self._run.steps_per_epoch

    def __iter__(self) -> Iterator[PrivateBatch]:
        """Yield the batches of the next epoch, or what is left of the run."""
        run = self._run
        end = (run.steps_taken // len(self) + 1) * len(self)
        return run._batches(min(run.steps, end))


_ONCE = "for batch in private: private.step(losses_of, batch), once for every batch"


class Guard:
    """Checks that the model is the planned one, in training mode, and that nothing else touches its gradients.

    Between two calls of a private step one parameter, the smallest, holds a gradient of ones. ``zero_grad``, clipping,
    unscaling and a backward pass all replace it or write into it.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        trained = [value for value in model.parameters() if value.requires_grad]
        # Of a shard, ``fully_shard`` leaves the whole in the model after an evaluation.
        self._model, self._is_spread = model, any(hasattr(value, "device_mesh") for value in trained)
        self._planned = self._facts()
        self._watched = min(trained, key=lambda value: value.numel())
        self._ones: Any = None
        self._version = 0
        self.is_open = True

    def begin(self) -> None:
        """Take the ones away, and raise unless they are as they were and the next batch may use this model."""
        if not self.is_open:
            raise TrainingStateError("this private run was closed.\nFix: dprmt.make_private(...) makes another one.")
        if not self._model.training:
            raise TrainingStateError(
                "the model is in evaluation mode: dropout and other layers do not train.\n"
                "Fix: model.train() after every evaluation."
            )
        now = self._facts()
        if now != self._planned:
            name = min(name for name, _ in now.items() ^ self._planned.items())
            raise TrainingStateError(
                f"the model has changed since make_private: parameter {name!r}.\n"
                "Fix: add, replace, freeze and move parameters first, then call make_private; put no hook on one."
            )
        ones, self._ones = self._ones, None
        if ones is None:
            return
        found, self._watched.grad = self._watched.grad, None
        if found is not ones or ones._version != self._version or not bool((ones == 1).all()):
            raise TrainingStateError(
                "gradients were changed in the middle of a private step: by zero_grad(), clip_grad_norm_(), a "
                "GradScaler or loss.backward().\nFix: private.step(losses_of, batch), or "
                "private.accumulate(losses_of, part) and private.finish(), and nothing else."
            )

    def watch(self) -> None:
        """Leave gradients of ones, until the private step goes on."""
        with torch.no_grad():
            self._ones = self._watched.grad = torch.ones_like(self._watched)
        self._version = self._ones._version

    def forget(self) -> None:
        """Take them away unseen."""
        if self._ones is not None:
            self._ones = self._watched.grad = None

    def _facts(self) -> dict[str, tuple[Any, ...]]:
        found: dict[str, tuple[Any, ...]] = {}
        for name, value in self._model.named_parameters():
            if value.requires_grad:
                same = 0 if self._is_spread else id(value)
                found[name] = same, value.shape, value.dtype, value.device, bool(value._backward_hooks)
        return found
