"""What is left of a budget, from the command line: noise and steps of what is not over yet."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dprmt.accounting import DPSGD, GaussianRelease, RandomAllocation, compose, largest_steps
from dprmt.cli import main
from dprmt.cli._run import composition_of, document_of

RUN = ["--sample-rate", ".01", "--delta", "1e-5"]
DONE = ["--phase", "noise-multiplier=1,steps=1000"]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 2
    return capsys.readouterr().err.strip()


def test_only_phases_without_noise_move(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "noise", "--epsilon", "2", *RUN, *DONE, "--phase", "steps=500")
    past, rest = found["noise_multipliers"]
    assert past == 1.0
    assert rest == pytest.approx(1.312, abs=2e-3)  # both phases scaled would be 1.058
    assert found["epsilon"]["upper"] <= 2.0
    composed = compose([(DPSGD(1.0, 0.01), 1000), (DPSGD(rest, 0.01), 500)])
    assert found["epsilon"]["upper"] == composed.epsilon_by_direction(1e-5)["remove"].upper


def test_where_all_state_their_noise_the_answer_says_that_all_move(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["noise", "--epsilon", "2", *RUN, *DONE, "--phase", "noise-multiplier=1,steps=500"]) == 0
    assert "all scaled, in their ratios" in capsys.readouterr().out.splitlines()[0]


def test_noise_with_a_release_and_with_what_was_spent(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A card or an answer stands for what is over; the answer is a record that can be spent in turn."""
    place = tmp_path / "past.json"
    place.write_text(json.dumps(answer(capsys, "statement", "--noise-multiplier", "1", "--steps", "1000", *RUN)))
    words = ["noise", "--epsilon", "2.2", *RUN, "--steps", "500", "--also", "gaussian:8", "--spent", str(place)]
    found = answer(capsys, *words)
    rest = (DPSGD(found["noise_multiplier"], 0.01), 500)
    composed = compose([(DPSGD(1.0, 0.01), 1000), rest, GaussianRelease(8.0)])
    assert composed.epsilon(1e-5).upper == pytest.approx(found["epsilon"]["upper"], rel=1e-9)
    assert 2.195 < found["epsilon"]["upper"] <= 2.2
    again = tmp_path / "again.json"
    again.write_text(json.dumps(found))
    same = answer(capsys, "epsilon", "--from-json", str(again))
    assert same["epsilon"]["upper"] == found["epsilon"]["upper"]
    assert main(["epsilon", "--noise-multiplier", "1", "--steps", "9", *RUN, "--spent", str(again)]) == 0
    assert "with what was spent before" in capsys.readouterr().out


def test_steps_that_are_left(capsys: pytest.CaptureFixture[str]) -> None:
    alone = answer(capsys, "steps", "--epsilon", "2", "--noise-multiplier", "1", *RUN)
    assert alone["largest_steps"] == largest_steps(DPSGD(1.0, 0.01), 2.0, 1e-5) == alone["steps"]
    left = answer(capsys, "steps", "--epsilon", "2", *RUN, *DONE, "--phase", "noise-multiplier=1")
    assert left["largest_steps"] == alone["largest_steps"] - 1000
    assert [phase["steps"] for phase in left["phases"]] == [1000, left["largest_steps"]]
    words = ["--sampling", "allocation", "--steps-per-epoch", "100", "--noise-multiplier", "1", "--delta", "1e-5"]
    epochs = answer(capsys, "steps", "--epsilon", "2", *words)["largest_steps"]
    assert epochs == largest_steps(DPSGD(1.0, RandomAllocation(100)), 2.0, 1e-5)
    assert epochs % 100 == 0
    assert "--steps must be left out" in refusal(capsys, "steps", "--epsilon", "2", *RUN, *DONE)
    assert "--steps must be left out" in refusal(
        capsys, "steps", "--epsilon", "2", "--noise-multiplier", "1", "--steps", "5", *RUN
    )


def test_numbers_as_people_write_them(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["epsilon", "--noise-multiplier", "1", "--sample-rate", ".001"]
    found = answer(capsys, *words, "--steps", "1e4", "--delta", "1/60000")
    assert (found["steps"], found["delta"]) == (10_000, pytest.approx(1 / 60000, rel=1e-15))
    assert Fraction(found["delta"]) <= Fraction(1, 60000)
    for steps in ("1.5e0", "1e999", "nan", "1e"):
        assert "--steps must be an integer" in refusal(capsys, *words, "--steps", steps, "--delta", "1e-5")
    assert "--delta must be" in refusal(capsys, *words, "--steps", "9", "--delta", "1/0")


def test_all_that_does_not_fit_an_allocation_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--samples", "100", "--batch-size", "10", "--steps", "5", "--noise-multiplier", "1", "--delta", "1e-5"]
    said = refusal(capsys, "epsilon", "--sampling", "allocation", *words)
    for name in ("--samples", "--batch-size", "--steps ", "--steps-per-epoch", "--epochs"):
        assert name in said


def test_a_delta_above_one_over_n_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["epsilon", "--samples", "100", "--batch-size", "10", "--steps", "5", "--noise-multiplier", "1"]
    assert main([*words, "--delta", ".1", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "above 1/N = 0.01" in err
    json.loads(out)
    assert main([*words, "--delta", "1e-3"]) == 0
    assert capsys.readouterr().err == ""


def test_replacement_has_one_direction(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["epsilon", "--neighbours", "replace-one", "--noise-multiplier", "1", "--steps", "9", *RUN, "--statement"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "decides" not in said
    assert "  both " in said


def test_epochs_are_rounded_up_to_steps(capsys: pytest.CaptureFixture[str]) -> None:
    """An epoch at rate .3 is 3⅓ steps."""
    words = ["epsilon", "--noise-multiplier", "1", "--sample-rate", ".3", "--delta", "1e-5"]
    assert answer(capsys, *words, "--epochs", "1")["steps"] == 4


def test_a_record_of_what_was_spent_has_every_release() -> None:
    run = compose([(DPSGD(1.0, 0.01), 10), (GaussianRelease(2.0), 3)])
    assert composition_of(document_of(run)) == run
