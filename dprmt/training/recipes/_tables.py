"""A table of words: this package's own lines, and what other installed packages offer as entry points."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from dprmt._validation import ParameterError

Entry = TypeVar("Entry")


class Words(MutableMapping[str, Entry], Generic[Entry]):
    """Words by name: own lines, which nothing from outside replaces, and others, loaded when they are asked for.

    ``group`` is that of the entry points, whose names are words and whose objects are of ``kind``.
    """

    def __init__(self, group: str, kind: type[object], own: dict[str, Entry]) -> None:
        self.group, self._kind, self._own = group, kind, own

    def __getitem__(self, word: str) -> Entry:
        if word in self._own:
            return self._own[word]
        offers = self._offers(word)
        if not offers:
            raise KeyError(word)
        return self._loaded(word, offers)

    def __contains__(self, word: object) -> bool:
        return word in self._own or (isinstance(word, str) and bool(self._offers(word)))

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from sorted(entry_points(group=self.group).names - self._own.keys())

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __setitem__(self, word: str, entry: Entry) -> None:
        self._own[word] = entry

    def __delitem__(self, word: str) -> None:
        del self._own[word]

    def source(self, word: str) -> str | None:
        """The package and version that a word comes from; None for a line of the table's own."""
        return None if word in self._own else _package(self._offers(word)[0])

    def _offers(self, word: str) -> list[EntryPoint]:
        """Of one installed package: a folder that is twice on the path is one."""
        return list(
            {(_package(offer), offer.value): offer for offer in entry_points(group=self.group, name=word)}.values()
        )

    def _loaded(self, word: str, offers: list[EntryPoint]) -> Entry:
        name = f"the word {word!r} of {self.group}"
        if len(offers) > 1:
            raise ParameterError(name, sorted(map(_package, offers)), "offered by one installed package")
        try:
            entry = offers[0].load()
        except (ImportError, AttributeError) as error:
            allowed = f"importable from {_package(offers[0])} ({error})"
            raise ParameterError(name, offers[0].value, allowed) from error
        if not isinstance(entry, self._kind):
            raise ParameterError(
                name, entry, f"a dprmt.training.recipes.{self._kind.__name__} in {_package(offers[0])}"
            )
        return entry  # type: ignore[return-value]  # own tables may have None besides, entry points not


def _package(offer: EntryPoint) -> str:
    return "an unnamed package" if offer.dist is None else f"{offer.dist.name} {offer.dist.version}"
