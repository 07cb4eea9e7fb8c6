"""Statements: what is read, what is refused by name, what is said of each end."""

from __future__ import annotations

import ast
import json
import sys
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
    run = {"delta": KNOWN["delta"]} if "phases" in rest else KNOWN
    return [verdict.word for verdict in verify(read_statement(json.dumps(run | rest)), seconds)]


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
    halves = [{"mechanism": KNOWN["mechanism"], "steps": steps} for steps in (150, 250)]
    assert words(epsilon={"lower": 3.80, "upper": 3.82}, phases=halves) == ["proved", "proved"]


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
        ({"by_direction": {"sideways": {"upper": 1.0}}}, "says 'sideways', which"),
        ({"shuffled": True}, "shuffled"),
        ({"steps": 10**400}, "steps 1"),
        ({"analysis": "renyi"}, "renyi"),
        ({"epsilon": {"upper": 1e5}}, "upper 100000.0"),
        ({"epsilon": {"upper": 1.0, "Lower": 0.5}}, "Lower"),
        ({"epsilon": "small"}, "not covered|not a statement"),
        ({"by_direction": {"add": 3.0}}, "not a statement"),
        ({"by_direction": 7}, "not a statement"),
        ({"neighbours": "replace-one", **mechanism(neighbours="zero-out")}, "neighbours that differ"),
        ({"neighbours": {"kind": "group", "size": 2}, **mechanism(neighbours={"kind": "group", "size": 1})}, "differ"),
        (mechanism(norms=PROBES | {"secret": "false"}), "secret 'false'"),
        (mechanism(norms={"kind": "hutch++", "probes": 4, "sketch": 4, "power_iteration": 1}), "power_iteration 1"),
        ({"kind": "renyi"}, "statement says 'kind'"),
        ({"epsilon": {"kind": "renyi", "upper": 4.0}}, "epsilon says 'kind'"),
        ({"epsilon": ["upper"]}, "no object"),
        ({"epsilon": 0, "by_direction": {"add": {"upper": 4.0}}}, "epsilon 0 is no object"),
        ({"epsilon": None}, "epsilon None"),
        ({"by_direction": False}, "by_direction False"),
        ({"by_direction": []}, "by_direction"),
        ({"neighbours": "remove", "by_direction": {"add": {"upper": 1.0}}}, "covered of remove"),
        ({"direction": "add"}, "direction, without"),
        ({"direction": "both", "by_direction": {"add": {"upper": 4.0}}}, "direction, without"),
        ({"epochs": 3}, "epochs"),
        ({"steps": True}, "steps True"),
        ({"steps": 400.0}, "steps 400.0"),
        ({"delta": True}, "delta True"),
        ({"delta": float("inf")}, "delta inf"),
        ({"d\u0435lta": 1e-9}, "which is not covered"),
        ({"steps\u200b": 1}, "which is not covered"),
        ({"\ud800": 1}, "which is not covered"),
        ({"epsilon": {"upper": "4.0"}}, "upper '4.0'"),
        ({"epsilon": {"upper": [4.0]}}, "upper"),
        ({"epsilon": {"upper": 10**400}}, "upper 1"),
        ({"neighbours": {"kind": "group", "size": True}}, "size True"),
        (
            {"neighbours": {"kind": "group", "size": True}, **mechanism(neighbours={"kind": "group", "size": 1})},
            "differ",
        ),
        ({"neighbours": None}, "neighbours None"),
        (mechanism(norms=None), "norms None"),
        (mechanism(norms=PROBES | {"rank": "1"}), "rank '1'"),
        (mechanism(norms=PROBES | {"rank": 0}), "rank 0"),
        (mechanism(norms={"probes": 32}), "probes"),
        (mechanism(norms={"kind": ["exact"]}), "norms"),
        (mechanism(norms=PROBES | {"analysis": 7}), "analysis 7"),
        (mechanism(sampling={"kind": "poisson", "rate": "0.1"}), "rate '0.1'"),
        (mechanism(sampling=ALLOCATED) | {"epochs": True}, "epochs True"),
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


