"""The privacy card of a run folder: written at the end, about what was charged, with a claim that is proved."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dprmt import ParameterError
from dprmt.accounting import DPSGD, GaussianRelease, compose
from dprmt.cli import main
from dprmt.training import harness
from dprmt.training.harness import CARD, Run, _privacy_cost, dry_run, read_card, read_summary, read_sweep_card, train
from dprmt.training.harness._privacy_cost import SCORE, release_score
from dprmt.training.randomness import SecureRandom, secret_generator
from dprmt.training.recipes import Recipe
from tests.training.test_planted_bugs import network, settings, task
from tests.training.tiny_recipe import killed_before_step, recipe_in

NOISE, RATE, DELTA = 3.0, 12 / 60, 1e-4
NO_PRIVACY = {"privacy.noise_multiplier": None, "privacy.clip_only": True}


def recipe(folder: Path, **changes: object) -> Recipe:
    return recipe_in(folder, **{"training.steps": 3, **changes})


def scored(folder: Path, **changes: object) -> Recipe:
    return recipe(folder, **{"evaluation.private_noise": NOISE, "evaluation.every": 2, **changes})


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
    (tmp_path / "altered.json").write_text(json.dumps(card).replace('"steps": 3', '"steps": 4', 1))
    assert main(["verify", str(tmp_path / "altered.json")]) == 2
    assert "a card of steps [4] that claims [3]" in capsys.readouterr().err
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
    train(recipe(folder, **NO_PRIVACY), run)
    assert not (run / CARD).exists()
    for read, where in ((read_card, run), (read_sweep_card, tmp_path)):
        with pytest.raises(ParameterError, match="run"):
            read(where)
    for options in (["--run", str(run)], ["--run", "nowhere"], ["--run", str(run), "--delta", "1e-5"]):
        assert main(["statement", *options]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def sweep(swept: Recipe, key: str, values: list[float], folder: Path, **options: int) -> list[harness.TrainingResult]:
    """One run for each value, each in its own folder."""
    return [train(swept.with_changes({key: value}), folder / str(value), **options) for value in values]


@pytest.fixture
def swept(folder: Path) -> Recipe:
    return recipe(folder, **{"training.steps": 2, "evaluation.private_noise": NOISE})


def test_scores_of_a_sweep_are_charged_in_each_run_and_together(
    swept: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every run has its own noisy score; the card of all has the phases and the scores of all, and is proved."""
    runs = sweep(swept, "privacy.noise_multiplier", [2.0, 3.0], tmp_path / "sweep")
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


def test_runs_of_earlier_calls_and_stopped_ones_count(swept: Recipe, tmp_path: Path) -> None:
    """Whoever tries more pays for all that was tried."""
    folder, plain = tmp_path / "sweep", swept.with_changes({"evaluation.private_noise": None})
    sweep(plain, "training.seed", [0], folder)
    one = read_sweep_card(folder)
    assert one.worst.upper == pytest.approx(DPSGD(1.0, RATE).epsilon(steps=2, delta=DELTA).upper, rel=1e-3)
    sweep(plain, "training.seed", [1], folder)
    two = read_sweep_card(folder)
    assert two.worst.upper == pytest.approx(DPSGD(1.0, RATE).epsilon(steps=4, delta=DELTA).upper, rel=1e-3)
    killed_before_step(2, plain.with_changes({"training.seed": 2}), folder / "2")
    five = DPSGD(1.0, RATE).epsilon(steps=5, delta=DELTA).upper
    assert read_sweep_card(folder).worst.upper == pytest.approx(five, rel=1e-3)
    assert any("scores on validation" in line for line in two.not_covered)


def test_noise_that_runs_share_has_no_card(swept: Recipe, tmp_path: Path) -> None:
    """With one seed the difference of two runs has less noise than either, or none."""
    folder, plain = tmp_path / "sweep", swept.with_changes({"evaluation.private_noise": None})
    (run,) = sweep(plain, "training.seed", [0], folder)
    assert read_card(run.folder).worst == read_sweep_card(folder).worst
    sweep(plain, "training.seed", [1], folder, noise_seed=3)
    with pytest.raises(ParameterError, match="subtracted"):
        read_sweep_card(folder)


