"""``python -m paper_figures list | run NAME … | times | page``: published figures and tables, ours and theirs."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import get_args

from paper_figures._complete import add_up, keep, sentence
from paper_figures._needs import DATA
from paper_figures._page import PAGE, write_page
from paper_figures._pieces import raw_file
from paper_figures._published import names
from paper_figures._reproduction import RESULTS, Item, Scale, load, run
from paper_figures.items import ITEMS


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.command == "list":
        return _list(Path(options.results))
    if options.command == "times":
        return _times(Path(options.results))
    if options.command == "page":
        write_page(Path(options.out))
        return 0
    if options.data:
        os.environ[DATA] = options.data
    return _run(options.name, options.scale, options.again, Path(options.results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m paper_figures", description=__doc__.split(": ", 1)[1])
    commands = parser.add_subparsers(dest="command", required=True)
    lister = commands.add_parser("list", help="every published item and what its stored result amounts to")
    runner = commands.add_parser("run", help="measure items that have no stored result yet")
    runner.add_argument("name", nargs="*", help="all by default")
    scale_help = "by default small where an item has it; without names, paper where it has not"
    runner.add_argument("--scale", choices=get_args(Scale), help=scale_help)
    runner.add_argument("--again", action="store_true", help="also where there is a result")
    runner.add_argument("--data", metavar="FOLDER", help="where e2e/, sst2/, dart/, mnist/ and cifar-10/ lie")
    times = commands.add_parser("times", help="add up what a complete run took, and keep it for the page")
    for command in (lister, runner, times):
        command.add_argument("--results", metavar="FOLDER", default=str(RESULTS), help="where the results lie")
    page = commands.add_parser("page", help=f"write {PAGE.name}: ours and theirs side by side")
    page.add_argument("--out", default=str(PAGE))
    return parser


def _list(folder: Path) -> int:
    for name in dict.fromkeys([*ITEMS, *names()]):
        stored = load(name, folder) if name in ITEMS else None
        state = stored.state() if stored else "not run" if name in ITEMS else "no script yet"
        print(f"{name:24}{state}")
    return 0


def _times(folder: Path) -> int:
    took = add_up(folder)
    for name, item in took.items():
        print(f"{name:24}{item.scale:7}{item.wall_seconds:8.0f} s wall {item.cpu_seconds:8.0f} s CPU")
    print(sentence(took))
    keep(took)
    return 0


def _run(chosen: list[str], scale: Scale | None, again: bool, folder: Path) -> int:
    unknown = [name for name in chosen if name not in ITEMS]
    wrong = [name for name in chosen if name in ITEMS and scale and scale not in ITEMS[name].scales]
    if unknown or wrong:
        reason = f"one of {', '.join(ITEMS)}" if unknown else f"without --scale {scale}"
        print(f"paper_figures: NAME must be {reason}, got {(unknown or wrong)[0]!r}", file=sys.stderr)
        return 2
    due = [name for name in chosen or ITEMS if again or (scale and chosen) or load(name, folder) is None]
    for number, name in enumerate(due, start=1):
        item = ITEMS[name]
        used = _scale(item, scale)
        print(f"{number} of {len(due)}: {name}, {used} scale", file=sys.stderr)
        if again:
            raw_file(folder, name, used).unlink(missing_ok=True)
        stored = run(item, used, folder)
        print(f"{name}: {stored.state()} ({stored.cpu_seconds:.0f} s of processor time)")
    return 0


def _scale(item: Item, asked: Scale | None) -> Scale:
    return asked if asked in item.scales else item.default_scale


if __name__ == "__main__":
    raise SystemExit(main())
