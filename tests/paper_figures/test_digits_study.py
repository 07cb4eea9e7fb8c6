"""The study on digits: gradients against a literal loop, filters, steps, tuning that resumes, verdicts, its page."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dprmt.spectra import momentum_noise_scale
from dprmt.training.denoising import Denoising
from paper_figures._pieces import Pieces
from paper_figures.digits import (
    ALSO,
    METHODS,
    Run,
    Setting,
    compared,
    drawn_images,
    false_alarms,
    null_columns,
    train,
    tuned_and_run,
    with_tables,
)
from paper_figures.digits._methods import _GAIN, Rule, _filtered, newton_schulz
from paper_figures.digits._networks import clipped_sum, logits, start
from paper_figures.digits._page import corrected, readings
from paper_figures.long_runs._stored import PAGE, read
from paper_figures.long_runs.digits import STUDY
from tests.spectra.simulation import denoise

SMALL = Setting(epsilon=3.0, batch=40, steps=6, hidden=12)


def test_clipped_sums_are_those_of_one_sample_after_the_other() -> None:
    generator = torch.Generator().manual_seed(1)
    weights = {name: value.double() for name, value in start(9, 5, [3, 4]).items()}
    x = torch.randn(2, 7, 9, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 10, (2, 7), generator=generator)
    clip = 1.9  # some of these norms are larger, some smaller
    found = clipped_sum(weights, x, y, clip)
    clipped = 0
    for run in range(2):
        total = {name: torch.zeros_like(value[run]) for name, value in weights.items()}
        for row in range(7):
            own = {name: value[run : run + 1].clone().requires_grad_() for name, value in weights.items()}
            loss = torch.nn.functional.cross_entropy(logits(own, x[run, row : row + 1])[1][0], y[run, row : row + 1])
            gradient = torch.autograd.grad(loss, list(own.values()))
            norm = math.sqrt(sum(float(value.square().sum()) for value in gradient))
            clipped += norm > clip
            for name, value in zip(own, gradient, strict=True):
                total[name] += min(1.0, clip / norm) * value[0]
        for name, value in total.items():
            torch.testing.assert_close(found[name][run], value, rtol=1e-12, atol=1e-13)
    assert 0 < clipped < 14


@pytest.mark.parametrize("method", [*METHODS, *ALSO])
def test_runs_side_by_side_are_runs_alone(method: str) -> None:
    images = drawn_images(200, 50, 50)
    runs = [Run(0.01, 1, 1), Run(0.03, 2, 2), Run(0.01, 1, 7)]
    together = train(SMALL, method, runs, images)
    alone = [train(SMALL, method, [run], images)[0] for run in runs]
    assert [one.tune_loss for one in together] == pytest.approx([one.tune_loss for one in alone], rel=1e-4)
    assert together[0].tune_loss != together[2].tune_loss  # other noise


def test_released_gradients_have_the_noise_that_was_charged() -> None:
    """Seen from outside: of Adam's first step only the signs; of Muon's memory all of it. Twice the noise is seen."""
    images = drawn_images(200, 50, 50)
    sigma = SMALL.noise_multiplier(200) / SMALL.batch
    seen = []

    class Kept(Rule):
        def move(self, weights, gradient):  # type: ignore[no-untyped-def]
            seen.append(gradient)
            return super().move(weights, gradient)

    import paper_figures.digits._runs as module

    before, module.Rule = module.Rule, Kept
    try:
        train(SMALL, "Adam", [Run(1e-30, 1, noise) for noise in range(40)], images)
    finally:
        module.Rule = before
    spread = torch.stack([step["first"] for step in seen]).std(dim=1, correction=1)  # the weights hardly move
    found = float(spread.square().mean().sqrt())
    assert found == pytest.approx(sigma, rel=0.02)
    assert found != pytest.approx(1.1 * sigma, rel=0.02)


@pytest.mark.parametrize("method", ["DOPPLER", "DiSK"])
def test_filters_over_steps_leave_what_is_constant(method: str) -> None:
    rule = Rule(METHODS[method], torch.zeros(1), 0.1)
    one = {"first": torch.full((1, 3, 2), 2.0)}
    for rule.time in range(1, 6):
        torch.testing.assert_close(rule._over_steps(one), one)
    rule.time += 1
    changed = rule._over_steps({"first": torch.zeros(1, 3, 2)})["first"]
    assert 0.0 < float(changed[0, 0, 0]) < 2.0  # it remembers


def test_the_average_of_weights_is_what_is_tested() -> None:
    rule = Rule(METHODS["average of weights"], torch.tensor([0.0, 1.0]), 0.1)
    weights = {"first": torch.full((2, 3, 2), 2.0)}
    for _ in range(3):
        weights = rule.move(weights, {"first": torch.ones(2, 3, 2)})
    found = rule.tested(weights)["first"]
    assert float(found[0, 0, 0]) == pytest.approx(2.0)  # no step, no difference
    by_hand = np.average([1.0, 0.0, -1.0], weights=[0.81, 0.9, 1.0])  # Adam's steps are of size 1 here
    assert float(found[1, 0, 0]) == pytest.approx(by_hand, rel=1e-5)


def test_muon_lifts_all_directions_and_its_spiked_form_drops_noise() -> None:
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(4, 40, 12, generator=generator)
    values = torch.linalg.svdvals(newton_schulz(noise))
    assert 0.6 < float(values.min()) < float(values.max()) < 1.3
    rule = Rule(METHODS["spiked Muon"], torch.ones(4), 1.0)
    weights = {"first": torch.zeros(4, 40, 12), "second": torch.zeros(4, 12, 10)}
    spike = torch.zeros(40, 12)
    spike[0, 0] = 16.0  # half of it would not stand out
    gradient = {"first": noise + spike, "second": noise[:, :12, :10].clone()}
    moved = rule.move(weights, gradient)
    assert torch.linalg.matrix_rank(moved["first"], rtol=1e-3).tolist() == [1] * 4
    assert float(moved["second"].abs().max()) == 0.0


def test_a_spike_too_weak_for_one_gradient_stands_out_of_a_momentum_of_known_noise() -> None:
    """At 1.3 thresholds of a gradient's noise; pure noise beside it stays below the gate."""
    generator = torch.Generator().manual_seed(6)
    spike = torch.zeros(40, 12)
    spike[0, 0] = 6.0
    rule = Rule(METHODS["spiked Muon"], torch.ones(1), 1.0)
    weights = {"first": torch.zeros(1, 40, 12), "second": torch.zeros(1, 12, 10)}
    for step in range(20):
        noise = torch.randn(1, 40, 12, generator=generator)
        moved = rule.move(weights, {"first": spike + noise, "second": noise[:, :12, :10].clone()})
        assert step or not moved["first"].any()
    assert torch.linalg.matrix_rank(moved["first"], rtol=1e-3).tolist() == [1]
    assert not moved["second"].any()


