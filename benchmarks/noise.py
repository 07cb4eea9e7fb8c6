"""``python -m benchmarks.noise``: secure noise and coins against torch's, in CPU time on one thread.

The best of several goes that take turns, as other work on the machine only adds to them. Of noise also what its parts
take: the cipher's words, and what makes them entries in place. ``--store`` keeps the numbers in
``benchmarks/results/noise.json``, ``--page FILE`` writes what is stored between the marks of a page.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dprmt.training.randomness import SecureRandom
from dprmt.training.randomness._cipher import KEY_BYTES, CipherStream
from dprmt.training.randomness._secure import _PIECE, _Workspace

ENTRIES, GOES = 4_000_000, 9
STORED = Path(__file__).with_name("results") / "noise.json"
_BEGIN, _END = "<!-- noise: begin -->\n", "<!-- noise: end -->\n"


def measured(entries: int = ENTRIES, goes: int = GOES) -> dict[str, Any]:
    """Nanoseconds of an entry or a coin, by name."""
    torch.set_num_threads(1)
    secure, plain = SecureRandom(), torch.Generator().manual_seed(0)
    stream, space, piece = CipherStream(bytes(KEY_BYTES)), _Workspace(_PIECE), torch.empty(_PIECE, dtype=torch.float64)
    pieces, total = max(1, entries // _PIECE), torch.zeros(entries)

    def cipher() -> None:
        for _ in range(pieces):
            stream.fill(space.bytes)

    def transform() -> None:
        for _ in range(pieces):
            space.put_sums(piece, 1.0)

    works = {
        "noise": (lambda: secure.normal((entries,)), entries),
        "added": (lambda: secure.add_normal(total), entries),
        "noise of torch": (lambda: torch.randn(entries, generator=plain), entries),
        "cipher": (cipher, pieces * _PIECE),
        "transform": (transform, pieces * _PIECE),
        "coins": (lambda: secure.poisson_sample(entries, 0.001), entries),
        "coins of torch": (lambda: (torch.rand(entries, generator=plain) < 0.001).nonzero().tolist(), entries),
    }
    best = dict.fromkeys(works, float("inf"))
    for _ in range(goes):
        for name, (work, count) in works.items():
            best[name] = min(best[name], _nanoseconds(work) / count)
    found = {name: round(value, 2) for name, value in best.items()}
    return {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "entries": entries, "nanoseconds": found}


def table(found: Mapping[str, Any]) -> str:
    """In Markdown."""
    ns = found["nanoseconds"]
    lines = ["| | secure | torch | |", "|---|---|---|---|"]
    for label, name in (("noise, an entry", "noise"), ("coin, a sample", "coins")):
        ours, theirs = ns[name], ns[f"{name} of torch"]
        lines.append(f"| {label} | {ours:.1f} ns | {theirs:.1f} ns | {ours / theirs:.1f} × |")
    lines.append(f"| noise added to a sum, as a step does | {ns['added']:.1f} ns | | |")
    for label, name in (("of noise: the cipher's words", "cipher"), ("of noise: words to entries", "transform")):
        lines.append(f"| {label} | {ns[name]:.1f} ns | | |")
    return "\n".join(lines)


def write(page: Path, found: Mapping[str, Any]) -> None:
    """Between the marks of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    said = f"{found['entries']:,} numbers, on {found['date']}, on a machine that was busy otherwise:"
    page.write_text(f"{before}{_BEGIN}{said}\n\n{table(found)}\n{_END}{rest.partition(_END)[2]}", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table; or store it, or write what is stored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true")
    parser.add_argument("--page", type=Path)
    options = parser.parse_args(arguments)
    if options.page:
        write(options.page, json.loads(STORED.read_text(encoding="utf-8")))
        return
    found = measured()
    print(table(found))
    if options.store:
        STORED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _nanoseconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return 1e9 * (time.process_time() - started)


if __name__ == "__main__":
    main()
