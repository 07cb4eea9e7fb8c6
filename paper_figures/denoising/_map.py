"""Clean gradients of real models over the noise of private training, by layer, batch and how long was trained.

A look at a model is a run of SGD whose rate moves nothing: its steps give sums of clipped gradients of one fixed model
over independent draws, which add up to those of larger batches. It is private, and the data here are public.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from dprmt.accounting import DPSGD, calibrate
from dprmt.training.data import TaskData
from dprmt.training.denoising import Denoising, DenoisingEvaluation, DenoisingStep
from dprmt.training.harness import ItemTask, Observer, run_in_memory
from dprmt.training.models import LoadedModel
from dprmt.training.recipes import Recipe, load_recipe
from paper_figures._needs import data_file
from paper_figures.shrinkers import detection_batch

EPSILONS = (1.0, 3.0, 6.7)
NOISES = (0.5, 1.0, 2.0)
"""Noise multipliers for which the batch that detects is estimated with an interval."""
_STILL = 1e-60  # a rate that float32 rounds to nothing


@dataclass(frozen=True)
class Setting:
    """A recipe, where on its way it is looked at, and how much is added up.

    Parameters
    ----------
    recipe : str
        A name, as for ``dprmt train``.
    files : str
        The folder of its files; "" where it needs none.
    changes : mapping
        To the recipe.
    stages : mapping of int to int
        Steps trained before each look, and how many draws it adds up.
    micro : int
        Samples expected in a draw.
    train : str
        A file in place of the recipe's data; "" for these.
    """

    recipe: str
    files: str
    changes: Mapping[str, Any]
    stages: Mapping[int, int]
    micro: int
    train: str = ""

    def load(self) -> Recipe:
        """The recipe, with its files where ``--data`` says."""
        recipe = load_recipe(self.recipe)
        if self.files:
            parts = ("train", "validation")
            names = {part: (self.train,) if self.train else getattr(recipe.data, part) for part in parts}
            there = {f"data.{part}": _files(self.files, of) for part, of in names.items()}
            recipe = recipe.with_changes({**there, "data.test": []})
        plain = {"denoising.method": "none", "evaluation.every": None, "telemetry.on": False}
        return recipe.with_changes({**plain, **self.changes})

    @property
    def batch(self) -> int:
        """The recipe's own expected batch."""
        return load_recipe(self.recipe).training.batch_size

    @property
    def delta(self) -> float:
        """The recipe's δ."""
        return load_recipe(self.recipe).privacy.delta

    def sizes(self, steps: int) -> list[int]:
        """Batches of the look after so many steps, from one draw to all of them, each twice the one before."""
        return [self.micro * 2**power for power in range(self.stages[steps].bit_length())]


def _files(folder: str, names: tuple[str, ...]) -> list[str]:
    return [str(data_file(f"{folder}/{name.rsplit('/', 1)[-1]}")) for name in names]


_SST2 = {"training.batch_size": 400, "training.steps": 40, "data.max_tokens": 64}
_HALF = {"model.dtype": "bfloat16"}
"""Frozen weights and products in 16 bits, adapters and sums in 32: two thirds of the time."""
SETTINGS: dict[str, Setting] = {
    "MiniLM, docstrings, LoRA": Setting("minilm-docstrings", "", {}, {0: 32, 30: 32}, 64),
    "MiniLM, docstrings, all weights": Setting(
        "minilm-docstrings",
        "",
        {"model.finetune": "full", "model.lora": None, "optimizer.learning_rate": 5e-4, "training.steps": 10},
        {0: 16, 10: 16},
        64,
    ),
    "MiniLM, SST-2, LoRA": Setting("minilm-sst2", "sst2", _SST2, {0: 64, 40: 64}, 64),
    "MiniLM, SST-2, LoRA in the last matrix": Setting(
        "minilm-sst2", "sst2", {**_SST2, "model.lora.targets": ["layer.5.output.dense"]}, {0: 64, 40: 64}, 64
    ),
    "SmolLM2, E2E, LoRA": Setting("smollm2-e2e", "e2e", {**_HALF, "training.steps": 6}, {0: 256, 6: 64}, 16),
    "SmolLM2, DART, LoRA": Setting("smollm2-dart", "dart", _HALF, {0: 64, 6: 64}, 16, "dart-v1.1.1-full-dev.json"),
    "small RoBERTa, docstrings": Setting("roberta-tiny-docstrings", "", {}, {0: 64, 60: 64}, 64),
    "small Qwen3, docstrings": Setting("qwen3-tiny-docstrings", "", {}, {0: 32, 30: 32}, 64),
}


