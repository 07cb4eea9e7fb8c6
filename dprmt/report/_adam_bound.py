"""The report's section on what the bound for Adam's step promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dprmt.report._figure import along_steps
from dprmt.report._page import Picture, Section, Table
from dprmt.report._words import by_columns, counted, effect, no_sign, with_interval

if TYPE_CHECKING:
    from dprmt.report.measurements import AdamBoundStep

_TITLE = "What the bound for Adam promises"
_COLUMNS = ("number", "spread", "cosine", "denoised_cosine", "weighted_cosine", "denoised_weighted_cosine", "shortfall")


def adam_bound_section(steps: Sequence[AdamBoundStep]) -> Section:
    """Compare the cosine that the corrected Proposition I.1 needs with the measured one, with and without denoising."""
    if not steps:
        return Section(_TITLE, ["The recipe's optimizer has no second moments, so the bound is not of it."])

    def draw(ax: Any) -> None:
        numbers = [step.number for step in steps]
        for name, style, label in (
            ("cosine", "-", "cosine, noisy"),
            ("weighted_cosine", "--", "weighted cosine, noisy"),
            ("denoised_weighted_cosine", ":", "weighted cosine, denoised"),
        ):
            ax.plot(numbers, [getattr(step, name) for step in steps], style, color="black", label=label)
        ax.axhline(0, color="black", linewidth=0.5)
        along_steps(ax, "cosine with the clean gradient")

    rows = [
        [
            str(step.number),
            f"{step.spread:.3g}",
            f"1 − {step.shortfall:.2g}",
            effect(step.cosine),
            effect(step.weighted_cosine),
            effect(step.denoised_weighted_cosine),
            " / ".join("yes" if promised else "no" for promised in step.promised),
        ]
        for step in steps
    ]
    header = [
        "step",
        "p_max/p_min",
        "cosine the bound asks for",
        "cosine, noisy",
        "weighted cosine, noisy",
        "denoised",
        "decrease promised, noisy / denoised",
    ]
    caption = (
        "Preconditioner P of each step taken, the cosine above which the corrected bound is positive at small enough"
        " rates, and cosines with the clean gradient; weighted: in the geometry of P."
    )
    return Section(
        _TITLE,
        [adam_bound_sentence(steps), weighted_sentence(steps)],
        tables=[Table(caption, header, rows)],
        pictures=[Picture(draw, "Cosines with the clean gradient along the run, plain and in the geometry of P")],
        numbers={"private_steps": by_columns(list(steps), _COLUMNS)},
    )


def adam_bound_sentence(steps: Sequence[AdamBoundStep]) -> str:
    """Count the steps at which the bound promises a decrease."""
    before, after = (sum(step.promised[i] for step in steps) for i in (0, 1))
    nearest = max(steps, key=lambda step: step.cosine - (1 - step.shortfall))
    asked = (
        "Proposition I.1 of arXiv:2510.01137v3, corrected, promises a decrease only if the cosine with the clean"
        " gradient is above (p_max − p_min)/(p_max + p_min) of the preconditioner's entries, however small the rate is"
    )
    place = (
        f"where it comes nearest, at step {nearest.number}, it asks for 1 − {nearest.shortfall:.2g} and"
        f" {effect(nearest.cosine)} is there"
    )
    if not before and not after:
        return (
            f"{asked}. At none of {counted(len(steps), 'step')} is it so, with or without denoising; {place}. A better"
            " cosine raises the bound, but the difference of two bounds that promise nothing says nothing of"
            " the decrease."
        )
    return f"{asked}. Of {counted(len(steps), 'step')} it is so at {before}, and at {after} with denoising; {place}."


def weighted_sentence(steps: Sequence[AdamBoundStep]) -> str:
    """Describe the bound in the preconditioner's geometry, and the effect of denoising on it."""
    before = [step.weighted_cosine for step in steps]
    gains = [step.denoised_weighted_cosine - step.weighted_cosine for step in steps]
    if not any(gains):
        change = "Denoising did nothing to it at any of them"
    else:
        told = ", which has no sign these steps could show" if no_sign(gains) else ""
        change = f"Denoising adds {with_interval(gains)} to it{told}"
    return (
        "In the preconditioner's geometry the bound is positive at small enough rates wherever the weighted cosine is"
        f" above 0: at {sum(value > 0 for value in before)} of {counted(len(steps), 'step')}, mean"
        f" {with_interval(before)}. {change}. Steps are taken for independent; the momentum is left out, as in the"
        " proposition."
    )
