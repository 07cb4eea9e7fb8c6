"""Numbers in sentences of ``docs/theory/when_denoising_helps.md``, each from what it tells of: stored runs or code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprmt.accounting import DPSGD, calibrate
from dprmt.spectra import detection_threshold, momentum_noise_scale
from paper_figures._verdict import mean_interval
from paper_figures.denoising import _gain_decoder, _gain_encoder, _gains
from paper_figures.denoising._map import SETTINGS as LOOKED_AT
from paper_figures.denoising._map_opening import LARGEST_EPSILON, PAPERS
from paper_figures.digits import ADAPTERS, HEADS, SETTINGS
from paper_figures.digits import _images as images
from paper_figures.digits import _methods as methods
from paper_figures.digits._adapted import WEIGHT
from paper_figures.digits._page import corrected, corrected_blend, readings
from paper_figures.digits._runs import CLIP
from paper_figures.digits._tuning import NULL
from paper_figures.items.improvement import improvements
from paper_figures.long_runs._stored import PAGE, read
from paper_figures.long_runs.last_matrix import STUDY as LAST
from paper_figures.long_runs.pretrained_head import STUDY as HEAD
from paper_figures.shrinkers import filter_gain

RAW = Path(__file__).parents[2] / "paper_figures" / "results" / "raw"


def words() -> str:
    return " ".join(PAGE.read_text(encoding="utf-8").split())


def bare(text: str) -> str:
    """Numbers below one as .5 for 0.5, of which pages write both."""
    return re.sub(r"(?<![\d.])0\.(?=\d)", ".", text)


def said(text: str) -> bool:
    return bare(text) in bare(words())


def table(start: str) -> list[list[str]]:
    """Rows of the page's own tables whose first cell begins with this, in order."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [line.strip("| ").split(" | ") for line in lines if line.startswith(f"| {start}")]


def test_the_example() -> None:
    n, large, small, flat, sharp, rest = 64, 32.0, 6.0, 1e-3, 1.0, 1e-6
    along = large**2 * flat + small**2 * sharp
    rho = (flat + sharp + (n * n - 2) * rest) / along
    assert said(
        f"{n} × {n}, σ = 1, g = {large:.0f}u₁v₁ᵀ + {small:.0f}u₂v₂ᵀ, curvature 10⁻³ along u₁v₁ᵀ, 1 along u₂v₂ᵀ,"
    )
    assert said(f"10⁻⁶ elsewhere: ρ = {rho:.3f}.")
    assert detection_threshold((n, n), 1.0) == pytest.approx(8)
    e, q = small**2 / (large**2 + small**2), 1 - (large**2 + 1) * flat / (along * (1 + rho))
    K = (1 + rho) * filter_gain([large, small], [flat, sharp])
    assert said(f"detection threshold of 8, and with it all but 1/{along / (large**2 * flat):.0f} of the curvature")
    assert said(f"(T3) and (T2) allow {K:.1f}, at e = {e:.3f} and q = {q:.2f}.")
    # 33.8 itself is drawn in tests/paper_figures/test_direction_gain.py
    assert said("decreases 33.8 ± .1 times as much as Y, each at its best rate (4,000 draws)")


def test_predicted_and_measured_steps() -> None:
    assert said(f"a batch of {_gain_encoder.TEXTS} docstrings")
    assert _gain_decoder.ROWS == 8
    assert said("of eight rows of E2E and the last layer of SmolLM2-135M")
    assert said(f"lies at {_gains.STRENGTHS[0]} or {_gains.STRENGTHS[1]:.0f} detection thresholds")
    assert momentum_noise_scale(0.9, 10_000) == _gains.MOMENTUM
    assert said("of a momentum, with (3) at β = 0.9 and a gradient that stays")
    assert _gains.DRAWS == 10
    assert said("Every map is taken of ten noisy gradients Y")
    rows, columns = read(RAW / "layer-gains.json")["models"]["MiniLM"]["head"]["0.7"]["shape"]
    assert said(f"is the head at .7, {rows} × {columns}, where noise alone sometimes opens κ = {_gains._GATE})")