class Sums(Observer):
    """Sums of clipped gradients of one model, added up over draws; **private**."""

    def __init__(self, micro: int, sizes: list[int]) -> None:
        self.leading: dict[str, list[list[float]]] = {}
        self.draws: dict[str, list[torch.Tensor]] = {}
        self.shapes: dict[str, tuple[int, int]] = {}
        self._micro, self._sizes, self._drawn = micro, sizes, 0
        self._sums: dict[str, torch.Tensor] = {}

    def start(self, run: Any) -> None:
        """Stand between noise and optimizer."""
        private = run.prepared.private
        self._step = DenoisingStep.attach(private.optimizer, run.prepared.parameters, Denoising(method="none"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that what follows is private
            self._clean = DenoisingEvaluation(self._step)
        self._step.observe(self, self._add)

    def end(self, run: Any) -> None:
        """Go away."""
        self._step.detach()

    def _add(self, noisy: Any, untouched: Any, sigma: float) -> None:
        self._drawn += self._micro
        for name, mean in self._clean.private_clean_gradients().items():
            if mean.ndim != 2:
                continue
            total = mean.double() * self._micro
            self._sums[name] = total + self._sums[name] if name in self._sums else total
            self.shapes[name] = (int(mean.shape[0]), int(mean.shape[1]))
            if mean.numel() <= _MOST_ENTRIES:
                self.draws.setdefault(name, []).append(mean.clone())
        if self._drawn in self._sizes:
            for name, total in self._sums.items():
                self.leading.setdefault(name, []).append(leading_singular_values(total))


_MOST_ENTRIES = 700_000  # of a matrix whose single draws are kept


def leading_singular_values(matrix: torch.Tensor, count: int = 5) -> list[float]:
    """The largest, in order, from the Gram matrix of the shorter side in float64."""
    tall = matrix.double() if matrix.shape[0] >= matrix.shape[1] else matrix.double().T
    values: list[float] = torch.linalg.eigvalsh(tall.T @ tall).flip(0)[:count].clamp(min=0).sqrt().tolist()
    return values


def label(name: str, steps: int) -> str:
    """What a look is stored under."""
    return f"{name}, step {steps}"


def looks(name: str, known: Collection[str] = (), minutes: float | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Train a setting's recipe from look to look; each that is not known as a name and what was seen.

    A look that takes longer than ``minutes`` by the clock ends at the batches it has reached by then.
    """
    setting = SETTINGS[name]
    recipe = setting.load()
    loaded, data = _loaded(recipe)
    trained = 0
    for steps in setting.stages:
        if steps > trained:
            _train(recipe, loaded, data, steps)
            trained = steps
        if label(name, steps) in known:
            continue
        layers = look(setting, recipe, loaded, data, steps, minutes)
        sizes = setting.sizes(steps)[: len(layers[0]["tops"])]
        yield (
            label(name, steps),
            {
                "setting": name,
                "step": steps,
                "samples": len(data.train),
                "length": recipe.training.steps,
                "sizes": sizes,
                "noise": {f"{of:g}": noise_multipliers(recipe, sizes, len(data.train), of) for of in EPSILONS},
                "layers": layers,
            },
        )


def noise_multipliers(recipe: Recipe, sizes: list[int], samples: int, epsilon: float) -> list[float | None]:
    """The recipe's length at this ε, for each batch; None where a batch is larger than the data."""
    delta = recipe.privacy.delta
    return [
        calibrate(
            DPSGD(1.0, size / samples), steps=recipe.training.steps, target_epsilon=epsilon, delta=delta
        ).noise_multiplier
        if size <= samples
        else None
        for size in sizes
    ]


def look(
    setting: Setting, recipe: Recipe, loaded: LoadedModel, data: TaskData, steps: int, minutes: float | None = None
) -> list[dict[str, Any]]:
    """Every matrix with a gradient: role, shape, λ₁ and λ₁ … λ₅ of sums over C by batch, the batch that detects it."""
    count = setting.stages[steps]
    changes = {
        "optimizer.name": "gd",
        "optimizer.learning_rate": _STILL,
        "optimizer.weight_decay": 0.0,
        "privacy.target_epsilon": None,
        "privacy.noise_multiplier": 1.0,
        "training.batch_size": setting.micro,
        "training.micro_batch_size": min(setting.micro, recipe.training.micro_batch_size or setting.micro),
        "training.steps": count,
    }
    sums = Sums(setting.micro, setting.sizes(steps))
    _run(recipe.with_changes(changes), loaded, data, count, [sums], minutes)
    clip = recipe.privacy.clipping_norm
    return [
        {
            "layer": name,
            "role": role_of(name),
            "shape": sums.shapes[name],
            "tops": [values[0] / clip for values in leading],
            "leading": [[value / clip for value in values] for values in leading],
            "detects": _detects(sums.draws[name], setting.micro, clip) if name in sums.draws else None,
        }
        for name, leading in sums.leading.items()
        if leading[-1][0] > 0
    ]


def _detects(draws: list[torch.Tensor], micro: int, clip: float) -> dict[str, list[float | None]]:
    # low, value, high by noise multiplier; None for infinity.
    stack, found = torch.stack(draws).double().numpy(), {}
    for noise in NOISES:
        batch = detection_batch(stack, micro, noise * clip)
        ends = (float(batch.low), float(batch.value), float(batch.high))
        found[f"{noise:g}"] = [None if end == float("inf") else end for end in ends]
    return found


def role_of(name: str) -> str:
    """LoRA A, LoRA B, embedding, head or full matrix."""
    for role, words in _ROLES.items():
        if any(word in name for word in words):
            return role
    return "full matrix"


_ROLES = {
    "LoRA A": ("lora_A",),
    "LoRA B": ("lora_B",),
    "embedding": ("embed", "wte", "wpe"),
    "head": ("classifier", "score", "lm_head", "out_proj.weight_head"),
}


def _loaded(recipe: Recipe) -> tuple[LoadedModel, TaskData]:
    from dprmt.training.data import load_data
    from dprmt.training.models import load_model, load_tokenizer

    tokenizer = load_tokenizer(recipe.model)
    data = load_data(recipe.data, tokenizer, recipe.model.task)
    labels = None if data.labels is None else len(data.labels)
    return load_model(recipe.model, labels=labels, seed=recipe.training.seed, tokenizer=tokenizer), data


def _train(recipe: Recipe, loaded: LoadedModel, data: TaskData, steps: int) -> None:
    _run(recipe, loaded, data, steps, [])


def _run(
    recipe: Recipe,
    loaded: LoadedModel,
    data: TaskData,
    steps: int,
    observers: list[Observer],
    minutes: float | None = None,
) -> None:
    from dprmt.training.data import per_sample_losses

    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    task = ItemTask(data.train, data.collate, per_sample_losses, lambda item: len(item["input_ids"]))
    seed = recipe.training.seed + 31 * bool(observers)
    with (
        _attention(recipe),
        run_in_memory(
            loaded.model, task, recipe.settings, noise_seed=seed, tokens=recipe.data.max_tokens, observers=observers
        ) as run,
    ):
        for done, _ in enumerate(run.steps(), start=1):
            if done == steps or time.monotonic() > end:
                break


def _attention(recipe: Recipe) -> AbstractContextManager[None]:
    # The fused one's backward pass in 16 bits is slow on a CPU.
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(SDPBackend.MATH) if recipe.model.dtype == "bfloat16" else nullcontext()
