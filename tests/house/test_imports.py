"""What modules import: the rules of ``docs/design.md``, and what importing a room pulls in."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dprmt.accounting import DPSGD
from tests.house.import_graph import (
    ROOT,
    circles,
    imported_names,
    is_private_to_another,
    module_graph,
    modules,
    room_of,
    rooms_table,
)

HEAVY = ("torch", "matplotlib", "opacus", "prv_accountant", "dp_accounting", "mpmath", "transformers")
SOURCES = {name: path.read_text(encoding="utf-8") for name, path in modules().items()}
GRAPH = module_graph(SOURCES)
IMPORTS = {name: imported_names(text) for name, text in SOURCES.items()}
TABLE = rooms_table((ROOT / "docs" / "design.md").read_text(encoding="utf-8"))
LOOSE = {"__init__.py", "__main__.py", "_files.py", "_html.py", "_lazy.py", "_validation.py", "_versions.py"}
BEHIND_ONE_FILE = {
    "prv_accountant": "dprmt.accounting.interop.prv",
    "dp_accounting": "dprmt.accounting.interop.pld",
    "opacus.accountants": "dprmt.accounting.opacus._accountant",
}
LONGEST = 450


def test_no_import_circle() -> None:
    assert circles(GRAPH) == []


def test_no_private_name_across_rooms() -> None:
    """A name below ``room._module`` is that room's own; those below ``dprmt._module`` are everybody's."""
    assert [(name, used) for name in SOURCES for used in IMPORTS[name] if is_private_to_another(name, used)] == []


def test_every_room_is_in_the_table() -> None:
    assert {room_of(name) for name in SOURCES} - {""} == set(TABLE)


@pytest.mark.parametrize("room", TABLE)
def test_rooms_import_what_the_table_says(room: str) -> None:
    rooms, packages = TABLE[room]
    mine = [name for name in SOURCES if room_of(name) == room]
    used_rooms = {room_of(used) for name in mine for used in GRAPH[name]} - {room, ""}
    used = {used.partition(".")[0] for name in mine for used in IMPORTS[name]}
    assert used_rooms - rooms == set()
    assert used - packages - {"dprmt"} - sys.stdlib_module_names == set()


def test_the_folders_of_accounting_are_its_own() -> None:
    """Others ask ``dprmt.accounting``, or ``dprmt.accounting.opacus``; the folder itself holds nothing else."""
    inner = {room for room in TABLE if room.startswith("accounting.")} - {"accounting.opacus"}
    outside = [room for room in TABLE if not room.startswith("accounting")]
    assert [(room, TABLE[room][0] & inner) for room in outside if TABLE[room][0] & inner] == []
    assert [path.name for path in (ROOT / "dprmt" / "accounting").glob("*.py")] == ["__init__.py"]


def test_the_table_points_downward_only() -> None:
    """Every room may import rooms above it in the table, and no others."""
    above: set[str] = set()
    for room, (rooms, _) in TABLE.items():
        assert rooms <= above, room
        above.add(room)


def test_what_rooms_share_knows_no_room() -> None:
    """``dprmt._validation``, say; the package's own entry point is the exception."""
    users = {name for name in SOURCES if not room_of(name) and any(room_of(used) for used in GRAPH[name])}
    assert users == {"dprmt.__main__"}


@pytest.mark.parametrize("package", BEHIND_ONE_FILE)
def test_third_party_accountants_are_behind_one_file(package: str) -> None:
    users = {
        name for name, text in SOURCES.items() if any(f"{used}.".startswith(f"{package}.") for used in IMPORTS[name])
    }
    assert users == {BEHIND_ONE_FILE[package]}


def test_no_loose_modules() -> None:
    assert {path.name for path in (ROOT / "dprmt").glob("*.py")} == LOOSE


def test_no_file_is_too_long() -> None:
    assert [name for name, text in SOURCES.items() if text.count("\n") > LONGEST] == []


def test_the_rules_see_what_breaks_them() -> None:
    graph = module_graph(
        {
            "a": "",
            "a.x": "from a.y._z import f",
            "a.y": "",
            "a.y._z": "def f():\n    import a.y.w",
            "a.y.w": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a.y import _z",
        }
    )
    assert graph["a.x"] == {"a.y._z"}
    assert circles(graph) == [{"a.y._z", "a.y.w"}]
    assert is_private_to_another("a.x", "a.y._z.f")
    assert not is_private_to_another("a.y.w", "a.y._z")
    assert not is_private_to_another("a.y", "a._files.write")
    assert room_of("dprmt.training.norms._probes") == "training.norms"
    assert (room_of("dprmt.accounting"), room_of("dprmt.accounting.laws._laws")) == ("accounting", "accounting.laws")
    assert room_of("dprmt._files") == room_of("dprmt.__main__") == ""
    table = "| `dprmt.a` | holds | – | `numpy` |\n| `dprmt.b.c` | holds | `a` | `numpy`, `scipy` |\n"
    assert rooms_table(table) == {"a": (set(), {"numpy"}), "b.c": ({"a"}, {"numpy", "scipy"})}


