"""``python -m paper_figures list | run NAME … | page``: the published figures and tables, ours beside theirs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from paper_figures._page import PAGE, write_page
from paper_figures._published import names
from paper_figures._reproduction import load, run
from paper_figures.items import ITEMS


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.command == "list":
        return _list()
    if options.command == "page":
        write_page(Path(options.out))
        return 0
    return _run(options.name or list(ITEMS), options.scale, options.again)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m paper_figures", description=__doc__.split(": ", 1)[1])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="every published item and what its stored result amounts to")
    runner = commands.add_parser("run", help="measure items that have no stored result yet")
    runner.add_argument("name", nargs="*", help="all by default")
    runner.add_argument("--scale", choices=("small", "paper"), help="by default the largest that an item has here")
    runner.add_argument("--again", action="store_true", help="also where there is a result")
    page = commands.add_parser("page", help=f"write {PAGE.name}: ours and theirs side by side")
    page.add_argument("--out", default=str(PAGE))
    return parser


def _list() -> int:
    for name in dict.fromkeys([*ITEMS, *names()]):
        stored = load(name) if name in ITEMS else None
        state = stored.state() if stored else "not run" if name in ITEMS else "no script yet"
        print(f"{name:24}{state}")
    return 0


def _run(chosen: list[str], scale: str | None, again: bool) -> int:
    from rich.progress import track

    unknown = [name for name in chosen if name not in ITEMS]
    wrong = [name for name in chosen if name in ITEMS and scale and scale not in ITEMS[name].scales]
    if unknown or wrong:
        reason = f"one of {', '.join(ITEMS)}" if unknown else f"without --scale {scale}"
        print(f"paper_figures: NAME must be {reason}, got {(unknown or wrong)[0]!r}", file=sys.stderr)
        return 2
    due = [name for name in chosen if again or load(name) is None]
    for name in track(due, description="measuring"):
        item = ITEMS[name]
        stored = run(item, scale or item.scales[-1])
        print(f"{name}: {stored.state()} ({stored.wall_seconds:.0f} s)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
