"""What denoising buys at equal ε, each method at its own rate, paired over seeds, with a null and a control.

Usage: ``python -m paper_figures study denoising train FOLDER [--studies …] [--data .]``, which may be stopped at any
time and called again; ``… store FOLDER`` writes into ``results/raw/denoising.json`` what is there; ``… page`` writes
the tables of ``docs/theory/when_denoising_helps.md`` from it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from dprmt._files import read_lines
from paper_figures._pieces import raw_file
from paper_figures._published import published
from paper_figures._reproduction import RESULTS
from paper_figures.denoising import STUDIES, Trainer, jobs, results, with_tables

STORED = RESULTS / "raw" / "denoising.json"
PAGE = Path(__file__).parents[2] / "docs" / "theory" / "when_denoising_helps.md"


def main(arguments: Sequence[str]) -> None:
    """Carry out the command."""
    parser = argparse.ArgumentParser(
        prog="python -m paper_figures study denoising", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("command", choices=("train", "store", "page"))
    parser.add_argument("folder", type=Path, nargs="?", help="where the runs go; finished ones are not repeated")
    parser.add_argument("--studies", nargs="+", default=list(STUDIES), choices=list(STUDIES))
    parser.add_argument("--data", type=Path, default=Path(), help="with the folders sst2 and e2e")
    options = parser.parse_args(arguments)
    if options.command != "page" and options.folder is None:
        parser.error(f"{options.command} needs a folder")
    if options.command == "train":
        train(options.folder, options.studies, options.data)
    elif options.command == "store":
        before = json.loads(STORED.read_text(encoding="utf-8"))
        STORED.write_text(json.dumps({**before, **results(options.folder)}, indent=1) + "\n")
    else:
        PAGE.write_text(page(), encoding="utf-8")


def train(folder: Path, names: list[str], data: Path) -> None:
    """Seed by seed all studies and all methods, so that a stop leaves a balanced table."""
    torch.set_num_threads(1)
    trainers: dict[str, Trainer] = {}
    for seed in range(1 + max(STUDIES[name].seeds for name in names)):
        for name in names:
            for job in jobs(STUDIES[name], folder / name, seed) if seed <= STUDIES[name].seeds else ():
                if name not in trainers:
                    trainers[name] = Trainer(STUDIES[name], folder / name, data)
                started = time.process_time()
                trainers[name].run(job)
                print(f"{name}: {job} {time.process_time() - started:.1f} s", flush=True)


def page() -> str:
    """The page with the tables of the stored results."""
    speedups = json.loads(STORED.with_name("denoising-speedup.json").read_text(encoding="utf-8"))
    study = json.loads(STORED.read_text(encoding="utf-8"))
    (bounds,) = (line["value"] for line in read_lines(raw_file(RESULTS, "adam-bound-steps", "paper")))
    return with_tables(PAGE.read_text(encoding="utf-8"), study, speedups, published("speedup").rows, bounds)