def test_the_score_is_charged_with_the_steps_and_exact_ones_are_private(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    wanted = scored(folder)
    result = train(wanted, run, noise_seed=5)
    step = DPSGD(1.0, RATE)
    alone, together = (compose(p).epsilon(1e-4) for p in ([(step, 3)], [(step, 3), GaussianRelease(NOISE)]))
    assert alone.upper < together.lower <= result.epsilon == pytest.approx(together.upper, rel=1e-3)
    # Nothing but the noisy accuracy is said, and it is not the exact one.
    assert result.evaluation.keys() == {"accuracy", "standard_deviation", "samples"}
    assert result.evaluation["standard_deviation"] == NOISE / 30
    seen = harness.read_metrics(run)
    assert not any("evaluation" in line for line in seen)
    exact = seen[-1]["private"]["evaluation"]["accuracy"]  # type: ignore[index]
    assert exact * 30 == pytest.approx(round(exact * 30))
    assert result.evaluation["accuracy"] != exact
    assert abs(result.evaluation["accuracy"] - exact) < 6 * NOISE / 30
    summary = read_summary(run)
    assert (summary["evaluation"], summary["epsilon"]) == (result.evaluation, result.epsilon)
    # Steps before it was released cost what they cost without it.
    assert seen[-1]["epsilon"] == pytest.approx(alone.upper, rel=1e-3)
    card = read_card(run)
    assert (GaussianRelease(NOISE), 1) in card.run.phases
    assert card.worst.upper == result.epsilon
    assert "one row of the validation set" in card.unit
    assert any("exact scores" in line for line in card.not_covered)
    assert any(SCORE in line for line in card.released)
    assert main(["verify", str(run / "privacy_card.json")]) == 0
    capsys.readouterr()
    # Going on where nothing is left: the same score, no second charge.
    again = train(wanted, run, resume=True)
    assert (again.evaluation, again.epsilon) == (result.evaluation, result.epsilon)


def test_a_crash_between_charge_and_score_costs_and_gives_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, wanted = tmp_path / "run", scored(folder)

    write = _privacy_cost.write_whole

    def power_cut(path: Path, content: str) -> None:
        if path.exists():  # with the charge: now the score would be written
            assert json.loads(path.read_text())["charged"] == {"kind": "gaussian", "noise_multiplier": NOISE}
            raise RuntimeError("power cut")
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(_privacy_cost, "write_whole", power_cut)
        with pytest.raises(RuntimeError, match="power cut"):
            train(wanted, run)
    assert (GaussianRelease(NOISE), 1) in read_card(run).run.phases
    result = train(wanted, run, resume=True)
    assert result.evaluation == {}
    assert result.epsilon == read_card(run).worst.upper > DPSGD(1.0, RATE).epsilon(steps=3, delta=1e-4).upper


def test_steps_after_the_release_are_charged_beside_it(folder: Path, tmp_path: Path) -> None:
    """A folder that holds a score, and loses its last checkpoint: ε of every later step includes the score."""
    run, wanted = tmp_path / "run", scored(folder, **{"training.checkpoint_every": 2})
    whole = Run.release

    def release(self: Run) -> dict[str, object]:
        whole(self)
        raise RuntimeError("power cut")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "release", release)
        patch.setattr(Run, "_checkpoint", lambda self: None)
        with pytest.raises(RuntimeError, match="power cut"):
            train(wanted, run)
    result = train(wanted, run, resume=True)
    assert (result.steps, result.charged) == (3, 6)
    expected = compose([(DPSGD(1.0, RATE), 6), GaussianRelease(NOISE)]).epsilon(1e-4)
    assert expected.lower <= result.epsilon == pytest.approx(expected.upper, rel=1e-3)
    assert harness.read_metrics(run)[-1]["epsilon"] == result.epsilon


@pytest.mark.parametrize("sampling", ["poisson", "allocation"])
def test_a_target_holds_for_steps_and_score_together(folder: Path, tmp_path: Path, sampling: str) -> None:
    changes = {"privacy.noise_multiplier": None, "privacy.target_epsilon": 4.0, "privacy.sampling": sampling}
    wanted = scored(folder, **changes)
    plan, plain = dry_run(wanted), dry_run(wanted.with_changes({"evaluation.private_noise": None}))
    assert 3.98 < plan.epsilon_after[3] <= 4.0
    assert plan.mechanism["noise_multiplier"] > 1.01 * plain.mechanism["noise_multiplier"]
    result = train(wanted, tmp_path / "run")
    assert 3.98 < result.epsilon <= 4.0


@pytest.mark.parametrize("secure", [False, True])
def test_the_noise_is_gaussian_with_so_many_rows(tmp_path: Path, secure: bool) -> None:
    """17 of 25 rows: the released number of hits is N(17, 9); another standard deviation is rejected."""
    if secure:
        pytest.importorskip("cryptography")
    found = []
    for number in range(400):
        key = number.to_bytes(32, "little")
        generator = SecureRandom(key) if secure else secret_generator("cpu", key)
        (folder := tmp_path / str(number)).mkdir()
        score = release_score(folder, 17 / 25, 25, GaussianRelease(NOISE), generator)
        found.append(25 * score["accuracy"])
    values = np.array(found)
    assert stats.kstest(values, stats.norm(17, NOISE).cdf).pvalue > 1e-3
    assert stats.kstest(values, stats.norm(17, 0.75 * NOISE).cdf).pvalue < 1e-3
    assert stats.kstest(values, stats.norm(18, NOISE).cdf).pvalue < 1e-3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"evaluation.private_noise": 0.0}, "evaluation.private_noise must be a finite number in [0.001, 1e+06]"),
        ({"evaluation.metrics": ["f1"]}, "unless evaluation.metrics has 'accuracy'"),
        ({"data.unit": "text"}, "evaluation.private_noise must be left out with data.unit"),
        (NO_PRIVACY, "left out with privacy.clip_only"),
    ],
)
def test_what_has_no_bound_is_refused_by_name(folder: Path, changes: dict[str, object], says: str) -> None:
    with pytest.raises(ParameterError) as refused:
        scored(folder, **changes)
    assert says in str(refused.value)


def test_a_task_that_does_not_say_how_many_rows_it_scores_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="no accuracy over a known number of rows"):
        harness.train_task(network(), task(), settings(evaluation={"private_noise": 2.0}), tmp_path / "run")
