"""What private steps release, bit for bit, before and after a change of form: 72 clip cases and seven recipes.

    python -m tests.training.frozen_steps store FILE      # before
    python -m tests.training.frozen_steps compare FILE    # after: exit code 1 and a line per case that moved

Stored are digests; bits depend on the machine and on the versions of packages, so no file is kept here.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from dprmt.training.harness import load_parameters, train
from dprmt.training.recipes import load_recipe
from tests.training import clipping_table

RECIPE = {
    "data.limit": 200,
    "evaluation.every": 2,
    "training.batch_size": 32,
    "training.micro_batch_size": 16,
    "training.steps": 2,
    "training.checkpoint_every": 2,
}
VARIANTS = {
    "exact": {"privacy.norms": "exact"},
    "ghost": {"privacy.norms": "ghost"},
    "hutchinson": {"privacy.norms.kind": "hutchinson", "privacy.norms.probes": 4},
    "hutch++": {"privacy.norms.kind": "hutch++", "privacy.norms.probes": 4},
    "adambc": {"optimizer.name": "adambc"},
    "grape": {"optimizer.name": "grape", "optimizer.rank": 4},
    "denoised": {"denoising.method": "paper"},
}


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Of names and bits."""
    bits = hashlib.blake2b(digest_size=16)
    for name, value in sorted(tensors.items()):
        bits.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        bits.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return bits.hexdigest()


def tables() -> Iterator[tuple[str, str]]:
    """Every way of the table of clipping."""
    for way in clipping_table.WAYS:
        model = clipping_table.make_model(way)
        released = clipping_table.released(clipping_table.make_step(way, model, 1.0), model)
        yield f"table {'-'.join(way)}", digest(released)


def recipes() -> Iterator[tuple[str, str]]:
    """Parameters after two steps of a small recipe, by norms, optimizers and a denoiser."""
    for name, changes in VARIANTS.items():
        with tempfile.TemporaryDirectory() as folder:
            recipe = load_recipe("roberta-tiny-docstrings").with_changes(RECIPE | changes)
            train(recipe, Path(folder, "run"), noise_seed=0)
            yield f"recipe {name}", digest(load_parameters(Path(folder, "run")))


def answers() -> dict[str, str]:
    """Digest of every case, by name."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    return {name: found for cases in (tables(), recipes()) for name, found in cases}


def main(what: str, file: str) -> int:
    """Store or compare; 1 if something moved."""
    found = answers()
    if what == "store":
        Path(file).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    before = json.loads(Path(file).read_text(encoding="utf-8"))
    moved = [name for name in before if found.get(name) != before[name]]
    print(*moved, f"{len(before) - len(moved)} of {len(before)} are equal bit for bit", sep="\n")
    return int(bool(moved))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
