"""Estimators, optimizers and denoisers of other packages, which say so in their metadata and in nothing else.

The other package is the one of ``docs/how_to/offer_words.md``: a folder on the path with a ``dist-info`` beside it, as
an installer leaves it, and some words that cannot be had.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dprmt import ParameterError
from dprmt.training.harness import ItemTask, load_parameters, read_metrics, train_task
from dprmt.training.recipes import DENOISERS, OPTIMIZERS, NormsRecipe, Settings, load_recipe
from tests.docs.modules import ROOT
from tests.docs.test_how_to import blocks

PAGE = ROOT / "docs" / "how_to" / "offer_words.md"

(METADATA,) = (tomllib.loads(block) for block in blocks(PAGE, "toml"))
(MEANINGS,) = blocks(PAGE, "python")
OFFERED: dict[str, dict[str, str]] = METADATA["project"]["entry-points"]
OFFERED["dprmt.optimizers"] |= {"adam": "my_words.meanings:sign"}
OFFERED["dprmt.denoisers"] |= {"gone": "my_words.meanings:gone"}
Install = Callable[[str], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """The package under a distribution's name, importable from here on."""

    def add(name: str) -> Path:
        folder = tmp_path / name
        package, metadata = folder / "my_words", folder / f"{name}-1.5.dist-info"
        package.mkdir(parents=True)
        metadata.mkdir()
        (package / "__init__.py").write_text("")
        (package / "meanings.py").write_text(MEANINGS)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        groups = (f"[{group}]\n" + "".join(f"{k} = {words[k]}\n" for k in words) for group, words in OFFERED.items())
        (metadata / "entry_points.txt").write_text("\n".join(groups))
        monkeypatch.syspath_prepend(str(folder))
        for module in [name for name in sys.modules if name.partition(".")[0] == "my_words"]:
            monkeypatch.delitem(sys.modules, module)
        return folder

    return add


def settings(**changes: dict[str, Any]) -> Settings:
    sections: dict[str, dict[str, Any]] = {
        "privacy": {"noise_multiplier": 1.0, "delta": 1e-5},
        "optimizer": {"name": "gd", "learning_rate": 0.125},
        "training": {"batch_size": 8, "steps": 2},
    }
    return Settings(**{name: sections.get(name, {}) | changes.get(name, {}) for name in {*sections, *changes}})


def trained(how: Settings, folder: Path) -> dict[str, torch.Tensor]:
    """From zero, in a run folder, with known noise."""
    network = torch.nn.Linear(6, 5)
    for parameter in network.parameters():
        torch.nn.init.zeros_(parameter)

    def losses(model: torch.nn.Module, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(torch.eye(6)[labels]), labels, reduction="none")

    train_task(network, ItemTask([0, 1, 2, 3] * 8, torch.tensor, losses), how, folder, noise_seed=0)
    return load_parameters(folder)


def test_words_of_an_installed_package_are_used_end_to_end(install: Install, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"optimizer\.name"):
        settings(optimizer={"name": "sign"})
    install("my-words")
    norms = {"kind": "half", "probes": 8}
    how = settings(optimizer={"name": "sign"}, denoising={"method": "halving"}, privacy={"norms": norms})
    parameters = trained(how, tmp_path / "run")
    assert {abs(float(x)) for x in parameters["weight"].flatten()} == {0.0, 0.25}
    assert [entry["denoised_layers"] for entry in read_metrics(tmp_path / "run")] == [1, 1]
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["step"]["norms"]["probes"] == 4


def test_a_recipe_that_names_them_is_read_without_torch(install: Install, tmp_path: Path) -> None:
    folder = install("my-words")
    recipe = load_recipe("minilm-docstrings").with_changes({"optimizer.name": "sign", "privacy.norms.kind": "half"})
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    program = (
        "import sys; from dprmt.training.recipes import load_recipe; r = load_recipe(sys.argv[1]);"
        "print(r.optimizer.name, r.privacy.norms.kind, r.privacy.norms.probes, 'torch' in sys.modules)"
    )
    path = os.pathsep.join([str(folder), *sys.path])
    command = [sys.executable, "-c", program, str(tmp_path / "recipe.toml")]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["sign", "half", "32", "False"]


def test_a_word_of_this_package_is_not_replaced(install: Install) -> None:
    before = OPTIMIZERS.load("adam")
    install("my-words")
    assert OPTIMIZERS.load("adam") is before
    assert list(OPTIMIZERS).count("adam") == 1
    assert "sign" in OPTIMIZERS


def test_unknown_words_get_a_hint_among_all(install: Install) -> None:
    install("my-words")
    with pytest.raises(ParameterError, match=r"'halving'.*did you mean 'halving'"):
        settings(denoising={"method": "halvin"})
    with pytest.raises(ParameterError, match="one of 'exact', 'ghost', 'auto', 'hutchinson', 'hutch\\+\\+', 'half'"):
        NormsRecipe("quarter")
    with pytest.raises(ParameterError, match=r"left out unless .* is 'hutchinson' or 'hutch\+\+' or 'half'"):
        NormsRecipe("ghost", probes=3)


def test_what_cannot_be_imported_is_refused(install: Install) -> None:
    install("my-words")
    with pytest.raises(ParameterError, match=r"'gone' of dprmt\.denoisers must be one that can be imported \(.*gone"):
        DENOISERS.load("gone")
