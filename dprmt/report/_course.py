"""The report's section on what clipping costs and what noise costs, in loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dprmt.report._figure import along_steps
from dprmt.report._page import Picture, Section, Table
from dprmt.report._words import with_interval

NOISY = "clipping and noise"


def course_section(courses: Mapping[str, Sequence[float]]) -> Section:
    """Return the mean loss of the steps' batches: with noise, with clipping alone, with neither; the same batches in
    each.
    """

    def draw(ax: Any) -> None:
        for (name, losses), style in zip(courses.items(), ("-", "--", ":"), strict=True):
            ax.plot(range(len(losses)), losses, style, color="black", label=name)
        along_steps(ax, "mean loss of the step's batch, nats")

    rows = [[str(step), *map(_cell, losses)] for step, losses in enumerate(zip(*courses.values(), strict=True))]
    return Section(
        title="What clipping costs, and what noise costs",
        sentences=[course_sentence(courses)],
        tables=[Table("Mean loss of each step's batch, in nats, before the step.", ["step", *courses], rows)],
        pictures=[Picture(draw, f"Loss along the run: {', '.join(courses)}")],
        numbers={"private_losses": {name: list(losses) for name, losses in courses.items()}},
    )


def course_sentence(courses: Mapping[str, Sequence[float]]) -> str:
    """Compare the losses over the steps after the first, at which all runs have the same model."""
    noisy, clipped, plain = (np.array(losses)[1:] for losses in courses.values())
    if len(noisy) < 2:
        return "Too few steps to tell the cost of clipping from that of noise."
    return (
        f"On the same batches, mean over the {len(noisy)} steps after the first: noise adds"
        f" {with_interval(_finite(noisy - clipped))} to the loss of a run that only clips, and clipping"
        f" {with_interval(_finite(clipped - plain))} to that of a run that does neither. One seed, consecutive steps,"
        " so that the intervals are too narrow for another run's; the run with noise has the report's denoiser."
        " Without noise there is no privacy."
    )


def _finite(values: np.ndarray) -> list[float]:
    return [float(value) for value in values if math.isfinite(value)]


def _cell(loss: float) -> str:
    return f"{loss:.4f}" if math.isfinite(loss) else "nobody drawn"
