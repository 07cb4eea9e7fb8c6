"""Triples as text, and the layouts of DART (arXiv:2007.02871)."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from dprmt._validation import ParameterError


def as_text(value: Any) -> str:
    """Return a cell of a table as text; triples are written ``subject : relation : object | …``.

    Examples
    --------
    >>> as_text([["Mars Hill College", "JOINED", "1973"], ["Mars Hill College", "LOCATION", "Mars Hill"]])
    'Mars Hill College : JOINED : 1973 | Mars Hill College : LOCATION : Mars Hill'
    """
    if isinstance(value, (list, tuple)) and all(isinstance(triple, (list, tuple)) for triple in value):
        return " | ".join(" : ".join(str(part).strip() for part in triple) for triple in value)
    if isinstance(value, (str, int, float)):
        return str(value).strip()
    raise ParameterError("data.inputs", type(value).__name__, "columns of strings or of triples")


def as_references(value: Any) -> list[str]:
    """Return the target texts of a cell: one string, strings, or annotations with a ``text``.

    Examples
    --------
    >>> as_references([{"source": "e2e", "text": "A pub. "}]), as_references({"text": ["A pub."]})
    (['A pub.'], ['A pub.'])
    """
    if isinstance(value, dict):
        value = value.get("text")
    if isinstance(value, str):
        return [value.strip()]
    if isinstance(value, (list, tuple)):
        texts = [entry.get("text") if isinstance(entry, dict) else entry for entry in value]
        strings = [text.strip() for text in texts if isinstance(text, str)]
        if strings and len(strings) == len(texts):
            return strings
    raise ParameterError("data.target", type(value).__name__, "a column of strings, lists of strings or annotations")


def read_dart_xml(path: Path) -> list[dict[str, Any]]:
    """Return rows of DART's XML layout, in the shape of its JSON layout.

    ``path``: A file of ``entry`` elements with ``modifiedtripleset/mtriple`` and ``lex``.
    """
    try:
        entries = ElementTree.parse(path).getroot().iter("entry")
        rows = [_row(entry) for entry in entries]
    except ElementTree.ParseError as error:
        raise ParameterError("data file", str(path), f"XML ({error})") from None
    if not rows:
        raise ParameterError("data file", str(path), "XML with entry elements")
    return rows


def _row(entry: ElementTree.Element) -> dict[str, Any]:
    triples = [[part.strip() for part in (node.text or "").split(" | ")] for node in entry.iter("mtriple")]
    return {"tripleset": triples, "annotations": [{"text": node.text or ""} for node in entry.iter("lex")]}
