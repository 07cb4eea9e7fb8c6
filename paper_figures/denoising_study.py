"""What denoising buys at equal ε, each method at its own rate, paired over seeds, with a null and a control.

Usage: ``python paper_figures/denoising_study.py FOLDER [--studies …] [--data .] [--results OUT.json]``
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from denoising import STUDIES, Trainer, jobs


def main() -> None:
    """Train what is not trained yet; stop at any time, and call it again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the runs go; finished ones are not repeated")
    parser.add_argument("--studies", nargs="+", default=list(STUDIES), choices=list(STUDIES))
    parser.add_argument("--data", type=Path, default=Path(), help="with the folders sst2 and e2e")
    options = parser.parse_args()
    torch.set_num_threads(1)
    trainers: dict[str, Trainer] = {}
    for seed in range(1 + max(STUDIES[name].seeds for name in options.studies)):
        for name in options.studies:
            for job in jobs(STUDIES[name], options.folder / name, seed) if seed <= STUDIES[name].seeds else ():
                if name not in trainers:
                    trainers[name] = Trainer(STUDIES[name], options.folder / name, options.data)
                started = time.process_time()
                trainers[name].run(job)
                print(f"{name}: {job} {time.process_time() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
