"""``python -m audits``: every game, of one step and of twenty, and every planted bug; minutes to an hour."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from audits.faults import planted, repaired
from audits.game import Game
from audits.settings import all_games
from audits.verdict import DELTAS, TIGHT, Verdict, judge

_TWENTY = ("exact, clipped", "ghost, clipped", "hutchinson, public probes", "hutchinson, secret probes", "exact, LoRA")
# A canary that is not clipped, or whose norm hardly varies, is not the worst one: nothing is asked of its share.
_WEAK = ("not clipped", "spread", "q = 0.3", "LoRA", "hutch++", "two layers", "bias")


def main(arguments: list[str] | None = None) -> int:
    """Print a line a game; 1 if a claim is refuted, a worst canary is weak, or a bug is missed."""
    parser = argparse.ArgumentParser(prog="python -m audits", description=__doc__)
    parser.add_argument("--trials", type=int, default=4000, help="in each world, of one step (default 4000)")
    parser.add_argument("--only", default="", help="part of the names to play")
    parser.add_argument("--out", type=Path, help="write the verdicts as JSON")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    lines, good = [], True
    for name, game, trials in _plan(options.trials):
        if options.only not in name:
            continue
        verdict = judge(game, trials)
        fine = _as_it_should_be(name, verdict)
        good &= fine
        lines.append({"name": name, "trials": trials, "as_it_should_be": fine, **asdict(verdict)})
        print(_line(name, verdict, fine), flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps({"deltas": DELTAS, "games": lines}, indent=1) + "\n")
    return 0 if good else 1


def _plan(trials: int) -> list[tuple[str, Game, int]]:
    one = [(f"1 step: {game.name}", game, trials) for game in all_games(1)]
    twenty = [(f"20 steps: {game.name}", game, trials // 4) for game in all_games(20) if game.name in _TWENTY]
    bugs: list[tuple[str, Game, int]] = []
    for bug, game in planted().items():
        bugs += [(f"bug: {bug}", game, trials // 4), (f"without it: {bug}", repaired(game, bug), trials // 4)]
    return [*one, *twenty, *bugs]


def _as_it_should_be(name: str, verdict: Verdict) -> bool:
    if name.startswith("bug"):
        return verdict.broken or verdict.other_law or verdict.share < TIGHT / 2
    if verdict.broken or verdict.other_law:
        return False
    return verdict.share >= TIGHT or not name[0].isdigit() or any(word in name for word in _WEAK)


def _line(name: str, verdict: Verdict, fine: bool) -> str:
    pairs: Any = zip(DELTAS, verdict.shown, verdict.claimed, strict=True)
    shares = "  ".join(f"δ={delta:g}: {shown:.2f} of {claimed:.2f}" for delta, shown, claimed in pairs)
    law = "" if verdict.law is None else f"  law p={verdict.law:.2g}"
    found = "refuted" if verdict.broken else "other law" if verdict.other_law else f"{100 * verdict.share:.0f} %"
    mark = " " if fine else "!"
    return f"{mark} {name:62s} {found:10s} {shares}  μ {verdict.mu:.2f} of {verdict.claimed_mu:.2f}{law}"


if __name__ == "__main__":
    sys.exit(main())
