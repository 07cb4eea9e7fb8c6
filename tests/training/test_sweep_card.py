"""What a whole sweep costs, and so a choice among its runs: all that any run in the folder was charged, composed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from dprmt import ParameterError
from dprmt.accounting import DPSGD, GaussianRelease, compose
from dprmt.cli import main
from dprmt.training.harness import Run, TrainingResult, read_card, read_sweep_card, train
from dprmt.training.recipes import Recipe
from tests.training.tiny_recipe import recipe_in, write_data

NOISE, RATE, DELTA = 3.0, 12 / 60, 1e-4


def sweep(recipe: Recipe, key: str, values: list[float], folder: Path, **options: int) -> list[TrainingResult]:
    """One run for each value, each in its own folder."""
    return [train(recipe.with_changes({key: value}), folder / str(value), **options) for value in values]


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    write_data(tmp_path)
    return recipe_in(tmp_path, **{"training.steps": 2, "evaluation.private_noise": NOISE})


def test_scores_of_a_sweep_are_charged_in_each_run_and_together(
    recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every run has its own noisy score; the card of all has the phases and the scores of all, and is proved."""
    runs = sweep(recipe, "privacy.noise_multiplier", [2.0, 3.0], tmp_path / "sweep")
    assert len({run.evaluation["accuracy"] for run in runs}) == 2
    for run, sigma in zip(runs, (2.0, 3.0), strict=True):
        alone = compose([(DPSGD(sigma, RATE), 2), GaussianRelease(NOISE)]).epsilon(DELTA)
        assert run.epsilon == pytest.approx(alone.upper, rel=1e-3)
        assert run.evaluation.keys() == {"accuracy", "standard_deviation", "samples"}
    card = read_sweep_card(tmp_path / "sweep")
    phases = [(DPSGD(2.0, RATE), 2), (DPSGD(3.0, RATE), 2), (GaussianRelease(NOISE), 2)]
    together = compose(phases).epsilon(DELTA)
    assert together.lower <= card.worst.upper == pytest.approx(together.upper, rel=1e-3)
    assert max(run.epsilon for run in runs) < card.worst.upper
    assert card.worst.upper < sum(run.epsilon for run in runs)
    document = json.loads(json.dumps(card.as_dict()))
    ledgers = b"".join(path.read_bytes() for path in sorted((tmp_path / "sweep").glob("*/privacy.jsonl")))
    assert document["ledger"] == {"runs": 2, "charged": 4, "sha256": hashlib.sha256(ledgers).hexdigest()}
    page = card.as_markdown("")
    assert "all 2 runs" in page
    assert "choice of a run by any rule" in page
    assert "the choice of this run" not in page
    (tmp_path / "card.json").write_text(json.dumps(document))
    assert main(["verify", str(tmp_path / "card.json"), "--seconds", "30"]) == 0
    capsys.readouterr()


def test_runs_of_earlier_calls_and_stopped_ones_count(recipe: Recipe, tmp_path: Path) -> None:
    """Whoever tries more pays for all that was tried."""
    folder, plain = tmp_path / "sweep", recipe.with_changes({"evaluation.private_noise": None})
    sweep(plain, "training.seed", [0], folder)
    one = read_sweep_card(folder)
    assert one.worst.upper == pytest.approx(DPSGD(1.0, RATE).epsilon(steps=2, delta=DELTA).upper, rel=1e-3)
    sweep(plain, "training.seed", [1], folder)
    two = read_sweep_card(folder)
    assert two.worst.upper == pytest.approx(DPSGD(1.0, RATE).epsilon(steps=4, delta=DELTA).upper, rel=1e-3)
    real = Run._one_step

    def failing(run: Run, step: int, batch: list[int]) -> object:
        if step == 2:
            raise RuntimeError("power cut")
        return real(run, step, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "_one_step", failing)
        with pytest.raises(RuntimeError, match="power cut"):
            sweep(plain, "training.seed", [2], folder)
    assert read_sweep_card(folder).worst.upper == pytest.approx(
        DPSGD(1.0, RATE).epsilon(steps=5, delta=DELTA).upper, rel=1e-3
    )
    assert any("scores on validation" in line for line in two.not_covered)


def test_noise_that_runs_share_has_no_card(recipe: Recipe, tmp_path: Path) -> None:
    """With one seed the difference of two runs has less noise than either, or none."""
    folder, plain = tmp_path / "sweep", recipe.with_changes({"evaluation.private_noise": None})
    (run,) = sweep(plain, "training.seed", [0], folder)
    assert read_card(run.folder).worst == read_sweep_card(folder).worst
    sweep(plain, "training.seed", [1], folder, noise_seed=3)
    with pytest.raises(ParameterError, match="subtracted"):
        read_sweep_card(folder)


def test_a_run_without_privacy_leaves_the_sweep_none(recipe: Recipe, tmp_path: Path) -> None:
    changes = {"evaluation.private_noise": None, "privacy.noise_multiplier": None, "privacy.clip_only": True}
    sweep(recipe.with_changes(changes), "training.seed", [0], tmp_path / "sweep")
    with pytest.raises(ParameterError, match="run"):
        read_sweep_card(tmp_path / "sweep")
