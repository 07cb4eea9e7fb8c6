"""Plain field English: docstrings open with nouns or with what is done, and one word is used for a thing."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.house.import_graph import ROOT

# A first line that begins so says which question is answered, and no reader of an index sees the answer's kind.
QUESTIONS = {"how", "what", "whether", "when", "where", "which", "who", "whose", "why", "if", "in", "by", "of", "from"}
# In the field: public probes, small-loss part, predict, fixed, expensive, shows, per-sample vmap, zero, wrong; except
# for, continue or resume, free, at random, at no cost, detected; a sample is what others call an example or a record.
HOUSE_WORDS = re.compile(
    r"\b(light steps?|foretells?|foretold|mended|dear(er|est)?|betrays?|taken whole|nought|go astray"
    r"|but\s+for|(go|goes|gone)\s+on\s+with|lets?\s+go\s+of|now\s+and\s+then|as\s+ever|for\s+nothing|found\s+out"
    r"|(known|revealed)[ _]?probes|shared probes|probes (known|revealed)|probe.sharing"
    r"|per-example|(one|each|every) example|number\s+of\s+examples|examples\s+of\s+(one|a)\s+person|loudest)\b"
    r"|--examples\b|\d probes, (batch|sample)\b(?!es)|(?<!squared-)\bnorm ratios?\b",
    re.IGNORECASE,
)
ANOTHER_WORD = re.compile(r"""["'](absent|omitted|not given|unset)[ :"']""")  # of an argument that is "left out"
OWN_PLACES = {"CHANGELOG.md", "tests/house/test_language.py"}  # old names beside new ones; this list


def opens_with_a_question(docstring: str) -> bool:
    return re.split(r"\W", docstring.strip(), maxsplit=1)[0].lower() in QUESTIONS


def house_words(text: str) -> list[str]:
    return [found.group() for found in HOUSE_WORDS.finditer(text)]


def written_by_hand() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.py", "*.md", "*.ipynb", "*.toml"], cwd=ROOT, capture_output=True)
    names = listed.stdout.decode().splitlines() or pytest.skip("a checkout is needed to know which files are kept")
    return [ROOT / name for name in names if name not in OWN_PLACES and (ROOT / name).exists()]


def test_first_lines_name_a_thing_or_say_what_is_done() -> None:
    pytest.importorskip("opacus")
    from tests.house.public_definitions import public_definitions

    public = public_definitions()
    assert [place for place, found in public.items() if opens_with_a_question(found.__doc__ or "")] == []


def test_house_words_are_not_used() -> None:
    found = {path: house_words(path.read_text(encoding="utf-8")) for path in written_by_hand()}
    assert {str(path.relative_to(ROOT)): words for path, words in found.items() if words} == {}


def test_errors_have_one_word_for_what_must_be_left_out() -> None:
    found = {path: ANOTHER_WORD.findall(path.read_text(encoding="utf-8")) for path in (ROOT / "dprmt").rglob("*.py")}
    assert {str(path.relative_to(ROOT)): words for path, words in found.items() if words} == {}
    assert ANOTHER_WORD.search('ParameterError("data.unit", unit, "absent with data.limit")')


@pytest.mark.parametrize("docstring", ["How norms are taken.", "\n    Whether it is.", "In equal ratios, over V."])
def test_a_question_is_seen(docstring: str) -> None:
    assert opens_with_a_question(docstring)
    assert not opens_with_a_question("Record of how norms are taken.")


@pytest.mark.parametrize(
    "text",
    [
        "Light steps of a run",
        "twice as dear",
        "32 known probes",
        "the norm ratio X",
        "all but\nfor one",
        "per-example clipping",
        "the number of\nexamples",
        "dprmt noise --examples 9",
        "ε, 32 probes, batch (a)",
    ],
)
def test_a_house_word_is_seen(text: str) -> None:
    assert len(house_words(text)) == 1
    assert (
        house_words("squared-norm ratios of public probes, at which noise is expensive; recommended, not but fortunate")
        == []
    )
