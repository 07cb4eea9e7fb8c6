r"""Heavy-tailed classes: a linear softmax model under DP-GD, DP-GDM, DP-Adam and DP-AdamBC (section 3 of the paper).

Per-sample gradients are in closed form. With ``p = softmax(Wx)`` and y as a unit vector, the gradient of ``-log p_y``
in W is the outer product ``(p - y)xᵀ``. Hence its norm is ``‖p - y‖‖x‖``; two of them have the inner product
``((p - y)·(p' - y'))(x·x')``; and a weighted sum over samples is ``Rᵀ diag(weights) X`` with the rows p - y of R.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from dprmt._validation import ParameterError, check_count, check_real
from dprmt.accounting import DPSGD
from dprmt.training.norms import clip_factors
from dprmt.training.recipes import Settings
from paper_figures.studies import ClosedFormTask, GroupRecord, Measured, OnStep, private_settings, train_privately

Precision = Literal["float32", "bfloat16"]
_HOPELESS = 1e4  # nats: nothing comes back from there


@dataclass(frozen=True)
class HeavyTailData:
    """Samples whose classes are of very different size.

    Attributes
    ----------
    inputs : Tensor, shape (n, d)
        float32, uniform in [0, 1], independent of the labels.
    labels : Tensor of int64, shape (n,)
        In order of decreasing frequency: class 0 is the most frequent one.
    groups : Tensor of int64, shape (n,)
        The frequency group of each sample's class, 0 for the most frequent.
    class_sizes : tuple of int
        Samples per class, of each group in turn; group i has 2^i classes of that size.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    groups: torch.Tensor
    class_sizes: tuple[int, ...]

    @property
    def classes(self) -> int:
        """Number of classes, 2^m - 1."""
        return 2 ** len(self.class_sizes) - 1


@functools.lru_cache(maxsize=1)
def heavy_tail_data(
    groups: int = 8, samples: int = 1024, dimension: int | None = None, *, seed: int = 0
) -> HeavyTailData:
    """Draw the set: for i = 0 … m-1, 2^i classes with s·2^{-i} samples each, sorted by class.

    The defaults are the paper's instance: n = 8192 samples in d = 9216 dimensions, 255 classes with 1024 … 8
    samples each. Section 3 prints ``c = 2^{m+1} - 1`` and ``n = m 2^m``, which are not the numbers of its instance; the
    rule above is. The last set is kept: do not change it.

    Parameters
    ----------
    groups : int
        m >= 1.
    samples : int
        s, the samples of each group and of the largest class; divisible by 2^{m-1}.
    dimension : int, optional
        d; n + s, as in the paper's instance, if not given.
    seed : int
        Of the inputs.

    Examples
    --------
    >>> data = heavy_tail_data(groups=3, samples=8)
    >>> data.inputs.shape, data.labels.bincount().tolist(), data.class_sizes
    (torch.Size([24, 32]), [8, 4, 4, 2, 2, 2, 2], (8, 4, 2))
    """
    m, s = check_count("groups", groups), check_count("samples", samples)
    if s % 2 ** (m - 1):
        raise ParameterError("samples", s, f"divisible by 2^(groups-1) = {2 ** (m - 1)}")
    n = m * s
    sizes = tuple(s >> i for i in range(m))
    per_class = torch.tensor([sizes[i] for i in range(m) for _ in range(2**i)])
    generator = torch.Generator().manual_seed(check_count("seed", seed, low=0))
    return HeavyTailData(
        inputs=torch.rand(n, n + s if dimension is None else dimension, generator=generator),
        labels=torch.arange(len(per_class)).repeat_interleave(per_class),
        groups=torch.arange(m).repeat_interleave(s),
        class_sizes=sizes,
    )


class ClippedSum(NamedTuple):
    """The sum of clipped per-sample gradients, and what the same forward pass tells about the samples."""

    gradient: torch.Tensor  # Σ_i min(1, C/‖g_i‖) g_i, shape (c, d)
    losses: torch.Tensor  # -log p_y, shape (n,); private
    correct: torch.Tensor  # whether the label has the largest logit, bool, shape (n,); private


