"""What importing a subpackage pulls in, and what is said where a package of an extra is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dprmt.accounting import DPSGD

HEAVY = ("torch", "matplotlib", "opacus", "prv_accountant", "dp_accounting", "mpmath", "transformers")


def loaded_after(statement: str, modules: tuple[str, ...] = HEAVY) -> set[str]:
    """Which of the modules a fresh interpreter holds after a statement."""
    code = f"{statement}\nimport sys\nprint(*[name for name in {modules!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_what_needs_no_torch_imports_nothing_heavy() -> None:
    folders = ("accounting", "cli", "plots", "report", "spectra", "testing", "training")
    light = ", ".join(["dprmt", *(f"dprmt.{folder}" for folder in folders)])
    run = "DPSGD(2.0, 0.1, Hutchinson(8, secret=True))"
    answer = f"from dprmt.accounting import DPSGD, Hutchinson; {run}.epsilon(steps=3, delta=1e-5)"
    assert loaded_after(f"import {light}; dir(dprmt.training); {answer}") == set()
    assert loaded_after("import matplotlib") == {"matplotlib"}


def test_private_training_needs_no_transformers() -> None:
    pytest.importorskip("opacus")
    assert "transformers" not in loaded_after("from dprmt.training import make_private")


def without(modules: str, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command where some packages are not installed."""
    code = f"import sys; sys.modules |= dict.fromkeys({modules.split()}); from dprmt.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


EXTRAS = "matplotlib rich safetensors torch opacus transformers peft datasets shtab flint tomli_w"
RUN = ("--noise-multiplier", "2", "--sample-rate", "0.1", "--steps", "2")


@pytest.mark.parametrize("words", [(), ("minilm-docstrings", "--json")])
def test_recipes_are_read_with_the_core_alone(words: tuple[str, ...]) -> None:
    code, out, err = without(EXTRAS, "recipes", *words)
    assert (code, err) == (0, "")
    assert "minilm-docstrings" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tradeoff", *RUN, "--plot", "curve.png"), "matplotlib is not installed: pip install '.[plots]'"),
        (("report", "--out", "page"), "matplotlib is not installed: pip install '.[demo]'"),
        (("spectrum", "FILE.safetensors", "--sigma", "1"), "safetensors is not installed: pip install '.[cli]'"),
        (("train", "minilm-docstrings"), "torch is not installed: pip install '.[train]'"),
        (("plan", "roberta-base-sst2"), "torch is not installed: pip install '.[train]'"),
        (("train", "--resume", "runs/first"), "torch is not installed: pip install '.[train]'"),
        (("recipes", "minilm-docstrings"), "tomli_w is not installed: pip install '.[train]'"),
        (("verify", "FILE.json"), ": pip install '.[verify]'"),
    ],
)
def test_a_missing_extra_is_named(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    np.save(tmp_path / "FILE.npy", np.eye(3))
    (tmp_path / "FILE.safetensors").write_bytes(b"")
    places = [str(tmp_path / word) if word.startswith(("FILE", "curve", "page")) else word for word in arguments]
    code, out, err = without(EXTRAS, *places)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
    assert not (tmp_path / "page").exists()


@pytest.mark.parametrize(("call", "package"), [("to_prv", "prv_accountant"), ("to_pld", "dp_accounting")])
def test_another_accountant_that_is_missing_is_named(call: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = f"dprmt.accounting.interop.{call[3:]}"
    for name in [name for name in sys.modules if name in (package, ours) or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=rf"{package}.* is not installed: pip install '.\[interop\]'"):
        getattr(DPSGD(2.0, 0.1), call)()


@pytest.mark.parametrize(
    ("package", "statement", "extra"),
    [
        ("torch", "import dprmt.training.norms", "train"),
        ("opacus", "from dprmt.training import make_private", "train"),
        ("transformers", "import dprmt.training.hugging_face", "train"),
        ("matplotlib", "from dprmt.plots import plot_spike_map; plot_spike_map((4, 9), 1.0)", "plots"),
        ("matplotlib", "from dprmt.plots._style import save_picture; save_picture('x.png', print)", "plots"),
        ("opacus", "import dprmt.accounting.opacus", "train"),
    ],
)
def test_in_python_a_missing_extra_is_named_too(package: str, statement: str, extra: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; {statement}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last == f"ModuleNotFoundError: {package} is not installed: pip install '.[{extra}]' in a checkout of dprmt"
