"""Relations and releases on the command line."""

from __future__ import annotations

import json

import pytest

from dprmt.accounting import DPSGD, Group, Hutchinson, LaplaceRelease, ReplaceOne, compose
from dprmt.cli import main

RUN = ["--noise-multiplier", "1", "--sample-rate", "0.03", "--steps", "100", "--delta", "1e-5"]


def said(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["epsilon", *RUN, *words, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_relations_are_asked_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    replaced = said(capsys, "--neighbours", "replace-one", "--probes", "16", "--secret-probes")
    bounds = DPSGD(1.0, 0.03, Hutchinson(16, secret=True), ReplaceOne()).epsilon(100, 1e-5)
    assert replaced["epsilon"]["upper"] == pytest.approx(bounds.upper, rel=1e-12)  # type: ignore[index]
    assert replaced["neighbours"] == "replace-one"
    person = said(capsys, "--group", "3")
    assert person["epsilon"]["upper"] == DPSGD(1.0, 0.03, neighbours=Group(3)).epsilon(100, 1e-5).upper  # type: ignore[index]
    assert person["mechanism"]["neighbours"]["size"] == 3  # type: ignore[index]
    assert said(capsys, "--neighbours", "add-remove")["epsilon"] == said(capsys)["epsilon"]


def test_what_is_composed_of_curves_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--probes", "32", "--group", "2"]
    assert said(capsys, *words)["analysis"] == "composed curves"
    assert main(["epsilon", *RUN, *words]) == 0
    assert "composed curves; zero-out, groups of 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "phrase"),
    [
        ([], "replaced by one without a gradient"),
        (["--neighbours", "add-remove"], "chosen without the number of examples"),
        (["--neighbours", "replace-one"], "replaced by any other"),
        (["--group", "4"], "up to 4 examples of one person"),
    ],
)
def test_statements_name_the_relation(capsys: pytest.CaptureFixture[str], words: list[str], phrase: str) -> None:
    assert main(["epsilon", *RUN, *words, "--statement"]) == 0
    assert phrase in capsys.readouterr().out


def test_releases_beside_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, "--also", "laplace:4", "--also", "laplace:4")
    bounds = compose([(DPSGD(1.0, 0.03), 100), (LaplaceRelease(4.0), 2)]).epsilon(1e-5)
    assert found["epsilon"]["upper"] == bounds.upper  # type: ignore[index]
    assert found["also"] == [{"kind": "laplace", "scale": 4.0}] * 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--group", "0"], "--group must be an integer in [1, 1000], got 0"),
        (["--neighbours", "replace-one", "--group", "2"], "--group must be left out where --neighbours is replace-one"),
        (["--neighbours", "cousins"], "--neighbours must be one of"),
        (["--also", "gauss:1"], "did you mean 'gaussian'?"),
        (["--also", "laplace"], "--also must be gaussian:SIGMA"),
        (["--also", "laplace:0"], "scale must be"),
    ],
)
def test_bad_words_are_one_line(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert main(["epsilon", *RUN, *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
