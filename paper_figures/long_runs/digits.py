"""``digits train | more | page``: denoisers and filters beside tuned Adam on digits, where spectra do stand out."""

from __future__ import annotations

from pathlib import Path

from paper_figures.digits import SETTINGS, split_images
from paper_figures.long_runs._denoisers import study_of

STUDY = study_of(
    "digits", __doc__, SETTINGS, lambda options, _: split_images(Path(options.data)), data="mnist/", also=False
)
main = STUDY.main
