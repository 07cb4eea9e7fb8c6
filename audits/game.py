"""One distinguishing game: whether the canary is in the training set, or which of two samples is.

Every trial is a run of the code as users call it: draw a batch by Poisson sampling, clip, add noise, step. The
adversary sees the parameters after every step, and knows all but the noise, the coins and secret probes: the
other samples, the model, the canary. It is given a *twin*, the same code without noise, to learn what a step does
with and without the canary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from scipy import stats

from audits.bounds import Scores
from audits.canaries import Sample, losses
from dprmt.accounting import ExactNorms, ReplaceOne

Parameters = torch.Tensor  # all trainable ones, flat, float64
Rounds = Iterator[tuple[int, list[int]]]  # numbers of steps and their batches
_LENGTHS = 64  # of the canary's clipped gradient, for an adversary who cannot see the probes
_LEAST_VARIANCE = 1e-18
_CALIBRATION = 60  # releases from which the adversary learns the noise of every parameter


class Private(Protocol):
    """A private step, as `make_private` returns it."""

    model: torch.nn.Module
    optimizer: Any
    record: Any

    def accumulate(self, losses: Any, *, samples: Any, step: int, batch: Any = None, units: Any = None) -> object:
        """Clip and add."""

    def step(self) -> None:
        """Noise and move."""


Factory = Callable[[float], tuple[torch.nn.Module, Private]]  # of the noise multiplier; rate of the optimizer 1


@dataclass(frozen=True)
class Game:
    """What is played.

    Attributes
    ----------
    name : str
        For the report.
    factory : callable
        Makes the model, always with the same values and the same probes, and the private step, C = 1.
    canary : Sample
        The sample whose presence is to be told.
    others : list of Sample
        The rest of the training set.
    noise_multiplier, sample_rate : float
        σ and q.
    expected_batch_size : float
        What the factory was told.
    steps : int
        Per trial.
    micro_batch : int
        Samples at once.
    probes_are_public : bool
        Whether the adversary has the twin use the run's probes. If not, it knows only their law.
    canary_first : bool
        Whether the canary is the first of a batch, so that the others move to other micro-batches.
    law : callable, optional
        p-value of lengths of the clipped canary, in units of C.
    replacement : Sample, optional
        What is there, with the canary's coins, when the canary is not: the claim is then that of replace-one.
    rows : int
        How many rows like this every sample has, all of a unit that is one sample; 1 for rows that are samples.
    """

    name: str
    factory: Factory
    canary: Sample
    others: list[Sample] = field(default_factory=list)
    noise_multiplier: float = 1.0
    sample_rate: float = 1.0
    expected_batch_size: float = 1.0
    steps: int = 1
    micro_batch: int = 64
    probes_are_public: bool = True
    canary_first: bool = False
    law: Callable[[NDArray[np.float64]], float] | None = None
    replacement: Sample | None = None
    rows: int = 1

    def claim(self) -> Any:
        """The mechanism that the code says one step is."""
        said = self.factory(self.noise_multiplier)[1].record.mechanism(self.noise_multiplier, self.sample_rate)
        return said if self.replacement is None else replace(said, neighbours=ReplaceOne())

    def other(self) -> Game | None:
        """The same with the replacement in the canary's place."""
        return None if self.replacement is None else replace(self, canary=self.replacement, replacement=None)


class Runner:
    """A private step whose every step starts from the same parameters."""

    def __init__(self, game: Game, noise_multiplier: float) -> None:
        self._game = game
        self._model, self._private = game.factory(noise_multiplier)
        self._start = {name: value.detach().clone() for name, value in self._trainable()}
        self.record, self.members = self._private.record, len(game.others) + 1

    def release(self, batch: list[int], step: int) -> Parameters:
        """What a step moves the parameters by, times the expected batch size: the noisy sum."""
        samples = [*self._game.others, self._game.canary]
        if self._game.canary_first:
            batch = sorted(batch, key=lambda i: i < len(samples) - 1)
        for start in range(0, len(batch), self._game.micro_batch):
            piece = batch[start : start + self._game.micro_batch]
            if self._game.rows > 1:
                self._add_units(piece, samples, step)
            else:
                values = losses(self._private.model, [samples[i] for i in piece])
                self._private.accumulate(values, samples=piece, step=step)
        self._private.step()
        moved = []
        with torch.no_grad():
            for name, value in self._trainable():
                moved.append((self._start[name].double() - value.double()).flatten())
                value.copy_(self._start[name])
        return self._game.expected_batch_size * torch.cat(moved)

    def _add_units(self, piece: list[int], samples: list[Sample], step: int) -> None:
        # As users do: a function of the batch, whose rows come in any order.
        rows = [(f"{unit} {row}", unit) for row in range(self._game.rows) for unit in piece]
        places = torch.tensor([unit for _, unit in rows])
        names = [name for name, _ in rows]

        def values(batch: torch.Tensor) -> torch.Tensor:
            return losses(self._private.model, [samples[i] for i in batch.tolist()])

        self._private.accumulate(values, samples=names, step=step, batch=places, units=places)

    def layout(self) -> list[int]:
        """Sizes of the parameters."""
        return [value.numel() for _, value in self._trainable()]

    def _trainable(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name, value) for name, value in self._model.named_parameters() if value.requires_grad]