def test_noise_of_a_momentum() -> None:
    """√19 and 4.4 at β = .9."""
    level = momentum_noise_scale(0.9, 10_000)
    assert 1 / level**2 == pytest.approx(19)
    assert said(f"σ/√19 at β = 0.9: a signal that stays in place is then {1 / level:.1f} times")


@pytest.mark.parametrize(("epsilon", "batches"), [(6.7, (64, 500, 2000, 4000, 8000)), (1.0, (500, 2000, 4000))])
def test_what_a_part_of_the_data_loses_is_printed(epsilon: float, batches: tuple[int, ...]) -> None:
    """(T9) by the accountant, at the size of the page's setting."""
    paper = PAPERS["MiniLM, SST-2, LoRA"]
    whole, *parts = (
        calibrate(
            DPSGD(1.0, size / paper.samples), steps=paper.steps, target_epsilon=epsilon, delta=paper.delta
        ).noise_multiplier
        for size in (paper.samples, *batches)
    )
    factors = [size / paper.samples * whole / part for size, part in zip(batches, parts, strict=True)]
    printed = ", ".join(f"{value:.3f}" if value < 0.1 else f"{value:.2f}" for value in factors)
    sizes = ", ".join(f"{size:,}" for size in batches)
    if epsilon == 6.7:
        assert said(f"at ε = 6.7, δ = 10⁻⁵, T = {paper.steps}, n = {paper.samples:,} (SST-2) the factor is")
        assert said(f"is {printed} at B = {sizes};")
    else:
        assert said(f"at ε = 1 it is {printed} at {sizes}.")


def test_settings_of_the_map() -> None:
    sst2, e2e = PAPERS.values()
    assert said(f"of SST-2 (B = {sst2.batch:,}, ε = {sst2.epsilon}) the median LoRA B is")
    assert said(f"all {sst2.samples:,} as one are at")
    assert said(f"At that batch no ε ≤ {LARGEST_EPSILON:.0f} does. Of E2E (B = {e2e.batch}, ε = {e2e.epsilon})")
    changes = LOOKED_AT["MiniLM, SST-2, LoRA"].changes
    steps = LOOKED_AT["MiniLM, docstrings, all weights"].changes["training.steps"]
    batch, length = changes["training.batch_size"], changes["training.steps"]
    assert said(f"(for SST-2 in batches of {batch} over {length} steps, of all weights over {steps}).")


def test_what_is_said_of_norm_correction_in_single_steps() -> None:
    """Docstrings and SST-2 by the item's runs, SST-2 and E2E by what the report wrote."""
    runs: dict[str, list[Any]] = {}
    for line in (RAW / "improvement-long.jsonl").read_text(encoding="utf-8").splitlines():
        piece = json.loads(line)
        runs.setdefault(piece["name"].split(",")[0], []).append(piece["value"])
    parts = []
    for data in ("docstrings", "SST-2"):
        assert len(runs[data]) == 4
        means = [improvements(runs[data], 1.02, norm_correction=kept).mean(1) for kept in (True, False)]
        parts.append(" and ".join(_improvement(values) for values in means))
    one, other = parts
    assert said(
        f"docstrings {one}, SST-2 {other}, four seeds each ([improvement](../reproduction.md#improvement-by-data)"
    )


def _improvement(values: np.ndarray) -> str:
    interval = mean_interval(values)
    mean, low, high = (f"{value:+.4f}" for value in (values.mean(), interval.low, interval.high))
    if mean in ("-0.0000", "+0.0000"):
        return "0.0000"
    return f"{mean} ({low.removeprefix('+')} … {high.removeprefix('+')})"


