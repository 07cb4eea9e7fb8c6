"""Every ε that a command prints or writes says against which neighbours it is, whatever command will be added."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from dprmt.accounting import (
    DPSGD,
    ProbeChoice,
    compose,
    neighbours_from_dict,
)
from dprmt.cli import _accounting, main

STEP = "--noise-multiplier 2 --sample-rate 0.02"
RUN = f"{STEP} --steps 20"
QUESTIONS = {
    "epsilon": [f"{RUN} --delta 1e-5 --statement --also gaussian:3"],
    "noise": ["--epsilon 2 --sample-rate 0.02 --steps 20 --delta 1e-5 --statement"],
    "delta": [f"{RUN} --epsilon 1 --statement"],
    "steps": [f"{STEP} --epsilon 0.3 --delta 1e-5"],
    "probes": [f"{RUN} --delta 1e-5 --budget 2"],
    "tradeoff": [RUN],
    "statement": [f"{RUN} --delta 1e-5"],
}
"""Of commands that are told whose privacy is meant."""
RELATIONS = {
    "zero-out": "",
    "add-remove": "--neighbours add-remove",
    "replace-one": "--neighbours replace-one",
    "zero-out, groups of 2": "--group 2",
    "add-remove, groups of 2": "--group 2 --neighbours add-remove",
}
SENTENCES = {
    "zero-out": r"one sample may be replaced by one without a gradient",
    "add-remove": r"addition or removal of one sample",
    "replace-one": r"one sample may be replaced by any other",
    "zero-out, groups of 2": r"up to 2 samples of one person.*each be replaced by one without a gradient",
    "add-remove, groups of 2": r"addition or removal of up to 2 samples of one person",
}


def unnamed(found: Any, relation: str | None = None, place: str = "") -> Iterator[str]:
    """Where a JSON value has a number of ε or δ, or a trade-off, and nothing around it says whose it is."""
    if isinstance(found, dict):
        mechanism = found.get("mechanism")
        beside = mechanism.get("neighbours") if isinstance(mechanism, dict) else None
        relation = found.get("neighbours") or beside or relation
        for key, value in found.items():
            if relation is None and re.search(r"epsilon|by_direction|^alpha$|advantage", key) and value is not None:
                yield f"{place}.{key}"
            yield from unnamed(value, relation, f"{place}.{key}")
    elif isinstance(found, list):
        for number, value in enumerate(found):
            yield from unnamed(value, relation, f"{place}[{number}]")


def exact_alone(mechanism: DPSGD, *, budget: int, delta: float, steps: int, layers: object) -> tuple[ProbeChoice, ...]:
    return (ProbeChoice(mechanism.norms, 0, mechanism.epsilon(steps=steps, delta=delta), None),)


def said(capsys: pytest.CaptureFixture[str], words: str) -> str:
    assert main(shlex.split(words)) == 0, words
    return capsys.readouterr().out


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("command", QUESTIONS)
def test_words_and_json_of_a_question_name_the_relation(
    command: str, relation: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_accounting, "choose_probes", exact_alone)  # the others' ε take minutes
    kind, size = ("group", 2) if "group" in relation else (relation, None)
    for question in QUESTIONS[command]:
        asked = f"{command} {question} {RELATIONS[relation]}"
        page = said(capsys, asked)
        if "ε" in page:
            assert relation in page or re.search(SENTENCES[relation], page), asked
        if "differentially private" in page:
            assert re.search(SENTENCES[relation], page), asked
        if command == "tradeoff":  # a line may be copied alone
            rows = list(csv.DictReader(io.StringIO(page)))
            assert len(rows) == 101
            assert {row["neighbours"] for row in rows} == {relation}, asked
        document = json.loads(said(capsys, f"{asked} --json"))
        assert list(unnamed(document)) == [], asked
        whose = document["mechanism"]["neighbours"] if command == "probes" else document["neighbours"]
        assert (whose["kind"] if isinstance(whose, dict) else whose) == kind
        if size is not None:
            assert re.search(r'"kind": "group", "size": 2', json.dumps(document)), asked
        if command == "probes":
            ends = compose([(DPSGD(2.0, 0.02, neighbours=neighbours_from_dict(whose)), 20)]).epsilon(1e-5)
            assert document["choices"][0]["epsilon"]["upper"] == ends.upper
        if "statement" in document:
            assert re.search(SENTENCES[relation], document["statement"]), asked


def test_a_rate_that_tells_the_number_of_examples_is_none_of_add_remove(capsys: pytest.CaptureFixture[str]) -> None:
    """(N0): q = B/N differs between these neighbours, so no claim about them; nor does their card call n public."""
    of_n = "--noise-multiplier 2 --samples 1000 --batch-size 20 --epochs 1"
    for command, rest in (("epsilon", "--delta 1e-5"), ("delta", "--epsilon 1"), ("probes", "--delta 1e-5 --budget 2")):
        for relation in ("--neighbours add-remove", "--neighbours add-remove --group 2"):
            assert main(shlex.split(f"{command} {of_n} {rest} {relation}")) == 2
            error = capsys.readouterr().err
            assert "--samples must be left out where --neighbours is add-remove" in error
            assert error.count("\n") == 1
    assert main(shlex.split(f"epsilon {of_n} --delta 1e-5")) == 0
    public = "the number of samples, names of labels"
    assert public not in said(capsys, f"statement {RUN} --delta 1e-5 --neighbours add-remove")
    assert public not in said(capsys, f"statement {RUN} --delta 1e-5 --neighbours add-remove --group 2")
    assert public in said(capsys, f"statement {RUN} --delta 1e-5")
