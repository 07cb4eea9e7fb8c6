"""``python -m audits page``: writes what was found to ``docs/audits.md``, between its marks."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from audits import games, kills, mixing, mutations

PAGE = Path(__file__).parents[1] / "docs" / "audits.md"


def parts() -> dict[str, Callable[[], str]]:
    """Tables by the name of their mark; that of mixing is run, the others are as stored."""
    return {
        "mixing": lambda: mixing.table(mixing.mixing()),
        "games": games.table,
        "bugs": mutations.table,
        "kills": kills.table,
    }


def marked(text: str, name: str) -> str:
    """What stands between the marks of this name."""
    return text[slice(*_span(text, name))]


def main(arguments: list[str] | None = None) -> int:
    """Put every table in its place."""
    text = PAGE.read_text(encoding="utf-8")
    for name, make in parts().items():
        start, end = _span(text, name)
        text = f"{text[:start]}{make()}{text[end:]}"
    PAGE.write_text(text, encoding="utf-8")
    return 0


def _span(text: str, name: str) -> tuple[int, int]:
    found = re.search(rf"<!-- {name} -->\n\n(.*?)\n<!-- end -->", text, re.DOTALL)
    assert found is not None, name
    return found.span(1)


if __name__ == "__main__":
    sys.exit(main())
