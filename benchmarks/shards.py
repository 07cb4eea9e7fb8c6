"""``python -m benchmarks.shards``: memory of a process at the peaks of a step and of a checkpoint, by processes.

Twelve residual blocks of width 768 (28 million parameters) under ``fully_shard``, two samples of four tokens for each
process, ghost norms, SGD; resident sets beyond what a process holds before it makes the model, in processes that give
freed memory back at once. What torch's sharding itself takes shows in what is held of the parameters. The checkpoint
has Adam's moments too; what is said of it, and of the whole model that a run ends with, is beyond what the process
holds before it is written or read.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from benchmarks.step import GIVES_BACK
from benchmarks.step_cell import resident
from dprmt.training.clipping import make_private
from dprmt.training.harness._checkpoint import load_checkpoint, save_checkpoint
from dprmt.training.harness._shard_files import write_whole_tensors
from dprmt.training.harness._sharding import like, local, optimizer_state_like

WIDTH, BLOCKS = 768, 12


class Block(nn.Module):
    """With a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of the shape of x."""
        return x + self.down(torch.tanh(self.up(x)))


def measure(rank: int, size: int, store: str) -> str:
    """MiB of one process: parameters that it holds, and the peaks of its first and second step."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    inputs = torch.randn(2, 4, WIDTH)
    nn.Linear(4, 4)(torch.randn(2, 4)).sum().backward()  # what a first backward pass takes once
    gc.collect()
    before = resident("VmRSS") / 1024
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    if size > 1:
        for block in model:
            fully_shard(block)
        fully_shard(model)
    gc.collect()
    held, peaks = resident("VmRSS") / 1024 - before, []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"clipping_norm": 1.0, "noise_multiplier": 1.0, "expected_batch_size": 2.0 * size}
    step = make_private(model, optimizer, norms="ghost", distributed=size > 1, **options)
    for number in range(2):
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts again from here
        samples = [2 * rank, 2 * rank + 1]
        step.accumulate(step.model(inputs).square().mean((1, 2)), samples=samples, step=number)
        step.step()
        peaks.append(resident("VmHWM") / 1024 - before)
    step.close()
    kept, written, read = checkpointed(model, Path(store).parent)
    whole = beyond(lambda: write_whole_tensors(Path(store).with_name("whole.safetensors"), model.state_dict()))
    torch.distributed.destroy_process_group()
    return (
        f"{size} processes, rank {rank}: {held:.0f} MiB held, peaks {peaks[0]:.0f} and {peaks[1]:.0f} MiB; "
        f"checkpoint of {kept:.0f} MiB: {written:.0f} to write, {read:.0f} to read; "
        f"{whole:.0f} to write the whole model"
    )


def checkpointed(model: nn.Module, folder: Path) -> list[float]:
    """MiB of parameters and moments that this process keeps, and what writing and reading them takes beyond."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for value in model.parameters():
        value.grad = torch.zeros_like(value)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

    def write() -> None:
        parameters = {name: value.detach() for name, value in model.named_parameters()}
        save_checkpoint(folder, {"parameters": parameters, "optimizer": optimizer.state_dict()})

    def read() -> None:
        state = load_checkpoint(folder, lazily=True)
        assert state is not None
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.copy_(like(state["parameters"][name], value))
        optimizer.state.clear()
        optimizer.load_state_dict(optimizer_state_like(state["optimizer"], optimizer))

    kept = sum(local(value).nbytes for value in model.parameters()) * 3 / 2**20
    return [kept, beyond(write), beyond(read)]


def beyond(work: Callable[[], None]) -> float:
    """MiB at the peak of some work beyond what is held before."""
    gc.collect()
    held = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    work()
    return (resident("VmHWM") - held) / 1024


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for every process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2], help="numbers of processes")
    parser.add_argument("--process", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.process:
        rank, size, store = options.process
        print(measure(int(rank), int(size), store))
        return
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | GIVES_BACK
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "benchmarks.shards", "--process"]
            places = [[*command, str(rank), str(size), f"{folder}/store"] for rank in range(size)]
            group = [subprocess.Popen(place, env=environment, cwd=Path(__file__).parents[1]) for place in places]
            codes = [process.wait() for process in group]
            if any(codes):
                raise RuntimeError(f"one of {size} processes failed")


if __name__ == "__main__":
    main()
