"""Whether denoising helps a small network whose spectra do stand out: many private runs at once, methods side by side.

`Setting` says how loud the noise is, `METHODS` what is done with a noisy gradient, `train` does many runs as one batch
of networks, `tuned_and_run` chooses rates on seeds of their own, and `compared` judges the differences.
"""

from paper_figures.digits._compared import MARGIN as MARGIN
from paper_figures.digits._compared import Compared as Compared
from paper_figures.digits._compared import compared as compared
from paper_figures.digits._images import Images as Images
from paper_figures.digits._images import drawn_images as drawn_images
from paper_figures.digits._images import split_images as split_images
from paper_figures.digits._methods import ALSO as ALSO
from paper_figures.digits._methods import METHODS as METHODS
from paper_figures.digits._methods import Method as Method
from paper_figures.digits._nulls import FalseAlarms as FalseAlarms
from paper_figures.digits._nulls import false_alarms as false_alarms
from paper_figures.digits._nulls import null_columns as null_columns
from paper_figures.digits._page import with_tables as with_tables
from paper_figures.digits._runs import Run as Run
from paper_figures.digits._runs import train as train
from paper_figures.digits._samples import Samples as Samples
from paper_figures.digits._settings import ADAPTERS as ADAPTERS
from paper_figures.digits._settings import HEADS as HEADS
from paper_figures.digits._settings import SETTINGS as SETTINGS
from paper_figures.digits._settings import Setting as Setting
from paper_figures.digits._texts import adapted as adapted
from paper_figures.digits._texts import docstring_features as docstring_features
from paper_figures.digits._tuning import of_method as of_method
from paper_figures.digits._tuning import runs_of as runs_of
from paper_figures.digits._tuning import tuned_and_run as tuned_and_run

__all__ = [
    "ADAPTERS",
    "ALSO",
    "HEADS",
    "MARGIN",
    "METHODS",
    "SETTINGS",
    "Compared",
    "FalseAlarms",
    "Images",
    "Method",
    "Run",
    "Samples",
    "Setting",
    "adapted",
    "compared",
    "docstring_features",
    "drawn_images",
    "false_alarms",
    "null_columns",
    "of_method",
    "runs_of",
    "split_images",
    "train",
    "tuned_and_run",
    "with_tables",
]
