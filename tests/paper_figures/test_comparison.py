"""Accuracy curves, speedups in the form of the paper's Table 1, and the scripts that compare trained runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprmt import ParameterError
from dprmt.training.harness import dry_run, read_metrics, train
from paper_figures.__main__ import main
from paper_figures.items import accuracy_low_budget, grape_accuracy
from paper_figures.items._recipe_runs import train_once
from paper_figures.studies import Metric, MetricCurve, compare, metric_curve, null_speedups, speedups
from paper_figures.studies._speedup import first_crossing
from tests.training.tiny_recipe import recipe_in, write_data


def curve(accuracy, steps=(10, 20, 30, 40), epsilon=(1.0, 1.5, 1.9, 2.2)) -> MetricCurve:
    return MetricCurve(steps, epsilon, accuracy)


def test_speedup_by_hand():
    """The method reaches 0.60 between steps 20 (0.5) and 30 (0.7): at 25, with ε half way from 1.5 to 1.9."""
    (row,) = speedups(curve([[0.1, 0.2, 0.4, 0.6]]), curve([[0.3, 0.5, 0.7, 0.65]]), [40])
    assert row.steps_needed == pytest.approx(25)
    assert row.speedup == pytest.approx(15 / 40)
    assert row.epsilon_saved == pytest.approx(2.2 - 1.7)


def test_a_method_that_never_gets_there_has_no_speedup():
    (row,) = speedups(curve([[0.1, 0.2, 0.4, 0.6]]), curve([[0.1, 0.2, 0.4, 0.59]]), [40])
    assert (row.steps_needed, row.speedup, row.epsilon_saved) == (None, None, None)


def test_means_and_spreads_are_over_runs():
    (row,) = speedups(curve([[0.1, 0.2, 0.3, 0.4], [0.3, 0.4, 0.5, 0.6]]), curve([[0.6] * 4]), [30])
    assert row.baseline == pytest.approx((0.4, np.sqrt(0.02)))
    assert row.method == pytest.approx((0.6, 0.0))
    assert row.steps_needed == 10  # the first evaluation is all that is known


values = st.lists(st.floats(0, 1), min_size=2, max_size=8)


@given(values=values, target=st.floats(0, 1))
def test_first_crossing_is_on_the_curve_and_is_the_first(values, target):
    steps = np.arange(1.0, len(values) + 1)
    place = first_crossing(steps, np.array(values), target)
    if place is None:
        assert max(values) < target
        return
    assert np.interp(place, steps, values) >= target - 1e-12
    assert all(value < target for step, value in zip(steps, values, strict=True) if step < place)


def test_the_null_of_noisy_curves_is_not_zero_and_that_of_equal_runs_is():
    """Two halves of one method: all ways to halve four runs, by a literal loop; equal runs save nothing."""
    rng = np.random.default_rng(0)
    steps = list(range(1, 21))
    accuracy = np.linspace(0.4, 0.6, 20) + 0.03 * rng.standard_normal((4, 20))
    noisy = MetricCurve(steps, steps, accuracy)
    literal = []
    for one in ([0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]):
        other = [run for run in range(4) if run not in one]
        pair = (MetricCurve(steps, steps, accuracy[half]) for half in (one, other))
        literal += [row.speedup for row in speedups(*pair, [20])]
    (null,) = null_speedups(noisy, [20])
    reached = [value for value in literal if value is not None]
    assert null.mean == pytest.approx(np.mean(reached))
    assert null.spread == pytest.approx(np.std(reached))
    assert null.never == pytest.approx(1 - len(reached) / len(literal))
    assert null.mean > 0.01  # first crossings of noisy curves come early
    (equal,) = null_speedups(MetricCurve(steps, steps, [np.linspace(0.4, 0.6, 20)] * 4), [20])
    assert (equal.mean, equal.spread, equal.never) == pytest.approx((0, 0, 0))
    with pytest.raises(ParameterError, match="baseline must be a curve of at least two runs"):
        null_speedups(MetricCurve(steps, steps, accuracy[:1]), [20])


@given(values=values)
def test_a_method_compared_with_itself_saves_nothing_where_it_rises(values):
    rising = np.maximum.accumulate(np.array(values)) + 0.01 * np.arange(len(values))
    steps = list(range(1, len(values) + 1))
    own = MetricCurve(steps, steps, [rising])
    for row in speedups(own, own, steps):
        assert row.speedup == pytest.approx(0, abs=1e-9)
        assert row.epsilon_saved == pytest.approx(0, abs=1e-9)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return recipe_in(folder, **{"training.steps": 4, "evaluation.every": 2})


def test_variants_share_the_noise_within_a_seed(recipe, tmp_path):
    variants = {"a": {}, "same": {"optimizer.schedule": "linear"}, "slow": {"optimizer.learning_rate": 1e-6}}
    curves = compare(recipe, variants, [0, 1], tmp_path)
    assert curves["a"].values.shape == (2, 2)
    assert curves["a"].steps.tolist() == [2, 4]
    assert np.array_equal(curves["a"].values, curves["same"].values)  # the same training under another name
    runs = {path: read_metrics(path) for path in sorted(tmp_path.glob("*/*")) if (path / "metrics.jsonl").exists()}
    assert len(runs) == 6
    first = [run[0]["noisy_gradient_norm"] for run in runs.values()]
    assert len(set(first)) == 2  # by seed alone: the first gradient is the same whatever the learning rate
    with pytest.raises(ParameterError, match="same steps"):
        metric_curve([next(iter(runs)), tmp_path])
    with pytest.raises(ParameterError, match="seeds"):
        compare(recipe, variants, [1, 1], tmp_path)


@pytest.mark.parametrize("item", [grape_accuracy, accuracy_low_budget])
def test_an_item_trains_its_variants_once(recipe, tmp_path, monkeypatch, item):
    full = {"model.finetune": "full", "model.lora": None, "training.steps": 4}
    private = {"privacy.noise_multiplier": None, "privacy.target_epsilon": 30.0}
    monkeypatch.setattr(item, "RECIPE", recipe.with_changes(full | private))
    monkeypatch.setattr(item, "SHORTER", {})
    monkeypatch.setattr(item, "RANKS", (3, 8), raising=False)
    found = item.measure("small", tmp_path)
    assert found.seeds == 2
    assert len(found.rows) == 4
    monkeypatch.setattr("dprmt.training.harness.train", None)  # training would fail
    assert item.measure("small", tmp_path).rows == found.rows


def test_a_run_that_was_stopped_is_no_piece(recipe, monkeypatch):
    shorter = recipe.with_changes({"training.steps": 2})
    monkeypatch.setattr("dprmt.training.harness.train", lambda _, folder, **more: train(shorter, folder, **more))
    with pytest.raises(KeyboardInterrupt, match="stopped"):
        train_once(recipe, 0)
    assert train_once(shorter, 0)["steps"] == [2]


def test_the_published_charge_asks_for_more_noise(recipe, monkeypatch):
    monkeypatch.setattr(accuracy_low_budget, "PROBES", 4)  # fewer than the tiny layers are wide
    monkeypatch.setitem(accuracy_low_budget.SHARED["privacy.norms"], "probes", 4)
    full = {"model.finetune": "full", "model.lora": None}
    private = recipe.with_changes(full | {"privacy.noise_multiplier": None, "privacy.target_epsilon": 3.0})
    changes = accuracy_low_budget.variants(private)
    del changes["Hutch++"]
    plans = {name: dry_run(private.with_changes(change)) for name, change in changes.items()}
    noise = {name: plan.mechanism["noise_multiplier"] for name, plan in plans.items()}
    assert noise["Hutchinson, published charge"] > noise["Hutchinson, tight"] > noise["exact"]


def test_a_loss_is_better_when_it_is_smaller():
    loss = Metric("loss")
    slow = MetricCurve([10, 20, 30, 40], [1, 2, 3, 4], [[3.0, 2.0, 1.5, 1.0]], loss)
    fast = MetricCurve([10, 20, 30, 40], [1, 2, 3, 4], [[2.0, 1.0, 0.9, 0.8]], loss)
    (row,) = speedups(slow, fast, [40])
    assert (row.steps_needed, row.speedup) == pytest.approx((20, 0.5))
    (never,) = speedups(fast, slow, [40])
    assert never.steps_needed is None
    assert fast.shown.tolist() == [[2.0, 1.0, 0.9, 0.8]]
    assert MetricCurve([1, 2], [1, 2], [[0.25, 0.5]]).shown.tolist() == [[25.0, 50.0]]


@pytest.mark.parametrize(
    ("recipe_name", "more", "said"),
    [
        ("smollm2-e2e", ["--metric", "accuracy"], "metric must be one of 'bleu', 'nist'"),
        ("minilm-docstrings", ["--metric", "bleu"], "metric must be one of 'accuracy', 'loss'"),
        ("minilm-docstrings", ["--steps", "2"], "evaluation.every"),
        ("no-such-recipe", [], "recipe must be one of"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_trains(recipe_name, more, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("dprmt.training.harness.sweep", None)  # training would fail
    with pytest.raises(SystemExit) as stop:
        main(["study", "denoising-speedup", str(tmp_path / "runs"), "--recipe", recipe_name, *more])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (tmp_path / "runs").exists()
