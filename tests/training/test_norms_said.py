"""A plan and a summary say how norms were obtained, and what exact ones would have cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprmt.accounting import DPSGD
from dprmt.cli import main
from dprmt.training.harness import read_summary, train
from tests.training.tiny_recipe import recipe_in, write_data

WIDE = {
    "model.lora.also_train": ["value"],
    "model.lora.targets": ["query"],
    "model.config.hidden_size": 32,
    "privacy.norms": {"kind": "hutch++", "probes": 4, "sketch": 3},
}


@pytest.mark.slow  # the run's privacy card takes minutes with hutch++
def test_a_summary_has_the_price_of_exact_norms_beside_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_data(tmp_path)
    recipe = recipe_in(tmp_path).with_changes(WIDE)
    result = train(recipe, tmp_path / "run")
    summary = read_summary(tmp_path / "run")
    assert summary["norms"] == result.norms
    assert result.norms.startswith("hutch++ (4 secret probes, a sketch of 3) in 1 of ")
    privacy, rate = recipe.privacy, recipe.training.batch_size / 60
    assert privacy.noise_multiplier is not None
    exact = DPSGD(privacy.noise_multiplier, rate).epsilon(steps=recipe.training.steps, delta=privacy.delta)
    assert summary["epsilon_of_exact_norms"] == result.epsilon_of_exact_norms
    assert exact.lower <= summary["epsilon_of_exact_norms"] <= 1.001 * exact.upper
    assert summary["epsilon"] > 1.001 * summary["epsilon_of_exact_norms"]
    (tmp_path / "colours.toml").write_text(recipe.to_toml())
    assert main(["train", str(tmp_path / "colours.toml"), "--dry-run"]) == 0
    assert "with exact norms and the same noise: ε ≤ " in capsys.readouterr().out
