"""A text generation set that every Python carries: the source of a function, and the summary line of its docstring."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from dprmt.training.data._docstrings import PACKAGES, library_files, module_of, split_of

_LEAST_LETTERS = 10
_LONGEST = 600  # most characters of source


class Summary(NamedTuple):
    """A function with its summary line, and the first module that has it."""

    source: str
    summary: str
    split: str
    module: str


@cache
def summaries() -> tuple[Summary, ...]:
    """Collect functions of the standard library with their summary lines, without duplicates.

    The packages are those used for classification of docstrings. Every function is included whose docstring's first
    paragraph is one line. The source has no docstring, comments or decorators, and is cut after 600 characters.
    Duplicates are kept once; a hash of the source determines the split.

    Examples
    --------
    >>> samples = summaries()
    >>> len(samples) > 1000, all(sample.source.startswith(("def ", "async def ")) for sample in samples)
    (True, True)
    >>> any(sample.summary in sample.source for sample in samples[:100])
    False
    """
    found: dict[str, str] = {}
    modules: dict[str, str] = {}
    for sources in PACKAGES.values():
        for source in sources:
            for file in library_files(source):
                for text, summary in _functions_of(file):
                    found.setdefault(text, summary)
                    modules.setdefault(text, module_of(file))
    return tuple(Summary(text, found[text], split_of(text), modules[text]) for text in sorted(found))


def _functions_of(file: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            paragraph = (ast.get_docstring(node) or "").partition("\n\n")[0]
            node.body, node.decorator_list = node.body[1:] or [ast.Pass()], []
            text = ast.unparse(node)[:_LONGEST]
            if sum(map(str.isalpha, paragraph)) >= _LEAST_LETTERS and paragraph.isprintable() and _is_text(text):
                yield text, paragraph


def _is_text(source: str) -> bool:
    # A lone surrogate, possible in a string literal, is no text.
    return all(line.isprintable() for line in source.split("\n"))
