"""Full-batch private training of the linear model, resumable at any point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dprmt._files import read_lines
from dprmt._validation import ParameterError
from paper_figures.heavy_tail._data import HeavyTailData, heavy_tail_data
from paper_figures.heavy_tail._linear import clipped_gradient_sum
from paper_figures.heavy_tail._products import EightBitInputs, FloatInputs, Inputs
from paper_figures.heavy_tail._trial import Curve, Precision, Trial, curve_from_rows
from paper_figures.studies import ClosedFormTask, Measured, train_privately
from paper_figures.studies._private_training import RECORDS, OnStep

_HOPELESS = 1e4  # nats: nothing comes back from there


def run_trial(
    trial: Trial,
    folder: str | Path,
    steps: int,
    *,
    record_every: int = 25,
    data: HeavyTailData | None = None,
    device: Any = None,
    on_step: OnStep = lambda step, loss: None,
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
        For a run folder called as the trial is (see `studies.train_privately`).
    steps : int
        Where to stop, counted from the beginning of the trial; 0 measures the start.
    record_every : int
        Steps between records. The last step is recorded as well.
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
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    data = data or heavy_tail_data(trial.groups, trial.samples, seed=trial.seed)
    if data.class_sizes != heavy_tail_sizes(trial):
        raise ParameterError("data", data.class_sizes, f"a set with classes of {heavy_tail_sizes(trial)} samples")
    if (Path(folder) / f"{trial.name}.safetensors").exists():
        raise ParameterError("folder", str(folder), "one without runs of an earlier version, which cannot go on")
    task = LinearTask(data, trial.precision, device)
    model = torch.nn.Linear(data.inputs.shape[1], data.classes, bias=False, device=device)
    torch.nn.init.zeros_(model.weight)
    train_privately(
        model,
        task,
        trial.settings,
        steps,
        Path(folder) / trial.name,
        record_every=record_every,
        hopeless=_HOPELESS,
        on_step=on_step,
        progress=False,
    )
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
    return curve_from_rows(trial, heavy_tail_sizes(trial), read_lines(Path(folder) / trial.name / RECORDS))


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


class LinearTask(ClosedFormTask):
    """The linear softmax model on a heavy-tail set, all samples at once.

    Parameters
    ----------
    data : HeavyTailData
        The set.
    precision : {"float32", "bfloat16", "int8"}
        Of the matrix products.
    device : torch.device
        Where to compute.
    """

    def __init__(self, data: HeavyTailData, precision: Precision, device: torch.device) -> None:
        self.size, self.group_names = len(data.labels), tuple(f"classes of {size}" for size in data.class_sizes)
        self._inputs = _inputs(data.inputs.to(device), precision)
        self._labels, self._groups = data.labels.to(device), data.groups.to(device)
        self._norms = self._inputs.squared_norms()

    def clipped_gradients(
        self, model: torch.nn.Module, indices: torch.Tensor, clipping_norm: float
    ) -> tuple[Measured, dict[str, torch.Tensor]]:
        """See `ClosedFormTask`."""
        if len(indices) != self.size:
            raise ParameterError("sample_rate", len(indices) / self.size, "1: the closed form is for the full batch")
        weight: torch.Tensor = model.weight.detach()
        found = clipped_gradient_sum(weight, self._inputs, self._labels, clipping_norm, squared_input_norms=self._norms)
        measured = Measured(found.losses, found.losses, found.correct, self._groups)
        return measured, {"weight": found.gradient}

    def measure(self, model: torch.nn.Module, indices: torch.Tensor) -> Measured:
        """See `GroupTask`; from the forward pass of `clipped_gradients`."""
        return self.clipped_gradients(model, indices, 1.0)[0]


def _inputs(values: torch.Tensor, precision: Precision) -> Inputs:
    if precision == "int8":
        return EightBitInputs(values)
    return FloatInputs(values.to(torch.bfloat16 if precision == "bfloat16" else torch.float32))
