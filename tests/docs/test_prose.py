"""Pages do not become harder to read: counts of idioms may fall, not rise. See ``tests/docs/prose.py``."""

from __future__ import annotations

import json

import pytest

from tests.docs.prose import LIMITS, faults, pages, sentences, words

TEXTS = pages()
KNOWN = json.loads(LIMITS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", TEXTS)
def test_a_page_has_no_more_idioms_than_before(name: str) -> None:
    """A new page may have 4 in 1,000 words. If a count fell, run ``python -m tests.docs.prose``."""
    found = faults(TEXTS[name])
    listed = "\n".join(f"{rule}: {sentence}" for rule, sentence in found)
    few = 4 * sum(len(words(sentence)) for sentence in sentences(TEXTS[name])) // 1000
    assert len(found) <= KNOWN.get(name, few), f"{name}\n{listed}"


def test_limits_are_of_pages_that_exist() -> None:
    assert set(KNOWN) <= set(TEXTS)


def test_all_documents_are_short() -> None:
    """Proofs included; generated pages of the site and notebooks are not counted."""
    assert sum(len(text.split()) for name, text in TEXTS.items() if name.endswith(".md")) <= 70_000


def test_users_are_addressed() -> None:
    guides = [text for name, text in TEXTS.items() if name.startswith(("docs/how_to", "docs/concepts"))]
    found = [word.lower() for text in guides for sentence in sentences(text) for word in words(sentence)]
    assert 1000 * sum(word in ("you", "your") for word in found) / len(found) >= 8
