"""``dprmt report``: what it writes, what it leaves out, and its sentences where theory fails."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprmt.accounting import DPSGD, HutchPlusPlus, PrivacyBounds
from dprmt.cli import main
from dprmt.report import _validation, _write
from dprmt.report._page import Picture, Section, Table, render_page
from dprmt.report._privacy import _ANALYSES, Row, Run, privacy_curves, privacy_rows, privacy_section
from dprmt.report._words import effect, per_cent
from tests.training.tiny_recipe import recipe_in, write_data

ANALYSES = list(_ANALYSES)
SMALL = Run(name="small", sample_rate=0.05, steps=20, probes=(16,), curve_steps=(5, 20))
TINY = partial(_validation.Sizes, steps=2, noise_draws=2, samples=4, probe_draws=20, probes=4)


def made_up(upper: float) -> PrivacyBounds:
    return PrivacyBounds(0.9 * upper, 0.95 * upper, upper)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements of seconds, and a table that is computed below."""
    prices = zip(ANALYSES, map(made_up, (1.3, 1.2, 1.1, 1.05)), strict=True)
    rows = [Row(None, {"exact": made_up(1.0)}), Row(16, dict(prices))]
    monkeypatch.setattr(_write, "Run", lambda: SMALL)
    monkeypatch.setattr(_validation, "Sizes", TINY)
    monkeypatch.setattr(_write, "privacy_rows", lambda run, say: rows)
    monkeypatch.setattr(_write, "privacy_curves", lambda run, say: {"exact norms": [made_up(0.5), made_up(1.0)]})


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    """A file with a recipe for a random BERT."""
    write_data(tmp_path)
    changes = {"name": "tiny <recipe>", "privacy.noise_multiplier": 0.4, "training.steps": 3}
    (tmp_path / "tiny.toml").write_text(recipe_in(tmp_path, **changes).to_toml())
    return str(tmp_path / "tiny.toml")


def test_report_on_a_tiny_model(recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every section is on the page, from the numbers beside it."""
    pytest.importorskip("opacus")
    assert main(["report", "--out", str(tmp_path / "out"), "--recipe", recipe]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["index.html", "numbers.json"]
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    numbers = json.loads((tmp_path / "out" / "numbers.json").read_text(encoding="utf-8"))
    sections = numbers["sections"]
    assert len(sections) == page.count("<h2>") - 1 == 10
    assert page.count("<figure>") == 10 < page.count("<svg ")
    assert "tiny &lt;recipe&gt;" in page
    assert "reads clean gradients" in page
    points = sections["Noisy singular values against theory"]["private_points"]
    assert len(points["mean"]) == 5 * 2 * 5
    above = [i for i, value in enumerate(points["signal_over_threshold"]) if value > 1]
    errors = [abs(points["mean"][i] / points["predicted"][i] - 1) for i in above]
    summary = sections["Noisy singular values against theory"]["above_threshold"]
    assert summary["count"] == len(above) > 0
    assert summary["large_error"] == pytest.approx(np.quantile(errors, 0.95))
    assert per_cent(summary["large_error"]) in sections["Noisy singular values against theory"]["sentences"][0]
    gains = sections["Improvement over steps"]["private_steps"]["corrected"]
    assert len(gains) == 2
    assert effect(float(np.mean(gains))) in sections["Improvement over steps"]["sentences"][0]
    assert sections["Randomized norms against their envelope"]["samples"] == 4
    assert numbers["setting"]["privacy"]["noise_multiplier"] == 0.4
    printed = capsys.readouterr().out
    for section in sections.values():
        assert section["sentences"][0] in printed


def test_what_cannot_be_used_is_refused_before_anything_is_made_or_run(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opacus")
    monkeypatch.setattr(_validation, "private_gradients", None)  # no step can be taken
    out = tmp_path / "out"
    for words in (["--recipe", "unknown"], ["--recipe", recipe, "--set", "model.tokenizer=/nowhere"]):
        assert main(["report", "--out", str(out), *words]) == 2
        assert not out.exists()
    out.write_text("a file")
    assert main(["report", "--out", str(out / "page"), "--recipe", recipe]) == 2


def test_an_interrupt_leaves_nothing_half_written(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opacus")

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "out"
    out.mkdir()
    (out / "index.html").write_text("old")
    monkeypatch.setattr(_write, "privacy_rows", interrupted)
    assert main(["report", "--out", str(out), "--recipe", recipe]) == 130
    assert [path.name for path in out.iterdir()] == ["index.html"]
    assert (out / "index.html").read_text() == "old"


def section(**changes: Any) -> Section:
    fields: dict[str, Any] = {
        "title": "A < B & C",
        "sentences": ["First: 3 %.", 'Second <script>alert("x")</script>'],
        "tables": [Table("Caption <i>", ["name", "value"], [["a & b", "−1"], ["c", "2"]])],
        "pictures": [Picture(lambda ax: ax.plot([0, 1], color="#0072B2"), 'Alt "text" & more')],
    }
    return Section(**{**fields, **changes})


def test_nothing_in_the_page_is_fetched_and_words_are_escaped() -> None:
    page = render_page("T & U", ["Intro <b>."], [section(), section(title="Other")], warning="Beware <of> it")
    assert page.startswith("<!DOCTYPE html>")
    assert re.findall(r"<(?:link|script|iframe|object|img|b|i|of)\b|\bsrc=|url\((?!#)", page) == []
    assert [page.count(f"<{tag}") for tag in ("h1", "table", "svg ")] == [1, 2, 2]
    assert "A &lt; B &amp; C" in page
    assert "3&nbsp;%" in page
    assert "Beware &lt;of&gt; it" in page


def test_rows_hold_certified_numbers_in_the_expected_order() -> None:
    exact, row = privacy_rows(SMALL)
    published, tight, secret, sketch = (row.epsilon[label].upper for label in ANALYSES)
    assert exact.epsilon["exact"] == DPSGD(1.0, 0.05).epsilon(steps=20, delta=1e-5)
    assert published >= tight > secret > sketch > exact.epsilon["exact"].upper
    assert sketch == DPSGD(1.0, 0.05, HutchPlusPlus(8, 4, secret=True)).epsilon(steps=20, delta=1e-5).upper
    section = privacy_section(SMALL, [exact, row], privacy_curves(SMALL))
    prices = [per_cent(row.epsilon[label].upper / exact.epsilon["exact"].upper - 1) for label in ANALYSES]
    for words, price in zip(("published analysis adds", "tight one", "sample add", "products"), prices, strict=True):
        assert f"{words} {price}" in section.sentences[0]
    assert "zero-out" in section.tables[0].caption
    assert section.numbers["neighbours"] == "zero-out"
    assert section.numbers["rows"][1]["epsilon"][ANALYSES[1]]["upper"] == tight
    assert section.numbers["curves"]["exact norms"][1]["upper"] == exact.epsilon["exact"].upper
    first, second = section.tables[0].rows
    assert second[0] == "16"
    assert 0 <= float(first[1]) - exact.epsilon["exact"].upper < 1e-3
    assert 0 <= float(second[2].split()[0]) - tight < 1e-3
