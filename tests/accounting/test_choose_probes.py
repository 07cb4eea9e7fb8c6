"""The split of a budget of products: no worse than other splits, with the costs of each choice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dprmt._validation import ParameterError
from dprmt.accounting import DPSGD, ProbeChoice, RandomizedClipping, calibrate_noise_multiplier, choose_probes
from dprmt.cli import _probes, main
from dprmt.training.norms import HutchPlusPlus
from dprmt.training.recipes import PrivacyRecipe, load_recipe

RUN = (3.0, 0.02, 50, 1e-5)
LAYERS = [(4, 1000, 500), (3, 5, 6)]


@pytest.fixture(scope="module")
def choices() -> tuple[ProbeChoice, ...]:
    return choose_probes(*RUN, budget=32, layers=LAYERS)


def test_the_split_is_the_best_of_all(choices: tuple[ProbeChoice, ...]) -> None:
    """Against other widths of the sketch; rows are sorted, and Hutch++ with secret probes is the best of them."""
    exact, *rows = choices
    assert exact.epsilon == DPSGD(*RUN[:2]).epsilon(*RUN[2:])
    assert len(rows) == 6
    assert [row.epsilon.upper for row in rows] == sorted(row.epsilon.upper for row in rows)
    assert rows[0].estimator.startswith("Hutch++")
    assert rows[0].probe_sharing == "sample"
    chosen = next(row for row in rows if row.estimator == "Hutch++, one pass" and row.probe_sharing == "batch")
    assert 2 * chosen.sketch + chosen.probes == chosen.products == 32  # type: ignore[operator]
    every = [RandomizedClipping(*RUN[:2], 32 - 2 * s, sketch=s).epsilon(*RUN[2:]).upper for s in (5, 11)]
    assert chosen.epsilon.upper <= min(every) * 1.0005


def test_the_costs_are_those_of_the_shapes(choices: tuple[ProbeChoice, ...]) -> None:
    """T = 4, d = 1000, p = 500 is cheapest through two T x T matrices; a small layer is exact for every choice."""
    small = 2 * 3 * 5 * 6
    assert choices[0].cost == (2 * 16 * 1500 + small, 2 * 4 * 16)
    hutchinson = next(row for row in choices if row.estimator == "Hutchinson")
    assert hutchinson.cost == (32 * 2 * 4 * 1500 + small, 4 * (1004 * 32 + 500 * 32))


@pytest.mark.parametrize("layers", [[], [(1, 2)], [(1, 2, 0)]])
def test_bad_shapes_are_refused(layers: list[tuple[int, ...]]) -> None:
    with pytest.raises(ParameterError, match="layers must be"):
        choose_probes(*RUN, budget=8, layers=layers)


def test_the_command(
    choices: tuple[ProbeChoice, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def answer(*run: Any, layers: Any) -> tuple[ProbeChoice, ...]:
        asked.append((run, layers))
        return choices

    monkeypatch.setattr(_probes, "choose_probes", answer)
    run = ["probes", "--noise-multiplier", "3", "--sample-rate", "0.02", "--steps", "50", "--delta", "1e-5"]
    assert main([*run, "--budget", "32", "--layers", "4x1000x500,3x5x6", "--json"]) == 0
    assert asked == [((*RUN, 32), LAYERS)]
    rows = json.loads(capsys.readouterr().out)["choices"]
    assert rows[0]["cost"] == {"flops": choices[0].cost.flops, "bytes": choices[0].cost.bytes}  # type: ignore[union-attr]
    assert [row["epsilon"]["upper"] for row in rows] == [choice.epsilon.upper for choice in choices]
    assert main([*run, "--budget", "32"]) == 0
    assert capsys.readouterr().out.count("\n") == 8


@pytest.mark.parametrize("bad", [["--budget", "1"], ["--budget", "8", "--layers", "a"], []])
def test_bad_input_is_one_line(bad: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run = ["probes", "--noise-multiplier", "3", "--sample-rate", "0.02", "--steps", "50", "--delta", "1e-5"]
    assert main([*run, *bad]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# ------------------------------------------------------------------------------------------ defaults


@pytest.mark.parametrize(
    "run",
    [
        (4.1, 16 / 1225, 3480, 1e-5),
        pytest.param((1.0, 2000 / 67349, 400, 1e-5), marks=pytest.mark.slow),
        pytest.param((0.9, 128 / 1225, 100, 1e-5), marks=pytest.mark.slow),
    ],
)
def test_defaults_of_recipes_are_what_is_found_best_for_as_many_products(run: tuple[float, float, int, float]) -> None:
    """Sharing, power iteration and split of a recipe's "hutch++" with its default probes: within 0.2 % of the best."""
    recipe = PrivacyRecipe(delta=1e-5, noise_multiplier=1.0, clipping="hutch++")
    norms = HutchPlusPlus(recipe.probes, recipe.sketch, recipe.probe_sharing, power_iteration=recipe.power_iteration)  # type: ignore[arg-type]
    products = 3 * norms.width + norms.probes
    exact, best, *_ = choose_probes(*run, budget=products)
    claim = {"probes": norms.probes, "sketch": norms.width, "power_iteration": norms.power_iteration}
    default = RandomizedClipping(*run[:2], **claim, probe_sharing=norms.probe_sharing).epsilon(*run[2:])  # type: ignore[arg-type]
    assert best.estimator.startswith("Hutch++")
    assert best.probe_sharing == norms.probe_sharing == "sample"
    assert exact.epsilon.upper < default.upper <= 1.002 * best.epsilon.upper
    one_pass = HutchPlusPlus(norms.probes, power_iteration=False)
    row = next(row for row in choose_probes(*run, budget=2 * one_pass.width + 32) if row.estimator.endswith("one pass"))
    other = RandomizedClipping(*run[:2], 32, sketch=one_pass.width, probe_sharing="sample").epsilon(*run[2:])
    assert other.upper <= 1.002 * row.epsilon.upper


def test_the_randomized_recipe_says_which_split_is_best() -> None:
    """What its head says: sketch and probes for as many products as it spends, and the noise that either asks for."""
    recipe = load_recipe("llama-3.2-1b-bbc-4096")
    privacy, rate, steps = recipe.privacy, recipe.training.batch_size / 1225, recipe.training.steps
    target = {"target_epsilon": privacy.target_epsilon, "delta": privacy.delta, "sample_rate": rate, "steps": steps}
    exact = calibrate_noise_multiplier(**target)  # type: ignore[arg-type]
    noise = calibrate_noise_multiplier(**target, probes=privacy.probes)  # type: ignore[arg-type]
    rows = choose_probes(noise, rate, steps, privacy.delta, privacy.probes)
    best = next(row for row in rows if row.probe_sharing == "batch")
    assert (best.estimator, best.sketch, best.probes) == ("Hutch++, one pass", 7, 18)
    better = calibrate_noise_multiplier(**target, probes=18, sketch=7)  # type: ignore[arg-type]
    assert (round(100 * (better / exact - 1)), round(100 * (noise / exact - 1))) == (3, 7)
