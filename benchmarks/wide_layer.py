"""Time and memory of one private step on one wide linear layer, by how norms are taken.

What estimated norms save, to be held against what they cost in privacy: 4,096 × 4,096, two samples of 1,024 and of
4,096 tokens. Every method takes one step in a process of its own, in one thread, after a step on eight tokens. Shown
are CPU time, and the growth of the peak resident set over what the process held before its first step, inputs included.
``--out`` adds the lines to a file, so that cases can be run one by one.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dprmt.accounting import Hutchinson, HutchPlusPlus

METHODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "exact": {"norms": "exact"},
    "ghost": {"norms": "ghost"},
    "Hutchinson": {"norms": Hutchinson(64, secret=True)},
    "Hutch++, one pass": {"norms": HutchPlusPlus(34, 15, secret=True)},
    "Hutch++": {"norms": HutchPlusPlus(31, 11, power_iteration=True, secret=True)},
}
"""64 products each, in the splits that ``dprmt probes --budget 64`` finds."""
WIDTH, BATCH = 4096, 2


def measure(method: str, tokens: int) -> dict[str, float]:
    """One case, in a new process."""
    command = [sys.executable, "-m", "benchmarks.wide_layer", "--case", method, str(tokens)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
    if done.returncode:
        raise RuntimeError(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _run(method: str, tokens: int) -> dict[str, float]:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH, WIDTH, bias=False)
    step = _stepper(model, METHODS[method], tokens)
    before = _resident()
    step(torch.randn(BATCH, 8, WIDTH), 0)
    start = time.process_time()
    step(torch.randn(BATCH, tokens, WIDTH), 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": time.process_time() - start, "mebibytes": peak - before}


def _resident() -> float:
    fields = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in fields if line.startswith("VmRSS")) / 1024


def _stepper(model: Any, options: dict[str, Any], tokens: int) -> Any:
    import torch

    from audits.steps import make_private

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def losses(network: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return network(x).square().mean((1, 2))

    if not options:

        def plain(x: torch.Tensor, number: int) -> None:
            optimizer.zero_grad()
            losses(model, x).mean().backward()
            optimizer.step()

        return plain
    private = make_private(
        model, optimizer, clipping_norm=1.0, noise_multiplier=1.0, expected_batch_size=BATCH, tokens=tokens, **options
    )

    def step(x: torch.Tensor, number: int) -> None:
        private.accumulate(losses(private.model, x), samples=range(BATCH), step=number)
        private.step()

    return step


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table, or run the one case that :func:`measure` asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--out", type=Path, help="JSON that the cases are added to")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.case:
        print(json.dumps(_run(options.case[0], int(options.case[1]))))
        return
    found: dict[str, Any] = {"width": WIDTH, "batch": BATCH, "cases": {}}
    if options.out is not None and options.out.exists():
        found = json.loads(options.out.read_text(encoding="utf-8"))
    print(f"{'T':>6} {'norms':20}{'CPU s':>8}{'MiB':>8}")
    for tokens in options.tokens:
        for method in options.methods:
            case = found["cases"].setdefault(str(tokens), {})[method] = measure(method, tokens)
            print(f"{tokens:6d} {method:20}{case['seconds']:8.2f}{case['mebibytes']:8.0f}", flush=True)
            if options.out is not None:
                options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
