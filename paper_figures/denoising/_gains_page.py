"""The table of predicted and measured gains, in ``docs/theory/when_denoising_helps.md``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paper_figures.denoising._gains import VARIANTS, gain, gains, predicted, predicted_by_cosine, rho

BEGIN = "<!-- from here on written by python -m paper_figures study layer-gains page -->"
END = "<!-- up to here: gains -->"


def with_table(page: str, matrices: Mapping[str, Any]) -> str:
    """The page with the table of these measurements."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{text(matrices)}\n\n{END}{after}"


def text(matrices: Mapping[str, Any]) -> str:
    """A row for each matrix, strength and variant."""
    lines = [
        "| matrix | λ₁ over the threshold | ρ | variant | by cosines alone | predicted | measured |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, strengths in matrices.items():
        for strength, found in strengths.items():
            for variant, interval in gains(found).items():
                theory = predicted(found, variant)
                words = "–" if theory is None else f"{theory:.2f}"
                measured = f"{gain(found, variant):.2f} [{interval.low:.2f}, {interval.high:.2f}]"
                cells = [name, strength, f"{rho(found):.2g}", variant, f"{predicted_by_cosine(found, variant):.1f}"]
                lines.append("| " + " | ".join([*cells, words, measured]) + " |")
    assert len(VARIANTS) == len(gains(found)) + 1
    return "\n".join(lines)
