"""One cell of ``benchmarks.step``, in a process of its own."""

from __future__ import annotations

import datetime
import gc
import resource
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.step import Cell
from benchmarks.step_shapes import SHAPES, Shape

Step = Callable[[int], None]


def run(what: str, cell: Cell) -> dict[str, Any]:
    """``what``: "time" or "memory"."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    shape = SHAPES[cell.shape]
    batch, tokens = cell.batch or shape.batch, cell.tokens or shape.tokens
    inputs = shape.inputs(batch, tokens, cell.device)
    model = shape.make(tokens, cell.device)
    if what == "memory":
        step = stepper(cell.way, shape, model, inputs)
        held = _held(cell.device)
        first = _peak(step, 0, cell.device) - held
        return {"first_mib": first, "mib": _peak(step, 1, cell.device) - held}
    plain = stepper("plain", shape, shape.make(tokens, cell.device), inputs)
    plain(0)
    plain(1)
    step = stepper(cell.way, shape, model, inputs)
    first, pairs = _seconds(step, 0, cell.device), []
    if "compile" in shape.options:
        step(1)  # compiles once more, after the first look
    for number in range(cell.rounds):
        pairs.append((_seconds(plain, 2 + number, cell.device), _seconds(step, 2 + number, cell.device)))
    return {
        "ratio": statistics.median(own / other for other, own in pairs),
        "plain_seconds": statistics.median(other for other, _ in pairs),
        "seconds": statistics.median(own for _, own in pairs),
        "first_seconds": first,
        "parameters": sum(value.numel() for value in model.parameters() if value.requires_grad),
        "device": torch.cuda.get_device_name() if cell.device == "cuda" else "cpu",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _seconds(step: Step, number: int, device: str) -> float:
    if device == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        step(number)
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3
    started = time.process_time()
    step(number)
    return time.process_time() - started


def _held(device: str) -> float:
    """MiB before the first step."""
    gc.collect()
    return torch.cuda.memory_allocated() / 2**20 if device == "cuda" else resident("VmRSS") / 1024


def _peak(step: Step, number: int, device: str) -> float:
    """MiB at the most during a step."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        step(number)
        return torch.cuda.max_memory_allocated() / 2**20
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts again from here
    step(number)
    return resident("VmHWM") / 1024


def resident(field: str) -> float:
    """KiB of this process: "VmRSS", or its peak, "VmHWM"."""
    fields = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    found = next((int(line.split()[1]) for line in fields if line.startswith(field)), None)
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) if found is None else float(found)


def stepper(way: str, shape: Shape, model: nn.Module, inputs: torch.Tensor) -> Step:
    """A step of SGD by its number: plain, ours or Opacus'."""
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=1e-5)
    if way == "plain":
        network = _compiled(shape, model)

        def plain(number: int) -> None:
            optimizer.zero_grad()
            shape.losses(network, inputs).mean().backward()
            optimizer.step()
            inputs.grad = None

        return plain
    return (_opacus if way.startswith("opacus") else _ours)(way, shape, model, optimizer, inputs)


def _compiled(shape: Shape, model: Any, *, twice: bool = False) -> Any:
    """``twice``: whether a backward pass may come again, for which compiled ones keep their buffers."""
    if "compile" not in shape.options:
        return model
    import torch._functorch.config

    torch._functorch.config.donated_buffer = not twice
    return torch.compile(model)


def _ours(way: str, shape: Shape, model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> Step:
    from audits.steps import make_private

    size = len(inputs)
    private = make_private(
        model,
        optimizer,
        norms=way,
        clipping_norm=1.0,
        noise_multiplier=1.0,
        expected_batch_size=size,
        tokens=inputs.shape[1],
    )
    network = _compiled(shape, private.model, twice=True)

    def step(number: int) -> None:
        private.accumulate(shape.losses(network, inputs), samples=range(size), step=number)
        private.step()
        inputs.grad = None

    return step


def _opacus(way: str, shape: Shape, model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> Step:
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    options = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": len(inputs)}
    if way == "opacus hooks":
        hooks = GradSampleModule(model)
        network, noisy = _compiled(shape, hooks), DPOptimizer(optimizer, **options)

        def step(number: int) -> None:
            noisy.zero_grad()
            shape.losses(network, inputs).mean().backward()
            noisy.step()
            inputs.grad = None

        return step
    clipping = GradSampleModuleFastGradientClipping(model, max_grad_norm=1.0, use_ghost_clipping=way == "opacus ghost")
    network, fast = _compiled(shape, clipping, twice=True), DPOptimizerFastGradientClipping(optimizer, **options)

    def two_passes(number: int) -> None:
        fast.zero_grad()
        DPTensorFastGradientClipping(clipping, fast, shape.losses(network, inputs)).backward()
        fast.step()
        inputs.grad = None

    return two_passes