@pytest.mark.parametrize(("recipe", "batch", "steps"), [("minilm-sst2", 400, 10), ("smollm2-e2e", 16, 2)])
def test_what_is_said_of_reports(recipe: str, batch: int, steps: int) -> None:
    stored = json.loads((RAW / f"report-{recipe}.json").read_text(encoding="utf-8"))
    assert f"--steps {steps} --seeds 3 --set training.batch_size={batch}" in stored["command"]
    text = " ".join(sentence for of in stored["sentences"].values() for sentence in of).replace("−", "-")
    error = text.split("with a median error of ")[1].split(" %")[0]
    where = {"minilm-sst2": "SST-2 on MiniLM", "smollm2-e2e": "E2E on SmolLM2-135M"}[recipe]
    assert said(f"{where}, batch {batch}, {steps} steps: ")
    after = words().split(f"{where}, batch {batch}, {steps} steps: ")[1]
    assert f"{error} %" in after.split(";")[0]
    of_seeds = text.split("κ gate, norm correction: ")[1]
    with_it, without = of_seeds.split("; κ gate, without: ")[0], of_seeds.split("; κ gate, without: ")[1].split("; ")[0]
    claimed = after.split("Improvement ")[1].removeprefix("with norm correction ")
    assert claimed.startswith(with_it.split(" (")[0])
    for cut in (with_it, without):
        value, ends = cut.split(" (")
        low_high = ends.split(", ")[0]
        assert value in claimed
        if low_high != "0.0000 to 0.0000":
            assert f"{value} ({low_high})" in claimed


def test_tables_that_sentences_repeat() -> None:
    rows = [row for signal in ("0.5", "1", "1.5", "2", "3", "5", "8") for row in table(f"{signal} | DP-")]
    assert len(rows) == 21
    decrease, ours, fixed = (sorted(float(row[k]) for row in rows) for k in (4, 5, 6))
    ends = [f"{values[0]:.3f} … {values[-1]:.3f}" for values in (fixed, ours, decrease)]
    assert said(f"negative in all 21 rows ({ends[0]}), (4) positive in all ({ends[1]}), real decrease {ends[2]}")
    (early, late) = table("ours: Adam, no denoiser, half")
    short, long = (row[-1].removeprefix("speed-up ").split(", ")[0] for row in (early, late))
    assert f"scores {short} at step {early[1]} and {long} at step {late[1]} where it gets there" in words()
    assert late[-1].endswith("50 % never")
    gate, blended = table("ours: the paper's denoiser")[1], table("ours: blend")[1]
    assert said(f"five seeds: {gate[2]} without, {gate[3]} with the paper's denoiser, {blended[3]} blended")


def test_the_setting_of_the_digits() -> None:
    parts = [images._TRAIN, images._TUNE, images._TEST]
    assert said(f"MNIST's {sum(parts):,} test images at 14 × 14 ({parts[0]:,} to train on, {parts[1]:,} to tune on,")
    (steps,) = {setting.steps for setting in SETTINGS.values()}
    (hidden,) = {setting.hidden for setting in SETTINGS.values()}
    (seeds,) = {len(setting.seeds) for setting in SETTINGS.values()}
    assert {len(setting.tuning_seeds) for setting in SETTINGS.values()} == {4}
    assert said(f"{parts[2]:,} to test on), a network {14 * 14}–{hidden}–10, per-image")
    assert said(f"clipping at C = {CLIP:.0f}, Poisson sampling, {steps} steps.")
    assert said(f"four seeds that are not used again; then {seeds} seeds are paired")
    assert said("hold all at once with 95 % (Bonferroni)")
    assert said(f"the paper's (κ = {methods._PAPER_GATE})")
    assert said(f"tests a moving average (decay {methods._FIRST}) of Adam's iterates")
    assert said(f"a Kalman filter (κ = {methods._GAIN}, gradients")
    assert said(f"five Newton–Schulz steps on a momentum of {methods._MUON}, biases")
    assert said(f"of this network, these images and {steps} steps alone")
    assert said(f"whose memory is long for {steps} steps, far behind all")
    assert said(f"where 5 and {100 * 0.05 / (len(methods.METHODS)):.2f} are nominal")
    assert said(f"share one test set of {parts[2]:,} images")


