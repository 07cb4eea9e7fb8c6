"""Data for private training: from the hub, from local files, or the docstrings that every Python carries."""

import dprmt.training._needs_train  # noqa: F401
from dprmt._lazy import public_names as _public_names
from dprmt.training.data._docstrings import docstrings as docstrings
from dprmt.training.data._losses import check_own_loss as check_own_loss
from dprmt.training.data._losses import head_of as head_of
from dprmt.training.data._losses import model_logits as model_logits
from dprmt.training.data._losses import per_sample_losses as per_sample_losses
from dprmt.training.data._task_data import TaskData as TaskData
from dprmt.training.data._task_data import TokenDataset as TokenDataset
from dprmt.training.data._task_data import load_data as load_data

__all__ = _public_names(vars())
