"""Every mechanism of the accountant, and what knows it: verifier, statement, card, command line, calculator, check."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from dprmt import ParameterError
from dprmt.accounting import (
    DPSGD,
    CyclicPoisson,
    ExactNorms,
    FixedSize,
    GaussianDPRelease,
    GaussianRelease,
    LaplaceRelease,
    Poisson,
    RandomAllocation,
    Release,
    RenyiRelease,
    ReplaceOne,
    ZCDPRelease,
    compose,
    parallel,
)
from dprmt.statements import privacy_card, statement
from tests.conftest import Ask
from tests.docs.modules import ROOT, module

pytest.importorskip("flint")
from dprmt_verify import NotCoveredError, read_statement, verify

DELTA = 1e-4
ANSWER = module(ROOT / "docs" / "calculator" / "answer.py")
ALONE = DPSGD(2.0, 0.1)
BATCHES = {"batch_size": "10", "samples": "100", "at_most": "18", "bands": "2", "steps_per_epoch": "10", "epochs": "1"}
QUESTION = BATCHES | {"noise_multiplier": "2", "sample_rate": "0.1", "steps": "10", "delta": "1e-4", "norms": "exact"}
QUESTION |= {"sampling": "poisson", "neighbours": "zero-out", "group": "1"}


@dataclass(frozen=True)
class Known:
    """A mechanism as everything spells it; ``outside``: why the verifier does not cover it."""

    one: DPSGD | Release
    words: str
    asked: str
    said: str
    outside: str = ""

    @property
    def run(self) -> Any:
        more = [self.one] if isinstance(self.one, Release) else []
        return compose([(ALONE if more else self.one, 10), *more])

    @property
    def question(self) -> dict[str, str]:
        return QUESTION | dict(word.split("=", 1) for word in self.asked.split())


def also(release: Release, word: str, said: str, outside: str = "of this release only a bound is known") -> Known:
    return Known(release, f"{AT_RATE} --also {word}", f"also={word}", said, outside)


AT_RATE, FIXED = "--sample-rate .1 --steps 10", "--sampling fixed-size --samples 100 --batch-size 10 --steps 10"
IN_TURN, BESIDE = f"{AT_RATE} --sampling cyclic-poisson --bands 2", f"{AT_RATE} --beside gaussian:3"
DRAWN, REPLACED = "drawn uniformly without replacement", "--neighbours replace-one"
ALLOCATED, CUT = "--sampling allocation --steps-per-epoch 10 --epochs 1", Poisson(0.1, at_most=18, samples=100)
RENYI = RenyiRelease((2.0, 4.0, 8.0), (0.2, 0.4, 0.8))


def drawn(sampling: Any, words: str, asked: str, said: str, *rest: Any) -> Known:
    return Known(DPSGD(2.0, sampling, *rest), words, f"sampling={asked}", said)


TABLE = {
    "fixed size, zero-out": drawn(FixedSize(10, 100), FIXED, "fixed-size", DRAWN),
    "fixed size, replace-one": drawn(
        *(FixedSize(10, 100), f"{FIXED} {REPLACED}", "fixed-size neighbours=replace-one", DRAWN),
        *(ExactNorms(), ReplaceOne()),
    ),
    "largest size": drawn(CUT, f"{AT_RATE} --samples 100 --at-most 18", "at-most", "at most 18 are kept"),
    "cyclic": drawn(CyclicPoisson(0.1, 2), IN_TURN, "cyclic-poisson", "one of 2 groups of samples in turn"),
    "beside": Known(DPSGD(2.0, 0.1, beside=[GaussianRelease(3.0)]), BESIDE, "beside=gaussian:3", "of the same batches"),
    "random allocation": drawn(RandomAllocation(10), ALLOCATED, "allocation", "with random allocation"),
    "sampled Laplace": also(
        *(LaplaceRelease(4.0, rate=0.1), "sampled-laplace:4:.1", "of samples drawn at rate 0.1"),
        "the curve of Laplace noise is a formula",
    ),
    "zCDP": also(ZCDPRelease(0.02), "zcdp:.02", "0.02-zCDP"),
    "Rényi": also(RENYI, "renyi:2=.2:4=.4:8=.8", "Rényi divergences of 3 orders"),
    "Gaussian DP": also(GaussianDPRelease(0.1), "gaussian-dp:.1", "0.1-GDP"),
}
rows = pytest.mark.parametrize("known", TABLE.values(), ids=TABLE)


@rows
def test_statement_card_and_verifier(known: Known) -> None:
    """A card's claim, 5 % wider, is proved; what is outside the verifier is named by its error and by the card."""
    card = privacy_card(known.run, DELTA)
    text = card.as_markdown()
    assert known.said in text
    assert known.said in statement(card.worst, known.run, epsilon="ε ≤ 1", delta="δ = 1e-4")
    claim = card.as_dict()["claim"]
    if not known.outside:
        for ends in (claim["epsilon"], *claim["by_direction"].values()):  # so that coarse meshes suffice
            ends |= {"lower": ends["lower"] * 0.95, "upper": ends["upper"] * 1.05}
        assert {verdict.word for verdict in verify(read_statement(json.dumps(claim)), 2.0)} == {"proved"}
        return
    assert claim is None
    assert "outside its small program" in text
    phase = {"mechanism": known.one.as_dict(), "steps": 1}
    with pytest.raises(NotCoveredError, match=known.outside):
        read_statement(json.dumps({"phases": [phase], "delta": DELTA, "epsilon": {"upper": 1.0}}))


@rows
def test_command_line(known: Known, ask: Ask) -> None:
    """``epsilon`` is the library's; ``noise`` and ``steps`` find at most what is asked for."""
    wanted = known.run.epsilon(DELTA)
    found = ask(f"epsilon --noise-multiplier 2 {known.words} --delta {DELTA}")
    assert found["epsilon"]["upper"] == wanted.upper
    target = 1.5 * wanted.upper
    found = ask(f"noise --epsilon {target} {known.words} --delta {DELTA}")
    assert found["noise_multiplier"] < 2.0
    assert found["epsilon"]["upper"] <= target
    free = known.words.replace(" --steps 10", "").replace(" --epochs 1", "")
    found = ask(f"steps --epsilon {target} --noise-multiplier 2 {free} --delta {DELTA}")
    assert found["largest_steps"] >= 10
    assert found["epsilon"]["upper"] <= target


@rows
def test_calculator(known: Known) -> None:
    found = ANSWER.answer(known.question)
    assert found["record"]["epsilon"]["upper"] == known.run.epsilon(DELTA).upper
    assert known.said in found["record"]["statement"]
    assert found["curve"]["upper"][-1] == pytest.approx(found["record"]["epsilon"]["upper"], rel=2e-3)


def test_runs_on_disjoint_data() -> None:
    """The largest ε; a statement, a card and the verifier take each run by itself, and say so."""
    runs = [compose([(ALONE, steps)]) for steps in (10, 20)]
    both = parallel(*runs)
    assert both.epsilon(DELTA).upper == runs[1].epsilon(DELTA).upper
    with pytest.raises(ParameterError, match="the largest ε holds for all"):
        privacy_card(both, DELTA)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="the largest ε holds for all"):
        statement(both.epsilon(DELTA), both, epsilon="", delta="")  # type: ignore[arg-type]
    with pytest.raises(NotCoveredError, match="judge each run on disjoint data by itself"):
        read_statement(json.dumps({"parallel": [], "delta": DELTA, "epsilon": {"upper": 1.0}}))