def test_a_replaced_momentum_is_over_no_less_than_the_noise() -> None:
    noise = torch.randn(1, 40, 12, generator=torch.Generator().manual_seed(6))
    noise[0, 0, 0] += 60.0
    gradient = {"first": noise, "second": torch.randn(1, 12, 10, generator=torch.Generator().manual_seed(7))}
    weights = {name: torch.zeros_like(value) for name, value in gradient.items()}
    moved = Rule(METHODS["momentum gate"], torch.ones(1), 1.0).move(weights, gradient)
    quiet = noise.abs() < 1
    torch.testing.assert_close(-moved["first"][quiet], denoise(noise, 1.0, 1.02)[quiet], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(-moved["second"], gradient["second"].sign(), rtol=1e-4, atol=0)  # Adam's own


def test_a_replaced_momentum_is_over_the_noise_of_one_gradient_at_every_step() -> None:
    """The same gradient three times is its own momentum, of less noise than one gradient; the root's floor stays."""
    noise = torch.randn(1, 40, 12, generator=torch.Generator().manual_seed(6))
    noise[0, 0, 0] += 60.0
    gradient = {"first": noise, "second": torch.zeros(1, 12, 10)}
    weights = {name: torch.zeros_like(value) for name, value in gradient.items()}
    rule = Rule(METHODS["momentum gate"], torch.ones(1), 1.0)
    for _ in range(3):
        moved = rule.move(weights, gradient)
    quiet = noise.abs() < 1
    expected = denoise(noise, momentum_noise_scale(0.9, 3), 1.02)
    torch.testing.assert_close(-moved["first"][quiet], expected[quiet], rtol=1e-4, atol=1e-6)


def test_a_gate_without_norm_correction_leaves_the_shrunk_length() -> None:
    noise = torch.randn(1, 40, 12, generator=torch.Generator().manual_seed(8))
    noise[0, 0, 0] += 30.0
    lengths = {how: float(_filtered(noise, "first", how, 1.0).norm()) for how in ("gate", "gate without norm")}
    assert lengths["gate"] == pytest.approx(float(noise.norm()), rel=1e-5)
    assert lengths["gate without norm"] == pytest.approx(
        float(denoise(noise, 1.0, 1.02, norm_correction=False).norm()), rel=1e-5
    )
    assert lengths["gate without norm"] < 0.9 * lengths["gate"]


def test_disk_looks_ahead_by_its_gain() -> None:
    """Its second point has γ = (1 - κ)/κ in front of the last move."""
    rule = Rule(METHODS["DiSK"], torch.zeros(1), 0.1, last_move={"first": torch.full((1, 3, 2), 0.4)})
    ahead = rule.point({"first": torch.ones(1, 3, 2)})["first"] - 1.0
    torch.testing.assert_close(_GAIN * ahead, (1 - _GAIN) * rule.last_move["first"])


def test_verdicts_can_tell_and_can_fail() -> None:
    rng = np.random.default_rng(0)
    adam = 0.9 + 0.004 * rng.standard_normal(20)
    spread = 0.002 * rng.standard_normal(20)
    expected = {0.01: "better", -0.01: "worse", 0.0: "equal within the margin", 0.005: "better"}
    for shift, reading in expected.items():
        assert compared(adam + shift + spread, adam, 11).reading == reading
    assert compared(adam + 5 * spread, adam, 11).reading == "cannot tell"
    assert compared(adam + 0.004 + 2 * spread, adam, 11).reading in ("better", "cannot tell")
    assert compared(adam, adam, 11).reading == "equal in every run"
    one, many = (compared(adam + spread, adam, of).interval for of in (1, 11))
    assert many.high - many.low > one.high - one.low


def _with_columns(spread: float, shift: float, columns: int = 20) -> dict[str, Any]:
    rng = np.random.default_rng(4)
    found = 0.9 + 0.004 * rng.standard_normal(20) + spread * rng.standard_normal((columns, 20))
    found[::2] += shift
    adam = 0.9 + spread * rng.standard_normal(20)
    return {"nulls": found.tolist(), "methods": {name: {"test": adam.tolist()} for name in ("Adam", *"abcdefghijk")}}


def test_false_alarms_of_equal_columns_are_as_rare_as_their_level_and_shifted_ones_are_seen() -> None:
    equal, shifted = (false_alarms(_with_columns(0.003, shift)) for shift in (0.0, 0.004))
    assert len(equal.differences) == 10
    assert equal.missed <= 3
    assert equal.share.low < 0.05 < equal.share.high
    assert equal.drawn == pytest.approx(0.05, abs=0.015)
    assert equal.drawn_at_once == pytest.approx(0.05 / 11, abs=0.004)
    assert shifted.missed >= 8
    assert shifted.share.low > 0.05
    assert equal.lucky.low <= equal.lucky.high


def test_columns_of_noise_differ_in_noise_alone(tmp_path: Path) -> None:
    images = drawn_images(200, 50, 200)
    pieces = Pieces(tmp_path, "digits", "test")
    one, other = null_columns(pieces, images, "drawn", replace(SMALL, seeds=(3, 4), noises=2), -4)
    assert one != other
    again = train(SMALL, "Adam", [Run(0.1, 3, 3003), Run(0.1, 4, 3004)], images)
    assert other == pytest.approx([end.test for end in again])


def test_a_head_alone_has_the_sums_of_one_sample_after_the_other() -> None:
    generator = torch.Generator().manual_seed(2)
    weights = {name: value.double() for name, value in start(9, 0, [3], classes=5).items()}
    assert {name: tuple(value.shape) for name, value in weights.items()} == {"head": (1, 9, 5), "head bias": (1, 5)}
    x, y = torch.randn(1, 8, 9, generator=generator).double(), torch.randint(0, 5, (1, 8), generator=generator)
    found = clipped_sum(weights, x, y, 2.6)
    total, clipped = torch.zeros(9, 5).double(), 0
    for row in range(8):
        own = {name: value.clone().requires_grad_() for name, value in weights.items()}
        loss = torch.nn.functional.cross_entropy(logits(own, x[0, row : row + 1])[1][0], y[0, row : row + 1])
        gradient = torch.autograd.grad(loss, list(own.values()))
        norm = math.sqrt(sum(float(value.square().sum()) for value in gradient))
        clipped += norm > 2.6
        total += min(1.0, 2.6 / norm) * gradient[0][0]
    torch.testing.assert_close(found["head"][0], total, rtol=1e-12, atol=1e-13)
    assert 0 < clipped < 8


def test_a_stopped_study_goes_on_with_rates_inside_its_grid(tmp_path: Path) -> None:
    images = drawn_images(300, 100, 100)
    settings = {"drawn": replace(SMALL, seeds=(0, 1))}
    first = tuned_and_run(Pieces(tmp_path, "digits", "test"), images, settings)
    file = tmp_path / "raw" / "digits-test.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:-3]) + "\n")
    again = tuned_and_run(Pieces(tmp_path, "digits", "test"), images, settings)
    assert again == first
    methods = first["drawn"]["methods"]
    assert list(methods)[:-1] == list(METHODS)
    adam = methods["Adam"]
    assert adam["tried"][str(adam["rate"])] == max(adam["tried"].values())
    assert methods["Adam, other noise"]["test"] != adam["test"]
    assert np.mean(adam["test"]) > 0.3  # the patterns are learnt


def test_the_page_shows_the_stored_runs() -> None:
    stored = read(STUDY.file)["settings"]
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page, stored) == page
    with pytest.raises(ValueError, match="the page needs"):
        with_tables("no comments", stored)
    for results in stored.values():
        for method in results["methods"].values():
            assert len(method["test"]) == 20
            assert all(0.0 < value < 1.0 for value in method["test"])


