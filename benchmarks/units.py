"""Time and memory of a private step of units with several rows, as ratios to the same step without privacy.

``python -m benchmarks.units`` keeps the rows of a step and deals them to units of 1, 4, 16, … rows: one at a time, or
side by side with every kind of norm. Layers are trained whole, or by adapters of low rank on frozen ones (``--lora``).
CPU time on one thread, the least of a few steps; memory is the peak of live tensors beyond the parameters.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from dprmt.training.clipping import TensorMemory, Units, make_private

WAYS = ("alone", "exact", "ghost", "hutchinson", "hutch++")
"""One at a time, or side by side with these norms."""


@dataclass(frozen=True)
class Cost:
    """Of one step: CPU seconds, and MiB, each over those of a step without privacy."""

    way: str
    rows: int
    time: float
    memory: float


class Adapted(nn.Module):
    """A frozen linear layer beside a product of two thin ones."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.frozen, self.down = nn.Linear(width, width), nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Their sum."""
        return self.frozen(x) + self.up(self.down(x))


def make_model(width: int, layers: int, lora: int) -> nn.Module:
    """Linear layers of one width with GELUs between."""
    torch.manual_seed(0)
    each = [Adapted(width, lora) if lora else nn.Linear(width, width) for _ in range(layers)]
    return nn.Sequential(*[part for layer in each for part in (layer, nn.GELU())])


def losses(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """One for each row."""
    return model(batch).square().mean((1, 2))


def measured(step: Callable[[], None], known: list[torch.Tensor], repeats: int) -> tuple[float, float]:
    """Least CPU seconds, and the peak of live tensors in MiB."""
    with TensorMemory(known) as memory:
        held = memory.live
        step()
        peak = (memory.peak - held) / 2**20
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        step()
        seconds.append(time.process_time() - started)
    return min(seconds), peak


def private_step(way: str, model: nn.Module, batch: torch.Tensor, rows: int, micro: int) -> Callable[[], None]:
    """A logical step over all rows of the batch, dealt to units of ``rows``."""
    step = make_private(
        model,
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-6),
        norms="ghost" if way == "alone" else way,
        clipping_norm=1.0,
        noise_multiplier=1.0,
        expected_batch_size=len(batch) / rows,
        units=Units(rows, regime="alone" if way == "alone" else "together"),
        replay=0.0,
    )
    numbers = iter(range(10**6))
    size = rows if way == "alone" else max(rows, micro)

    def run() -> None:
        number = next(numbers)
        for start in range(0, len(batch), size):
            part = list(range(start, min(start + size, len(batch))))
            found = losses(step.model, batch[part])
            step.accumulate(found, samples=part, units=[i // rows for i in part], step=number)
        step.step()

    return run


def plain_step(model: nn.Module, batch: torch.Tensor, micro: int) -> Callable[[], None]:
    """The same rows in the same micro-batches, without privacy."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-6)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        for start in range(0, len(batch), micro):
            losses(model, batch[start : start + micro]).sum().backward()
        optimizer.step()

    return run


def costs(width: int, tokens: int, rows: list[int], total: int, micro: int, lora: int, repeats: int) -> Iterator[Cost]:
    """Of every way at every number of rows."""
    batch = torch.randn(total, tokens, width)
    model = make_model(width, 2, lora)
    plain = measured(plain_step(model, batch, micro), list(model.parameters()), repeats)
    for each in rows:
        for way in WAYS:
            model = make_model(width, 2, lora)
            found = measured(private_step(way, model, batch, each, micro), list(model.parameters()), repeats)
            yield Cost(way, each, found[0] / plain[0], found[1] / plain[1])


def table(found: list[Cost]) -> list[str]:
    """Time × and memory × of a plain step, by rows a unit."""
    rows = sorted({cost.rows for cost in found})
    lines = ["| way | " + " | ".join(f"{each} rows" for each in rows) + " |", "|---|" + "---|" * len(rows)]
    for way in WAYS:
        cells = [next(cost for cost in found if (cost.way, cost.rows) == (way, each)) for each in rows]
        lines.append(f"| {way} | " + " | ".join(f"{cost.time:.2f}, {cost.memory:.2f}" for cost in cells) + " |")
    return lines


def main() -> None:
    """Print the table; ``--results`` keeps the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--total", type=int, default=64, help="rows of a step")
    parser.add_argument("--micro", type=int, default=16, help="rows of a micro-batch, unless a unit has more")
    parser.add_argument("--lora", type=int, default=0, help="rank of adapters; 0 trains whole layers")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--results", type=Path, help="a JSON file to write")
    options = vars(parser.parse_args())
    results = options.pop("results")
    torch.set_num_threads(1)
    found = list(costs(**options))
    print("\n".join(table(found)))
    if results is not None:
        results.write_text(json.dumps({**options, "costs": [asdict(cost) for cost in found]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
