"""A table of words: this package's own lines, and what other installed packages offer as entry points."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from dprmt._validation import ParameterError

Entry = TypeVar("Entry")


class Words(UserDict[str, Entry]):
    """Words by name: own lines, which nothing from outside replaces, and others, loaded when they are asked for.

    ``group``: the group of entry points whose names are registered and whose objects are of ``kind``.
    """

    def __init__(self, group: str, kind: type[object], own: dict[str, Entry]) -> None:
        super().__init__(own)
        self.group, self._kind = group, kind

    def __missing__(self, word: str) -> Entry:
        offers = self._offers(word)
        if not offers:
            raise KeyError(word)
        name, package = f"the word {word!r} of {self.group}", _package(offers[0])
        if len(offers) > 1:
            raise ParameterError(name, sorted(map(_package, offers)), "offered by one installed package")
        try:
            entry = offers[0].load()
        except (ImportError, AttributeError) as error:
            raise ParameterError(name, offers[0].value, f"importable from {package} ({error})") from error
        if not isinstance(entry, self._kind):
            raise ParameterError(name, entry, f"a dprmt.training.recipes.{self._kind.__name__} in {package}")
        return entry  # type: ignore[return-value]  # own tables may have None besides, entry points not

    def __contains__(self, word: object) -> bool:
        return word in self.data or (isinstance(word, str) and bool(self._offers(word)))

    def __iter__(self) -> Iterator[str]:
        yield from self.data
        yield from sorted(entry_points(group=self.group).names - self.data.keys())

    def __len__(self) -> int:
        return len(list(iter(self)))

    def source(self, word: str) -> str | None:
        """Return the package and version that a word comes from; None for a line of the table's own."""
        return None if word in self.data else _package(self._offers(word)[0])

    def _offers(self, word: str) -> list[EntryPoint]:
        """List the entries of each installed package once, even if its folder is twice on the path."""
        offers = entry_points(group=self.group, name=word)
        return list({(_package(offer), offer.value): offer for offer in offers}.values())


def _package(offer: EntryPoint) -> str:
    return "an unnamed package" if offer.dist is None else f"{offer.dist.name} {offer.dist.version}"
