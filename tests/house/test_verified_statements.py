"""A dozen statements of ours, of every mechanism that the verifier covers, proved by it; ends moved by 1 % refuted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dprmt.cli import main
from dprmt_verify import read_statement, verify

STEPS = "--sample-rate 0.03 --steps 100 --delta 1e-5"
SLOW = pytest.mark.slow
ALLOCATED = "--sampling allocation --delta 1e-5"


def said(options: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What ``dprmt epsilon`` says of both directions together."""
    assert main(["epsilon", *options.split(), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    return {name: value for name, value in document.items() if name not in ("by_direction", "direction")}


def words(document: dict[str, Any], cells: int = 10) -> list[str]:
    # Far more seconds than a proof takes: how fast the machine is decides nothing.
    return [verdict.word for verdict in verify(read_statement(json.dumps(document)), 90.0, cells)]


@pytest.mark.parametrize(
    ("options", "cells"),
    [
        pytest.param(f"--noise-multiplier 1 {STEPS}", 10, id="exact norms"),
        pytest.param("--noise-multiplier 2 --sample-rate 0.01 --steps 200 --delta 1e-12", 10, id="a small δ"),
        pytest.param("--noise-multiplier 20 --sample-rate 1 --steps 100 --delta 1e-6", 10, id="no sampling"),
        pytest.param(
            "--noise-multiplier 3 --sample-rate 0.5 --steps 10 --delta 1e-6 --neighbours add-remove",
            10,
            id="add-remove",
        ),
        pytest.param(f"--noise-multiplier 1 {STEPS} --neighbours replace-one", 10, id="replace-one"),
        pytest.param(f"--noise-multiplier 2 {STEPS} --group 3", 10, id="groups"),
        pytest.param(f"--noise-multiplier 2 {STEPS} --probes 32 --public-probes", 20, id="public probes", marks=SLOW),
        pytest.param(f"--noise-multiplier 2 {STEPS} --probes 32 --secret-probes", 20, id="secret probes", marks=SLOW),
        pytest.param(f"--noise-multiplier 2 {ALLOCATED} --steps-per-epoch 100 --epochs 10", 20, id="allocation"),
    ],
)
def test_both_ends_of_ours_are_proved(options: str, cells: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert words(said(options, capsys), cells) == ["proved", "proved"]


@pytest.mark.slow
def test_allocation_with_probes_is_proved_with_a_thousandth_to_spare(capsys: pytest.CaptureFixture[str]) -> None:
    document = said(
        f"--noise-multiplier 3 {ALLOCATED} --steps-per-epoch 20 --epochs 5 --probes 128 --public-probes", capsys
    )
    ends = {"lower": document["epsilon"]["lower"] * 0.999, "upper": document["epsilon"]["upper"] * 1.001}
    assert words(document | {"epsilon": ends}) == ["proved", "proved"]


@pytest.mark.slow
@pytest.mark.parametrize("secret", [False, True], ids=["public", "secret"])
def test_of_a_sketch_the_upper_end_is_proved(secret: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """The charged law's lower end is of no gradient, and not covered."""
    options = f"--noise-multiplier 2 {STEPS} --probes 8 --sketch 6 --power-iteration"
    document = said(f"{options} --{'secret' if secret else 'public'}-probes", capsys)
    assert words(document) == ["proved", "not covered"]


def test_ends_moved_by_a_hundredth_are_refuted(capsys: pytest.CaptureFixture[str]) -> None:
    for options in (f"--noise-multiplier 1 {STEPS}", f"--noise-multiplier 3 {STEPS} --group 2"):
        document = said(options, capsys)
        lower, upper = (document["epsilon"][end] for end in ("lower", "upper"))
        assert words(document | {"epsilon": {"lower": lower * 1.01, "upper": upper * 0.99}}) == ["refuted", "refuted"]


PHASES = """
[[phases]]
noise_multiplier = 1.5
sample_rate = 0.02
steps = 50
[[phases]]
noise_multiplier = 2
sample_rate = 0.05
steps = 20
"""


def test_phases_of_two_kinds_are_proved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").write_text(PHASES)
    assert words(said(f"--phases {tmp_path / 'run.toml'} --delta 1e-5", capsys)) == ["proved", "proved"]
