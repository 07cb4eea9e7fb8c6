"""Many games at once: every trial has a canary of its own, in a block of the parameters that no other one reaches.

The model is one linear layer, the canary of trial i has its inputs and output gradients in block i. A real step (draw,
clip, noise, step) then plays as many trials as there are blocks: each sample is clipped by its own norm, the noise of
different blocks is independent, and each sample has a coin of its own.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from opacus.utils.uniform_sampler import UniformWithReplacementSampler

from audits.bounds import Scores
from audits.steps import make_private
from dprmt.accounting import ExactNorms
from dprmt.training.norms import HutchinsonEstimator, ProbeGenerator
from dprmt.training.optimizers import DPGrape
from dprmt.training.subspaces import Subspaces

COPIES, WIDTH, LONG = 24, 6, 50.0
_CALIBRATION = 20  # steps from which the adversary learns how large the noise is
_LENGTHS = 40  # steps from which it learns the law of a length that it cannot see


@dataclass(frozen=True)
class ManyGames:
    """What is played in every block.

    Attributes
    ----------
    name : str
        For the report.
    kind : {"whole", "lora", "grape"}
        What is trained.
    options : dict
        Of `make_private`.
    spread : bool
        Whether the canary's gradient has many singular values in place of one.
    length : float
        Of the canary's gradient before clipping, times C, or so: what is below 1 is not clipped.
    noise_multiplier, sample_rate : float
        σ and q.
    steps : int
        Per trial.
    probes_are_public : bool
        Whether the adversary's twin has the run's probes.
    device : str
        Where the code under test computes; the adversary is on the CPU.
    """

    name: str
    kind: str
    options: dict[str, Any]
    spread: bool = False
    length: float = LONG
    noise_multiplier: float = 1.0
    sample_rate: float = 1.0
    steps: int = 1
    probes_are_public: bool = True
    device: str = "cpu"

    def claim(self) -> Any:
        """The mechanism that the code says one step is."""
        return Stage(self, 1.0).private.record.mechanism(self.noise_multiplier, self.sample_rate)


class Stage:
    """The model, made private, whose every step starts from the same parameters."""

    def __init__(self, game: ManyGames, noise_multiplier: float) -> None:
        self._game = game
        model = self.prepared(_model(game))
        self.private = _private(game, model, noise_multiplier)
        self._model = model
        self._start = {name: value.detach().clone() for name, value in self.trained()}
        self._samples = _samples(game)
        self._subspaces: Any = getattr(self.private.optimizer.original_optimizer, "subspaces", None)

    @property
    def clock(self) -> int:
        """Steps taken, which decide the subspace: public."""
        return 0 if self._subspaces is None else int(self._subspaces.step)

    def release(self, batch: list[int], step: int, clock: int | None = None) -> torch.Tensor:
        """What a step moves the parameters by, by block: shape (COPIES, n), the noisy sum; ``clock`` sets the time."""
        subspaces = self._subspaces
        if clock is not None and subspaces is not None:
            subspaces.step = clock
        projectors = {layer.weight: subspaces.projector(layer.weight).double() for layer in subspaces or ()}
        if batch:
            self.accumulate(batch, step)
        self.private.step()
        parts = []
        with torch.no_grad():
            for name, value in self.trained():
                moved = self.whole(self._start[name] - value)
                if value in projectors:  # what is released is R, and the parameters move by PR
                    moved = torch.linalg.lstsq(projectors[value], subspaces.layer(value).orient(moved)).solution
                parts.append(_by_block(moved).cpu())
                value.copy_(self._start[name])
        return torch.cat(parts, 1)

    def prepared(self, model: torch.nn.Module) -> torch.nn.Module:
        """What is made private."""
        return model

    def accumulate(self, batch: list[int], step: int, names: list[int] | None = None) -> None:
        """Clip and add these canaries, under their numbers or other names."""
        inputs, targets = (part[batch] for part in self._samples)
        losses = (targets * self.private.model(inputs)).flatten(1).sum(1)
        self.private.accumulate(losses, samples=names or batch, step=step)

    def whole(self, value: torch.Tensor) -> torch.Tensor:
        """Of what a step has moved, all."""
        return value

    def trained(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Trainable parameters, by name."""
        return [(name, value) for name, value in self._model.named_parameters() if value.requires_grad]


def play_many(
    game: ManyGames, trials: int, seed: int = 0, stage: Callable[[ManyGames, float], Stage] = Stage
) -> tuple[Scores, Scores]:
    """Scores of so many trials without and with the canary, rounded up to whole rounds of all blocks.

    Parameters
    ----------
    game : ManyGames
        What is played.
    trials : int
        In each world.
    seed : int
        Of the coins.
    stage : callable
        Makes a stage with so much noise.

    Returns
    -------
    tuple of ndarray
        Log likelihood ratios, of shape (trials,) each.
    """
    rounds = math.ceil(trials / COPIES)
    played, twin = stage(game, game.noise_multiplier), stage(game, 0.0)
    sampler = UniformWithReplacementSampler(
        num_samples=COPIES,
        sample_rate=game.sample_rate,
        generator=torch.Generator().manual_seed(seed),
        steps=rounds * game.steps,
    )
    variance = float(torch.stack([played.release([], s) for s in range(_CALIBRATION)]).square().mean())
    adversary, numbers = _Adversary(game, twin, variance), iter(range(10**6, 10**9))
    coins, scores = iter(sampler), np.zeros((2, rounds, COPIES))
    for row in range(rounds):
        for _ in range(game.steps):
            for world, batch in enumerate(([], next(coins))):
                step, clock = next(numbers), played.clock
                scores[world, row] += adversary.score(played.release(batch, step), step, clock)
    return scores[0].ravel(), scores[1].ravel()


