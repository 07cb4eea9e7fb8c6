"""Training of adapters in upper layers from what is computed once, against the harness' own training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
for _package in ("opacus", "transformers", "peft"):
    pytest.importorskip(_package)

from dprmt.training.data import load_data  # noqa: E402
from dprmt.training.evaluation import evaluate_classification  # noqa: E402
from dprmt.training.harness import run_in_memory, train  # noqa: E402
from dprmt.training.models import load_model, load_tokenizer  # noqa: E402
from dprmt.training.recipes import Recipe  # noqa: E402
from paper_figures.denoising._upper_layers import UpperLayers  # noqa: E402
from tests.training.tiny_recipe import recipe_in, write_data  # noqa: E402

FIRST = 1
SIZES = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}
TARGETS = [f"layer.{layer}.attention.self.{part}" for layer in (1, 2) for part in ("query", "value")]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: Any) -> Recipe:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    lora = {"rank": 4, "alpha": 8, "targets": TARGETS}
    changes = {"model.config": {**SIZES, "max_position_embeddings": 64}, "model.lora": lora, "training.steps": 3}
    return recipe_in(folder, **changes, **{"privacy.clipping_norm": 0.5, "evaluation.every": 3})


@pytest.fixture(scope="module")
def data(recipe: Recipe) -> Any:
    return load_data(recipe.data, load_tokenizer(recipe.model), recipe.model.task)


def model_of(recipe: Recipe, data: Any) -> Any:
    seed, tokenizer = recipe.training.seed, load_tokenizer(recipe.model)
    return load_model(recipe.model, labels=len(data.labels), seed=seed, tokenizer=tokenizer).model


def task_of(recipe: Recipe, data: Any, precision: Any = torch.float32) -> UpperLayers:
    splits = {name: [part[i] for i in range(len(part))] for name, part in _parts(data).items()}
    return UpperLayers(model_of(recipe, data), FIRST, splits, precision)


def _parts(data: Any) -> dict[str, Any]:
    return {"train": data.train, "validation": data.validation}


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("method", ["none", "paper"])
def test_a_run_is_that_of_the_harness(recipe: Recipe, data: Any, tmp_path: Path, method: str, seed: int) -> None:
    """Same coins, noise, clipping and denoiser, and so the same weights and scores."""
    own = recipe.with_changes({"training.seed": seed, "denoising.method": method, "denoising.exclude": ()})
    result = train(own, tmp_path / "run", noise_seed=seed)
    model, task = model_of(own, data), task_of(own, data)
    with run_in_memory(model, task, own.settings, noise_seed=seed) as run:
        losses = [record.loss for record in run.steps()]
    scores = task.scores(model, "validation")
    assert len(losses) == 3
    assert scores["accuracy"] == result.evaluation["accuracy"]
    assert scores["loss"] == pytest.approx(result.evaluation["loss"], abs=1e-5)
    again = evaluate_classification(model, data, metrics=("accuracy",), batch_size=8)
    assert again["loss"] == pytest.approx(scores["loss"], abs=1e-5)


def test_sums_are_those_of_gradients_one_by_one(recipe: Recipe, data: Any) -> None:
    """Each text's gradient by autograd through the whole model, cut to C, adapters no longer at their start."""
    model, task = model_of(recipe, data).eval(), task_of(recipe, data)
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    with torch.no_grad():
        for value in trained.values():
            value.add_(0.1 * torch.randn(value.shape, generator=torch.Generator().manual_seed(1)))
    lengths = [len(data.train[i]["input_ids"]) for i in range(20)]
    assert len({-(-length // 4) for length in lengths}) > 1
    clip, expected, cut = 1.7, {name: torch.zeros_like(value) for name, value in trained.items()}, 0
    for place in range(20):
        ids = torch.tensor([data.train[place]["input_ids"]])
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor([data.train[place]["labels"]]))
        gradients = torch.autograd.grad(loss, list(trained.values()))
        norm = float(torch.stack([value.norm() for value in gradients]).norm())
        cut += norm > clip
        for name, value in zip(trained, gradients, strict=True):
            expected[name] += value * min(1.0, clip / norm)
    assert 5 < cut < 15
    found = {name: torch.zeros_like(value) for name, value in trained.items()}
    for texts in task.splits["train"].at(range(20)):
        for name, value in task.clipped_gradients(model, texts, clip)[1].items():
            found[name] += value
    for name, value in expected.items():
        assert torch.allclose(found[name], value, atol=1e-5), name


def test_products_in_16_bits_are_near_and_are_used(recipe: Recipe, data: Any) -> None:
    model = model_of(recipe, data)
    exact, rough = (task_of(recipe, data, precision) for precision in (torch.float32, torch.bfloat16))
    for wide, narrow in zip(exact.splits["train"].blocks, rough.splits["train"].blocks, strict=True):
        logits, other = exact.logits(model, wide), rough.logits(model, narrow)
        assert torch.allclose(logits, other, atol=0.02)
        assert not torch.equal(logits, other)
