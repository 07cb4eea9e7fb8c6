"""Data for private training: from the hub, from local files, or the docstrings that every Python carries."""

from dprmt.training.data._docstrings import Docstring as Docstring
from dprmt.training.data._docstrings import docstrings as docstrings
from dprmt.training.data._losses import per_sample_losses as per_sample_losses
from dprmt.training.data._rows import read_rows as read_rows
from dprmt.training.data._task_data import TaskData as TaskData
from dprmt.training.data._task_data import TokenDataset as TokenDataset
from dprmt.training.data._task_data import load_data as load_data

__all__ = ["Docstring", "TaskData", "TokenDataset", "docstrings", "load_data", "per_sample_losses", "read_rows"]