def clipped_gradient_sum(
    weight: torch.Tensor,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    clipping_norm: float,
    *,
    squared_input_norms: torch.Tensor | None = None,
) -> ClippedSum:
    """Clip every sample's gradient exactly and add them up, with two matrix products in all.

    Parameters
    ----------
    weight : Tensor, shape (c, d)
        W, float32 or float64.
    inputs : Tensor, shape (n, d)
        The samples x. In bfloat16 both products run in it. This rounds W and the weighted residuals for the product
        alone; W itself stays as it is.
    labels : Tensor of int64, shape (n,)
        Their classes.
    clipping_norm : float
        C > 0.
    squared_input_norms : Tensor, shape (n,), optional
        ‖x‖² in float64, if known from an earlier step.

    Formal guarantees
    -----------------
    Adding or removing a sample changes the sum by at most C in Frobenius norm, up to the rounding of the sum
    itself; the norm's own rounding is taken off the clip factor (`dprmt.training.norms.clip_factors`), and for
    bfloat16 inputs that of the weighted residuals as well.

    References
    ----------
    Algorithm 1, lines 4 to 7, of the heavy-tail class imbalance paper on DP-AdamBC.

    Examples
    --------
    >>> x, y = torch.tensor([[3.0, 4.0]]), torch.tensor([0])
    >>> clipped_gradient_sum(torch.zeros(2, 2), x, y, 1.0).gradient
    tensor([[-0.4242, -0.5656],
            [ 0.4242,  0.5656]])
    """
    bound = check_real("clipping_norm", clipping_norm, low=0.0, low_open=True)
    logits = (inputs @ weight.to(inputs.dtype).T).to(weight.dtype)
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    correct = logits.argmax(1) == labels
    rows = _residuals(logits, labels)
    x_norms = _squares(inputs) if squared_input_norms is None else squared_input_norms
    rounding = 2.0**-8 if inputs.dtype == torch.bfloat16 else 2.0**-13  # 2⁻⁹ per entry of the rows
    factors = clip_factors(_squares(rows) * x_norms, bound, rounding=rounding)
    rows.mul_(factors.to(rows.dtype)[:, None])
    return ClippedSum((rows.to(inputs.dtype).T @ inputs).to(rows.dtype), losses, correct)


