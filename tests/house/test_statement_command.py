"""``dprmt statement``: the card's numbers are the library's, printed as bounds, and what it carries is proved."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from dprmt.accounting import (
    DPSGD,
    FixedOrder,
    GaussianRelease,
    Hutchinson,
    ReplaceOne,
    compose,
)
from dprmt.cli import main
from dprmt.statements import privacy_card
from dprmt_verify import read_statement, verify

RUN = ["--noise-multiplier", "1.5", "--sample-rate", "0.02", "--steps", "50", "--delta", "1e-5"]
NUMBER = r"([\d.e+-]+)"


def card_of(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["statement", *RUN, *options, "--json"]) == 0
    card: dict[str, Any] = json.loads(capsys.readouterr().out)
    return card


def test_numbers_are_the_library_s(capsys: pytest.CaptureFixture[str]) -> None:
    run, card = compose([(DPSGD(1.5, 0.02), 50), GaussianRelease(3.0)]), card_of(capsys, "--also", "gaussian:3")
    expected = {
        "epsilon": run.epsilon(1e-5),
        "gdp_mu": run.gdp_mu(),
        "advantage": run.advantage(),
        "true_positive_rate": run.true_positive_rate(0.01),
    }
    for name, bounds in expected.items():
        assert (card[name]["lower"], card[name]["upper"]) == (bounds.lower, bounds.upper), name
        assert 0 < bounds.lower < bounds.upper < 1.01 * bounds.lower, name
    assert card["neighbours"] == "zero-out"
    assert card["also"] == [GaussianRelease(3.0).as_dict()]


def test_printed_numbers_are_bounds() -> None:
    card = privacy_card(compose([(DPSGD(1.5, 0.02, Hutchinson(32, secret=False)), 50)]), 1e-5, unit="one | user")
    page = card.as_markdown()
    for symbol, bounds in (
        ("ε", card.worst),
        ("μ", card.gdp_mu),
        ("A", card.advantage),
        ("β", card.true_positive_rate),
    ):
        found = re.search(f"{NUMBER} ≤ {symbol} ≤ {NUMBER}", page)
        assert found is not None
        lower, upper = map(float, found.groups())
        assert lower <= bounds.lower <= bounds.upper <= upper < 1.02 * lower
    assert "32 Gaussian probes per layer, public" in page
    assert "one \\| user" in page
    table = page.split("\n\n")[1].splitlines()
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in table)


def test_the_relation_unit_and_what_is_released_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--neighbours", "replace-one", "--unit", "one letter", "--also", "laplace:4")
    assert main(["statement", *RUN, *options]) == 0
    page = capsys.readouterr().out
    assert "replace-one: when one sample may be replaced by any other" in page
    assert "one letter" in page
    assert page.count("a number with Laplace noise of scale 4") == 2  # in the paragraph, and in the list
    assert "outside its small program" in page


def test_a_card_is_a_record_and_its_claim_is_proved(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    card = card_of(capsys, "--neighbours", "replace-one")
    (tmp_path / "card.json").write_text(json.dumps(card))
    assert main(["verify", str(tmp_path / "card.json"), "--seconds", "20"]) == 0
    assert capsys.readouterr().out.count("proved: ε") == 2
    assert main(["epsilon", "--from-json", str(tmp_path / "card.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] == card["epsilon"]
    card["claim"]["epsilon"]["upper"] *= 0.99
    (tmp_path / "card.json").write_text(json.dumps(card))
    assert main(["verify", str(tmp_path / "card.json"), "--seconds", "20"]) == 2
    assert "a card that says upper" in capsys.readouterr().err
    card["epsilon"]["upper"] = card["claim"]["epsilon"]["upper"]
    (tmp_path / "card.json").write_text(json.dumps(card))
    assert main(["verify", str(tmp_path / "card.json"), "--seconds", "20"]) == 4


def test_a_fixed_order_is_claimed_as_steps_of_all_samples() -> None:
    run = compose([(DPSGD(4.0, FixedOrder(), neighbours=ReplaceOne()), 5)])
    proved = privacy_card(run, 1e-6).as_dict()["claim"]
    assert [verdict.word for verdict in verify(read_statement(json.dumps(proved)), 20.0)] == ["proved", "proved"]
