"""``last-matrix train | more | page``: the study on digits again, of an adapter in a pretrained last matrix."""

from __future__ import annotations

from pathlib import Path

from paper_figures.digits import ADAPTERS, adapted
from paper_figures.long_runs._denoisers import study_of

STUDY = study_of(
    "last-matrix",
    __doc__,
    ADAPTERS,
    lambda options, name: adapted(name, Path(options.data), Path(options.folder) / "states"),
    data="sst2/ and e2e/",
    few=lambda options, name: adapted(name, Path(options.data), Path(options.folder) / "few", few=True),
)
main = STUDY.main
