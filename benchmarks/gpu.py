"""All that waits for a GPU, in one line: ``python -m benchmarks.gpu``.

The tests marked ``gpu``; the law of the noise and the worst games there; whole steps at the shapes of RoBERTa-base and
Llama-1B from 512 to 16,384 tokens, each way at the largest batch that it holds, ours and Opacus'. What was found lies
as JSON under ``--out``, with the device and the date. A part that fails does not keep the others from running; the exit
status says that one did. ``--device cpu --tiny`` goes through the same on a CPU, in a minute.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.step import GPU_SIZES, RESULTS


def commands(device: str, out: Path, *, tiny: bool = False) -> dict[str, list[str]]:
    """What is run, by name.

    Examples
    --------
    >>> list(commands("cuda", Path("found")))
    ['tests', 'noise and games', 'steps']
    """
    tests = ["-m", "pytest", "-q", "-m", "gpu"]
    trials: list[str] = []
    sizes = GPU_SIZES
    if tiny:
        tests += ["tests/spectra/test_denoiser.py"]
        trials = ["--trials", "1000"]
        sizes = ["--shapes", "tiny", "--tokens", "16", "--batch", "2", "--rounds", "1", "--ways", "plain", "ghost"]
    return {
        "tests": tests,
        "noise and games": ["-m", "audits", "device", "--device", device, *trials, "--out", str(out / "device.json")],
        "steps": ["-m", "benchmarks.step", "--device", device, *sizes, "--again", "--out", str(out / "step_cuda.json")],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all of it; how many parts failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small sizes and few trials: whether everything runs")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name, command in commands(options.device, options.out, tiny=options.tiny).items():
        print(f"{name}: python {' '.join(command)}", flush=True)
        if subprocess.run([sys.executable, *command], check=False, cwd=Path(__file__).parents[1]).returncode:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all went through")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
