"""The site of documents: builds without a warning, shows inherited methods, and needs no network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.import_graph import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages; warnings are errors (``strict`` in ``mkdocs.yml``)."""
    for needed in ("material", "mkdocstrings_handlers", "latex2mathml"):
        pytest.importorskip(needed)
    out = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(out)], cwd=ROOT, env=environment, check=True
    )
    return out


@pytest.mark.slow
def test_every_public_method_of_the_accountant_has_an_anchor(site: Path) -> None:
    from dprmt import accounting

    page = (site / "api" / "accounting.html").read_text(encoding="utf-8")
    for name in accounting.__all__:
        value = getattr(accounting, name)
        members = [member for member in dir(value) if not member.startswith("_")] if isinstance(value, type) else []
        methods = [
            member for member in members if callable(getattr(value, member)) and not issubclass(value, Exception)
        ]
        for anchor in (name, *(f"{name}.{method}" for method in methods)):
            assert f'id="dprmt.accounting.{anchor}"' in page, anchor


@pytest.mark.slow
def test_formulas_are_drawn_without_scripts_and_pages_without_a_network(site: Path) -> None:
    theory = (site / "theory" / "randomized_clipping.html").read_text(encoding="utf-8")
    assert theory.count("<math") > 200
    assert "arithmatex" not in theory
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert re.findall(r'<(?:script|img)[^>]*src="https?://|<link[^>]*href="https?://[^"]*\.css', text) == [], page


@pytest.mark.slow
def test_the_command_line_is_documented_by_itself(site: Path) -> None:
    page = (site / "command_line.html").read_text(encoding="utf-8")
    for command in ("epsilon", "noise", "delta", "tradeoff", "spectrum", "train", "recipes", "report"):
        assert f'id="dprmt-{command}"' in page
