"""Public docstrings say what is returned and raised; a private helper gets a sentence, or nothing."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.import_graph import ROOT

RULES = "DOC201,DOC202,DOC501"  # Returns where something is returned, and only there; Raises for what is raised


def findings(place: Path) -> list[tuple[Path, str, str]]:
    """File, qualified name and message of what ruff's docstring rules find."""
    command = [sys.executable, "-m", "ruff", "check", "--select", RULES, "--output-format", "json", "--exit-zero", "-n"]
    done = subprocess.run([*command, str(place)], cwd=ROOT, capture_output=True, text=True, check=True)
    found = []
    for entry in json.loads(done.stdout):
        path = Path(entry["filename"])
        name = enclosing_definition(ast.parse(path.read_text(encoding="utf-8")), entry["location"]["row"])
        found.append((path, name, f"{entry['code']} {entry['message']}"))
    return found


def enclosing_definition(tree: ast.AST, row: int, prefix: str = "") -> str:
    """Qualified name of the innermost function or class whose lines hold the row."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.lineno <= row <= (node.end_lineno or row):
            inside = ".<locals>." if isinstance(node, ast.FunctionDef) else "."
            return enclosing_definition(node, row, prefix + node.name + inside) or prefix + node.name
    return ""


def test_public_docstrings_say_what_is_returned_and_raised() -> None:
    pytest.importorskip("opacus")
    from tests.house.public_definitions import public_definitions

    public = public_definitions()
    assert [found for found in findings(ROOT / "dprmt") if (found[0].relative_to(ROOT), found[1]) in public] == []


def test_everything_public_has_a_docstring() -> None:
    pytest.importorskip("opacus")
    from tests.house.public_definitions import public_definitions

    assert [place for place, definition in public_definitions().items() if not definition.__doc__] == []


def test_the_check_sees_what_is_missing(tmp_path: Path) -> None:
    text = 'class A:\n    def f(self) -> int:\n        """Say.\n\n        More.\n        """\n        return 1\n'
    (tmp_path / "a.py").write_text(text)
    [(path, name, message)] = findings(tmp_path / "a.py")
    assert (path, name) == (tmp_path / "a.py", "A.f")
    assert "return" in message


def test_tables_are_those_that_pages_draw() -> None:
    """Rules of equals signs are another markup's: a page shows such a table as one run of words."""
    rule = re.compile(r"^ *=+( +=+)+ *$", re.MULTILINE)
    assert rule.search("====  ===")
    sources = sorted((ROOT / "dprmt").rglob("*.py"))
    assert [path for path in sources if rule.search(path.read_text(encoding="utf-8"))] == []


SECTION = re.compile(r"^ *(Parameters|Returns|Yields|Raises)\n *-{5,}$", re.MULTILINE)


def documented(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Qualified name and docstring of every function and class."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            inside = ".<locals>." if isinstance(node, ast.FunctionDef) else "."
            yield prefix + node.name, ast.get_docstring(node) or ""
            yield from documented(node, prefix + node.name + inside)
        else:
            yield from documented(node, prefix)


def with_sections(path: Path) -> list[str]:
    """The definitions of a file whose docstrings list parameters, or what is returned or raised."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [name for name, text in documented(tree) if SECTION.search(text)]


def test_a_private_helper_gets_a_sentence() -> None:
    pytest.importorskip("opacus")
    from tests.house.public_definitions import public_definitions

    public = {*public_definitions(), (Path("dprmt/_validation.py"), "ParameterError")}  # which users catch
    found = [(path.relative_to(ROOT), name) for path in (ROOT / "dprmt").rglob("*.py") for name in with_sections(path)]
    assert [place for place in found if place not in public] == []


def test_a_section_is_seen(tmp_path: Path) -> None:
    lines = [
        "class A:",
        "    def f(self) -> int:",
        '        """Say.',
        "",
        "        Returns",
        "        -------",
        '        """',
    ]
    (tmp_path / "a.py").write_text("\n".join(lines))
    assert with_sections(tmp_path / "a.py") == ["A.f"]
