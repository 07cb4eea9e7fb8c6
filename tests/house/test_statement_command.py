"""``dprmt statement``: the card's numbers are the library's, printed as bounds, and what it carries is proved."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprmt.accounting import (
    DPSGD,
    AddRemove,
    ApproximateRelease,
    Composition,
    ExactNorms,
    FixedOrder,
    GaussianRelease,
    Group,
    Hutchinson,
    HutchPlusPlus,
    LaplaceRelease,
    Poisson,
    PrivacyBounds,
    RandomAllocation,
    ReplaceOne,
    ZeroOut,
    compose,
)
from dprmt.cli import main
from dprmt.statements import PrivacyCard, privacy_card
from dprmt_verify import NotCoveredError, read_statement, verify

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
    assert main(["verify", str(tmp_path / "card.json"), "--seconds", "20"]) == 4


def test_a_card_without_a_claim_is_refused_in_one_line(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    card = card_of(capsys, "--also", "laplace:4")
    assert card["claim"] is None
    (tmp_path / "card.json").write_text(json.dumps(card))
    assert main(["verify", str(tmp_path / "card.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_nothing_finite_is_no_claim() -> None:
    card = privacy_card(compose([(DPSGD(2.0, 0.02), 50), ApproximateRelease(0.1, 0.01)]), 1e-5)
    assert card.worst.upper == float("inf")
    assert "nothing may be claimed" in card.as_markdown()
    assert card.as_dict()["claim"] is None
    json.dumps(card.as_dict(), allow_nan=False)


def _made(sampling: Any, norms: Any, neighbours: Any) -> DPSGD | None:
    if isinstance(sampling, FixedOrder) and AddRemove() in (neighbours, getattr(neighbours, "of", None)):
        return None
    return DPSGD(2.0, sampling, norms, neighbours)


MECHANISMS = st.builds(
    _made,
    st.sampled_from([Poisson(0.01), Poisson(1.0), RandomAllocation(10), RandomAllocation(10, 2), FixedOrder()]),
    st.sampled_from(
        [
            *(
                ExactNorms(),
                Hutchinson(8, secret=False),
                Hutchinson(8, secret=True, rank=4),
                Hutchinson(8, secret=False, analysis="envelope"),
            ),
            *(
                HutchPlusPlus(8, 3, secret=False),
                HutchPlusPlus(8, 3, power_iteration=True, secret=True),
            ),
        ]
    ),
    st.sampled_from([ZeroOut(), AddRemove(), ReplaceOne(), Group(1), Group(2), Group(65), Group(3, AddRemove())]),
)
ENDS = {"remove": PrivacyBounds(1.0, 1.1, 1.2, "remove"), "add": PrivacyBounds(0.9, 1.0, 1.1, "add")}


def _as_it_is(run: Composition) -> dict[str, Any]:
    phases = [{"mechanism": one.as_dict(), "steps": steps} for one, steps in run.phases]  # type: ignore[attr-defined]
    ends = {"lower": 1.0, "upper": 1.2}
    return {"neighbours": run.neighbours.as_dict(), "phases": phases, "delta": 1e-5, "epsilon": ends}  # type: ignore[attr-defined]


@given(mechanism=MECHANISMS, release=st.sampled_from([None, GaussianRelease(2.0), LaplaceRelease(2.0)]))
def test_there_is_a_claim_where_the_verifier_knows_the_mechanism(mechanism: DPSGD | None, release: Any) -> None:
    """A claim is read by the verifier; and where there is none, the run as it is would be refused, or by curves."""
    if mechanism is None:
        return
    run = compose([(mechanism, 20), *([release] if release else [])])
    found = PrivacyCard(run, 1e-5, ENDS, ENDS["add"], ENDS["add"], ENDS["add"], "one row").as_dict()["claim"]
    if found is not None:
        assert len(read_statement(json.dumps(found)).claims) in (2, 6)
    elif run.has_pairs and not isinstance(mechanism.sampling, FixedOrder):
        with pytest.raises(NotCoveredError):
            read_statement(json.dumps(_as_it_is(run)))


def test_a_fixed_order_is_claimed_as_steps_of_all_samples() -> None:
    run = compose([(DPSGD(4.0, FixedOrder(), neighbours=ReplaceOne()), 5)])
    proved = privacy_card(run, 1e-6).as_dict()["claim"]
    assert [verdict.word for verdict in verify(read_statement(json.dumps(proved)), 20.0)] == ["proved", "proved"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--unit", " "], "--unit"),
        (["--run", "nowhere"], "--noise-multiplier"),
        (["--group", "0"], "--group"),
        (["--group", "2", "--neighbours", "replace-one"], "--group"),
    ],
)
def test_bad_input_is_one_line(options: list[str], names: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["statement", *RUN, *options]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert names in err
