"""Two sets that every Python carries: from which package a docstring is, and functions with their summary lines."""

from __future__ import annotations

import ast
import hashlib
import re
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

# Of these, the ones with enough docstrings are the classes.
PACKAGES = (
    *("asyncio", "decimal", "email", "http", "idlelib", "importlib", "logging", "mailbox", "multiprocessing"),
    *("tarfile", "tkinter", "turtle", "unittest", "urllib", "xml"),
)
LEAST_SAMPLES = 40  # docstrings of a package that is a class
MASK = "module"
_NAMES = "|".join((*PACKAGES, "idle"))  # IDLE is how idlelib calls itself
_NAMED = re.compile(rf"\w*(?:{_NAMES})\w*", re.IGNORECASE)
_TESTS = frozenset(("test", "tests", "idle_test"))
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Docstring(NamedTuple):
    """A text, the package it is from, the split it belongs to, and the first module that has it."""

    text: str
    package: str
    split: str
    module: str


@cache
def docstrings() -> tuple[Docstring, ...]:
    """Collect docstrings of the running standard library, without duplicates.

    Sources are parsed, nothing is imported. Runs of white space become one space. Every word that contains the name of
    a package is replaced by "module", in all texts, so that neither the name nor the mask reveals the package. A text
    that then occurs twice in a package is kept once; a text that occurs in two packages is dropped. The split follows
    from a hash of the masked text: eight tenths for training, one each for validation and test.

    The result depends on the version of Python, and a little on its packager: a package that is not installed, or has
    too few docstrings, is no class.

    Returns
    -------
    tuple of Docstring
        In the order of packages and texts, so the same on every machine with the same sources.

    Examples
    --------
    >>> samples = docstrings()
    >>> len(samples) > 2000, len({sample.package for sample in samples}) >= 10
    (True, True)
    >>> any("asyncio" in sample.text.lower() for sample in samples)
    False
    """
    owners: dict[str, set[str]] = {}
    modules: dict[str, str] = {}
    for package, module, node in _documented():
        text = masked(ast.get_docstring(node) or "")
        if sum(map(str.isalpha, text)) > 19 and text.isprintable():  # a lone surrogate is no text
            owners.setdefault(text, set()).add(package)
            modules[text] = min(module, modules.get(text, module))
    single = sorted((min(packages), text) for text, packages in owners.items() if len(packages) == 1)
    kept = [Docstring(text, package, split_of(text), modules[text]) for package, text in single]
    counts = {package: sum(sample.package == package for sample in kept) for package in PACKAGES}
    return tuple(sample for sample in kept if counts[sample.package] >= LEAST_SAMPLES)


@cache
def summaries() -> tuple[tuple[str, str, str], ...]:
    """Collect functions of these packages as (source, summary line, module), without duplicates.

    Every function is included whose docstring's first paragraph is one line. The source has no docstring, comments or
    decorators, and is cut after 600 characters. Duplicates are kept once.

    Examples
    --------
    >>> samples = summaries()
    >>> len(samples) > 1000, all(source.startswith(("def ", "async def ")) for source, _, _ in samples)
    (True, True)
    >>> any(summary in source for source, summary, _ in samples[:100])
    False
    """
    found: dict[str, tuple[str, str]] = {}
    for _, module, node in _documented():
        paragraph = (ast.get_docstring(node) or "").partition("\n\n")[0]
        if not isinstance(node, _FUNCTIONS) or sum(map(str.isalpha, paragraph)) <= 9:
            continue
        node.body, node.decorator_list = node.body[1:] or [ast.Pass()], []
        text = ast.unparse(node)[:600]
        if all(line.isprintable() for line in (paragraph, *text.split("\n"))):
            found.setdefault(text, (paragraph, module))
    return tuple((text, *found[text]) for text in sorted(found))


def masked(text: str) -> str:
    r"""Return the text on one line with every word that names one of the packages replaced.

    Examples
    --------
    >>> masked("Run in an  asyncio\nloop; see BaseHTTPServer.")
    'Run in an module loop; see module.'
    """
    return " ".join(_NAMED.sub(MASK, text).split())


def split_of(text: str) -> str:
    """Return the split that a text belongs to: eight tenths for training, one each for validation and test."""
    tenth = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 10
    return {8: "validation", 9: "test"}.get(tenth, "train")


def _documented() -> Iterator[tuple[str, str, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Parse the sources, without tests: package, module such as ``asyncio/events``, and what may have a docstring."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for package in PACKAGES:
        alone = [library / name for name in (f"_py{package}.py", f"{package}.py") if (library / name).is_file()]
        for file in [*sorted((library / package).rglob("*.py")), *alone]:
            place = file.relative_to(library)
            if _TESTS.isdisjoint(place.parts):
                for node in ast.walk(ast.parse(file.read_bytes())):
                    if isinstance(node, (ast.Module, ast.ClassDef, *_FUNCTIONS)):
                        yield package, place.with_suffix("").as_posix(), node
