"""Ends that the accountant once gave and that were false: refuted, by how much, and the true ones beside them not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dprmt_verify import read_statement, verify

PHASES = [
    {
        "mechanism": {
            "noise_multiplier": 1.6526650801318743,
            "sampling": {"rate": 0.01561269961016319},
            "norms": {"kind": "hutchinson", "probes": 32},
        },
        "steps": 3056,
    },
    {"mechanism": {"noise_multiplier": 1.9116909043188168, "sampling": {"rate": 0.0007141453229595131}}, "steps": 7502},
]
MANY_STEPS = {"mechanism": {"noise_multiplier": 1.0, "sampling": {"rate": 0.001}}, "steps": 3 * 10**8}


@pytest.mark.parametrize(
    ("run", "false", "true", "most"),
    [
        pytest.param({"phases": PHASES}, 2.381, 2.350, 2.36, id="a composition"),
        pytest.param(MANY_STEPS, 355.041, 350.0, 353.2, id="very many steps", marks=pytest.mark.slow),
    ],
)
def test_a_lower_end_above_the_truth_is_refuted(run: dict[str, Any], false: float, true: float, most: float) -> None:
    """Of adding a sample: a lattice node inside an averaged cell let E e^{-L} fall below 1."""
    statement = read_statement(json.dumps({**run, "delta": 1e-5, "by_direction": {"add": {"lower": false}}}))
    (claim,) = statement.claims
    wrong, right = verify(statement._replace(claims=[claim, claim._replace(value=true)]), 0.0)
    assert (wrong.word, right.word) == ("refuted", "proved")
    assert true <= wrong.at_least < wrong.at_most < most  # the bound that refutes lies below what was claimed
