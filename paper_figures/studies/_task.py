"""What is trained on, and how: the tasks, settings and records of private training."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from dprmt._validation import check_count, check_real
from dprmt.training.optimizers import OptimizerName


class Measured(NamedTuple):
    """What the forward pass of a micro-batch of B samples gives; an item is a sample or one of its tokens."""

    losses: torch.Tensor
    """Each sample's loss with its graph, shape (B,)."""
    item_losses: torch.Tensor
    """Shape (k,)."""
    item_correct: torch.Tensor
    """Shape (k,)."""
    item_groups: torch.Tensor
    """The frequency group of the item's label, shape (k,)."""


class Task(Protocol):
    """A training set and its loss.

    Examples
    --------
    Any class with these members will do:

    >>> class Line:
    ...     size, group_names = 4, ("all",)
    ...     x = torch.arange(4.0)[:, None]
    ...
    ...     def measure(self, model: torch.nn.Module, indices: torch.Tensor) -> Measured:
    ...         losses = (model(self.x[indices]) - 2 * self.x[indices]).square().sum(1)
    ...         return Measured(losses, losses.detach(), losses < 0.1, torch.zeros_like(indices))
    >>> import tempfile
    >>> from studies import train_privately
    >>> settings = PrivateSettings("gd", 0.1, noise_multiplier=4.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     records = train_privately(torch.nn.Linear(1, 1), Line(), settings, 2, folder, progress=False)
    >>> [record.step for record in records], round(records[-1].epsilon, 2)
    ([0, 1, 2], 1.36)
    """

    @property
    def size(self) -> int:
        """Number of samples."""

    @property
    def group_names(self) -> tuple[str, ...]:
        """The frequency groups, the most frequent first."""

    def measure(self, model: torch.nn.Module, indices: torch.Tensor) -> Measured:
        """Losses of some samples.

        Parameters
        ----------
        model : Module
            What is trained.
        indices : Tensor of int64, shape (B,)
            Which samples, in 0 … size - 1.

        Returns
        -------
        Measured
            With one loss for each of them. No sample's loss may depend on another sample.
        """


@runtime_checkable
class ClosedFormTask(Task, Protocol):
    """A task that knows its sums of clipped gradients by itself.

    Examples
    --------
    `next_token.HeadData` is one. The sum of clipped gradients of a language model's head:

    >>> from next_token import HeadData, head_and_features, small_gpt2, text_data
    >>> tokens = text_data([1, 2, 1, 0, 1, 2], length=3, vocabulary=3, lowest=[2, 0])
    >>> head, features = head_and_features(small_gpt2(3, layers=1, hidden=8), tokens.ids)
    >>> task = HeadData(features, tokens)
    >>> measured, sums = task.clipped_gradients(head, torch.arange(task.size), clipping_norm=0.5)
    >>> sums["weight"].shape, bool(sums["weight"].norm() <= task.size * 0.5)
    (torch.Size([3, 8]), True)
    """

    def clipped_gradients(
        self, model: torch.nn.Module, indices: torch.Tensor, clipping_norm: float
    ) -> tuple[Measured, dict[str, torch.Tensor]]:
        """Losses of some samples, and the sum of their exactly clipped gradients by name of the parameter.

        Parameters
        ----------
        model : Module
            What is trained.
        indices : Tensor of int64, shape (B,)
            Which samples.
        clipping_norm : float
            C > 0.

        Returns
        -------
        measured : Measured
            Its losses need no graph.
        sums : dict of Tensor
            Of the shapes of the trained parameters, all of which are there.

        Formal guarantees
        -----------------
        `train_privately` takes an implementation's word that a sample changes the sum by at most C in norm, over all
        parameters together.
        """


@dataclasses.dataclass(frozen=True)
class PrivateSettings:
    """How to train.

    Parameters
    ----------
    optimizer : {"gd", "gdm", "adam", "adamw", "adambc"}
        As in `dprmt.training.optimizers.make_optimizer`.
    learning_rate : float
        η > 0.
    clipping_norm, noise_multiplier : float
        C > 0 and σ > 0.
    sample_rate : float
        q in (0, 1]; 1 is the full batch of the paper, otherwise Poisson sampling.
    stability : float
        γ = stability·σC/L for "adam" and "adamw", γ' = stability·(σC/L)² for "adambc"; L = qn.
    micro_batch : int
        Samples whose gradients are in memory at the same time; the result does not depend on it.
    seed : int
        Of noise and sampling.

    Raises
    ------
    ParameterError
        If a number is out of its range.
    """

    optimizer: OptimizerName
    learning_rate: float
    clipping_norm: float = 1.0
    noise_multiplier: float = 10.0
    sample_rate: float = 1.0
    stability: float = 0.1
    micro_batch: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "clipping_norm", "noise_multiplier", "stability"):
            check_real(name, getattr(self, name), low=0.0, low_open=True)
        check_real("sample_rate", self.sample_rate, low=0.0, high=1.0, low_open=True)
        check_count("micro_batch", self.micro_batch)
        check_count("seed", self.seed, low=0)


class GroupRecord(NamedTuple):
    """Training metrics after a number of steps. Private but for ε."""

    step: int
    epsilon: float
    """Upper bound at the run's δ, of all steps up to here."""
    loss: float
    """Mean over items; NaN if sampling drew nobody."""
    accuracy: float
    group_loss: tuple[float, ...]
    group_accuracy: tuple[float, ...]
