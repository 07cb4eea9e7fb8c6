"""Tasks whose losses are told apart by how frequent the label is, and the records of training on them."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import torch

from dprmt._validation import check_count, check_real
from dprmt.training.harness import Task
from dprmt.training.private_run import MicroBatch, PrivateRun
from dprmt.training.recipes import NormsRecipe, OptimizerRecipe, PrivacyRecipe, Settings, TrainingRecipe
from paper_figures.studies._summed_step import SummedPlan, plan_sums


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


class GroupTask(Task):
    """A training set whose items belong to frequency groups, the most frequent first.

    Examples
    --------
    Any class with these members will do:

    >>> class Line(GroupTask):
    ...     size, group_names = 4, ("all",)
    ...     x = torch.arange(4.0)[:, None]
    ...
    ...     def measure(self, model: torch.nn.Module, indices: torch.Tensor) -> Measured:
    ...         losses = (model(self.x[indices]) - 2 * self.x[indices]).square().sum(1)
    ...         return Measured(losses, losses.detach(), losses < 0.1, torch.zeros_like(indices))
    >>> import tempfile
    >>> from paper_figures.studies import private_settings, train_privately
    >>> settings = private_settings("gd", 0.1, size=4, noise_multiplier=4.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     records = train_privately(torch.nn.Linear(1, 1), Line(), settings, 2, folder, progress=False)
    >>> [record.step for record in records], round(records[-1].epsilon, 2)
    ([0, 1, 2], 1.36)
    """

    group_names: tuple[str, ...]

    @abstractmethod
    def measure(self, model: torch.nn.Module, indices: torch.Tensor) -> Measured:
        """Losses of some samples, each of which depends on its own sample alone.

        Parameters
        ----------
        model : Module
            What is trained.
        indices : Tensor of int64, shape (B,)
            Which samples, in 0 … size - 1, on the model's device.
        """

    def losses_of(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        """See `Task`."""
        return self.keep(self.measure(model, batch.to(next(model.parameters()).device))).losses

    def keep(self, measured: Measured) -> Measured:
        """Remember what was measured last."""
        self.__dict__["_last"] = measured
        return measured

    def accumulate(self, private: PrivateRun, part: MicroBatch) -> torch.Tensor:
        """See `Task`; what was measured stays in ``seen`` until somebody takes it."""
        losses = super().accumulate(private, part)
        self.seen.append([column.detach() for column in self.__dict__["_last"][1:]])
        return losses

    @property
    def seen(self) -> list[list[torch.Tensor]]:
        """Columns of `Measured` but the losses, by micro-batch: **private**."""
        seen: list[list[torch.Tensor]] = self.__dict__.setdefault("_seen", [])
        return seen


class ClosedFormTask(GroupTask):
    """A task that knows its sums of clipped gradients by itself.

    Examples
    --------
    `next_token.HeadData` is one. The sum of clipped gradients of a language model's head:

    >>> from paper_figures.next_token import HeadData, head_and_features, small_gpt2, text_data
    >>> tokens = text_data([1, 2, 1, 0, 1, 2], length=3, vocabulary=3, lowest=[2, 0])
    >>> head, features = head_and_features(small_gpt2(3, layers=1, hidden=8), tokens.ids)
    >>> task = HeadData(features, tokens)
    >>> measured, sums = task.clipped_gradients(head, torch.arange(task.size), clipping_norm=0.5)
    >>> sums["weight"].shape, bool(sums["weight"].norm() <= task.size * 0.5)
    (torch.Size([3, 8]), True)
    """

    @abstractmethod
    def clipped_gradients(
        self, model: torch.nn.Module, indices: torch.Tensor, clipping_norm: float
    ) -> tuple[Measured, dict[str, torch.Tensor]]:
        """Losses of some samples, without graph, and the sum of their exactly clipped gradients by parameter.

        Parameters
        ----------
        model : Module
            What is trained.
        indices : Tensor of int64, shape (B,)
            Which samples.
        clipping_norm : float
            C > 0.

        Formal guarantees
        -----------------
        `train_privately` takes an implementation's word that a sample changes the sum by at most C in norm, over all
        parameters together.
        """

    def clipping_plan(self, model: torch.nn.Module, **options: Any) -> SummedPlan:
        """No hooks: the sums are this task's."""
        return plan_sums(
            model,
            self._summed,
            clipping_norm=options["clipping_norm"],
            expected_batch_size=options["expected_batch_size"],
        )

    def _summed(
        self, model: torch.nn.Module, batch: torch.Tensor, clipping_norm: float
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        measured, sums = self.clipped_gradients(model, batch.to(next(model.parameters()).device), clipping_norm)
        return self.keep(measured).losses.detach(), sums


class GroupRecord(NamedTuple):
    """Training metrics after a number of steps. Private except for ε."""

    step: int
    epsilon: float
    """Upper bound at the run's δ, of all steps up to here."""
    loss: float
    """Mean over items; NaN if sampling drew nobody."""
    accuracy: float
    group_loss: tuple[float, ...]
    group_accuracy: tuple[float, ...]


STEPS = 10**6  # the length that the settings name; a call of `train_privately` stops where it is told


def private_settings(
    optimizer: str,
    learning_rate: float,
    *,
    size: int,
    clipping_norm: float = 1.0,
    noise_multiplier: float = 10.0,
    sample_rate: float = 1.0,
    stability: float = 0.1,
    momentum: float = 0.9,
    betas: tuple[float, float] = (0.9, 0.999),
    micro_batch: int = 256,
    seed: int = 0,
    delta: float = 1e-5,
) -> Settings:
    """Settings of the studies, with Adam's γ and DP-AdamBC's γ' in units of the noise.

    Parameters
    ----------
    optimizer : {"gd", "gdm", "adam", "adamw", "adambc"}
        As in `dprmt.training.optimizers.make_optimizer`.
    learning_rate : float
        η > 0.
    size : int
        n, samples of the training set.
    clipping_norm, noise_multiplier : float
        C > 0 and σ > 0.
    sample_rate : float
        q in (0, 1]; 1 is the full batch of the paper, otherwise Poisson sampling. The expected batch L = qn is
        rounded to a whole number.
    stability : float
        γ = stability·σC/L for "adam" and "adamw", γ' = stability·(σC/L)² for "adambc".
    momentum, betas : float, pair of float
        μ of "gdm"; β₁ and β₂.
    micro_batch : int
        Samples whose gradients are in memory at the same time; the result does not depend on it.
    seed : int
        Of noise and sampling: known, so that there is no privacy towards whoever knows it.
    delta : float
        δ in (0, 1), of the ε that is recorded.

    Returns
    -------
    Settings
        For `train_privately`.

    Raises
    ------
    ParameterError
        If a number is out of its range.

    Examples
    --------
    >>> settings = private_settings("adam", 1e-3, size=100, noise_multiplier=2.0, sample_rate=0.5)
    >>> settings.training.batch_size, settings.optimizer.eps
    (50, 0.004)
    """
    check_real("sample_rate", sample_rate, low=0.0, high=1.0, low_open=True)
    check_real("stability", stability, low=0.0, low_open=True)
    batch = max(1, round(sample_rate * check_count("size", size)))
    deviation = noise_multiplier * clipping_norm / batch
    return Settings(
        privacy=PrivacyRecipe(
            noise_multiplier=noise_multiplier, delta=delta, norms=NormsRecipe("ghost"), clipping_norm=clipping_norm
        ),
        optimizer=OptimizerRecipe(
            name=optimizer,
            learning_rate=learning_rate,
            momentum=momentum,
            betas=betas,
            eps=stability * deviation,
            floor=stability * deviation**2,
        ),
        training=TrainingRecipe(batch_size=batch, micro_batch_size=micro_batch, steps=STEPS, seed=seed),
    )
