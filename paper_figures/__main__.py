"""``python -m paper_figures COMMAND``: published figures and tables, ours and theirs."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from dprmt._files import append_line, strict_json, write_whole
from paper_figures._needs import DATA
from paper_figures._page import PAGE, details, write_page
from paper_figures._pieces import UsageError, forget, raw_file
from paper_figures._published import names
from paper_figures._replay import replay
from paper_figures._reproduction import RESULTS, Scale, load, run, save, table_of, verdict_counts
from paper_figures._sources import changed, digests, place_of
from paper_figures.forensics import CHECKS
from paper_figures.forensics import details as check_details
from paper_figures.forensics import run as run_checks
from paper_figures.forensics import stored as stored_checks
from paper_figures.items import ITEMS

COMPLETE = RESULTS / "raw" / "complete-run.json"
"""What one complete run took, item by item: kept by the command ``times``."""
_MOST_MINUTES = 525_600  # a year
_NAMED = 6  # definitions that `stale` names of an item


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if getattr(options, "data", None):
        os.environ[DATA] = options.data
    try:
        status: int = options.carry_out(options)
    except UsageError as error:
        print(f"paper_figures: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"paper_figures: {stop or 'stopped'}; the same command goes on (without --again)", file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m paper_figures", description=__doc__.split(": ", 1)[1])
    commands = parser.add_subparsers(dest="command", required=True)

    def command(carry_out: Any, name: str, text: str, *, chosen: str = "", results: bool = True) -> Any:
        added = commands.add_parser(name, help=text)
        added.set_defaults(carry_out=carry_out)
        if chosen:
            added.add_argument("name", nargs=chosen, help="all by default" if chosen == "*" else "as in `list`")
        if results:
            added.add_argument("--results", metavar="FOLDER", type=Path, default=RESULTS, help="where the results lie")
        return added

    text = "compute what follows from printed numbers alone, in seconds"
    command(_forensics, "forensics", text, chosen="*", results=False)
    command(_show, "show", "print all rows of stored items or checks, and why some differ", chosen="+")
    command(_list, "list", "every published item and what its stored result amounts to")
    runner = command(_run, "run", "measure items that have no stored result yet", chosen="*")
    scale_help = "by default small where an item has it; without names, paper where it has not"
    runner.add_argument("--scale", choices=get_args(Scale), help=scale_help)
    runner.add_argument("--again", action="store_true", help="also where there is a result")
    stop_help = "stop after so long by the clock, a training between two steps: the same command goes on (status 1)"
    runner.add_argument("--minutes", type=_minutes, metavar="N", help=stop_help)
    text = "measure a few stored pieces again: do they still agree? (status 1)"
    replayer = command(_replay, "replay", text, chosen="+")
    replayer.add_argument("--pieces", type=_count, default=1, metavar="N", help="of each item (default: 1)")
    within_help = "largest relative difference that agrees; a training that diverges amplifies rounding (default: 1e-4)"
    replayer.add_argument("--within", type=float, default=1e-4, metavar="X", help=within_help)
    replayer.add_argument("--seed", type=int, default=0, help="draws them (default: 0)")
    keep_help = "where all of an item agree, count its result as one of the present code"
    replayer.add_argument("--keep", action="store_true", help=keep_help)
    for one in (runner, replayer):
        one.add_argument("--data", metavar="FOLDER", help="where e2e/, sst2/, dart/, mnist/ and cifar-10/ lie")
    command(_times, "times", "add up what a complete run took, and keep it for the page")
    command(_stale, "stale", "stored results that are older than their items' own code (status 1)")
    page = command(_page, "page", f"write {PAGE.name}: what became of every item", results=False)
    page.add_argument("--out", type=Path, default=PAGE)
    return parser


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


def _known(chosen: list[str], among: Mapping[str, object], allowed: str = "") -> None:
    for name in chosen:
        if name not in among:
            raise UsageError(f"NAME must be {allowed or 'one of ' + ', '.join(among)}, got {name!r}")


def _forensics(options: Any) -> int:
    _known(options.name, CHECKS)
    for name, kept in run_checks(CHECKS[name] for name in options.name or CHECKS).items():
        print(f"{name}: {verdict_counts(kept.rows)} ({kept.cpu_seconds:.0f} s of processor time)")
        if options.name:
            print("\n".join(table_of(kept.rows)))
    return 0


def _show(options: Any) -> int:
    checks = stored_checks()
    results = {name: stored for name in ITEMS if (stored := load(name, options.results))}
    _known(options.name, {**results, **checks}, "an item or a check with a stored result")
    for name in options.name:
        print(details(name, results[name]) if name in results else check_details(CHECKS[name], checks[name]))
    return 0


def _list(options: Any) -> int:
    for name in dict.fromkeys([*ITEMS, *names()]):
        stored = load(name, options.results) if name in ITEMS else None
        state = stored.state() if stored else "not run" if name in ITEMS else "in `forensics`"
        print(f"{name:24}{state}")
    return 0


def _stale(options: Any) -> int:
    results = {name: stored for name in ITEMS if (stored := load(name, options.results)) is not None}
    recorded = {name: result.code for name, result in results.items() if result.code}
    known = {name: changed(code, place_of(ITEMS[name].measure)) for name, code in recorded.items()}
    older = {name: files for name, files in known.items() if files}
    for name, files in older.items():
        more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
        print(f"{name:24}changed since: {', '.join(files[:_NAMED])}{more}")
    unknown = len(results) - len(known)
    print(f"{len(older)} of {len(known)} results are older than their code; of {unknown} it was not recorded")
    return int(bool(older))


def _replay(options: Any) -> int:
    results = {name: load(name, options.results) if name in ITEMS else None for name in options.name}
    whole = {name: stored for name, stored in results.items() if stored and not stored.found.stopped}
    _known(options.name, whole, "an item whose stored result is whole")
    apart = 0
    for name, stored in whole.items():
        found = replay(ITEMS[name], stored.scale, options.results, options.pieces, options.seed)
        for piece in found:
            agrees = piece.apart <= options.within
            print(f"{name}, {piece.name}: {'agrees' if agrees else 'differs'}, {piece.apart:.1g} apart")
        differs = sum(piece.apart > options.within for piece in found)
        apart += differs
        if options.keep and not differs:
            said = f"{len(found)} pieces, at most {max(piece.apart for piece in found):.1g} apart"
            code = digests(place_of(ITEMS[name].measure))
            append_line(raw_file(options.results, name, stored.scale), {"name": "code", "code": code})
            save(replace(stored, code=code, replayed=said), options.results)
    return int(bool(apart))


def _times(options: Any) -> int:
    results = {name: stored for name in ITEMS if (stored := load(name, options.results)) and not stored.found.missing}
    for name, item in results.items():
        print(f"{name:24}{item.scale:7}{item.wall_seconds:8.0f} s wall {item.cpu_seconds:8.0f} s CPU")
    processor = sum(item.cpu_seconds for item in results.values()) / 60
    print(f"{len(results)} of {len(ITEMS)} items, {processor:.0f} minutes of processor time")
    fields = ("scale", "wall_seconds", "cpu_seconds")
    took = {name: {field: getattr(item, field) for field in fields} for name, item in results.items()}
    write_whole(COMPLETE, strict_json(took, indent=1) + "\n")
    return 0


def complete_run() -> dict[str, dict[str, Any]]:
    """What is kept of the complete run."""
    took: dict[str, dict[str, Any]] = json.loads(COMPLETE.read_text(encoding="utf-8"))
    return took


def _page(options: Any) -> int:
    write_page(options.out)
    return 0


def _run(options: Any) -> int:
    scale, chosen, folder = options.scale, options.name, options.results
    _known(chosen, ITEMS)
    if scale:
        _known(chosen, {name: item for name, item in ITEMS.items() if scale in item.scales}, f"without --scale {scale}")
    due = [name for name in chosen or ITEMS if options.again or (scale and chosen) or load(name, folder) is None]
    for name in chosen:
        kept = None if name in due else load(name, folder)
        if kept is not None:
            print(f"{name}: {kept.state()}, as stored; --again measures it again")
    with _ending_after(options.minutes):
        for number, name in enumerate(due, start=1):
            item = ITEMS[name]
            used = scale if scale in item.scales else item.default_scale
            print(f"{number} of {len(due)}: {name}, {used} scale", file=sys.stderr)
            if options.again:
                forget(folder, name, used)
            stored = run(item, used, folder)
            print(f"{name}: {stored.state()} ({stored.cpu_seconds:.0f} s of processor time)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