class Adversary:
    """The likelihood ratio of "in" against "out", with what may be known.

    Parameters
    ----------
    game : Game
        What is played.
    variances : Tensor
        Of the entries of a release.
    """

    def __init__(self, game: Game, variances: Parameters) -> None:
        self.game, self.variances = self._game, self._variances = game, variances
        self._without, self._with = Runner(game, 0.0), Runner(game, 0.0)
        self._nothing = torch.zeros(sum(self._with.layout()), dtype=torch.float64)
        # Exact norms, and unseen probes, make every step the same in expectation: asked once.
        self._every_step = game.probes_are_public and not isinstance(self._with.record.norms, ExactNorms)
        self._known: dict[tuple[int, ...], tuple[Parameters, Parameters]] = {}
        self._lengths = np.ones(1) if game.probes_are_public else self._law_of_length()

    def score(self, release: Parameters, others: list[int], step: int) -> float:
        """Log of the ratio of densities of one release, over the canary's coin and its unseen probes."""
        without, difference = self._means(others, step)
        projected = float((difference * (release - without) / self._variances).sum())
        distance = float((difference.square() / self._variances).sum())
        ratios = self._lengths * projected - self._lengths**2 * distance / 2
        ratio = float(np.logaddexp.reduce(ratios) - np.log(len(ratios)))
        rate = self._game.sample_rate
        return ratio if rate == 1.0 else float(np.logaddexp(np.log1p(-rate), np.log(rate) + ratio))

    def residual(self, release: Parameters, others: list[int], step: int) -> Parameters:
        """What of a release without the canary is noise."""
        return release - self._means(others, step)[0]

    def _means(self, others: list[int], step: int) -> tuple[Parameters, Parameters]:
        if self._every_step:
            return self._ask(others, step)
        key = tuple(others)
        if key not in self._known:
            without, difference = self._ask(others, step)
            unit = 1.0 if self._game.probes_are_public else float(difference.norm())
            self._known[key] = without, difference / unit
        return self._known[key]

    def _ask(self, others: list[int], step: int) -> tuple[Parameters, Parameters]:
        without = self._without.release(others, step) if others else self._nothing
        return without, self._with.release([*others, len(self._game.others)], step) - without

    def _law_of_length(self) -> NDArray[np.float64]:
        return canary_lengths(self._game, _LENGTHS)


def canary_lengths(game: Game, count: int) -> NDArray[np.float64]:
    """Lengths of the clipped canary over so many steps, in units of C."""
    twin = Runner(game, 0.0)
    return np.array([float(twin.release([len(game.others)], step).norm()) for step in range(count)])


def noise_p_value(game: Game, count: int = 40) -> float:
    """Of the noise's variance against (σC)², two-sided, the smallest over parameters times their number.

    Of steps of all the other samples: noise that depends on how a batch is split is seen.
    """
    runner, twin = Runner(game, game.noise_multiplier), Runner(game, 0.0)
    others = list(range(len(game.others)))
    squares = torch.stack([(runner.release(others, s) - twin.release(others, s)).square() for s in range(count)])
    p_values = []
    for piece in squares.sum(0).split(runner.layout()):
        total = stats.chi2(count * len(piece))
        observed = float(piece.sum()) / game.noise_multiplier**2
        p_values.append(2 * min(total.cdf(observed), total.sf(observed)))
    return min(1.0, len(p_values) * min(p_values))


def play(game: Game, trials: int, seed: int = 0) -> tuple[Scores, Scores]:
    """Scores of so many trials without and with the canary.

    Parameters
    ----------
    game : Game
        What is played.
    trials : int
        In each of the two worlds.
    seed : int
        Of the coins; the noise is the factory's.

    Returns
    -------
    tuple of ndarray
        Of shape (trials,) each.
    """
    runner, members = Runner(game, game.noise_multiplier), len(game.others) + 1
    coins = UniformWithReplacementSampler(
        num_samples=members,
        sample_rate=game.sample_rate,
        generator=torch.Generator().manual_seed(seed),
        steps=_CALIBRATION + 2 * trials * game.steps,
    )
    rounds = enumerate(iter(coins))
    adversary = Adversary(game, torch.ones(()))
    adversary = Adversary(game, _variances(adversary, runner, [next(rounds) for _ in range(_CALIBRATION)]))
    other = game.other()
    if other is not None:
        return _which(
            runner,
            adversary,
            Runner(other, game.noise_multiplier),
            Adversary(other, adversary.variances),
            rounds,
            trials,
        )
    worlds = np.zeros((2, trials))
    for world, trial in np.ndindex(2, trials):
        for step, batch in (next(rounds) for _ in range(game.steps)):
            others = [i for i in batch if i < members - 1]
            release = runner.release(batch if world else others, step)
            worlds[world, trial] += adversary.score(release, others, step)
    return worlds[0], worlds[1]


def _which(
    runner: Runner, adversary: Adversary, other: Runner, without: Adversary, rounds: Rounds, trials: int
) -> tuple[Scores, Scores]:
    """Of two samples with the same coins: the ratio of both likelihoods."""
    worlds = np.zeros((2, trials))
    for world, trial in np.ndindex(2, trials):
        for step, batch in (next(rounds) for _ in range(adversary.game.steps)):
            others = [i for i in batch if i < runner.members - 1]
            release = (runner if world else other).release(batch, step)
            worlds[world, trial] += adversary.score(release, others, step) - without.score(release, others, step)
    return worlds[0], worlds[1]


def _variances(adversary: Adversary, runner: Runner, rounds: list[tuple[int, list[int]]]) -> Parameters:
    # Of every parameter by itself: noise that misses one is seen.
    others = [(step, [i for i in batch if i < runner.members - 1]) for step, batch in rounds]
    noise = torch.stack([adversary.residual(runner.release(batch, step), batch, step) for step, batch in others])
    pieces = noise.square().mean(0).split(runner.layout())
    means = [piece.mean().clamp(min=_LEAST_VARIANCE).expand(len(piece)) for piece in pieces]
    return torch.cat(means)
