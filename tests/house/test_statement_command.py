"""``dprmt statement`` and ``verify``: numbers of the library, printed as bounds, in a schema, and proved."""

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
    FixedOrder,
    FixedSize,
    GaussianRelease,
    Group,
    Hutchinson,
    HutchPlusPlus,
    Poisson,
    RandomAllocation,
    ReplaceOne,
    compose,
)
from dprmt.cli import main
from dprmt.statements import privacy_card
from dprmt.statements._claim import claim
from dprmt_verify import NotCoveredError, read_statement, verify
from tests.conftest import Ask, Say

RUN = "statement --noise-multiplier 1.5 --sample-rate 0.02 --steps 50 --delta 1e-5"
NUMBER = r"([\d.e+-]+)"


def test_numbers_are_the_library_s(ask: Ask) -> None:
    run, card = compose([(DPSGD(1.5, 0.02), 50), GaussianRelease(3.0)]), ask(RUN, "--also gaussian:3")
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
    stated = {"ε": card.worst, "μ": card.gdp_mu, "A": card.advantage, "β": card.true_positive_rate}
    for symbol, bounds in stated.items():
        found = re.search(f"{NUMBER} ≤ {symbol} ≤ {NUMBER}", page)
        assert found is not None
        lower, upper = map(float, found.groups())
        assert lower <= bounds.lower <= bounds.upper <= upper < 1.02 * lower
    assert "32 Gaussian probes per layer, public" in page
    assert "one \\| user" in page
    table = page.split("\n\n")[1].splitlines()
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in table)


def test_the_relation_unit_and_what_is_released_are_named(say: Say) -> None:
    page = say(RUN, "--neighbours replace-one --unit 'one letter' --also laplace:4")
    assert "replace-one: when one sample may be replaced by any other" in page
    assert "one letter" in page
    assert page.count("a number with Laplace noise of scale 4") == 2  # in the paragraph, and in the list
    assert "outside its small program" in page


def test_a_card_is_a_record_and_its_claim_is_proved(tmp_path: Path, ask: Ask, say: Say, refusal: Say) -> None:
    card, file = ask(RUN, "--neighbours replace-one"), tmp_path / "card.json"
    file.write_text(json.dumps(card))
    assert say("verify --seconds 20", file).count("proved: ε") == 2
    assert ask("epsilon --from-json", file)["epsilon"] == card["epsilon"]
    card["claim"]["epsilon"]["upper"] *= 0.99
    file.write_text(json.dumps(card))
    assert "a card of upper" in refusal("verify", file)
    card["epsilon"]["upper"] = card["claim"]["epsilon"]["upper"]
    file.write_text(json.dumps(card))
    assert main(["verify", str(file), "--seconds", "20"]) == 4


def test_a_fixed_order_is_claimed_as_steps_of_all_samples() -> None:
    run = compose([(DPSGD(4.0, FixedOrder(), neighbours=ReplaceOne()), 5)])
    proved = privacy_card(run, 1e-6).as_dict()["claim"]
    assert [verdict.word for verdict in verify(read_statement(json.dumps(proved)), 20.0)] == ["proved", "proved"]


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


def test_what_a_command_prints_fits(ask: Ask) -> None:
    CHECK.validate(ask("epsilon --noise-multiplier 4 --sample-rate .01 --steps 4 --delta 1e-5"))


def test_the_example_of_the_page_fits_and_is_read() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", (FOLDER / "statement.md").read_text(encoding="utf-8"), re.DOTALL)
    CHECK.validate(json.loads(example))
    assert read_statement(example).claims[0].value == 15.36


KNOWN = {"mechanism": {"noise_multiplier": 1.0, "sampling": {"rate": 2000 / 67349}}, "steps": 400, "delta": 1e-5}
BASE: dict[str, Any] = KNOWN | {"epsilon": {"upper": 1.0}}


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


STEPS, OFTEN = "--sample-rate 0.03 --steps 100 --delta 1e-5", "--sample-rate 0.5 --steps 10 --delta 1e-6"
SLOW = pytest.mark.slow
ALLOCATED = "--sampling allocation --delta 1e-5"


