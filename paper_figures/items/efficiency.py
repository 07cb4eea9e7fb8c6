"""What randomized norms save in FLOPs and memory on single layers, on the library's own functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures._verdict import Reason
from paper_figures.items._layer_norms import TOKENS, factors, norms

if TYPE_CHECKING:
    import torch

PAPER = published("efficiency")
LARGE, SMALL = [8192, 2048], [2048, 512]
ESTIMATORS = {"hutchinson": "Hutchinson", "hutchpp": "Hutch++"}
UNIT = 0.01
"""One unit of the last printed digit."""
MARGIN = 1.0
"""Of measured memory, in points."""
CHUNK = 64
MIB = 2**20


def measure(scale: Scale, folder: Path) -> Found:
    return Found(
        [*_flops(LARGE), *_flops(SMALL), *_memory(LARGE)],
        differs="Counted and measured on a CPU, the norm alone, in float32 with sums of squares in float64; the paper"
        " measures a training step on a GPU. Exact norms are taken as this package forms them, and in chunks of"
        f" {CHUNK} rows of the gradient, which hold next to nothing.",
        reasons=[
            Reason(
                "tested",
                "counted FLOPs have no factorisation; 2(d + p)k² besides the four products give the printed digits.",
                "python -m paper_figures forensics flops",
            ),
            Reason(
                "open",
                "what a step of the paper holds beside a layer's gradient is not printed. A saving of memory is one"
                " over the exact norm that is compared: in chunks of rows that takes little, and little is saved.",
            ),
        ],
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
    saved = {name: 100 * (1 - counts[name] / counts["exact"]) for name in ESTIMATORS}
    return [
        Row(
            f"{'×'.join(map(str, shape))}: FLOPs saved by {ESTIMATORS[name]}",
            value,
            PAPER.number(name, shape=shape, quantity="FLOPs saved"),
            interval=(value, value),
            margin=UNIT,
            unit="%",
        )
        for name, value in saved.items()
    ]


def _memory(shape: list[int]) -> list[Row]:
    peaks = {name: _peak(norm) for name, norm in norms(*shape).items()}
    activations, gradients = factors(*shape)
    peaks["in chunks"] = _peak(lambda: in_chunks(activations, gradients))
    inputs, size = 4 * TOKENS * sum(shape), "×".join(map(str, shape))
    rows = [
        Row(f"{size}: peak of {name} beside the inputs of {inputs / MIB:.0f} MiB", peak / MIB, unit="MiB")
        for name, peak in peaks.items()
    ]
    for name, label in ESTIMATORS.items():
        printed = PAPER.number(name, shape=shape, quantity="peak memory with inputs, saved")
        for exact in ("exact", "in chunks"):
            saved = 100 * (1 - (peaks[name] + inputs) / (peaks[exact] + inputs))
            title = f"{size}: peak with inputs, saved by {label} against exact norms{' in chunks' * (exact != 'exact')}"
            rows.append(Row(title, saved, printed, unit="%", interval=(saved, saved), margin=MARGIN))
    return rows


def in_chunks(activations: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
    """‖AᵀG‖² of each sample, some rows of AᵀG at a time."""
    import torch

    parts = activations.split(CHUNK, dim=2)
    norms = [(part.transpose(1, 2) @ gradients).double().square().sum((1, 2)) for part in parts]
    return torch.stack(norms).sum(0)


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
