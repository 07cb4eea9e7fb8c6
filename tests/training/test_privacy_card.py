"""The privacy card of a run folder: written at the end, about what was charged, with a claim that is proved."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from dprmt import ParameterError
from dprmt.cli import main
from dprmt.training.harness import CARD, read_card, read_summary, train
from dprmt.training.recipes import Recipe
from tests.training.tiny_recipe import recipe_in


def recipe(folder: Path, **changes: object) -> Recipe:
    return recipe_in(folder, **{"training.steps": 3, **changes})


def test_a_finished_run_has_a_card_that_is_proved(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    result = train(recipe(folder), run, noise_seed=3)
    card, page = json.loads((run / CARD).read_text()), (run / "privacy_card.md").read_text()
    assert card["epsilon"]["upper"] == result.epsilon == read_summary(run)["epsilon"]
    digest = hashlib.sha256((run / "privacy.jsonl").read_bytes()).hexdigest()
    assert card["ledger"] == {"file": "privacy.jsonl", "charged": 3, "sha256": digest}
    assert digest in page
    assert "noise seed" in page  # it is known
    assert f"dprmt verify {CARD}" in page
    assert main(["verify", str(run / CARD)]) == 0
    assert capsys.readouterr().out.count("proved: ε") == 6
    assert main(["statement", "--run", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == card


def test_a_card_counts_all_that_was_charged(folder: Path, tmp_path: Path) -> None:
    """Lines of the ledger beyond the steps that were kept raise ε, and change the digest."""
    run = tmp_path / "run"
    train(recipe(folder), run)
    before = read_card(run)
    ledger = run / "privacy.jsonl"
    last = json.loads(ledger.read_text().splitlines()[-1])
    ledger.write_text(ledger.read_text() + json.dumps(last | {"charged": 40}) + "\n")
    after = read_card(run)
    assert after.ledger["charged"] == 40
    assert after.worst.lower > before.worst.upper
    assert after.ledger["sha256"] != before.ledger["sha256"]
    assert "noise seed" not in after.as_markdown()


def test_an_epoch_of_random_allocation_counts_as_a_whole(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    changes = {"privacy.sampling": "allocation", "training.steps": 7}
    train(recipe(folder, **changes), run)
    card = read_card(run)
    ((mechanism, steps),) = card.run.phases
    assert mechanism.steps_per_epoch == 5  # type: ignore[attr-defined]
    assert steps == 10
    assert card.worst.upper == read_summary(run)["epsilon"]


def test_there_is_none_without_privacy(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    train(recipe(folder, **{"privacy.noise_multiplier": None, "privacy.clip_only": True}), run)
    assert not (run / CARD).exists()
    with pytest.raises(ParameterError, match="private run"):
        read_card(run)
    for options in (["--run", str(run)], ["--run", "nowhere"], ["--run", str(run), "--delta", "1e-5"]):
        assert main(["statement", *options]) == 2
        assert capsys.readouterr().err.count("\n") == 1
