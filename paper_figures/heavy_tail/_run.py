"""Full-batch private training of the linear model, resumable at any point."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dprmt._files import append_line, read_lines
from dprmt._validation import ParameterError, check_count
from dprmt.training.optimizers import make_optimizer
from heavy_tail._data import HeavyTailData, heavy_tail_data
from heavy_tail._linear import ClippedSum, clipped_gradient_sum
from heavy_tail._products import EightBitInputs, FloatInputs, Inputs
from heavy_tail._trial import Curve, Precision, Trial, curve_from_rows
from studies._checkpoint import load_checkpoint, optimizer_tensors, restore_optimizer, save_checkpoint
from studies._groups import group_means

_HOPELESS = 1e4  # nats: nothing comes back from there


def run_trial(
    trial: Trial,
    folder: str | Path,
    steps: int,
    *,
    record_every: int = 25,
    checkpoint_seconds: float = 60.0,
    data: HeavyTailData | None = None,
    device: Any = None,
    on_step: Callable[[int, float], object] | None = None,
) -> Curve:
    """Train until ``steps`` steps are done in all, from where an earlier call for the same trial ended.

    Each step clips every sample's gradient exactly, adds noise N(0, σ²C²) to every entry of the sum, divides by n
    and gives the result to the optimizer. Losses and accuracies are those of the parameters *after* the number of
    steps they are recorded under; they come from the next step's forward pass.

    Parameters
    ----------
    trial : Trial
        What to run.
    folder : str or Path
        For ``<name>.jsonl`` (one line per record, appended) and ``<name>.safetensors`` (the latest state).
    steps : int
        Where to stop, counted from the beginning of the trial; 0 measures the start.
    record_every : int
        Steps between records. The last step is recorded as well.
    checkpoint_seconds : float
        Time between checkpoints. One is written at the end in any case.
    data : HeavyTailData, optional
        The trial's set, if at hand: ``heavy_tail_data(trial.groups, trial.samples, seed=trial.seed)``.
    device : torch device, optional
        A GPU if there is one.
    on_step : callable, optional
        Told the step and the mean loss, after each step; for progress bars.

    Returns
    -------
    Curve
        The whole run, earlier calls included. It ends early if the loss diverges.

    Raises
    ------
    ParameterError
        If a count is out of range, ``data`` is another set, or the folder holds another trial of this name.

    Formal guarantees
    -----------------
    After T steps the parameters are as private as ``DPSGD(σ, 1.0)`` says (`Curve.epsilon`), as far as exact
    arithmetic goes: the set is synthetic, the noise is not from a cryptographic generator, and sums are rounded. A
    run that was killed takes up the saved state of its noise generator and so repeats the same releases since the
    last checkpoint; nothing new is released. Records and progress are not private.

    References
    ----------
    Algorithms 1 and 2 and section 3 of the heavy-tail class imbalance paper on DP-AdamBC.

    Examples
    --------
    >>> import tempfile
    >>> trial = Trial("gd", 1.0, groups=3, samples=8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     curve = run_trial(trial, folder, steps=2, record_every=1)
    >>> curve.steps, round(curve.loss[0], 3)  # log of 7 classes
    ((0, 1, 2), 1.946)
    """
    steps, record_every = check_count("steps", steps, low=0), check_count("record_every", record_every)
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    data = data or heavy_tail_data(trial.groups, trial.samples, seed=trial.seed)
    if data.class_sizes != heavy_tail_sizes(trial):
        raise ParameterError("data", data.class_sizes, f"a set with classes of {heavy_tail_sizes(trial)} samples")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    run = _Run(trial, folder, data, device)
    saved_at = time.monotonic()
    while not run.diverged:
        now = run.forward()
        if run.step % record_every == 0 or run.step == steps:
            run.record(now)
        if run.step >= steps or run.diverged:
            break
        run.advance(now)
        if on_step is not None:
            on_step(run.step, float(now.losses.mean()))
        if time.monotonic() - saved_at > checkpoint_seconds:
            run.save()
            saved_at = time.monotonic()
    run.save()
    return read_trial(folder, trial)


def read_trial(folder: str | Path, trial: Trial) -> Curve:
    """What has been recorded of a trial.

    Parameters
    ----------
    folder : str or Path
        As in `run_trial`.
    trial : Trial
        Which one.

    Returns
    -------
    Curve
        Without entries if nothing was run.

    Examples
    --------
    >>> read_trial("nowhere", Trial("gd", 1.0)).steps
    ()
    """
    return curve_from_rows(trial, heavy_tail_sizes(trial), read_lines(Path(folder) / f"{trial.name}.jsonl"))


def heavy_tail_sizes(trial: Trial) -> tuple[int, ...]:
    """Samples per class in each of the trial's frequency groups.

    Parameters
    ----------
    trial : Trial
        Which one.

    Returns
    -------
    tuple of int
        From s down.
    """
    return tuple(trial.samples >> i for i in range(trial.groups))


class _Run:
    # Parameters, optimizer, noise and the place where all of it is kept.

    def __init__(self, trial: Trial, folder: Path, data: HeavyTailData, device: Any) -> None:
        n, d = data.inputs.shape
        self.trial, self.sizes, self.step, self.diverged = trial, data.class_sizes, 0, False
        self.lines, self.state = folder / f"{trial.name}.jsonl", folder / f"{trial.name}.safetensors"
        self.inputs = _inputs(data.inputs.to(device), trial.precision)
        self.labels, self.groups = data.labels.to(device), data.groups.to(device)
        self.norms = self.inputs.squared_norms()
        self.weight = torch.nn.Parameter(torch.zeros(data.classes, d, device=device))
        deviation = trial.noise_deviation(n)
        self.optimizer = make_optimizer(
            trial.optimizer,
            [self.weight],
            lr=trial.learning_rate,
            momentum=trial.momentum,
            betas=trial.betas,
            eps=trial.stability * deviation,
            noise_variance=deviation**2,
            floor=trial.stability * deviation**2,
        )
        self.noise = torch.Generator(device).manual_seed(2**20 + trial.seed)  # not the stream of the inputs
        if self.state.exists():
            self.load()

    def forward(self) -> ClippedSum:
        C = self.trial.clipping_norm
        return clipped_gradient_sum(self.weight.detach(), self.inputs, self.labels, C, squared_input_norms=self.norms)

    def advance(self, now: ClippedSum) -> None:
        noise = torch.randn(self.weight.shape, generator=self.noise, device=self.weight.device)
        noise.mul_(self.trial.noise_multiplier * self.trial.clipping_norm)
        self.weight.grad = noise.add_(now.gradient).div_(len(self.labels))
        self.optimizer.step()
        self.step += 1

    def record(self, now: ClippedSum) -> None:
        loss, count = float(now.losses.double().mean()), len(self.sizes)
        self.diverged = not (math.isfinite(loss) and loss < _HOPELESS)
        if self.diverged:
            append_line(self.lines, {"step": self.step, "diverged": True})
            return
        row = {
            "step": self.step,
            "loss": loss,
            "accuracy": float(now.correct.double().mean()),
            "group_loss": group_means(now.losses, self.groups, count),
            "group_accuracy": group_means(now.correct, self.groups, count),
        }
        append_line(self.lines, row)

    def save(self) -> None:
        tensors, facts = optimizer_tensors(self.optimizer)
        tensors |= {"weight": self.weight, "noise": self.noise.get_state()}
        facts |= {"step": self.step, "diverged": self.diverged, "trial": dataclasses.asdict(self.trial)}
        save_checkpoint(self.state, tensors, facts)

    def load(self) -> None:
        tensors, facts = load_checkpoint(self.state)
        if facts["trial"] != json.loads(json.dumps(dataclasses.asdict(self.trial))):
            raise ParameterError("folder", str(self.state), "one without another trial of the same name")
        restore_optimizer(self.optimizer, tensors, facts)
        self.weight.data.copy_(tensors["weight"])
        self.noise.set_state(tensors["noise"])
        self.step, self.diverged = facts["step"], facts["diverged"]


def _inputs(values: torch.Tensor, precision: Precision) -> Inputs:
    if precision == "int8":
        return EightBitInputs(values)
    return FloatInputs(values.to(torch.bfloat16 if precision == "bfloat16" else torch.float32))