def claimed(document: dict[str, Any]) -> dict[str, Any]:
    """What ``dprmt epsilon`` says of both directions together."""
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
        pytest.param(f"--noise-multiplier 3 {OFTEN} --neighbours add-remove", 10, id="add-remove"),
        pytest.param(f"--noise-multiplier 1 {STEPS} --neighbours replace-one", 10, id="replace-one"),
        pytest.param(f"--noise-multiplier 2 {STEPS} --group 3", 10, id="groups"),
        pytest.param(f"--noise-multiplier 2 {STEPS} --probes 32 --public-probes", 20, id="public probes", marks=SLOW),
        pytest.param(f"--noise-multiplier 2 {STEPS} --probes 32 --secret-probes", 20, id="secret probes", marks=SLOW),
        pytest.param(f"--noise-multiplier 2 {ALLOCATED} --steps-per-epoch 100 --epochs 10", 20, id="allocation"),
    ],
)
def test_both_ends_of_ours_are_proved(options: str, cells: int, ask: Ask) -> None:
    assert words(claimed(ask("epsilon", options)), cells) == ["proved", "proved"]


@pytest.mark.slow
def test_allocation_with_probes_is_proved_with_a_thousandth_to_spare(ask: Ask) -> None:
    blocks = "--steps-per-epoch 20 --epochs 5 --probes 128 --public-probes"
    document = claimed(ask(f"epsilon --noise-multiplier 3 {ALLOCATED} {blocks}"))
    ends = {"lower": document["epsilon"]["lower"] * 0.999, "upper": document["epsilon"]["upper"] * 1.001}
    assert words(document | {"epsilon": ends}) == ["proved", "proved"]


@pytest.mark.slow
@pytest.mark.parametrize("secret", [False, True], ids=["public", "secret"])
def test_of_a_sketch_the_upper_end_is_proved(secret: bool, ask: Ask) -> None:
    """The charged law's lower end is of no gradient, and not covered."""
    options = f"--noise-multiplier 2 {STEPS} --probes 8 --sketch 6 --power-iteration"
    document = claimed(ask("epsilon", options, f"--{'secret' if secret else 'public'}-probes"))
    assert words(document) == ["proved", "not covered"]


def test_ends_moved_by_a_hundredth_are_refuted(ask: Ask) -> None:
    for options in (f"--noise-multiplier 1 {STEPS}", f"--noise-multiplier 3 {STEPS} --group 2"):
        document = claimed(ask("epsilon", options))
        lower, upper = (document["epsilon"][end] for end in ("lower", "upper"))
        assert words(document | {"epsilon": {"lower": lower * 1.01, "upper": upper * 0.99}}) == ["refuted", "refuted"]


def written(folder: Path, name: str, **ends: float) -> str:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(KNOWN | {"epsilon": ends}))
    return str(path)


def test_the_exit_code_is_that_of_the_worst_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    true, false = written(tmp_path, "true", lower=3.80, upper=3.82), written(tmp_path, "false", upper=3.7)
    near = written(tmp_path, "near", upper=3.8097)
    assert main(["verify", true]) == 0
    assert main(["verify", near, true, "--seconds", "0"]) == 3
    assert main(["verify", true, false, near, "--seconds", "0"]) == 4
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith(f"{true}: proved: ε <= 3.82")
    assert f"{false}: refuted: ε <= 3.7" in out[-2]


def test_json_is_one_object_of_all_ends(tmp_path: Path, ask: Ask) -> None:
    claims = ask("verify", written(tmp_path, "true", lower=3.80, upper=3.82))["claims"]
    assert [(claim["end"], claim["verdict"]) for claim in claims] == [("upper", "proved"), ("lower", "proved")]
    assert 3.80 < claims[0]["at_least"] < 3.8096 < claims[0]["at_most"] < 3.82


def test_a_rate_that_tells_the_number_of_examples_is_none_of_add_remove(say: Say, refusal: Say) -> None:
    """(N0): q = B/N differs between these neighbours, so no claim about them; nor does their card call n public."""
    of_n = "--noise-multiplier 2 --samples 1000 --batch-size 20 --epochs 1"
    relation, public = "--neighbours add-remove", "the number of samples, names of labels"
    for command in ("epsilon --delta 1e-5", "delta --epsilon 1", "probes --delta 1e-5 --budget 2"):
        for group in ("", "--group 2"):
            assert "--samples must be left out where --neighbours is " in refusal(command, of_n, relation, group)
    say("epsilon --delta 1e-5", of_n)
    assert public not in say(RUN, relation)
    assert public not in say(RUN, relation, "--group 2")
    assert public in say(RUN)
