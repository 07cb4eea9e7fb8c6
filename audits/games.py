"""``python -m audits games``: every game, of one step and of twenty, and every planted bug."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from audits.blocks import many_games
from audits.faults import planted, repaired
from audits.published import planted_in_telemetry, published_games
from audits.settings import all_games
from audits.shards import planted_in_shards, sharded_games
from audits.table import markdown
from audits.verdict import TIGHT, Played, Verdict, judge

RESULTS = Path(__file__).parent / "results" / "games.json"
# A canary that is not clipped, or whose norm hardly varies, is not the worst one: nothing is asked of its share.
WORST = (
    "exact, clipped",
    "ghost, clipped",
    "hutchinson, public probes",
    "hutchinson, secret probes",
    "exact, LoRA",
    "exact, DP-GRAPE",
)


def main(arguments: list[str] | None = None) -> int:
    """Print a line a game; 1 if a claim is refuted, a worst canary is weak, or a bug is missed."""
    parser = argparse.ArgumentParser(prog="python -m audits games", description=__doc__)
    parser.add_argument("--trials", type=int, default=20_000, help="in each world, of one step (default 20000)")
    parser.add_argument("--only", default="", help="part of the names to play")
    parser.add_argument("--again", action="store_true", help="also what has a result")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    known, good = read_results(), True
    for name, game, trials in plan(options.trials):
        if options.only not in name:
            continue
        if options.again or known.get(name, {}).get("trials") != trials:
            verdict = judge(game, trials)
            known = read_results()  # another process may have added to it
            known[name] = {"trials": trials, "fine": as_it_should_be(name, verdict), **asdict(verdict)}
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")
            verdict = _verdict(known[name])
            print(f"{name}: {_per_cent(verdict)} of ε attained, found: {_found(verdict, known[name])}", flush=True)
        good &= known[name]["fine"]
    return 0 if good else 1


def plan(trials: int) -> list[tuple[str, Played, int]]:
    """Names, games and numbers of trials."""
    one: list[tuple[str, Played, int]] = [(f"1 step: {game.name}", game, trials) for game in many_games(1)]
    twenty = [(f"20 steps: {game.name}", game, trials // 4) for game in many_games(20) if game.name in WORST]
    single = [
        (f"1 step, alone: {game.name}", game, trials // 50)
        for game in all_games(1)
        if game.law is not None or game.others or game.replacement or "hutch++" in game.name or "bias" in game.name
    ]
    published = [(f"telemetry: {game.name}", game, trials // 10) for game in published_games()]
    bugs: list[tuple[str, Played, int]] = []
    for bug, game in planted().items():
        some = trials // 200 if game.micro_batch == 2 else trials // 50
        bugs += [(f"bug: {bug}", game, some), (f"without it: {bug}", repaired(game, bug), some)]
    bugs += [(f"bug: {bug}", game, trials // 40) for bug, game in planted_in_telemetry().items()]
    bugs += [(f"bug: {bug}", game, trials // 10) for bug, game in planted_in_shards().items()]
    shards = [(f"1 step, spread: {game.name}", game, trials // 10) for game in sharded_games()]
    return [*one, *twenty, *single, *published, *shards, *bugs]


def as_it_should_be(name: str, verdict: Verdict) -> bool:
    """A bug is found, a sound game is not refuted, and a worst canary is near the claim."""
    found = verdict.broken or verdict.other_law
    if name.startswith("bug"):
        return found
    worst = name.split(": ")[1] in WORST and "alone" not in name
    return not found and (verdict.share >= TIGHT or not worst)


def read_results() -> dict[str, dict[str, Any]]:
    """By name."""
    found: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return found


def table() -> str:
    """Sound games by kind, with the range of the share of ε that an attacker attained; then every planted bug."""
    kinds: dict[str, list[tuple[Verdict, dict[str, Any]]]] = {}
    bugs = []
    for name, entry in read_results().items():
        verdict = _verdict(entry)
        kind, _, game = name.partition(": ")
        if kind == "bug":
            bugs.append([game, f"{entry['trials']:,}", _per_cent(verdict), _found(verdict, entry)])
        else:
            kinds.setdefault(kind, []).append((verdict, entry))
    rows = []
    for kind, played in kinds.items():
        shares = sorted((verdict.share, _per_cent(verdict)) for verdict, _ in played)
        trials = sorted({entry["trials"] for _, entry in played})
        found = sorted({_found(verdict, entry) for verdict, entry in played})
        each = " or ".join(f"{number:,}" for number in trials)
        rows.append([kind, str(len(played)), each, f"{shares[0][1]} to {shares[-1][1]}", ", ".join(found)])
    sound = markdown(("kind of game", "games", "trials each", "share of ε attained", "found"), rows)
    return f"{sound}\n{markdown(('planted bug', 'trials', 'share of ε attained', 'found'), bugs)}"


def _verdict(entry: dict[str, Any]) -> Verdict:
    return Verdict(**{key: entry[key] for key in ("shown", "claimed", "mu", "claimed_mu", "law", "noise")})


def _per_cent(verdict: Verdict) -> str:
    return f"{100 * verdict.share:.0f} %"


def _found(verdict: Verdict, entry: dict[str, Any]) -> str:
    found = "refuted" if verdict.broken else "another law" if verdict.other_law else "nothing"
    return found if entry["fine"] else f"**{found}**"


if __name__ == "__main__":
    sys.exit(main())