@pytest.mark.parametrize(
    ("phases", "named"),
    [
        ([], "no phase at all"),
        ([{"steps": 1}], "mechanism"),
        ([7], "not a statement"),
        ([{**mechanism(), "steps": 1, "delta": 1e-5}], "delta"),
        ([{**mechanism(), "steps": 1, "phases": []}], "phases"),
        (
            [{**mechanism(), "steps": 1}, {**mechanism(), "steps": 1, "neighbours": "replace-one"}],
            "differ between phases",
        ),
        ([{**mechanism(neighbours="add"), "steps": 1, "neighbours": "remove"}], "differ between a mechanism"),
    ],
)
def test_phases_say_no_more_than_what_is_read(phases: Any, named: str) -> None:
    document = {"phases": phases, "delta": 1e-5, "epsilon": {"upper": 4.0}}
    with pytest.raises(NotCoveredError, match=named):
        read_statement(json.dumps(document))


def test_integers_beyond_what_python_reads_and_texts_that_are_cut_are_refused() -> None:
    text = json.dumps(KNOWN | {"epsilon": {"upper": 4.0}})
    for changed in (text.replace("400", "4" * 5000), text[:-1], text + "}", "", "\ufeff" + text):
        with pytest.raises(NotCoveredError, match="not a statement"):
            read_statement(changed)


def test_a_word_said_twice_within_is_refused() -> None:
    text = json.dumps(KNOWN | {"epsilon": {"upper": 4.0}})
    with pytest.raises(NotCoveredError, match="said twice"):
        read_statement(text.replace('"upper": 4.0', '"upper": 1.0, "upper": 4.0'))


@pytest.mark.parametrize("text", ["7", "[]", '"words"', "null", '{"claim": null}', "[" * 10_000 + "]" * 10_000])
def test_what_is_no_object_is_no_statement(text: str) -> None:
    with pytest.raises(NotCoveredError, match="not a statement"):
        read_statement(text)


def test_a_word_said_twice_and_a_run_beside_phases_are_refused() -> None:
    text = json.dumps(KNOWN | {"epsilon": {"upper": 4.0}})
    with pytest.raises(NotCoveredError, match=r"said twice among .'mechanism', 'steps'"):
        read_statement(text[:-1] + ', "steps": 1}')
    with pytest.raises(NotCoveredError, match="which is not covered"):
        read_statement(text[:-1] + ', "phases": []}')


def test_a_card_is_read_by_its_claim() -> None:
    card = {"epsilon": {"upper": 4.0}, "unit": "a person", "claim": KNOWN | {"epsilon": {"upper": 4.0}}}
    (claim,) = read_statement(json.dumps(card)).claims
    assert claim.value == 4.0
    for change in (
        *({"epsilon": {"upper": value}} for value in (3.99, 4.01)),
        {"delta": 1e-6},
        {"epsilon": {"upper": "4"}},
        {"claim": {}},
    ):
        with pytest.raises(NotCoveredError, match=r"a card|not a statement"):
            read_statement(json.dumps(card | change))


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
    roots = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                roots |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                roots.add((node.module or "").partition(".")[0])
    assert roots - set(sys.stdlib_module_names) == {"flint", "dprmt_verify"}


def test_a_peer_is_asked_about_the_run_and_its_answer_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A package that claims too little, one that claims enough, and one that cannot."""
    asked: list[Any] = []

    def peer(answer: float) -> Any:
        def epsilon(*run: Any) -> float:
            asked.append(run)
            return answer / (answer > 0)

        return type("Peer", (), {"epsilon": staticmethod(epsilon)})

    file = tmp_path / "run.json"
    file.write_text(json.dumps(KNOWN | {"epsilon": {"upper": 1.0}, "by_direction": {"add": {"upper": 0.1}}}))
    for answer, code in ((3.5, 4), (3.9, 0), (0.0, 2)):
        monkeypatch.setitem(sys.modules, "dprmt_peers.peer", peer(answer))
        assert main([str(file), "--peer", "peer"]) == code
    assert asked == [(1.0, 2000 / 67349, 400, 1e-5)] * 3
    assert "proved: ε <= 3.9" in capsys.readouterr().out
    file.write_text(json.dumps(KNOWN | {"neighbours": "replace-one", "epsilon": {"upper": 1.0}}))
    assert main([str(file), "--peer", "peer"]) == 2
