"""Docstrings as what a frozen MiniLM makes of them: rows of 384 numbers, from which a head tells their package."""

from __future__ import annotations

from pathlib import Path

from paper_figures.digits._images import Images

_MOST = {"train": 6000, "validation": 1500, "test": 1500}


def docstring_features(folder: Path) -> Images:
    """All docstrings by their split, as means over tokens at unit length; ``folder`` keeps them."""
    from paper_figures.automatic_rate._features import pooled

    return Images(*pooled("minilm-docstrings", folder, _MOST))
