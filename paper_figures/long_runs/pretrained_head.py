"""``pretrained-head train | more | page``: the study on digits again, of a head on a frozen MiniLM."""

from __future__ import annotations

from pathlib import Path

from paper_figures.digits import HEADS, docstring_features
from paper_figures.long_runs._denoisers import study_of

STUDY = study_of(
    "pretrained-head", __doc__, HEADS, lambda options, _: docstring_features(Path(options.folder) / "features")
)
main = STUDY.main
