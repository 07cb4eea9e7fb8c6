"""The table of predicted and measured gains, in ``docs/theory/when_denoising_helps.md``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paper_figures.denoising._gains import VARIANTS, gain, gains, predicted, predicted_by_cosine, rho

BEGIN = "<!-- from here on written by python -m paper_figures study layer-gains page -->"
END = "<!-- up to here: gains -->"


def with_table(page: str, models: Mapping[str, Any]) -> str:
    """The page with the table of these measurements."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{text(models)}\n\n{END}{after}"


def text(models: Mapping[str, Any]) -> str:
    """A row for each model, matrix, strength and variant."""
    lines = [
        "| model | matrix | λ₁ over the threshold | ρ | variant | by cosines alone | predicted | measured |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model, matrices in models.items():
        for name, strengths in matrices.items():
            for strength, found in strengths.items():
                lines += [_row([model, name, strength], found, variant) for variant in VARIANTS if variant != "noisy"]
    return "\n".join(lines)


def _row(cells: list[str], found: Mapping[str, Any], variant: str) -> str:
    theory, interval = predicted(found, variant), gains(found)[variant]
    words = "–" if theory is None else f"{theory:.2f}"
    measured = f"{gain(found, variant):.2f} [{interval.low:.2f}, {interval.high:.2f}]"
    by_cosine = f"{predicted_by_cosine(found, variant):.1f}"
    return "| " + " | ".join([*cells, f"{rho(found):.2g}", variant, by_cosine, words, measured]) + " |"
