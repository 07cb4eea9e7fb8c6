"""``docs/design.md``, "Extension points": each kind of thing is one file and one line, and is then used end to end.

The file is written to a folder beside the package, the line is added to the table that it would be added to. (An
estimator that is handed over as an object needs no line: ``tests/training/test_clipping_plan.py`` has one.)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import dprmt.cli
import paper_figures.items
from dprmt import ParameterError
from dprmt.cli import _main
from dprmt.cli._options import SUMMARIES
from dprmt.training.harness import ItemTask, load_parameters, read_metrics, train_task
from dprmt.training.recipes import (
    DENOISERS,
    NORMS,
    OPTIMIZERS,
    Settings,
    load_recipe,
)
from paper_figures.__main__ import main as figures
from paper_figures._reproduction import load

NewFile = Callable[[str, str], None]

SIGN_DESCENT = """
import torch

class SignDescent(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(p.grad.sign(), alpha=group["lr"])

def sign(params, *, lr, **_):
    return SignDescent(params, lr)
"""

HALVING = """
from dprmt.spectra import LayerReport

def halving(options):
    def halve(layers, sigma):
        changed = {name: layer / 2 if layer.ndim == 2 else layer for name, layer in layers.items()}
        return changed, {n: LayerReport(n, tuple(x.shape), None, 0, changed[n] is not x) for n, x in layers.items()}

    return halve
"""

HALF_THE_PROBES = """
from dprmt.training.norms import HutchinsonEstimator

def half(*, probes, secret, generator):
    return HutchinsonEstimator(probes // 2, secret=secret, generator=generator)
"""

COMMAND = """
from dprmt.cli._options import add_parser

def add_command(commands):
    parser = add_parser(commands, "answer", lambda namespace: print(f"{namespace.to}: 42"), ["--to you"])
    parser.add_argument("--to", metavar="NAME", required=True, help="who is told")
"""

FIGURE = """
from paper_figures._reproduction import Found, Item, Row

ROW = Row("answer", 42.0, 42.0, interval=(41.9, 42.1), margin=0.5)
ITEM = Item("answer", "The answer", lambda scale, folder: Found([ROW], differs="Nothing."))
"""


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NewFile:
    """Write a module that can be imported by its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda name, text: (tmp_path / f"{name}.py").write_text(text) and None


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


def test_an_optimizer(beside: NewFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside("my_optimizer", SIGN_DESCENT)
    with pytest.raises(ParameterError, match=r"optimizer\.name"):
        settings(optimizer={"name": "sign"})
    monkeypatch.setitem(OPTIMIZERS.own, "sign", "my_optimizer:sign")
    parameters = trained(settings(optimizer={"name": "sign"}), tmp_path / "run")
    assert {abs(float(x)) for x in parameters["weight"].flatten()} == {0.0, 0.25}  # two steps, to and fro or on
    assert 'name = "sign"' in (tmp_path / "run" / "config.toml").read_text()
    with pytest.raises(ParameterError, match=r"denoising\.on"):
        settings(optimizer={"name": "sign"}, denoising={"method": "paper", "on": "momentum"})
    assert load_recipe("minilm-docstrings").with_changes({"optimizer.name": "sign"}).optimizer.name == "sign"


def test_a_denoiser(beside: NewFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside("my_denoiser", HALVING)
    with pytest.raises(ParameterError, match=r"denoising\.method"):
        settings(denoising={"method": "halving"})
    monkeypatch.setitem(DENOISERS.own, "halving", "my_denoiser:halving")
    one_step = {"training": {"steps": 1}}
    plain = trained(settings(**one_step), tmp_path / "plain")
    halved = trained(settings(denoising={"method": "halving", "exclude": ["bias"]}, **one_step), tmp_path / "run")
    assert torch.equal(halved["weight"], plain["weight"] / 2)
    assert torch.equal(halved["bias"], plain["bias"])
    (entry,) = read_metrics(tmp_path / "run")
    assert (entry["denoised_layers"], entry["matrices"]) == (1, 1)


def test_an_estimator(beside: NewFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside("my_estimator", HALF_THE_PROBES)
    with pytest.raises(ParameterError, match=r"privacy\.norms"):
        settings(privacy={"norms": "half"})
    monkeypatch.setitem(NORMS.own, "half", "my_estimator:half")
    with pytest.raises(ParameterError, match=r"privacy\.norms\.sketch"):
        settings(privacy={"norms": {"kind": "half", "sketch": 3}})
    mine = trained(settings(privacy={"norms": {"kind": "half", "probes": 4}}), tmp_path / "mine")
    told = json.loads((tmp_path / "mine" / "run.json").read_text())["step"]
    assert told["norms"]["probes"] == 2
    theirs = trained(settings(privacy={"norms": {"kind": "hutchinson", "probes": 2}}), tmp_path / "theirs")
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "_answer.py").write_text(COMMAND)
    assert _main.main(["answer", "--to", "all"]) == 2
    monkeypatch.setattr(dprmt.cli, "__path__", [*dprmt.cli.__path__, str(tmp_path)])
    monkeypatch.setitem(SUMMARIES, "answer", "the answer")
    capsys.readouterr()
    assert _main.main(["answer", "--to", "all"]) == 0
    assert capsys.readouterr().out == "all: 42\n"
    assert _main.main(["answer"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my_figure.py").write_text(FIGURE)
    monkeypatch.setattr(paper_figures.items, "__path__", [*paper_figures.items.__path__, str(tmp_path)])
    for item in paper_figures.items.items_in("my_figure"):
        monkeypatch.setitem(paper_figures.items.ITEMS, item.name, item)
    assert figures(["run", "answer", "--results", str(tmp_path / "results")]) == 0
    assert "answer: reproduced" in capsys.readouterr().out
    found = load("answer", tmp_path / "results")
    assert found is not None
    assert [row.ours for row in found.found.rows] == [42.0]
