"""Statements: what is read, what is refused by name, what is said of each end."""

from __future__ import annotations

import ast
import json
import tokenize
from pathlib import Path
from typing import Any

import pytest

import dprmt_verify
from dprmt_verify import NotCoveredError, read_statement, verify
from dprmt_verify.__main__ import main

PACKAGE = Path(dprmt_verify.__file__).parent
KNOWN = {"mechanism": {"noise_multiplier": 1.0, "sampling": {"rate": 2000 / 67349}}, "steps": 400, "delta": 1e-5}

ALLOCATED = {"kind": "allocation", "steps_per_epoch": 40}
PROBES = {"kind": "hutchinson", "probes": 32}


def mechanism(rate: float = 0.5, **rest: Any) -> dict[str, Any]:
    return {"mechanism": {"noise_multiplier": 1.0, "sampling": {"rate": rate}} | rest}


def words(seconds: float = 20.0, **rest: Any) -> list[str]:
    return [verdict.word for verdict in verify(read_statement(json.dumps(KNOWN | rest)), seconds)]


def test_the_check_value_of_one_run() -> None:
    """ε = 3.8096: ends on its two sides are proved, moved ones refuted, one that is next to it is neither."""
    assert words(epsilon={"lower": 3.808, "upper": 3.811}) == ["proved", "proved"]
    assert words(epsilon={"lower": 3.811, "upper": 3.808}) == ["refuted", "refuted"]
    assert words(1.0, epsilon={"upper": 3.80965}) == ["not settled"]


def test_what_is_not_settled_says_how_near_it_came() -> None:
    (verdict,) = verify(read_statement(json.dumps(KNOWN | {"epsilon": {"upper": 3.80965}})), 1.0)
    assert 3.808 < verdict.at_least <= verdict.at_most < 3.812


def test_each_direction_has_ends_of_its_own() -> None:
    said = {"remove": {"lower": 3.808, "upper": 3.811}, "add": {"lower": 2.0, "upper": 3.811}}
    assert words(epsilon={"upper": 3.811}, by_direction=said) == ["proved"] * 5
    assert words(neighbours="add", epsilon={"lower": 3.808}) == ["refuted"]


def test_ends_that_are_no_claims() -> None:
    assert words(epsilon={"lower": 0.0, "upper": -1.0}) == ["refuted", "proved"]
    assert words(epsilon={"lower": None, "upper": 4.0}) == ["proved"]


def test_nothing_is_private_beyond_all_losses() -> None:
    """δ so large that ε = 0 holds; a positive lower end is refuted."""
    assert words(delta=0.9, epsilon={"lower": 1e-3, "upper": 0.0}) == ["proved", "refuted"]


def test_phases_may_tell_one_run_in_two() -> None:
    whole = {"phases": [{**KNOWN, "steps": 150}, {"mechanism": KNOWN["mechanism"], "steps": 250}]}
    assert words(epsilon={"lower": 3.80, "upper": 3.82}, **whole) == ["proved", "proved"]


def test_a_gaussian_release_is_a_step_without_sampling() -> None:
    """μ = √(1/4 + 1/4): ε = 2.9432 at δ = 1e-5, in closed form."""
    noisy = [{"mechanism": {"kind": "gaussian", "noise_multiplier": 2.0}, "steps": 1}]
    unsampled = [{"mechanism": {"noise_multiplier": 2.0}, "steps": 1}]
    for phases in (noisy + unsampled, 2 * unsampled):
        assert words(epsilon={"lower": 2.93, "upper": 2.96}, phases=phases) == ["proved", "proved"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"steps": 0}, "steps 0"),
        ({"steps": 1.5}, "steps 1.5"),
        ({"delta": 0}, "delta 0"),
        ({"delta": "1e-5"}, "delta '1e-5'"),
        ({"neighbours": "friends"}, "friends"),
        ({"neighbours": {"kind": "group", "size": 0}}, "size 0"),
        ({"epsilon": {}}, "epsilon"),
        ({"epsilon": {"upper": float("nan")}}, "upper nan"),
        ({"by_direction": {"sideways": {"upper": 1.0}}}, "another than remove and add"),
        ({"shuffled": True}, "shuffled"),
        ({"phases": []}, "no phase at all"),
        ({"phases": [{"steps": 1}]}, "mechanism"),
        (mechanism(1.5), "rate 1.5"),
        (mechanism(noise_multiplier=-1.0), "noise_multiplier -1.0"),
        (mechanism(momentum=1), "momentum"),
        (mechanism(norms="guessed"), "guessed"),
        (mechanism(sampling="shuffled"), "shuffled"),
        (mechanism(sampling=ALLOCATED | {"steps_per_epoch": 7}), "not whole epochs"),
        (mechanism(sampling=ALLOCATED | {"participations": 3}), "not whole epochs"),
        (mechanism(sampling=ALLOCATED) | {"epochs": 5}, "not whole epochs"),
        (mechanism(sampling=ALLOCATED, neighbours="replace-one"), "one sample, present or not"),
        (mechanism(norms={"kind": "hutch++", "probes": 4}), "sketch None"),
        (mechanism(norms=PROBES | {"probes": 1}), "probes 1"),
        (mechanism(norms=PROBES | {"sparse": True}), "sparse"),
        (mechanism(norms=PROBES, neighbours="replace-one"), "one sample, present or not"),
        (mechanism(norms=PROBES, neighbours={"kind": "group", "size": 2}), "one sample, present or not"),
    ],
)
def test_what_is_not_known_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(NotCoveredError, match=named):
        read_statement(json.dumps(KNOWN | {"epsilon": {"upper": 4.0}} | change))


def test_the_exit_code_is_that_of_the_worst_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {}
    for name, claimed in {"true": 3.9, "false": 3.7, "unread": "?"}.items():
        files[name] = tmp_path / name
        files[name].write_text(json.dumps(KNOWN | {"epsilon": {"upper": claimed}}))
    assert main([str(files["true"])]) == 0
    assert main([str(files["true"]), str(files["false"])]) == 4
    assert main([str(files["unread"])]) == 2
    out, err = capsys.readouterr()
    assert "proved: ε <= 3.9" in out
    assert "refuted: ε <= 3.7" in out
    assert "upper '?': not a number" in err


def test_it_imports_python_flint_and_the_standard_library_alone() -> None:
    import sys

    roots = set()
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                roots |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                roots.add((node.module or "").partition(".")[0])
    assert roots - set(sys.stdlib_module_names) == {"flint", "dprmt_verify"}


def code_lines(path: Path) -> int:
    """Lines that are neither blank, nor comments, nor docstrings."""
    text = path.read_text()
    kept: set[int] = set()
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type not in (*skipped, tokenize.ENCODING):
                kept |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False):
            kept -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(kept)


def test_it_is_small_enough_to_be_read_in_an_evening() -> None:
    assert sum(code_lines(path) for path in PACKAGE.glob("*.py")) <= 790
