"""A Trainer over a `PrivateRun`: the run draws, clips, charges and noises; the Trainer schedules, logs and saves."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import datasets
import torch
import transformers
from torch.utils.data import DataLoader
from transformers.trainer_callback import EarlyStoppingCallback

from dprmt._files import open_in_place
from dprmt._validation import ParameterError, TrainingStateError, check_count
from dprmt.training.clipping import Units
from dprmt.training.data import check_own_loss, head_of, per_sample_losses
from dprmt.training.models import whole_modules
from dprmt.training.private_run import PrivateBatch, PrivateRun, make_private

SampleLosses = Callable[[torch.nn.Module, Mapping[str, torch.Tensor]], torch.Tensor]
_STATE = "private_run.pt"


@dataclass
class PrivacyArguments:
    """Options of a private run, next to ``TrainingArguments``; `transformers.HfArgumentParser` reads them.

    Parameters
    ----------
    norms : str
        How per-sample norms are computed: ``"exact"``, ``"ghost"``, ``"hutchinson"``, ``"hutch++"`` or ``"auto"``; in
        Python also a value such as ``Hutchinson(32, secret=True)``.
    clipping_norm : float
        C > 0, the largest norm of a sample's gradient in the sum. It replaces ``max_grad_norm``.
    delta : float
        The δ of the guarantee, in (0, 1), typically below one over the number of samples.
    target_epsilon, noise_multiplier : float, optional
        Exactly one of them: the ε > 0 that the planned steps may cost, or σ > 0.
    batch_size : float, optional
        Expected size of a logical batch, > 0. By default ``per_device_train_batch_size`` times
        ``gradient_accumulation_steps``. A micro-batch has ``per_device_train_batch_size`` rows.
    sampling : {"poisson", "allocation"}
        As for `dprmt.make_private`.
    owners : str, optional
        Column with the owner of each row. Then all rows of one owner are one sample, and ``batch_size`` counts owners.
    rows_per_owner : int, optional
        Largest number of rows of one owner, >= 1.
    max_tokens : int, optional
        The largest number of tokens in a row, known without looking at the data.
    one_by_one : bool
        Whether every row runs alone. Use it for a custom ``compute_loss``, or a loss that has no definition per
        sample. Norms are then exact, and a step takes as many forward passes as rows.
    secure : bool
        Whether a cipher draws sampling and noise.
    telemetry : bool
        Whether to log signal and progress, estimated from released gradients.
    public_evaluation : bool
        States that ``eval_dataset`` needs no protection. Early stopping, the best checkpoint and schedules that follow
        a score raise an error without it.
    show_losses : bool
        Whether to log the training loss, which ε does not cover.

    Examples
    --------
    >>> from transformers import HfArgumentParser
    >>> words = "--norms ghost --clipping_norm 1 --delta 1e-5 --target_epsilon 3".split()
    >>> (privacy,) = HfArgumentParser(PrivacyArguments).parse_args_into_dataclasses(words)
    >>> privacy.clipping_norm, privacy.batch_size
    (1.0, None)
    """

    norms: str = field(metadata={"help": "exact, ghost, hutchinson, hutch++ or auto"})
    clipping_norm: float = field(metadata={"help": "largest norm of a sample's gradient in the sum"})
    delta: float = field(metadata={"help": "delta in (0, 1)"})
    target_epsilon: float | None = field(default=None, metadata={"help": "or noise_multiplier"})
    noise_multiplier: float | None = field(default=None, metadata={"help": "or target_epsilon"})
    batch_size: float | None = field(default=None, metadata={"help": "expected size of a logical batch"})
    sampling: str = field(default="poisson", metadata={"help": "poisson or allocation"})
    owners: str | None = field(default=None, metadata={"help": "column with the owner of each row"})
    rows_per_owner: int | None = field(default=None, metadata={"help": "most rows that one owner may have"})
    max_tokens: int | None = field(default=None, metadata={"help": "largest number of tokens in a row, if public"})
    one_by_one: bool = field(default=False, metadata={"help": "run every row alone"})
    secure: bool = field(default=False, metadata={"help": "sampling and noise from a cipher"})
    telemetry: bool = field(default=False, metadata={"help": "log what released gradients show"})
    public_evaluation: bool = field(default=False, metadata={"help": "eval_dataset needs no protection"})
    show_losses: bool = field(default=False, metadata={"help": "log the training loss, which epsilon does not cover"})


class PrivateTrainer(transformers.Trainer):  # type: ignore[misc]
    """A `transformers.Trainer` whose steps are private.

    Batches come from Poisson sampling or random allocation, every sample's gradient is clipped, and a step is counted
    before its noisy gradient is used. The Trainer still handles optimizer, schedule, logs, evaluation and checkpoints.

    Parameters
    ----------
    privacy : PrivacyArguments
        The options of the private run.
    losses : callable, optional
        A function from the model and a collated batch to one loss per sample, shape (B,). By default
        `dprmt.training.data.per_sample_losses`, the model's own loss sample by sample, with
        ``label_smoothing_factor``.
    model, args, *others, **options
        As for `transformers.Trainer`.

    Attributes
    ----------
    private : PrivateRun
        The run, with ``.epsilon()``, ``.statement()`` and ``.mechanism``; it raises an error before :meth:`train`.

    Raises
    ------
    ParameterError
        If an argument conflicts with private steps, or the model's head has no loss per sample.
    TrainingStateError
        By :meth:`train`, if it is called twice, or if something else moves the optimizer.

    Privacy
    -------
    Holds if: the training set's rows (or its owners) are the samples, and you keep ``private_run.pt`` in checkpoints
    secret. This file has the secret of sampling and noise, unless ``secure=True``. Covers: the trained parameters
    after every step, and logs without ``show_losses``. Does not cover: rows that share content, evaluation on private
    data, callbacks that write parameters, and the exclusions of `PrivateRun`.

    See Also
    --------
    dprmt.make_private : for a custom loop.

    Examples
    --------
    ```python
    trainer = PrivateTrainer(privacy=PrivacyArguments(...), model=model, args=args, train_dataset=data)
    trainer.train()
    print(trainer.private.epsilon())
    ```
    """

    def __init__(
        self,
        model: Any = None,
        args: transformers.TrainingArguments | None = None,
        *others: Any,
        privacy: PrivacyArguments,
        losses: SampleLosses | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(privacy, PrivacyArguments):
            raise ParameterError("privacy", type(privacy).__name__, "PrivacyArguments")
        self.privacy, self.losses, self._run = privacy, losses, None  # type: PrivacyArguments, Any, PrivateRun | None
        if not isinstance(args, transformers.TrainingArguments):
            raise ParameterError("args", type(args).__name__, "TrainingArguments")
        self._rows = args.per_device_train_batch_size * args.gradient_accumulation_steps
        args = copy.copy(args)  # the Trainer sees a logical batch as one batch: clipping and accumulation happen here
        args.gradient_accumulation_steps, args.max_grad_norm, args.ignore_data_skip = 1, 0.0, True
        super().__init__(model, args, *others, **options)
        self._check()

    @property
    def private(self) -> PrivateRun:
        """The private run, which :meth:`train` makes."""
        if self._run is None:
            raise TrainingStateError("there is no private run before train().\nFix: trainer.train() first.")
        return self._run

    def _check(self) -> None:
        """Raise an error by name if an argument would bypass or change private steps."""
        own = [name for name in _OVERRIDDEN if getattr(type(self), name) is not getattr(PrivateTrainer, name)]
        if own:
            what = f"{type(self).__name__}, with its own {', '.join(own)}"
            fix = "optimizers=(optimizer, scheduler) for an optimizer, losses= for weights of rows, else callbacks"
            raise ParameterError("trainer", what, "one that leaves these to PrivateTrainer", fix)
        for name, (fine, allowed) in _ARGUMENTS.items():
            value = getattr(self.args, name, fine[0])
            if value not in fine:
                raise ParameterError(f"args.{name}", getattr(value, "value", value), allowed)
        for what in ("is_deepspeed_enabled", "is_fsdp_enabled"):
            if getattr(self, what, False):
                raise ParameterError(f"trainer.{what}", True, f"False: {_OWN_LOOP}")
        if self.args.push_to_hub and not self.privacy.secure and "checkpoint" in self.args.hub_strategy.value:
            allowed = "'every_save' or 'end': a pushed checkpoint would hold the secret of the noise; or secure=True"
            raise ParameterError("args.hub_strategy", self.args.hub_strategy.value, allowed)
        data = self.train_dataset
        if not hasattr(data, "__len__") or not hasattr(data, "__getitem__") or not len(data):
            allowed = "a data set of at least one row, with a length and numbered rows, to sample from"
            raise ParameterError("train_dataset", type(data).__name__, allowed)
        self._check_evaluation()
        self._check_losses()

    def _check_evaluation(self) -> None:
        args, schedule = self.args, getattr(self.args.lr_scheduler_type, "value", self.args.lr_scheduler_type)
        follows = {
            "load_best_model_at_end": args.load_best_model_at_end,
            "save_strategy='best'": args.save_strategy == "best",
            f"lr_scheduler_type={schedule!r}": schedule in ("reduce_lr_on_plateau", "greedy"),
        }
        stopping = [one for one in self.callback_handler.callbacks if isinstance(one, EarlyStoppingCallback)]
        followed = [name for name, does in follows.items() if does] + [type(one).__name__ for one in stopping]
        if followed and not self.privacy.public_evaluation:
            allowed = (
                "True with " + ", ".join(followed) + ": what follows a score depends on the rows it is computed from.\n"
                "Fix: public_evaluation=True if eval_dataset needs no protection, or train a fixed number of steps."
            )
            raise ParameterError("privacy.public_evaluation", False, allowed)

    def _check_losses(self) -> None:
        own = type(self).compute_loss is not transformers.Trainer.compute_loss
        if self.losses is not None:
            if self.privacy.one_by_one:
                raise ParameterError("privacy.one_by_one", True, "False with losses=, which runs rows together")
        elif not self.privacy.one_by_one:
            if own or self.compute_loss_func is not None:
                name = f"{type(self).__name__}.compute_loss" if own else "compute_loss_func"
                allowed = (
                    f"given with {name}, which has one loss for the batch.\n"
                    "Fix: losses=, a function of the model and a batch that returns one loss for each sample; "
                    "or PrivacyArguments(one_by_one=True), which runs every row alone."
                )
                raise ParameterError("losses", None, allowed)
            head_of(self.model)  # known, or refused by name

    # ------------------------------------------------------------------------------------ what the Trainer's loop calls

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as `transformers.Trainer.train` does, privately, once.

        Returns
        -------
        TrainOutput
            ``training_loss`` is NaN without ``show_losses``.

        Raises
        ------
        TrainingStateError
            If the trainer has trained before. To go on, make a new one with ``resume_from_checkpoint``.
        """
        before = self._run
        if before is not None:
            raise TrainingStateError(
                "this trainer has trained before: a run goes from its beginning to its end, once.\n"
                "Fix: a new PrivateTrainer, with resume_from_checkpoint to go on."
            )
        try:
            result = super().train(*args, **kwargs)
        finally:
            if self._run is not None:
                self._run.close()
        metrics = self._known(result.metrics)
        return result._replace(training_loss=metrics.get("train_loss", math.nan), metrics=metrics)

    def _known(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Leave out what the Trainer's loop takes to be 0, and losses that are not to be shown."""
        hidden = {"grad_norm", "total_flos"} | (set() if self.privacy.show_losses else {"loss", "train_loss"})
        return {name: value for name, value in numbers.items() if name not in hidden}

    def get_train_dataloader(self) -> Any:
        """Return the batches that the private run draws."""
        self.create_optimizer()  # and the private run
        return self.private.epoch()

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Create the optimizer, make the run private, and return what the Trainer's loop steps.

        Returns
        -------
        Optimizer
            Optimizer with the groups and state of the Trainer's optimizer; its ``step()`` does nothing.
        """
        if self._run is None:
            self.model.train()
            if self.losses is None and not self.privacy.one_by_one and not self.args.label_smoothing_factor:
                loader = self._loader()  # the first row's loss must be what the model itself returns for it
                check_own_loss(self.model, self._prepare_inputs(loader.collate_fn([loader.dataset[0]])))
            inside = super().create_optimizer(model)
            self._run = self._private_run(inside)
            self.optimizer = _Moved(inside)
        return self.optimizer

    def _private_run(self, optimizer: torch.optim.Optimizer) -> PrivateRun:
        privacy, args = self.privacy, self.args
        if privacy.owners is None and privacy.rows_per_owner is not None:
            allowed = "left out without owners: each row is then protected by itself"
            raise ParameterError("rows_per_owner", privacy.rows_per_owner, allowed, "pass owners='<column>' too")
        owners = None if privacy.owners is None else self._column(privacy.owners)
        units = None if owners is None else Units(privacy.rows_per_owner)
        if privacy.one_by_one:
            units = Units(1 if owners is None else privacy.rows_per_owner, regime="alone")
        return make_private(
            self.model,
            optimizer,
            self._loader(),
            norms=privacy.norms,
            clipping_norm=privacy.clipping_norm,
            batch_size=self._rows if privacy.batch_size is None else privacy.batch_size,
            steps=args.max_steps if args.max_steps > 0 else None,
            epochs=None if args.max_steps > 0 else args.num_train_epochs,
            target_epsilon=privacy.target_epsilon,
            delta=privacy.delta,
            noise_multiplier=privacy.noise_multiplier,
            micro_batch_size=1 if privacy.one_by_one else check_count("micro-batch", args.per_device_train_batch_size),
            sampling=privacy.sampling,
            owners=owners,
            units=units,
            tokens=privacy.max_tokens,
            whole=() if privacy.one_by_one else whole_modules(self.model),
            telemetry=privacy.telemetry,
            secure=privacy.secure,
        )

    def _column(self, name: str) -> Any:
        columns = list(getattr(self.train_dataset, "column_names", None) or [])
        if not isinstance(name, str) or name not in columns:
            known = ", ".join(columns) or "(there are none)"
            given = name if isinstance(name, str) else type(name).__name__
            raise ParameterError("privacy.owners", given, f"one of the training set's columns {known}")
        return list(self.train_dataset[name])

    def _loader(self) -> DataLoader[Any]:
        """Make the Trainer's loader of the training set without columns that the model does not use."""
        args, data, collate = self.args, self.train_dataset, self.data_collator
        if isinstance(data, datasets.Dataset):
            data = self._remove_unused_columns(data, description="training")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="training")
        workers = {"num_workers": args.dataloader_num_workers, "persistent_workers": args.dataloader_persistent_workers}
        if args.dataloader_num_workers:
            workers["prefetch_factor"] = args.dataloader_prefetch_factor
        pin = args.dataloader_pin_memory and args.device.type == "cuda"
        return DataLoader(data, batch_size=1, collate_fn=collate, pin_memory=pin, **workers)

    def _losses_of(self, rows: Any) -> torch.Tensor:
        rows = self._prepare_inputs(rows)
        with self.accelerator.autocast(), self.compute_loss_context_manager():
            if self.losses is not None:
                return self.losses(self.model, rows)
            if self.privacy.one_by_one:
                return self._loss_alone(rows)
            return per_sample_losses(self.model, rows, label_smoothing=self.args.label_smoothing_factor)

    def _loss_alone(self, row: Any) -> torch.Tensor:
        try:
            return self.compute_loss(self.model, row).reshape(1)
        except TypeError as error:
            if "NoneType" not in str(error):
                raise
            raise TrainingStateError(
                f"compute_loss fails for a row alone, of which num_items_in_batch is None: {error}.\n"
                "Fix: divide by what the row itself has, such as (labels != -100).sum()."
            ) from error

    def training_step(self, model: Any, inputs: PrivateBatch, num_items_in_batch: Any = None) -> torch.Tensor:
        """Take one private step: clip, add, charge, noise, and let the optimizer move.

        Returns
        -------
        Tensor
            0, or with ``show_losses`` the mean loss.

        Raises
        ------
        TrainingStateError
            If the Trainer's steps and the private run's steps differ.
        """
        taken = self.private.steps_taken
        if taken != self.state.global_step:
            raise TrainingStateError(
                f"the Trainer has taken {self.state.global_step} steps, the private run {taken}: something else moves "
                "the optimizer or counts its steps.\nFix: remove the callback that does."
            )
        self.model.train()
        found = self.private.step(self._losses_of, inputs, return_losses=self.privacy.show_losses)
        if found is None or not len(found):
            return torch.zeros((), device=self.args.device)
        return found.mean()

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> tuple[list[Any], None]:
        """Return the next logical batch; its number of tokens is not counted."""
        batch = next(epoch_iterator, None)
        return ([] if batch is None else [batch]), None

    def set_initial_training_values(self, args: Any, dataloader: Any) -> tuple[Any, ...]:
        """Return the numbers of steps and epochs that the private run has."""
        values = list(super().set_initial_training_values(args, dataloader))
        values[0], values[-1] = math.ceil(self.private.steps / len(dataloader)), self.private.steps
        return tuple(values)

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: how many tokens were in a batch is private."""
        return 0

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log ε instead of what is private."""
        logs = self._known(logs)
        if self._run is not None and self._run.steps_charged:
            spent = self._run.epsilon().upper
            rounded = math.ceil(spent * 1e4) / 1e4 if math.isfinite(spent) else spent
            logs |= {"epsilon": rounded, "delta": self.privacy.delta}
            if self._run.telemetry is not None:
                logs |= _numbers(self._run.telemetry.last)
        if self.privacy.show_losses:
            super().log(logs, *args, **kwargs)
        else:  # without what a trainer in between adds of training rows, such as TRL's token accuracy
            transformers.Trainer.log(self, logs, *args, **kwargs)

    # ---------------------------------------------------------------------------------------------------- checkpoints

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        folder.mkdir(parents=True, exist_ok=True)
        if not self.args.save_only_model:
            with os.fdopen(open_in_place(folder / _STATE, os.O_WRONLY | os.O_TRUNC), "wb") as file:  # it holds a secret
                torch.save(self.private.state_dict(), file)
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or self._run is None:
            return
        file = Path(checkpoint) / _STATE
        if not file.is_file():
            raise ParameterError("resume_from_checkpoint", checkpoint, f"a checkpoint of a private run, with {_STATE}")
        self._run.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise an error: every trial would cost ε, and the best one more.

        Raises
        ------
        TrainingStateError
            Always.
        """
        raise TrainingStateError(
            "a search trains on the same rows many times, and ε of one run does not cover it.\n"
            "Fix: dprmt.accounting.private_selection bounds ε of a search over runs."
        )


_OVERRIDDEN = (
    "train",
    "training_step",
    "create_optimizer",
    "get_train_dataloader",
    "get_batch_samples",
    "_get_train_sampler",
    "_get_num_items_in_batch",
    "set_initial_training_values",
    "_inner_training_loop",
    "_run_epoch",
)
"""Methods that a private step relies on, or does without."""

_OWN_LOOP = "train in one process, or with `dprmt train` under torchrun, or with dprmt.make_private in your loop"
_ARGUMENTS: dict[str, tuple[tuple[Any, ...], str]] = {
    "fp16": ((False,), "False: losses are not scaled. Use bf16=True"),
    "neftune_noise_alpha": ((None, 0), "None: its noise depends on the batch's shape"),
    "torch_compile": ((False,), "False: hooks do not reach compiled layers"),
    "use_liger_kernel": ((False,), "False: hooks do not reach fused layers"),
    "auto_find_batch_size": ((False,), "False: a step that failed is not tried again"),
    "include_num_input_tokens_seen": (("no", False), "'no': how many tokens were drawn is private"),
    "group_by_length": ((False,), "False: batches are sampled"),
    "train_sampling_strategy": (("random",), "'random': batches are sampled by the private run"),
    "world_size": ((1,), f"1: {_OWN_LOOP}"),
    "n_gpu": ((0, 1), f"1 at most: {_OWN_LOOP}"),
}


class _Moved(torch.optim.Optimizer):  # type: ignore[misc]
    """Optimizer that the Trainer's loop schedules, saves and steps; ``training_step`` has already moved the
    parameters.
    """

    def __init__(self, inside: torch.optim.Optimizer) -> None:
        # No super().__init__(): groups, state and defaults belong to the optimizer inside.
        self._inside = inside

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._inside.param_groups

    @property
    def state(self) -> Any:
        return self._inside.state

    @property
    def defaults(self) -> dict[str, Any]:
        return self._inside.defaults

    def step(self, closure: None = None) -> None:
        """Do nothing."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: a step leaves no sum."""

    def state_dict(self) -> dict[str, Any]:
        return self._inside.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._inside.load_state_dict(state_dict)


def _numbers(reading: Mapping[str, Any]) -> dict[str, float]:
    """Select the values of a reading that a logger can store: no layers, sentences or infinite values."""
    ends = {f"telemetry_signal_{end}": value for end, value in reading.get("signal", {}).get("*", {}).items()}
    ends |= {"telemetry_z_window": reading["z_window"]} if "z_window" in reading else {}
    return {name: float(value) for name, value in ends.items() if math.isfinite(value)}