class _Adversary:
    """The likelihood ratio of every block, with what may be known."""

    def __init__(self, game: ManyGames, twin: Stage, variance: float) -> None:
        self._game, self._twin, self._variance = game, twin, variance
        self._everybody = list(range(COPIES))
        self._random = not isinstance(twin.private.record.norms, ExactNorms)
        means = twin.release(self._everybody, 0)
        self._mean, self._lengths = means, torch.ones(1, dtype=torch.float64)
        if self._random and not game.probes_are_public:
            self._mean = means / means.norm(dim=1, keepdim=True)
            self._lengths = torch.cat([twin.release(self._everybody, s).norm(dim=1) for s in range(1, _LENGTHS)])

    def score(self, release: torch.Tensor, step: int, clock: int) -> Scores:
        mean = self._mean
        if (self._random and self._game.probes_are_public) or self._game.kind == "grape":
            mean = self._twin.release(self._everybody, step, clock)
        projected, square = (mean * release).sum(1), mean.square().sum(1)
        z = self._lengths[:, None]
        ratios = torch.logsumexp((z * projected - z**2 * square / 2) / self._variance, 0) - math.log(len(z))
        rate = self._game.sample_rate
        if rate < 1:
            ratios = torch.logaddexp(torch.full_like(ratios, math.log1p(-rate)), math.log(rate) + ratios)
        return np.asarray(ratios)


def many_games(steps: int) -> list[ManyGames]:
    """Every game, of so many steps, with noise that grows with √steps: the claim on all steps stays about the same."""
    batch, sample = {"secret": False, "tokens": 6}, {"secret": True, "tokens": 6}  # everything estimated

    def game(name: str, kind: str, options: dict[str, Any], **keys: Any) -> ManyGames:
        return ManyGames(name, kind, options, steps=steps, **{"noise_multiplier": math.sqrt(steps), **keys})

    exact, ghost = {"norms": "exact"}, {"norms": "ghost"}
    return [
        game("exact, clipped", "whole", exact),
        game("exact, spread", "whole", exact, spread=True),
        game("exact, not clipped", "whole", exact, length=0.9),
        game("exact, q = 0.3", "whole", exact, sample_rate=round(0.3 * 2**24) / 2**24, noise_multiplier=0.5),
        game("ghost, clipped", "whole", ghost),
        game("hutchinson, public probes", "whole", batch),
        game("hutchinson, public probes, spread", "whole", batch, spread=True),
        game("hutchinson, secret probes", "whole", sample, probes_are_public=False),
        game("exact, LoRA", "lora", exact),
        game("hutchinson, LoRA, public probes", "lora", batch),
        game("exact, DP-GRAPE", "grape", exact),
        game("hutchinson, DP-GRAPE, public probes", "grape", batch),
    ]


def _model(game: ManyGames) -> torch.nn.Module:
    size = COPIES * WIDTH
    model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(size, size, bias=False))
    if game.kind == "lora":
        from peft import LoraConfig, inject_adapter_in_model

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = inject_adapter_in_model(LoraConfig(r=2, lora_alpha=2, target_modules=["0"]), model)
    generator = torch.Generator().manual_seed(5)
    model = model.double().train()
    for value in model.parameters():
        random = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        value.data = random if game.kind == "lora" and value.requires_grad else torch.zeros_like(value)
    return model.to(game.device)


def _private(game: ManyGames, model: torch.nn.Module, noise_multiplier: float) -> Any:
    options: dict[str, Any] = {**game.options, "clipping_norm": 1.0, "expected_batch_size": 1.0}
    noise_generator = torch.Generator(game.device).manual_seed(7 + _rank())
    options |= {"noise_multiplier": noise_multiplier, "noise_generator": noise_generator}
    if "secret" in options:
        generator, secret, everything = ProbeGenerator(seed=1), options.pop("secret"), options.pop("everything", True)
        options["norms"] = HutchinsonEstimator(4, secret=secret, everything=everything, generator=generator)
    trained = [value for value in model.parameters() if value.requires_grad]
    if game.kind == "grape":
        subspaces = Subspaces(model, rank=12, refresh_every=10, seed=3)
        optimizer = DPGrape(trained, lr=1.0, subspaces=subspaces, rule="sgd")
        return make_private(model, optimizer, **{"norms": "exact", **options})
    return make_private(model, torch.optim.SGD(trained, lr=1.0), **options)


def _rank() -> int:
    # Processes noise other rows, from streams of their own.
    return int(torch.distributed.get_rank()) if torch.distributed.is_initialized() else 0


def _samples(game: ManyGames) -> tuple[torch.Tensor, torch.Tensor]:
    # Inputs and output gradients of the canaries, each in its own block; a gradient as long as the game's length.
    block = torch.eye(WIDTH, dtype=torch.float64) if game.spread else torch.ones(1, WIDTH, dtype=torch.float64)
    block = block / (block.mT @ block).norm().sqrt()
    placed = torch.zeros(COPIES, len(block), COPIES, WIDTH, dtype=torch.float64)
    for i in range(COPIES):
        placed[i, :, i] = block
    inputs = placed.flatten(2).to(game.device)
    return inputs, game.length * inputs


def _by_block(matrix: torch.Tensor) -> torch.Tensor:
    # (COPIES, n): what belongs to each block, of a whole matrix, of one with blocks of columns, or of rows.
    size = COPIES * WIDTH
    if matrix.shape == (size, size):
        return matrix.view(COPIES, WIDTH, COPIES, WIDTH).diagonal(dim1=0, dim2=2).permute(2, 0, 1).flatten(1)
    columns = matrix if matrix.shape[1] == size else matrix.mT
    return columns.reshape(len(columns), COPIES, WIDTH).permute(1, 0, 2).flatten(1)
