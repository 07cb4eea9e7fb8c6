"""Random allocation on the command line: --sampling allocation --steps-per-epoch t --epochs E."""

from __future__ import annotations

import json

import pytest

from dprmt.accounting import DPSGD, Hutchinson, RandomAllocation
from dprmt.cli import main

BATCHES = ["--sampling", "allocation", "--steps-per-epoch", "20", "--epochs", "3"]
RUN = ["--noise-multiplier", "1.2", *BATCHES]
MECHANISM = DPSGD(1.2, RandomAllocation(20))


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def test_epsilon_and_delta(capsys: pytest.CaptureFixture[str]) -> None:
    document = run_json(capsys, "epsilon", *RUN, "--delta", "1e-5")
    assert document["epsilon"] == MECHANISM.epsilon(epochs=3, delta=1e-5).as_dict()
    assert (document["analysis"], document["mechanism"]["sampling"]["kind"]) == ("exact", "allocation")
    document = run_json(capsys, "delta", *RUN, "--epsilon", "2")
    assert document["delta"] == MECHANISM.delta(epochs=3, epsilon=2.0).as_dict()


def test_with_probes(capsys: pytest.CaptureFixture[str]) -> None:
    document = run_json(capsys, "epsilon", *RUN, "--delta", "1e-5", "--probes", "32", "--public-probes")
    mechanism = DPSGD(1.2, RandomAllocation(20), Hutchinson(32, secret=False))
    assert document["epsilon"] == mechanism.epsilon(epochs=3, delta=1e-5).as_dict()


def test_noise_and_curve(capsys: pytest.CaptureFixture[str]) -> None:
    document = run_json(capsys, "noise", "--epsilon", "2", *BATCHES, "--delta", "1e-5")
    assert document["epsilon"]["upper"] <= 2
    document = run_json(capsys, "tradeoff", *RUN, "--points", "3")
    assert document["lower"] == MECHANISM.trade_off(epochs=3, alpha=document["alpha"]).lower.tolist()


def test_several_participations(capsys: pytest.CaptureFixture[str]) -> None:
    document = run_json(capsys, "epsilon", *RUN, "--delta", "1e-5", "--participations", "3")
    blocks = DPSGD(1.2, RandomAllocation(20, participations=3))
    assert document["epsilon"] == blocks.epsilon(epochs=3, delta=1e-5).as_dict()
    assert document["mechanism"]["sampling"]["participations"] == 3
    found = run_json(capsys, "noise", "--epsilon", "4", *BATCHES, "--delta", "1e-5", "--participations", "20")
    assert found["epsilon"]["upper"] <= 4
    assert found["noise_multiplier"] > 1.2
    assert main(["epsilon", *RUN, "--delta", "1e-5", "--participations", "3", "--statement"]) == 0
    assert "one step of each of an epoch's 3 blocks" in capsys.readouterr().out


def test_readers_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["epsilon", *RUN, "--delta", "1e-5"]) == 0
    assert "(exact norms, random allocation; zero-out)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sample-rate", "0.1"], "--steps must be given where --sampling is poisson"),
        (["--steps", "9"], "--sample-rate must be given where --sampling is poisson"),
        (["--sampling", "allocation", "--epochs", "3"], "--steps-per-epoch must be given"),
        (["--sampling", "allocation", "--steps-per-epoch", "3"], "--epochs must be given"),
        ([*BATCHES, "--steps", "60"], "--steps must be left out where --sampling is allocation, got 60"),
        ([*BATCHES, "--sample-rate", "0.05"], "--sample-rate must be left out"),
        (["--sample-rate", "0.1", "--steps", "9", "--epochs", "3"], "--epochs must be left out where --steps is given"),
        ([*BATCHES, "--participations", "21"], "--participations must be an integer in [1, 20], got 21"),
        ([*BATCHES, "--participations", "0"], "--participations must be an integer in [1, 10000000], got 0"),
        (
            ["--sample-rate", "0.1", "--steps", "9", "--participations", "2"],
            "--participations must be left out where --sampling is poisson, got 2",
        ),
        (["--sampling", "shuffle"], "--sampling must be"),
        ([*BATCHES[:4], "--epochs", "1.5"], "--epochs must be an integer where --sampling is allocation, got 1.5"),
        ([*BATCHES, "--samples", "60"], "--samples must be left out where --sampling is allocation, got 60"),
        ([*BATCHES[:4], "--epochs", "1000000000"], "--epochs must be an integer in [1, 50000000]"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    assert main(["epsilon", "--noise-multiplier", "1", "--delta", "1e-5", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err