def test_the_setting_of_the_head() -> None:
    short, long = HEADS.values()
    found = [readings(results) for results in read(HEAD.file)["settings"].values()]
    rows, columns = 384, 15
    assert said(f"at unit length, {rows} numbers of which a matrix {rows} × {columns} tells the package")
    assert said(
        f"with ε ≤ {short.epsilon:.0f} and {short.batch:,} texts a step five directions do at the start"
        f" of {short.steps} steps"
    )
    assert said(f"with ε ≤ {long.epsilon:.0f}, {long.batch:,} texts and {long.steps} steps one does at the start")
    (sizes,) = {tuple(results["sizes"]) for results in read(HEAD.file)["settings"].values()}
    half = [(one[NULL].interval.high - one[NULL].interval.low) / 2 for one in found]
    assert said(
        f"with {sizes[2]} texts to test on intervals are wide:"
        f" the null's are ± {half[0]:.1f} and ± {half[1]:.1f} points."
    )
    loss = [-one["gate"].mean for one in found]
    assert said(
        f"The paper's gate loses {loss[0]:.1f} points where much stands out and {loss[1]:.1f} where little does"
    )
    ahead, behind = (corrected(results) for results in read(HEAD.file)["settings"].values())
    low, high = ahead.interval.low, ahead.interval.high
    assert said(f"the gate is {ahead.mean:.1f} [{low:.1f}, {high:.1f}] points better with it in the short setting,")
    low, high = -behind.interval.high, -behind.interval.low
    assert said(f"{-behind.mean:.2f} [{low:.2f}, {high:.2f}] worse in the other")
    blends = [corrected_blend(results).mean for results in read(HEAD.file)["settings"].values()]
    assert said(f"is better with it in both, by {blends[0]:.1f} and {blends[1]:.1f} points.")


def e2e_values() -> tuple[Any, Any]:
    """Of the map: E2E before training, and of it the last LoRA B of values."""
    lines = (json.loads(line) for line in (RAW / "gate-map.jsonl").read_text(encoding="utf-8").splitlines())
    (seen,) = (line["value"] for line in lines if line["name"] == "SmolLM2, E2E, LoRA, step 0")
    (layer,) = (one for one in seen["layers"] if "layers.29.self_attn.v_proj.lora_B" in one["layer"])
    return seen, layer


def opened_of_values(batch: int) -> list[bool]:
    """Which of its singular values are above the threshold."""
    seen, layer = e2e_values()
    return [value > 1 for value in layer["leading"][seen["sizes"].index(batch)]]


def test_the_setting_of_the_adapter() -> None:
    setting = ADAPTERS["adapter, docstrings"]
    assert said("output matrix (384 × 16, α/rank 1, A drawn once and kept)")
    assert said(
        f"{setting.batch} texts a step, {setting.steps} steps, ε ≤ {setting.epsilon:.0f}, fewer rates to start with"
    )
    assert (len(setting.tuning_seeds), len(setting.seeds)) == (3, 10)
    assert said("three seeds to tune on and ten to compare")
    assert said(f"Gradients of B are multiplied by {WEIGHT:.0f} before clipping")
    assert [opened_of_values(batch)[:3] for batch in (64, ADAPTERS["adapter, E2E"].batch)] == [
        [False, False, False],
        [True, True, False],
    ]
    assert said("the threshold in batches of 512, before training, and none at the recipe's 64")
    rows, columns = e2e_values()[1]["shape"]
    assert said(f"values of SmolLM2's last layer ({rows} × {columns}) alone")
    assert list(read(LAST.file)["settings"]) == ["adapter, docstrings", "adapter, E2E"]
    assert said("Not run is `adapter, SST-2`, which is coded")


def test_what_the_study_says_of_its_large_batches_and_of_the_language_model() -> None:
    page = PAGE.read_text(encoding="utf-8").split("### minilm-sst2-large")[1]
    rows = [line.strip("| ").split(" | ") for line in page.split("### ")[0].splitlines() if line.startswith("| ")]
    final = {
        row[0]: float(row[4].split(" ± ")[0].removeprefix("+")) for row in rows if len(row) == 9 and " ± " in row[4]
    }
    above = [final[name] for name in ("the paper's denoiser", "blend", "blend, on the momentum")]
    assert said(f"three denoisers end {min(above)} to {max(above)} points above Adam at Adam's own rate")
    assert min(above) <= final["Adam again, other noise and batches"] <= max(above)
    training = (PAGE.parents[1] / "training.md").read_text(encoding="utf-8")
    where = f"where three end {min(above)} to {max(above)} points above it, on SST-2, so does Adam with other noise."
    assert where in " ".join(training.split())
    assert said("`smollm2-e2e` is where the gate does open")
    steps = (
        PAGE.read_text(encoding="utf-8").split("### smollm2-e2e")[1].split("expected batch 64, ")[1].split(" steps")[0]
    )
    assert said(f"The fourth setting adapts one layer, for {steps} steps, with three seeds")
