"""Recipes: the published hyperparameters, one error for every mistake, and files that read back to what was written."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprmt import ParameterError
from dprmt.training import recipes
from dprmt.training.recipes import LoraRecipe, builtin_recipes, load_recipe, recipe_from_dict

GLUE = ("sst2", "mnli", "qnli", "qqp")
LIBRARY = Path(recipes.__file__).parent / "library"
GENERATORS = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "llama-3.2-1b", "llama-3.2-3b", "smollm2")
EXAMPLE = load_recipe("roberta-base-sst2")


@pytest.mark.parametrize("name", builtin_recipes())
def test_built_in_recipes_are_named_like_their_files_and_survive_writing(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe_from_dict(tomllib.loads(recipe.to_toml())) == recipe
    assert recipe_from_dict(recipe.to_dict()) == recipe
    file = tmp_path / "config.toml"
    file.write_text(recipe.to_toml(), encoding="utf-8")
    if recipe.data.source == "files":
        places = {f"data.{s}": [str(tmp_path / f) for f in getattr(recipe.data, s)] for s in SPLITS}
        recipe = recipe.with_changes(places)
    assert load_recipe(file) == recipe


SPLITS = ("train", "validation", "test")


@pytest.mark.parametrize("size", ["base", "large"])
@pytest.mark.parametrize("task", GLUE)
def test_glue_recipes_have_the_values_of_appendix_j1(size: str, task: str) -> None:
    recipe = load_recipe(f"roberta-{size}-{task}")
    assert recipe.model.source is not None
    assert recipe.model.source.endswith(f"roberta-{size}")
    assert recipe.model.lora == LoraRecipe(
        rank=16, alpha=16, targets=("query", "key", "value", "intermediate.dense", "output.dense")
    )
    assert (recipe.training.batch_size, recipe.training.steps) == (2000, 400)
    assert (recipe.optimizer.learning_rate, recipe.optimizer.weight_decay) == (5e-4, 0.01)
    assert (recipe.privacy.clipping_norm, recipe.privacy.target_epsilon) == (10.0, 6.7)
    assert recipe.privacy.delta == (1e-6 if task in ("mnli", "qqp") else 1e-5)
    assert (recipe.denoising.method, recipe.denoising.kappa) == ("paper", 1.02)
    assert recipe.data.subset == task
    columns = {"sst2": 1}.get(task, 2)
    assert len(recipe.data.inputs) == columns


@pytest.mark.parametrize("model", GENERATORS)
@pytest.mark.parametrize("task", ["e2e", "dart"])
def test_generation_recipes_have_the_values_of_appendix_j2(model: str, task: str) -> None:
    recipe = load_recipe(f"{model}-{task}")
    assert recipe.model.lora == LoraRecipe(rank=32, alpha=64, targets=("q_proj", "v_proj"))
    assert (recipe.training.batch_size, recipe.training.steps) == (64, 400)
    assert (recipe.optimizer.learning_rate, recipe.optimizer.weight_decay) == (2e-4, 0.01)
    assert (recipe.privacy.clipping_norm, recipe.privacy.target_epsilon, recipe.privacy.delta) == (1.0, 5.4, 1e-5)
    search = recipe.evaluation
    assert (search.beams, search.max_new_tokens, search.length_penalty, search.no_repeat_ngram) == (10, 100, 0.9, 4)
    assert search.metrics == ("bleu", "nist", "rouge_l", "meteor", "cider")


@pytest.mark.parametrize("name", builtin_recipes())
def test_delta_is_below_one_over_the_training_items_or_the_recipe_says_so(name: str) -> None:
    sizes = {"sst2": 67_349, "mnli": 392_702, "qnli": 104_743, "qqp": 363_846, "dart": 62_659, "e2e": 42_061}
    sizes |= {"bbc": 1_225, "billsum": 18_949, "hotpotqa": 90_447}
    items = next((size for key, size in sizes.items() if key in name), 3_000)
    recipe = load_recipe(name)
    says = "δ is above 1/(training items)" in (LIBRARY / f"{name}.toml").read_text(encoding="utf-8")
    assert (recipe.privacy.delta * items > 1) == says == name.endswith("qnli")
    assert recipe.training.batch_size < items


BAD: list[tuple[dict[str, Any], str]] = [
    ({"optimizer.learning_rate": 0.0}, "optimizer.learning_rate"),
    ({"optimizer.lr": 1e-3}, "optimizer.lr"),
    ({"optimizer.name": "sgd"}, "optimizer.name"),
    ({"optimizer.betas": [0.9, 1.0]}, "optimizer.betas[1]"),
    ({"privacy.delta": None}, "privacy.delta"),
    ({"privacy.target_epsilon": -1.0}, "privacy.target_epsilon"),
    ({"privacy.target_epsilon": None}, "privacy.target_epsilon"),
    ({"privacy.noise_multiplier": 1.0}, "privacy.target_epsilon"),
    ({"privacy.norms.kind": "flat"}, "privacy.norms.kind"),
    ({"privacy.norms.probes": 32}, "privacy.norms.probes"),
    ({"privacy.norms.secret": True}, "privacy.norms.secret"),
    ({"privacy.norms": {"kind": "hutchinson", "power_iteration": False}}, "privacy.norms.power_iteration"),
    ({"training.batch_size": 0}, "training.batch_size"),
    ({"training.steps": None}, "training.steps"),
    ({"denoising.kappa": 0.99}, "denoising.kappa"),
    ({"evaluation.metrics": ["bleurt"]}, "evaluation.metrics"),
    ({"evaluation.metrics": ["accuracy", "accuracy"]}, "evaluation.metrics"),
    ({"data.inputs": ["a", "b", "c"]}, "data.inputs"),
    ({"data.source": "docstrings"}, "data.subset"),
    ({"model.architecture": "gpt2"}, "model.source"),
    ({"model.config.hidden_size": 16}, "model.config"),
    ({"model.source": None, "model.architecture": "bert", "model.config": {"sizes": [1]}}, "model.config.sizes"),
    ({"model.lora": None}, "model.lora"),
    ({"model.finetune": "full"}, "model.lora"),
    ({"model.lora.targets": []}, "model.lora.targets"),
    ({"model.task": "generation", "model.pooling": "mean"}, "model.pooling"),
    ({"model.task": "generation", "model.finetune": "head", "model.lora": None}, "model.finetune"),
    ({"model.task": "generation", "data.inputs": ["a", "b"]}, "data.inputs"),
    ({"models": {}}, "models"),
    ({"name.first": 1}, "name.first"),
]


@pytest.mark.parametrize(("changes", "name"), BAD, ids=[str(changes) for changes, _ in BAD])
def test_errors_name_section_and_key(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(ParameterError) as error:
        EXAMPLE.with_changes(changes)
    assert error.value.name == name
    assert str(error.value).startswith(f"{name} must be ")


def test_a_missing_section_is_named() -> None:
    values = EXAMPLE.to_dict()
    del values["privacy"]
    with pytest.raises(ParameterError, match="privacy must be given"):
        recipe_from_dict(values)


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
FOLDER_NAMES = ANY_TEXT.filter(
    lambda name: name.isprintable() and name not in (".", "..") and not set(name) & set("/\\:") and len(name) <= 200
)
SIZES = st.one_of(
    st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False, allow_infinity=False), ANY_TEXT
)


@given(
    name=FOLDER_NAMES,
    targets=st.lists(ANY_TEXT, min_size=1, unique=True),
    rate=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    sizes=st.dictionaries(ANY_TEXT, SIZES),
)
def test_what_is_written_reads_back(name: str, targets: list[str], rate: float, sizes: dict[str, Any]) -> None:
    changes = {"name": name, "model.lora.targets": targets, "optimizer.learning_rate": rate, "model.config": sizes}
    recipe = EXAMPLE.with_changes({**changes, "model.source": None, "model.architecture": "bert"})
    assert recipe_from_dict(tomllib.loads(recipe.to_toml())) == recipe


def test_files_are_relative_to_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "recipes"
    folder.mkdir()
    recipe = load_recipe("roberta-base-sst2-local").with_changes({"model.source": "../model", "data.test": []})
    (folder / "mine.toml").write_text(recipe.to_toml(), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    loaded = load_recipe("recipes/mine.toml")
    assert loaded.data.train == (str(folder / "sst2" / "train.tsv"),)
    assert loaded.data.test == ()
    assert loaded.model.source == str(tmp_path / "model")
    assert load_recipe("roberta-base-sst2-local").data.train == ("sst2/train.tsv",)


def test_unknown_recipes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"recipe must be one of .*'minilm-docstrings'"):
        load_recipe("roberta-huge-sst2")
    with pytest.raises(ParameterError, match="recipe must be a readable TOML file"):
        load_recipe(tmp_path / "none.toml")