def loaded_after(statement: str) -> set[str]:
    """Which heavy modules a fresh interpreter holds after a statement."""
    code = f"{statement}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "room", ["dprmt", "dprmt.accounting", "dprmt.spectra", "dprmt.plots", "dprmt.report", "dprmt.cli"]
)
def test_light_rooms_import_nothing_heavy(room: str) -> None:
    assert loaded_after(f"import {room}") == set()


@pytest.mark.parametrize("package", ["dprmt", "dprmt.training"])
def test_rooms_are_imported_when_they_are_first_named(package: str) -> None:
    """All of them, and the stub for type checkers says the same."""
    place = ROOT.joinpath(*package.split("."))
    rooms = {path.parent.name for path in place.glob("*/__init__.py")}
    stub = (place / "__init__.pyi").read_text(encoding="utf-8")
    listed = set(re.findall(rf"^from {package} import \w+ as (\w+)", stub, flags=re.MULTILINE))
    assert rooms == listed
    names = ", ".join(f"{package}.{room}.__name__" for room in ("accounting", "spectra", "plots") if room in rooms)
    code = (
        f"import {package}, sys; before = set(sys.modules); print({set(rooms)!r} <= set(dir({package})), {names or 0})"
    )
    code += f"; print([name for name in before if name.startswith('{package}.') and name.split('.')[-1] in {rooms!r}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, before = done.stdout.splitlines()
    assert (first.split()[0], before) == ("True", "[]")
    with pytest.raises(AttributeError, match="has no attribute 'acounting'"):
        importlib.import_module(package).acounting  # noqa: B018


def test_the_entrance_to_private_training_is_at_hand() -> None:
    """``from dprmt.training import make_private``, without torch until then."""
    pytest.importorskip("torch")
    clipping, training = (importlib.import_module(f"dprmt.training{room}") for room in (".clipping", ""))
    assert training.make_private is clipping.make_private
    assert "make_private" in dir(training)
    assert "torch" not in loaded_after("import dprmt.training; dir(dprmt.training)")


@pytest.mark.parametrize("room", ["clipping", "norms", "subspaces", "randomness"])
def test_clipping_needs_no_transformers(room: str) -> None:
    """The one layer of that package which hooks follow is told by its class' name."""
    assert "transformers" not in loaded_after(f"import dprmt.training.{room}")


def test_the_check_sees_heavy_modules() -> None:
    assert loaded_after("import matplotlib") == {"matplotlib"}


def test_answers_need_nothing_heavy_either() -> None:
    statement = "from dprmt.accounting import DPSGD, Hutchinson; DPSGD(2.0, 0.1, Hutchinson(8)).epsilon(3, 1e-5)"
    assert loaded_after(statement) == set()


def without(modules: str, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command where some packages are not installed."""
    code = f"import sys; sys.modules |= dict.fromkeys({modules.split()}); from dprmt.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


EXTRAS = "matplotlib rich safetensors torch opacus transformers peft datasets joblib shtab flint tomli_w"
RUN = ("--noise-multiplier", "2", "--sample-rate", "0.1", "--steps", "2")


def test_privacy_questions_need_the_core_alone() -> None:
    code, out, err = without(EXTRAS, "epsilon", *RUN, "--delta", "1e-5")
    assert (code, out[:5], err) == (0, "ε <= ", "")


@pytest.mark.parametrize("words", [(), ("minilm-docstrings", "--json")])
def test_recipes_are_read_with_the_core_alone(words: tuple[str, ...]) -> None:
    code, out, err = without(EXTRAS, "recipes", *words)
    assert (code, err) == (0, "")
    assert "minilm-docstrings" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tradeoff", *RUN, "--plot", "curve.png"), "needs matplotlib: pip install '.[plots]'"),
        (("report", "--out", "page"), "needs rich: pip install '.[demo]'"),
        (("spectrum", "FILE.safetensors", "--sigma", "1"), "needs safetensors: pip install '.[cli]'"),
        (("train", "minilm-docstrings"), "needs torch: pip install '.[demo]'"),
        (("plan", "roberta-base-sst2"), "needs torch: pip install '.[train]'"),
        (("train", "--resume", "runs/first"), "needs torch: pip install '.[train]'"),
        (("recipes", "minilm-docstrings"), "needs tomli_w: pip install '.[train]'"),
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


TRAIN = ["torch", "opacus", "transformers", "peft", "datasets"]
TRAINS = ["norms", "subspaces", "optimizers", "clipping", "denoising", "data", "models", "evaluation", "harness"]
BLOCKED = list(zip([*TRAIN, *TRAIN, "opacus"], [*TRAINS, "randomness", "telemetry"], strict=True))


@pytest.mark.parametrize(
    ("package", "statement", "extra"),
    [
        *((package, f"import dprmt.training.{room}", "train") for package, room in BLOCKED),
        ("matplotlib", "from dprmt.plots import plot_spike_map; plot_spike_map((4, 9), 1.0)", "plots"),
        ("matplotlib", "from dprmt.plots import save_picture; save_picture('x.png', print)", "plots"),
        ("opacus", "import dprmt.accounting.opacus", "train"),
    ],
)
def test_in_python_a_missing_extra_is_named_too(package: str, statement: str, extra: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; {statement}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last == f"ModuleNotFoundError: {package} is not installed: pip install '.[{extra}]' in a checkout of dprmt"
