"""A game's scores against the code's claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from audits.blocks import ManyGames, play_many
from audits.bounds import Scores, best_threshold, evidence, middle_threshold
from audits.game import Game, canary_lengths, noise_p_value, play
from audits.published import PublishedGame
from audits.shards import ShardedGame
from dprmt.accounting import DPSGD
from dprmt.accounting.basics._numbers import UnsoundLawError

DELTAS = (0.01, 0.03, 0.1, 0.2)
CONFIDENCE = 0.99  # of every bound
TIGHT = 0.7
_LENGTHS = 800
_UNLIKELY = 1e-5
Played = Game | ManyGames | PublishedGame | ShardedGame


@dataclass(frozen=True)
class Verdict:
    """What a game showed.

    Attributes
    ----------
    shown, claimed : tuple of float
        ε at every δ asked for: what the attack proves to be needed, and the accountant's upper bound.
    mu, claimed_mu : float
        The same for μ; ∞ is claimed where the step is not Gaussian differential privacy with one μ.
    law : float or None
        p-value of the lengths of the clipped canary.
    noise : float or None
        p-value of the noise's variance, of the parameter where it is most off.
    """

    shown: tuple[float, ...]
    claimed: tuple[float, ...]
    mu: float
    claimed_mu: float
    law: float | None
    noise: float | None = None

    @property
    def share(self) -> float:
        """The largest part of the claim that was shown to be needed."""
        return max(shown / claimed for shown, claimed in zip(self.shown, self.claimed, strict=True) if claimed > 0)

    @property
    def broken(self) -> bool:
        """Whether the claim was refuted."""
        refuted = any(shown > claimed for shown, claimed in zip(self.shown, self.claimed, strict=True))
        return refuted or self.mu > self.claimed_mu

    @property
    def other_law(self) -> bool:
        """Whether clipped gradients have other lengths, or the noise another variance, than the accountant takes."""
        return any(value is not None and value < _UNLIKELY for value in (self.law, self.noise))


def judge(
    game: Played,
    trials: int,
    seed: int = 0,
    *,
    deltas: tuple[float, ...] = DELTAS,
) -> Verdict:
    """Play, choose thresholds on a third of the trials, and bound the error rates on the rest."""
    without, inside = _played(game, trials, seed)
    third = len(without) // 3
    shown = []
    for delta in deltas:
        threshold = best_threshold(without[:third], inside[:third], delta, CONFIDENCE)
        shown.append(evidence(without[third:], inside[third:], threshold, CONFIDENCE).epsilon(delta))
    claim = game.claim()
    middle = middle_threshold(without[:third], inside[:third])
    replaced = isinstance(game, Game) and game.replacement is not None
    one_mu = isinstance(claim, DPSGD) and game.sample_rate == 1.0
    law, noise = _laws(game) if isinstance(game, Game) else (None, None)
    return Verdict(
        tuple(shown),
        tuple(_claimed(claim, game.steps, delta) for delta in deltas),
        evidence(without[third:], inside[third:], middle, CONFIDENCE).mu(),
        (2.0 if replaced else 1.0) * game.steps**0.5 / game.noise_multiplier if one_mu else float("inf"),
        law,
        noise,
    )


def _played(game: Played, trials: int, seed: int) -> tuple[Scores, Scores]:
    if isinstance(game, PublishedGame | ShardedGame):
        return game.play(trials, seed)
    return play_many(game, trials, seed) if isinstance(game, ManyGames) else play(game, trials, seed)


def _claimed(claim: Any, steps: int, delta: float) -> float:
    try:
        return float(claim.epsilon(steps=steps, delta=delta).upper)
    except UnsoundLawError:  # refused on one grid: on another the same law has an upper bound
        return float(claim.epsilon(steps=steps, delta=delta, tolerance=3e-3).upper)


def _laws(game: Game) -> tuple[float | None, float]:
    return game.law(canary_lengths(game, _LENGTHS)) if game.law is not None else None, noise_p_value(game)
