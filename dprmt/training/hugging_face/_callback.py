"""A Trainer's steps made private, charged and counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import transformers

from dprmt._validation import ParameterError, TrainingStateError, check_real
from dprmt.accounting import DPSGD, Poisson, calibrate
from dprmt.training.clipping import PrivateStep, Units, plan_private
from dprmt.training.data import per_sample_losses
from dprmt.training.hugging_face._optimizer import PrivateOptimizer
from dprmt.training.hugging_face._refusals import check_trainer
from dprmt.training.hugging_face._sampling import PoissonBatches, positions_loader
from dprmt.training.norms import NormEstimator, SampleId
from dprmt.training.private_run._owners import Owners, read_owners
from dprmt.training.randomness import SecureRandom
from dprmt.training.telemetry import Telemetry

SampleLosses = Callable[[torch.nn.Module, Mapping[str, torch.Tensor]], torch.Tensor]
_ONCE = "a run goes from its beginning to its end, once"
_PRIVATE_LOGS = ("loss", "train_loss", "grad_norm")


class PrivateTraining(transformers.TrainerCallback):  # type: ignore[misc]
    """A callback that makes the steps of a `transformers.Trainer` private.

    A callback alone sees steps and changes none, and a Trainer's are not private: its sampler shuffles, its loss is
    a mean, it clips the sum. So `attach` replaces what the Trainer draws, how it runs a batch, what it steps and what
    it logs; as a callback it then checks at the first step that these are in place, and after every step that one was
    charged. One that was not attached refuses to train.

    Parameters
    ----------
    norms : str, Norms or NormEstimator
        As for `dprmt.training.clipping.make_private`.
    clipping_norm : float
        C > 0, of every sample's gradient. ``args.max_grad_norm`` has to be 0.
    expected_batch_size : float
        L in (0, n]: samples of a logical batch on average. ``args.per_device_train_batch_size`` is the micro-batch.
    delta : float
        In (0, 1).
    noise_multiplier : float, optional
        σ > 0; or ``target_epsilon``, exactly one of both.
    target_epsilon : float, optional
        > 0: the smallest σ for which the planned steps cost no more.
    losses : callable, optional
        From the model and a collated batch to the loss of each sample, shape (B,). By default that of
        `dprmt.training.data.per_sample_losses`: cross-entropy of labels or of each text's own tokens.
    secure : bool
        Noise and coins from a cipher.
    owners : str or sequence of int or str, optional
        Whose every training item is, or the column that says so: then all items of one owner are one sample, drawn by
        one coin, their gradients added and clipped together. ``expected_batch_size`` counts owners then.
    units : Units, optional
        With owners: how many items one may have, who has more is refused; how they are clipped.
    telemetry : bool
        Whether the run says of itself what it can from released values: the attribute below, and numbers in the logs.
    show_losses : bool
        Whether the Trainer logs the mean loss. It is private: who sees the logs sees it. Otherwise logs have ε alone,
        and ``TrainOutput.training_loss`` is 0.

    Attributes
    ----------
    noise_multiplier : float or None
        σ; None before it was found.
    charged : int
        Steps charged so far.
    reading : dict
        The last full reading of `dprmt.training.telemetry.Telemetry`, by its keys; empty before the first one.

    Raises
    ------
    ParameterError
        If an argument is out of its range.

    Formal guarantees
    -----------------
    The parameters that training releases, all of them after all steps together, are (ε, δ)-DP with ε = `epsilon`, for
    zeroing out one item of the training set (its size is public), or with ``owners`` all items of one: each step is a
    `PrivateStep.step` of a batch that
    `PoissonBatches` drew, charged before it is taken, and nothing else moves the model. Not covered: items that share
    content, what a collator does between samples, ``show_losses``, evaluation on private items and choosing by it
    (``load_best_model_at_end``, early stopping), other callbacks that write the parameters, and what `make_private` and
    `PoissonBatches` leave out.

    Examples
    --------
    >>> privacy = PrivateTraining(
    ...     norms="ghost", clipping_norm=1.0, expected_batch_size=8, delta=1e-5, noise_multiplier=1.0
    ... )
    >>> privacy
    <PrivateTraining: no step charged>
    >>> privacy.epsilon()
    0.0
    """

    def __init__(
        self,
        *,
        norms: str | NormEstimator | Any,
        clipping_norm: float,
        expected_batch_size: float,
        delta: float,
        noise_multiplier: float | None = None,
        target_epsilon: float | None = None,
        losses: SampleLosses = per_sample_losses,
        owners: str | Sequence[int | str] | torch.Tensor | None = None,
        units: Units | None = None,
        secure: bool = False,
        telemetry: bool = True,
        show_losses: bool = False,
    ) -> None:
        if (noise_multiplier is None) == (target_epsilon is None):
            both = (noise_multiplier, target_epsilon)
            raise ParameterError("noise_multiplier, target_epsilon", both, "given, exactly one of them")
        if noise_multiplier is not None:
            noise_multiplier = check_real("noise_multiplier", noise_multiplier, low=0.0, low_open=True)
        if target_epsilon is not None:
            check_real("target_epsilon", target_epsilon, low=0.0, low_open=True)
        self.noise_multiplier, self._target = noise_multiplier, target_epsilon
        if owners is None and units is not None:
            raise ParameterError("owners", None, "given with units: whose the items are")
        self._whose, self._units = owners, (units or Units()) if owners is not None else None
        self._owners: Owners | None = None
        self._delta = check_real("delta", delta, low=0.0, high=1.0, low_open=True, high_open=True)
        self._norms, self._clipping_norm, self._expected = norms, clipping_norm, expected_batch_size
        self._losses, self._secure, self._show_losses = losses, secure, show_losses
        self.charged, self.reading = 0, {}  # type: int, dict[str, Any]
        self._wants_telemetry, self._telemetry = telemetry, None  # type: bool, Telemetry | None
        self._trainer: Any = None
        self._private: PrivateStep | None = None
        self._optimizer: PrivateOptimizer | None = None
        self._mechanism: DPSGD | None = None

    def __repr__(self) -> str:
        if self._mechanism is None or not self.charged:
            return f"<{type(self).__name__}: no step charged>"
        bounds = self._mechanism.epsilon(steps=self.charged, delta=self._delta)
        spent = f"epsilon <= {bounds:.4f} at delta = {self._delta:g} ({self._mechanism.neighbours.kind})"
        return f"<{type(self).__name__}: {spent} after {self.charged} steps, {self._mechanism.norms!r}>"

    def attach(self, trainer: transformers.Trainer) -> None:
        """Make a Trainer's steps private, and this one of its callbacks.

        Parameters
        ----------
        trainer : transformers.Trainer
            With a model, a training set with a length, and arguments that leave clipping, accumulation and mixed
            precision alone. Trained once.

        Raises
        ------
        ParameterError
            If the Trainer has a loop or a loss of its own, or an argument under which its steps would not be these.
        TrainingStateError
            If this or the Trainer was attached already.
        """
        if self._trainer is not None:
            raise TrainingStateError("this callback has a Trainer already: a run has its own")
        check_trainer(trainer)
        if any(
            isinstance(other, PrivateTraining) and other is not self for other in trainer.callback_handler.callbacks
        ):
            raise TrainingStateError("the Trainer has another PrivateTraining already")
        size = len(trainer.train_dataset)
        if self._units is not None:
            self._owners = read_owners(trainer.train_dataset, self._whose, self._units.rows_per_unit)
            size = len(self._owners.names)
        self._batches = PoissonBatches(size, self._expected, secure=self._secure)
        self._trainer, self._create, self._log = trainer, trainer.create_optimizer, trainer.log
        trainer.get_train_dataloader = lambda: positions_loader(self._batches)
        trainer.create_optimizer = self._create_optimizer
        trainer.training_step = self._training_step
        trainer.floating_point_ops = lambda inputs: 0  # of positions there are none
        trainer.log = self._log_released
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)

    @property
    def mechanism(self) -> DPSGD:
        """One step, as the accountant is told of it.

        Raises
        ------
        TrainingStateError
            Before training has begun.
        """
        if self._mechanism is None:
            raise TrainingStateError("there is no mechanism before training has begun")
        return self._mechanism

    def epsilon(self) -> float:
        """An upper bound of ε of all steps charged so far, at δ.

        Returns
        -------
        float
            0 before the first step.
        """
        return self.mechanism.epsilon(steps=self.charged, delta=self._delta).upper if self.charged else 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Refuse a Trainer whose batches or steps are not those of `attach`, or that has taken steps before."""
        if self._trainer is None:
            raise TrainingStateError("PrivateTraining is not attached: a Trainer shuffles, attach(trainer) draws")
        optimizer = kwargs.get("optimizer")
        optimizer = getattr(optimizer, "optimizer", optimizer)  # inside accelerate's
        loader = kwargs.get("train_dataloader")
        if getattr(loader, "batch_sampler", None) is not self._batches:
            raise ParameterError(
                "train_dataloader", type(loader).__name__, "the one whose batches attach(trainer) draws"
            )
        if optimizer is None or optimizer is not self._optimizer:
            raise ParameterError("optimizer", type(optimizer).__name__, "the one that attach(trainer) made private")
        if state.global_step or self.charged:
            taken = max(state.global_step, self.charged)
            raise TrainingStateError(f"{taken} steps were taken already: {_ONCE}")
        if state.max_steps > self._planned():
            raise ParameterError("max_steps", state.max_steps, f"at most {self._planned()}, for which σ was found")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Refuse to go on if a step was taken that was not charged."""
        if state.global_step != self.charged:
            what = f"{state.global_step} steps were taken, {self.charged} charged"
            raise TrainingStateError(f"{what}: something else steps this Trainer's optimizer")
        if self._telemetry is not None and "signal" in self._telemetry.last:
            self.reading = dict(self._telemetry.last)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the model without hooks."""
        self._close()

    def _planned(self) -> int:
        args = self._trainer.args
        return int(args.max_steps) if args.max_steps > 0 else math.ceil(args.num_train_epochs * len(self._batches))

    def _create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        trainer = self._trainer
        if self._optimizer is not None:
            raise TrainingStateError(f"training has begun before: {_ONCE}")
        trainer.model.train()
        inside = self._create()
        plan = plan_private(
            trainer.model,
            norms=self._norms,
            clipping_norm=self._clipping_norm,
            expected_batch_size=self._expected,
            units=self._units,
        )
        if self._owners is not None:
            self._owners = replace(self._owners, alone=plan.regime == "alone")
        if self.noise_multiplier is None:
            assert self._target is not None  # there is exactly one of both
            run = plan.record.mechanism(1.0, Poisson(self._batches.rate))
            found = calibrate(run, steps=self._planned(), target_epsilon=self._target, delta=self._delta)
            self.noise_multiplier = found.noise_multiplier
        self._mechanism = plan.record.mechanism(self.noise_multiplier, Poisson(self._batches.rate))
        noise = SecureRandom() if self._secure else None
        private = plan.privatize(inside, noise_multiplier=self.noise_multiplier, noise_generator=noise)
        self._private = private
        self._optimizer = trainer.optimizer = PrivateOptimizer(private, self._charge)
        if self._wants_telemetry:
            self._telemetry = self._listen(private)
        self._items = _columns(trainer)
        return self._optimizer

    def _listen(self, private: PrivateStep) -> Telemetry:
        steps = self._planned()
        trained = {name: p for name, p in self._trainer.model.named_parameters() if p.requires_grad}
        return Telemetry.attach(private.optimizer, trained, every=max(1, steps // 50), horizon=steps)

    def _charge(self) -> None:
        self.charged += 1

    def _training_step(
        self, model: Any, inputs: Mapping[str, list[int]], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        trainer, private = self._trainer, self._private
        if private is None:
            raise TrainingStateError(f"an error stopped training before: {_ONCE}")
        model.train()
        positions, size = inputs["positions"], trainer.args.per_device_train_batch_size
        total = torch.zeros((), device=trainer.args.device)
        try:
            for part, whose in self._parts(positions, size):
                batch = dict(trainer._prepare_inputs(trainer.data_collator([self._items[i] for i in part])))
                found = private.accumulate(self._of_samples, samples=part, units=whose, step=self.charged, batch=batch)
                total += found.sum()
        except BaseException:
            self._close()  # a sum that nobody charges is not left on the parameters
            raise
        return total / max(1, len(positions)) if self._show_losses else torch.zeros_like(total)

    def _parts(self, drawn: Sequence[int], size: int) -> Iterator[tuple[Sequence[int], Sequence[SampleId] | None]]:
        if self._owners is not None:
            yield from self._owners.parts(drawn, size)
            return
        for start in range(0, len(drawn), size):
            yield drawn[start : start + size], None

    def _of_samples(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        assert self._private is not None
        return self._losses(self._private.model, batch)

    def _log_released(self, logs: dict[str, Any], *args: Any) -> None:
        if not self._show_losses:
            logs = {name: value for name, value in logs.items() if name not in _PRIVATE_LOGS}
        charged = {"epsilon": self.epsilon(), "delta": self._delta} if self.charged else {}
        self._log({**logs, **charged, **_numbers(self.reading)}, *args)

    def _close(self) -> None:
        if self._telemetry is not None:
            self._telemetry.detach()
        if self._private is not None:
            self._private.close()  # type: ignore[attr-defined]  # both of `plan_private` have it
            self._private = None


def _numbers(reading: Mapping[str, Any]) -> dict[str, float]:
    """Of a reading what a logger takes: no layers, no sentence, nothing infinite."""
    found = {"signal": reading.get("signal", {}).get("*"), "rate_factor": reading.get("advice", {}).get("factor")}
    found["change"] = reading.get("change")
    ends = {f"telemetry_{name}_{end}": value for name, e in found.items() if e is not None for end, value in e.items()}
    ends |= {f"telemetry_{name}": reading[name] for name in ("z_window", "z_displacement") if name in reading}
    return {name: float(value) for name, value in ends.items() if math.isfinite(value)}


def _columns(trainer: Any) -> Any:
    """The training set without columns that the model does not take, as the Trainer's own loader has it."""
    data = trainer.train_dataset
    remove = getattr(data, "remove_columns", None)
    return data if remove is None else trainer._remove_unused_columns(data, description="Training")
