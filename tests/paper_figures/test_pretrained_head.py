"""The study on digits again, of a head on a frozen MiniLM: its page and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paper_figures.digits import HEADS, Compared, false_alarms, with_tables
from paper_figures.digits._page import beside_many, corrected, corrected_blend, readings
from paper_figures.digits._tuning import NULL
from paper_figures.long_runs._stored import PAGE, read
from paper_figures.long_runs.digits import STUDY as DIGITS
from paper_figures.long_runs.last_matrix import STUDY as LAST
from paper_figures.long_runs.pretrained_head import STUDY

DENOISERS = ("gate", "gate without norm correction", "blend", "momentum gate", "momentum blend")
GENERATION = Path(__file__).parents[2] / "paper_figures" / "results" / "generation-50.json"
HOW_TO = Path(__file__).parents[2] / "docs" / "how_to" / "choose_denoiser.md"


def test_the_page_shows_the_stored_runs() -> None:
    stored = read(STUDY.file)
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page, stored["settings"], STUDY.name) == page
    assert list(stored["settings"]) == list(HEADS)
    assert {tuple(results["sizes"]) for results in stored["settings"].values()} == {(3132, 412, 377)}
    train, tune, test = 3132, 412, 377
    assert f"{train:,} texts to train on, {tune} to tune on,\n{test} to test on" in page
    for results in stored["settings"].values():
        assert all(len(method["test"]) == 20 for method in results["methods"].values())


def test_what_the_page_says_of_it_is_what_was_found() -> None:
    short, large = read(STUDY.file)["settings"].values()
    found = [readings(results) for results in (short, large)]
    for one in found:
        assert not [name for name, row in one.items() if row.reading in ("better", "equal within the margin")]
        for method in ("gate", "momentum gate", "spiked Muon", "DOPPLER"):
            assert one[method].reading == "worse"
        for method in ("blend", "momentum blend", "average of weights", "DiSK", "Muon", NULL):
            assert one[method].reading == "cannot tell"
    assert [round(-one["gate"].mean, 1) for one in found] == [4.4, 1.2]
    assert [round((one[NULL].interval.high - one[NULL].interval.low) / 2, 1) for one in found] == [1.3, 1.5]
    over = [results["methods"]["Adam"]["over"]["head"] for results in (short, large)]
    assert [[sum(value > 1 for value in look) for look in looks] for looks in over] == [[5, 1, 1], [1, 0, 0]]
    assert [corrected(results).reading for results in (short, large)] == ["better", "worse"]
    blends = [corrected_blend(results) for results in (short, large)]
    assert [row.reading for row in blends] == ["better", "better"]
    words = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"it is {blends[0].mean:.2f} and {blends[1].mean:.2f} points better so" in words
    ahead, behind = (corrected(results) for results in (short, large))
    low, high = f"{ahead.interval.low:.2f}"[1:], f"{ahead.interval.high:.2f}"
    assert f"the reverse once, {ahead.mean:.2f} [{low}, {high}] ahead" in words
    low, high = (f"{-end:.2f}"[1:] for end in (behind.interval.high, behind.interval.low))
    assert f"same once, {-behind.mean:.2f}".replace("0.", ".") + f" [{low}, {high}] behind" in words


def all_four() -> list[dict[str, Compared]]:
    """Digits and head, two settings each."""
    return [readings(results) for results in _all_results()]


def _all_results() -> list[dict[str, Any]]:
    return [results for study in (DIGITS, STUDY) for results in read(study.file)["settings"].values()]


def test_spiked_muon_is_behind_muon_wherever_it_was_trained() -> None:
    behind = [found["Muon"].mean - found["spiked Muon"].mean for found in all_four()]
    first, second, third, fourth = (f"{value:.2f}".removeprefix("0") for value in behind)
    words = " ".join(PAGE.read_text(encoding="utf-8").split())
    said = f"by {first} and {second} points, on a [head](#a-head-on-a-pretrained-model) by {third} and {fourth}."
    assert said in words
    assert min(behind) > 0


def test_what_is_said_of_the_shared_adam_is_in_its_nulls() -> None:
    short, large = read(STUDY.file)["settings"].values()
    nulls = [false_alarms(results) for results in (short, large)]
    assert [found.missed for found in nulls] == [1, 0]
    assert all(found.share.low < 0.05 < found.share.high and len(found.differences) == 10 for found in nulls)
    words = " ".join(PAGE.read_text(encoding="utf-8").split())
    means = [(found.lucky.low + found.lucky.high) / 2 for found in nulls]
    ends = f"[{nulls[1].lucky.low:.2f}, {nulls[1].lucky.high:.2f}]".replace("0.", ".")
    assert f"is {means[0]:.2f} and {means[1]:.2f} {ends} points above".replace("0.", ".") in words
    first, second = beside_many(short), beside_many(large)
    assert {first[name].reading for name in ("momentum gate", "spiked Muon")} == {"cannot tell"}
    assert (first["gate"].reading, second["gate"].reading) == ("worse", "cannot tell")
    gate, filtered = second["gate"], second["DiSK"]
    for row, word in ((gate, "told ({})"), (filtered, "DiSK is {} ahead in the second")):
        said = f"{row.mean:.2f} [{row.interval.low:.2f}, {row.interval.high:.2f}]".replace("0.", ".")
        assert word.format(said) in words
    assert filtered.reading == "better"
    for results in read(DIGITS.file)["settings"].values():
        one, many = readings(results), beside_many(results)
        for name in DENOISERS:
            assert one[name].reading == many[name].reading


def test_what_pages_say_of_denoisers_is_at_the_size_of_the_evidence() -> None:
    found = all_four()
    readings_of = {name: [one[name].reading for one in found] for name in found[0]}
    gate = [-one["gate"].mean for one in found]
    assert readings_of["gate"] == ["worse"] * 4
    assert readings_of["blend"].count("worse") == 2
    assert readings_of["momentum gate"].count("worse") == 3
    assert readings_of["momentum blend"].count("equal within the margin") == 1
    for name in DENOISERS:
        assert "better" not in readings_of[name]
    how_to, training, readme, pitfalls = (
        " ".join((HOW_TO.parents[2] / name).read_text(encoding="utf-8").split())
        for name in ("docs/how_to/choose_denoiser.md", "docs/training.md", "README.md", "docs/pitfalls.md")
    )
    assert "the paper's gate loses accuracy in all four beside Adam with the same noise, and in three beside" in how_to
    assert "the blend and a gate on the momentum lose in two or three" in how_to
    assert readings_of["momentum blend"].count("worse") == 1
    assert "a blended momentum is equal to plain Adam in one and loses in one" in how_to
    assert "Norm correction of the gate loses in three of these four and gains in the other" in how_to
    least, *rest = sorted(gate)
    assert f"behind, by {min(rest):.1f} to {max(rest):.1f} points (20 seeds each)" in training
    assert f"in another of the head by {least:.1f}, or," in training
    where = "on digits, on a head of a frozen encoder and on adapters in a last layer"
    assert f"{where}, it loses accuracy in five of six settings, and of the sixth it cannot be told" in readme
    adapter, decoder = read(LAST.file)["settings"].values()
    fifth = readings(adapter)
    assert {fifth[name].reading for name in DENOISERS} == {"worse"}
    assert len(adapter["methods"]["gate"]["test"]) == 10
    assert "an [adapter](../theory/when_denoising_helps.md#an-adapter-in-a-pretrained-last-matrix)" in how_to
    assert "with ten seeds, all five denoisers lose" in how_to
    sixth = readings(decoder)
    assert f"with an adapter in its last matrix by {-fifth['gate'].mean:.1f}, with one in SmolLM2's" in training
    assert f"last layer by {-sixth['gate'].mean:.1f} (ten seeds each)" in training
    assert [name for name in DENOISERS if sixth[name].reading != "worse"] == ["momentum blend"]
    assert "in a sixth, one in SmolLM2's last layer, four do and of a blended momentum it cannot be told" in how_to
    beside = [beside_many(results)["gate"].reading for results in [*_all_results(), adapter, decoder]]
    assert (beside.count("worse"), beside.count("cannot tell")) == (5, 1)
    assert "the paper's gate did in five of six settings in which it opens, at its own best rate" in pitfalls
    of_five = corrected(adapter)
    assert of_five.reading == "cannot tell"
    ends = f"{-of_five.mean:.2f} [{-of_five.interval.high:.2f}, {-of_five.interval.low:.2f}] behind".replace("0.", ".")
    assert f"in MiniLM it cannot be told ({ends})" in " ".join(PAGE.read_text(encoding="utf-8").split())


def test_what_recipes_and_how_to_say_of_one_untuned_rate_is_in_the_item() -> None:
    rows = {row["label"]: row["ours"] for row in json.loads(GENERATION.read_text(encoding="utf-8"))["found"]["rows"]}
    where = "E2E, SmolLM2-135M"
    plain, gated, faster = (
        rows[f"{where}, {name}: validation loss in nats"]
        for name in ("baseline", "denoised", "baseline at twice the rate")
    )
    assert faster < gated < plain
    words = {
        name: " ".join((HOW_TO.parents[2] / name).read_text(encoding="utf-8").replace("#", " ").split())
        for name in ("docs/how_to/choose_denoiser.md", "dprmt/training/recipes/library/smollm2-e2e.toml")
    }
    how_to, recipe = words.values()
    assert "first fifty steps](../reproduction.md generation-50) end at a lower loss with its denoiser" in how_to
    assert "with its denoiser than without, and at twice that rate without it at a lower one still" in how_to
    assert (
        "fifty steps end at a lower loss with its denoiser, and at twice that rate without it at a lower one still"
        in recipe
    )
    tuned = [readings(results) for results in [*_all_results(), *read(LAST.file)["settings"].values()]]
    assert not [name for one in tuned for name in DENOISERS if one[name].reading == "better"]
