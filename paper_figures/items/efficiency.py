"""What randomized norms save in FLOPs and memory on single layers, and their times, on the library's own functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures.items._layer_norms import PAPER, PROBES, TOKENS, least_times, norms

LATENCY = published("latency").number("value", quantity="time of Hutch++ over time of Hutchinson")
ESTIMATORS = {"hutchinson": "Hutchinson", "hutchpp": "Hutch++"}
PRODUCTS_HELD = {"hutchinson": 1, "hutchpp": 3}  # T × k matrices at the same time, as the paper counts them


def measure(scale: Scale, folder: Path) -> Found:
    rows = [row for shape in ([8192, 2048], [2048, 512]) for row in _flops(shape)]
    rows += [_latency(shape) for shape in ([8192, 2048], [2048, 512])]
    return Found(
        rows + _counted_memory([8192, 2048]) + _measured_memory([8192, 2048]),
        differs="Counted and measured on a CPU, the norm alone, in float32 with sums of squares in float64; the paper"
        " measures a training step on a GPU, and times an A100: `latency` judges the times. Its memory without inputs"
        " counts the products GP only.",
        data="one sample of Gaussian activations and output gradients",
    )


def _flops(shape: list[int]) -> list[Row]:
    # 2Tdp to form a gradient against 2Tk(d + p) for k products with it: the ratio does not depend on the data.
    from torch.utils.flop_counter import FlopCounterMode

    counts = {}
    for name, norm in norms(*shape).items():
        with FlopCounterMode(display=False) as counter:
            norm()
        counts[name] = counter.get_total_flops()
    return [
        Row(
            f"{'×'.join(map(str, shape))}: FLOPs saved by {ESTIMATORS[name]}",
            100 * (1 - counts[name] / counts["exact"]),
            PAPER.number(name, shape=shape, quantity="FLOPs saved"),
            tolerance=0.05,
            unit="%",
        )
        for name in ESTIMATORS
    ]


def _latency(shape: list[int]) -> Row:
    seconds = least_times({name: norm for name, norm in norms(*shape).items() if name in ESTIMATORS})
    ratio = seconds["hutchpp"] / seconds["hutchinson"]
    return Row(f"{'×'.join(map(str, shape))}: time of Hutch++ over Hutchinson", ratio, LATENCY)


def _counted_memory(shape: list[int]) -> list[Row]:
    d, p = shape
    return [
        Row(
            f"{d}×{p}: memory without inputs saved by {ESTIMATORS[name]}, 1 - {held}kT/(dp)".replace("1k", "k"),
            100 * (1 - held * PROBES * TOKENS / (d * p)),
            PAPER.number(name, shape=shape, quantity="peak memory without inputs, saved"),
            tolerance=0.02,
            unit="%",
        )
        for name, held in PRODUCTS_HELD.items()
    ]


def _measured_memory(shape: list[int]) -> list[Row]:
    peaks = {name: _peak(norm) for name, norm in norms(*shape).items()}
    inputs = 4 * TOKENS * sum(shape)
    rows = []
    for name, label in ESTIMATORS.items():
        without, with_inputs = (1 - (peaks[name] + held) / (peaks["exact"] + held) for held in (0, inputs))
        printed = PAPER.number(name, shape=shape, quantity="peak memory with inputs, saved")
        size = "×".join(map(str, shape))
        rows.append(Row(f"{size}: measured peak without inputs, saved by {label}", 100 * without, unit="%"))
        rows.append(Row(f"{size}: measured peak with inputs, saved by {label}", 100 * with_inputs, printed, unit="%"))
    return rows


def _peak(norm: Callable[[], object]) -> int:
    # The largest number of bytes that the call had allocated at the same time.
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        norm()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


ITEM = Item("efficiency", "FLOPs and memory that randomized norms save on a layer", measure, scales=("paper",))
