"""Every JSON object about a run is a complete record: fed back, it gives itself."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprmt import __version__
from dprmt.accounting import (
    DPSGD,
    ApproximateRelease,
    GaussianRelease,
    Group,
    Hutchinson,
    HutchPlusPlus,
    LaplaceRelease,
    Poisson,
    RandomAllocation,
    ReplaceOne,
)
from dprmt.cli import main
from dprmt.cli._records import phases_of, releases_of
from dprmt.cli._run_options import Run

RUN = ["--noise-multiplier", "1.3", "--sample-rate", "2000/67349", "--steps", "60"]
EPOCHS = ["--noise-multiplier", "2", "--sampling", "allocation", "--steps-per-epoch", "12", "--epochs", "2"]
PHASES = """\
sample_rate = 0.02
[[phases]]
noise_multiplier = 2
steps = 5
[[phases]]
noise_multiplier = 1.5
steps = 9
probes = 16
"""


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("epsilon", [*RUN, "--delta", "1e-6"]),
        ("epsilon", [*RUN, "--delta", "1e-6", "--probes", "32", "--sketch", "16", "--secret-probes"]),
        ("epsilon", [*RUN, "--delta", "1e-6", "--probes", "32", "--analysis", "envelope", "--rank", "40"]),
        ("epsilon", [*RUN, "--delta", "1e-6", "--also", "gaussian:3", "--also", "approximate:0.1:1e-9"]),
        ("epsilon", [*EPOCHS, "--delta", "1e-6"]),
        ("delta", [*RUN, "--epsilon", "2"]),
        ("tradeoff", [*RUN, "--points", "5"]),
    ],
)
def test_a_record_fed_back_gives_itself(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, words: list[str]
) -> None:
    first = answer(capsys, command, *words)
    assert first["version"] == __version__
    (tmp_path / "answer.json").write_text(json.dumps(first), encoding="utf-8")
    again = [command, "--from-json", str(tmp_path / "answer.json")]
    points = words[-2:] if command == "tradeoff" else []
    assert answer(capsys, *again, *points) == first


def test_phases_noise_and_standard_input(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.toml").write_text(PHASES)
    first = answer(capsys, "epsilon", "--phases", str(tmp_path / "run.toml"), "--delta", "1e-5")
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(first)))
    assert answer(capsys, "epsilon", "--from-json", "-") == first
    calibrated = answer(capsys, "noise", "--epsilon", "3", *RUN[2:], "--delta", "1e-5")
    (tmp_path / "noise.json").write_text(json.dumps(calibrated))
    assert answer(capsys, "noise", "--from-json", str(tmp_path / "noise.json")) == calibrated
    spent = answer(capsys, "epsilon", "--from-json", str(tmp_path / "noise.json"))
    assert spent["epsilon"] == calibrated["epsilon"]
    other = answer(capsys, "epsilon", "--from-json", str(tmp_path / "noise.json"), "--delta", "1e-9")
    assert other["epsilon"]["lower"] > spent["epsilon"]["upper"]


NORMS = st.one_of(
    st.builds(Hutchinson, st.integers(2, 99), secret=st.booleans()),
    st.builds(HutchPlusPlus, st.integers(2, 99), st.integers(3, 99), power_iteration=st.booleans()),
)
SAMPLINGS = st.one_of(st.builds(Poisson, st.floats(1e-9, 1)), st.builds(RandomAllocation, st.integers(1, 99)))
MECHANISMS = st.builds(DPSGD, st.floats(1e-3, 1e6), SAMPLINGS, NORMS, st.sampled_from([ReplaceOne(), Group(3)]))
RELEASES = st.one_of(
    st.builds(GaussianRelease, st.floats(0.1, 9)),
    st.builds(LaplaceRelease, st.floats(0.1, 9)),
    st.builds(ApproximateRelease, st.floats(0.1, 9), st.floats(0, 0.1)),
)


@given(MECHANISMS, st.integers(1, 10**6), st.lists(RELEASES, max_size=3))
def test_every_value_comes_back(mechanism: DPSGD, steps: int, releases: list[Any]) -> None:
    """Through JSON, with every digit."""
    mechanism_and_steps = {"mechanism": mechanism.as_dict(), "steps": steps}
    record = json.loads(json.dumps(mechanism_and_steps | {"also": [release.as_dict() for release in releases]}))
    assert phases_of(record) == ((mechanism, steps),)
    assert releases_of(record) == tuple(releases)
    assert Run(phases_of(record), False, releases_of(record)) == Run(((mechanism, steps),), False, tuple(releases))


@pytest.mark.parametrize(
    ("record", "words", "message"),
    [
        ("{", [], "--from-json must be a file with what --json printed"),
        ("[1]", [], "--from-json must be"),
        ('{"mechanism": {"kind": "dpsgd"}, "steps": 3}', ["--delta", "1e-5"], "without 'noise_multiplier'"),
        ('{"mechanism": {"kind": "pate"}, "steps": 3}', ["--delta", "1e-5"], "whose mechanism is 'dpsgd'"),
        ('{"mechanism": {}, "steps": 3}', [], "--delta must be given: the record of --from-json does not state it"),
        ('{"mechanism": {}, "steps": 3}', ["--steps", "3"], "--steps must be left out where --from-json is given"),
    ],
)
def test_what_is_no_record_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, record: str, words: list[str], message: str
) -> None:
    (tmp_path / "x.json").write_text(record)
    assert main(["epsilon", "--from-json", str(tmp_path / "x.json"), *words]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert message in captured.err


def test_other_commands_state_their_setting_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    probes = answer(capsys, "probes", *RUN, "--delta", "1e-5", "--budget", "16")
    assert (probes["version"], probes["noise_multiplier"], probes["delta"]) == (__version__, 1.3, 1e-5)
    assert probes["sampling"]["kind"] == "poisson"
    import numpy as np

    np.save(tmp_path / "x.npy", 9 * np.eye(3, 5))
    spectrum = answer(capsys, "spectrum", str(tmp_path / "x.npy"), "--sigma", "1")
    assert (spectrum["version"], spectrum["sigma"]) == (__version__, 1.0)