def _short(value: float) -> str:
    return f"{value:.2f}".removeprefix("0")


def test_what_pages_say_of_it_is_what_was_found() -> None:
    stored = read(STUDY.file)
    found = {setting: readings(results) for setting, results in stored["settings"].items()}
    loud, still = found["more noise"], found["little noise"]
    for one, results in ((loud, stored["settings"]["more noise"]), (still, stored["settings"]["little noise"])):
        for method in ("gate", "gate without norm correction", "blend", "Muon", "spiked Muon", "DOPPLER"):
            assert one[method].reading == "worse"
        assert corrected(results).reading == "worse"
        assert one["momentum gate"].mean < 0
        assert one["spiked Muon"].mean < one["Muon"].mean
        assert min(one, key=lambda name: one[name].mean) == "DOPPLER"
    assert still["momentum blend"].reading == "equal within the margin"
    assert [name for name in still if still[name].reading == "better"] == ["average of weights"]
    assert loud["average of weights"].reading == "worse"
    assert not [name for name in loud if loud[name].reading == "better"]
    assert -0.011 < loud["Adam, other noise"].interval.high < 0.0  # the null: a false alarm, said on the page
    for results in stored["settings"].values():
        over = results["methods"]["Adam"]["over"]
        assert sum(value > 1 for value in over["first"][0] + over["second"][0]) >= 2  # several, at first
        assert not any(value > 1 for value in over["first"][1] + over["first"][2])
        middle, end = (sum(value > 1 for value in look) for look in over["second"][1:])
        assert middle in (1, 2)
        assert end <= 1
    assert stored["cpu_seconds"] < 30 * 60
    words = " ".join(PAGE.read_text(encoding="utf-8").split())
    quiet, found_loud = (false_alarms(stored["settings"][name]) for name in ("little noise", "more noise"))
    for nulls in (quiet, found_loud):
        assert nulls.missed == 1
        assert len(nulls.differences) == 10
        assert nulls.share.low < 0.05 < nulls.share.high
        assert -0.225 < nulls.lucky.low < 0 < nulls.lucky.high < 0.225
    assert f"{100 * found_loud.drawn:.1f} % do at 95 % and {_short(100 * found_loud.drawn_at_once)} %" in words
    assert f"({100 * quiet.drawn:.1f} and {_short(100 * quiet.drawn_at_once)} with little noise)" in words
    costs = [corrected(results) for results in stored["settings"].values()]
    one, other = (f"{-c.mean:.2f} [{-c.interval.high:.2f}, {-c.interval.low:.2f}]".replace("0.", ".") for c in costs)
    assert f"the gate with it is {one} and {other} points\nbehind" in PAGE.read_text(encoding="utf-8")
    assert Denoising().keeps_norm is False  # what that decided
    assert Denoising("paper").keeps_norm
