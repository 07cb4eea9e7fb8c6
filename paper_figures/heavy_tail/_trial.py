"""One training run of the heavy-tail study: what defines it, its name, and its curve."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from dprmt._validation import check_choice, check_count, check_real
from dprmt.accounting import DPSGD
from dprmt.training.recipes import OPTIMIZERS, Settings
from paper_figures.studies import private_settings

Precision = Literal["float32", "bfloat16", "int8"]


@dataclasses.dataclass(frozen=True)
class Trial:
    """Everything that the outcome of one run depends on.

    Parameters
    ----------
    optimizer : {"gd", "gdm", "adam", "adamw", "adambc"}
        As in `dprmt.training.optimizers.make_optimizer`.
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
    precision : {"float32", "bfloat16", "int8"}
        Of the two matrix products; parameters, noise and moments are float32 in any case. With "int8" the inputs are
        multiples of 1/255 and what they are multiplied with keeps 16 bits (`EightBitInputs`).

    Raises
    ------
    ParameterError
        If a value is out of its range.

    Examples
    --------
    >>> Trial("gd", 100.0, seed=3).name
    'gd-C1-sigma10-lr100-seed3-d5236171'
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

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer, tuple(OPTIMIZERS))
        check_choice("precision", self.precision, get_args(Precision))
        for name in ("learning_rate", "clipping_norm", "noise_multiplier", "stability"):
            object.__setattr__(self, name, check_real(name, getattr(self, name), low=0.0, low_open=True))
        check_count("seed", self.seed, low=0)

    @property
    def name(self) -> str:
        """A file name, different for different trials."""
        facts = json.dumps(dataclasses.asdict(self), sort_keys=True)
        digest = hashlib.sha256(facts.encode()).hexdigest()[:8]
        stability = f"-stability{self.stability:g}" if self.optimizer.startswith("adam") else ""
        setting = f"C{self.clipping_norm:g}-sigma{self.noise_multiplier:g}-lr{self.learning_rate:g}{stability}"
        return f"{self.optimizer}-{setting}-seed{self.seed}-{digest}"

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

    def noise_deviation(self, count: int) -> float:
        """σC/n, of the noise in one entry of the mean gradient.

        Parameters
        ----------
        count : int
            n >= 1 samples.

        Returns
        -------
        float
            In the units of the gradient.
        """
        return self.noise_multiplier * self.clipping_norm / count

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

        Returns
        -------
        float
            h > 0, in the units of the learning rate of gradient descent.

        Examples
        --------
        >>> trials = [Trial("gdm", 0.1), Trial("adam", 1e-3, stability=1e-9), Trial("adambc", 5e-4, stability=0.1)]
        >>> [round(trial.effective_step, 3) for trial in trials]
        [1.0, 0.819, 1.295]
        """
        s = self.noise_deviation(self.groups * self.samples)
        if self.optimizer == "gd":
            return self.learning_rate
        if self.optimizer == "gdm":
            return self.learning_rate / (1 - self.momentum)
        return self.learning_rate / (
            s * (math.sqrt(self.stability) if self.optimizer == "adambc" else 1 + self.stability)
        )


@dataclasses.dataclass(frozen=True)
class Curve:
    """The run of one trial so far. Not private: losses and accuracies are those of the training samples.

    Attributes
    ----------
    trial : Trial
        What was run.
    class_sizes : tuple of int
        The frequency groups, by samples per class.
    steps : tuple of int
        After how many steps the rest was measured.
    loss, accuracy : tuple of float
        Over all samples.
    group_loss, group_accuracy : tuple of tuples of float
        By step, then by group.
    diverged : bool
        Whether the loss ceased to be finite after the last entry.
    """

    trial: Trial
    class_sizes: tuple[int, ...]
    steps: tuple[int, ...]
    loss: tuple[float, ...]
    accuracy: tuple[float, ...]
    group_loss: tuple[tuple[float, ...], ...]
    group_accuracy: tuple[tuple[float, ...], ...]
    diverged: bool = False

    @property
    def final_loss(self) -> float:
        """Over all training samples; infinite if the run diverged or has no entry."""
        return math.inf if self.diverged or not self.loss else self.loss[-1]

    def epsilon(self, delta: float = 1e-5) -> list[float]:
        """ε spent by each entry of ``steps``: the certified upper bound of the full-batch Gaussian mechanism.

        Parameters
        ----------
        delta : float
            δ in (0, 1). The paper does not say its own.

        Returns
        -------
        list of float
            0 before the first step.

        Formal guarantees
        -----------------
        That of ``dprmt.accounting.DPSGD(σ, 1.0)`` for the released gradients, add or remove one sample. The
        curve itself is not private, and neither is a choice among trials by their loss.
        """
        return [epsilon_after(self.trial.noise_multiplier, step, delta) for step in self.steps]


@functools.cache
def epsilon_after(noise_multiplier: float, steps: int, delta: float) -> float:
    """Upper bound on ε after that many full-batch steps.

    Parameters
    ----------
    noise_multiplier : float
        σ > 0.
    steps : int
        T >= 0.
    delta : float
        δ in (0, 1).

    Returns
    -------
    float
        0 if T = 0.

    Raises
    ------
    ParameterError
        If an argument is out of its range.

    Formal guarantees
    -----------------
    That of ``dprmt.accounting.DPSGD`` at sampling rate 1: the composed mechanism is (ε, δ)-differentially private for
    adding or removing one sample, in exact arithmetic.

    Examples
    --------
    >>> round(epsilon_after(10.0, 1000, 1e-5), 2)
    17.86
    """
    return DPSGD(noise_multiplier, 1.0).epsilon(steps=steps, delta=delta).upper if steps else 0.0


def curve_from_rows(trial: Trial, class_sizes: tuple[int, ...], rows: Sequence[Mapping[str, Any]]) -> Curve:
    """The curve in the lines of a results file.

    A run that was killed repeats the steps since its last checkpoint; of lines of the same step the last counts.

    Parameters
    ----------
    trial : Trial
        What was run.
    class_sizes : tuple of int
        The frequency groups.
    rows : sequence of dict
        With step, loss, accuracy, group_loss, group_accuracy; or with step and diverged.

    Returns
    -------
    Curve
        Sorted by step.
    """
    by_step = {row["step"]: row for row in rows}
    measured = [by_step[step] for step in sorted(by_step) if not by_step[step].get("diverged")]
    return Curve(
        trial,
        class_sizes,
        steps=tuple(row["step"] for row in measured),
        loss=tuple(row["loss"] for row in measured),
        accuracy=tuple(row["accuracy"] for row in measured),
        group_loss=tuple(tuple(row["group_loss"]) for row in measured),
        group_accuracy=tuple(tuple(row["group_accuracy"]) for row in measured),
        diverged=len(measured) < len(by_step),
    )
