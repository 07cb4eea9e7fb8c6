"""Count idioms that make prose hard to read.

``python -m tests.docs.prose`` writes the counts that pages may not exceed. Code, tables, headings, formulas and
comments are not prose. `CONTRIBUTING.md` has the style guide.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMITS = Path(__file__).with_suffix(".json")
RULES = {
    "Of opens a sentence": r"^Of (?!course)",
    "Who or What opens a sentence": r"^(?:Who(?:ever|se)? |What (?!is |are |do(?:es)? |if |can |should )[a-z`*])",
    "of its own": r"\bof (?:its|their|one's|your|my|a|his) own\b",
    "that of, those of": r"\b(?:that|those) of\b",
    "indefinite people": r"\b(?:whoever|nobody|somebody|anybody|everybody)\b",
    "beside, in place of, by itself": r"\bbeside\b|\bin place of\b|\bby (?:itself|themselves)\b",
    "things that speak": r"\b(?:say|says|said|tells?|told)\b",
    "house metaphors": r"\bcoins?\b|\brooms?\b|\ba look\b|\blooks\b|\bways? of taking\b",
    "the paper, without its name": r"\b(?:the|its) paper(?:'s)?\b",
    "as it is": r"\bas (?:it|they) (?:is|are|stands?)\b",
    "all the same, alike, at hand, at once": r"\ball the same\b|\balike\b|\bat (?:hand|once)\b",
}
_NUMBER = re.compile(r"\[[-+\d., −]+\]|\d\s*±\s*\d|\d+[.,]\d+")
_NOT_PROSE = (r"\A---\n.*?\n---\n", r"```.*?```", r"<!--.*?-->", r"\$\$.*?\$\$")
_INLINE = (
    (r"!\[[^\]]*\]\([^)]*\)", ""),
    (r"\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])", r"\1"),
    (r"`[^`]*`", "CODE"),
    (r"\$[^$]*\$", "MATH"),
    (r"\*\*|\*|_(?=\w)", ""),
    (r"\b(e\.g|i\.e|vs|et al|cf|Eqs?|Fig|No)\.", r"\1"),
    (r"(\d)\.(\d)", r"\1,\2"),
)


def paragraphs(text: str) -> Iterator[str]:
    """Yield paragraphs and items of lists."""
    for pattern in _NOT_PROSE:
        text = re.sub(pattern, "", text, flags=re.DOTALL)
    held: list[str] = []
    for raw in [*text.split("\n"), ""]:
        line = raw.strip()
        item = re.match(r"(?:[-*]|\d+\.) ", line)
        if not line or line.startswith(("|", "#", "![", "<")) or item:
            if held:
                yield " ".join(held)
            held = [line[item.end() :]] if item else []
        else:
            held.append(line)


def sentences(text: str) -> list[str]:
    """Return the sentences of more than two words, without markup."""
    found = []
    for whole in paragraphs(text):
        paragraph = whole
        for pattern, new in _INLINE:
            paragraph = re.sub(pattern, new, paragraph)
        found += re.split(r"(?<=[.!?])\s+(?=[A-Z(«“\"‘'`*])|(?<=[.!?:])\s*$", paragraph)
    return [sentence.strip() for sentence in found if sentence and len(sentence.split()) > 2]


def words(sentence: str) -> list[str]:
    return re.findall(r"[A-Za-z][A-Za-z'’-]*|\d[\d,.]*", sentence)


def faults(text: str) -> list[tuple[str, str]]:
    """Return every fault with its sentence."""
    found = []
    for sentence in sentences(text):
        for rule, pattern in RULES.items():
            flags = 0 if pattern.startswith("^") else re.IGNORECASE
            found += [(rule, sentence)] * len(re.findall(pattern, sentence, flags))
        if len(words(sentence)) > 40:
            found.append(("more than 40 words", sentence))
        if len(_NUMBER.findall(sentence)) >= 4:
            found.append(("four or more decimals", sentence))
        if sentence.count(";") >= 2:
            found.append(("two or more semicolons", sentence))
    return found


def pages() -> dict[str, str]:
    """Return every page and the Markdown of every notebook by its path."""
    files = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "paper_figures" / "README.md"]
    found = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in files}
    for file in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
        found[str(file.relative_to(ROOT))] = "\n\n".join(texts)
    return found


if __name__ == "__main__":
    counted = {name: len(faults(text)) for name, text in pages().items()}
    LIMITS.write_text(json.dumps(counted, indent=1) + "\n")
