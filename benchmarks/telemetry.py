"""``python -m benchmarks.telemetry``: what telemetry costs a private step, in CPU time and in memory.

What it adds is timed within the steps of one run, so that a busy machine slows both. Full readings are spread over the
steps between them. The first one stands apart, for it computes once what later ones look up: the gate of every shape of
matrix. Beside it stands what the optimizer itself takes, without its hooks. Memory is what telemetry keeps between two
steps, over that of the gradient; the parameters' places at the start lie in mapped files, and are not in it.
``--store`` keeps the numbers in ``benchmarks/results/telemetry.json``. The aim is at most 3 % of a step and one copy of
the gradient.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dprmt.training.clipping import make_private
from dprmt.training.telemetry import Telemetry

EVERY, ROUNDS = 20, 2
STORED = Path(__file__).with_name("results") / "telemetry.json"


def main() -> None:
    """Print a line for every model."""
    torch.set_num_threads(1)
    found = []
    print(f"{'model':44s} {'step':>9s} {'optimizer':>10s} {'telemetry':>10s} {'share':>7s} {'memory':>8s} {'once':>9s}")
    for name, make in MODELS.items():
        plain, extra, memory, once, moved = cost(*make())
        times = f"{plain:6.1f} ms {moved:7.2f} ms {extra:7.2f} ms"
        shown = f"{times} {100 * extra / plain:5.1f} % {memory:6.2f} × {once:6.1f} ms"
        print(f"{name:44s} {shown}", flush=True)
        share = round(extra / plain, 4)
        found.append({"model": name, "step_ms": round(plain, 2), "telemetry_ms": round(extra, 3), "share": share})
        found[-1] |= {
            "optimizer_ms": round(moved, 3),
            "first_reading_ms": round(once, 1),
            "gradients_kept": round(memory, 3),
            "within_aim": extra <= 0.03 * plain and memory <= 1.01,
        }
    if "--store" in sys.argv[1:]:
        kept = {"clock": "CPU time, one thread, loaded machine", "torch": torch.__version__, "costs": found}
        kept |= {"python": platform.python_version(), "machine": platform.machine(), "every": EVERY}
        STORED.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def cost(
    model: torch.nn.Module, inputs: torch.Tensor, optimizer: torch.optim.Optimizer
) -> tuple[float, float, float, float, float]:
    """Milliseconds of a step without telemetry, what telemetry adds, its memory in gradients, its first reading, and
    milliseconds of the optimizer's own step.
    """
    step = make_private(
        model, optimizer, norms="exact", clipping_norm=1.0, noise_multiplier=1.0, expected_batch_size=len(inputs)
    )
    telemetry = Telemetry.attach(step.optimizer, dict(model.named_parameters()), every=EVERY)
    spent, added, reading, moving = 0.0, [0.0], [0.0], [0.0]
    inner = step.optimizer.original_optimizer
    inner.step = _timed(inner.step, moving)
    for method in ("_look", "_look_at_the_update"):
        setattr(telemetry, method, _timed(getattr(telemetry, method), added))
    telemetry._read = _timed(telemetry._read, reading)  # type: ignore[method-assign]
    once = 0.0
    for number in range(1, EVERY * (1 + ROUNDS) + 1):
        if number == EVERY + 1:
            added[0], moving[0], spent, once = 0.0, 0.0, 0.0, reading[0]
        started = time.process_time()
        losses = torch.nn.functional.cross_entropy(
            step.model(inputs), torch.zeros(len(inputs), dtype=torch.long), reduction="none"
        )
        step.accumulate(losses, samples=range(len(inputs)), step=number)
        step.step()
        spent += time.process_time() - started
    steps = EVERY * ROUNDS
    size = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    memory = _kept(_in_memory(telemetry.state_dict())) / size
    own = moving[0] - added[0]
    return 1e3 * (spent - added[0]) / steps, 1e3 * added[0] / steps, memory, 1e3 * once, 1e3 * own / steps


def _timed(function: Callable[[], Any], total: list[float]) -> Callable[[], Any]:
    def timed() -> Any:
        started = time.process_time()
        found = function()
        total[0] += time.process_time() - started
        return found

    return timed


def _in_memory(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name != "displacement"}


def _kept(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(_kept, value.values())) if isinstance(value, dict) else 0


def _perceptron(batch: int) -> tuple[torch.nn.Module, torch.Tensor, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    return model, torch.randn(batch, 784), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _logistic(batch: int) -> tuple[torch.nn.Module, torch.Tensor, torch.optim.Optimizer]:
    model = torch.nn.Linear(784, 10)
    return model, torch.randn(batch, 784), torch.optim.Adam(model.parameters(), lr=0.01)


class _Encoder(torch.nn.Module):
    """Frozen layers of the size of MiniLM's, the last feed-forward matrices and a head trained."""

    def __init__(self, trained: int) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(384, 12, 1536, dropout=0.0, batch_first=True)
        self.body = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.body.requires_grad_(False)
        for block in list(self.body.layers)[6 - trained :]:
            block.linear2.requires_grad_(True)
        self.head = torch.nn.Linear(384, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(inputs).mean(1))


def _encoder(batch: int, trained: int) -> tuple[torch.nn.Module, torch.Tensor, torch.optim.Optimizer]:
    model = _Encoder(trained)
    chosen = [p for p in model.parameters() if p.requires_grad]
    return model, torch.randn(batch, 24, 384), torch.optim.AdamW(chosen, lr=1e-3)


MODELS: dict[str, Callable[[], tuple[torch.nn.Module, torch.Tensor, torch.optim.Optimizer]]] = {
    "784-10, Adam, batch 400": lambda: _logistic(400),
    "784-128-10, momentum, batch 400": lambda: _perceptron(400),
    "784-128-10, momentum, batch 2,000": lambda: _perceptron(2000),
    "encoder, last matrix, AdamW, batch 64": lambda: _encoder(64, 1),
    "encoder, six matrices, AdamW, batch 64": lambda: _encoder(64, 6),
}


if __name__ == "__main__":
    main()
