"""``python -m paper_figures COMMAND``: published figures and tables, ours and theirs."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

from paper_figures._complete import add_up, keep, sentence
from paper_figures._needs import DATA
from paper_figures._page import PAGE, details, write_page
from paper_figures._pieces import forget
from paper_figures._published import names
from paper_figures._replay import replay
from paper_figures._reproduction import RESULTS, Item, Scale, load, run
from paper_figures._rows import table_of, verdict_counts
from paper_figures._sources import changed, module_of
from paper_figures.forensics import CHECKS
from paper_figures.forensics import details as check_details
from paper_figures.forensics import run as run_checks
from paper_figures.forensics import stored as stored_checks
from paper_figures.items import ITEMS
from paper_figures.long_runs import CLOSED, LAST_COMMIT, STUDIES, study, summary

_MOST_MINUTES = 525_600  # a year
_NAMED = 6  # definitions that `stale` names of an item


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.command == "study":
        if options.name in CLOSED:
            print(f"paper_figures: {options.name} is closed, its code is in commit {LAST_COMMIT}", file=sys.stderr)
            return 2
        study(options.name)(options.arguments)
        return 0
    if options.command == "forensics":
        return _forensics(options.name)
    if options.command == "show":
        return _show(options.name, Path(options.results))
    if options.command == "list":
        return _list(Path(options.results))
    if options.command == "stale":
        return _stale(Path(options.results))
    if options.command == "times":
        return _times(Path(options.results))
    if options.command == "page":
        write_page(Path(options.out))
        return 0
    if options.data:
        os.environ[DATA] = options.data
    if options.command == "replay":
        return _replay(options.name, options.pieces, options.within, options.seed, Path(options.results))
    try:
        with _ending_after(options.minutes):
            return _run(options.name, options.scale, options.again, Path(options.results))
    except KeyboardInterrupt as stop:
        print(f"paper_figures: {stop or 'stopped'}; the same command goes on (without --again)", file=sys.stderr)
        return 1


@contextmanager
def _ending_after(minutes: float | None) -> Iterator[None]:
    """An interrupt after so long, which ends a training between two steps."""
    if minutes is None:
        yield
        return
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it to what runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    former = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 60 * minutes)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def _minutes(text: str) -> float:
    value = float(text)
    if not 0 < value <= _MOST_MINUTES:
        raise argparse.ArgumentTypeError(f"must be in (0, {_MOST_MINUTES:,}], got {text!r}")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text!r}")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m paper_figures", description=__doc__.split(": ", 1)[1])
    commands = parser.add_subparsers(dest="command", required=True)
    checker = commands.add_parser("forensics", help="compute what follows from printed numbers alone, in seconds")
    checker.add_argument("name", nargs="*", help="all by default")
    shower = commands.add_parser("show", help="print all rows of stored items or checks, and why some differ")
    shower.add_argument("name", nargs="+", help="items or checks, as in list and forensics")
    lister = commands.add_parser("list", help="every published item and what its stored result amounts to")
    runner = commands.add_parser("run", help="measure items that have no stored result yet")
    runner.add_argument("name", nargs="*", help="all by default")
    scale_help = "by default small where an item has it; without names, paper where it has not"
    runner.add_argument("--scale", choices=get_args(Scale), help=scale_help)
    runner.add_argument("--again", action="store_true", help="also where there is a result")
    stop_help = "stop after so long by the clock, a training between two steps: the same command goes on (status 1)"
    runner.add_argument("--minutes", type=_minutes, metavar="N", help=stop_help)
    runner.add_argument("--data", metavar="FOLDER", help="where e2e/, sst2/, dart/, mnist/ and cifar-10/ lie")
    replayer = commands.add_parser("replay", help="measure a few stored pieces again: do they still agree? (status 1)")
    replayer.add_argument("name", nargs="+", help="items whose stored result is whole and has pieces")
    replayer.add_argument("--pieces", type=_count, default=1, metavar="N", help="of each (default: 1)")
    within_help = "largest relative difference that agrees; a training that diverges amplifies rounding (default: 1e-4)"
    replayer.add_argument("--within", type=float, default=1e-4, metavar="X", help=within_help)
    replayer.add_argument("--seed", type=int, default=0, help="draws them (default: 0)")
    replayer.add_argument("--data", metavar="FOLDER", help="as for run")
    studies = commands.add_parser("study", help="a training with options of its own, longer than an item")
    studies.add_argument("name", choices=[*STUDIES, *CLOSED])
    studies.add_argument("arguments", nargs=argparse.REMAINDER, help="--help names them")
    times = commands.add_parser("times", help="add up what a complete run took, and keep it for the page")
    stale = commands.add_parser("stale", help="stored results that are older than their items' own code (status 1)")
    for command in (lister, shower, runner, replayer, times, stale):
        command.add_argument("--results", metavar="FOLDER", default=str(RESULTS), help="where the results lie")
    page = commands.add_parser("page", help=f"write {PAGE.name}: what became of every item")
    page.add_argument("--out", default=str(PAGE))
    return parser


def _forensics(chosen: list[str]) -> int:
    unknown = [name for name in chosen if name not in CHECKS]
    if unknown:
        print(f"paper_figures: NAME must be one of {', '.join(CHECKS)}, got {unknown[0]!r}", file=sys.stderr)
        return 2
    for name, kept in run_checks(CHECKS[name] for name in chosen or CHECKS).items():
        print(f"{name}: {verdict_counts(kept.rows)} ({kept.cpu_seconds:.0f} s of processor time)")
        if chosen:
            print("\n".join(table_of(kept.rows)))
    return 0


def _show(chosen: list[str], folder: Path) -> int:
    checks = stored_checks()
    results = {name: load(name, folder) for name in ITEMS if name in chosen}
    for name in chosen:
        if stored := results.get(name):
            print(details(name, stored))
        elif name in CHECKS and name in checks:
            print(check_details(CHECKS[name], checks[name]))
        else:
            print(f"paper_figures: NAME must be an item or a check with a stored result, got {name!r}", file=sys.stderr)
            return 2
    return 0


def _list(folder: Path) -> int:
    for name in dict.fromkeys([*ITEMS, *names()]):
        stored = load(name, folder) if name in ITEMS else None
        state = stored.state() if stored else "not run" if name in ITEMS else "in `forensics`"
        print(f"{name:24}{state}")
    for name in STUDIES:
        print(f"study {name:18}{summary(name)}")
    return 0


def _stale(folder: Path) -> int:
    results = {name: stored for name in ITEMS if (stored := load(name, folder)) is not None}
    recorded = {name: result.code for name, result in results.items() if result.code}
    known = {name: changed(code, module_of(ITEMS[name].measure)) for name, code in recorded.items()}
    older = {name: files for name, files in known.items() if files}
    for name, files in older.items():
        more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
        print(f"{name:24}changed since: {', '.join(files[:_NAMED])}{more}")
    unknown = len(results) - len(known)
    print(f"{len(older)} of {len(known)} results are older than their code; of {unknown} it was not recorded")
    return int(bool(older))


def _replay(chosen: list[str], pieces: int, within: float, seed: int, folder: Path) -> int:
    results = {name: load(name, folder) if name in ITEMS else None for name in chosen}
    whole = {name: stored for name, stored in results.items() if stored and not stored.found.stopped}
    if wrong := [name for name in chosen if name not in whole]:
        print(f"paper_figures: NAME must be an item whose stored result is whole, got {wrong[0]!r}", file=sys.stderr)
        return 2
    apart = 0
    for name, stored in whole.items():
        try:
            found = replay(ITEMS[name], stored.scale, folder, pieces, seed)
        except ValueError as error:
            print(f"paper_figures: {error}", file=sys.stderr)
            return 2
        for piece in found:
            agrees = piece.apart <= within
            apart += not agrees
            print(f"{name}, {piece.name}: {'agrees' if agrees else 'differs'}, {piece.apart:.1g} apart")
    return int(bool(apart))


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
    for name in chosen:
        kept = None if name in due else load(name, folder)
        if kept is not None:
            print(f"{name}: {kept.state()}, as stored; --again measures it again")
    for number, name in enumerate(due, start=1):
        item = ITEMS[name]
        used = _scale(item, scale)
        print(f"{number} of {len(due)}: {name}, {used} scale", file=sys.stderr)
        if again:
            forget(folder, name, used)
        stored = run(item, used, folder)
        print(f"{name}: {stored.state()} ({stored.cpu_seconds:.0f} s of processor time)")
    return 0


def _scale(item: Item, asked: Scale | None) -> Scale:
    return asked if asked in item.scales else item.default_scale


if __name__ == "__main__":
    raise SystemExit(main())
