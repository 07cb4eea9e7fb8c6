"""Games against models that ``fully_shard`` spreads over processes: canaries are shared out, noise is by shard.

Every process plays the same game, with the same coins; the adversary sees whole parameters, as any of them can.
"""

from __future__ import annotations

import functools
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import fully_shard

from audits.blocks import ManyGames, Stage, many_games, play_many
from audits.bounds import Scores
from audits.processes import in_processes

_LIMIT, _MANY = 3600.0, 1000  # seconds of a game; more than there are canaries
PLAYED = (
    "exact, clipped",
    "ghost, clipped",
    "hutchinson, public probes",
    "hutchinson, public probes, spread",
    "hutchinson, secret probes",
)


@dataclass(frozen=True)
class ShardedGame:
    """A game of many blocks in so many processes.

    Attributes
    ----------
    game : ManyGames
        What is played.
    processes : int
        How many share the model.
    bug : {"", "a sample in every process", "a share of the noise in every process"}
        What is wrong, if anything.
    """

    game: ManyGames
    processes: int = 2
    bug: str = ""

    @property
    def name(self) -> str:
        """For the report."""
        return f"{self.game.name}, {self.processes} shards"

    @property
    def noise_multiplier(self) -> float:
        """σ."""
        return self.game.noise_multiplier

    @property
    def sample_rate(self) -> float:
        """The rate q."""
        return self.game.sample_rate

    @property
    def steps(self) -> int:
        """Per trial."""
        return self.game.steps

    def claim(self) -> Any:
        """The mechanism that the sharded step's record says one step is."""
        return self._in_processes(_claim)

    def play(self, trials: int, seed: int = 0) -> tuple[Scores, Scores]:
        """Scores of so many trials without and with the canary."""
        scores: tuple[Scores, Scores] = self._in_processes(functools.partial(_play, trials=trials, seed=seed))
        return scores

    def _in_processes(self, work: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            found = in_processes(self.processes, functools.partial(work, self), Path(folder), _LIMIT)
        wrong = [one for one in found if isinstance(one, str)]
        if wrong:
            raise RuntimeError(wrong[0])
        return found[0]


class ShardedStage(Stage):
    """A stage whose parameters no process holds."""

    def __init__(self, game: ManyGames, noise_multiplier: float, bug: str = "") -> None:
        self._rank, self._size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self._bug = bug
        share = self._size**0.5 if bug == "a share of the noise in every process" else 1.0
        # No longest text, and no small layer estimated: norms that have a rank are refused where parameters are shards.
        options = {key: value for key, value in game.options.items() if key != "tokens"}
        options |= {"everything": False} if "secret" in options else {}
        super().__init__(replace(game, options=options), noise_multiplier / share)

    def prepared(self, model: torch.nn.Module) -> torch.nn.Module:
        """Spread over the processes."""
        return fully_shard(model)

    def accumulate(self, batch: list[int], step: int, names: list[int] | None = None) -> None:
        """Clip and add a share of the batch, or take part with a row that counts nothing."""
        if self._bug == "a sample in every process":  # which is refused where it has the same name in both
            return super().accumulate(batch, step, [i + _MANY * self._rank for i in batch])
        mine = batch[self._rank :: self._size]
        self.private.stands_in = not mine
        return super().accumulate(mine or batch[:1], step)

    def trained(self) -> list[tuple[str, Any]]:
        """Shards, also after a pass that has left them whole."""
        self._model.reshard()
        return super().trained()

    def whole(self, value: Any) -> torch.Tensor:
        """Gathered."""
        return value.full_tensor()


def sharded_games(steps: int = 1) -> list[ShardedGame]:
    """Games of exact norms, formed and by Gram matrices, and of estimated ones, in two processes."""
    return [ShardedGame(game) for game in many_games(steps) if game.name in PLAYED]


def planted_in_shards() -> dict[str, ShardedGame]:
    """Bugs that only several processes can have, by name."""
    (game,) = (one for one in many_games(1) if one.name == "ghost, clipped")
    bugs = ("a sample in every process", "a share of the noise in every process")
    return {bug: ShardedGame(game, bug=bug) for bug in bugs}


def _claim(sharded: ShardedGame, rank: int, size: int) -> Any:
    stage = ShardedStage(sharded.game, 1.0)
    return stage.private.record.mechanism(sharded.noise_multiplier, sharded.sample_rate)


def _play(sharded: ShardedGame, rank: int, size: int, *, trials: int, seed: int) -> tuple[Scores, Scores]:
    return play_many(sharded.game, trials, seed, stage=functools.partial(ShardedStage, bug=sharded.bug))
