"""The published JSON Schema of statements: what commands print fits it, and the verifier takes what fits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dprmt.accounting import (
    DPSGD,
    AddRemove,
    Composition,
    CyclicPoisson,
    FixedSize,
    GaussianRelease,
    Group,
    Hutchinson,
    HutchPlusPlus,
    Poisson,
    RandomAllocation,
    ReplaceOne,
)
from dprmt.cli import main
from dprmt.statements._claim import claim
from dprmt_verify import NotCoveredError, read_statement

jsonschema = pytest.importorskip("jsonschema")
FOLDER = Path(__file__).parents[2] / "docs" / "reference"
SCHEMA = json.loads((FOLDER / "statement-1.schema.json").read_text(encoding="utf-8"))
CHECK = jsonschema.Draft202012Validator(SCHEMA)

MECHANISMS = [
    DPSGD(4.0, 0.01, beside=[GaussianRelease(9.0)]),
    DPSGD(4.0, Poisson(0.01, 5, 99), neighbours=AddRemove()),
    DPSGD(4.0, CyclicPoisson(0.01, 3), Hutchinson(32, secret=False, analysis="envelope")),
    DPSGD(4.0, FixedSize(2, 99), neighbours=ReplaceOne()),
    DPSGD(4.0, RandomAllocation(4), HutchPlusPlus(16, 8, secret=True)),
    DPSGD(4.0, 0.01, neighbours=Group(3)),
]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_claims_fit_the_schema_and_are_read(mechanism: DPSGD) -> None:
    run = Composition([(mechanism, 4), GaussianRelease(20.0)])
    said = claim(run, 1e-5, run.epsilon_by_direction(1e-5))
    assert said is not None
    CHECK.validate(said)
    assert read_statement(json.dumps(said | {"$schema": SCHEMA["$id"]})).claims


def test_what_a_command_prints_fits(capsys: pytest.CaptureFixture[str]) -> None:
    words = "epsilon --noise-multiplier 4 --sample-rate .01 --steps 4 --delta 1e-5 --json"
    assert main(words.split()) == 0
    CHECK.validate(json.loads(capsys.readouterr().out))


def test_the_example_of_the_page_fits_and_is_read() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", (FOLDER / "statement.md").read_text(encoding="utf-8"), re.DOTALL)
    CHECK.validate(json.loads(example))
    assert read_statement(example).claims[0].value == 15.36


BASE: dict[str, Any] = {
    "mechanism": {"noise_multiplier": 1.0, "sampling": {"rate": 0.1}},
    "steps": 4,
    "delta": 1e-5,
    "epsilon": {"upper": 1.0},
}


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 0},
        {"delta": 0},
        {"epsilom": {"upper": 1.0}},
        {"epsilon": {"up": 1.0}},
        {"phases": [{"mechanism": BASE["mechanism"], "steps": 1}]},
        {"neighbours": "replace-two"},
        {"mechanism": {"noise_multiplier": "1"}},
        {"mechanism": {"noise_multiplier": 1.0, "sampling": {"rate": 0.1, "at_most": 3}}},
        {"mechanism": {"noise_multiplier": 1.0, "beside": [{"kind": "laplace", "scale": 1.0}]}},
        {"mechanism": {"noise_multiplier": 1.0, "sampling": {"kind": "cyclic-poisson", "rate": 0.1}}},
    ],
)
def test_neither_the_schema_nor_the_verifier_takes_what_is_malformed(change: dict[str, Any]) -> None:
    CHECK.validate(BASE)
    assert read_statement(json.dumps(BASE)).claims
    assert not CHECK.is_valid(BASE | change)
    with pytest.raises(NotCoveredError):
        read_statement(json.dumps(BASE | change))
