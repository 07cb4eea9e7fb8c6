"""``secure``: the noise of a step and the coins of a run are the cipher's, and nothing of its state is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("cryptography")

import torch
from scipy import stats

from audits.steps import private_sgd
from dprmt import ParameterError
from dprmt._files import read_lines
from dprmt.cli import main
from dprmt.training.harness import Observer, Run, read_metrics, run_in_memory, train, train_task
from dprmt.training.harness._checkpoint import load_checkpoint
from dprmt.training.private_run._ledger import charged_steps
from dprmt.training.private_run._randomness import Randomness, fresh_randomness
from dprmt.training.randomness import SecureRandom
from tests.training.test_planted_bugs import network, settings, task
from tests.training.tiny_recipe import recipe_in, write_data

KEY = bytes(range(32))


def moved(**options: object) -> torch.Tensor:
    model = torch.nn.Linear(100, 20, bias=False)
    torch.nn.init.zeros_(model.weight)
    step = private_sgd(
        model, norms="exact", clipping_norm=2.0, noise_multiplier=1.5, expected_batch_size=3.0, **options
    )
    step.accumulate(0 * step.model(torch.ones(1, 100)).sum(1), samples=[0], step=0)
    step.step()
    return -3.0 * model.weight.detach()


def test_the_noise_of_a_step_is_the_ciphers() -> None:
    expected = SecureRandom(KEY).normal((20, 100), std=3.0)
    assert torch.equal(moved(noise_generator=SecureRandom(KEY)), -3.0 * (-(expected.float() / 3.0)))
    noise = moved(noise_generator=SecureRandom()).flatten().numpy()
    # This key is the operating system's: the levels leave one run in a million to chance.
    assert stats.kstest(noise, stats.norm(scale=3.0).cdf).pvalue > 1e-6
    for wrong in (1.5, 6.0):
        assert stats.kstest(noise, stats.norm(scale=wrong).cdf).pvalue < 1e-6


def test_every_start_has_its_own_streams_by_purpose() -> None:
    first, second = fresh_randomness(None, 1, True), fresh_randomness(None, 1, True)
    streams = [r.generator(name).normal((20,)) for r in (first, second) for name in ("noise", "sampling")]
    assert len({tuple(stream.tolist()) for stream in streams}) == 4
    assert isinstance(Randomness(KEY, True, True).generator("noise"), SecureRandom)
    with pytest.raises(ParameterError, match=r"noise_seed must be None with privacy\.secure"):
        fresh_randomness(3, 1, True)


@pytest.mark.parametrize("sampling", ["poisson", "allocation"])
def test_a_secure_run_does_not_touch_torchs_generators(monkeypatch: pytest.MonkeyPatch, sampling: str) -> None:
    def no(*_: object, **__: object) -> None:
        raise AssertionError("a generator of torch's was asked for")

    for name in ("normal", "rand", "randn", "randint", "randperm"):
        monkeypatch.setattr(torch, name, no)
    wanted = settings(privacy={"secure": True, "sampling": sampling}, training={"steps": 5})
    with run_in_memory(network(), task(), wanted) as run:
        assert len(list(run.steps())) == 5


def test_a_secure_run_in_a_folder_says_so_and_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_data(tmp_path)
    (tmp_path / "recipe.toml").write_text(recipe_in(tmp_path).to_toml())
    words = ["train", str(tmp_path / "recipe.toml"), "--out", str(tmp_path / "run"), "--set", "privacy.secure=true"]
    assert main(words) == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["secure"] is True
    assert len(read_metrics(tmp_path / "run")) == 6
    assert train(recipe_in(tmp_path, **{"privacy.secure": True}), tmp_path / "run", resume=True).finished
    capsys.readouterr()
    assert main([*words, "--noise-seed", "3", "--dry-run"]) == 2
    assert "--noise-seed must be None with privacy.secure" in capsys.readouterr().err


class Stops(Observer):
    """Before step 3, once; sizes of the batches."""

    def __init__(self, stops: bool) -> None:
        self.stops, self.sizes = stops, []

    def before_step(self, run: Run, step: int) -> None:
        if self.stops and step == 3:
            run.stop()

    def after_step(self, run: Run, record: Any) -> None:
        self.sizes.append(record.batch_size)


def test_secure_allocation_gives_an_epoch_up_rather_than_write_its_draws_down(tmp_path: Path) -> None:
    """Epochs of 3 steps; stopped after 2, step 3 is in a new epoch: its charge completes the first one."""
    wanted = settings(privacy={"secure": True, "sampling": "allocation"}, training={"steps": 5})
    for number, stops in enumerate((True, False)):
        watcher = Stops(stops)
        train_task(network(), task(), wanted, tmp_path / "run", resume=bool(number), observers=[watcher])
        if stops:
            assert not {"secret", "epoch"} & load_checkpoint(tmp_path / "run").keys()
            assert charged_steps(tmp_path / "run") == 2
    assert sum(watcher.sizes) == 30  # the three steps after the stop are one whole epoch
    assert [line["charged"] for line in read_lines(tmp_path / "run" / "privacy.jsonl")] == [1, 2, 4, 5, 6]
