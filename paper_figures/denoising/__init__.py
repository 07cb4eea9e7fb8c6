"""What denoising buys on real models: methods at rates tuned for each, with controls, paired over seeds.

`Study` says what is trained, `runs_of` in which order, `Trainer` does one run in a folder of its own, and `results`
reads the folders.
"""

from paper_figures.denoising._last_layer import LastLayer as LastLayer
from paper_figures.denoising._order import Job as Job
from paper_figures.denoising._order import chosen_rate as chosen_rate
from paper_figures.denoising._order import jobs as jobs
from paper_figures.denoising._page import with_tables as with_tables
from paper_figures.denoising._results import difference as difference
from paper_figures.denoising._results import results as results
from paper_figures.denoising._studies import METHODS as METHODS
from paper_figures.denoising._studies import STUDIES as STUDIES
from paper_figures.denoising._studies import Study as Study
from paper_figures.denoising._trainer import Trainer as Trainer

__all__ = [
    "METHODS",
    "STUDIES",
    "Job",
    "LastLayer",
    "Study",
    "Trainer",
    "chosen_rate",
    "difference",
    "jobs",
    "results",
    "with_tables",
]