def gradient_cosines(weight: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cosine similarity of every pair of per-sample gradients (section 2.3 and Figure 1).

    float64 of shape (n, n); a sample whose gradient vanishes has cosine 0 with all. Private.

    Examples
    --------
    >>> x, y = torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([0, 1])
    >>> gradient_cosines(torch.zeros(2, 2), x, y)[0]
    tensor([ 1.0000, -0.7071], dtype=torch.float64)
    """
    x = inputs.double()
    rows = _residuals(x @ weight.double().T, labels)
    return (_cosines(rows) * _cosines(x)).clamp(-1.0, 1.0)


def _residuals(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    # The gradient of every sample's loss in its logits, p - y.
    result = logits.softmax(1)
    result[torch.arange(len(labels), device=labels.device), labels] -= 1
    return result


def _cosines(vectors: torch.Tensor) -> torch.Tensor:
    norms = vectors.norm(dim=1, keepdim=True)
    unit = torch.where(norms > 0, vectors / norms, 0.0)
    return unit @ unit.T


def _squares(vectors: torch.Tensor) -> torch.Tensor:
    return vectors.double().square().sum(1)


@dataclass(frozen=True)
class Trial:
    """Everything that the outcome of one run depends on.

    Parameters
    ----------
    optimizer : {"gd", "gdm", "adam", "adamw", "adambc"}
        As in `dprmt.training.recipes.OptimizerRecipe`.
    learning_rate : float
        η > 0.
    clipping_norm, noise_multiplier : float
        C > 0 and σ > 0.
    stability : float, optional
        For the Adam family, in units of the noise in one entry of the gradient, σC/n: γ = stability·σC/n for
        "adam" and "adamw", γ' = stability·(σC/n)² for "adambc". Otherwise not read.
    momentum : float
        μ of "gdm".
    betas : pair of float
        β₁, β₂.
    seed : int
        Of the inputs and of the noise.
    groups, samples : int
        The instance, as in `heavy_tail_data`.
    precision : {"float32", "bfloat16"}
        Of the two matrix products; parameters, noise and moments are float32 in any case.
    """

    optimizer: str
    learning_rate: float
    clipping_norm: float = 1.0
    noise_multiplier: float = 10.0
    stability: float = 0.1
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    seed: int = 0
    groups: int = 8
    samples: int = 1024
    precision: Precision = "float32"

    @property
    def settings(self) -> Settings:
        """How the harness trains it: full batch, all samples in one micro-batch."""
        n = self.samples * self.groups
        return private_settings(
            self.optimizer,
            self.learning_rate,
            size=n,
            clipping_norm=self.clipping_norm,
            noise_multiplier=self.noise_multiplier,
            stability=self.stability,
            momentum=self.momentum,
            betas=self.betas,
            micro_batch=n,
            seed=self.seed,
        ).with_changes({"training.checkpoint_every": 10})

    @property
    def effective_step(self) -> float:
        r"""The constant h for which the parameters move by ``h ḡ`` per step where noise outweighs the gradient.

        With the noise's deviation s = σC/n per entry, √v̂ ≈ s in Adam, and v̂ - s² ≈ 0 lies below the floor γ' in
        DP-AdamBC. So momentum and Adam's family are one method there, with

        - h = η for "gd" and ``η/(1 - μ)`` for "gdm";
        - ``h = η/(s + γ)`` for "adam" and "adamw", γ = stability·s;
        - ``h = η/√γ'`` for "adambc", γ' = stability·s².

        It says nothing of entries whose gradient is large against s, where Adam's family takes smaller steps; nor, for
        "adambc", of floors within the fluctuation of v̂, ``s²√(2(1-β₂)/(1+β₂))`` after many steps.

        Examples
        --------
        >>> trials = [Trial("gdm", 0.1), Trial("adam", 1e-3, stability=1e-9), Trial("adambc", 5e-4, stability=0.1)]
        >>> [round(trial.effective_step, 3) for trial in trials]
        [1.0, 0.819, 1.295]
        """
        s = self.noise_multiplier * self.clipping_norm / (self.groups * self.samples)
        return self.learning_rate / {
            "gd": 1.0,
            "gdm": 1 - self.momentum,
            "adambc": s * math.sqrt(self.stability),
        }.get(self.optimizer, s * (1 + self.stability))


def run_trial(
    trial: Trial,
    folder: str | Path,
    steps: int,
    *,
    record_every: int = 25,
    device: Any = None,
    on_step: OnStep = lambda step, loss: None,
) -> list[GroupRecord]:
    """Train until ``steps`` steps are done in all, from where an earlier call for the folder ended.

    Each step clips every sample's gradient exactly, adds noise N(0, σ²C²) to every entry of the sum, divides by n
    and gives the result to the optimizer. Losses and accuracies are those of the parameters *after* the number of
    steps they are recorded under; they come from the next step's forward pass.

    Parameters
    ----------
    trial : Trial
        What to run.
    folder : str or Path
        A run folder (see `studies.train_privately`).
    steps : int
        Where to stop, counted from the beginning of the trial; 0 measures the start.
    record_every : int
        Steps between records. The last step is recorded as well.
    device : torch device, optional
        A GPU if there is one.
    on_step : callable
        Receives the step and the mean loss, after each step.

    Returns
    -------
    list of GroupRecord
        The whole run, earlier calls included; the last loss is NaN if it diverged.

    Formal guarantees
    -----------------
    After T steps the parameters are as private as ``DPSGD(σ, 1.0)`` says, as far as exact arithmetic goes: the set is
    synthetic, the noise is not from a cryptographic generator, and sums are rounded. Records are not private.

    References
    ----------
    Algorithms 1 and 2 and section 3 of the heavy-tail class imbalance paper on DP-AdamBC.

    Examples
    --------
    >>> import tempfile
    >>> trial = Trial("gd", 1.0, groups=3, samples=8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     records = run_trial(trial, folder, steps=2, record_every=1)
    >>> [record.step for record in records], round(records[0].loss, 3)  # log of 7 classes
    ([0, 1, 2], 1.946)
    """
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    data = heavy_tail_data(trial.groups, trial.samples, seed=trial.seed)
    task = LinearTask(data, trial.precision, device)
    model = torch.nn.Linear(data.inputs.shape[1], data.classes, bias=False, device=device)
    torch.nn.init.zeros_(model.weight)
    options: Any = {"record_every": record_every, "hopeless": _HOPELESS, "on_step": on_step}
    records = train_privately(model, task, trial.settings, steps, folder, **options)
    return [record._replace(epsilon=epsilon_after(trial.noise_multiplier, record.step)) for record in records]


@functools.cache
def epsilon_after(noise_multiplier: float, steps: int, delta: float = 1e-5) -> float:
    """Return the upper bound on ε after that many full-batch steps; 0 before the first.

    Examples
    --------
    >>> round(epsilon_after(10.0, 1000), 2)
    17.86
    """
    return DPSGD(noise_multiplier, 1.0).epsilon(steps=steps, delta=delta).upper if steps else 0.0


class LinearTask(ClosedFormTask):
    """The linear softmax model on a heavy-tail set, all samples at once."""

    def __init__(self, data: HeavyTailData, precision: Precision, device: torch.device) -> None:
        self.size, self.group_names = len(data.labels), tuple(f"classes of {size}" for size in data.class_sizes)
        self._inputs = data.inputs.to(device, torch.bfloat16 if precision == "bfloat16" else torch.float32)
        self._labels, self._groups = data.labels.to(device), data.groups.to(device)
        self._norms = _squares(self._inputs)

    def clipped_gradients(
        self, model: torch.nn.Module, indices: torch.Tensor, clipping_norm: float
    ) -> tuple[Measured, dict[str, torch.Tensor]]:
        """See `ClosedFormTask`."""
        if len(indices) != self.size:
            raise ParameterError("sample_rate", len(indices) / self.size, "1: the closed form is for the full batch")
        weight: torch.Tensor = model.weight.detach()
        found = clipped_gradient_sum(weight, self._inputs, self._labels, clipping_norm, squared_input_norms=self._norms)
        return Measured(found.losses, found.losses, found.correct, self._groups), {"weight": found.gradient}

    def measure(self, model: torch.nn.Module, indices: torch.Tensor) -> Measured:
        """See `GroupTask`; from the forward pass of `clipped_gradients`."""
        return self.clipped_gradients(model, indices, 1.0)[0]
