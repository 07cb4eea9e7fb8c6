"""That every option of a recipe arrives where it acts, or is refused; and whole runs of the other task."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dprmt.training.denoising import Denoising
from dprmt.training.harness import read_metrics, train
from dprmt.training.harness._prepare import Prepared
from dprmt.training.harness._recipe_task import load, prepare_recipe
from dprmt.training.private_run._randomness import fresh_randomness
from dprmt.training.recipes import Recipe
from tests.training.tiny_recipe import recipe_in

FULL = {"model.finetune": "full", "model.lora": None}
GRAPE = {**FULL, "optimizer.name": "grape", "optimizer.rank": 3}


def built(recipe: Recipe, processes: int = 1) -> Prepared:
    return prepare_recipe(recipe, *load(recipe), torch.device("cpu"), fresh_randomness(1, 1), processes=processes)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gd", {"lr": 0.3, "momentum": 0.0, "weight_decay": 0.2}),
        ("gdm", {"lr": 0.3, "momentum": 0.7, "weight_decay": 0.2}),
        ("adam", {"lr": 0.3, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.2}),
        ("adamw", {"lr": 0.3, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.2}),
        ("adambc", {"lr": 0.3, "betas": (0.8, 0.95), "floor": 1e-2, "weight_decay": 0.2}),
        ("grape", {"lr": 0.3, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.2}),
    ],
)
def test_the_optimizer_gets_its_options(folder, name, expected):
    options = {"learning_rate": 0.3, "momentum": 0.7, "betas": [0.8, 0.95], "eps": 1e-3, "floor": 1e-2}
    options |= {"weight_decay": 0.2, "rank": 3, "refresh_every": 7, "projector": "stiefel", "name": name}
    prepared = built(recipe_in(folder, **{f"optimizer.{key}": value for key, value in options.items()}))
    (group,) = prepared.optimizer.param_groups
    assert {key: group[key] for key in expected} == expected
    if name == "grape":
        subspaces = prepared.optimizer.subspaces
        assert (subspaces.refresh_every, subspaces.kind, {layer.rank for layer in subspaces}) == (7, "stiefel", {3})


def test_grape_with_singular_vectors_takes_as_many_as_a_layer_has(folder):
    prepared = built(recipe_in(folder, **GRAPE, **{"optimizer.projector": "svd"}))
    ranks = {layer.name: layer.rank for layer in prepared.optimizer.subspaces}
    assert ranks.pop("classifier.weight") == 2  # two labels
    assert set(ranks.values()) == {3}


def test_grape_is_denoised_and_looked_at_in_the_subspace(folder, tmp_path, monkeypatch):
    """With nobody in the batch, the norm is that of the noise: in r x n numbers per weight, not in m x n."""
    seen: list[dict[str, torch.Tensor]] = []
    real = Denoising.apply

    def halved(self, gradients, sigma, memory=None):
        seen.append({name: value.clone() for name, value in gradients.items()})
        _, report = real(self, gradients, sigma, memory)
        return {name: value / 2 for name, value in gradients.items()}, report

    monkeypatch.setattr(Denoising, "apply", halved)
    changes = {"training.batch_size": 1, "training.steps": 8, "training.spectra_every": 1, "denoising.method": "paper"}
    train(recipe_in(folder, **GRAPE, **changes), tmp_path / "run", noise_seed=1)
    prepared = built(recipe_in(folder, **GRAPE, **changes))
    subspaces = prepared.optimizer.subspaces
    released = sum(layer.rank * layer.n for layer in subspaces)
    released += sum(value.numel() for value in prepared.parameters.values() if value not in subspaces)
    entries = read_metrics(tmp_path / "run")
    empty = [entry for entry in entries if entry["private"]["batch_size"] == 0]
    assert empty
    assert all(entry["noisy_gradient_norm"] == pytest.approx(math.sqrt(released), rel=0.1) for entry in empty)
    denoised = [layer.name for layer in subspaces if "classifier" not in layer.name]  # the head is left alone
    assert 0 < len(denoised) < len(list(subspaces))
    assert [entry["matrices"] for entry in entries] == [len(denoised)] * 8
    with np.load(tmp_path / "run" / "spectra.npz") as spectra:
        for number, noisy in enumerate(seen, start=1):
            for name, value in noisy.items():
                expected = np.linalg.svd(value.numpy(), compute_uv=False)
                np.testing.assert_allclose(spectra[f"step{number:06d}/noisy/{name}"], expected, rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(
                    spectra[f"step{number:06d}/denoised/{name}"], expected / 2, rtol=1e-4, atol=1e-5
                )
