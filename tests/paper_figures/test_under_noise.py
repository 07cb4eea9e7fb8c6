"""The page of optimizers under noise: tables and numbers in sentences, counted anew from the stored runs."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("opacus")

from dprmt._files import read_lines
from paper_figures.__main__ import main
from paper_figures._pieces import raw_file
from paper_figures._published import published
from paper_figures._reproduction import RESULTS, Scale, load
from paper_figures._tuner import LABELS
from paper_figures._verdict import mean_interval
from paper_figures.items import barcode
from paper_figures.items.next_token import LORA_RATES
from paper_figures.long_runs import under_noise

Run = dict[str, Any]
TEXT = under_noise.PAGE.read_text(encoding="utf-8")
WORDS = " ".join(TEXT.split())
EFFECTIVE_STEPS = [2.0 ** (k / 2) for k in range(-2, 14)]


@cache
def curves(name: str) -> list[Run]:
    """As JSON has them."""
    return json.loads((RESULTS / "raw" / f"{name}.json").read_text(encoding="utf-8"))["curves"]


@cache
def pieces(item: str, scale: str) -> dict[str, Run]:
    return {line["name"]: line["value"] for line in read_lines(raw_file(RESULTS, item, scale)) if "value" in line}


def of(runs: list[Run], **trial: Any) -> list[Run]:
    return [run for run in runs if all(run["trial"][name] == value for name, value in trial.items())]


def at_end(runs: list[Run], kind: str, size: int) -> float:
    return float(np.mean([run[f"group_{kind}"][-1][run["class_sizes"].index(size)] for run in runs]))


def right(runs: list[Run], *sizes: int) -> list[float]:
    return [100 * at_end(runs, "accuracy", size) for size in sizes]


def loss(runs: list[Run]) -> float:
    return float(np.mean([run["loss"][-1] for run in runs]))


def step(run: Run) -> float:
    """The table under "One number"."""
    trial = run["trial"]
    s = trial["noise_multiplier"] * trial["clipping_norm"] / (trial["samples"] * trial["groups"])
    factor = {
        "gd": 1.0,
        "gdm": 1 / (1 - trial["momentum"]),
        "adam": 1 / (s * (1 + trial["stability"])),
        "adambc": 1 / (s * math.sqrt(trial["stability"])),
    }[trial["optimizer"]]
    return trial["learning_rate"] * factor


def rate(run: Run) -> str:
    trial = run["trial"]
    return f"{trial['learning_rate']:g}" + (
        f", γ' = {trial['stability']:g} s²" if trial["optimizer"] == "adambc" else ""
    )


@cache
def sweep(name: str) -> np.ndarray:
    """Runs of the small instance, shape (seeds, steps)."""
    found = [sorted(of(curves("effective-step"), optimizer=name, seed=seed), key=step) for seed in range(3)]
    for row in found:
        assert [step(run) for run in row] == pytest.approx(EFFECTIVE_STEPS)
    return np.array(found, dtype=object)


def losses(name: str) -> np.ndarray:
    return np.array([[math.inf if run["diverged"] else run["loss"][-1] for run in row] for row in sweep(name)])


def best(name: str) -> int:
    return int(losses(name).mean(0).argmin())


def small_row(name: str) -> list[str]:
    at = best(name)
    own, runs = losses(name)[:, at], list(sweep(name)[:, at])
    cells = [f"{EFFECTIVE_STEPS[at]:.2f}", f"{own.mean():.3f} ± {own.std(ddof=1):.3f}"]
    return [LABELS[name], *cells, *(f"{value:.1f} %" for value in right(runs, 128, 32, 8))]


def paper_row(name: str) -> list[str]:
    runs = of(curves("heavy-tail"), optimizer=name)
    assert [run["trial"]["seed"] for run in runs] == [0, 1]
    ours = [at_end(runs, "loss", 8), *right(runs, 1024, 128, 8)]
    cells = [f"{ours[0]:.2f} \\| {theirs(name)[0]:g}"]
    cells += [f"{value:.1f} \\| {printed:g} %" for value, printed in zip(ours[1:], theirs(name)[1:], strict=True)]
    return [LABELS[name], rate(runs[0]), f"{step(runs[0]):.2f}", *cells]


def theirs(name: str) -> tuple[float, ...]:
    by = {row["quantity"]: row for row in published("heavy-tail").rows}
    lead = by["lead of DP-AdamBC in accuracy, classes of 8"].get(name, 0)
    first = (by[key][name] for key in ("loss, classes of 8", "accuracy, class of 1024", "accuracy, classes of 128"))
    return (*first, by["accuracy, classes of 8"]["adambc"] - lead)


def longer_row(run: Run) -> list[str]:
    cells = [f"{run['loss'][-1]:.2f}", f"{at_end([run], 'loss', 8):.2f}"]
    cells += [f"{value:.1f} %" for value in right([run], 1024, 128, 8)]
    return [LABELS[run["trial"]["optimizer"]], rate(run), f"{step(run):.2f}", *cells]


def less_row(name: str) -> list[str]:
    runs = of(curves("heavy-tail-sigma5"), optimizer=name)
    assert [run["trial"]["seed"] for run in runs] == [0, 1]
    cells = [f"{loss(runs):.2f}", *(f"{value:.1f} %" for value in right(runs, 1024, 128, 8))]
    return [LABELS[name], rate(runs[0]), f"{step(runs[0]):.1f}", *cells, f"{at_end(runs, 'loss', 8):.2f}"]


BATCH = {"small": 80.0, "paper": 1700.0}


def at_step(name: str, scale: Scale, h: float, seed: int) -> Run:
    return pieces("barcode", scale)[f"{name}, lr = {barcode.rate_of(name, h, BATCH[scale]):g}, seed {seed}"]


def tried(name: str, scale: Scale) -> dict[float, float]:
    """Loss at the end by step, on the seed that chooses."""
    steps = [2.0**k for k in range(-1, 6 if scale == "small" else 8)]
    return {h: at_step(name, scale, h, 1000)["loss"][-1] for h in steps}


def chosen(name: str, scale: Scale) -> float:
    found = tried(name, scale)
    return min(found, key=lambda h: found[h])


def ends(name: str, scale: Scale, h: float | None = None) -> np.ndarray:
    """Loss, then accuracies in per cent; shape (3, columns)."""
    runs = [at_step(name, scale, h or chosen(name, scale), seed) for seed in (0, 1, 2)]
    return np.array([[run["loss"][-1], *(100 * one for one in run["group_accuracy"][-1])] for run in runs])


def barcode_row(name: str, scale: Scale) -> list[str]:
    mean, spread = ends(name, scale).mean(0), ends(name, scale).std(0, ddof=1)
    cells = [f"{mean[0]:.2f} ± {spread[0]:.2f}"]
    cells += [f"{value:.1f} ± {more:.1f} %" for value, more in zip(mean[1:], spread[1:], strict=True)]
    return [LABELS[name], f"{chosen(name, scale):g}", *cells]


HALF_POWERS = {"gd": (5, 10, 50), "gdm": (1, 5, 10), "adam": (0.01, 0.05, 0.1), "adambc": (0.005, 0.01, 0.05)}


def head_run(name: str, eta: float, seed: int) -> Run:
    return pieces("next-token", "study")[f"{name}, lr = {eta:g}, seed {seed}"]


def head_rate(name: str) -> float:
    """The one with the lowest loss on the seed that chooses."""
    return min(HALF_POWERS[name], key=lambda eta: head_run(name, eta, 0)["loss"][-1])


def head_ends(name: str) -> np.ndarray:
    """Loss, then accuracies in per cent, by seed."""
    runs = [head_run(name, head_rate(name), seed) for seed in (0, 1)]
    return np.array([[run["loss"][-1], *(100 * one for one in run["group_accuracy"][-1])] for run in runs])


def head_row(name: str) -> list[str]:
    mean, spread = head_ends(name).mean(0), head_ends(name).std(0, ddof=1)
    cells = [f"{mean[0]:.2f} ± {spread[0]:.2f}"]
    cells += [f"{value:.1f} ± {more:.1f} %" for value, more in zip(mean[1:], spread[1:], strict=True)]
    return [LABELS[name], f"{head_rate(name):g}", *cells]


@cache
def expected() -> dict[str, list[list[str]]]:
    longer = of(curves("heavy-tail"), optimizer="adambc", seed=0) + curves("heavy-tail-longer-steps")
    return {
        "small instance": [small_row(name) for name in LABELS],
        "the paper's instance": [paper_row(name) for name in ("gd", "adam", "gdm", "adambc")],
        "longer steps": [longer_row(run) for run in sorted(longer, key=step)],
        "less noise": [less_row(name) for name in LABELS],
        "digits": [barcode_row(name, "small") for name in LABELS],
        "MNIST": [barcode_row(name, "paper") for name in LABELS],
        "next token": [head_row(name) for name in LABELS],
    }


def block(name: str, text: str) -> tuple[int, int]:
    """Where the rows of a table are."""
    start = text.index(f"<!-- table: {name} -->\n")
    return text.index("---|\n", start) + len("---|\n"), text.index(f"<!-- end: {name} -->", start)


def as_stored(name: str, text: str) -> bool:
    """Whether the rows of a table are those of the stored runs."""
    start, end = block(name, text)
    rows = "".join(f"| {' | '.join(cells)} |\n" for cells in expected()[name])
    return text[start:end] == rows


def said(words: str) -> bool:
    return words in WORDS


@pytest.mark.parametrize("name", list(under_noise.TABLES))
def test_a_table_is_of_the_stored_runs_and_every_changed_digit_is_seen(name: str) -> None:
    assert as_stored(name, TEXT)
    start, end = block(name, TEXT)
    digits = [place for place in range(start, end) if TEXT[place].isdecimal()]
    assert len(digits) > 30
    for place in digits:
        other = str((int(TEXT[place]) + 1) % 10)
        assert not as_stored(name, TEXT[:place] + other + TEXT[place + 1 :])


def test_the_page_has_no_table_of_runs_besides() -> None:
    tables = [line for line in TEXT.splitlines() if re.match(r"\| DP-\w+ \|.*\d", line) and "$" not in line]
    assert len(tables) == sum(len(rows) for rows in expected().values())


def test_the_command_writes_the_page_that_is_there(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, picture = tmp_path / "page.md", tmp_path / "picture.png"
    page.write_text(TEXT.replace("| DP-GD | ", "| DP-GD | 7"), encoding="utf-8")
    monkeypatch.setattr(under_noise, "PAGE", page)
    monkeypatch.setattr(under_noise, "PICTURE", picture)
    assert main(["study", "under-noise"]) == 0
    # the first table, of formulas, is written by hand
    assert page.read_text(encoding="utf-8").replace("| DP-GD | 7$", "| DP-GD | $") == TEXT
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == "wrote page.md and picture.png\n"
    with pytest.raises(ValueError, match="page: must have <!-- table: digits -->"):
        under_noise.with_tables(TEXT.replace("<!-- table: digits -->", ""))


def test_the_settings_are_those_of_the_runs() -> None:
    small, full, less = (curves(name) for name in ("effective-step", "heavy-tail", "heavy-tail-sigma5"))
    for runs, steps, epsilon in ((small, 122, 27.9), (full, 1950, 27.9), (less, 488, 27.9)):
        assert {run["steps"][-1] for run in runs if not run["diverged"]} == {steps}
        assert {round(run["epsilon"][-1], 1) for run in runs if not run["diverged"]} == {epsilon}
    assert said("640 samples in 31 classes of 128 to 8, σ = 2.5, 122 steps (ε = 27.9 at δ = 1e-5")
    assert said("8,192 samples, 255 classes of 1,024 to 8, σ = 10, C = 1, 1,950 steps, ε = 27.9, two seeds")
    assert said("The same with σ = 5 and 488 steps")
    assert {run["trial"]["precision"] for run in of(full, seed=0)} == {"bfloat16"}
    assert {run["trial"]["precision"] for run in of(full, seed=1) + less} == {"int8"}
    ends_at = {scale: at_step("gd", scale, 1.0, 1000)["epsilon"][-1] for scale in BATCH}
    assert said(f"12 steps of a share of 0.05 of them, ε = {ends_at['small']:.2f}, $h$ of 0.5 to 32)")
    assert said(f"40 steps of a tenth of them, ε = {ends_at['paper']:.2f}, $h$ of 0.5 to 128)")
    for scale, size, classes in (("small", 1600, 70), ("paper", 17_000, 330)):
        extent = barcode.EXTENTS[scale]
        assert sum(count * images for count, images in extent.plan) == size
        assert size * extent.sample_rate == BATCH[scale]
        assert said(f"({size:,} images in {classes} classes, {extent.steps} steps of")
        assert sum(count for count, _ in extent.plan) == classes
        assert list(tried("gd", scale)) == list(extent.grid)
    assert said("σ = C = 1, γ = 0.001 s, γ' = 0.1 s²")
    assert (barcode.SIGMA, barcode.CLIPPING) == (1.0, 1.0)
    assert (barcode.STABILITY["adam"], barcode.STABILITY["adambc"]) == (0.001, 0.1)


def test_what_follows_from_the_formulas() -> None:
    squares = (1 + 0.999) / (1 - 0.999)
    assert said(f"averages about $(1+\\beta_2)/(1-\\beta_2)={squares:.0f}$ squares")
    assert said(f"by $s^2\\sqrt{{2/{squares:.0f}}}={math.sqrt(2 / squares):.2f}s^2$")
    assert said(f"after 122 it fluctuates by ${math.sqrt(2 / 122):.2f}s^2$")
    assert said(f"momentum takes effective steps {1.9 / 0.1:.0f} times as long")
    norm = math.sqrt(9216 / 3)  # of a sample, uniform in [0, 1], root mean square
    assert said(f"which is {1 / norm:.3f} with C = 1 and {10 / norm:.2f} with C = 10")


def at_best(name: str) -> np.ndarray:
    """Losses by seed."""
    return losses(name)[:, best(name)]


def accuracies(size: int, h: float) -> list[float]:
    """Of all optimizers, at an effective step."""
    at = int(np.argmin(np.abs(np.array(EFFECTIVE_STEPS) - h)))
    return [right(list(sweep(name)[:, at]), size)[0] for name in LABELS]


def test_sentences_on_the_small_instance() -> None:
    behind = {name: at_best(name) - at_best("gdm") for name in LABELS}
    for name, words in (
        ("gd", "is below DP-GD's by"),
        ("adam", "below DP-Adam's by"),
        ("adambc", "below DP-AdamBC's by"),
    ):
        found = mean_interval(behind[name])
        assert said(f"{words} {behind[name].mean():.3f} ({found.low:.3f} … {found.high:.3f})")
    assert said("differ by less than a seventh of what DP-GD is behind")
    assert max(behind["adam"].mean(), behind["adambc"].mean()) < behind["gd"].mean() / 7
    gaps = at_best("adambc") - at_best("adam")
    found = mean_interval(gaps)
    between = f"{abs(gaps.mean()):.3f}, −{-found.low:.3f} … {found.high:.3f}"
    assert said(f"(DP-AdamBC's loss less DP-Adam's: {between})")
    at = best("adambc") + 4
    ends_at = {name: losses(name).mean(0)[at] for name in ("adambc", "gdm", "adam")}
    for name in ("gdm", "adam"):
        assert mean_interval(losses(name)[:, at] - losses("adambc")[:, at]).low > 0
    assert said(
        f"at $h={EFFECTIVE_STEPS[at]:.1f}$, four times the best one, mean losses of {ends_at['adambc']:.2f} against"
        f" {ends_at['gdm']:.2f} (DP-GDM) and {ends_at['adam']:.2f} (DP-Adam)"
    )
    first, *others = (f"{value:.1f}" for value in accuracies(8, 4.0))
    assert said(f"right as the others up to $h=4$ ({first} % against {listed(others)} %)")
    for h in EFFECTIVE_STEPS[:7]:
        assert accuracies(8, h)[0] > min(accuracies(8, h)[1:]) - 0.1
    first, *others = (f"{value:.1f}" for value in accuracies(128, 2**0.5))
    assert said(f"from $h=1.41$ on ({first} % right of the classes of 128 against {listed(others)} %)")
    assert min(accuracies(128, 1.0)) > 98


def test_the_other_small_instance_does_not_tell_dp_gdm_from_dp_adambc() -> None:
    stored = load("heavy-tail-small")
    assert stored is not None
    (lead,) = (row for row in stored.found.rows if "one grid" in row.label and "lead of DP-AdamBC" in row.label)
    assert "over DP-GDM" in lead.label
    assert lead.verdict() == "compatible, wide"
    assert said("DP-GDM and DP-AdamBC are not told apart. At steps that are too long")


def test_sentences_on_the_paper_s_instance() -> None:
    order = ("gd", "adam", "gdm", "adambc")
    by_seed = [[of(curves("heavy-tail"), optimizer=name, seed=seed) for name in order] for seed in (0, 1)]
    for runs in by_seed:
        columns = np.array([[at_end(run, "loss", 8), *right(run, 1024, 128, 8)] for run in runs])
        assert (np.diff(columns, axis=0) * [-1, -1, 1, 1] > 0).all()
    assert (np.diff([theirs(name) for name in order], axis=0) * [-1, -1, 1, 1] > 0).all()
    assert said("Every column is in the order of $h$, in ours (on each of the two seeds) and in the published ones.")
    longer = of(curves("heavy-tail-longer-steps"), optimizer="adambc")
    three = sorted(of(curves("heavy-tail"), optimizer="adambc", seed=0) + longer, key=step)
    off = np.abs(np.array([right([run], 1024, 128, 8) for run in three]) - theirs("adambc")[1:])
    assert off.argmin(0).tolist() == [1, 1, 1]
    assert np.argmin([loss([run]) for run in three]) == 1
    assert said(f"Of these three steps of DP-AdamBC the one of $h={step(three[1]):.2f}$ is nearest to each of its")
    accuracies = "87.5, 47 and 9.5"
    assert theirs("adambc")[1:] == pytest.approx([float(value) for value in re.findall(r"[\d.]+", accuracies)])
    assert said(f"published accuracies ({accuracies} %), and ends at the lowest loss")
    above = at_end([three[1]], "loss", 8) - theirs("adambc")[0]
    assert said(f"its loss of the rarest classes is {above:.2f} above the published one")
    short, long = (of(curves(name), optimizer="adam", seed=0) for name in ("heavy-tail", "heavy-tail-longer-steps"))
    assert said(f"grid has no rate between $h={step(short[0]):.2f}$ and ${step(long[0]):.2f}$")


def test_sentences_on_less_noise_and_on_clipping() -> None:
    less = curves("heavy-tail-sigma5")
    first, second = (of(less, optimizer=name) for name in ("gdm", "adambc"))
    nats = max(
        abs(a - b) for a, b in [(loss(first), loss(second)), (at_end(first, "loss", 8), at_end(second, "loss", 8))]
    )
    points = max(abs(np.subtract(right(first, 1024, 128, 8), right(second, 1024, 128, 8))))
    assert 0.01 < nats <= 0.02
    assert 1.3 < points <= 1.4
    assert said("agree within 0.02 nats and 1.4 points in every column")
    command = json.loads((RESULTS / "raw/heavy-tail-sigma5.json").read_text(encoding="utf-8"))["provenance"]["command"]
    assert "--rates gd=0.5:1 gdm=0.1:1 adam=1e-3:5e-3 adambc=1e-3 --stability adambc=0.1,0.5" in command
    assert said(
        "0.5 and 1 (DP-GD), 0.1, 0.5 and 1 (DP-GDM), 0.001 and 0.005 (DP-Adam), and γ' = 0.1 and 0.5 s² (DP-AdamBC)"
    )
    adam = of(less, optimizer="adam")
    assert [low > high for low, high in zip(right(first, 1024, 128, 8), right(adam, 1024, 128, 8), strict=True)] == [
        True,
        False,
        False,
    ]
    assert said(f"the other rate it was given, $h={step(adam[0]) / 5:.1f}$, ended")
    more = {"heavy-tail-sigma5-c10": less, "heavy-tail-c10": curves("heavy-tail")}
    at = {
        name: [(of(curves(name), optimizer=each), of(before, optimizer=each, seed=0)) for each in LABELS]
        for name, before in more.items()
    }
    texts = {
        name: [listed(f"{loss(run):.2f}" for run in side) for side in zip(*pairs, strict=True)]
        for name, pairs in at.items()
    }
    assert said(f"the four losses are {texts['heavy-tail-sigma5-c10'][0]} on seed 0")
    assert said(f"({texts['heavy-tail-sigma5-c10'][1]} with C = 1;")
    assert said(f"At σ = 10 they are {texts['heavy-tail-c10'][0]} after {texts['heavy-tail-c10'][1]}, with")
    hits = [listed(f"{right(run, 128)[0]:.1f}" for run in side) for side in zip(*at["heavy-tail-c10"], strict=True)]
    assert said(f"accuracies on classes of 128 of {hits[0]} % after {hits[1]} % (seed 0;")
    nats = max(abs(loss(run) - loss(before)) for pairs in at.values() for run, before in pairs)
    points = max(abs(right(run, 128)[0] - right(before, 128)[0]) for run, before in at["heavy-tail-c10"])
    assert 0.02 < nats <= 0.03
    assert 2.5 < points <= 2.6
    assert said("To within 0.03 nats and 2.6 points the clipping norm is a learning rate")


def listed(values: Any) -> str:
    *most, last = values
    return f"{', '.join(most)} and {last}"


def test_sentences_on_barcodes() -> None:
    def behind(other: str, scale: Scale, h: float | None = None) -> np.ndarray:
        return ends("adambc", scale, h)[:, 0] - ends(other, scale, h)[:, 0]

    def between(gaps: np.ndarray) -> str:
        found = mean_interval(gaps)
        return f"{found.low:.2f} … {found.high:.2f}".replace("-", "−")

    words = [("gd", "above DP-GD's by"), ("gdm", "below DP-GDM's by"), ("adam", "below DP-Adam's by")]
    for other, lies in words:
        gaps = behind(other, "small") if other == "gd" else -behind(other, "small")
        assert said(f"{lies} {gaps.mean():.2f} ({between(gaps)})")
        found = mean_interval(gaps)
        assert found.low < 0 < found.high
    assert max(ends(name, "small")[:, 2:].max() for name in LABELS) < 2.5  # 10 of 400 images of the classes of 20
    assert max(ends(name, "paper")[:, 4].max() for name in LABELS) < 0.1
    gaps = behind("adam", "paper")
    assert said(f"DP-AdamBC is {gaps.mean():.2f} behind it ({between(gaps)}), each at its own best step")
    lowest = [tried(name, "paper")[chosen(name, "paper")] for name in ("adambc", "adam")]
    assert said(f"on which the two ended at {lowest[0]:.2f} and {lowest[1]:.2f}")
    h = chosen("adambc", "paper")
    at_its_step = {name: ends(name, "paper", h)[:, 0].mean() for name in LABELS}
    assert said(
        f"At DP-AdamBC's step, $h={h:g}$, the two are not told apart ({at_its_step['adam']:.2f} and"
        f" {at_its_step['adambc']:.2f}; difference {between(-behind('adam', 'paper', h))}),"
    )
    assert said(f"while DP-GD and DP-GDM end at {at_its_step['gd']:.2f} and {at_its_step['gdm']:.2f}")


def test_sentences_on_next_tokens() -> None:
    known = pieces("next-token", "study")
    assert {run["step"][-1] for run in known.values()} == {40}
    assert {f"{run['epsilon'][-1]:.1f}" for run in known.values()} == {"46.2"}
    starts = [head_run(name, head_rate(name), 0)["loss"][0] for name in LABELS]
    assert said(f"ε = 46.2, from a loss of {starts[0]:.2f};")
    assert said("--rows 1000 --steps 40 --seeds 2 --record-every 40 --folder")
    words = []
    for name in ("gd", "adam", "adambc"):
        gaps = head_ends(name)[:, 0] - head_ends("gdm")[:, 0]
        found = mean_interval(gaps)
        words.append(f"{LABELS[name]} {gaps.mean():.2f} ({found.low:.2f} … {found.high:.2f})".replace("(-", "(−"))
    assert said(f"DP-GDM ends at the lowest mean loss; above it, paired by seed, lie {listed(words)}")
    factors = {"gd": 1, "gdm": 10, "adam": 1000 / 1.001, "adambc": 1000 / math.sqrt(0.1)}  # s = 1 / 1,000 sequences
    steps = [f"{head_rate(name) * factors[name]:.0f}" for name in LABELS]
    assert said(f"In effective steps they are $h={steps[0]}$, {listed(steps[1:])}, so that")
    assert all(head_rate(name) not in (min(etas), max(etas)) for name, etas in HALF_POWERS.items())


def test_sentences_on_adapters() -> None:
    known = pieces("next-token-e2e", "small")
    runs = [known[f"{name}, lr = {eta:g}, seed 0"] for name, (eta,) in LORA_RATES.items()]
    (start,) = {f"{run['loss'][0]:.2f}" for run in runs}
    assert {run["step"][-1] for run in runs} == {20}
    assert said(f"(20 steps, ε = {runs[0]['epsilon'][-1]:.1f}, one seed, rates not tuned)")
    lowest = listed(f"{run['loss'][-1]:.2f}" for run in runs)
    assert said(f"From a loss of {start} DP-GD, DP-GDM, DP-Adam and DP-AdamBC end at {lowest}: at these rates hardly")
    assert min(run["loss"][-1] for run in runs) > runs[0]["loss"][0] - 0.1
