"""A text classification set that every Python carries: which package of the standard library a docstring is from."""

from __future__ import annotations

import ast
import hashlib
import re
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

# Of these, the ones with enough docstrings are the classes. Their sources are a package or the modules named.
PACKAGES: dict[str, tuple[str, ...]] = {
    "asyncio": ("asyncio",),
    "decimal": ("_pydecimal.py", "decimal.py"),
    "email": ("email",),
    "http": ("http",),
    "idlelib": ("idlelib",),
    "importlib": ("importlib",),
    "logging": ("logging",),
    "mailbox": ("mailbox.py",),
    "multiprocessing": ("multiprocessing",),
    "tarfile": ("tarfile.py",),
    "tkinter": ("tkinter",),
    "turtle": ("turtle.py",),
    "unittest": ("unittest",),
    "urllib": ("urllib",),
    "xml": ("xml",),
}
MASK = "module"
LEAST_SAMPLES = 40  # least number of samples per class
_NAMES = "|".join((*PACKAGES, "idle"))  # IDLE is how idlelib calls itself
_NAMED = re.compile(rf"\w*(?:{_NAMES})\w*", re.IGNORECASE)
_TESTS = frozenset(("test", "tests", "idle_test"))


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
    for package, sources in PACKAGES.items():
        for module, text in ((module, text) for source in sources for module, text in _texts(source)):
            owners.setdefault(text, set()).add(package)
            modules[text] = min(module, modules.get(text, module))
    single = sorted((min(packages), text) for text, packages in owners.items() if len(packages) == 1)
    kept = [Docstring(text, package, split_of(text), modules[text]) for package, text in single]
    counts = {package: sum(sample.package == package for sample in kept) for package in PACKAGES}
    return tuple(sample for sample in kept if counts[sample.package] >= LEAST_SAMPLES)


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


def library_files(source: str) -> Iterator[Path]:
    """List the files of a package or module of the standard library, without tests."""
    path = Path(sysconfig.get_paths()["stdlib"]) / source
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.is_file() else []:
        if _TESTS.isdisjoint(file.relative_to(path.parent).parts):
            yield file


def module_of(file: Path) -> str:
    """Return a file's name in the library, such as ``asyncio/events``."""
    return file.relative_to(sysconfig.get_paths()["stdlib"]).with_suffix("").as_posix()


def _texts(source: str) -> Iterator[tuple[str, str]]:
    for file in library_files(source):
        for text in _docstrings_of(file):
            yield module_of(file), text


def _docstrings_of(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = masked(ast.get_docstring(node) or "")
            # A lone surrogate, possible in a string literal, is no text.
            if sum(map(str.isalpha, text)) > 19 and text.isprintable():
                yield text
