"""The site of documents: builds without a warning, shows what it promises, and needs no network."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from functools import cache
from html import unescape
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote

import pytest

from dprmt.cli import build_parser
from tests.docs.modules import ROOT

ROOMS = {
    "accounting": ["accounting"],
    "spectra": ["spectra"],
    "rest": ["statements", "plots", "report", "testing", "cli"],
    "training": [
        f"training.{room}"
        for room in ("norms", "subspaces", "clipping", "denoising", "optimizers", "recipes", "data", "models")
    ]
    + [f"training.{room}" for room in ("telemetry", "evaluation", "harness", "hugging_face", "randomness")],
}
EXECUTED = "02_phase_transition"


def built(out: Path, notebooks: str | None = None) -> Path:
    """The pages; a warning is an error (``strict`` in ``mkdocs.yml``), and so is one in a notebook that is executed.

    Without ``--quiet``: what it does not say it does not count.
    """
    for needed in ("material", "mkdocstrings_handlers", "latex2mathml", "nbconvert"):
        pytest.importorskip(needed)
    command = [sys.executable, "-m", "mkdocs", "build", "-d", str(out)]
    some = {} if notebooks is None else {"DPRMT_NOTEBOOKS": notebooks}
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", **some}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_site(tmp_path: Path) -> None:
    """One test for one build. All notebooks are executed by their own tests; here it is one, for its page."""
    site = built(tmp_path / "site", notebooks=EXECUTED)
    missing = [anchor for page, rooms in ROOMS.items() for anchor in lacking(site / "api" / f"{page}.html", rooms)]
    assert missing == []
    assert dead_links(site) == []
    for page in site.rglob("*.html"):
        assert fetched(page.read_text(encoding="utf-8")) == [], page
    theory = (site / "theory" / "randomized_clipping.html").read_text(encoding="utf-8")
    assert theory.count("<math") > 200
    assert "arithmatex" not in theory
    assert "$<math" not in theory
    assert 'id="T3"' in theory
    assert "api/accounting.html#dprmt.accounting.Hutchinson" in theory
    assert "../theory/randomized_clipping.html" in (site / "api" / "accounting.html").read_text(encoding="utf-8")
    for page in (site / "api").glob("*.html"):  # "> 0" at the start of a line is a limit, no quotation
        assert "<blockquote" not in page.read_text(encoding="utf-8"), page
    assert "&gt; 0" in (site / "api" / "training.html").read_text(encoding="utf-8")
    commands = (site / "command_line.html").read_text(encoding="utf-8")
    (choices,) = (action.choices for action in build_parser()._actions if isinstance(action.choices, dict))
    assert [name for name in choices if f'id="dprmt-{name}"' not in commands] == []
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        page = (site / "tutorials" / f"{notebook.stem}.html").read_text(encoding="utf-8")
        assert ("<img" in page) == (notebook.stem == EXECUTED), notebook
        assert ("not executed in this copy" in page) == (notebook.stem != EXECUTED)
    claims = (site / "guarantees.html").read_text(encoding="utf-8")
    assert '<code class="long">tests/<wbr>accounting/<wbr>test_reference.py</code>' in claims
    assert twice(site) == []
    assert "(api/accounting.md)" in (site / "llms.txt").read_text(encoding="utf-8")
    assert "### dprmt.accounting.DPSGD" in (site / "api" / "accounting.md").read_text(encoding="utf-8")
    for page in site.rglob("*.html"):
        assert page.with_suffix(".md").exists() or page.name == "404.html", page
    gallery = (site / "gallery.html").read_text(encoding="utf-8")
    assert gallery.count("<img") >= len(list((ROOT / "docs" / "gallery").glob("*.py")))


@pytest.mark.slow
def test_every_tutorial_shows_what_it_drew(tmp_path: Path) -> None:
    site = built(tmp_path / "site")
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        page = (site / "tutorials" / f"{notebook.stem}.html").read_text(encoding="utf-8")
        assert "<img" in page, notebook  # outputs are there
        assert "Traceback" not in page
        assert "as it ran when this site was built" in page


def lacking(page: Path, rooms: list[str]) -> list[str]:
    """Public names, and public methods of public classes, without an anchor on the page."""
    text = page.read_text(encoding="utf-8")
    return [anchor for room in rooms for anchor in anchors(f"dprmt.{room}") if f'id="{anchor}"' not in text]


def anchors(room: str) -> list[str]:
    imported = import_module(room)
    found = []
    for name in imported.__all__:
        value = getattr(imported, name)
        if inspect.isroutine(value) or inspect.isclass(value):  # aliases of types are shown where they are used
            found.append(f"{room}.{name}")
        if isinstance(value, type) and not issubclass(value, Exception):
            found += [f"{room}.{name}.{method}" for method in own_methods(value)]
    return found


def own_methods(kind: type) -> list[str]:
    """Public methods that this package defines, inherited ones included."""
    mine = [base for base in kind.__mro__ if base.__module__.startswith("dprmt.")]
    names = {name for base in mine for name, value in vars(base).items() if inspect.isroutine(value)}
    names -= set(getattr(kind, "__dataclass_fields__", ()))
    return sorted(name for name in names if not name.startswith("_"))


def dead_links(site: Path) -> list[str]:
    """Links to pages and places of the site that are not there."""
    dead = []
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue
        for target in re.findall(r'href="([^"]+)"', page.read_text(encoding="utf-8")):
            path, _, place = unquote(unescape(target)).partition("#")
            if re.match(r"[a-z]+:", path):
                continue
            other = (page.parent / path).resolve() if path else page
            if not other.exists() or (place and other.suffix == ".html" and place not in places(other)):
                dead.append(f"{page.relative_to(site)}: {target}")
    return dead


@cache
def places(page: Path) -> frozenset[str]:
    names = re.findall(r'\b(?:id|name)="([^"]+)"', page.read_text(encoding="utf-8"))
    return frozenset([*map(unescape, names), "__skip"])


def twice(site: Path) -> list[str]:
    """Names of places that a page has twice: scripts and links find the first one only."""
    found = []
    for page in site.rglob("*.html"):
        names = re.findall(r'<(?:h\d|form)[^>]* id="([^"]+)"', page.read_text(encoding="utf-8"))
        found += [f"{page.relative_to(site)}: {name}" for name in sorted(set(names)) if names.count(name) > 1]
    return found


def fetched(text: str) -> list[str]:
    """What a browser would fetch from elsewhere."""
    return re.findall(r'<(?:script|img)[^>]*src="https?://|<link[^>]*href="https?://[^"]*\.css', text)


def test_the_checks_see_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#there"></a><a href="c.html"></a><a href="https://x.org/#y"></a>')
    (tmp_path / "b.html").write_text('<p id="here"></p>')
    assert dead_links(tmp_path) == ["a.html: b.html#there", "a.html: c.html"]
    assert "dprmt.spectra.MarchenkoPastur.pdf" in lacking(tmp_path / "b.html", ["spectra"])
    assert fetched('<script async src="https://x.org/y.js">') != []
